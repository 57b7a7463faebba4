//! MPMTP-AR [R12].

use super::plan::Experiment;

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "mpmtp-fig6",
        about: "Fig. 6: the share of all windows that a loss on one of one to four paths leaves",
        scenario: "mpmtp-fig6",
        set: &[
            r#"flow.M.paths=["path1"],["path1","path2"],["path1","path2","path3"],["path1","path2","path3","path4"]"#,
        ],
        seeds: "1..1",
        metrics: &["flow.M.kept_share"],
    },
    Experiment {
        name: "mpmtp-fig8",
        about: "Fig. 8: one of two relays stops for four seconds; the longest time in which nothing arrives",
        scenario: "mpmtp-fig8",
        set: &["transport.profile=tcp,default", "transport.rto_min=1 s,0.2 s"],
        seeds: "1..1",
        metrics: &["flow.M.pause_s", "flow.M.goodput_mbit_s"],
    },
    Experiment {
        name: "mpmtp-table2",
        about: "Table 2: overhead and duplicates by the loss and by how often is acknowledged",
        scenario: "mpmtp-table2",
        set: &[
            "links.loss=1 %,2 %,3 %,4 %,5 %",
            "transport.ack_every=8,16",
            "transport.max_ack_delay=25 ms,100 ms",
        ],
        seeds: "1..30",
        metrics: &["flow.M.overhead_share_short", "flow.M.overhead_share", "flow.M.duplicate_share"],
    },
    Experiment {
        name: "mpmtp-fig9",
        about: "Figs 9 and 10: one to five paths, CSD: rate, losses, what waits in the receive buffer",
        scenario: "mpmtp-fig9",
        set: &[
            r#"flow.M.paths=["path0"],["path0","path1"],["path0","path1","path2"],["path0","path1","path2","path3"],["path0","path1","path2","path3","path4"]"#,
        ],
        seeds: "1..30",
        metrics: &["flow.M.goodput_mbit_s", "flow.M.lost_share", "flow.M.buffer_kb", "flow.M.reassembly_ms"],
    },
    Experiment {
        name: "mpmtp-fig9-reno",
        about: "Figs 9 and 10: the same with MPTCP as the paper ran it",
        scenario: "mpmtp-fig9",
        set: &[
            "transport.rule=reno",
            "transport.scheduler=min-rtt",
            r#"flow.M.paths=["path0"],["path0","path1"],["path0","path1","path2"],["path0","path1","path2","path3"],["path0","path1","path2","path3","path4"]"#,
        ],
        seeds: "1..30",
        metrics: &["flow.M.goodput_mbit_s", "flow.M.lost_share", "flow.M.buffer_kb", "flow.M.reassembly_ms"],
    },
    Experiment {
        name: "mpmtp-alpha",
        about: "The weight of the old reliability, α, and the share of reports, b",
        scenario: "mpmtp-fig9",
        set: &["transport.reports.alpha=0.5,0.7,0.9", "transport.reports.b=0.01,0.07,0.2"],
        seeds: "1..10",
        metrics: &["flow.M.goodput_mbit_s", "flow.M.lost_share"],
    },
];
