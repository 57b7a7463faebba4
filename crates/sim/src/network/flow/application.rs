//! The applications at both ends of a flow: the client writes its supply, the server reads at once.

use anabranch_engine::{Event, PathChange, PathError, Read, Session};
use anabranch_wire::{DatagramFrame, Span, StreamId, Time};

use super::super::load::Load;
use super::{CLIENT, Flow, Served, Supply};

impl Flow {
    /// Handles an end's events: reads, writes and opens paths.
    pub(crate) fn serve(&mut self, now: Time, end: usize) -> Served {
        let Some(session) = &mut self.sessions[end] else { return Served::Nothing };
        while session.poll_pid_change().is_some() {}
        let mut served = Served::Nothing;
        while let Some(event) = self.sessions[end].as_mut().and_then(Session::poll_event) {
            served = Served::Something;
            if let (Some(guided), Some(session)) = (&mut self.guided, &self.sessions[end]) {
                guided.on_event(now, end, &event, session);
            }
            match event {
                Event::StreamReadable(stream) if self.supply == Supply::Tunnel => {
                    self.read_stream(now, stream);
                }
                Event::StreamFinished(stream) if self.supply == Supply::Tunnel => {
                    self.finish_stream(now, stream);
                }
                Event::StreamReadable(stream) => self.read(now, end, stream),
                Event::StreamWritable(_) => self.write(),
                Event::DatagramReceived => self.take_datagrams(now, end),
                Event::Established if end == CLIENT => self.on_established(now),
                Event::StreamFinished(_) if end == CLIENT => {
                    self.finished_at = Some(now);
                    self.end();
                    return Served::Over;
                }
                Event::Path { change: PathChange::Closed(_), .. } if end == CLIENT => {
                    self.opening.unopened = self.further_paths();
                }
                _ => {}
            }
        }
        if end == CLIENT && !self.tunnel.streams.is_empty() {
            self.write_streams();
        }
        if end == CLIENT && self.opening.unopened != 0 {
            self.open_paths(now);
        }
        if let (Some(guided), Some(session)) = (&mut self.guided, &mut self.sessions[end]) {
            guided.act(now, end, session);
        }
        served
    }

    fn on_established(&mut self, now: Time) {
        if self.supply == Supply::Tunnel {
            return;
        }
        if let Supply::Datagrams { .. } = self.supply {
            (self.datagrams.first, self.writer.next_chunk) = (now, now);
            return self.add_chunk(now);
        }
        let session = self.sessions[CLIENT].as_mut();
        self.writer.stream = session.and_then(|session| {
            let stream = session.open_stream()?;
            // The stream was just opened.
            let _ = session.set_redundant(stream, self.redundant);
            Some(stream)
        });
        if matches!(self.supply, Supply::Steady { .. } | Supply::Script(_)) {
            self.writer.next_chunk = now;
            self.add_chunk(now);
        } else {
            self.write();
        }
    }

    /// Adds the next chunk or datagram of a steady application.
    pub(super) fn add_chunk(&mut self, now: Time) {
        match &self.supply {
            &Supply::Steady { rate, chunk } => {
                self.writer.left += chunk;
                self.writer.next_chunk = now + rate.time_for(chunk).max(Span::from_nanos(1));
                self.write();
            }
            Supply::Script(entries) => {
                let due =
                    entries[self.writer.played..].iter().take_while(|(after, _)| self.start + *after <= now);
                let (count, bytes) = due.fold((0, 0), |(count, sum), (_, bytes)| (count + 1, sum + bytes));
                self.writer.played += count;
                self.writer.left += bytes;
                let next = entries.get(self.writer.played);
                self.writer.next_chunk = next.map_or(Time::NEVER, |(after, _)| self.start + *after);
                self.write();
            }
            &Supply::Datagrams { pause, size } => {
                self.counts.datagrams += 1;
                self.writer.next_chunk = self.sent_at(self.counts.datagrams, pause);
                // The datagram's bytes are not modelled, so its flow field carries its number.
                let flow = self.counts.datagrams as u32;
                let datagram = DatagramFrame { class: 0, flow, data: Load::of(size as u64) };
                // A datagram that is too large or finds no room is lost.
                let _ = self.sessions[CLIENT].as_mut().map(|session| session.send_datagram(datagram));
            }
            Supply::Bulk | Supply::File(_) | Supply::Tunnel => {}
        }
    }

    /// When a datagram is sent that follows `others` earlier ones.
    fn sent_at(&self, others: u64, pause: Span) -> Time {
        self.datagrams.first + pause.max(Span::from_nanos(1)) * others
    }

    /// Records the datagrams that arrived.
    fn take_datagrams(&mut self, now: Time, end: usize) {
        let Supply::Datagrams { pause, size } = self.supply else { return };
        while let Some((_, datagram)) = self.sessions[end].as_mut().and_then(Session::recv_datagram) {
            let number = datagram.flow.wrapping_sub(1);
            let took = now.since(self.sent_at(number.into(), pause));
            self.datagrams.delays.push((number, took));
            self.counts.bytes += size as u64;
            self.counts.took(now);
        }
    }

    fn write(&mut self) {
        let (Some(session), Some(stream)) = (&mut self.sessions[CLIENT], self.writer.stream) else { return };
        while self.writer.left > 0 {
            let mut data = Load::of(self.writer.left);
            match session.write(stream, &mut data) {
                Ok(0) | Err(_) => return,
                Ok(taken) if self.writer.left != u64::MAX => self.writer.left -= taken as u64,
                Ok(_) => {}
            }
        }
        let over = match &self.supply {
            Supply::File(_) => true,
            Supply::Script(entries) => self.writer.played == entries.len(),
            _ => false,
        };
        if over {
            // The stream was just open, so it can be finished.
            let _ = session.finish(stream);
        }
    }

    fn read(&mut self, now: Time, end: usize, stream: StreamId) {
        let Some(session) = &mut self.sessions[end] else { return };
        while let Ok(Read::Data(_)) = session.read(stream, usize::MAX) {
            self.counts.took(now);
        }
    }

    fn open_paths(&mut self, now: Time) {
        let mut left = self.opening.unopened;
        self.opening.next = Time::NEVER;
        while left != 0 {
            let path = left.trailing_zeros() as usize + 1;
            left &= left - 1;
            let earliest = self.openings.get(path - 1).map_or(self.start, |after| self.start + *after);
            if now < earliest {
                self.opening.next = self.opening.next.min(earliest);
                continue;
            }
            let route = Self::route(CLIENT, path);
            let Some(session) = &mut self.sessions[CLIENT] else { return };
            match session.open_path(now, route) {
                Ok(_) | Err(PathError::Exists) => self.opening.unopened &= !(1 << (path - 1)),
                Err(_) => return,
            }
        }
    }
}
