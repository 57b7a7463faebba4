//! Tests of networks, overlays and grids. One program, because each would compile the simulator anew.

mod failures;
mod grid;
mod overlay;
mod small_networks;
