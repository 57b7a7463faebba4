//! Executes a world's script and checks the invariants.

mod ending;
mod watch;

use anabranch_engine::{AbandonReason, PathState};
use anabranch_link::LossModel;
use anabranch_wire::{Span, Time};
use bytes::Bytes;

use super::talker::Talker;
use super::world::{Finale, Operation, World};
use anabranch_sim::{CLIENT, Pair};

/// Time between two checks of the invariants.
const SLICE: Span = Span::from_millis(20);
/// Time between the client's attempts to open missing paths.
const MANAGE: Span = Span::from_millis(300);

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// When it was violated, in virtual time.
    pub at: Time,
    /// The invariant.
    pub what: String,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Stream bytes delivered at both ends.
    pub bytes: u64,
    /// Stream bytes sent more than once.
    pub resent: u64,
    /// Packets declared lost that arrived.
    pub spurious: u64,
    /// Most paths open at the same time.
    pub paths: usize,
    /// When the run ended.
    pub ended_at: Time,
}

struct Runner {
    world: World,
    pair: Pair<Bytes>,
    talkers: [Talker; 2],
    /// Directions of each cable that were cut.
    cut: Vec<[bool; 2]>,
    /// Since when each cable has worked in both directions and had a path at both ends.
    good_since: Vec<Option<Time>>,
    delivered: [u64; 2],
    progress_at: [Time; 2],
    managed_at: Time,
    /// The only end that closes paths: two ends could close each other's last path.
    closer: Option<usize>,
    summary: Summary,
}

/// Describes the world of a seed.
#[must_use]
pub fn describe(seed: u64) -> String {
    format!("{:#?}", World::new(seed))
}

/// Runs the world of `seed`.
///
/// # Errors
/// [`Broken`] if an invariant is violated.
///
/// # Panics
/// If the engine panics, or asks to be called without end.
pub fn run(seed: u64) -> Result<Summary, Broken> {
    let world = World::new(seed);
    let mut run = Runner {
        pair: Pair::new(world.configs.clone(), &world.cables, seed % 1000 + 1),
        talkers: Default::default(),
        cut: vec![[false; 2]; world.cables.len()],
        good_since: vec![None; world.cables.len()],
        delivered: [0; 2],
        progress_at: [Time::ZERO; 2],
        managed_at: Time::ZERO,
        closer: None,
        summary: Summary::default(),
        world,
    };
    run.pair.connect();
    match run.all() {
        Ok(()) => Ok(Summary { ended_at: run.pair.now, ..run.summary }),
        Err(what) => Err(Broken { at: run.pair.now, what }),
    }
}

impl Runner {
    fn all(&mut self) -> Result<(), String> {
        for step in self.world.steps.clone() {
            self.advance(step.at)?;
            self.carry_out(step.what);
        }
        self.advance(self.world.mended_at)?;
        self.mend();
        if self.nothing_arrived() {
            return Ok(());
        }
        match self.world.finale {
            Finale::Close(who) => {
                self.finish_streams()?;
                self.check_streams()?;
                self.close(who)
            }
            Finale::CloseEarly(end) => {
                let mut who = [false; 2];
                who[end] = true;
                self.close(who)?;
                self.check_written_is_read()
            }
            Finale::Abort(end) => self.abort(end),
            Finale::Vanish(end) => self.vanish(end),
        }
    }

    /// Runs up to `until`, in slices.
    fn advance(&mut self, until: Time) -> Result<(), String> {
        while self.pair.now < until {
            let next = (self.pair.now + SLICE).min(until);
            let [client, server] = &mut self.talkers;
            self.pair.run(next, &mut [client, server]);
            self.manage_paths();
            self.check()?;
        }
        Ok(())
    }

    /// Opens a path over every cable, as a driver does.
    fn manage_paths(&mut self) {
        let now = self.pair.now;
        if now < self.managed_at + MANAGE || !self.talkers[CLIENT].established {
            return;
        }
        self.managed_at = now;
        for cable in 0..self.cut.len() {
            let route = self.pair.route(CLIENT, cable);
            if let Some(session) = &mut self.pair.ends[CLIENT].session {
                let live = |path: &anabranch_engine::PathInfo| {
                    path.state != PathState::Closing && path.route.socket == cable as u32
                };
                if !session.paths().iter().any(live) {
                    // Refused while there are too many paths, or the peer has not provided the next path id.
                    let _ = session.open_path(now, route);
                }
            }
        }
    }

    fn carry_out(&mut self, what: Operation) {
        match what {
            Operation::Cut { cable, directions } => {
                for (direction, cut) in directions.into_iter().enumerate() {
                    self.cut[cable][direction] |= cut;
                    let down = self.cut[cable][direction];
                    self.pair.link(cable, direction).set_down(down);
                }
            }
            Operation::Mend { cable } => {
                self.cut[cable] = [false; 2];
                self.pair.set_down(cable, false);
            }
            Operation::Rebind { cable } => {
                self.pair.rebind(cable);
                self.good_since[cable] = None;
            }
            Operation::Rate { cable, direction, mbit } => self.pair.link(cable, direction).set_rate(mbit),
            Operation::Loss { cable, direction, loss } => {
                self.pair.link(cable, direction).set_loss(LossModel::Bernoulli(loss));
            }
            Operation::Mtu { cable, mtu } => {
                for direction in 0..2 {
                    self.pair.link(cable, direction).set_mtu(mtu);
                }
            }
            Operation::Talk { end, bytes } => self.talkers[end].wants.push_back(bytes),
            Operation::Pause { end, paused } => self.talkers[end].paused = paused,
            Operation::Gulp { end, bytes, times } => self.talkers[end].gulp = Some((bytes, times)),
            _ => self.touch_session(what),
        }
    }

    fn touch_session(&mut self, what: Operation) {
        let now = self.pair.now;
        let (Operation::Reset { end, .. }
        | Operation::Stop { end, .. }
        | Operation::Datagrams { end, .. }
        | Operation::ClosePath { end, .. }
        | Operation::OpenPath { end, .. }
        | Operation::Usage { end, .. }) = what
        else {
            return;
        };
        let cable = if let Operation::OpenPath { cable, .. } = what { cable } else { 0 };
        let route = self.pair.route(end, cable);
        let talker = &mut self.talkers[end];
        let Some(session) = self.pair.ends[end].session.as_mut().filter(|_| talker.established) else {
            return;
        };
        let active: Vec<_> = session
            .paths()
            .iter()
            .filter(|path| path.state == PathState::Active)
            .map(|path| path.id)
            .collect();
        match what {
            Operation::Reset { pick, .. } => talker.reset(session, pick),
            Operation::Stop { pick, .. } => talker.stop(session, pick),
            Operation::Datagrams { count, .. } => talker.send_datagrams(session, count),
            Operation::OpenPath { .. } => {
                let _ = session.open_path(now, route);
            }
            Operation::ClosePath { pick, .. }
                if active.len() > 1 && *self.closer.get_or_insert(end) == end =>
            {
                session.close_path(now, active[pick % active.len()], AbandonReason::Requested);
            }
            Operation::Usage { pick, usage, .. } if !active.is_empty() => {
                let path = active[pick % active.len()];
                session.set_path_use(path, usage).expect("the path was listed a moment ago");
            }
            _ => {}
        }
    }

    /// Repairs the network and makes the readers fast.
    fn mend(&mut self) {
        for cable in 0..self.cut.len() {
            self.carry_out(Operation::Mend { cable });
            for direction in 0..2 {
                self.pair.link(cable, direction).set_loss(LossModel::None);
                self.pair.link(cable, direction).set_rate(20.0);
            }
        }
        for talker in &mut self.talkers {
            talker.paused = false;
            talker.gulp = None;
        }
    }
}
