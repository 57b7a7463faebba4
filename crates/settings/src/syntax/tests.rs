//! Tests of what is said of texts that are no TOML.

use super::*;

fn told(text: &str) -> String {
    syntax_error(text).map_or("TOML".to_owned(), |error| error.to_string())
}

#[test]
fn what_is_no_toml_is_told_with_what_to_write_instead() {
    let cases = [
        ("a = 1\n[[flow]\nb = 2", ":2: flow: the head of a table is not closed\n  hint    write [[flow]]"),
        ("a = 1\n[links\nb = 2", ":2: links: the head of a table is not closed\n  hint    write [links]"),
        (
            "a = 1\nname = \"M\nb = 2",
            ":2: name: text without an end\n  hint    end it with the quote that it began with: name = \"M\"",
        ),
        (
            "delay = 5 ms # short\n",
            ":1: delay: found 5 ms, which is no value\n  hint    text and quantities stand in quotes: delay = \"5 ms\"",
        ),
        (
            "rule = lia",
            ":1: rule: found lia, which is no value\n  hint    text and quantities stand in quotes: rule = \"lia\"",
        ),
        (
            "rate = 10Mbit/s",
            ":1: rate: found 10Mbit/s, which is no value\n  hint    text and quantities stand in quotes: rate = \"10Mbit/s\"",
        ),
        (
            "loss = 1/2",
            ":1: loss: found 1/2, which is no value\n  hint    fractions are written as decimals: loss = 0.5",
        ),
        (
            "loss = null",
            ":1: loss: found null, which is no value\n  hint    take loss out, or give it a value",
        ),
        ("loss = NaN", ":1: loss: found NaN, which is no value\n  hint    write a number: loss = 1.0"),
        (
            "loss = 1,5 %",
            ":1: loss: found 1,5 %, which is no value\n  hint    text and quantities stand in quotes, with a point before decimals: loss = \"1.5 %\"",
        ),
        ("a = 1\nb =\nc = 3", ":2: b: no value\n  hint    write one: `b = …`"),
        (
            "[[a]]\nx = 1\n[[a]]\nx = 1\ny = 2\nx = 3",
            ":6: x: there twice, first on line 4\n  hint    take one of them out, or begin another table above: [[a]]",
        ),
        ("[a]\nx = 1\n[b]\n[a]", ":4: a: there twice, first on line 1\n  hint    take one of them out"),
        (
            "size = “1 MB”",
            ":1: size: found “1 MB”, in quotes that are none of TOML's\n  hint    TOML has straight quotes: size = \"1 MB\"",
        ),
        (
            "a = 1\nabout = \"\"\"\nmore\n\n[x]\n",
            ":2: about: text without an end\n  hint    end it with \"\"\" where it is to end",
        ),
        ("a = '''\nb = 1", ":1: a: text without an end\n  hint    end it with ''' where it is to end"),
        ("a = 1\nsize: \"1 MB\"", ":2: size: no = between key and value\n  hint    write size = \"1 MB\""),
        ("duration: 2 s", ":1: duration: no = between key and value\n  hint    write duration = \"2 s\""),
        (
            "x = 1\ny = 2\nz = { x = 1, x = 2 }",
            ":3: x: there twice within the braces\n  hint    take one of them out",
        ),
        (
            "delay = \"5\" ms",
            ":1: delay: found ms behind the value\n  hint    a unit stands within the quotes: delay = \"5 ms\"",
        ),
        ("a = \"b\" // first", ":1: a: found // first behind the value\n  hint    a comment begins with #"),
        ("a = \"b\",", ":1: a: found , behind the value\n  hint    take it out: a = \"b\""),
        (
            "a = \"b\" c = \"d\"",
            ":1: a: found c = \"d\" behind the value\n  hint    each key has a line of its own",
        ),
        ("a = True", ":1: a: found True, which is no value\n  hint    write a = true"),
        ("a = 010", ":1: a: found 010, which is no value\n  hint    numbers begin without zeros: a = 10"),
        (
            "a = (\"b\", \"c\")",
            ":1: a: found (\"b\", \"c\"), which is no value\n  hint    lists stand in brackets: a = [\"b\", \"c\"]",
        ),
        (
            "a == \"b\"",
            ":1: a: found = \"b\", which is no value\n  hint    between key and value stands one =: a = \"b\"",
        ),
        (
            "a => \"b\"",
            ":1: a: found > \"b\", which is no value\n  hint    between key and value stands one =: a = \"b\"",
        ),
        (
            "a = 5\"ms\"",
            ":1: a: found 5\"ms\", which is no value\n  hint    text and quantities stand in quotes: a = \"5 ms\"",
        ),
        (
            "a = \"3\n s\"\nb = 1",
            ":1: a: text without an end\n  hint    it ends with its line: end it with the quote that it began with, or begin and end it with \"\"\"",
        ),
        (
            "duration := \"3 s\"",
            ":1: duration :: a colon before the =\n  hint    between key and value stands one =: duration = \"3 s\"",
        ),
        (
            "max count = 2",
            ":1: max count: cannot be a key\n  hint    words are joined by an underscore: max_count = 2",
        ),
        (
            "näme = 1",
            ":1: näme: cannot be a key\n  hint    keys are letters from a to z, digits, - and _; others stand in quotes",
        ),
        ("\"jain\" = { min = .5 }", ":1: jain: found .5, which is no value\n  hint    write 0.5"),
        ("x = { min=1,5 }", ":1: x: found 1,5, which is no value\n  hint    write 1.5"),
        ("x = { y = 1, z = 5. }", ":1: x: found 5., which is no value\n  hint    write 5.0"),
        ("a = .5", ":1: a: found .5, which is no value\n  hint    a digit stands before the point: a = 0.5"),
        ("a = 5.", ":1: a: found 5., which is no value\n  hint    a digit stands behind the point: a = 5.0"),
        (
            "a = `b`",
            ":1: a: found `b`, in quotes that are none of TOML's\n  hint    TOML has straight quotes: a = \"b\"",
        ),
        (
            "a = [\"b\" \"c\"]",
            ":1: a: a list that is none\n  hint    quotes around text, commas between: a = [\"b\", \"c\"]",
        ),
        (
            "a = [\"b\"; 'c']",
            ":1: a: a list that is none\n  hint    quotes around text, commas between: a = [\"b\", 'c']",
        ),
        (
            "a = [5 ms, 7]",
            ":1: a: a list that is none\n  hint    quotes around text, commas between: a = [\"5 ms\", 7]",
        ),
        (
            "a = [[\"b, \"c\"]]",
            &format!(":1: a: missing comma between array elements, expected `,`\n  hint    {LISTS}"),
        ),
        ("a = [[\"b\", \"c]]\nd = 1", &format!(":1: a: text without an end\n  hint    {LISTS}")),
        (
            "a = [\"b #1\", \"c\"\nd = 1",
            ":1: a: a bracket that nothing closes\n  hint    write a ] where what the [ began is to end, or take the [ out",
        ),
        (
            "a = ['b\\'\nd = 1",
            ":1: a: a bracket that nothing closes\n  hint    write a ] where what the [ began is to end, or take the [ out",
        ),
        ("a = [\n\"b\",\n\"c,\n]\nd = 1", &format!(":3: text without an end\n  hint    {LISTS}")),
        ("[\"a b\"", ":1: \"a b\": the head of a table is not closed\n  hint    write [\"a b\"]"),
        (
            "[a b]",
            ":1: a b: cannot be the name of a table\n  hint    it is of letters from a to z, digits, - and _; dots stand between names",
        ),
        ("size \"1 MB\"", ":1: size: no = between key and value\n  hint    write size = \"1 MB\""),
        (
            "[[a]]\nx = 1\nx = 2",
            ":3: x: there twice, first on line 2\n  hint    take one of them out, or begin another table above: [[a]]",
        ),
        (
            "[a]\n\"x.y\" = { b = 1 }\n\"x.y\" = { c = 2 }",
            ":3: x.y: there twice, first on line 2\n  hint    take one of them out, or put what both say within the braces of one",
        ),
        (
            "x = 1,000",
            ":1: x: found 1,000, which is no value\n  hint    numbers are written without commas: x = 1000",
        ),
        (
            "n'x = 1",
            ":1: n'x: cannot be a key\n  hint    keys are letters from a to z, digits, - and _; others stand in quotes",
        ),
        ("x = { y = 1, y = 2 }", ":1: y: there twice within the braces\n  hint    take one of them out"),
    ];
    for (text, wanted) in cases {
        assert_eq!(told(text), wanted, "{text}");
    }
    for text in ["name = \"a\u{0}b\"", r#"name = "C:\dir""#] {
        let told = told(text);
        assert!(told.starts_with(":1: name: ") && told.ends_with(ESCAPES), "{told}");
    }
    let deep = told(&format!("x = {}", "[".repeat(500)));
    assert!(deep.ends_with("put fewer lists and tables within each other"), "{deep}");
    let unknown = told("a = 1\nwhat is this");
    assert!(unknown.starts_with(":2: ") && unknown.ends_with(FORM), "{unknown}");
    assert_eq!(told("a = [\n\"x\",\n]\n"), "TOML");
}

#[test]
fn quotes_astray_in_a_list_are_put_where_they_belong() {
    for (value, mended) in [
        ("[\"a\"\", \"b\"]", "[\"a\", \"b\"]"),
        ("[\"\"a\", \"b\"]", "[\"a\", \"b\"]"),
        ("[\"a, \"b\"]", "[\"a\", \"b\"]"),
        ("[\"5 /s, \"20 /s\"]", "[\"5 /s\", \"20 /s\"]"),
        ("[\"a\"\"]", "[\"a\"]"),
        ("[a, \"b, c\"]", "[\"a\", \"b, c\"]"),
    ] {
        assert_eq!(list_of(value).as_deref(), Some(mended), "{value}");
    }
    assert_eq!((list_of("[[\"a\", b]]"), list_of("[\"a\"]]"), list_of("[\"\"]")), (None, None, None));
}
