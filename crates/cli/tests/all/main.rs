//! Tests of the commands. One program, because each would be linked with the whole workspace.

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod browser;
mod capture;
mod clock;
mod command;
mod granted;
mod guide;
mod guide_steps;
mod kept;
mod names;
mod networks;
mod proxy;
mod redirect;
mod relay;
mod running;
mod serve;
mod trace;
mod transfer;
mod trouble;
mod two_networks;
