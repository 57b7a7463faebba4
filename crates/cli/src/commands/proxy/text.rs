//! A proxy's status for people.

use std::fmt::Write as _;

use anabranch_node::PathStatus;
use anabranch_proxy::status::ProxyStatus;
use anabranch_proxy::{ConnectionStatus, Totals};

use crate::ui::human;

/// Connections that are shown.
const MOST_SHOWN: usize = 20;

/// The whole status.
pub fn status(status: &ProxyStatus) -> String {
    let mut text = String::new();
    let exit = match (&*status.exit, &status.why) {
        ("", Some(why)) => format!("no session with the exit: {why}"),
        ("", None) => "no session with the exit".to_owned(),
        (exit, _) => format!("exit {exit}"),
    };
    let _ = writeln!(text, "{}  {exit}", status.listen);
    match status.redirecting {
        Some(true) => text.push_str("  TCP connections of all programs are led here\n"),
        Some(false) => {
            text.push_str("  connections of other programs stay direct until the exit is reached\n");
        }
        None => {}
    }
    status.paths.iter().for_each(|status| path(status, &mut text));
    connections(&status.connections, status.open, &status.totals, &mut text);
    text
}

pub fn path(path: &PathStatus, text: &mut String) {
    let local = path.local.as_deref().unwrap_or("?");
    let why = path.why.as_deref().unwrap_or(&path.standing);
    let [sent, received] = path.bytes.map(human::bytes);
    let _ = writeln!(
        text,
        "  path {:<2} {local} → {}  rtt {:.1} ms, sent {sent}, received {received}, {}, {why}",
        path.id, path.remote, path.rtt_ms, path.state
    );
}

/// The connections that are open, and how many there have been.
pub fn connections(listed: &[ConnectionStatus], open: usize, totals: &Totals, text: &mut String) {
    let [up, down] = totals.bytes.map(human::bytes);
    let _ = writeln!(
        text,
        "{} open; {} in all, {up} and {down}",
        human::count(open as u64, "connection"),
        totals.connections
    );
    for connection in listed.iter().take(MOST_SHOWN) {
        let [up, down] = connection.bytes.map(human::bytes);
        let name = &connection.name;
        let since = human::seconds(connection.seconds);
        let _ = writeln!(text, "  {:<9} {:<40} {up} and {down} in {since}", name.from, name.to);
    }
    if open > MOST_SHOWN {
        let _ = writeln!(text, "  and {} more", open - MOST_SHOWN);
    }
}
