//! Services of the overlay: sockets, tasks and files around the cores in `anabranch-overlay`.
//!
//! | module | content |
//! |---|---|
//! | [`relay`] | `anabranch relay`: forwards for users whose keys it lists |
//! | [`controller`] | `anabranch controller`: knows the relays and grants their use |
//! | [`sensing`] | a node measures relays, and relays measure each other |
//! | [`store`] | where controllers store what they know |

mod budget;
pub mod controller;
mod pace;
pub mod relay;
pub mod sensing;
mod settings;
pub mod store;
