//! Runs cargo: the one that runs this program.

use std::env;
use std::process::Command;

/// Runs cargo and waits for it.
pub fn cargo(args: &[&str]) -> Result<(), String> {
    let status = command(args).status().map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`cargo {}`: {status}", args.join(" "))) }
}

/// Runs cargo and returns its output.
pub fn cargo_output(args: &[&str]) -> Result<String, String> {
    let output = command(args).output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("`cargo {}`: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Cargo with these arguments, not started yet.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args);
    command
}
