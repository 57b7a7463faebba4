//! Tests of endpoints with real sockets. One program, because each would compile sessions anew.

mod loopback;
mod on_path;
mod outlet;
mod tap;
mod wire_tap;
