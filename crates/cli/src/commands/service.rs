//! Shared code of commands that run as services: configuration file, signals, service manager, and control
//! socket.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_node::keyfile;
use anabranch_service::control::{self, Socket};
use anabranch_service::process::sandbox::{Restriction, Sandbox};
use anabranch_settings::SettingsError;
use anabranch_wire::Rate;
use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::answering::{Asked, who};
use crate::context::OUTPUT;
use crate::errors::Failure;
use crate::ui::out::{self, Stream};

/// Time between two answers from which rates are computed.
pub const BETWEEN: Duration = Duration::from_millis(500);

/// The signals that a service handles.
pub struct Signals {
    /// Read the configuration again.
    pub hang_up: Signal,
    /// Stop gracefully.
    pub terminate: Signal,
    /// Stop at once.
    pub interrupt: Signal,
}

impl Signals {
    /// Starts to catch the signals.
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

/// Warns about changed settings that need a restart; each name comes with whether it changed.
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

/// Restricts the process to changing the directories of these files; call it before the runtime is built.
pub fn confine<'a>(files: impl Iterator<Item = &'a PathBuf>) {
    enter(&Sandbox::writing(files.map(|file| directory_of(file))));
}

/// The directory that a file is in, or is to be in.
pub fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Restricts the process; call it before the runtime is built.
pub fn enter(sandbox: &Sandbox) {
    if sandbox.enter() != Restriction::Full {
        tracing::info!("this kernel cannot restrict which files the process may change (no Landlock)");
    }
}

/// Reads the configuration of a command.
pub fn read<S>(
    path: &Path,
    command: &str,
    parse: impl FnOnce(&str, &str) -> Result<S, SettingsError>,
) -> Result<S, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::file("read the configuration", path, &error)
            .hint(format!("`anabranch {command} --help` shows a small one; name yours with `--config FILE`"))
    })?;
    Ok(parse(&text, &path.display().to_string()).map_err(anabranch_node::Error::from)?)
}

/// A file named in a configuration; relative names start at the configuration's directory.
pub fn beside(config: &Path, file: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(file)
}

/// Notifies the service manager, if one started this process.
pub fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Answers at the configured Unix socket, if there is one.
pub fn answer_at(file: Option<&Path>, service: impl control::Answer) -> Result<Option<Socket>, Failure> {
    let opened = file.map(|file| Socket::open(file, service)).transpose();
    opened.map_err(|error| Failure::local(error.to_string()))
}

/// Where a running proxy or exit can be asked: in a directory of this user.
pub fn runtime_socket(kind: &str, port: u16) -> Result<PathBuf, Failure> {
    let name = format!("anabranch-{kind}-{port}.sock");
    if let Some(own) = std::env::var_os("XDG_RUNTIME_DIR").filter(|own| !own.is_empty()) {
        return Ok(PathBuf::from(own).join(name));
    }
    let user = rustix::process::getuid();
    if user.is_root() {
        return Ok(PathBuf::from("/run").join(name));
    }
    // The key's directory belongs to this user, too.
    let key = keyfile::default_path()?;
    let own = key.parent().map_or_else(std::env::temp_dir, std::path::Path::to_owned);
    Ok(own.join(name))
}

/// Prints the command for clients: `command` on standard output, and what goes with it for people.
pub fn print_for_clients(command: &str, advice: &str, is_chatty: bool) {
    if is_chatty {
        out::error("on clients, run\n\n");
    }
    // If standard output is closed, its reader needs no more.
    let _ = out::print(&format!("{command}\n"));
    if is_chatty {
        out::error(&format!("\n{advice}\n"));
    }
}

/// Answers every request with a status.
#[derive(Clone)]
pub struct StatusOf<F>(pub F);

impl<F: Fn() -> S + Clone + Send + Sync + 'static, S: Serialize> control::Answer for StatusOf<F> {
    async fn answer(&self, _line: &str) -> String {
        control::reply(&(self.0)())
    }
}

/// Asks the proxy or exit on this port for its status, and shows it. `option` names the port.
pub async fn show_status<T: DeserializeOwned + Serialize>(
    (kind, port, option): (&str, u16, &str),
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let socket = runtime_socket(kind, port)?;
    let status: T = control::ask(&socket, "status").await.map_err(|error| {
        Failure::local(format!("no {kind} answers at {}: {error}", socket.display()))
            .hint(format!("is `anabranch {kind}` running, with this `{option}` and as this user?"))
    })?;
    if json { Stream::Stdout.json(&status) } else { out::page(&text(&status)) }
}

/// How an answer is shown.
#[derive(Args, Debug)]
pub struct AnswerArgs {
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// The service to ask.
#[derive(Args, Debug)]
pub struct AskArgs {
    /// The service's Unix socket [default: control.sock in /run/anabranch/relay or /run/anabranch/controller]
    #[arg(long, value_name = "SOCKET", value_hint = clap::ValueHint::FilePath)]
    pub control: Option<PathBuf>,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

impl AskArgs {
    /// As [`Self::ask`], with rates for people.
    pub async fn ask_twice<T: DeserializeOwned + Serialize>(
        &self,
        (whom, request): (Asked, &str),
        text: impl FnOnce(&T, &Earlier<'_, T>) -> String,
    ) -> Result<(), Failure> {
        let socket = self.control.as_deref().unwrap_or(whom.usual());
        ask_twice((whom, socket, request), &self.answer, text).await
    }

    /// Asks a service at its default socket, or at the named one, and shows the answer.
    pub async fn ask<T: DeserializeOwned + Serialize>(
        &self,
        (whom, request): (Asked, &str),
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let socket = self.control.as_deref().unwrap_or(whom.usual());
        ask((whom, socket, request), &self.answer, text).await
    }
}

/// Asks the service behind a Unix socket, and shows the answer.
pub async fn ask<T: DeserializeOwned + Serialize>(
    (whom, socket, request): (Asked, &Path, &str),
    answer: &AnswerArgs,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    let reply: T = match control::ask(socket, request).await {
        Ok(reply) => reply,
        Err(error) => return Err(not_answered(whom, socket, &error).await),
    };
    if answer.json { Stream::Stdout.json(&reply) } else { out::page(&text(&reply)) }
}

/// An earlier answer, and how long ago that was: for rates.
pub struct Earlier<'a, T> {
    /// The answer.
    pub was: &'a T,
    /// How long ago, in seconds.
    pub ago: f64,
}

impl<T> Earlier<'_, T> {
    /// The rate at which a counter of bytes grows, for people.
    pub fn rate(&self, counter: impl Fn(&T) -> Option<u64>, now: u64) -> String {
        let grown = now.saturating_sub(counter(self.was).unwrap_or(now));
        Rate::from_bits((grown as f64 * 8.0 / self.ago.max(1e-3)) as u64).to_string()
    }
}

/// As [`ask`]. For people it asks twice, so that the text can have rates.
pub async fn ask_twice<T: DeserializeOwned + Serialize>(
    (whom, socket, request): (Asked, &Path, &str),
    answer: &AnswerArgs,
    text: impl FnOnce(&T, &Earlier<'_, T>) -> String,
) -> Result<(), Failure> {
    if answer.json {
        return ask((whom, socket, request), answer, |_: &T| String::new()).await;
    }
    let (first, began) = (control::ask(socket, request).await, Instant::now());
    let was: T = match first {
        Ok(was) => was,
        Err(error) => return Err(not_answered(whom, socket, &error).await),
    };
    tokio::time::sleep(BETWEEN).await;
    let ago = began.elapsed().as_secs_f64();
    ask((whom, socket, request), answer, |now: &T| text(now, &Earlier { was: &was, ago })).await
}

/// The failure without an answer; it recognises the socket of another kind of program.
async fn not_answered(whom: Asked, socket: &Path, error: &io::Error) -> Failure {
    let (at, has_refused) = (socket.display(), error.kind() == ErrorKind::InvalidInput);
    let found = match has_refused || error.kind() == ErrorKind::InvalidData {
        true => who(socket).await,
        false => None,
    };
    match found.filter(|found| *found != whom).map(Asked::name) {
        Some((found, command)) => {
            let wanted = whom.name().0;
            Failure::local(format!("{found} answers at {at}, and this is for {wanted}")).hint(format!(
                "`{command} --control {at}` asks the one that is there; `--control` names the socket of another"
            ))
        }
        None if has_refused => Failure::local(error.to_string()),
        None if error.kind() == ErrorKind::PermissionDenied => {
            Failure::local(format!("this user may not ask at {at}"))
                .hint("root may, and the user who runs the program there: try it with `sudo`")
        }
        None => Failure::local(format!("no one answers at {at}: {error}")).hint(
            "is it running, and was it given this file, with `--control` or as `control = \"…\"` in its configuration?",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Says(String);

    impl control::Answer for Says {
        async fn answer(&self, _: &str) -> String {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn a_service_that_is_asked_what_another_is_for_is_named_with_the_command_that_asks_it() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("a.sock");
        let status = r#"{"node": "ab1", "signs": "abs1", "addresses": [], "relays": []}"#;
        let _controller = Socket::open(&socket, Says(status.to_owned())).unwrap();
        let ask = |whom| {
            let answer = AnswerArgs { json: false };
            let socket = socket.clone();
            async move { ask((whom, &socket, "x"), &answer, |_: &Vec<u32>| String::new()).await.unwrap_err() }
        };
        let told = ask(Asked::Relay).await;
        assert!(told.message.starts_with("a controller answers at "), "{told:?}");
        assert!(told.message.ends_with("and this is for a relay"), "{told:?}");
        let command = format!("`anabranch controller status --control {}`", socket.display());
        assert!(told.hint.unwrap().starts_with(&command));
        assert!(ask(Asked::Controller).await.message.starts_with("no one answers"), "another version of it");
    }

    #[tokio::test]
    async fn a_user_who_may_not_ask_learns_who_may() {
        let socket = Path::new("/run/anabranch/relay/control.sock");
        let told = not_answered(Asked::Relay, socket, &ErrorKind::PermissionDenied.into()).await;
        assert!(told.message.contains("may not ask at /run") && told.hint.unwrap().contains("sudo"));
    }

    #[test]
    fn units_of_services_share_no_directory_and_have_their_sockets_where_they_are_asked() {
        let units = [
            (Asked::Relay, include_str!("../../../../packaging/anabranch-relay.service")),
            (Asked::Controller, include_str!("../../../../packaging/anabranch-controller.service")),
        ];
        let directories = units.map(|(whom, unit)| {
            let of = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            let (state, run) = (of("StateDirectory="), of("RuntimeDirectory="));
            let socket = whom.usual();
            assert_eq!(socket.parent(), Some(Path::new("/run").join(run).as_path()));
            assert!(unit.contains(&format!("#     control = \"{}\"", socket.display())), "{unit}");
            assert!(unit.contains(&format!("#     key = \"/var/lib/{state}/")), "{unit}");
            [state, run]
        });
        assert!(
            directories[0].iter().zip(directories[1]).all(|(one, other)| *one != other),
            "{directories:?}"
        );
    }

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
