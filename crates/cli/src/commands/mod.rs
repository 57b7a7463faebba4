//! One module for each command: its arguments with their help, and the code that runs it.

mod answering;
pub mod bench;
pub mod capture;
pub mod completions;
pub mod controller;
pub mod demo;
pub mod exit;
pub mod fetch;
pub mod get;
pub mod keys;
pub mod ls;
pub mod man;
pub mod path;
pub mod proxy;
pub mod put;
pub mod receive;
pub mod relay;
pub mod send;
pub mod serve;
mod server;
pub mod service;
pub mod sim;
mod standing_ticket;
pub mod status;
pub mod sync;
pub mod ticket;
pub mod trace;
pub mod tunnel;

use crate::args::Command;
use crate::context::Context;
use crate::errors::Failure;

/// Runs a command.
pub fn run(command: Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Send(args) => send::run(&args, context),
        Command::Receive(args) => receive::run(&args, context),
        Command::Serve(args) => serve::run(&args, context),
        Command::Ls(args) => ls::run(&args, context),
        Command::Get(args) => get::run(&args, context),
        Command::Put(args) => put::run(&args, context),
        Command::Sync(args) => sync::run(&args, context),
        Command::Ticket(args) => ticket::run(&args, context),
        Command::Demo(args) => demo::run(&args, context),
        Command::Relay(args) => relay::run(&args, context),
        Command::Controller(args) => controller::run(&args, context),
        Command::Proxy(args) => proxy::run(&args, context),
        Command::Exit(args) => exit::run(&args, context),
        Command::Fetch(args) => fetch::run(&args, context),
        Command::Tunnel(args) => tunnel::run(&args, context),
        Command::Bench(args) => bench::run(&args, context),
        Command::Status(args) => status::run(&args),
        Command::Path(args) => path::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Sim(args) => sim::run(&args, context),
        Command::Capture(args) => capture::run(&args),
        Command::Keys(args) => keys::run(&args, context),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

#[cfg(test)]
mod test {
    use clap::{Args, Command, FromArgMatches};

    /// Reads the arguments of one command, without its name.
    pub fn parse<A: Args + FromArgMatches>(words: &[&str]) -> Result<A, clap::Error> {
        let command = A::augment_args(Command::new("command").no_binary_name(true));
        A::from_arg_matches(&command.try_get_matches_from(words)?)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    fn defined() -> Vec<Command> {
        fn of<A: Args>(name: &'static str) -> Command {
            A::augment_args(Command::new(name))
        }
        vec![
            of::<super::send::SendArgs>("send"),
            of::<super::receive::ReceiveArgs>("receive"),
            of::<super::serve::ServeArgs>("serve"),
            of::<super::ls::LsArgs>("ls"),
            of::<super::get::GetArgs>("get"),
            of::<super::put::PutArgs>("put"),
            of::<super::sync::SyncArgs>("sync"),
            of::<super::ticket::TicketArgs>("ticket"),
            of::<super::demo::DemoArgs>("demo"),
            of::<super::relay::RelayArgs>("relay"),
            of::<super::controller::ControllerArgs>("controller"),
            of::<super::tunnel::TunnelArgs>("tunnel"),
            of::<super::proxy::ProxyArgs>("proxy"),
            of::<super::exit::ExitArgs>("exit"),
            of::<super::fetch::FetchArgs>("fetch"),
            of::<super::bench::BenchArgs>("bench"),
            of::<super::status::StatusArgs>("status"),
            of::<super::path::PathArgs>("path"),
            of::<super::trace::TraceArgs>("trace"),
            of::<super::sim::SimArgs>("sim"),
            of::<super::capture::CaptureArgs>("capture"),
            of::<super::keys::KeysArgs>("keys"),
            of::<super::completions::CompletionsArgs>("completions"),
            of::<super::man::ManArgs>("man"),
        ]
    }

    fn each(command: &Command, check: &dyn Fn(&Command)) {
        check(command);
        command.get_subcommands().for_each(|sub| each(sub, check));
    }

    #[test]
    fn every_command_is_sound_says_what_it_is_for_and_shows_examples() {
        for command in defined() {
            command.clone().debug_assert();
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let call = format!("anabranch {}", command.get_name());
            assert!(examples.contains(&call), "{}: no examples", command.get_name());
            each(&command, &|command| {
                let about = command.get_about().map(ToString::to_string).unwrap_or_default();
                assert!(!about.is_empty() && !about.ends_with('.'), "{}: {about:?}", command.get_name());
            });
        }
    }

    /// Parser messages that do not name the allowed values.
    const BARE: [&str; 5] = ["invalid digit", "invalid float", "empty string", "number too large", "not in"];

    #[test]
    fn a_value_that_is_none_is_told_with_what_would_be() {
        for command in defined() {
            each(&command, &|command| {
                let options = command.get_arguments().filter(|arg| arg.get_action().takes_values());
                for (long, value) in options
                    .filter_map(|arg| arg.get_long())
                    .flat_map(|long| ["", "a", "1.5", "-1"].map(move |value| (long, value)))
                {
                    let words = [command.get_name().to_owned(), format!("--{long}={value}")];
                    let Err(error) = command.clone().try_get_matches_from(words) else { continue };
                    let told = error.to_string();
                    assert!(!BARE.iter().any(|bare| told.contains(bare)), "{told}");
                }
            });
        }
    }

    #[test]
    fn every_option_has_help_and_a_value_name_of_its_own() {
        for command in defined() {
            each(&command, &|command| {
                for arg in command.get_arguments() {
                    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                    assert!(
                        !help.is_empty() && !help.ends_with('.'),
                        "{} {}",
                        command.get_name(),
                        arg.get_id()
                    );
                }
            });
        }
    }
}
