//! Tests of networks, overlays and grids. One program, because each would compile the simulator anew.

mod failures;
mod grid;
mod long_cut;
mod overlay;
mod small_networks;
