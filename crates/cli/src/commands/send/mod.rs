//! `anabranch send`: offers files and prints their ticket.
//!
//! [`serve`] serves the receivers.

mod kept;
pub(crate) mod resources;
mod serve;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;

use anabranch_node::{Access, Invitation, Threads, TicketShare};
use anabranch_transfer::{Contents, Share};
use anabranch_wire::Span;
use clap::Args;
use zeroize::Zeroizing;

use crate::capture::{Capture, CaptureOptions};
use crate::commands::bench::Tuning;
use crate::context::{Context, OUTPUT};
use crate::control::ControlOption;
use crate::errors::{Failure, describe, printable};
use crate::qr::QrOption;
use crate::relays::{KEY_IF_KEPT, NodeOptions, RELAY_TO_HERE};
use crate::report::Event;
use crate::ui::human;
use crate::ui::out::{self, Stream};
use crate::values::HostPort;
use crate::{interrupt, values};
use kept::Kept;
use serve::{Offer, Server};

/// A receiver that is silent on every path for this long is dropped, unless it asks for less.
const PATIENCE: Span = Span::from_secs(60);

/// Most unreadable files that an error names.
const MOST_NAMED: usize = 10;

const EXAMPLES: &str = "\
Examples:
  anabranch send photos/                     offer a directory; prints a ticket
  anabranch send film.mkv --once             stop when one receiver has it all
  anabranch send a.iso b.iso --expires 2h    two files, for two hours
  anabranch send photos/ --port 4433 --address home.example.org:4433
                                             behind a router that forwards UDP port 4433 to this machine
  anabranch send photos/ --name family       the same ticket each time, for a day
  tar c src | anabranch send - --as src.tar";

/// Offer files or directories and print their ticket
///
/// Anyone with the ticket can fetch the offer until it expires or this command ends; transfers under way end then too.
/// Everything is encrypted, and every byte is verified at the other end.
///
/// A receiver that takes nothing for two minutes is dropped; it can continue with the same command.
///
/// Sockets, pipes, devices, links out of the offer and unfinished transfers are not sent. A file that cannot be sent,
/// because it may not be read or its name is not UTF-8, makes receivers end with exit code 6 after all others. Names,
/// contents, modes and times are sent, but not owners.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("key", |key| key.help(KEY_IF_KEPT)), mut_arg("relays", |relay| relay.help(RELAY_TO_HERE)))]
pub struct SendArgs {
    /// Files and directories to offer; `-` for standard input, for one receiver, once
    #[arg(required = true, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Keep the ticket and its port under this name for the next run of the same command, until the ticket expires or is
    /// revoked
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Name of the file that standard input becomes [default: stdin]
    #[arg(long = "as", value_name = "FILE")]
    pub file_name: Option<String>,
    /// Follow links: send what they lead to
    #[arg(short = 'L', long)]
    pub follow: bool,
    /// Send extended attributes (`user.*`) to receivers with `--xattrs`
    #[arg(long)]
    pub xattrs: bool,
    /// Life of the ticket, from when it was made [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = values::span)]
    pub expires: Option<Span>,
    /// Stop when one receiver has all files that can be read and written
    #[arg(long)]
    pub once: bool,
    /// Highest rate of everything sent, such as `20Mbit/s` [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = values::rate)]
    pub rate: Option<NonZeroU64>,
    /// Most memory for data that other ends have yet to take [default: 64MB, or a quarter of this command's limit]
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub memory: Option<u64>,
    /// UDP port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = 0, help_heading = "Network")]
    #[arg(value_parser = values::whole(0..=u16::MAX))]
    pub port: u16,
    /// Where others reach this machine from outside, named first in the ticket; may be repeated [default port: that of
    /// `--port`]
    #[arg(long = "address", value_name = "HOST:PORT", help_heading = "Network")]
    pub addresses: Vec<HostPort>,
    #[command(flatten)]
    pub tuning: Tuning,
    #[command(flatten)]
    pub node: NodeOptions,
    #[command(flatten)]
    pub running: ControlOption,
    #[command(flatten)]
    pub capture: CaptureOptions,
    #[command(flatten)]
    pub drawing: QrOption,
    /// JSON instead of text, a line for each event or result
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

/// The source of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Standard input, under this name.
    Stdin {
        /// The name that the receiver gives it.
        name: String,
    },
    /// Files and directories under their own names.
    Paths(Vec<PathBuf>),
}

impl Source {
    /// The source that these paths name. `name` is for standard input.
    pub fn of(paths: &[PathBuf], name: Option<&str>) -> Result<Self, Failure> {
        let stdin = paths.iter().any(|path| path.as_os_str() == "-");
        match name {
            _ if stdin && paths.len() > 1 => {
                Err(Failure::usage("standard input cannot be offered together with files")
                    .hint("send `-` alone; a file that is called so is `./-`"))
            }
            Some(_) if !stdin => Err(Failure::usage("`--as` names standard input, and no `-` is to be sent")),
            None if !stdin => Ok(Self::Paths(paths.to_owned())),
            Some(name) => check_name(name).map(|()| Self::Stdin { name: name.to_owned() }),
            None => Ok(Self::Stdin { name: "stdin".into() }),
        }
    }

    /// The share to offer.
    pub fn share(self) -> Result<Share, Failure> {
        Ok(match self {
            Self::Stdin { name } => Share::from_reader(&name, std::io::stdin())?,
            Self::Paths(paths) => {
                if let Some(link) = paths.iter().find(|path| path.is_symlink() && !path.exists()) {
                    let message =
                        format!("cannot share {}: what this link leads to is missing", link.display());
                    return Err(Failure::local(message).hint("in a directory that is sent, links stay links"));
                }
                Share::from_paths(&paths)?
            }
        })
    }
}

/// Accepts a name that is a single path component.
fn check_name(name: &str) -> Result<(), Failure> {
    let bad = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']);
    if bad { Err(Failure::usage(format!("`{name}` is not a file name"))) } else { Ok(()) }
}

impl SendArgs {
    /// Life of a new ticket.
    fn life(&self) -> Span {
        self.expires.unwrap_or(Span::from_secs(24 * 3_600))
    }
}

/// Offers the files until the ticket expires, one receiver was enough, or the user stops the command.
pub fn run(args: &SendArgs, context: &Context) -> Result<(), Failure> {
    args.drawing.check(args.json, false)?;
    let source = Source::of(&args.paths, args.file_name.as_deref())?;
    let share = source.clone().share()?;
    let share = if args.follow { share.following_links() } else { share };
    let share = if args.xattrs { share.with_attributes() } else { share }.with_links();
    let share = match args.rate {
        Some(rate) => share.at_most(rate),
        None => share,
    };
    let memory = args
        .memory
        .map_or_else(resources::memory_for_receivers, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let share = share.within_memory(memory);
    resources::allow_many_files();
    let contents = share.contents();
    check_offer(&contents)?;
    let kept = kept::open(args, &source)?;
    let runtime = Threads::start()?;
    let capture = args.capture.start()?;
    let outcome =
        runtime.block_on(offer(args, &capture, Offered { share, contents: &contents, kept }, context));
    // A thread may still wait for standard input, which is not needed any more.
    runtime.shutdown_background();
    outcome.and(capture.finish())
}

/// Refuses an offer without a single readable file, and one that no receiver accepts.
fn check_offer(contents: &Contents) -> Result<(), Failure> {
    if contents.too_many {
        return Err(Failure::local("what was named has more files and directories than receivers accept")
            .hint(
                "send it in parts or as one archive; with `-L`, links may lead to the same directories again",
            ));
    }
    if !contents.all_missed {
        return Ok(());
    }
    let each = contents.unreadable.iter().chain(&contents.left_out).take(MOST_NAMED);
    // After the semicolon comes advice for the receiver.
    let each = each.map(|what| what.split_once("; ").map_or(what.as_str(), |(what, _)| what));
    let failure = Failure::local("nothing of what was named can be sent");
    let failure = each.fold(failure, |failure, what| failure.detail(what));
    let may_not = failure.details.iter().any(|what| what.contains("may not read"));
    Err(failure.hint(if may_not {
        "look at owner and mode with `ls -l`; make it readable for this user, or name something else"
    } else {
        "name something else, or an archive of it"
    }))
}

/// An offer, and its ticket if that is kept.
struct Offered<'a> {
    share: Share,
    contents: &'a Contents,
    kept: Option<Kept>,
}

async fn offer(
    args: &SendArgs,
    capture: &Capture,
    offered: Offered<'_>,
    context: &Context,
) -> Result<(), Failure> {
    let Offered { share, contents, mut kept } = offered;
    let mut node = args.node.node();
    let mut port = args.port;
    let ticket = match &kept {
        None => TicketShare::new(Some(args.life()))?,
        Some(kept) => {
            node = node.key(args.node.load_key()?);
            port = if port == 0 { kept.port().unwrap_or(0) } else { port };
            kept.share().clone()
        }
    };
    let node = node.port(port).path_rules(args.node.paths_wanted.rules()?);
    let mut session = args.tuning.config();
    // Receivers send only requests. Unread ones do not count against `--memory`.
    (session.memory.initial_window, session.memory.max_window) = (64 << 10, 128 << 10);
    let node = node.session(session).silence(PATIENCE);
    let access = Access::by_ticket(ticket.clone());
    let node = node.access(access.clone()).control(args.running.control.clone());
    let node = node.tap(capture.tap()).start().await?;
    let port = node.addresses().first().map_or(0, SocketAddr::port);
    let mut invitation = node.invite(&ticket, &outside(&args.addresses, port).await?).await?;
    if let Some(kept) = &mut kept {
        let key = invitation.ticket.node.to_string();
        invitation.left_out.extend(kept.warnings(args, port, &key));
        kept.keep(port, &key)?;
    }
    let lasts_s =
        if kept.is_some() { ticket.time_left().0.as_secs_f64().ceil() } else { args.life().as_secs_f64() };
    // From here on Ctrl-C ends the command with a farewell to the receivers.
    let stop = interrupt::requested();
    announce(args, &invitation, (contents, context), lasts_s)?;
    let events = args.json.then_some(Stream::Stdout);
    let display = context.progress(args.json, Stream::Stdout);
    let most = resources::most_receivers();
    let offer = Offer { share, ticket, access, kept, most, once: args.once, events };
    let outcome = Server::new(&node, offer, display).run(stop).await;
    node.close().await;
    outcome
}

/// The user's addresses for the ticket; those without a port get `port`.
pub(crate) async fn outside(named: &[HostPort], port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let mut all = Vec::new();
    for place in named {
        let found = tokio::net::lookup_host((place.host.as_str(), place.port.unwrap_or(port))).await;
        let found = found.map_err(|error| {
            Failure::local(format!("cannot find the address of {place}: {}", describe(&error)))
                .hint("check the name, or give `--address` an address in figures")
        })?;
        all.extend(found);
    }
    Ok(all)
}

/// Warnings to show before the ticket.
fn warnings(contents: &Contents, of_ticket: &[String]) -> Vec<String> {
    let unreadable = contents.unreadable.iter().map(|file| format!("this file cannot be sent: {file}"));
    let names = (contents.hard_links > 0).then(|| {
        let names = human::count(contents.hard_links, "hard link");
        format!("the offer has {names}: copied as files of their own, unless the receiver has `--hard-links`")
    });
    let attributes = contents.attributes.iter().map(|note| format!("{note}; `--xattrs` sends them"));
    let items = contents.left_out.iter().cloned().chain(names).chain(attributes);
    items.chain(unreadable).chain(of_ticket.iter().cloned()).collect()
}

/// Prints the ticket and how to use it.
fn announce(
    args: &SendArgs,
    invitation: &Invitation,
    (contents, context): (&Contents, &Context),
    lasts_s: f64,
) -> Result<(), Failure> {
    let Invitation { ticket, left_out, .. } = invitation;
    let text = ticket.to_text();
    if args.json {
        Stream::Stdout.json(&Event::Ticket { ticket: &text, expires_s: lasts_s })?;
        let warnings = warnings(contents, left_out);
        return warnings.iter().try_for_each(|message| Stream::Stdout.json(&Event::Note { message }));
    }
    let is_terminal = std::io::stdout().is_terminal();
    if !context.quiet {
        for warning in warnings(contents, left_out) {
            out::sentence(&format!("{} {}", context.paint.yellow("warning:"), printable(&warning)));
        }
        let what = if is_terminal { "" } else { " `anabranch receive` with this ticket" };
        out::sentence(&format!("offering {}; on the other machine run{what}\n", described(contents)));
    }
    out::print(&line_to_paste(&text, is_terminal && !context.quiet))?;
    args.drawing.show(&text, context);
    if !context.quiet {
        let lasts = human::seconds(lasts_s);
        out::sentence(&format!(
            "\nit is good for {lasts}; keep it as you would a password; Ctrl-C ends the offer"
        ));
    }
    Ok(())
}

/// The whole command for a person; the ticket alone for a program.
fn line_to_paste(ticket: &str, is_terminal: bool) -> Zeroizing<String> {
    Zeroizing::new(if is_terminal { format!("anabranch receive {ticket}\n") } else { format!("{ticket}\n") })
}

fn described(contents: &Contents) -> String {
    let files = human::count(contents.files, "file");
    contents
        .bytes
        .map_or_else(|| "standard input".into(), |bytes| format!("{files}, {}", human::bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::test::parse;

    #[test]
    fn a_terminal_shows_the_whole_command_to_paste() {
        assert_eq!(*line_to_paste("anabranch1x", true), "anabranch receive anabranch1x\n");
        assert_eq!(*line_to_paste("anabranch1x", false), "anabranch1x\n");
    }

    fn source(args: &SendArgs) -> Result<Source, Failure> {
        Source::of(&args.paths, args.file_name.as_deref())
    }

    #[test]
    fn files_are_offered_under_their_own_names() {
        let args: SendArgs = parse(&["photos/"]).unwrap();
        assert_eq!(source(&args), Ok(Source::Paths(vec!["photos/".into()])));
        assert_eq!(args.life(), Span::from_secs(86_400));
        let args: SendArgs = parse(&["a", "b", "--expires", "10m", "--once"]).unwrap();
        assert_eq!(source(&args), Ok(Source::Paths(vec!["a".into(), "b".into()])));
        assert!(args.once);
        assert_eq!(source(&parse(&["a", "--name", "b"]).unwrap()), Ok(Source::Paths(vec!["a".into()])));
        assert!(source(&parse(&["a", "--as", "b"]).unwrap()).is_err(), "it would be ignored");
    }

    #[test]
    fn standard_input_stands_alone_and_may_be_named() {
        let args: SendArgs = parse(&["-", "--as", "src.tar"]).unwrap();
        assert_eq!(source(&args), Ok(Source::Stdin { name: "src.tar".into() }));
        assert_eq!(source(&parse(&["-"]).unwrap()), Ok(Source::Stdin { name: "stdin".into() }));
        assert!(source(&parse(&["-", "a"]).unwrap()).is_err());
        let kept: SendArgs = parse(&["-", "--name", "x"]).unwrap();
        let failure = kept::open(&kept, &source(&kept).unwrap()).err().unwrap();
        assert!(failure.message.contains("cannot keep its ticket"), "{failure}");
    }

    #[test]
    fn a_path_that_is_not_there_is_named_in_the_error() {
        let source = Source::Paths(vec!["no-such-file".into()]);
        let failure = source.share().expect_err("there is no such file");
        assert!(failure.message.contains("no-such-file"), "{failure}");
    }

    #[test]
    fn a_named_link_that_leads_nowhere_is_called_so() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("gone", &link).unwrap();
        let failure = Source::Paths(vec![link]).share().err().unwrap();
        assert!(failure.message.ends_with("link: what this link leads to is missing"), "{failure}");
    }

    #[test]
    fn a_name_has_no_directories_in_it() {
        for name in ["", "..", "a/b", "/etc/passwd"] {
            assert!(source(&parse(&["-", "--as", name]).unwrap()).is_err(), "{name}");
        }
    }

    #[test]
    fn any_free_port_is_taken_unless_one_is_named_and_nothing_to_send_is_refused() {
        assert!(parse::<SendArgs>(&[]).is_err());
        assert_eq!(parse::<SendArgs>(&["a"]).unwrap().port, 0);
        assert_eq!(parse::<SendArgs>(&["a", "--port", "0"]).unwrap().port, 0);
        assert_eq!(parse::<SendArgs>(&["a", "--port", "4433"]).unwrap().port, 4433);
    }

    #[tokio::test]
    async fn an_address_without_a_port_gets_the_one_that_is_listened_on() {
        let args: SendArgs =
            parse(&["a", "--address", "203.0.113.9", "--address", "[2001:db8::9]:4433"]).unwrap();
        let found = outside(&args.addresses, 9).await.unwrap();
        let expected = ["203.0.113.9:9", "[2001:db8::9]:4433"];
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected);
        assert!(parse::<SendArgs>(&["a", "--address", "a:b"]).is_err());
    }
}
