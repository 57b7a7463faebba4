//! What commands that run as services have in common: a configuration file, signals, a service manager, and a Unix socket
//! by which a running one is asked.

use std::path::{Path, PathBuf};

use anabranch_daemon::control;
use anabranch_settings::SettingsError;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::args::OUTPUT;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// The signals that a service minds.
pub struct Signals {
    /// Read the configuration again.
    pub hang_up: Signal,
    /// End in good order.
    pub terminate: Signal,
    /// End at once.
    pub interrupt: Signal,
}

impl Signals {
    /// From now on they are caught.
    ///
    /// # Errors
    /// When the system has no more room for that.
    pub fn new() -> Result<Self, Failure> {
        let catch =
            |kind| signal(kind).map_err(|error| Failure::local(format!("cannot wait for signals: {error}")));
        Ok(Self {
            hang_up: catch(SignalKind::hangup())?,
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
        })
    }
}

/// Says which settings have changed that a running service does not take over; each is named with whether it has.
pub fn warn_of_restart(changes: &[(&str, bool)]) {
    if let Some(why) = restart_needed(changes) {
        tracing::warn!("{why}");
    }
}

fn restart_needed(changes: &[(&str, bool)]) -> Option<String> {
    let names: Vec<String> =
        changes.iter().filter(|(_, changed)| *changed).map(|(name, _)| format!("`{name}`")).collect();
    let names = match &names[..] {
        [] => return None,
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    };
    Some(format!("the new value of {names} counts after a restart only"))
}

/// Reads the configuration of a command.
///
/// # Errors
/// When it cannot be read, or has a mistake: the first one, with its line.
pub fn read<S>(
    path: &Path,
    command: &str,
    parse: impl FnOnce(&str, &str) -> Result<S, SettingsError>,
) -> Result<S, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::file("read the configuration", path, &error)
            .hint(format!("`anabranch {command} --help` shows a small one; name yours with `--config FILE`"))
    })?;
    parse(&text, &path.display().to_string()).map_err(|mut error| {
        let hint = std::mem::take(&mut error.hint);
        let failure = Failure::local(error.to_string());
        if hint.is_empty() { failure } else { failure.hint(hint) }
    })
}

/// A file that a configuration names: beside it, unless it says otherwise.
#[must_use]
pub fn beside(config: &Path, file: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(file)
}

/// Tells a service manager, if one started this.
pub fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

/// The Unix socket of a running service, if its configuration names one; its file goes with it.
pub struct Socket {
    _task: JoinSet<()>,
    file: Option<PathBuf>,
}

impl Socket {
    /// Answers at `file`, if there is to be such a socket.
    ///
    /// # Errors
    /// When another program listens there, or the file cannot be made.
    pub fn open(file: Option<&Path>, service: impl control::Answer) -> Result<Self, Failure> {
        let mut task = JoinSet::new();
        if let Some(file) = file {
            let listener = control::listen(file).map_err(|error| Failure::local(error.to_string()))?;
            task.spawn(control::serve(listener, service));
        }
        Ok(Self { _task: task, file: file.map(Path::to_owned) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // Somebody may have removed it already.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// How the answer of a running service is shown.
#[derive(Args, Debug)]
pub struct AnswerArgs {
    /// The answer as JSON instead of text
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// How a running service is asked.
#[derive(Args, Debug)]
pub struct AskArgs {
    /// The Unix socket, as the service's configuration says [default: relay.sock or controller.sock in /run/anabranch]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub control: Option<PathBuf>,
    /// How the answer is shown.
    #[command(flatten)]
    pub answer: AnswerArgs,
}

impl AskArgs {
    /// Asks the service, at `usual` unless another socket was named, and shows what it says.
    ///
    /// # Errors
    /// As of [`ask`].
    pub async fn ask<T: DeserializeOwned + Serialize>(
        &self,
        (usual, request): (&str, &str),
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let socket = self.control.as_deref().unwrap_or(Path::new(usual));
        ask((socket, request), &self.answer, text).await
    }
}

/// Asks the service behind a Unix socket, and shows what it says.
///
/// # Errors
/// When none answers there, or it says why it does not do what it is asked.
pub async fn ask<T: DeserializeOwned + Serialize>(
    (socket, request): (&Path, &str),
    answer: &AnswerArgs,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let reply: T = control::ask(socket, request).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::local(error.to_string()),
        _ => Failure::local(format!("nobody answers at {}: {error}", socket.display())).hint(
            "is it running, and was it given this file, with `--control` or as `control = \"…\"` in its configuration?",
        ),
    })?;
    if answer.json { Stream::Stdout.json(&reply) } else { out::print(&text(&reply)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_configuration_names_are_beside_it() {
        assert_eq!(beside(Path::new("/etc/a/r.toml"), Path::new("r.key")), Path::new("/etc/a/r.key"));
        assert_eq!(beside(Path::new("/etc/a/r.toml"), Path::new("/k")), Path::new("/k"));
        assert_eq!(beside(Path::new("r.toml"), Path::new("r.key")), Path::new("r.key"));
    }

    #[test]
    fn of_settings_that_need_a_restart_those_are_named_that_have_changed() {
        assert_eq!(restart_needed(&[("port", false), ("key", false)]), None);
        let one = restart_needed(&[("port", true), ("key", false)]).unwrap();
        assert_eq!(one, "the new value of `port` counts after a restart only");
        let three = restart_needed(&[("port", true), ("key", true), ("usage", true)]).unwrap();
        assert!(three.contains("of `port`, `key` and `usage` counts"), "{three}");
    }
}
