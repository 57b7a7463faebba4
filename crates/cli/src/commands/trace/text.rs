//! Formats a report as text.

use std::fmt::Write;
use std::net::IpAddr;

use anabranch_overlay::select::Verdict;

use super::survey::{Report, Told, Way};
use super::traces::difference;

/// The report as lines of text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    for way in &report.ways {
        // Writing to a string does not fail.
        let _ = render_way(&mut text, way);
    }
    for relay in &report.silent {
        let _ = writeln!(text, "no answer from relay {relay}: the capacity of its route is unknown");
    }
    if let Some(flow) = &report.sets.max_flow {
        let _ = writeln!(text, "together over relays: {:.1} Mbit/s", flow.mbit);
        for part in &flow.parts {
            let _ = writeln!(text, "  {:.1} Mbit/s over {}", part.mbit, part.over.join("+"));
        }
    }
    let joint = &report.sets.least_joint;
    if joint.ways.len() > 1 {
        let _ = writeln!(text, "least in common, {}:", difference(joint.jointness_ms));
        for way in &joint.ways {
            let _ = writeln!(text, "  {}", way.join(" "));
        }
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
    let ms = explanation.rtt_ms;
    let time = match (way.answered, is_exact) {
        (false, _) if ms == 0.0 => "no answer from its end".into(),
        (false, _) => format!("no answer from its end, at least {ms:.1} ms"),
        (true, false) => format!("about {ms:.1} ms"),
        (true, true) => format!("{ms:.1} ms"),
    };
    write!(text, "{}: {}; {time}", explanation.name, verdict(&explanation.verdict))?;
    if let Some(mbit) = explanation.capacity_mbit {
        write!(text, ", at most {mbit:.1} Mbit/s")?;
    }
    match &explanation.like {
        Some(other) => writeln!(text, "; {other} differs by under 1 ms (noise)")?,
        None => writeln!(text)?,
    }
    let hops: Vec<String> =
        way.hops.iter().map(|hop| hop.map_or("*".to_owned(), |address| address.to_string())).collect();
    let hops = if hops.is_empty() { "hops that did not answer".to_owned() } else { hops.join(" ") };
    writeln!(text, "  over {hops}")?;
    for shared in &explanation.shares {
        let links = shared.links.join(", ");
        let (with, overlap) = (&shared.with, difference(shared.overlap_ms));
        writeln!(text, "  shares {overlap} with {with} (disjoint {:.2}): {links}", shared.disjoint)?;
    }
    for Told { from, to, rtt_ms, loss, capacity_mbit, available_mbit, estimated } in &way.told {
        let lost = loss * 100.0;
        let rate = match (capacity_mbit, available_mbit) {
            (Some(whole), Some(free)) => format!(", {whole:.1} Mbit/s of which {free:.1} are free"),
            (Some(whole), None) => format!(", {whole:.1} Mbit/s"),
            (None, _) => String::new(),
        };
        match estimated {
            None => writeln!(
                text,
                "  from {from} to {to}: {rtt_ms:.1} ms, {lost:.1} % lost{rate}; measured by a relay"
            )?,
            Some(error) => {
                let off = error * 100.0;
                writeln!(
                    text,
                    "  from {from} to {to}: {rtt_ms:.0} ms, {lost:.1} % lost{rate}; estimated, give or take {off:.0} %"
                )?;
            }
        }
    }
    for [from, to] in &way.unknown {
        writeln!(
            text,
            "  from {from} to {to}: not known; run `anabranch trace {to} --save FILE` there, and give --traces {from}=FILE here"
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

#[cfg(test)]
mod tests {
    use anabranch_overlay::select::Explanation;

    use super::*;

    #[test]
    fn a_route_whose_end_did_not_answer_is_not_said_to_take_no_time() {
        let explanation = Explanation {
            name: "direct".into(),
            score_mbit: 0.0,
            rtt_ms: 0.0,
            loss: 0.0,
            capacity_mbit: None,
            silent_hops: 0,
            like: None,
            shares: Vec::new(),
            verdict: Verdict::Used { rank: 1 },
        };
        let mut way =
            Way { hops: Vec::new(), answered: false, unknown: Vec::new(), told: Vec::new(), explanation };
        let text = |way: &Way| {
            let mut text = String::new();
            render_way(&mut text, way).unwrap();
            text
        };
        assert!(text(&way).starts_with("direct: used, number 1; no answer from its end\n"), "{}", text(&way));
        way.explanation.rtt_ms = 4.0;
        assert!(text(&way).contains("no answer from its end, at least 4.0 ms"), "{}", text(&way));
        way.answered = true;
        assert!(text(&way).starts_with("direct: used, number 1; 4.0 ms\n"), "{}", text(&way));
    }
}
