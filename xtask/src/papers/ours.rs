//! Our own comparisons: schedulers, and detectors of shared bottlenecks.

use super::plan::Experiment;

const PACE: &[&str] = &[
    "flow.*.goodput_mbit_s",
    "flow.slows.pause_s",
    "flow.unlike.reassembly_ms",
    "flow.slows.reassembly_ms",
    "arrivals.short.completion_s",
];

const VERDICTS: &[&str] = &["flow.*.shared_share", "flow.*.shared_s", "flow.*.separate_share"];

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "schedulers",
        about: "Schedulers on like and unlike paths, where one slows down, and for short files: goodput",
        scenario: "schedulers",
        set: &[
            "transport.scheduler=earliest-arrival,least-filled,min-rtt,round-robin,least-used,redundant,least-connections,block,weighted,adaptive,blest,ecf",
        ],
        seeds: "1..5",
        metrics: PACE,
    },
    Experiment {
        name: "early-binding",
        about: "The same with early binding to buffers of a path: the longest pause where one slows down",
        scenario: "schedulers",
        set: &["transport.scheduler=earliest-arrival,min-rtt", "transport.early_binding=0 B,64 kB,512 kB"],
        seeds: "1..5",
        metrics: &[
            "flow.slows.pause_s",
            "flow.*.goodput_mbit_s",
            "flow.unlike.reassembly_ms",
            "flow.slows.reassembly_ms",
            "arrivals.short.completion_s",
        ],
    },
    Experiment {
        name: "detectors",
        about: "Detectors of shared bottlenecks: the share of time for which two paths were believed to share",
        scenario: "detectors",
        set: &["links.aqm=none,codel", "transport.detector=losses,delays,waves,both"],
        seeds: "1..20",
        metrics: VERDICTS,
    },
    Experiment {
        name: "detectors-reverse",
        about: "The same with queues on the way back",
        scenario: "detectors-reverse",
        set: &["transport.detector=losses,delays,waves,both"],
        seeds: "1..20",
        metrics: VERDICTS,
    },
];
