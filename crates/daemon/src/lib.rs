//! Services of the overlay: sockets, tasks and files around the cores in `anabranch-overlay`.
//!
//! | module | what |
//! |---|---|
//! | [`relay`] | `anabranch relay`: forwards for users whose keys it lists |
//! | [`client`] | the other side: a node's sessions to relays, and paths through them |

pub mod client;
pub mod relay;
