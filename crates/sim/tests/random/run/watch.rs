//! Invariants during a run.

use anabranch_engine::{CloseReason, PathState};
use anabranch_wire::Span;

use super::super::talker::{End, Outgoing, Talker};
use super::Runner;
use anabranch_sim::{CLIENT, SERVER};

/// While a cable works, data must be delivered within this time.
const PATIENCE: Span = Span::from_secs(15);

impl Runner {
    /// Checks the invariants.
    pub fn check(&mut self) -> Result<(), String> {
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
        if over && !closing && !self.nothing_arrived() {
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

    /// Records which cables could carry data.
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

    /// Describes both ends in a few lines.
    pub fn state(&self) -> String {
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
