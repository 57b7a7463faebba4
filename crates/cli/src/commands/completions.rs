//! `anabranch completions`: prints the script with which a shell completes this program's command line.

use clap::builder::PossibleValuesParser;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::commands::sim;
use crate::errors::Failure;
use crate::ui::out;

const EXAMPLES: &str = "\
Examples:
  anabranch completions bash > ~/.local/share/bash-completion/completions/anabranch
  anabranch completions zsh > ~/.zfunc/_anabranch
  anabranch completions fish > ~/.config/fish/completions/anabranch.fish";

/// Print the completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    out::print(&script(args.shell))
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_scenarios(Cli::command()), "anabranch", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Fish {
        // The generator leaves out values of arguments without a name.
        let names = sim::scenario_names().collect::<Vec<_>>().join(" ");
        script.push_str(&format!("{FISH} -a \"{names}\"\n"));
    }
    script
}

/// Completes what follows `sim run`, `sim sweep` and `sim compare`.
const FISH: &str = "complete -c anabranch -n \"__fish_seen_subcommand_from sim; and __fish_seen_subcommand_from run sweep compare\"";

/// The command line with the names of the built-in scenarios as values. The program itself also accepts files.
fn with_scenarios(command: Command) -> Command {
    let names = || PossibleValuesParser::new(sim::scenario_names());
    let named = |command: Command| command.mut_arg("scenario", |arg| arg.value_parser(names()));
    command.mut_subcommand("sim", |sim| {
        ["run", "sweep", "compare"].into_iter().fold(sim, |sim, name| sim.mut_subcommand(name, named))
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_knows_the_commands() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            assert!(script.contains("anabranch") && script.contains("completions"), "{shell}");
            // The others offer files in place of an argument's values.
            let has_scenarios = script.contains("two-links") && script.contains("fairness");
            assert!(has_scenarios || !matches!(shell, Shell::Bash | Shell::Zsh | Shell::Fish), "{shell}");
        }
    }
}
