//! SAFIRE [S8].

use super::plan::Experiment;

/// For the routed flows, the mean per flow and the sum.
const GOODPUT: &[&str] = &["flow.*.goodput_mbit_s", "flow.mflow.total_mbit_s"];

pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "safire-fig3",
        about: "Fig. 3: by the latency of south, of 1 Mbit/s; mflow are the routed flows, sflow is on south alone",
        scenario: "safire-fig3",
        set: &["links.delay=0.5 ms,10 ms,20 ms,30 ms,40 ms,60 ms,100 ms"],
        seeds: "1..5",
        metrics: GOODPUT,
    },
    Experiment {
        name: "safire-fig4",
        about: "Fig. 4: by the loss of south, of 1 Mbit/s, at 0.5 and 50 ms",
        scenario: "safire-fig4",
        set: &["links.delay=0.5 ms,50 ms", "links.loss=0 %,2 %,5 %,10 %,20 %"],
        seeds: "1..5",
        metrics: GOODPUT,
    },
    Experiment {
        name: "safire-fig5",
        about: "Fig. 5: by the latency of south, of 2 Mbit/s",
        scenario: "safire-fig5",
        set: &["links.delay=0.5 ms,10 ms,20 ms,30 ms,40 ms,60 ms,100 ms"],
        seeds: "1..5",
        metrics: GOODPUT,
    },
    Experiment {
        name: "safire-fig6",
        about: "Fig. 6: by the loss of south, of 2 Mbit/s, at 0.5 and 50 ms",
        scenario: "safire-fig6",
        set: &["links.delay=0.5 ms,50 ms", "links.loss=0 %,2 %,5 %,10 %,20 %"],
        seeds: "1..5",
        metrics: GOODPUT,
    },
];
