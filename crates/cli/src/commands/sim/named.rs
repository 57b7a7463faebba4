//! The experiments without a scenario file.

/// Random networks, each compared with its best single path.
pub(super) const GRID: &str = "grid";
/// Sessions that survive breaks.
pub(super) const FAILURES: &str = "failures";
/// Shared and separate bottlenecks with background TCPs.
pub(super) const FAIRNESS: &str = "fairness";
/// Losses, queues and neighbours under the window rule `auto`.
pub(super) const LOSSES: &str = "losses";
/// Sensing in overlays of any size.
pub(super) const OVERLAY: &str = "overlay";
/// Inner flows of a tunnel, against their best path and in each lane.
pub(super) const TUNNELS: &str = "tunnels";

/// Their names and descriptions.
pub(super) const NAMED: [(&str, &str); 6] = [
    (GRID, "Never slower than one path: random networks against their best single path"),
    (FAILURES, "A path breaks in one of seven ways and is repaired: does the session continue?"),
    (FAIRNESS, "Fair if paths share a bottleneck, fast if they do not"),
    (LOSSES, "The window rule auto against cubic and bbr, under losses and next to neighbours"),
    (TUNNELS, "A tunnel's inner flows: auto against the best path alone and against each lane"),
    (OVERLAY, "Relays measure each other: traffic, time to notice, estimates, memory"),
];

pub(super) fn is_named(name: &str) -> bool {
    NAMED.iter().any(|(named, _)| *named == name)
}
