//! Compares links that run ahead with links that run one by one, at any moment of a run.

use anabranch_link::{Limit, QueueModel, RandomDrop, RateModel};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

/// Number of links on which routes begin, and of links on which they continue.
const LINKS: u64 = 4;

/// Choices of a test run.
struct Dice(ChaCha8Rng);

impl Dice {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.0.next_u64() % of.len() as u64) as usize]
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn link(&mut self) -> LinkConfig {
        let rate = RateModel::Fixed(Rate::from_bits(self.pick(&[8_000_000, 33_333_333, 100_000_000])));
        let delay = Span::from_nanos(self.pick(&[1_024, 1_500, 65_535, 100_000, 1_000_000]));
        let queue = QueueModel {
            limit: self.pick(&[Limit::Packets(3), Limit::Packets(40), Limit::Bytes(60_000)]),
            random_drop: self.pick(&[None, None, Some(RandomDrop { places: 3, probability: 0.1 })]),
            ..QueueModel::default()
        };
        LinkConfig { rate, delay, queue, overhead: 28, ..LinkConfig::default() }
    }

    fn route(&mut self) -> Vec<u32> {
        let on = (0..self.below(4)).map(|_| LINKS + self.below(LINKS)).map(|link| link as u32).collect();
        [vec![self.below(LINKS) as u32], on].concat()
    }

    fn path(&mut self) -> PathPlan {
        PathPlan { forward: self.route(), back: self.route() }
    }

    fn flow(&mut self) -> FlowPlan {
        let supply = [
            Supply::Bulk,
            Supply::File(60_000),
            Supply::Steady { rate: Rate::from_mbit(3.0), chunk: 4_000 },
            Supply::Datagrams { pause: Span::from_micros(300), size: 700 },
        ];
        let supply = supply[self.below(4) as usize].clone();
        let rule = self.pick(&[RuleKind::Reno, RuleKind::Mptcp]);
        let stop = self.pick(&[Time::NEVER, Time::NEVER, secs(0.03)]);
        let paths = (0..=self.below(3)).map(|_| self.path()).collect();
        FlowPlan { paths, stop, ..flow(&[0], rule, supply) }
    }

    /// A network with many simultaneous events: sometimes all links are equal, and flows come in pairs.
    fn plan(&mut self, seed: u64) -> Plan {
        let usual = self.link();
        let alike = self.below(2) == 0;
        let links = (0..2 * LINKS).map(|_| if alike { usual.clone() } else { self.link() }).collect();
        let mut plan = Plan { seed, links, ..Plan::default() };
        for _ in 0..=self.below(4) {
            let flow = self.flow();
            plan.flows.extend([flow.clone(), flow]);
        }
        if self.below(4) == 0 {
            let (start, stop) = (Time::ZERO, Time::NEVER);
            let phases = vec![(200.0, Span::from_millis(20)), (900.0, Span::from_millis(10))];
            let (paths, config) = (vec![self.path()], Config::tcp().into());
            plan.arrivals.push(ArrivalPlan {
                phases,
                sizes: Sizes::Exponential(9_000.0),
                paths,
                config,
                start,
                stop,
            });
        }
        if self.below(2) == 0 {
            let (on, off) = (Duration::Fixed(Span::from_millis(1)), Duration::Uniform(Span::from_millis(2)));
            let (links, every, stop) = (self.route(), Rate::from_mbit(20.0).time_for(700), Time::NEVER);
            plan.bursts.push(BurstPlan { links, every, packet: 700, on, off, start: Time::ZERO, stop });
        }
        plan
    }
}

/// The whole observable state of a network.
fn look(network: &mut Network, plan: &Plan) -> String {
    let mut seen = format!("{:?} {} {}", network.now(), network.packet_hops(), network.events());
    for link in 0..plan.links.len() {
        seen += &format!("\n{link}: {:?} {}", network.link(link), network.backlog(link));
    }
    for flow in 0..plan.flows.len() {
        let paths = [false, true].map(|server| network.paths(flow, server));
        seen += &format!("\n{flow}: {:?} {:?} {paths:?}", network.flow(flow), network.datagram_delays(flow));
    }
    let arrivals = (0..plan.arrivals.len()).map(|source| format!("{:?}", network.arrivals(source)));
    let bursts = (0..plan.bursts.len()).map(|source| format!("{:?}", network.burst(source)));
    seen + &arrivals.chain(bursts).collect::<String>()
}

#[test]
fn links_that_go_ahead_do_what_those_do_that_are_asked_one_by_one() {
    let end = secs(0.06);
    for seed in 0..100 {
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
        let plan = dice.plan(seed);
        // A link that may change keeps all links from running ahead.
        let change = Change { at: secs(100.0), link: 0, what: LinkChange::Loss(LossModel::None) };
        let asked = Plan { script: vec![change], ..plan.clone() };
        let [mut ahead, mut whole] = [&plan, &plan].map(|plan| Network::new(plan.clone()));
        let mut asked = Network::new(asked);
        assert!(ahead.wires.ahead_of(Time::ZERO).is_some() && asked.wires.ahead_of(Time::ZERO).is_none());
        let mut now = Time::ZERO;
        while now < end {
            now = end.min(now + Span::from_nanos(dice.below(4_000_000)));
            ahead.run(now);
            asked.run(now);
            assert_eq!(look(&mut ahead, &plan), look(&mut asked, &plan), "seed {seed}");
        }
        whole.run(end);
        assert_eq!(look(&mut whole, &plan), look(&mut asked, &plan), "seed {seed}, in one go");
    }
}

#[test]
fn links_go_ahead_only_where_nothing_but_turns_decides() {
    let goes_ahead = |change: fn(&mut Plan)| {
        let mut plan = Plan { seed: 1, links: vec![link(10.0, 1, 20); 4], ..Plan::default() };
        let route = |first, second| vec![first, second];
        let paths = vec![PathPlan { forward: route(0, 1), back: route(2, 3) }];
        plan.flows.push(FlowPlan { paths, ..flow(&[0], RuleKind::Reno, Supply::Bulk) });
        change(&mut plan);
        Network::new(plan).wires.ahead_of(Time::ZERO).is_some()
    };
    assert!(goes_ahead(|_| ()));
    assert!(!goes_ahead(|plan| plan.flows[0].paths[0].back = vec![1, 2]));
    assert!(!goes_ahead(|plan| plan.links[3].loss = LossModel::Bernoulli(0.1)));
    assert!(!goes_ahead(|plan| plan.links[3].queue.mark_above = Some(Limit::Packets(3))));
    assert!(!goes_ahead(|plan| plan.links[1].delay = Span::from_nanos(1_023)));
    assert!(!goes_ahead(|plan| plan.links[1].outages = vec![(secs(1.0), secs(2.0))]));
    let change = |plan: &mut Plan| {
        plan.script.push(Change { at: secs(100.0), link: 0, what: LinkChange::Down(true) });
    };
    assert!(!goes_ahead(change));
}
