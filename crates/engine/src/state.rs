//! The states of a session and all transitions between them (MPMTP-AR §3.2 [R3]).
//!
//! ```text
//!            connect                 INIT-ACK
//! CLOSED ──────────────> INIT-SENT ────────────> ESTABLISHED
//!    └──INIT──> INIT-RECV ──first packet──────────┘  │  │
//!                                          close     │  │  SHUTDOWN
//!                 ┌──────────── SHUTDOWN-PENDING <───┘  └──> SHUTDOWN-RECV
//!           all acknowledged             │ SHUTDOWN ─────────────^ │ all acknowledged
//!                 v                                                v
//!           SHUTDOWN-SENT ──SHUTDOWN──────────────────> SHUTDOWN-ACK-SENT
//!                 └──SHUTDOWN-ACK──> CLOSED <──CLOSE or SHUTDOWN-ACK──┘
//! ```
//! Every state but CLOSED also ends in CLOSED by an abort, a CLOSE, a timeout or a reset.

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not started, or over.
    Closed,
    /// INIT was sent on every candidate route.
    InitSent,
    /// INIT arrived and was answered; it is not known whether the answer arrived.
    InitRecv,
    /// Data flows.
    Established,
    /// The application here closed; data that it wrote is still being delivered.
    ShutdownPending,
    /// Everything is delivered, and SHUTDOWN was sent.
    ShutdownSent,
    /// SHUTDOWN arrived; data written here is still being delivered.
    ShutdownRecv,
    /// Everything is delivered, and SHUTDOWN-ACK was sent.
    ShutdownAckSent,
}

/// An event that moves a session from one state to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trigger {
    Connect,
    Init,
    InitAck,
    FirstPacket,
    CloseRequested,
    Drained,
    Shutdown,
    ShutdownAck,
    End,
}

impl State {
    /// The next state, or `None` if the trigger has no effect in this one.
    pub(crate) fn next(self, trigger: Trigger) -> Option<Self> {
        Some(match (self, trigger) {
            (Self::Closed, Trigger::Connect) => Self::InitSent,
            (Self::Closed, Trigger::Init) => Self::InitRecv,
            (Self::InitSent, Trigger::InitAck) | (Self::InitRecv, Trigger::FirstPacket) => Self::Established,
            (Self::Established, Trigger::CloseRequested) => Self::ShutdownPending,
            (Self::ShutdownPending, Trigger::Drained) => Self::ShutdownSent,
            (Self::Established | Self::ShutdownPending, Trigger::Shutdown) => Self::ShutdownRecv,
            (Self::ShutdownSent, Trigger::Shutdown) | (Self::ShutdownRecv, Trigger::Drained) => {
                Self::ShutdownAckSent
            }
            (Self::ShutdownSent | Self::ShutdownAckSent, Trigger::ShutdownAck) => Self::Closed,
            (Self::Closed, Trigger::End) => return None,
            (_, Trigger::End) => Self::Closed,
            _ => return None,
        })
    }

    /// True once both ends have each other's parameters.
    pub fn carries_data(self) -> bool {
        !matches!(self, Self::Closed | Self::InitSent | Self::InitRecv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 8] = [
        State::Closed,
        State::InitSent,
        State::InitRecv,
        State::Established,
        State::ShutdownPending,
        State::ShutdownSent,
        State::ShutdownRecv,
        State::ShutdownAckSent,
    ];
    const TRIGGERS: [Trigger; 9] = [
        Trigger::Connect,
        Trigger::Init,
        Trigger::InitAck,
        Trigger::FirstPacket,
        Trigger::CloseRequested,
        Trigger::Drained,
        Trigger::Shutdown,
        Trigger::ShutdownAck,
        Trigger::End,
    ];

    #[test]
    fn every_state_and_trigger_is_as_drawn() {
        let letters = |state: Option<State>| match state {
            None => '.',
            Some(State::Closed) => 'C',
            Some(State::InitSent) => 'I',
            Some(State::InitRecv) => 'R',
            Some(State::Established) => 'E',
            Some(State::ShutdownPending) => 'P',
            Some(State::ShutdownSent) => 'S',
            Some(State::ShutdownRecv) => 'V',
            Some(State::ShutdownAckSent) => 'A',
        };
        let table: Vec<String> =
            STATES.iter().map(|state| TRIGGERS.iter().map(|t| letters(state.next(*t))).collect()).collect();
        let drawn = [
            "IR.......", // Closed
            "..E.....C", // InitSent
            "...E....C", // InitRecv
            "....P.V.C", // Established
            ".....SV.C", // ShutdownPending
            "......ACC", // ShutdownSent
            ".....A..C", // ShutdownRecv
            ".......CC", // ShutdownAckSent
        ];
        assert_eq!(table, drawn);
    }

    #[test]
    fn every_state_can_be_left() {
        for state in STATES {
            assert!(TRIGGERS.iter().any(|trigger| state.next(*trigger).is_some()), "{state:?}");
        }
    }
}
