//! Carries out a world's script and looks at what must always hold.

use anabranch_engine::{AbandonReason, CloseReason, PathState};
use anabranch_link::LossModel;
use anabranch_wire::{Span, Time};
use bytes::Bytes;

use super::talker::{End, Outgoing, Talker};
use super::world::{Finale, Operation, World};
use crate::pair::{CLIENT, Pair, SERVER};

/// How often invariants are looked at.
const SLICE: Span = Span::from_millis(20);
/// How often the client opens paths over cables that have none.
const MANAGE: Span = Span::from_millis(300);
/// With a cable that works, something must be delivered within this time.
const PATIENCE: Span = Span::from_secs(15);
/// Everything is delivered this long after everything is mended.
const FINISH: Span = Span::from_secs(240);
/// Both sessions are over this long after they were to close.
const CLOSE: Span = Span::from_secs(60);

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// When, in virtual time.
    pub at: Time,
    /// What.
    pub what: String,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Stream bytes delivered at both ends.
    pub bytes: u64,
    /// Stream bytes sent more than once.
    pub resent: u64,
    /// Packets declared lost that had arrived.
    pub spurious: u64,
    /// Most paths open at the same time.
    pub paths: usize,
    /// When it was over.
    pub ended_at: Time,
}

struct Run {
    world: World,
    pair: Pair<Bytes>,
    talkers: [Talker; 2],
    /// Directions of each cable that were cut.
    cut: Vec<[bool; 2]>,
    /// Since when each cable has worked in both directions, with a path on it at both ends.
    good_since: Vec<Option<Time>>,
    delivered: [u64; 2],
    progress_at: [Time; 2],
    managed_at: Time,
    /// The end that closes paths: two could close each other's last one.
    closer: Option<usize>,
    summary: Summary,
}

/// The world that a seed makes, for people.
#[must_use]
pub fn describe(seed: u64) -> String {
    format!("{:#?}", World::new(seed))
}

/// Runs the world of `seed`.
///
/// # Errors
/// [`Broken`] when an invariant does not hold.
///
/// # Panics
/// When the engine does, or when it asks to be called for ever.
pub fn run(seed: u64) -> Result<Summary, Broken> {
    let world = World::new(seed);
    let mut run = Run {
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

impl Run {
    fn all(&mut self) -> Result<(), String> {
        for step in self.world.steps.clone() {
            self.advance(step.at)?;
            self.carry_out(step.what);
        }
        self.advance(self.world.mended_at)?;
        self.mend();
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

    /// As the path manager of a program would: a path over every cable.
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
                    // Refused while there are too many or the peer has not made the next one ready.
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

    /// Makes the network kind again and the readers quick.
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

    fn finish_streams(&mut self) -> Result<(), String> {
        let deadline = self.pair.now + FINISH;
        while self.open_halves() > 0 {
            if self.pair.now >= deadline {
                return Err(format!(
                    "{} halves of streams never ended: {}",
                    self.open_halves(),
                    self.state()
                ));
            }
            self.advance(self.pair.now + Span::from_millis(100))?;
        }
        Ok(())
    }

    /// Halves of streams that were not read to their end by somebody who still wants them.
    fn open_halves(&self) -> usize {
        let unread = |talker: &Talker| {
            talker.inc.values().filter(|half| half.end.is_none() && !half.stopped).count()
                + talker.wants.len()
        };
        self.talkers.iter().map(unread).sum()
    }

    /// What is compared when everything was delivered: each direction of each stream.
    fn check_streams(&self) -> Result<(), String> {
        for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            for (stream, sent) in &self.talkers[from].out {
                let Some(got) = self.talkers[to].inc.get(stream) else {
                    // Given up before a byte of it left, and told as such: or the peer would have it.
                    continue;
                };
                let fits = match (sent.end, got.end) {
                    _ if got.stopped => got.read <= sent.written,
                    (Some(End::Finished), Some(End::Finished)) => got.read == sent.written,
                    (Some(End::Reset(_)), Some(End::Finished)) => sent.finished && got.read == sent.written,
                    (Some(End::Reset(code)), Some(End::Reset(told))) => {
                        code == told && got.read <= sent.written
                    }
                    _ => false,
                };
                if !fits {
                    return Err(format!("{stream} from {from}: sent {sent:?}, got {got:?}"));
                }
            }
        }
        Ok(())
    }

    /// After a graceful close everything that had been written was delivered.
    fn check_written_is_read(&self) -> Result<(), String> {
        for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            for (stream, sent) in &self.talkers[from].out {
                let Some(got) = self.talkers[to].inc.get(stream).filter(|got| !got.stopped) else { continue };
                if !matches!(sent.end, Some(End::Reset(_))) && got.read != sent.written {
                    return Err(format!("{stream} from {from} lost bytes in the close: {sent:?}, {got:?}"));
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, who: [bool; 2]) -> Result<(), String> {
        let now = self.pair.now;
        for (end, closes) in who.into_iter().enumerate() {
            if let Some(session) = self.pair.ends[end].session.as_mut().filter(|_| closes) {
                session.close(now);
                self.talkers[end].closing = true;
            }
        }
        self.await_closed(CLOSE + FINISH)?;
        for talker in &self.talkers {
            if !matches!(talker.closed, Some(CloseReason::Finished)) && talker.established {
                return Err(format!("a graceful close ended as {:?}", talker.closed));
            }
        }
        Ok(())
    }

    fn abort(&mut self, end: usize) -> Result<(), String> {
        let now = self.pair.now;
        if let Some(session) = &mut self.pair.ends[end].session {
            session.abort(now, 0x4242, "enough");
        }
        self.await_closed(CLOSE)?;
        let told = &self.talkers[1 - end].closed;
        let idle = matches!(told, Some(CloseReason::IdleTimeout));
        if !idle && !matches!(told, Some(CloseReason::Peer { code: 0x4242, .. })) {
            return Err(format!("an abort was told as {told:?}"));
        }
        Ok(())
    }

    fn vanish(&mut self, end: usize) -> Result<(), String> {
        self.pair.ends[end].session = None;
        for cable in 0..self.cut.len() {
            self.pair.set_down(cable, true);
            self.cut[cable] = [true; 2];
        }
        self.await_closed(CLOSE)?;
        match &self.talkers[1 - end].closed {
            Some(CloseReason::IdleTimeout) => Ok(()),
            Some(CloseReason::ConnectTimeout) if self.never_met(1 - end) => Ok(()),
            other => Err(format!("a peer that vanished was noticed as {other:?}")),
        }
    }

    /// The peer vanished before it answered: this end gave up connecting.
    fn never_met(&self, end: usize) -> bool {
        !self.talkers[end].established && self.pair.ends[1 - end].session.is_none()
    }

    fn await_closed(&mut self, most: Span) -> Result<(), String> {
        let deadline = self.pair.now + most;
        loop {
            let mut open = self.pair.ends.iter().filter_map(|end| end.session.as_ref());
            if open.all(|session| session.is_closed()) {
                return Ok(());
            }
            if self.pair.now >= deadline {
                return Err(format!("not closed: {}", self.state()));
            }
            self.advance(self.pair.now + Span::from_millis(100))?;
        }
    }

    /// What must hold at any time.
    fn check(&mut self) -> Result<(), String> {
        for end in 0..2 {
            if let Some(fault) = self.talkers[end].faults.first() {
                return Err(fault.clone());
            }
            self.check_end(end)?;
        }
        self.watch_cables();
        for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            self.check_flow(from, to)?;
        }
        Ok(())
    }

    fn check_end(&mut self, end: usize) -> Result<(), String> {
        let config = &self.world.configs[end];
        let Some(session) = &self.pair.ends[end].session else { return Ok(()) };
        if let Some(CloseReason::Protocol(error)) = &self.talkers[end].closed {
            return Err(format!("end {end} accused the other: {error}"));
        }
        if let Some(reason @ (CloseReason::ConnectTimeout | CloseReason::Reset)) = &self.talkers[end].closed
            && !self.never_met(end)
        {
            return Err(format!("end {end}: {reason}"));
        }
        let over = self.talkers[end].closed.is_some() || self.talkers[1 - end].closed.is_some();
        let closing = self.pair.now >= self.world.mended_at;
        if over && !closing {
            return Err(format!("end {end} closed too early: {:?}", self.talkers[end].closed));
        }
        let paths = session.paths();
        let open = paths.iter().filter(|path| path.state != PathState::Closing).count();
        self.summary.paths = self.summary.paths.max(open);
        if open > config.max_paths as usize || paths.len() > 64 {
            return Err(format!("{open} paths open, {} known", paths.len()));
        }
        let stats = session.stats();
        if stats.bytes_reassembling > config.memory.max_window {
            return Err(format!("{} bytes in reassembly", stats.bytes_reassembling));
        }
        self.summary.spurious = paths.iter().map(|path| path.stats.spurious_losses).sum();
        self.summary.resent = stats.bytes_resent;
        Ok(())
    }

    /// Notes which cables could carry data.
    fn watch_cables(&mut self) {
        for cable in 0..self.cut.len() {
            let has_path = |end: usize| {
                let session = self.pair.ends[end].session.as_ref();
                session.is_some_and(|session| {
                    session.paths().iter().any(|path| {
                        let ready = !matches!(path.state, PathState::Closing | PathState::Validating);
                        ready && path.route.socket == cable as u32
                    })
                })
            };
            let good = self.cut[cable] == [false; 2] && has_path(CLIENT) && has_path(SERVER);
            let since = self.good_since[cable].unwrap_or(self.pair.now);
            self.good_since[cable] = good.then_some(since);
        }
    }

    fn check_flow(&mut self, from: usize, to: usize) -> Result<(), String> {
        let now = self.pair.now;
        let (written, read) = (self.talkers[from].bytes_written(), self.talkers[to].bytes_read());
        self.summary.bytes = self.talkers.iter().map(Talker::bytes_read).sum();
        let promised = self.world.configs[from].memory.send_buffer + self.world.configs[to].memory.max_window;
        let gave_up = |sent: &Outgoing| sent.stopped || matches!(sent.end, Some(End::Reset(_)));
        let dropped = self.talkers[to].inc.values().any(|half| half.stopped)
            || self.talkers[from].out.values().any(gave_up);
        if !dropped && written > read + promised {
            return Err(format!("{written} bytes written, {read} read: more is held than was promised"));
        }
        let waits = !self.talkers[to].paused
            && self.talkers[to].gulp.is_none()
            && self.talkers.iter().all(|talker| talker.closed.is_none() && talker.established)
            && self.talkers[from].out.iter().any(|(stream, sent)| {
                let got = self.talkers[to].inc.get(stream);
                let open = got.is_none_or(|got| !got.stopped && got.end.is_none());
                let more =
                    sent.written > got.map_or(0, |got| got.read) || (sent.blocked && sent.end.is_none());
                open && more && sent.end != Some(End::Reset(1000 + stream.0)) && !sent.stopped
            });
        if !waits || read != self.delivered[to] {
            self.progress_at[to] = now;
        }
        self.delivered[to] = read;
        let since = self.good_since.iter().flatten().min();
        if let Some(since) = since
            && now.since(self.progress_at[to].max(*since)) > PATIENCE
        {
            return Err(format!("nothing came to end {to} although a cable works: {}", self.state()));
        }
        Ok(())
    }

    /// Both ends in a few lines.
    fn state(&self) -> String {
        let mut text = String::new();
        for (end, (talker, half)) in self.talkers.iter().zip(&self.pair.ends).enumerate() {
            let Some(session) = &half.session else { continue };
            text += &format!(
                "\n  end {end} {:?} closed {:?} timeout {:?} wants {} read {} written {}",
                session.state(),
                talker.closed,
                session.poll_timeout(),
                talker.wants.len(),
                talker.bytes_read(),
                talker.bytes_written(),
            );
            for path in session.paths() {
                text += &format!(
                    "\n    {} {:?} {:?} via {} to {} rtt {:?} window {} in flight {} mtu {} {:?}",
                    path.id,
                    path.state,
                    path.usage,
                    path.route.socket,
                    path.route.remote,
                    path.rtt,
                    path.window,
                    path.in_flight,
                    path.mtu,
                    path.stats,
                );
            }
            let open = talker.inc.iter().filter(|(_, half)| half.end.is_none() && !half.stopped);
            text +=
                &open.map(|(stream, half)| format!("\n    waits for {stream} {half:?}")).collect::<String>();
            let open = talker.out.iter().filter(|(_, half)| half.end.is_none() || half.blocked);
            text += &open.map(|(stream, half)| format!("\n    sends {stream} {half:?}")).collect::<String>();
        }
        text
    }
}
