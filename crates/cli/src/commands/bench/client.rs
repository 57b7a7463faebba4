//! The client of a test: asks the server for it and shows the result.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anabranch_net::{Addresses, Endpoint, Session};
use anabranch_node::{Dial, NodeSession, Threads};

use super::protocol::{Control, Message, Order, PATIENCE, Sample, VERSION};
use super::recorder::Recorder;
use super::traffic::{Receiver, Sender, moved};
use super::watch::PathWatch;
use super::{ClientArgs, text};
use crate::capture::Capture;
use crate::carrier::{CAP_PATIENCE, Carrier};
use crate::context::Context;
use crate::errors::{Failure, Kind};
use crate::interrupt;
use crate::report::{BenchReport, BenchStart, WithoutPath};
use crate::ui::out::{self, Stream};
use crate::ui::width::columns_of_stdout;
use crate::values::{LocalEnd, PathPin};

/// How long the server may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);
/// Code with which a session closes when the user stops the command.
const INTERRUPTED: u64 = 1;

/// Runs one test.
pub fn run(args: &ClientArgs, context: &Context) -> Result<(), Failure> {
    let capture = args.capture.start()?;
    Threads::start()?.block_on(measure(args, &capture, context)).and(capture.finish())
}

async fn measure(args: &ClientArgs, capture: &Capture, context: &Context) -> Result<(), Failure> {
    let node = args.node.node().addresses(local_addresses(&args.pins));
    let node = node.path_rules(args.node.paths_wanted.rules()?);
    let node = node.session(args.tuning.config()).control(args.running.control.clone()).tap(capture.tap());
    let node = node.start().await?;
    let dial = dial(args, node.endpoint())?;
    let paths = tokio::select! {
        biased;
        () = interrupt::requested() => return Err(interrupted()),
        session = node.dial(&dial) => session?,
    };
    let session = paths.session().clone();
    let carrier = Carrier::new(session.clone());
    let (watch, recorder) = (PathWatch::start(&session), Recorder::new(!args.reverse));
    let mut view = View { args, verbose: context.verbose > 0, watch, recorder };
    let outcome = tokio::select! {
        biased;
        () = interrupt::requested() => {
            session.abort(INTERRUPTED, "interrupted by its user");
            Err(interrupted())
        }
        outcome = test(&session, args, &mut view) => outcome,
        used_up = carrier.caps_used_up(|| moved(&session), CAP_PATIENCE) => {
            carrier.end_for_caps(&used_up);
            Err(used_up)
        }
    };
    // A test whose time ends while it waits for a path has measured the cap.
    let outcome = outcome.and_then(|()| carrier.used_up_caps().map_or(Ok(()), Err));
    let without_path = without_path(&paths);
    if tokio::time::timeout(GOODBYE, session.close()).await.is_err() {
        session.abort(0, "the test is over");
    }
    match outcome {
        Err(failure) if view.is_empty() => Err(failure),
        // Measurements before an interruption or a loss are printed as well.
        outcome => view.finish(without_path).and(outcome),
    }
}

/// The relays that gave no path, each with the reason.
fn without_path(paths: &NodeSession) -> Vec<WithoutPath> {
    paths.without_path().into_iter().map(|(relay, why)| WithoutPath { relay, why }).collect()
}

async fn test(session: &Session, args: &ClientArgs, view: &mut View<'_>) -> Result<(), Failure> {
    let (time_us, interval_us) = (args.time.as_micros(), args.interval.as_micros());
    let order =
        Order { version: VERSION, reverse: args.reverse, streams: args.streams, time_us, interval_us };
    let mut control = Control::open(session).await.map_err(lost)?;
    control.send(&Message::Start(order)).await.map_err(lost)?;
    match control.recv(PATIENCE).await {
        Ok(Message::Ready) => {}
        Ok(other) => return Err(unexpected(&other)),
        Err(error) if error.kind() == ErrorKind::InvalidData => return Err(no_server()),
        Err(error) => return Err(lost(error)),
    }
    view.begin()?;
    if args.reverse {
        receive(session, order, view).await
    } else {
        send(session, order, (&mut control, view)).await
    }
}

async fn receive(session: &Session, order: Order, view: &mut View<'_>) -> Result<(), Failure> {
    let mut receiver = Receiver::start(session, order).await.map_err(lost)?;
    loop {
        let sample = receiver.next().await.map_err(lost)?;
        let last = sample.last;
        view.show(sample)?;
        if last {
            return Ok(());
        }
    }
}

async fn send(
    session: &Session,
    order: Order,
    (control, view): (&mut Control, &mut View<'_>),
) -> Result<(), Failure> {
    let mut sender = Sender::start(session, order.streams).await.map_err(lost)?;
    let patience = Duration::from_nanos(order.interval().as_nanos()) + PATIENCE;
    loop {
        let sample = match control.recv(patience).await.map_err(lost)? {
            Message::Sample(sample) => sample,
            other => return Err(unexpected(&other)),
        };
        let last = sample.last;
        view.show(sample)?;
        if last {
            break;
        }
    }
    // The server stops the streams with its last sample. If that message is lost, they end with the session.
    let _ = tokio::time::timeout(GOODBYE, sender.stopped()).await;
    Ok(())
}

/// Shows intervals as they end.
struct View<'a> {
    args: &'a ClientArgs,
    verbose: bool,
    watch: PathWatch,
    recorder: Recorder,
}

impl View<'_> {
    fn begin(&self) -> Result<(), Failure> {
        if self.args.json { Ok(()) } else { out::print(&text::heading(columns_of_stdout())) }
    }

    /// True before the end of the first interval.
    fn is_empty(&self) -> bool {
        self.recorder.is_empty()
    }

    fn show(&mut self, sample: Sample) -> Result<(), Failure> {
        let interval = self.recorder.record(sample, self.watch.take());
        let Some(interval) = interval.filter(|_| !self.args.json) else { return Ok(()) };
        let columns = columns_of_stdout();
        out::print(&text::interval_row(interval, columns))?;
        if self.verbose { out::print(&text::path_rows(&interval.measured.paths, columns)) } else { Ok(()) }
    }

    fn finish(self, without_path: Vec<WithoutPath>) -> Result<(), Failure> {
        let (intervals, end) = self.recorder.finish();
        if !self.args.json {
            let rows = text::end_rows(&end, columns_of_stdout());
            return out::print(&(rows + &text::without_path_rows(&without_path)));
        }
        let start = BenchStart {
            version: env!("CARGO_PKG_VERSION"),
            server: self.args.ticket.node.to_string(),
            reverse: self.args.reverse,
            streams: self.args.streams,
            scheduler: (!self.args.reverse).then(|| self.args.tuning.scheduler.to_string()),
            cc: (!self.args.reverse).then(|| self.args.tuning.cc.to_string()),
        };
        Stream::Stdout.json(&BenchReport { start, intervals, end, without_path })
    }
}

/// The local addresses of the pins; every address if there are no pins.
fn local_addresses(pins: &[PathPin]) -> Addresses {
    let addresses: Option<Vec<IpAddr>> = pins
        .iter()
        .map(|pin| match &pin.local {
            LocalEnd::Address(address) => Some(*address),
            LocalEnd::Interface(_) => None,
        })
        .collect();
    match addresses {
        Some(mut addresses) if !addresses.is_empty() => {
            addresses.sort();
            addresses.dedup();
            Addresses::Exactly(addresses)
        }
        _ => Addresses::All,
    }
}

/// The server to dial and the paths to use.
fn dial(args: &ClientArgs, endpoint: &Endpoint) -> Result<Dial, Failure> {
    let dial = Dial::ticket(&args.ticket);
    let port = dial.port();
    let more = args.addresses.iter().map(|end| SocketAddr::new(end.ip, end.port.unwrap_or(port)));
    let pins = args.pins.iter().map(|pin| pair(pin, endpoint, port)).collect::<Result<_, _>>()?;
    let dial = dial.addresses(more).pins(pins);
    Ok(args.at_once.map_or(dial.clone(), |count| dial.relays_at_once(usize::from(count))))
}

/// The two addresses of a pinned path.
fn pair(pin: &PathPin, endpoint: &Endpoint, port: u16) -> Result<(IpAddr, SocketAddr), Failure> {
    let remote = SocketAddr::new(pin.remote.ip, pin.remote.port.unwrap_or(port));
    let name = match &pin.local {
        LocalEnd::Address(local) => return Ok((*local, remote)),
        LocalEnd::Interface(name) => name,
    };
    let sockets = endpoint.sockets();
    let mut usable = sockets.iter().filter(|socket| socket.local.is_ipv4() == remote.is_ipv4());
    let Some(socket) = usable.find(|socket| *socket.place.interface == **name) else {
        let family = if remote.is_ipv4() { "IPv4" } else { "IPv6" };
        return Err(Failure::local(format!("there is no usable {family} address on an interface {name}"))
            .hint("`ip address` lists the interfaces and their addresses"));
    };
    Ok((socket.local.ip(), remote))
}

fn interrupted() -> Failure {
    Failure::new(Kind::Interrupted, "the test is incomplete")
}

fn no_server() -> Failure {
    Failure::usage("this is not the ticket of a bench server").hint(
        "`anabranch bench server` prints one; the ticket of `anabranch send` is for `anabranch receive`",
    )
}

fn lost(error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Unreachable, format!("the test broke off: {error}"))
}

fn unexpected(message: &Message) -> Failure {
    Failure::new(Kind::Corrupt, format!("the server said something unexpected: {message:?}"))
}
