//! What a user of the engine may set, with the two profiles `default` and `tcp`.

use anabranch_cc as cc;
use anabranch_wire::Span;

use crate::datagram::{DatagramMode, Protection};
use crate::manager::PathRules;
use crate::schedule::SchedulerKind;

/// Settings of one session. [`Config::default`] is for the world, [`Config::tcp`] behaves as one
/// background TCP does in the papers' experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Congestion control: the rule and its windows.
    pub cc: cc::Config,
    /// Which paths count as one flow.
    pub coupling: Coupling,
    /// By what paths that share a bottleneck are found.
    pub detector: Detector,
    /// How outgoing data is spread over paths.
    pub scheduler: SchedulerKind,
    /// Data is bound to a path before the path may send, so many bytes on each at most (MPMTP-AR [R5]); `None` for
    /// late binding [M5], the default.
    pub early_binding: Option<u64>,
    /// Which path acknowledgements return on.
    pub ack_policy: AckPolicy,
    /// Acknowledge after this many packets that ask for it.
    pub ack_every: u32,
    /// Acknowledge at the latest after this long.
    pub max_ack_delay: Span,
    /// When a path is doubted and when it is given up.
    pub failure: FailureConfig,
    /// Sizes of buffers and windows, in bytes.
    pub memory: MemoryConfig,
    /// Path MTU.
    pub mtu: MtuConfig,
    /// Most paths at the same time, 1 to 64.
    pub max_paths: u32,
    /// Most streams the peer may have open at the same time. The end of one moves sixteen bytes for each that was opened later, so
    /// tens of thousands are too many.
    pub max_streams: u64,
    /// Largest datagram accepted from the peer, in bytes; 0 for none.
    pub max_datagram: u16,
    /// What is done so that datagrams arrive, by their class.
    pub datagrams: [DatagramMode; 16],
    /// How datagrams of protected classes are protected.
    pub protection: Protection,
    /// Classes whose datagrams are to come in order, a bit each, flow by flow: flows that are equal modulo 64 wait for each other.
    pub ordered_classes: u16,
    /// How long such a datagram waits at most for those before it; less where no path can be so late.
    pub order_patience: Span,
    /// Round-trip time assumed before the first sample.
    pub initial_rtt: Span,
    /// How long the handshake may take.
    pub connect_timeout: Span,
    /// Silence after which the session is over.
    pub idle_timeout: Span,
    /// Silence after which an otherwise idle session sends a PING; `None` for never. A server waits a sixteenth longer, as the
    /// client's serves both.
    pub keep_alive: Option<Span>,
    /// Receiver reports (MPMTP-AR [R6]); `None` where acknowledgements say enough.
    pub reports: Option<ReportConfig>,
    /// Ask for ECN marks instead of losses where the path lets them through.
    pub ecn: bool,
    /// What the user wants of paths: priorities, byte caps, paths to leave out. Sessions share the caps.
    pub rules: PathRules,
    /// Leave a packet number out now and then, so that a peer that acknowledges what it has not got yet is
    /// noticed (RFC 9000 §21.4).
    pub skip_numbers: bool,
}

/// Which paths' windows are coupled, so that together they take one flow's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coupling {
    /// Those that share a bottleneck by evidence, and before there is any those over one local socket.
    #[default]
    Adaptive,
    /// All, or as [`Session::set_path_group`](crate::Session::set_path_group) says: the papers' setting.
    Fixed,
}

/// By what paths that share a bottleneck are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detector {
    /// Losses at the same moments (mTCP §3.2 [M8]).
    Losses,
    /// One-way delays of the same kind (RFC 8382). The peer is asked for times of arrival; where it tells none, nothing is found.
    Delays,
    /// Delays that rise and fall together: one-way where the peer tells times of arrival, for which it is asked, round trips where not.
    Waves,
    /// Waves, and losses where these say nothing; and a queue that is full on one path only tells early that two are separate.
    #[default]
    Both,
}

impl Detector {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Losses, "losses"), (Self::Delays, "delays"), (Self::Waves, "waves"), (Self::Both, "both")];
}

impl Config {
    /// True when the peer is asked for times of arrival: where shared bottlenecks are looked for, and by delays.
    pub(crate) fn asks_for_arrival_times(&self) -> bool {
        let looks = self.coupling == Coupling::Adaptive || self.rules.leave_out_sharers();
        looks && self.detector != Detector::Losses
    }
}

/// Which path acknowledgements return on (mTCP §3.3 [M7]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AckPolicy {
    /// On the path whose packets they acknowledge.
    #[default]
    SamePath,
    /// All on one path, the primary, named by the sender of the data: the papers' setting.
    Primary,
    /// All on the path with the lowest round-trip time.
    Fastest,
}

/// When a path is doubted, and when it is given up (mTCP §3.5 [M12]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureConfig {
    /// Doubt a path when its acknowledgements are overdue by the probe timeout, and re-send its data
    /// elsewhere. Off in the papers' setting, where only the failure timer acts.
    pub suspect: bool,
    /// A path has failed after χ retransmission timeouts without an acknowledgement.
    pub chi: f64,
    /// Bounds of the retransmission timeout.
    pub rto: cc::RtoBounds,
    /// Longest pause between probes of a failed path.
    pub probe_interval: Span,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Receive window at the start, for a stream and for the session.
    pub initial_window: u64,
    /// Largest the receive window grows, for a stream and for the session.
    pub max_window: u64,
    /// Most bytes written but not yet acknowledged.
    pub send_buffer: u64,
    /// Most datagrams that wait in each direction; the oldest make room.
    pub datagrams: usize,
}

/// Path MTU discovery without ICMP (RFC 8899).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MtuConfig {
    /// UDP payload that every path must carry.
    pub base: u16,
    /// Largest UDP payload to look for; equal to `base` for no search.
    pub max: u16,
}

/// Adaptive feedback (MPMTP-AR §3.5 [R6]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReportConfig {
    /// α: weight of the old reliability in the new.
    pub alpha: f64,
    /// b: how fast the feedback fraction follows.
    pub b: f64,
}

impl Default for ReportConfig {
    fn default() -> Self {
        Self { alpha: 0.8, b: 0.07 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cc: cc::Config {
                rule: cc::RuleKind::Cubic,
                initial_window: 10,
                initial_ssthresh: None,
                min_window: 2,
                hystart: true,
                pacing: true,
                max_window: 256 << 20,
            },
            coupling: Coupling::Adaptive,
            detector: Detector::Both,
            scheduler: SchedulerKind::EarliestArrival,
            early_binding: None,
            ack_policy: AckPolicy::SamePath,
            ack_every: 2,
            max_ack_delay: Span::from_millis(10),
            failure: FailureConfig {
                suspect: true,
                chi: 2.0,
                rto: cc::RtoBounds {
                    min: Span::from_millis(200),
                    max: Span::from_secs(10),
                    granularity: Span::from_millis(1),
                },
                probe_interval: Span::from_millis(500),
            },
            memory: MemoryConfig {
                initial_window: 512 << 10,
                max_window: 96 << 20,
                send_buffer: 96 << 20,
                datagrams: 1024,
            },
            mtu: MtuConfig { base: 1200, max: 1472 },
            max_paths: 8,
            max_streams: 128,
            max_datagram: 65_000,
            datagrams: [DatagramMode::Once; 16],
            protection: Protection::default(),
            ordered_classes: 0,
            order_patience: Span::from_millis(200),
            initial_rtt: Span::from_millis(100),
            connect_timeout: Span::from_secs(10),
            idle_timeout: Span::from_secs(30),
            keep_alive: None,
            reports: None,
            ecn: false,
            rules: PathRules::default(),
            skip_numbers: true,
        }
    }
}

impl Config {
    /// The profile of a background TCP and of the papers: no pacing, no HyStart, an acknowledgement for
    /// every second packet, timeouts from 200 ms, window 1 after one, and only the failure timer of
    /// mTCP [M12] with χ = 2.
    #[must_use]
    pub fn tcp() -> Self {
        let mut config = Self::default();
        config.cc.rule = cc::RuleKind::Reno;
        config.cc.initial_window = 2;
        config.cc.min_window = 1;
        config.cc.hystart = false;
        config.cc.pacing = false;
        config.coupling = Coupling::Fixed;
        config.scheduler = SchedulerKind::LeastFilled;
        config.max_ack_delay = Span::from_millis(40);
        config.failure.suspect = false;
        config.skip_numbers = false;
        config.mtu = MtuConfig { base: 1472, max: 1472 };
        config
    }
}
