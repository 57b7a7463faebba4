//! The choice against exhaustive search on random graphs, and aliases against networks with known routers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use anabranch_wire::{Rate, Span};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::joint::jointness;
use super::*;

const GRAPHS: u64 = 1_000;

/// Five to eight nodes; node 0 is the source and the last one the destination.
fn random_topology(rng: &mut ChaCha8Rng) -> (Topology, NodeId, NodeId) {
    let nodes = rng.random_range(5..=8u32);
    let mut topology = Topology::default();
    let ids: Vec<NodeId> = (0..nodes).map(|at| topology.node(&format!("n{at}"))).collect();
    let density = rng.random_range(0.3..0.7);
    for &from in &ids {
        for &to in &ids {
            if from != to && rng.random_bool(density) {
                let link = Link {
                    latency: Span::from_micros(rng.random_range(100..30_000)),
                    loss: f64::from(rng.random_range(0..200u32)) / 10_000.0,
                    capacity: Some(Rate::from_bits(rng.random_range(1..100))),
                };
                topology.link(from, to, link);
            }
        }
    }
    (topology, ids[0], ids[nodes as usize - 1])
}

/// Every loopless route.
fn all_ways(topology: &Topology, from: NodeId, to: NodeId) -> Vec<Vec<LinkId>> {
    let mut ways = Vec::new();
    let mut open = VecDeque::from([(vec![from], Vec::new())]);
    while let Some((nodes, links)) = open.pop_front() {
        let last = *nodes.last().unwrap();
        if last == to {
            ways.push(links);
            continue;
        }
        for (link, next) in topology.leaving(last) {
            if !nodes.contains(&next) {
                let (mut nodes, mut links) = (nodes.clone(), links.clone());
                nodes.push(next);
                links.push(link);
                open.push_back((nodes, links));
            }
        }
    }
    ways
}

/// A candidate over these links: the round trip is twice the delay, a packet must survive every link, and the
/// narrowest known link limits the capacity.
fn along(topology: &Topology, name: &str, links: &[LinkId]) -> Candidate {
    let known = || links.iter().filter_map(|link| topology.get(*link).map(|info| (*link, info)));
    let delay = known().fold(Span::ZERO, |sum, (_, link)| sum + link.latency);
    Candidate {
        name: name.to_owned(),
        rtt: delay * 2,
        loss: 1.0 - known().map(|(_, link)| 1.0 - link.loss.clamp(0.0, 1.0)).product::<f64>(),
        capacity: known().filter_map(|(_, link)| link.capacity).min(),
        links: known().map(|(id, link)| (id, link.latency)).collect(),
        silent_hops: 0,
    }
}

fn delay(topology: &Topology, links: &[LinkId]) -> Span {
    links.iter().fold(Span::ZERO, |sum, link| sum + topology.get(*link).unwrap().latency)
}

fn subsets(of: usize, most: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..1u32 << of)
        .filter(move |set| set.count_ones() as usize <= most)
        .map(move |set| (0..of).filter(|at| set >> at & 1 == 1).collect())
}

#[test]
fn the_maximum_flow_is_the_smallest_cut_and_its_paths_add_up_to_it_on_1000_graphs() {
    for seed in 0..GRAPHS {
        let (topology, from, to) = random_topology(&mut ChaCha8Rng::seed_from_u64(seed));
        let links: Vec<_> = (0..topology.link_count() as u32).map(LinkId).collect();
        let smallest_cut = (0..1u32 << topology.node_count())
            .filter(|side| side >> from.0 & 1 == 1 && side >> to.0 & 1 == 0)
            .map(|side| {
                let crosses = |link: &&LinkId| {
                    let (tail, head) = topology.ends(**link).unwrap();
                    side >> tail.0 & 1 == 1 && side >> head.0 & 1 == 0
                };
                links
                    .iter()
                    .filter(crosses)
                    .map(|link| topology.get(*link).unwrap().capacity.unwrap().as_bits())
                    .sum()
            })
            .min()
            .unwrap();
        let flow = max_flow(&topology, from, to);
        assert_eq!(flow.rate, Rate::from_bits(smallest_cut), "seed {seed}");
        assert_eq!(
            flow.paths.iter().map(|path| path.rate.as_bits()).sum::<u64>(),
            smallest_cut,
            "seed {seed}"
        );
        assert!(flow.paths.len() <= links.len());
        let mut carried: BTreeMap<LinkId, u64> = BTreeMap::new();
        for path in &flow.paths {
            assert_eq!(topology.ends(path.links[0]).unwrap().0, from);
            assert_eq!(topology.ends(*path.links.last().unwrap()).unwrap().1, to);
            for pair in path.links.windows(2) {
                assert_eq!(topology.ends(pair[0]).unwrap().1, topology.ends(pair[1]).unwrap().0);
            }
            for link in &path.links {
                *carried.entry(*link).or_default() += path.rate.as_bits();
            }
        }
        for (link, bits) in carried {
            assert!(Rate::from_bits(bits) <= topology.get(link).unwrap().capacity.unwrap(), "seed {seed}");
        }
    }
}

/// A route as a bit set of its links, and its delay in nanoseconds.
type Bits = (u64, u64);

/// Searches all sets of `k` routes, shortest first, for one that costs less than the bound: by jointness, then by
/// delay. Branches that cannot get below the bound are cut.
struct Cheaper<'a> {
    ways: &'a [Bits],
    /// Delays of links.
    links: &'a [u64],
    /// Whether a set may hold the same route more than once.
    repeats: bool,
    bound: (u64, u64),
}

impl Cheaper<'_> {
    fn is_there(&self, from: usize, left: usize, (used, cost): (u64, (u64, u64))) -> bool {
        if left == 0 {
            return cost < self.bound;
        }
        for (at, (links, delay)) in self.ways.iter().enumerate().skip(from) {
            if (cost.0, cost.1 + delay * left as u64) >= self.bound {
                // Later routes take at least as long, and sharing is at least zero.
                return false;
            }
            let cost = (cost.0 + self.delay(used & links), cost.1 + delay);
            if cost < self.bound
                && self.is_there(at + usize::from(!self.repeats), left - 1, (used | links, cost))
            {
                return true;
            }
        }
        false
    }

    fn delay(&self, mut links: u64) -> u64 {
        let mut sum = 0;
        while links != 0 {
            sum += self.links[links.trailing_zeros() as usize];
            links &= links - 1;
        }
        sum
    }

    /// The lowest cost of a set of `k` routes that contains all of these.
    fn least(&self, k: usize) -> (u64, u64) {
        let cost = |set: &[usize]| {
            set.iter().fold((0, (0, 0)), |(used, (joint, sum)), at| {
                let (links, delay) = self.ways[*at];
                (used | links, (joint + self.delay(used & links), sum + delay))
            })
        };
        let all: Vec<usize> = (0..self.ways.len()).collect();
        let mut sets = vec![all];
        while sets[0].len() < k {
            let more = |set: &Vec<usize>| {
                let set = set.clone();
                (0..self.ways.len()).map(move |at| [&set[..], &[at]].concat()).collect::<Vec<_>>()
            };
            sets = sets.iter().flat_map(more).collect();
        }
        sets.iter().map(|set| cost(set).1).min().unwrap()
    }
}

/// With repeated routes allowed, there is a set of k whenever there is a route. The figures are in `docs/notebook`.
#[test]
fn no_set_of_ways_is_less_joint_than_the_one_that_is_found_on_1000_graphs() {
    let (mut different, mut fewer, mut without) = (0, 0, 0);
    for seed in 0..GRAPHS {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (topology, from, to) = random_topology(&mut rng);
        let k = rng.random_range(2..=3usize);
        let nanos = |links: &[LinkId]| delay(&topology, links).as_nanos();
        let bits =
            |links: &Vec<LinkId>| (links.iter().fold(0, |bits, link| bits | 1_u64 << link.0), nanos(links));
        let links: Vec<u64> = (0..topology.link_count() as u32).map(|link| nanos(&[LinkId(link)])).collect();
        let mut ways: Vec<Bits> = all_ways(&topology, from, to).iter().map(bits).collect();
        ways.sort_by_key(|way| way.1);
        let found = least_joint(&topology, from, to, k);
        assert_eq!(found.jointness, jointness(&topology, &found.paths));
        let found: Vec<Bits> = found.paths.iter().map(bits).collect();
        assert!(found.iter().all(|way| ways.contains(way)), "seed {seed}: no way");
        if ways.is_empty() {
            without += 1;
            continue;
        }
        let bound = Cheaper { ways: &found, links: &links, repeats: true, bound: (0, 0) }.least(k);
        let any = Cheaper { ways: &ways, links: &links, repeats: true, bound };
        assert!(!any.is_there(0, k, (0, (0, 0))), "seed {seed}: there is a better set");
        if found.len() == k {
            different += 1;
            continue;
        }
        // If fewer were found, all sets of k different routes share more, or take longer, than these with one of them
        // twice.
        let no_more = Cheaper { repeats: false, bound: (bound.0, bound.1 + 1), ..any };
        assert!(!no_more.is_there(0, k, (0, (0, 0))), "seed {seed}: another way is as good");
        fewer += 1;
    }
    println!(
        "least joint: {different} graphs with k different ways, {fewer} with fewer, {without} without any"
    );
    assert_eq!([different, fewer, without], FOUND);
}

/// Graphs on which all requested routes were found, fewer, and none.
const FOUND: [u32; 3] = [693, 222, 85];

/// The greedy choice as a fraction of the best set under its own rule. The figures are those of
/// `docs/notebook`.
#[test]
fn the_greedy_choice_stays_within_the_stated_distance_of_the_best_set_on_1000_graphs() {
    let limits = ChoiceLimits { beta: 0.5, k: 3 };
    let (mut worst, mut sum, mut optimal, mut compared) = (1.0f64, 0.0, 0, 0);
    for seed in 0..GRAPHS {
        let (topology, from, to) = random_topology(&mut ChaCha8Rng::seed_from_u64(seed));
        let mut ways = all_ways(&topology, from, to);
        ways.sort_by_key(|way| (delay(&topology, way), way.len()));
        ways.retain(|way| way.len() <= 8);
        let candidates: Vec<Candidate> = ways
            .iter()
            .take(10)
            .enumerate()
            .map(|(at, way)| {
                let mut candidate = along(&topology, &format!("way {at}"), way);
                candidate.capacity = None;
                candidate
            })
            .collect();
        if candidates.is_empty() {
            continue;
        }
        let total =
            |set: &[usize]| set.iter().map(|at| candidates[*at].score().as_bits()).sum::<u64>() as f64;
        let allowed = |set: &Vec<usize>| {
            let apart = |a: usize, b: usize| disjoint(&candidates[a], &candidates[b]) > limits.beta;
            set.iter().enumerate().all(|(at, &a)| set[at + 1..].iter().all(|&b| apart(a, b)))
        };
        let best =
            subsets(candidates.len(), limits.k).filter(allowed).map(|set| total(&set)).fold(0.0, f64::max);
        let choice = choose(&topology, &candidates, &limits);
        assert!(allowed(&choice.used) && choice.used.len() <= limits.k);
        let ratio = total(&choice.used) / best;
        worst = worst.min(ratio);
        sum += ratio;
        compared += 1;
        optimal += usize::from(ratio > 1.0 - 1e-9);
    }
    let mean = sum / f64::from(compared);
    println!("greedy: {compared} graphs, worst {worst:.3}, mean {mean:.4}, optimal in {optimal}");
    assert!(worst >= 0.58 && mean >= 0.99, "worst {worst:.3}, mean {mean:.4}, optimal in {optimal}");
}

fn link(topology: &mut Topology, (from, to): (&str, &str), millis: u64) -> LinkId {
    let (from, to) = (topology.node(from), topology.node(to));
    topology.link(from, to, Link { latency: Span::from_millis(millis), loss: 0.01, capacity: None })
}

#[test]
fn of_a_link_that_two_candidates_saw_differently_the_shorter_delay_is_shared() {
    let mut topology = Topology::default();
    let shared = link(&mut topology, ("a", "x"), 10);
    let own = link(&mut topology, ("x", "b"), 30);
    let early = along(&topology, "early", &[shared]);
    let mut late = along(&topology, "late", &[shared, own]);
    late.links[0].1 = Span::from_millis(30);
    for (a, b) in [(&early, &late), (&late, &early)] {
        assert_eq!(overlap(a, b), Span::from_millis(10));
    }
}

#[test]
fn candidates_with_all_links_in_common_are_not_disjoint_however_their_short_delays_were_measured() {
    let mut topology = Topology::default();
    let links = [("a", "x"), ("x", "y"), ("y", "b")].map(|ends| link(&mut topology, ends, 1));
    let measured = |name, micros: [u64; 3]| {
        let mut candidate = along(&topology, name, &links);
        for ((_, latency), micros) in candidate.links.iter_mut().zip(micros) {
            *latency = Span::from_micros(micros);
        }
        candidate
    };
    let (one, other) = (measured("one", [20, 0, 400]), measured("other", [10, 380, 0]));
    assert_eq!((disjoint(&one, &other), disjoint(&other, &one)), (0.0, 0.0));
    let (none, some) = (measured("none", [0; 3]), measured("some", [5, 0, 9]));
    assert_eq!((disjoint(&none, &some), disjoint(&some, &none)), (0.0, 0.0));
}

#[test]
fn a_candidate_that_shares_most_of_a_better_one_is_left_out_with_the_reason() {
    let mut topology = Topology::default();
    let long = link(&mut topology, ("a", "x"), 30);
    let direct = link(&mut topology, ("x", "b"), 10);
    let detour = [link(&mut topology, ("x", "r"), 6), link(&mut topology, ("r", "b"), 6)];
    let other = [link(&mut topology, ("a", "s"), 40), link(&mut topology, ("s", "b"), 20)];
    let candidates = [
        along(&topology, "direct", &[long, direct]),
        along(&topology, "relay r", &[long, detour[0], detour[1]]),
        along(&topology, "relay s", &other),
    ];
    assert_eq!(overlap(&candidates[0], &candidates[1]), Span::from_millis(30));
    assert_eq!(disjoint(&candidates[0], &candidates[1]), 0.25);
    let choice = choose(&topology, &candidates, &ChoiceLimits::default());
    assert_eq!(choice.used, [0, 2]);
    let explained = &choice.explanations[1];
    assert_eq!(explained.verdict, Verdict::TooSimilar { to: "direct".to_owned(), disjoint: 0.25, beta: 0.5 });
    assert_eq!(explained.shares[0].links, ["a → x"]);
    assert_eq!(choice.explanations[2].verdict, Verdict::Used { rank: 2 });
    assert!(choice.explanations[2].shares.is_empty());
    let json = serde_json::to_value(explained).unwrap();
    assert_eq!(json["verdict"]["kind"], "too-similar");
    assert_eq!(json["shares"][0]["with"], "direct");
    let only_one = choose(&topology, &candidates, &ChoiceLimits { beta: 0.5, k: 1 });
    assert_eq!(only_one.explanations[2].verdict, Verdict::Enough { k: 1 });
}

#[test]
fn the_score_is_rons_and_no_figure_breaks_it() {
    let score = ron_score(Span::from_millis(100), 0.01);
    assert!((score - 1.5f64.sqrt() / (0.1 * 0.1)).abs() < 1e-9);
    for loss in [f64::NAN, -1.0, 0.0, 2.0] {
        assert!(ron_score(Span::ZERO, loss).is_finite());
    }
    let dead = Candidate {
        name: "dead".to_owned(),
        rtt: Span::ZERO,
        loss: f64::NAN,
        capacity: None,
        links: Vec::new(),
        silent_hops: 0,
    };
    let choice = choose(&Topology::default(), &[dead], &ChoiceLimits::default());
    assert_eq!((choice.used.len(), &choice.explanations[0].verdict), (0, &Verdict::Dead));
}

/// Routers joined by subnets of two addresses; a router answers from the interface that a probe arrived at.
struct Internet {
    /// For each router, its neighbours and its own interface towards them.
    interfaces: Vec<BTreeMap<usize, IpAddr>>,
}

impl Internet {
    fn random(rng: &mut ChaCha8Rng) -> Self {
        let routers = rng.random_range(6..14usize);
        let mut internet = Self { interfaces: vec![BTreeMap::new(); routers] };
        let mut block = 0x0a00_0000u32;
        for b in 1..routers {
            let uplinks: BTreeSet<usize> = (0..2).map(|_| rng.random_range(0..b)).collect();
            for a in uplinks {
                let slash_31 = rng.random_bool(0.3);
                let low = if slash_31 { 0 } else { 1 };
                let [near, far] =
                    [block + low, block + low + 1].map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
                internet.interfaces[a].insert(b, near);
                internet.interfaces[b].insert(a, far);
                block += 4;
            }
        }
        internet
    }

    fn way(&self, from: usize, to: usize) -> Vec<usize> {
        let mut before = BTreeMap::from([(from, from)]);
        let mut open = VecDeque::from([from]);
        while let Some(node) = open.pop_front() {
            for &next in self.interfaces[node].keys() {
                before.entry(next).or_insert_with(|| {
                    open.push_back(next);
                    node
                });
            }
        }
        let mut way = vec![to];
        while *way.last().unwrap() != from {
            way.push(before[way.last().unwrap()]);
        }
        way.reverse();
        way
    }

    fn trace(&self, way: &[usize], mut silent: impl FnMut() -> bool) -> Traceroute {
        let incoming = |pair: &[usize]| self.interfaces[pair[1]][&pair[0]];
        let hops: Vec<_> = way
            .windows(2)
            .enumerate()
            .map(|(at, pair)| (incoming(pair), Span::from_millis(2 * (at as u64 + 1))))
            .map(|hop| (!silent()).then_some(hop))
            .collect();
        let from = self.interfaces[way[0]][&way[1]];
        Traceroute { from, to: incoming(&way[way.len() - 2..]), hops }
    }

    fn router_of(&self, address: IpAddr) -> usize {
        self.interfaces.iter().position(|own| own.values().any(|other| *other == address)).unwrap()
    }
}

/// Traces in both directions between some pairs of routers, over the same route.
fn surveyed(rng: &mut ChaCha8Rng, silence: f64) -> (Internet, Vec<Vec<usize>>, Vec<Traceroute>) {
    let internet = Internet::random(rng);
    let (mut ways, mut traces) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let (a, b) =
            (rng.random_range(0..internet.interfaces.len()), rng.random_range(0..internet.interfaces.len()));
        if a != b {
            let mut way = internet.way(a, b);
            for _ in 0..2 {
                traces.push(internet.trace(&way, || rng.random_bool(silence)));
                ways.push(way.clone());
                way.reverse();
            }
        }
    }
    (internet, ways, traces)
}

#[test]
fn routers_are_recognised_from_both_ends_and_never_confused_on_300_networks() {
    let (mut right, mut all) = (0, 0);
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let silence = if seed % 2 == 0 { 0.0 } else { 0.15 };
        let (internet, _, traces) = surveyed(&mut rng, silence);
        let aliases = resolve_aliases(&traces);
        for (_, addresses) in aliases.routers() {
            let routers: BTreeSet<usize> =
                addresses.iter().map(|address| internet.router_of(*address)).collect();
            assert_eq!(routers.len(), 1, "seed {seed}: {addresses:?}");
        }
        if silence == 0.0 {
            // Both addresses that a router shows on a route there and back belong to one router.
            for pair in traces.chunks(2) {
                let (there, back) = (&pair[0], &pair[1]);
                for (at, hop) in there.hops[..there.hops.len() - 1].iter().enumerate() {
                    let opposite = back.hops[there.hops.len() - 2 - at].unwrap().0;
                    all += 1;
                    right += usize::from(aliases.router_of(hop.unwrap().0) == aliases.router_of(opposite));
                }
            }
            assert!(aliases.conflicts.is_empty(), "seed {seed}: {:?}", aliases.conflicts);
        }
    }
    assert_eq!(right, all, "{right} of {all} routers");
    assert!(all > 500);
}

#[test]
fn links_shared_in_truth_are_found_shared_on_the_graph() {
    let mut compared = 0;
    for seed in 0..200 {
        let (_, ways, traces) = surveyed(&mut ChaCha8Rng::seed_from_u64(seed), 0.0);
        let survey = Survey::new(&traces);
        let figures = (Span::from_millis(50), 0.01, None);
        let candidates: Vec<_> =
            (0..traces.len()).map(|at| survey.candidate("c", &[at], figures).unwrap()).collect();
        for a in 0..ways.len() {
            for b in 0..a {
                let links = |way: &[usize]| way.windows(2).map(|w| (w[0], w[1])).collect::<BTreeSet<_>>();
                let shared = links(&ways[a]).intersection(&links(&ways[b])).count() as u64;
                // Every link of the model takes a millisecond.
                assert_eq!(overlap(&candidates[a], &candidates[b]), Span::from_millis(shared), "seed {seed}");
                compared += usize::from(shared > 0);
            }
        }
        assert_eq!(survey.candidate("c", &[traces.len()], figures), None);
    }
    assert!(compared > 200);
}

#[test]
fn two_links_between_two_routers_are_told_apart_by_the_interfaces_that_answer() {
    let ip = |last: u8| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    let trace = |from: u8, hops: &[u8]| Traceroute {
        from: ip(from),
        to: ip(*hops.last().unwrap()),
        hops: (1..).zip(hops).map(|(at, last)| Some((ip(*last), Span::from_millis(2 * at)))).collect(),
    };
    // One router has 2, 8 and 12, the next one 9, 13 and 17.
    let traces = [
        trace(1, &[2, 9, 104]),
        trace(1, &[2, 13, 108]),
        trace(104, &[17, 8, 1]),
        trace(108, &[17, 12, 1]),
        trace(1, &[2, 17]),
    ];
    let survey = Survey::new(&traces);
    assert_eq!([8, 12, 13, 17].map(|last| survey.aliases.router_of(ip(last))), [2, 2, 9, 9].map(ip));
    let candidate = |at: usize| survey.candidate("c", &[at], (Span::from_millis(9), 0.0, None)).unwrap();
    let names = |at: usize| -> Vec<String> {
        candidate(at).links.iter().map(|(link, _)| survey.topology.link_name(*link)).collect()
    };
    let [second, third] = ["192.0.2.9 by 192.0.2.9", "192.0.2.9 by 192.0.2.13"];
    assert_eq!(names(0)[..2], ["192.0.2.1 → 192.0.2.2".to_owned(), format!("192.0.2.2 → {second}")]);
    assert_eq!(names(1)[1], format!("192.0.2.2 → {third}"));
    assert_eq!(overlap(&candidate(0), &candidate(1)), Span::from_millis(1), "only the first link");
    // A router that is the destination answers with another address: it is not taken for a third link.
    assert_eq!(names(4), names(0)[..2]);
}

#[test]
fn differences_below_a_millisecond_are_marked_and_decide_nothing() {
    let mut topology = Topology::default();
    let links = [("a", "x"), ("x", "b"), ("x", "r"), ("r", "b")].map(|ends| link(&mut topology, ends, 1));
    let candidate = |name, rtt, delays: &[(usize, u64)]| Candidate {
        rtt: Span::from_micros(rtt),
        links: delays.iter().map(|(at, micros)| (links[*at], Span::from_micros(*micros))).collect(),
        ..along(&topology, name, &[])
    };
    // By its delays, the second shares nearly all of itself; by its links, a third.
    let direct = candidate("direct", 900, &[(0, 400), (1, 50)]);
    let relay = candidate("relay", 1_200, &[(0, 500), (2, 20), (3, 30)]);
    let far = candidate("far", 3_000, &[(0, 1_400), (2, 20), (3, 30)]);
    let choice = choose(&topology, &[direct, relay, far], &ChoiceLimits { beta: 0.45, k: 5 });
    let [direct, relay, far] = &choice.explanations[..] else { panic!("three candidates") };
    assert_eq!((&direct.like, relay.like.as_deref(), &far.like), (&None, Some("direct"), &None));
    assert!(relay.shares[0].noise && relay.shares[0].disjoint == 0.5, "{relay:?}");
    assert_eq!(relay.verdict, Verdict::Used { rank: 2 });
    let with_relay = far.shares.iter().find(|shared| shared.with == "relay").unwrap();
    assert!(with_relay.noise && with_relay.disjoint == 0.0, "{far:?}");
}

#[test]
fn a_router_seen_from_one_end_only_is_listed_as_unresolved_and_silent_hops_are_counted() {
    let ip = |last: u8| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    let hop = |last: u8, millis| Some((ip(last), Span::from_millis(millis)));
    let trace =
        Traceroute { from: ip(1), to: ip(200), hops: vec![hop(2, 2), None, hop(10, 8), hop(200, 10)] };
    let survey = Survey::new(std::slice::from_ref(&trace));
    assert_eq!(survey.aliases.unresolved, [ip(2), ip(10)]);
    let candidate = survey.candidate("direct", &[0], (Span::from_millis(10), 0.0, None)).unwrap();
    assert_eq!(
        (candidate.silent_hops, candidate.links.len(), candidate.latency()),
        (1, 3, Span::from_millis(5))
    );
}

#[test]
fn addresses_that_one_trace_shows_apart_are_never_joined() {
    let ip = |last: u8| IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
    let hop = |last: u8| Some((ip(last), Span::from_millis(1)));
    // 8 and 9 look like a link's two ends, but a trace passes both.
    let trace = Traceroute { from: ip(1), to: ip(50), hops: vec![hop(40), hop(8), hop(9), hop(50)] };
    let aliases = resolve_aliases(std::slice::from_ref(&trace));
    assert!(aliases.routers().values().all(|addresses| addresses.len() == 1));
    assert_eq!(aliases.conflicts.len(), 1);
}

#[test]
fn arbitrary_traces_and_graphs_never_panic() {
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut any = |most: u32| rng.next_u32() % most;
        let traces: Vec<Traceroute> = (0..5)
            .map(|_| {
                let mut ip = || IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + any(24)));
                let (from, to) = (ip(), ip());
                let hops = (0..6).map(|_| Some((ip(), Span::from_millis(3))).filter(|(ip, _)| ip != &from));
                Traceroute { from, to, hops: hops.collect() }
            })
            .collect();
        let survey = Survey::new(&traces);
        let nodes = survey.topology.node_count() as u32;
        for (from, to) in [(0, 0), (0, nodes), (nodes, 0), (0, nodes - 1)] {
            let (from, to) = (NodeId(from), NodeId(to));
            let _ = least_joint(&survey.topology, from, to, 3);
            assert_eq!(max_flow(&survey.topology, from, to).rate, Rate::ZERO);
        }
    }
}
