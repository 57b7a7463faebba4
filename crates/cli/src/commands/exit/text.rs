//! An exit's status and log for people.

use std::fmt::Write as _;

use anabranch_proxy::Record;
use anabranch_proxy::message::Outcome;
use anabranch_proxy::status::ExitStatus;

use crate::commands::proxy::text::{connections, path};
use crate::ui::human;

/// The whole status.
pub fn status(status: &ExitStatus) -> String {
    let mut text = String::new();
    for client in &status.clients {
        let by = if client.by_ticket { "by ticket" } else { "by key" };
        let _ = writeln!(
            text,
            "{}  {by}, {}, {} used",
            client.node,
            human::count(client.connections as u64, "connection"),
            human::bytes(client.used)
        );
        client.paths.iter().for_each(|status| path(status, &mut text));
    }
    if status.clients.is_empty() {
        text.push_str("no client\n");
    }
    connections(&status.connections, status.open, &status.totals, &mut text);
    text
}

/// A line of the log.
pub fn record(record: &Record) -> String {
    let [received, sent] = record.bytes.map(human::bytes);
    let ends = match &record.from {
        Some(from) => format!("{from} → {} for {}", record.to, record.node),
        None => format!("{} → {}", record.node, record.to),
    };
    let line = match record.outcome {
        Outcome::Open => {
            format!("{ends}: {sent} there, {received} back in {}", human::seconds(record.seconds))
        }
        outcome => format!("{ends}: {}", outcome.text()),
    };
    match record.left_out {
        0 => line,
        count => format!("{line} (and {} before it)", human::count(count, "refused connection")),
    }
}
