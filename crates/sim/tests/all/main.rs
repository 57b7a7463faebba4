//! Tests of whole sessions in virtual time. One program, because each would compile the engine anew.

mod agents;
mod busy;
mod datagrams;
mod failover;
mod moves;
mod overflow;
mod priorities;
mod random_operations;
mod rates;
mod recovery;
mod redundant;
mod sessions;
mod striping;
mod two_ways;
mod urgent;
