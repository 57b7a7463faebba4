//! A report for people.

use std::fmt::Write;
use std::net::IpAddr;

use anabranch_overlay::select::Verdict;

use super::survey::{Report, Told, Way};

/// The report as lines of text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    for way in &report.ways {
        // Writing to a string does not fail.
        let _ = render_way(&mut text, way);
    }
    for router in &report.routers {
        let _ = writeln!(text, "one router: {}", list(router));
    }
    if !report.unresolved.is_empty() {
        let _ = writeln!(
            text,
            "no second address found: {}; some may be one router, traces from the other end would tell (--traces)",
            list(&report.unresolved)
        );
    }
    for [a, b] in &report.conflicts {
        let _ = writeln!(text, "not one router, though neighbours: {a}, {b}");
    }
    text
}

fn render_way(text: &mut String, way: &Way) -> std::fmt::Result {
    let explanation = &way.explanation;
    let is_exact = way.unknown.is_empty() && way.told.iter().all(|told| told.estimated.is_none());
    let about = if is_exact { "" } else { "about " };
    let verdict = verdict(&explanation.verdict);
    writeln!(text, "{}: {verdict}; {about}{:.1} ms", explanation.name, explanation.rtt_ms)?;
    let hops: Vec<String> =
        way.hops.iter().map(|hop| hop.map_or("*".to_owned(), |address| address.to_string())).collect();
    writeln!(
        text,
        "  over {}",
        if hops.is_empty() { "hops that nobody told".to_owned() } else { hops.join(" ") }
    )?;
    for shared in &explanation.shares {
        let links = shared.links.join(", ");
        let (with, overlap) = (&shared.with, shared.overlap_ms);
        writeln!(text, "  shares {overlap:.1} ms with {with} (disjoint {:.2}): {links}", shared.disjoint)?;
    }
    for Told { from, to, rtt_ms, loss, estimated } in &way.told {
        let lost = loss * 100.0;
        match estimated {
            None => writeln!(
                text,
                "  from {from} to {to}: {rtt_ms:.1} ms, {lost:.1} % lost; measured by a relay"
            )?,
            Some(error) => {
                let off = error * 100.0;
                writeln!(
                    text,
                    "  from {from} to {to}: {rtt_ms:.0} ms, {lost:.1} % lost; estimated, give or take {off:.0} %"
                )?;
            }
        }
    }
    for [from, to] in &way.unknown {
        writeln!(
            text,
            "  from {from} to {to}: not known; run `anabranch paths {to} --save FILE` there, and give --traces {from}=FILE here"
        )?;
    }
    Ok(())
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Used { rank } => format!("used, number {rank}"),
        Verdict::TooSimilar { to, disjoint, beta } => {
            format!(
                "not used, too much in common with {to} ({disjoint:.2} disjoint, more than {beta:.2} is asked)"
            )
        }
        Verdict::Enough { k } => format!("not used, {k} better ones are"),
        Verdict::Dead => "not used, nothing gets through".to_owned(),
    }
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
