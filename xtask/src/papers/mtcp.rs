//! mTCP (USENIX ATC 2004) [M14].

use super::plan::Experiment;

/// Times at which each method of querying the detector gave each verdict.
const FOUND: &[&str] = &["detector.*.shared_s", "detector.*.separate_s", "detector.*.ratio"];
const BESIDE: &[&str] = &["flow.M.goodput_mbit_s", "flow.tcp.goodput_mbit_s"];

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "mtcp-fig3",
        about: "Fig. 3: one to five paths, a window a path and one for all",
        scenario: "mtcp-fig3",
        set: &[
            "transport.rule=reno,combined",
            r#"flow.M.paths=["path0"],["path0","path1"],["path0","path1","path2"],["path0","path1","path2","path3"],["path0","path1","path2","path3","path4"]"#,
        ],
        seeds: "1..3",
        metrics: &["flow.M.goodput_mbit_s"],
    },
    Experiment {
        name: "mtcp-fig4",
        about: "Fig. 4: paths alone, in pairs and three together",
        scenario: "mtcp-fig4",
        set: &[
            r#"flow.M.paths=["path1"],["path2"],["path3"],["path4"],["path1","path2"],["path1","path3"],["path1","path4"],["path2","path3"],["path2","path4"],["path3","path4"],["path2","path3","path4"]"#,
        ],
        seeds: "1..3",
        metrics: &["flow.M.goodput_mbit_s"],
    },
    Experiment {
        name: "mtcp-fig5",
        about: "Fig. 5: the primary fails; the longest time in which nothing arrives",
        scenario: "mtcp-fig5",
        set: &["transport.profile=tcp,default", "transport.acks=primary,same-path"],
        seeds: "1..10",
        metrics: &["flow.M.pause_s"],
    },
    Experiment {
        name: "mtcp-fig8",
        about: "Fig. 8: the share of fast retransmits in common, of paths that share their bottlenecks",
        scenario: "mtcp-fig8",
        set: &["links.delay=25 ms"],
        seeds: "1..5",
        metrics: &["detector.*.ratio"],
    },
    Experiment {
        name: "mtcp-fig9",
        about: "Fig. 9: the same of paths that share none, over time",
        scenario: "mtcp-fig9",
        set: &["links.delay=25 ms", "duration=40 s,70 s,130 s,190 s,310 s"],
        seeds: "1..3",
        metrics: &["detector.200ms.ratio"],
    },
    Experiment {
        name: "mtcp-table3",
        about: "Table 3: four independent paths in pairs: after how long each setting tells what",
        scenario: "mtcp-table3",
        set: &[
            r#"flow.M.paths=["path1","path2"],["path1","path3"],["path1","path4"],["path2","path3"],["path2","path4"],["path3","path4"]"#,
        ],
        seeds: "1..3",
        metrics: FOUND,
    },
    Experiment {
        name: "mtcp-table5",
        about: "Table 5: the same where all share a link",
        scenario: "mtcp-table5",
        set: &[
            r#"flow.M.paths=[["own0","shared"],["own1","shared"]],[["own0","shared"],["own2","shared"]],[["own0","shared"],["own3","shared"]],[["own1","shared"],["own2","shared"]],[["own1","shared"],["own3","shared"]],[["own2","shared"],["own3","shared"]]"#,
        ],
        seeds: "1..3",
        metrics: FOUND,
    },
    Experiment {
        name: "mtcp-fig11",
        about: "Fig. 11: one to five paths over the same three links, beside five TCPs",
        scenario: "mtcp-fig11",
        set: &[
            "transport.rule=reno",
            r#"flow.M.paths=[["own2","shared1","shared2","shared3"]],[["own1","shared1","shared2","shared3"],["own2","shared1","shared2","shared3"]],[["own1","shared1","shared2","shared3"],["own2","shared1","shared2","shared3"],["own3","shared1","shared2","shared3"]],[["own0","shared1","shared2","shared3"],["own1","shared1","shared2","shared3"],["own2","shared1","shared2","shared3"],["own3","shared1","shared2","shared3"],["own4","shared1","shared2","shared3"]]"#,
        ],
        seeds: "1..3",
        metrics: BESIDE,
    },
    Experiment {
        name: "mtcp-fig11-one",
        about: "Fig. 11: five paths as one flow (`mptcp`)",
        scenario: "mtcp-fig11",
        set: &["transport.rule=mptcp"],
        seeds: "1..3",
        metrics: BESIDE,
    },
    Experiment {
        name: "mtcp-fig11-suppressed",
        about: "Fig. 11: five paths of which those that share are left out",
        scenario: "mtcp-fig11",
        set: &["transport.leave_out.sharing_beyond=1"],
        seeds: "1..3",
        metrics: BESIDE,
    },
    Experiment {
        name: "mtcp-fig11-default",
        about: "Fig. 11: the profile `default` with one and five paths, beside CUBIC TCPs",
        scenario: "mtcp-fig11",
        set: &[
            "transport.profile=default",
            "transport.rule=cubic",
            "flow.tcp.rule=cubic",
            r#"flow.M.paths=[["own2","shared1","shared2","shared3"]],[["own0","shared1","shared2","shared3"],["own1","shared1","shared2","shared3"],["own2","shared1","shared2","shared3"],["own3","shared1","shared2","shared3"],["own4","shared1","shared2","shared3"]]"#,
        ],
        seeds: "1..3",
        metrics: BESIDE,
    },
    Experiment {
        name: "mtcp-fig12",
        about: "Fig. 12: a direct path and one of 1/2 to 1/1000 of it; nothing left out (ω = 1,000,000), and ω = 10",
        scenario: "mtcp-fig12",
        set: &[
            "link.alternate.rate=8 Mbit/s,4 Mbit/s,2 Mbit/s,16 kbit/s",
            "transport.leave_out.slower_than=1000000,10",
        ],
        seeds: "1..1",
        metrics: &["flow.M.goodput_mbit_s"],
    },
    Experiment {
        name: "mtcp-fig12-default",
        about: "Fig. 12: the same in the profile `default`",
        scenario: "mtcp-fig12",
        set: &[
            "transport.profile=default",
            "transport.rule=cubic",
            "transport.acks=same-path",
            "link.alternate.rate=8 Mbit/s,4 Mbit/s,2 Mbit/s,16 kbit/s",
        ],
        seeds: "1..1",
        metrics: &["flow.M.goodput_mbit_s"],
    },
];
