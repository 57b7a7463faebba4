//! The settings of a session, with the two profiles `default` and `tcp`.

use anabranch_cc as cc;
use anabranch_wire::Span;

use crate::datagram::{DatagramMode, Protection};
use crate::manager::PathRules;
use crate::schedule::SchedulerKind;

/// Settings of one session. [`Config::default`] is the deployed profile; [`Config::tcp`] is a background TCP of the
/// papers' experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Congestion control: the rule and its windows.
    pub cc: cc::Config,
    /// Which paths count as one flow.
    pub coupling: Coupling,
    /// How paths that share a bottleneck are found.
    pub detector: Detector,
    /// How outgoing data is spread over paths.
    pub scheduler: SchedulerKind,
    /// Binds data to a path before the path may send, at most this many bytes on each (MPMTP-AR [R5]). `None`, the
    /// default, is late binding [M5].
    pub early_binding: Option<u64>,
    /// Acknowledgements.
    pub acks: AckConfig,
    /// When a path is suspected, and when it has failed.
    pub failure: FailureConfig,
    /// Sizes of buffers and windows, in bytes.
    pub memory: MemoryConfig,
    /// Path MTU.
    pub mtu: MtuConfig,
    /// Most paths at the same time, 1 to 64.
    pub max_paths: u32,
    /// Most of these that the peer opens.
    pub max_peer_paths: u32,
    /// Most open streams of the peer. When a stream ends, sixteen bytes are moved for each stream opened after it, so
    /// tens of thousands are too many.
    pub max_streams: u64,
    pub datagrams: DatagramConfig,
    /// Round-trip time assumed before the first sample.
    pub initial_rtt: Span,
    /// How long the handshake may take.
    pub connect_timeout: Span,
    /// Silence after which the session is over.
    pub idle_timeout: Span,
    /// Silence after which an otherwise idle session sends a PING; `None` for never. A server waits a sixteenth longer,
    /// because the client's PING serves both.
    pub keep_alive: Option<Span>,
    /// Receiver reports (MPMTP-AR [R6]); `None` for acknowledgements only.
    pub reports: Option<ReportConfig>,
    /// Use ECN marks on paths that let them through.
    pub ecn: bool,
    /// The user's rules for paths: priorities, byte caps, excluded paths. All sessions share the caps.
    pub rules: PathRules,
}

/// Which paths' windows are coupled, so that together they take one flow's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coupling {
    /// Paths that share a bottleneck by the evidence; without evidence, paths over one local socket.
    #[default]
    Adaptive,
    /// All paths: the papers' setting.
    Fixed,
}

/// How paths that share a bottleneck are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detector {
    /// Losses at the same times (mTCP §3.2 [M8]).
    Losses,
    /// One-way delays with similar statistics (RFC 8382). Without arrival times from the peer, nothing is found.
    Delays,
    /// Delays that rise and fall together: one-way delays if the peer reports arrival times, otherwise round trips.
    Waves,
    /// Waves, or losses if waves do not decide. A queue that is full on only one path shows early that two paths are
    /// separate.
    #[default]
    Both,
}

impl Detector {
    /// All detectors, with their names.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::Losses, "losses"), (Self::Delays, "delays"), (Self::Waves, "waves"), (Self::Both, "both")];
}

impl Config {
    /// True if the peer should report arrival times, because the detector uses delays.
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

/// When acknowledgements leave, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AckConfig {
    /// Which path they return on.
    pub policy: AckPolicy,
    /// Acknowledge after this many packets that ask for it.
    pub every: u32,
    /// Acknowledge at the latest after this long.
    pub max_delay: Span,
    /// Whether to skip a packet number at random, to detect a peer that acknowledges packets that it has not received
    /// (RFC 9000 §21.4).
    pub skip_numbers: bool,
}

impl Default for AckConfig {
    fn default() -> Self {
        Self { policy: AckPolicy::SamePath, every: 2, max_delay: Span::from_millis(10), skip_numbers: true }
    }
}

/// Datagrams, by their 16 classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatagramConfig {
    /// Largest datagram accepted from the peer, in bytes; 0 accepts none.
    pub largest: u16,
    /// The protection of each class against loss.
    pub modes: [DatagramMode; 16],
    /// The parameters of protected classes.
    pub protection: Protection,
    /// Classes whose datagrams are delivered in order, one bit each. The order is per flow; flows with equal numbers
    /// modulo 64 share it.
    pub ordered_classes: u16,
    /// Classes of urgent datagrams, one bit each: the path that carries them keeps its queue short.
    pub urgent_classes: u16,
    /// Ordered classes whose receivers take any number of datagrams at once, one bit each. Those of the others are
    /// delivered over some milliseconds where many waited for a late one: a program's UDP socket holds some 90 full ones.
    pub burst_classes: u16,
    /// Longest time that a datagram of an ordered class waits for earlier ones; less if no path can be so late.
    pub patience: Span,
}

/// When a path is suspected, and when it has failed (mTCP §3.5 [M12]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureConfig {
    /// Whether a path is suspected when its acknowledgements are overdue by the probe timeout, so that its data is sent
    /// again on others. Off in the papers' setting, which has only the failure timer.
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
    /// Initial receive window, for a stream and for the session.
    pub initial_window: u64,
    /// Largest receive window, for a stream and for the session.
    pub max_window: u64,
    /// Bytes that the application leaves unread in one stream take no credit from the others: the session's window grows by
    /// them, up to four times `max_window` and `initial_window` for each stream. For streams with readers of their own,
    /// some of which pause.
    pub independent_streams: bool,
    /// Most bytes written but not yet acknowledged.
    pub send_buffer: u64,
    /// Most waiting datagrams in each direction; the oldest are dropped.
    pub datagrams: usize,
}

/// Path MTU discovery without ICMP (RFC 8899).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MtuConfig {
    /// UDP payload that every path must carry.
    pub base: u16,
    /// Largest UDP payload to search for; equal to `base` for no search.
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

impl Default for DatagramConfig {
    fn default() -> Self {
        Self {
            largest: 65_000,
            modes: [DatagramMode::Once; 16],
            protection: Protection::default(),
            ordered_classes: 0,
            urgent_classes: 0,
            burst_classes: 0,
            patience: Span::from_millis(200),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cc: cc::Config {
                rule: cc::RuleKind::Auto,
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
            acks: AckConfig::default(),
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
                independent_streams: false,
                send_buffer: 96 << 20,
                datagrams: 1024,
            },
            mtu: MtuConfig { base: 1200, max: 1472 },
            max_paths: 8,
            max_peer_paths: u32::MAX,
            max_streams: 128,
            datagrams: DatagramConfig::default(),
            initial_rtt: Span::from_millis(100),
            connect_timeout: Span::from_secs(10),
            idle_timeout: Span::from_secs(30),
            keep_alive: None,
            reports: None,
            ecn: false,
            rules: PathRules::default(),
        }
    }
}

impl Config {
    /// The profile of a background TCP and of the papers. It has no pacing and no HyStart, acknowledges every second
    /// packet, and has timeouts from 200 ms with window 1 after one. Only the failure timer of mTCP [M12] acts, with χ
    /// = 2.
    pub fn tcp() -> Self {
        let mut config = Self::default();
        config.cc.rule = cc::RuleKind::Reno;
        config.cc.initial_window = 2;
        config.cc.min_window = 1;
        config.cc.hystart = false;
        config.cc.pacing = false;
        config.coupling = Coupling::Fixed;
        config.scheduler = SchedulerKind::LeastFilled;
        config.acks.max_delay = Span::from_millis(40);
        config.failure.suspect = false;
        config.acks.skip_numbers = false;
        config.mtu = MtuConfig { base: 1472, max: 1472 };
        config
    }
}
