//! PSMC [T12].

use super::plan::Experiment;

const STRIPED: &[&str] = &["flow.M.goodput_mbit_s", "flow.M.spurious_share"];

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "psmc-fig3",
        about: "Fig. 3: one to twelve routes under one TCP, without and with the double buffer",
        scenario: "psmc-fig3",
        set: &[
            "flow.M.striping.buffer=none,adaptive",
            r#"flow.M.paths=["r0"],["r0","r1"],["r0","r1","r2","r3"],["r0","r1","r2","r3","r4","r5","r6","r7"],["r0","r1","r2","r3","r4","r5","r6","r7","r8","r9","r10","r11"]"#,
        ],
        seeds: "1..10",
        metrics: STRIPED,
    },
    Experiment {
        name: "psmc-fig4",
        about: "Fig. 4: four routes, one of them narrower",
        scenario: "psmc-fig4",
        set: &[
            "flow.M.striping.buffer=none,adaptive",
            "link.narrow.rate=5 Mbit/s,2.5 Mbit/s,1 Mbit/s,0.5 Mbit/s,0.25 Mbit/s",
        ],
        seeds: "1..1",
        metrics: STRIPED,
    },
    Experiment {
        name: "psmc-fig4c",
        about: "Fig. 4c: the size of the double buffer, with disorder",
        scenario: "psmc-fig3",
        set: &["flow.M.striping.buffer=fixed", "flow.M.striping.packets=2,5,10,15,20,30,40,80"],
        seeds: "1..10",
        metrics: STRIPED,
    },
    Experiment {
        name: "psmc-fig4c-loss",
        about: "Fig. 4c: the same with losses",
        scenario: "psmc-fig4",
        set: &[
            "link.narrow.rate=5 Mbit/s",
            "links.loss=0.5 %",
            "flow.M.striping.buffer=fixed",
            "flow.M.striping.packets=2,5,10,15,20,30,40,80",
        ],
        seeds: "1..10",
        metrics: STRIPED,
    },
    Experiment {
        name: "psmc-fig5",
        about: "Fig. 5: the window after a loss",
        scenario: "psmc-fig5",
        set: &["transport.rule=reno,combined,residual", "links.loss=0.1 %,0.5 %,2 %,5 %"],
        seeds: "1..10",
        metrics: &["flow.M.goodput_mbit_s"],
    },
    Experiment {
        name: "psmc-udp",
        about: "Datagrams once, protected by parity and redundant",
        scenario: "psmc-udp",
        set: &["links.loss=1 %,2 %,5 %"],
        seeds: "1..5",
        metrics: &[
            "flow.*.delivered_share",
            "flow.*.delay_p50_ms",
            "flow.*.delay_p99_ms",
            "flow.*.spare_share",
        ],
    },
    Experiment {
        name: "psmc-udp-failure",
        about: "The same while the fastest path is cut",
        scenario: "psmc-udp-failure",
        set: &[],
        seeds: "1..5",
        metrics: &[
            "flow.*.delivered_share",
            "flow.*.delay_p50_ms",
            "flow.*.delay_p99_ms",
            "flow.*.spare_share",
        ],
    },
];
