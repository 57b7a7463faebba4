//! Finds the scenario of a command, and reports its mistakes.

use std::io::Read as _;
use std::path::Path;

use anabranch_experiments::scenario::{BUILTIN, MAX_TRACE_FILE, Scenario, ScenarioError, Traces};
use anabranch_settings::nearest;

use super::named::{NAMED, is_named};
use crate::errors::{Failure, Kind};

/// A scenario by its file or its name.
pub(super) fn load(name: &str) -> Result<Scenario, Failure> {
    let known = BUILTIN.iter().find(|(known, _)| *known == name);
    let text = match known {
        Some((_, text)) => (*text).to_owned(),
        None => {
            let bytes = read(Path::new(name), MAX_FILE).map_err(|error| unreadable(name, &error))?;
            text_in(&bytes, (Path::new(name), 1))?.to_owned()
        }
    };
    let folder = if known.is_some() { None } else { Path::new(name).parent() };
    let folder = folder.unwrap_or(Path::new("")).to_owned();
    let traces =
        Traces::new(move |file| read(&folder.join(file), MAX_TRACE_FILE).map_err(|error| error.to_string()));
    Scenario::with_traces(&text, name, &traces).map_err(|error| mistake(&error))
}

/// The failure for an unknown scenario.
fn unreadable(name: &str, error: &std::io::Error) -> Failure {
    let failure = Failure::file("read", Path::new(name), error);
    if error.kind() != std::io::ErrorKind::NotFound {
        return failure;
    }
    if is_named(name) {
        let failure = Failure::usage(format!("`{name}` is not a scenario file and has no settings"));
        return failure.hint(format!("`anabranch sim run {name}` runs it; `--help` says what it takes"));
    }
    let known: Vec<&str> = NAMED.iter().chain(BUILTIN).map(|(known, _)| *known).collect();
    // A copied scenario may be in another directory.
    let file = Path::new(name).file_name().and_then(|file| file.to_str()).unwrap_or(name);
    let like = nearest(file.trim_end_matches(".toml"), &known).map(|near| format!("did you mean `{near}`? "));
    failure.hint(format!("{}`anabranch sim list` lists the built-in scenarios", like.unwrap_or_default()))
}

/// Largest scenario file in bytes.
const MAX_FILE: u64 = 16 << 20;

/// Reads a file of at most this many bytes.
fn read(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if read as u64 > most {
        return Err(std::io::Error::other(format!("it is larger than {} MiB, the limit", most >> 20)));
    }
    Ok(bytes)
}

/// A part of a file as text, starting at a line of it; the failure names the line that is not UTF-8.
pub(super) fn text_in<'a>(bytes: &'a [u8], (path, first): (&Path, usize)) -> Result<&'a str, Failure> {
    std::str::from_utf8(bytes).map_err(|error| {
        let good = error.valid_up_to();
        let line = first + bytes[..good].iter().filter(|byte| **byte == b'\n').count();
        let byte = bytes[good];
        Failure::local(format!("cannot read {}:{line}: the byte {byte:#04x} is not UTF-8", path.display()))
            .hint("save it as UTF-8")
    })
}

/// A mistake in a scenario, for the user.
pub(super) fn mistake(error: &ScenarioError) -> Failure {
    anabranch_node::Error::from(error.clone()).into()
}

/// A mistake that a `--set` of the command line causes in a correct scenario.
pub(super) fn wrong_setting(error: &ScenarioError) -> Failure {
    Failure { kind: Kind::Usage, ..mistake(error) }
}

#[cfg(test)]
mod tests {
    use anabranch_experiments::scenario::variants;

    use super::super::args::RunArgs;
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_mistake_names_the_line_and_says_what_to_do() {
        let error = Scenario::parse("duration = \"1 s\"\ndurations = 2\n", "x.toml").unwrap_err();
        let failure = mistake(&error);
        assert!(failure.message.starts_with("x.toml:2: durations: unknown key"), "{failure}");
        assert!(failure.hint.unwrap().contains("`duration`"));
    }

    #[test]
    fn what_is_no_scenario_at_all_is_told_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        std::fs::write(file("binary.toml"), [0_u8, 159, 146, 150]).unwrap();
        std::fs::write(file("empty.toml"), "").unwrap();
        std::fs::write(file("huge.toml"), vec![b'#'; MAX_FILE as usize + 1]).unwrap();
        let told = |name: &str| load(name).unwrap_err().to_string();
        for name in [file("binary.toml"), file("huge.toml"), file("missing.toml"), file("")] {
            assert!(told(&name).starts_with(&format!("cannot read {name}")), "{}", told(&name));
        }
        std::fs::write(file("latin.toml"), b"# links\n[[link]]\nname = \"caf\xe9\"\n").unwrap();
        let latin = load(&file("latin.toml")).unwrap_err();
        let place = format!("cannot read {}:3: the byte 0xe9 is not UTF-8", file("latin.toml"));
        assert_eq!((latin.message, latin.hint.as_deref()), (place, Some("save it as UTF-8")));
        assert!(told(&file("empty.toml")).contains("`duration` is missing"));
        assert!(load("nsdi11-fig99").unwrap_err().hint.unwrap().contains("sim list"));
    }

    #[test]
    fn a_trace_is_found_next_to_its_scenario() {
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("lte.toml");
        let text = "duration = \"1 s\"\n[[link]]\nname = \"l\"\nrate = { trace = \"lte.down\" }\n\
                    [[flow]]\nname = \"f\"\npaths = [\"l\"]\n";
        std::fs::write(&scenario, text).unwrap();
        let missing = load(&scenario.to_string_lossy()).unwrap_err().to_string();
        assert!(missing.contains("lte.toml:4: link.l.rate: cannot read lte.down: No such file"), "{missing}");
        std::fs::write(folder.path().join("lte.down"), "1\n2\n").unwrap();
        let built = load(&scenario.to_string_lossy()).unwrap().build(1).unwrap();
        assert_eq!(built.cables[0].rates[0], 12_000_000);
    }

    #[test]
    fn a_name_that_is_nearly_right_is_told_what_was_meant() {
        let hint = |name: &str| load(name).unwrap_err().hint.unwrap_or_default();
        for (name, meant) in [
            ("two-link", "two-links"),
            ("elsewhere/two-linsk.toml", "two-links"),
            ("nsdi11-fig41", "nsdi11-fig14"),
            ("falures", "failures"),
        ] {
            assert!(hint(name).starts_with(&format!("did you mean `{meant}`? ")), "{}", hint(name));
        }
        assert_eq!(hint("my-own.toml"), "`anabranch sim list` lists the built-in scenarios");
        assert!(hint("grid").contains("`anabranch sim run grid` runs it"));
    }

    #[test]
    fn what_the_command_line_alone_does_wrong_has_its_exit_code() {
        let base = Scenario::parse(include_str!("test.toml"), "test").unwrap();
        for set in ["flow.N.rule=lia", "duration=soon", "durations=1 s"] {
            let error = variants(&base, &[set.parse().unwrap()]).unwrap_err();
            assert_eq!(wrong_setting(&error).kind.exit_code(), 2, "{error}");
        }
        let args: RunArgs = parse(&["two-links", "--redundant"]).unwrap();
        assert_eq!(args.without_grid().unwrap_err().kind, Kind::Usage);
    }
}
