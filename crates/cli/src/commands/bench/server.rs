//! The server: admits every client that has the printed ticket, and serves any number of tests.

use std::sync::Arc;
use std::time::Duration;

use anabranch_net::{Addresses, Session, Ticket};
use anabranch_node::{Access, Node, Threads, TicketShare};
use anabranch_wire::Span;
use tokio::sync::Semaphore;

use super::ServerArgs;
use super::protocol::{Control, Message, Order, PATIENCE, Sample};
use super::traffic::{Receiver, Sender};
use crate::capture::Capture;
use crate::context::Context;
use crate::errors::Failure;
use crate::interrupt;
use crate::report::mbit_s;
use crate::ui::{human, out};

/// Most tests at the same time; further clients wait.
const MOST_TESTS: usize = 64;
/// Code with which the server closes a session that violates the bench protocol.
const BAD_TEST: u64 = 1;

/// Serves tests until interrupted, or one with `--once`.
///
/// # Errors
/// When the key cannot be read or the port is taken.
pub fn run(args: &ServerArgs, context: &Context) -> Result<(), Failure> {
    let capture = args.capture.start()?;
    Threads::start()?.block_on(serve(args, &capture, context)).and(capture.finish())
}

async fn serve(args: &ServerArgs, capture: &Capture, context: &Context) -> Result<(), Failure> {
    let share = TicketShare::new(None)?;
    let addresses = match args.bind.as_slice() {
        [] => Addresses::All,
        some => Addresses::Exactly(some.to_vec()),
    };
    let node = Node::builder().key(args.key.clone()).port(args.port).addresses(addresses);
    let node = node.session(args.tuning.config()).path_rules(args.paths_wanted.rules()?);
    let node = node.access(Access::by_ticket(share.clone())).tap(capture.tap()).start().await?;
    announce(&node.invite(&share, &[]).await?.ticket, context)?;
    tokio::select! {
        () = accept(&node, args.once, context.quiet) => {}
        () = interrupt::requested() => {}
    }
    node.close().await;
    Ok(())
}

/// Serves every session, or only the first.
async fn accept(node: &Node, once: bool, quiet: bool) {
    let places = Arc::new(Semaphore::new(MOST_TESTS));
    while let Some(accepted) = node.accept().await {
        let session = accepted.session().clone();
        if once {
            tell(&session, test(&session).await, quiet);
            return;
        }
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        tokio::spawn(async move {
            tell(&session, test(&session).await, quiet);
            drop(place);
        });
    }
}

/// Shows the server's addresses on standard error, and prints the command for the client on standard output.
fn announce(ticket: &Ticket, context: &Context) -> Result<(), Failure> {
    if !context.quiet {
        if anabranch_node::only_here(&ticket.addresses) {
            out::error(&format!("{} {}\n", context.paint.yellow("warning:"), anabranch_node::ONLY_HERE));
        }
        let places: Vec<String> = ticket.addresses.iter().map(ToString::to_string).collect();
        out::error(&format!("{} listens on {}\n", ticket.node, places.join(", ")));
        out::error("on the other machine, run\n\n");
    }
    out::print(&format!("anabranch bench client {}\n", ticket.to_text().as_str()))?;
    if !context.quiet {
        out::error("\n");
    }
    Ok(())
}

/// The outcome of a served test.
enum Served {
    Received(Sample),
    Sent(Span),
}

async fn test(session: &Session) -> std::io::Result<Served> {
    let mut control = Control::accept(session).await?;
    let Ok(Message::Start(order)) = control.recv(PATIENCE).await else {
        return Err(refuse(session, "this ticket is for `anabranch bench client`"));
    };
    if let Some(objection) = order.objection() {
        return Err(refuse(session, objection));
    }
    control.send(&Message::Ready).await?;
    let served = if order.reverse {
        send(session, &order).await?
    } else {
        Served::Received(receive(session, order, &mut control).await?)
    };
    // The client has its result, so only its farewell is missing.
    if tokio::time::timeout(PATIENCE, session.closed()).await.is_err() {
        session.abort(0, "the test is over");
    }
    Ok(served)
}

fn refuse(session: &Session, why: &str) -> std::io::Error {
    session.abort(BAD_TEST, why);
    std::io::Error::new(std::io::ErrorKind::InvalidData, why)
}

async fn receive(session: &Session, order: Order, control: &mut Control) -> std::io::Result<Sample> {
    let mut receiver = Receiver::start(session, order).await?;
    loop {
        let sample = receiver.next().await?;
        control.send(&Message::Sample(sample.clone())).await?;
        if sample.last {
            return Ok(sample);
        }
    }
}

async fn send(session: &Session, order: &Order) -> std::io::Result<Served> {
    let mut sender = Sender::start(session, order.streams).await?;
    let longest = Duration::from_nanos(order.time().as_nanos()) + PATIENCE;
    if tokio::time::timeout(longest, sender.stopped()).await.is_err() {
        return Err(refuse(session, "the client did not end the test"));
    }
    Ok(Served::Sent(order.time()))
}

/// Prints the outcome of a session as one line.
fn tell(session: &Session, outcome: std::io::Result<Served>, quiet: bool) {
    if quiet {
        return;
    }
    let peer = session.peer();
    let line = match outcome {
        Ok(Served::Received(sample)) => {
            let span = Span::from_micros(sample.elapsed_us);
            let rate = mbit_s(sample.bytes, span);
            format!("{peer}: received {} in {span}, {rate:.1} Mbit/s\n", human::bytes(sample.bytes))
        }
        Ok(Served::Sent(span)) => format!("{peer}: sent for {span}\n"),
        Err(error) => format!("{peer}: {error}\n"),
    };
    out::error(&line);
}
