//! Replays the corpora and mutations of them.

mod corpus;
mod decoder;
mod inputs;
mod mutate;
mod watch;
