//! The end of a run, and its final checks.

use anabranch_engine::CloseReason;
use anabranch_wire::Span;

use super::super::talker::{End, Talker};
use super::Runner;
use anabranch_sim::{CLIENT, SERVER};

/// All data must be delivered within this time after all links work.
const FINISH: Span = Span::from_secs(240);
/// Both sessions must be over within this time after they should close.
const CLOSE: Span = Span::from_secs(60);

impl Runner {
    pub fn finish_streams(&mut self) -> Result<(), String> {
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

    /// Directions of streams that were not read to their end, although their reader still wants them.
    fn open_halves(&self) -> usize {
        let unread = |talker: &Talker| {
            talker.inc.values().filter(|half| half.end.is_none() && !half.stopped).count()
                + talker.wants.len()
        };
        self.talkers.iter().map(unread).sum()
    }

    /// Checks each direction of each stream after everything was delivered.
    pub fn check_streams(&self) -> Result<(), String> {
        for (from, to) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            for (stream, sent) in &self.talkers[from].out {
                let Some(got) = self.talkers[to].inc.get(stream) else {
                    // The stream was reset before a byte of it left, so the peer never saw it.
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

    /// Checks that a graceful close delivered all written data.
    pub fn check_written_is_read(&self) -> Result<(), String> {
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

    pub fn close(&mut self, who: [bool; 2]) -> Result<(), String> {
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

    pub fn abort(&mut self, end: usize) -> Result<(), String> {
        let now = self.pair.now;
        if let Some(session) = &mut self.pair.ends[end].session {
            session.abort(now, 0x4242, "enough");
        }
        self.await_closed(CLOSE)?;
        match &self.talkers[1 - end].closed {
            Some(CloseReason::IdleTimeout | CloseReason::Peer { code: 0x4242, .. }) => Ok(()),
            Some(CloseReason::ConnectTimeout) if self.never_met(1 - end) => Ok(()),
            told => Err(format!("an abort was reported as {told:?}")),
        }
    }

    pub fn vanish(&mut self, end: usize) -> Result<(), String> {
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

    /// True if this end gave up connecting, because the peer was gone before its first answer arrived.
    pub fn never_met(&self, end: usize) -> bool {
        let peer = self.pair.ends[1 - end].session.as_ref();
        !self.talkers[end].established && peer.is_none_or(anabranch_engine::Session::is_closed)
    }

    /// True if no packet of the client arrived before it gave up: the server has no session.
    pub fn nothing_arrived(&self) -> bool {
        let gave_up = matches!(self.talkers[CLIENT].closed, Some(CloseReason::ConnectTimeout));
        gave_up && self.pair.ends[SERVER].session.is_none()
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
}
