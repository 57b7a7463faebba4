//! The `anabranch` program, a thin wrapper around the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    anabranch_cli::main()
}
