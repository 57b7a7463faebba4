//! Data in the handshake: a client may put the first bytes of its first streams into INIT, to save a round trip.
//!
//! The server reads them and may answer before the client's first packet. INIT can be a replay, so the driver lets each INIT
//! do this once. The address has returned a cookie, and an initial window is the most that leaves. The client sends the bytes
//! again in packets, so nothing depends on whether the server takes them. It opens the streams as soon as it has the INIT-ACK,
//! before it handles a packet that may be the answer.

use anabranch_wire::{Payload, Side, StreamFrame, StreamId, Time};

use super::Session;
use crate::event::CloseReason;
use crate::state::State;

impl<P: Payload> Session<P> {
    /// Takes the first bytes of the client's first streams from its INIT, in the order of the streams. The application may
    /// then answer at once. Does nothing after the client's first packet.
    pub fn accept_early(&mut self, now: Time, firsts: impl IntoIterator<Item = P>) {
        let flight = &mut self.flight;
        if flight.life.side() != Side::Server || flight.state() != State::InitRecv {
            return;
        }
        flight.clock.forget_timeout();
        for (index, data) in (0..).zip(firsts) {
            let mut frame = StreamFrame { stream: StreamId(2 * index), offset: 0, fin: false, data };
            let out = (&mut flight.out.events, &mut flight.out.control);
            if !frame.data.is_empty()
                && let Err(error) = flight.streams.on_frame(&mut frame, out)
            {
                return flight.end(now, CloseReason::Protocol(error));
            }
            flight.life.speak_early();
        }
    }
}

#[cfg(test)]
mod tests {
    use anabranch_wire::{Length, Message, Pid, ResetToken, Span};

    use super::*;
    use crate::{
        Arrival, CloseReason, Config, Ecn, Event, Init, MemoryBudget, PidSource, Read, Route, Transmit,
    };

    struct Pids(u64);

    impl PidSource for Pids {
        fn next_pid(&mut self) -> (Pid, ResetToken) {
            self.0 += 1;
            (Pid(self.0), ResetToken([1; 16]))
        }
    }

    const AT: Time = Time::from_nanos(1_000_000_000);
    const HELLO: StreamId = StreamId(0);

    fn arrival(size: usize) -> Arrival {
        let route = Route { socket: 0, remote: "192.0.2.1:443".parse().unwrap() };
        Arrival { route, size, ecn: Ecn::NotEct, waited: Span::ZERO }
    }

    /// A client that has written a greeting, and the server of its INIT, to which the greeting came early or not.
    fn ends(early: bool) -> (Session<Length>, Session<Length>) {
        let route = arrival(0).route;
        let budget = MemoryBudget::new(1 << 40);
        let mut client =
            Session::connect(Config::default(), &[route], Box::new(Pids(1 << 32)), budget.clone(), AT);
        let Message::Init(params) = client.poll_transmit(AT).unwrap().message else {
            panic!("INIT is first")
        };
        let init = Init { params, route };
        let mut server =
            Session::accept(Config::default(), init, Box::new(Pids(1 << 33)), budget, AT).unwrap();
        if early {
            server.accept_early(AT, [Length(12)]);
        }
        (client, server)
    }

    fn sent(session: &mut Session<Length>, now: Time) -> Vec<Transmit<Length>> {
        std::iter::from_fn(|| session.poll_transmit(now)).collect()
    }

    fn take(session: &mut Session<Length>, now: Time, sent: Vec<Transmit<Length>>) {
        for transmit in sent {
            session.handle_message(now, &arrival(transmit.size), transmit.message);
        }
    }

    fn read(session: &mut Session<Length>) -> usize {
        let mut all = 0;
        while let Ok(Read::Data(Length(len))) = session.read(HELLO, 1 << 20) {
            all += len;
        }
        all
    }

    /// Flights of the server until its client has the answer to its greeting.
    fn flights(early: bool) -> usize {
        let (mut client, mut server) = ends(early);
        for flight in 1..5 {
            let now = AT + Span::from_millis(100) * flight;
            if read(&mut server) > 0 {
                server.write(HELLO, &mut Length(1_000)).unwrap();
            }
            for transmit in sent(&mut server, now) {
                take(&mut client, now, vec![transmit]);
                if client.open_stream() == Some(HELLO) {
                    client.write(HELLO, &mut Length(12)).unwrap();
                }
            }
            if read(&mut client) == 1_000 {
                return flight as usize;
            }
            let asked = sent(&mut client, now);
            take(&mut server, now, asked);
        }
        panic!("there is no answer")
    }

    #[test]
    fn the_answer_to_early_data_comes_with_the_init_ack() {
        assert_eq!((flights(false), flights(true)), (2, 1));
    }

    #[test]
    fn before_the_first_packet_an_initial_window_leaves_and_what_is_lost_is_sent_again() {
        let (mut client, mut server) = ends(true);
        server.write(HELLO, &mut Length(100_000)).unwrap();
        let first = sent(&mut server, AT);
        let bytes: usize = first[1..].iter().map(|transmit| transmit.size).sum();
        assert!(
            matches!(first[0].message, Message::InitAck(_)) && (10_000..20_000).contains(&bytes),
            "{bytes}"
        );
        assert!(sent(&mut server, AT + Span::from_secs(1)).is_empty());
        // Only the INIT-ACK arrives.
        take(&mut client, AT, first.into_iter().take(1).collect());
        assert_eq!(client.open_stream(), Some(HELLO));
        client.write(HELLO, &mut Length(12)).unwrap();
        let (mut now, mut all) = (AT, 0);
        while all < 100_000 {
            now += Span::from_millis(10);
            assert!(now < AT + Span::from_secs(20), "{all} bytes");
            for [from, to] in [[&mut client, &mut server] as [&mut Session<Length>; 2]] {
                for session in [&mut *from, &mut *to] {
                    if session.poll_timeout().is_some_and(|at| at <= now) {
                        session.handle_timeout(now);
                    }
                }
                let said = sent(from, now);
                take(to, now, said);
                let said = sent(to, now);
                take(from, now, said);
            }
            all += read(&mut client);
        }
        assert_eq!(read(&mut server), 12, "the greeting is read once, although it came twice");
    }

    #[test]
    fn a_server_that_refuses_early_tells_the_client_why() {
        let (mut client, mut server) = ends(true);
        let answer = sent(&mut server, AT);
        take(&mut client, AT, answer);
        server.abort(AT, 7, "no room");
        let last = sent(&mut server, AT);
        take(&mut client, AT, last);
        let events: Vec<_> = std::iter::from_fn(|| client.poll_event()).collect();
        let told = Event::Closed(CloseReason::Peer { code: 7, reason: "no room".into() });
        assert!(events.contains(&told), "{events:?}");
    }

    #[test]
    fn early_data_for_more_streams_than_admitted_close_the_session() {
        let (_, mut server) = ends(false);
        let most = server.local_params().initial_max_streams as usize;
        server.accept_early(AT, vec![Length(1); most + 1]);
        assert!(server.state() == State::Closed);
    }
}
