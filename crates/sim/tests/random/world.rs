//! Derives cables, a configuration for each end, and a script from a seed.

use anabranch_engine::cc::RuleKind;
use anabranch_engine::{AckPolicy, Config, DatagramMode, Detector, ReportConfig, SchedulerKind};
use anabranch_link::{Jitter, JitterShape, LossModel, Reorder};
use anabranch_wire::{PathUse, Span, Time};

use super::dice::Dice;
use anabranch_sim::CableConfig;

/// The input of a run.
#[derive(Clone, Debug)]
pub struct World {
    pub configs: [Config; 2],
    pub cables: Vec<CableConfig>,
    /// The script, sorted by time.
    pub steps: Vec<Step>,
    pub finale: Finale,
    /// When the script is over and all links work again.
    pub mended_at: Time,
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub at: Time,
    pub what: Operation,
}

/// An operation. `pick` chooses among the current candidates.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Silences the directions that are true.
    Cut {
        cable: usize,
        directions: [bool; 2],
    },
    Mend {
        cable: usize,
    },
    /// The client's NAT forgets its mapping.
    Rebind {
        cable: usize,
    },
    Rate {
        cable: usize,
        direction: usize,
        mbit: f64,
    },
    Loss {
        cable: usize,
        direction: usize,
        loss: f64,
    },
    Mtu {
        cable: usize,
        mtu: Option<u32>,
    },
    /// A stream of this many bytes, and a response.
    Talk {
        end: usize,
        bytes: u64,
    },
    Reset {
        end: usize,
        pick: usize,
    },
    Stop {
        end: usize,
        pick: usize,
    },
    Datagrams {
        end: usize,
        count: usize,
    },
    /// The application stops or resumes reading.
    Pause {
        end: usize,
        paused: bool,
    },
    /// Limits reads to this many bytes at a time, and to this many in a row.
    Gulp {
        end: usize,
        bytes: usize,
        times: usize,
    },
    ClosePath {
        end: usize,
        pick: usize,
    },
    OpenPath {
        end: usize,
        cable: usize,
    },
    Usage {
        end: usize,
        pick: usize,
        usage: PathUse,
    },
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finale {
    /// After all data was delivered, these ends close.
    Close([bool; 2]),
    /// This end closes while the script runs.
    CloseEarly(usize),
    /// This end aborts while the script runs.
    Abort(usize),
    /// This end disappears without a message.
    Vanish(usize),
}

fn millis(millis: f64) -> Span {
    Span::from_secs_f64(millis / 1e3)
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let cables: Vec<_> = (0..=dice.below(4)).map(|_| cable(&mut dice)).collect();
        let rebinds = dice.chance(0.4);
        let mut configs = [config(&mut dice, rebinds), config(&mut dice, false)];
        if seed % 7 == 4 {
            configs[(seed / 7 % 2) as usize].detector = Detector::Delays;
        }
        if seed % 5 == 3 {
            configs[(seed / 5 % 2) as usize].early_binding = Some(1 + seed * 7919 % 60_000);
        }
        let length = dice.skewed(2_000.0, 12_000.0);
        let finale = match dice.below(10) {
            0 => Finale::CloseEarly(dice.below(2)),
            1 => Finale::Abort(dice.below(2)),
            2 => Finale::Vanish(dice.below(2)),
            _ => Finale::Close(dice.one_of(&[[true, false], [false, true], [true, true]])),
        };
        let mut world =
            Self { configs, cables, steps: Vec::new(), finale, mended_at: Time::ZERO + millis(length) };
        // Both directions carry data in every world.
        for end in 0..2 {
            let bytes = dice.skewed(1.0, 400_000.0) as u64;
            world.add(millis(0.0), Operation::Talk { end, bytes });
        }
        for _ in 0..4 + dice.below(24) {
            let at = dice.unit() * length;
            world.happen(&mut dice, at, rebinds);
        }
        world.steps.sort_by_key(|step| step.at);
        world
    }

    fn add(&mut self, after: Span, what: Operation) {
        self.steps.push(Step { at: Time::ZERO + after, what });
    }

    fn happen(&mut self, dice: &mut Dice, at: f64, rebinds: bool) {
        let (cable, end) = (dice.below(self.cables.len()), dice.below(2));
        let (direction, pick) = (dice.below(2), dice.below(8));
        let what = match dice.below(20) {
            0..=3 => return self.cut(dice, cable, at),
            4 if rebinds => Operation::Rebind { cable },
            5 => Operation::Rate { cable, direction, mbit: dice.skewed(0.3, 40.0) },
            6 => Operation::Loss { cable, direction, loss: dice.skewed(0.0, 0.12) },
            7..=9 => Operation::Talk { end, bytes: dice.skewed(0.0, 300_000.0) as u64 },
            10 => Operation::Reset { end, pick },
            11 => Operation::Stop { end, pick },
            12 => Operation::Datagrams { end, count: dice.below(40) },
            13 => {
                let later = millis(at + dice.skewed(50.0, 3_000.0));
                self.add(later, Operation::Pause { end, paused: false });
                Operation::Pause { end, paused: true }
            }
            14 => Operation::Gulp { end, bytes: 1 + dice.below(4_000), times: 1 + dice.below(20) },
            15 | 16 => Operation::ClosePath { end, pick },
            17 => Operation::OpenPath { end, cable },
            18 => Operation::Usage { end, pick, usage: dice.one_of(&[PathUse::Normal, PathUse::Backup]) },
            _ => Operation::Mtu { cable, mtu: dice.one_of(&[None, Some(1200), Some(1300), Some(1400)]) },
        };
        self.add(millis(at), what);
    }

    fn cut(&mut self, dice: &mut Dice, cable: usize, at: f64) {
        // The first cable must carry the handshake.
        let at = if cable == 0 { at.max(1_500.0) } else { at };
        let directions = dice.one_of(&[[true, true], [true, true], [true, false], [false, true]]);
        self.add(millis(at), Operation::Cut { cable, directions });
        self.add(millis(at + dice.skewed(20.0, 6_000.0)), Operation::Mend { cable });
    }
}

fn cable(dice: &mut Dice) -> CableConfig {
    let rtt = millis(dice.skewed(1.0, 300.0));
    let mut cable = CableConfig::new(dice.skewed(0.5, 100.0), rtt, dice.skewed(0.2, 3.0));
    for link in &mut cable.links {
        if dice.chance(0.5) {
            link.loss = LossModel::Bernoulli(dice.skewed(0.0, 0.06));
        } else if dice.chance(0.2) {
            link.loss = LossModel::bursts(dice.skewed(0.0, 0.05), 1.0 + dice.unit() * 8.0);
        }
        if dice.chance(0.3) {
            link.jitter = Jitter {
                shape: JitterShape::Uniform(rtt.mul_f64(dice.unit() / 4.0)),
                overtakes: dice.chance(0.5),
            };
        }
        if dice.chance(0.3) {
            link.reorder = Reorder { probability: dice.skewed(0.0, 0.2), extra: rtt.mul_f64(dice.unit()) };
        }
        link.duplicate = if dice.chance(0.3) { dice.skewed(0.0, 0.1) } else { 0.0 };
        link.corrupt = if dice.chance(0.3) { dice.skewed(0.0, 0.05) } else { 0.0 };
        link.mtu = dice.chance(0.2).then(|| 1200 + dice.below(272) as u32);
    }
    cable
}

fn config(dice: &mut Dice, rebinds: bool) -> Config {
    let mut config = if dice.chance(0.25) { Config::tcp() } else { Config::default() };
    // Some cables here do not pass packets of the `tcp` profile.
    config.mtu.base = 1200;
    config.mtu.max = 1472;
    config.cc.rule = dice.one_of(&RuleKind::ALL);
    if dice.chance(0.3) {
        config.cc.rule = RuleKind::Cubic;
    }
    config.cc.pacing = config.cc.pacing || config.cc.rule == RuleKind::Bbr;
    config.scheduler = dice.one_of(&SchedulerKind::ALL).0;
    config.acks.policy = dice.one_of(&[AckPolicy::SamePath, AckPolicy::Primary, AckPolicy::Fastest]);
    config.acks.every = 1 + dice.below(4) as u32;
    config.acks.max_delay = millis(dice.one_of(&[1.0, 10.0, 40.0]));
    config.failure.suspect = dice.chance(0.7);
    config.memory.initial_window = dice.one_of(&[2_000, 20_000, 512 << 10]);
    config.memory.max_window = config.memory.initial_window * dice.one_of(&[1, 4, 64]);
    config.memory.send_buffer = dice.one_of(&[3_000, 50_000, 4 << 20]);
    config.memory.datagrams = dice.one_of(&[4, 1024]);
    config.max_paths = dice.one_of(&[1, 2, 8, 8]);
    config.max_streams = dice.one_of(&[1, 3, 128]);
    config.reports = dice.chance(0.3).then(ReportConfig::default);
    let modes = [DatagramMode::Once, DatagramMode::Redundant, DatagramMode::Protected];
    config.datagrams.modes = std::array::from_fn(|class| modes[class % modes.len()]);
    config.datagrams.protection.outlive_path = true;
    config.datagrams.ordered_classes = 0b1110;
    config.ecn = dice.chance(0.2);
    config.keep_alive = (rebinds || dice.chance(0.3)).then(|| millis(400.0 + dice.unit() * 1_500.0));
    config
}
