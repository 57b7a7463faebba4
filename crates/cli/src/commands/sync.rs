//! `anabranch sync`: makes a directory here or on a server a copy of the other one.

use std::path::{Path, PathBuf};

use anabranch_node::Threads;
use anabranch_transfer::{Mirror, Place, ReceiveOptions, Share, Wanted};
use clap::Args;

use super::get::Getting;
use super::put::Putting;
use super::receive::{confine, noting, report};
use super::server::{Connected, ServerArgs, remote};
use crate::capture::Capture;
use crate::context::{Context, OUTPUT};
use crate::courier::{Courier, Errand};
use crate::errors::{Failure, all_sent};
use crate::interrupt;
use crate::ui::out::Stream;

const EXAMPLES: &str = "\
Examples:
  anabranch sync TICKET pub/photos photos           fetch what is new or changed
  anabranch sync TICKET pub/photos photos --delete  also remove what the server does not have
  anabranch sync TICKET pub/photos photos --push    the other way: send what is new or changed";

/// Make a directory a copy of one on a server, or the reverse
///
/// The server is one that `anabranch serve` runs. Only files that are new or changed are transferred. A file of the same
/// length and time counts as unchanged. Nothing is removed without `--delete`, and then only when all else has arrived.
/// A file is replaced when all of the new one has arrived, was verified and is on disk.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SyncArgs {
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// The directory on the server, and the one here
    #[arg(value_names = ["REMOTE", "LOCAL"], num_args = 0..=2, value_hint = clap::ValueHint::DirPath)]
    pub directories: Vec<PathBuf>,
    /// Send: make the directory on the server a copy of the one here
    #[arg(long)]
    pub push: bool,
    /// Remove what the source does not have
    #[arg(long)]
    pub delete: bool,
    /// Compare the content of files that have the same length and time, too
    #[arg(long)]
    pub checksum: bool,
    /// Copy extended attributes (`user.*`), too
    #[arg(long)]
    pub xattrs: bool,
    /// Keep hard links: names of one file stay names of one file
    #[arg(short = 'H', long)]
    pub hard_links: bool,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

impl SyncArgs {
    /// The directory on the server, and the one here.
    fn directories(&self) -> Result<(&str, &Path), Failure> {
        let (_, first) = self.server.words();
        let all: Vec<&Path> =
            first.into_iter().chain(self.directories.iter().map(PathBuf::as_path)).collect();
        let [there, here] = all[..] else {
            return Err(Failure::usage("name two directories: the one on the server, and the one here"));
        };
        Ok((remote(there)?, here))
    }

    fn mirror(&self) -> Mirror {
        Mirror { delete: self.delete, by_content: self.checksum }
    }
}

/// Synchronises a directory.
pub fn run(args: &SyncArgs, context: &Context) -> Result<(), Failure> {
    let (_, here) = args.directories()?;
    if args.push && !here.is_dir() {
        return Err(Failure::local(format!("{} is no directory", here.display())));
    }
    let capture = args.server.reach.capture.start()?;
    let target = confine::to((!args.push).then_some(here), args.server.writes()?)?;
    let runtime = Threads::start()?;
    let outcome = runtime.block_on(sync(args, &capture, context));
    runtime.shutdown_background();
    drop(target);
    outcome.and(capture.finish())
}

async fn sync(args: &SyncArgs, capture: &Capture, context: &Context) -> Result<(), Failure> {
    let (there, here) = args.directories()?;
    let (server, _) = args.server.server()?;
    if args.push {
        let share = Share::from_paths(&[here.canonicalize().as_deref().unwrap_or(here)])?.contents_only();
        let share = if args.xattrs { share.with_attributes() } else { share };
        let share = if args.hard_links { share.with_links() } else { share };
        let errand = Putting { place: Place::mirror(there, args.mirror())?, share, announces: false.into() };
        let connected = args.server.connect(capture, &server).await?;
        return carry(args, &errand, connected, context).await;
    }
    let options = ReceiveOptions {
        mirror: Some(args.mirror()),
        allow_hidden: true,
        attributes: args.xattrs,
        hard_links: args.hard_links,
        consent: noting(args.json.then_some(Stream::Stdout), context.quiet),
        ..ReceiveOptions::default()
    };
    let wanted = Wanted::contents_of(there)?.with_attributes(args.xattrs);
    let errand = Getting { wanted, target: here, options };
    let connected = args.server.connect(capture, &server).await?;
    interrupt::survive_file_size_limit();
    carry(args, &errand, connected, context).await
}

async fn carry<E: Errand>(
    args: &SyncArgs,
    errand: &E,
    connected: Connected,
    context: &Context,
) -> Result<(), Failure> {
    let Connected { node, session, dial } = connected;
    let display = context.progress(args.json, Stream::Stdout);
    let courier = Courier::new(errand, args.server.reach.retry, (&node, &dial), display);
    let (summary, took) = courier.run(session.session().clone()).await?;
    let done = if args.push { "sent" } else { "received" };
    report(done, &summary, took, (args.json.then_some(Stream::Stdout), context))?;
    all_sent(&summary).map_err(|failure| match args.delete {
        true => {
            failure.hint("nothing else was removed on the server; make the files readable, or move them away")
        }
        false => failure,
    })
}
