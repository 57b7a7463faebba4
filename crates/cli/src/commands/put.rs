//! `anabranch put`: sends files and directories to a server.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_node::Threads;
use anabranch_transfer::{Place, Progress, Share, Summary, TransferError};
use clap::Args;

use super::receive::{Taken, confine, report};
use super::send::Source;
use super::server::{Connected, ServerArgs};
use crate::capture::Capture;
use crate::carrier::Carrier;
use crate::context::{Context, OUTPUT};
use crate::courier::{Courier, Errand};
use crate::errors::{Failure, all_sent};
use crate::ui::human;
use crate::ui::out::{self, Stream};
use crate::ui::paths::Direction;

const EXAMPLES: &str = "\
Examples:
  anabranch put TICKET photos/ --to pub    into a folder of the server
  anabranch put TICKET film.mkv            into its only folder, or a drop box
  tar c src | anabranch put TICKET - --as src.tar";

/// Send files and directories to a server
///
/// The server is one that `anabranch serve` runs, and lets this machine write. A file gets its name there only when all of
/// it has arrived, was verified and is on disk. A transfer that was cut off continues when the same command runs again.
///
/// In a drop box the files go into a directory with the name of this machine's key.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PutArgs {
    /// The server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Files and directories to send; `-` for standard input
    #[arg(value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Directory on the server, made if missing [default: its only folder]
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    pub to: String,
    /// Name of the file that standard input becomes [default: stdin]
    #[arg(long = "as", value_name = "FILE")]
    pub file_name: Option<String>,
    /// Follow links: send what they lead to
    #[arg(short = 'L', long)]
    pub follow: bool,
    /// Copy extended attributes (`user.*`), too
    #[arg(long)]
    pub xattrs: bool,
    /// Keep hard links: names of one file stay names of one file
    #[arg(short = 'H', long)]
    pub hard_links: bool,
    /// The choice for names that are taken.
    #[command(flatten)]
    pub taken: Taken,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// Sends to a server.
pub fn run(args: &PutArgs, context: &Context) -> Result<(), Failure> {
    let (_, first) = args.server.words();
    let paths: Vec<PathBuf> =
        first.map(PathBuf::from).into_iter().chain(args.paths.iter().cloned()).collect();
    if paths.is_empty() {
        return Err(Failure::usage("nothing is named to be sent").hint("name files or directories, or `-`"));
    }
    let share = Source::of(&paths, args.file_name.as_deref())?.share()?;
    let share = if args.follow { share.following_links() } else { share };
    let share = if args.xattrs { share.with_attributes() } else { share };
    let share = if args.hard_links { share.with_links() } else { share };
    let capture = args.server.reach.capture.start()?;
    let confined = confine::to(None, args.server.writes()?)?;
    let runtime = Threads::start()?;
    let outcome = runtime.block_on(put(args, (&capture, share), context));
    // A thread may still wait for standard input.
    runtime.shutdown_background();
    drop(confined);
    outcome.and(capture.finish())
}

async fn put(args: &PutArgs, (capture, share): (&Capture, Share), context: &Context) -> Result<(), Failure> {
    let (server, _) = args.server.server()?;
    let place = Place::in_directory(&args.to, args.taken.conflict())?;
    let announces = (!args.json && !context.quiet).into();
    let errand = Putting { place, share, announces };
    let Connected { node, session, dial } = args.server.connect(capture, &server).await?;
    let display = context.progress(args.json, Stream::Stdout);
    let courier = Courier::new(&errand, args.server.reach.retry, (&node, &dial), display);
    let (summary, took) = courier.run(session.session().clone()).await?;
    let events = args.json.then_some(Stream::Stdout);
    report("sent", &summary, took, (events, context))?;
    all_sent(&summary)
}

/// The errand of `put`.
pub(super) struct Putting {
    pub place: Place,
    pub share: Share,
    /// Whether to say what is sent, which is done once for all sessions.
    pub announces: AtomicBool,
}

impl Errand for Putting {
    const PEER: &'static str = "the server";
    const DIRECTION: Direction = Direction::Out;

    async fn run(&self, carrier: &Carrier, counters: &Progress) -> Result<Summary, TransferError> {
        let sent = anabranch_transfer::put(carrier, &self.place, &self.share, counters);
        tokio::pin!(sent);
        tokio::select! {
            biased;
            totals = counters.totals() => if self.announces.swap(false, Ordering::Relaxed) {
                out::sentence(&format!("sending {}", described(totals)));
            },
            outcome = &mut sent => return outcome,
        }
        sent.await
    }

    fn is_spent(&self) -> bool {
        self.share.is_spent()
    }
}

/// Files and bytes; standard input, whose length is not known, has none.
fn described((files, bytes): (u64, u64)) -> String {
    let files = human::count(files, "file");
    if bytes == 0 { files } else { format!("{files}, {}", human::bytes(bytes)) }
}
