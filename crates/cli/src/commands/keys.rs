//! `anabranch keys`: makes and shows this node's key.

use std::path::PathBuf;

use anabranch_secure::NodeKey;
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::context::{Context, OUTPUT};
use crate::errors::Failure;
use crate::ui::out::{self, Stream};
use anabranch_node::keyfile;

const EXAMPLES: &str = "\
Examples:
  anabranch keys new                  make this node's key
  anabranch keys show                 print its public key
  anabranch keys new --key work.key   another one, in a file of your choice";

/// Make and show this node's key
///
/// A node is known by its public key. Only the owner may read the secret key's file.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct KeysArgs {
    #[command(subcommand)]
    pub action: KeysCommand,
}

/// The actions on keys.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a key and print its public part; a key that exists is never overwritten
    New(KeyArgs),
    /// Print the public key
    Show(KeyArgs),
}

/// Options of both.
#[derive(Args, Debug)]
pub struct KeyArgs {
    #[command(flatten)]
    pub key: KeyOption,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// The option that names the key file, for every command that needs the node's key.
#[derive(Args, Clone, Debug, Default)]
pub struct KeyOption {
    /// Key file [default: ~/.config/anabranch/key]
    #[arg(long = "key", value_name = "FILE", env = "ANABRANCH_KEY", hide_env_values = true)]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub file: Option<PathBuf>,
}

impl KeyOption {
    /// The named file, or the default one.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        Ok(self.file.clone().map_or_else(keyfile::default_path, Ok)?)
    }
}

impl KeysArgs {
    /// True with `--json`.
    pub fn json(&self) -> bool {
        let (KeysCommand::New(args) | KeysCommand::Show(args)) = &self.action;
        args.json
    }
}

#[derive(Serialize)]
struct Shown {
    public_key: String,
    file: PathBuf,
}

/// Makes or shows the key.
pub fn run(args: &KeysArgs, context: &Context) -> Result<(), Failure> {
    let path = match &args.action {
        KeysCommand::New(args) | KeysCommand::Show(args) => args.key.path()?,
    };
    let key: NodeKey = match &args.action {
        KeysCommand::New(_) => keyfile::create(&path)?,
        KeysCommand::Show(_) => keyfile::load(&path)?,
    };
    let public = key.public();
    if args.json() {
        return Stream::Stdout.json(&Shown { public_key: public.to_string(), file: path });
    }
    if matches!(args.action, KeysCommand::New(_)) && !context.quiet {
        out::sentence(&format!("made {}; this node's public key is", path.display()));
    }
    out::print(&format!("{public}\n"))
}
