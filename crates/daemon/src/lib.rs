//! Services of the overlay: sockets, tasks and files around the cores in `anabranch-overlay`.
//!
//! | module | what |
//! |---|---|
//! | [`relay`] | `anabranch relay`: forwards for users whose keys it lists |
//! | [`client`] | the other side: a node's sessions to relays, and paths through them |
//! | [`controller`] | `anabranch controller`: knows the relays and grants their use; and its other side |
//! | [`store`] | where controllers keep what they know |

pub mod client;
pub mod controller;
pub mod relay;
pub mod store;
