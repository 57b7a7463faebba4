//! The command line: the options of every command, and the list of commands.

use clap::builder::styling::{AnsiColor, Effects, Styles};
use clap::{ArgMatches, Parser, Subcommand};

use crate::commands::{
    bench, capture, completions, controller, demo, exit, fetch, get, keys, ls, man, path, proxy, put,
    receive, relay, send, serve, sim, status, sync, ticket, trace, tunnel,
};
use crate::context::Global;
use crate::errors::EXIT_CODES;
use crate::ui::out::Stream;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .usage(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .literal(AnsiColor::Cyan.on_default().effects(Effects::BOLD))
    .placeholder(AnsiColor::Cyan.on_default());

/// Moves data over every path two machines have between them
///
/// Anabranch uses all of a machine's networks at once: wired, wireless, mobile. A transfer runs at the sum of
/// their rates and goes on when one of them falls silent.
#[derive(Debug, Parser)]
#[command(name = "anabranch", version, styles = STYLES)]
#[command(arg_required_else_help = true, after_long_help = EXIT_CODES)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

// A command's help text stands on its arguments; a comment on a variant would replace it.
/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    Send(send::SendArgs),
    Receive(receive::ReceiveArgs),
    Serve(serve::ServeArgs),
    Ls(ls::LsArgs),
    Get(get::GetArgs),
    Put(put::PutArgs),
    Sync(sync::SyncArgs),
    Ticket(ticket::TicketArgs),
    Demo(demo::DemoArgs),
    Relay(relay::RelayArgs),
    Controller(controller::ControllerArgs),
    Tunnel(tunnel::TunnelArgs),
    Proxy(proxy::ProxyArgs),
    Exit(exit::ExitArgs),
    Fetch(fetch::FetchArgs),
    Bench(bench::BenchArgs),
    Status(status::StatusArgs),
    Path(path::PathArgs),
    Trace(trace::TraceArgs),
    Sim(sim::SimArgs),
    Capture(capture::CaptureArgs),
    Keys(keys::KeysArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

impl Command {
    /// How many simulated networks the command may run at the same time.
    pub fn simulations(&self) -> usize {
        if let Self::Sim(args) = self { args.at_once() } else { 0 }
    }

    /// The ticket on the command line, for commands that can also read it from the environment.
    pub fn ticket_word(&self) -> Option<&str> {
        match self {
            Self::Receive(args) => args.ticket_word(),
            Self::Ls(args) => args.server.ticket_word(),
            Self::Get(args) => args.server.ticket_word(),
            Self::Put(args) => args.server.ticket_word(),
            Self::Sync(args) => args.server.ticket_word(),
            Self::Proxy(args) => args.ticket_word(),
            _ => None,
        }
    }

    /// Where this command writes its events and its error as JSON; `None` without `--json` among its `words`.
    pub fn events(&self, words: &ArgMatches) -> Option<Stream> {
        match self {
            Self::Receive(args) => args.events(),
            Self::Get(args) => args.events(),
            // Their standard output is for results only; those of `sim` name every violated bound.
            Self::Sim(_) | Self::Capture(_) => None,
            _ => has_json(words).then_some(Stream::Stdout),
        }
    }
}

/// Whether the innermost subcommand was given `--json`.
fn has_json(words: &ArgMatches) -> bool {
    match words.subcommand() {
        Some((_, words)) => has_json(words),
        None => matches!(words.try_get_one("json"), Ok(Some(true))),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::ui::paint::When;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_may_follow_the_command() {
        let cli = Cli::try_parse_from(["anabranch", "keys", "show", "-vv", "--color", "never"]).unwrap();
        assert_eq!((cli.global.verbose, cli.global.color), (2, When::Never));
    }

    #[test]
    fn events_are_for_the_subcommand_that_was_asked_for_json() {
        let events = |words: &[&str]| {
            let words = Cli::command().get_matches_from([&["anabranch"], words].concat());
            Cli::from_arg_matches(&words).unwrap().command.events(&words)
        };
        let (out, key) =
            (Some(Stream::Stdout), anabranch_net::NodeKey::from_random([3; 32]).public().to_string());
        assert_eq!(events(&["keys", "show", "--json"]), out);
        assert_eq!(events(&["relay", "drain", "--json"]), out);
        assert_eq!(events(&["controller", "revoke", &key, "--json"]), out);
        assert_eq!(events(&["exit", "--json"]), out);
        assert_eq!(events(&["exit", "status", "--json"]), out);
        assert_eq!(events(&["path", "remove", "4", "--control", "s", "--json"]), out);
        assert_eq!(events(&["exit", "status"]), None);
        assert_eq!(events(&["relay"]), None);
        assert_eq!(events(&["man", "somewhere"]), None);
        assert_eq!(events(&["sim", "run", "grid", "--json"]), None);
        assert_eq!(events(&["receive", "anabranch1x", "-", "--json"]), Some(Stream::Stderr));
    }

    #[test]
    fn quiet_and_verbose_contradict_each_other() {
        assert!(Cli::try_parse_from(["anabranch", "keys", "show", "-v", "-q"]).is_err());
    }

    #[test]
    fn the_exit_codes_are_in_the_help() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("130  interrupted"), "{help}");
    }
}
