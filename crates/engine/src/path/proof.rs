//! The challenge that a path waits for, and the answers that it owes.

use anabranch_wire::{ResetToken, Time};

use super::validation::Challenge;
use crate::route::Route;

/// Most answers to challenges that wait on a path.
const MAX_ANSWERS: usize = 4;

/// How the ends prove to each other that they are there.
#[derive(Debug, Default)]
pub(crate) struct Proof {
    challenge: Option<Box<Challenge>>,
    /// Answers to be sent: each token, and the route of its challenge.
    answers: Vec<(u64, Route)>,
    /// The token of a stateless reset for the path.
    reset_token: Option<ResetToken>,
}

impl Proof {
    #[inline]
    pub(crate) fn challenge(&self) -> Option<&Challenge> {
        self.challenge.as_deref()
    }

    /// True for the token of the challenge that waits for its answer.
    pub(crate) fn has_asked(&self, token: u64) -> bool {
        self.challenge().is_some_and(|challenge| challenge.token == token)
    }

    pub(crate) fn owes_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    pub(crate) fn reset_token(&self) -> Option<ResetToken> {
        self.reset_token
    }

    pub(crate) fn set_reset_token(&mut self, token: ResetToken) {
        self.reset_token = Some(token);
    }

    /// Sets the challenge to send; returns the one that it replaces.
    pub(crate) fn set_challenge(&mut self, challenge: Challenge) -> Option<Challenge> {
        self.challenge.replace(Box::new(challenge)).map(|replaced| *replaced)
    }

    pub(crate) fn take_challenge(&mut self) -> Option<Challenge> {
        self.challenge.take().map(|challenge| *challenge)
    }

    pub(crate) fn challenge_mut(&mut self) -> Option<&mut Challenge> {
        self.challenge.as_deref_mut()
    }

    /// Owes an answer to a challenge.
    pub(crate) fn owe_answer(&mut self, token: u64, route: Route) {
        if self.answers.len() < MAX_ANSWERS && !self.answers.contains(&(token, route)) {
            self.answers.push((token, route));
        }
    }

    pub(crate) fn pop_answer(&mut self) -> Option<(u64, Route)> {
        self.answers.pop()
    }

    /// Asks and answers nothing any more.
    pub(crate) fn clear(&mut self) {
        self.challenge = None;
        self.answers.clear();
    }

    pub(crate) fn shrink(&mut self) {
        self.answers.shrink_to_fit();
    }

    /// From when on a challenge, or an answer, may be due. `has_room` when the path's allowance admits
    /// another packet.
    pub(crate) fn due_at(&self, has_room: impl FnOnce() -> bool) -> Time {
        if !self.answers.is_empty() {
            return Time::ZERO;
        }
        let allowed = self.challenge().filter(|challenge| challenge.is_allowed());
        allowed.filter(|_| has_room()).map_or(Time::NEVER, |challenge| challenge.due)
    }
}
