//! `anabranch get`: fetches files and directories from a server.

use std::path::{Path, PathBuf};

use anabranch_node::Threads;
use anabranch_transfer::{Progress, ReceiveOptions, Summary, TransferError, Wanted};
use clap::Args;

use super::receive::{Arriving, confine, events, noting, report, target};
use super::server::{Connected, ServerArgs, remote};
use crate::capture::Capture;
use crate::carrier::Carrier;
use crate::context::{Context, OUTPUT};
use crate::courier::{Courier, Errand};
use crate::errors::Failure;
use crate::interrupt;
use crate::ui::out::Stream;
use crate::ui::paths::Direction;

const EXAMPLES: &str = "\
Examples:
  anabranch get TICKET pub/photos             a directory, into the current one
  anabranch get TICKET pub/a.iso pub/b.iso --to ~/iso
  anabranch get TICKET                        everything
  anabranch get TICKET pub/src.tar --to - | tar x";

/// Fetch files and directories from a server
///
/// The server is one that `anabranch serve` runs. Each PATH arrives under its last name. A file gets its name only when all
/// of it has arrived and was verified. A transfer that was cut off continues when the same command runs again.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GetArgs {
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Files and directories on the server [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Directory to write to; `-` for standard output
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = clap::ValueHint::DirPath)]
    pub to: PathBuf,
    #[command(flatten)]
    pub arriving: Arriving,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

impl GetArgs {
    /// Where events go with `--json`.
    pub fn events(&self) -> Option<Stream> {
        events(self.json, &self.to)
    }

    fn to_stdout(&self) -> bool {
        self.to.as_os_str() == "-"
    }
}

/// Fetches from a server.
pub fn run(args: &GetArgs, context: &Context) -> Result<(), Failure> {
    target(&args.to).check()?;
    let capture = args.server.reach.capture.start()?;
    let confined = confine::to(Some(&*args.to).filter(|_| !args.to_stdout()), args.server.writes()?)?;
    let runtime = Threads::start()?;
    let outcome = runtime.block_on(get(args, &capture, context));
    runtime.shutdown_background();
    drop(confined);
    outcome.and(capture.finish())
}

async fn get(args: &GetArgs, capture: &Capture, context: &Context) -> Result<(), Failure> {
    let (server, first) = args.server.server()?;
    let paths = first.into_iter().chain(args.paths.iter().map(PathBuf::as_path));
    let wanted = Wanted::paths(&paths.map(remote).collect::<Result<Vec<_>, _>>()?)?;
    let wanted = wanted.with_attributes(args.arriving.xattrs);
    let Connected { node, session, dial } = args.server.connect(capture, &server).await?;
    interrupt::survive_file_size_limit();
    let display = context.progress(args.json, args.events().unwrap_or(Stream::Stdout));
    let consent = noting(args.events(), context.quiet);
    let options = ReceiveOptions { consent, eager: true, ..args.arriving.options() };
    let errand = Getting { wanted, target: &args.to, options };
    let courier = Courier::new(&errand, args.server.reach.retry, (&node, &dial), display);
    let (summary, took) = courier.run(session.session().clone()).await?;
    report("received", &summary, took, (args.events(), context))
}

/// The errand of `get`.
pub(super) struct Getting<'a> {
    pub wanted: Wanted,
    /// The target directory, or `-`.
    pub target: &'a Path,
    pub options: ReceiveOptions,
}

impl Errand for Getting<'_> {
    const PEER: &'static str = "the server";
    const DIRECTION: Direction = Direction::In;

    async fn run(&self, carrier: &Carrier, counters: &Progress) -> Result<Summary, TransferError> {
        let target = target(self.target);
        anabranch_transfer::get(carrier, &self.wanted, target, &self.options, counters).await
    }

    fn to_stdout(&self) -> bool {
        self.target.as_os_str() == "-"
    }
}
