//! The states of a path and every transition between them.
//!
//! ```text
//! Validating --answered--> Active <--recovered-- Suspect
//!     |                      \ \--doubted--------^  ^
//!     |                       \--silent--> Failed --/ answers poorly
//!     \--abandoned--> Closing <--abandoned-- any
//! ```
//! A *suspect* path keeps its window and carries only probes: its acknowledgements are overdue, or it
//! delivers too little (`trouble`). A *failed* path (mTCP §3.5 [M12]) has lost everything in flight and is
//! probed at growing intervals.

/// Whether a path carries data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// Challenged, not answered yet.
    Validating,
    /// Carries data.
    Active,
    /// Acknowledgements are overdue, or the path delivers almost nothing. It carries only probes until it
    /// recovers.
    Suspect,
    /// Silent for too long. It carries only probes.
    Failed,
    /// Abandoned. The engine still accepts late packets, though a driver may have dropped the path's keys.
    Closing,
}

/// An event that moves a path from one state to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathEvent {
    /// The peer answered a challenge or the handshake over this path.
    Answered,
    /// Acknowledgements are overdue, or the path is of no use.
    Doubted,
    /// Silent for χ retransmission timeouts.
    Silent,
    /// A failed path answers, but not well enough to carry data.
    AnswersPoorly,
    /// A path in doubt works again.
    Recovered,
    /// One end gave the path up.
    Abandoned,
}

impl PathState {
    /// The state's name, for people and for JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Active => "active",
            Self::Suspect => "suspect",
            Self::Failed => "failed",
            Self::Closing => "closing",
        }
    }

    /// The state after `event`; `None` if the event has no effect in this state.
    pub(crate) fn after(self, event: PathEvent) -> Option<Self> {
        match (self, event) {
            (Self::Validating, PathEvent::Answered) => Some(Self::Active),
            (Self::Active, PathEvent::Doubted) => Some(Self::Suspect),
            (Self::Active | Self::Suspect, PathEvent::Silent) => Some(Self::Failed),
            (Self::Failed, PathEvent::AnswersPoorly) => Some(Self::Suspect),
            (Self::Suspect | Self::Failed, PathEvent::Recovered) => Some(Self::Active),
            (Self::Closing, PathEvent::Abandoned) => None,
            (_, PathEvent::Abandoned) => Some(Self::Closing),
            _ => None,
        }
    }

    /// Whether packets on the path show that the peer is alive: the path is proven and has not failed.
    pub(crate) fn is_alive(self) -> bool {
        matches!(self, Self::Active | Self::Suspect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_event_is_as_drawn() {
        use PathState::{Active, Closing, Failed, Suspect, Validating};
        let events = [
            PathEvent::Answered,
            PathEvent::Doubted,
            PathEvent::Silent,
            PathEvent::AnswersPoorly,
            PathEvent::Recovered,
            PathEvent::Abandoned,
        ];
        let letter = |state: Option<PathState>| match state {
            None => '.',
            Some(Validating) => 'V',
            Some(Active) => 'A',
            Some(Suspect) => 'S',
            Some(Failed) => 'F',
            Some(Closing) => 'C',
        };
        let row = |state: PathState| events.iter().map(|event| letter(state.after(*event))).collect();
        let table: Vec<String> =
            [Validating, Active, Suspect, Failed, Closing].into_iter().map(row).collect();
        let drawn = [
            "A....C", // Validating
            ".SF..C", // Active
            "..F.AC", // Suspect
            "...SAC", // Failed
            "......", // Closing
        ];
        assert_eq!(table, drawn);
    }
}
