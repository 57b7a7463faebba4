//! Reports of a session about itself and its paths.

use std::net::SocketAddr;

use anabranch_wire::{Fsn, PathId, Payload, Pid, Span};

use super::Session;
use crate::bottleneck::Verdict;
use crate::path::Path;
use crate::route::Route;
use crate::stats::{PathInfo, PathStats, PathWindow, SessionStats};

impl<P: Payload> Session<P> {
    /// The peer's PID for a path, once it is known.
    pub fn remote_pid(&self, path: PathId) -> Option<Pid> {
        let place = self.flight.paths.place_of(path)?;
        self.flight.paths[place].remote_pid()
    }

    /// The highest number of each path that the peer has acknowledged. Drivers need it to change keys.
    pub fn highest_acked(&self) -> impl Iterator<Item = (PathId, Fsn)> {
        self.flight.paths.iter().filter_map(|path| Some((path.id(), path.board().highest_acked()?)))
    }

    /// Whether two paths share a bottleneck, by the evidence of [`Config::detector`]. Undecided when no one
    /// needs to know.
    pub fn shared_bottleneck(&self, a: PathId, b: PathId) -> Verdict {
        self.control.live.coupling.shared_bottleneck(a, b)
    }

    /// The addresses at which the peer sees this end, by its own report, on the current paths.
    pub fn observed_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.flight.paths.iter().filter_map(|path| path.feedback().observed())
    }

    /// The routes of current paths, each with this end's address there as the peer reports it.
    pub fn observed_routes(&self) -> impl Iterator<Item = (Route, SocketAddr)> {
        self.flight.paths.iter().filter_map(|path| Some((path.route(), path.feedback().observed()?)))
    }

    /// All current paths, those that are being opened included.
    pub fn paths(&self) -> Vec<PathInfo> {
        self.flight.paths.iter().map(|path| self.info(path)).collect()
    }

    /// The closing paths. Cheap without one, for callers that look often.
    pub fn closing_paths(&self) -> impl Iterator<Item = PathInfo> {
        self.flight.paths.iter().filter(|path| path.is_closing()).map(move |path| self.info(path))
    }

    /// Window and round-trip time of all paths, for callers that look often.
    pub fn path_windows(&self) -> impl Iterator<Item = PathWindow> {
        self.flight.paths.iter().map(|path| {
            let rtt = path.rtt();
            PathWindow {
                route: path.route(),
                window: self.flight.cc.window(path.id()),
                mtu: path.mtu().current(),
                rtt: if rtt.has_sample() { rtt.smoothed() } else { Span::ZERO },
                reductions: path.stats().congestion_events,
            }
        })
    }

    fn info(&self, path: &Path) -> PathInfo {
        let (rtt, cc) = (path.rtt(), &self.flight.cc);
        let sampled = rtt.has_sample();
        PathInfo {
            id: path.id(),
            route: path.route(),
            state: path.state(),
            usage: path.effective_use(),
            standing: path.usage().standing(),
            meter: path.usage().meter().cloned(),
            rate_limit: path.wishes().rate_limit(),
            rtt: if sampled { rtt.smoothed() } else { Span::ZERO },
            min_rtt: if sampled { rtt.min() } else { Span::ZERO },
            rtt_variance: if sampled { rtt.variance() } else { Span::ZERO },
            window: cc.window(path.id()),
            in_flight: path.board().pipe(),
            delivery_rate: path.delivery().rate(),
            mtu: path.mtu().current(),
            loss_cause: cc.loss_cause(path.id()),
            group: cc.group(path.id()),
            reliability: path.feedback().reliability(),
            stats: PathStats {
                packets_received: path.receipt().packets(),
                bytes_received: path.receipt().bytes(),
                packets_missing: path.receipt().missing(),
                ..*path.stats()
            },
        }
    }

    /// Stream bytes that wait for earlier ones: as [`SessionStats::bytes_reassembling`].
    pub fn bytes_reassembling(&self) -> u64 {
        self.flight.streams.waiting_bytes()
    }

    /// Counters of the session.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            bytes_read: self.flight.streams.bytes_read(),
            bytes_reassembling: self.flight.streams.waiting_bytes(),
            bytes_unacknowledged: self.flight.streams.buffered(),
            ..self.datagrams.add_stats(self.flight.stats)
        }
    }
}
