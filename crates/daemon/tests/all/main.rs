//! Tests of relays and controllers. One program, because each would be linked on its own.

#[path = "../common/mod.rs"]
mod common;
#[path = "../etcd/mod.rs"]
mod etcd;

mod budgets;
mod classes;
mod controllers;
mod expired;
mod granted;
mod http;
mod joined;
mod many;
mod only_path;
mod relays;
mod replays;
mod rules;
mod secrets;
mod sensing;
mod spares;
mod stores;
mod strangers;
