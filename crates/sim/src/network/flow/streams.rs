//! The streams of a tunnel's session: the data of flows in the stream lane.

use anabranch_engine::Read;
use anabranch_wire::{Payload, StreamId, Time};

use super::super::load::Load;
use super::{CLIENT, Flow, FlowCounts, Passage, SERVER, Supply};

/// The stream of a flow.
pub(crate) struct TunnelStream {
    /// The flow.
    flow: u32,
    /// `None` until the session is established.
    stream: Option<StreamId>,
    /// Bytes that the program still has to write; `u64::MAX` for endless data.
    left: u64,
    is_finished: bool,
    /// When all of it was acknowledged.
    pub finished_at: Option<Time>,
    /// End of the data that arrived, including gaps.
    highest: u64,
    pub counts: FlowCounts,
}

impl Flow {
    /// Adds a stream with the data of a flow.
    pub(crate) fn add_stream(&mut self, flow: u32, supply: &Supply) {
        let left = if let Supply::File(bytes) = supply { *bytes } else { u64::MAX };
        let counts = FlowCounts::default();
        self.tunnel.streams.push(TunnelStream {
            flow,
            stream: None,
            left,
            is_finished: false,
            finished_at: None,
            highest: 0,
            counts,
        });
    }

    /// The stream of a flow.
    pub(crate) fn stream_of(&self, flow: usize) -> Option<&TunnelStream> {
        self.tunnel.streams.iter().find(|stream| stream.flow as usize == flow)
    }

    /// End of a stream's data that arrived, including gaps. Only a tunnel's session has several streams.
    pub(super) fn highest_of(&mut self, stream: StreamId) -> &mut u64 {
        let own = match self.passage {
            Passage::Carrier(_) => self.tunnel.streams.iter_mut().find(|own| own.stream == Some(stream)),
            _ => None,
        };
        own.map_or(&mut self.highest, |own| &mut own.highest)
    }

    /// Opens the streams that are not open yet, and writes what they take.
    pub(super) fn write_streams(&mut self) {
        let Some(session) = self.sessions[CLIENT].as_mut().filter(|session| session.state().carries_data())
        else {
            return;
        };
        for own in &mut self.tunnel.streams {
            own.stream = own.stream.or_else(|| session.open_stream());
            let Some(stream) = own.stream else { return };
            while own.left > 0 {
                match session.write(stream, &mut Load::of(own.left)) {
                    Ok(0) | Err(_) => break,
                    Ok(taken) if own.left != u64::MAX => own.left -= taken as u64,
                    Ok(_) => {}
                }
            }
            if own.left == 0 && !own.is_finished {
                // The stream was just open, so it can be finished.
                let _ = session.finish(stream);
                own.is_finished = true;
            }
        }
    }

    pub(super) fn read_stream(&mut self, now: Time, stream: StreamId) {
        let Some(session) = &mut self.sessions[SERVER] else { return };
        let Some(own) = self.tunnel.streams.iter_mut().find(|own| own.stream == Some(stream)) else { return };
        while let Ok(Read::Data(data)) = session.read(stream, usize::MAX) {
            own.counts.bytes += data.len() as u64;
            own.counts.took(now);
        }
    }

    pub(super) fn finish_stream(&mut self, now: Time, stream: StreamId) {
        let own = self.tunnel.streams.iter_mut().find(|own| own.stream == Some(stream));
        own.into_iter().for_each(|own| own.finished_at = Some(now));
    }
}
