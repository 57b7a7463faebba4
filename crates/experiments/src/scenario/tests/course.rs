//! Tests of what is drawn over time.

use super::*;

/// The course of `small`, with more text in its file.
fn course(more: &str) -> Course {
    let scenario = Scenario::parse(&format!("{SMALL}{more}"), "small.toml").unwrap();
    scenario.run_with(1, Extras { course: true, ..Extras::default() }).unwrap().1
}

fn event(at: &str, link: &str, what: &str) -> String {
    format!("[[event]]\nat = \"{at}\"\nlink = \"{link}\"\n{what}\n")
}

#[test]
fn events_at_one_time_have_one_name() {
    let more = [
        event("6 s", "wifi", "down = true"),
        event("3 s", "lte", "rate = \"2 Mbit/s\"\ndelay = \"30 ms\""),
        event("8 s", "wifi", "down = false"),
        event("8 s", "lte", "loss = \"1 %\""),
    ];
    let events: Vec<(f64, String)> =
        course(&more.concat()).events.into_iter().map(|Event { at, what }| (at, what)).collect();
    let wanted = [(3.0, "lte delay, rate"), (6.0, "wifi down"), (8.0, "2 links loss, up")];
    assert_eq!(events, wanted.map(|(at, what)| (at, what.to_owned())));
}

#[test]
fn no_round_trip_time_lasts_through_an_outage() {
    let more = event("5 s", "wifi", "down = true") + &event("8 s", "wifi", "down = false");
    let course = course(&more);
    let is_it = |line: &&Line| line.quantity == Quantity::Rtt && line.of == "M path 1";
    let line = course.lines.iter().find(is_it).unwrap();
    let known = |from: f64, to: f64| -> Vec<bool> {
        let times = course.times.iter().zip(&line.values);
        times.filter(|(at, _)| **at > from && **at < to).map(|(_, value)| value.is_finite()).collect()
    };
    // Less than two round trips of a full queue after the cut.
    assert!(known(5.15, 8.0).iter().all(|known| !known));
    assert!(known(4.0, 5.0).iter().chain(&known(9.0, 10.0)).all(|known| *known));
}

#[test]
fn a_flow_that_sees_one_path_is_drawn_under_its_own_name() {
    let inner = "[[tunnel]]\nname = \"t\"\npaths = [\"wifi\", \"lte\"]\n\
                 [[flow]]\nname = \"S\"\ntunnel = \"t\"\nlane = \"striped\"\n";
    let course = course(inner);
    let names = |quantity: Quantity| -> Vec<&str> {
        course.lines.iter().filter(|line| line.quantity == quantity).map(|line| line.of.as_str()).collect()
    };
    assert_eq!(names(Quantity::PathGoodput), ["M path 1", "M path 2"]);
    assert_eq!(names(Quantity::Rtt), ["M path 1", "M path 2", "T", "S"]);
    assert_eq!(names(Quantity::Window), ["M path 1", "M path 2", "T", "S"]);
}

#[test]
fn every_metric_of_a_run_has_a_known_name() {
    let known = small().metric_names().unwrap();
    let measured = small().run(1).unwrap().metrics;
    assert!(measured.keys().all(|name| known.contains(name)), "{known:?}");
}

#[test]
fn the_only_file_of_a_run_counts_in_the_distribution_over_several_runs() {
    let text = "duration = \"3 s\"\n[[link]]\nname = \"a\"\nrate = \"10 Mbit/s\"\n\
                [[arrivals]]\nname = \"w\"\npaths = [\"a\"]\nrate = [\"1 /s\"]\nsize = \"10 kB\"\n\
                sizes = \"fixed\"\nstop = \"1 s\"\n";
    let scenario = Scenario::parse(text, "files").unwrap();
    let run = |seed| scenario.run_with(seed, Extras { course: true, ..Extras::default() }).unwrap();
    let is_single = |(report, _): &(Report, Course)| report.metrics["arrivals.w.completed"] == 1.0;
    let (_, course) = (1..100).map(run).find(is_single).expect("a run with one file");
    let counts: Vec<usize> = course.distributions.iter().map(|found| found.values.len()).collect();
    assert_eq!(counts, [1]);
}
