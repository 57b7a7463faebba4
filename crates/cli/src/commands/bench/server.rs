//! The server: admits every client that has the printed ticket, and serves any number of tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anabranch_net::{Addresses, CloseReason, Session, Ticket};
use anabranch_node::{Access, Node, Threads, TicketShare};
use anabranch_wire::Span;
use tokio::sync::Semaphore;

use super::ServerArgs;
use super::protocol::{Control, Message, Order, PATIENCE, Sample};
use super::traffic::{Receiver, Sender, moved, over};
use crate::capture::Capture;
use crate::carrier::{CAP_PATIENCE, Carrier, OTHER_COMMAND};
use crate::context::Context;
use crate::errors::Failure;
use crate::interrupt;
use crate::report::mbit_s;
use crate::ui::{human, out};

/// Most tests at the same time; further clients wait.
const MOST_TESTS: usize = 64;
/// Code with which the server closes a session whose test fails.
const BAD_TEST: u64 = 1;

/// Serves tests until interrupted, or one with `--once`.
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
    let node = node.map_port(args.mapping.map_port);
    let node = node.access(Access::by_ticket(share.clone())).tap(capture.tap()).start().await?;
    let invitation = node.invite(&share, &[]).await?;
    invitation.warn_of_omissions();
    let ticket = invitation.ticket;
    announce(&ticket, context)?;
    args.drawing.show(&ticket.to_text(), context);
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
    let running = Arc::new(Running::default());
    while let Some(accepted) = node.accept().await {
        let session = accepted.session().clone();
        if once {
            serve_one(&session, &running, quiet).await;
            return;
        }
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let running = running.clone();
        tokio::spawn(async move {
            serve_one(&session, &running, quiet).await;
            drop(place);
        });
    }
}

/// Runs a client's test, and reports its begin and its outcome.
async fn serve_one(session: &Session, running: &Running, quiet: bool) {
    let (number, others) = running.begin();
    let place = session.remote_ip().map(|ip| ip.to_string());
    let client = format!("client {number} at {}", place.as_deref().unwrap_or("an unknown address"));
    let say = |text: &str| {
        if !quiet {
            out::sentence(&format!("{client}: {text}"));
        }
    };
    say(&format!("key {}{}", session.peer(), beside(others, "running already")));
    let carrier = Carrier::new(session.clone());
    let outcome = tokio::select! {
        outcome = test(session) => outcome,
        used_up = carrier.caps_used_up(|| moved(session), CAP_PATIENCE) => {
            carrier.end_for_caps(&used_up);
            Err(std::io::Error::new(std::io::ErrorKind::QuotaExceeded, used_up.message))
        }
    };
    if let Err(error) = &outcome {
        // It would stay as long as the client answers pings. A session that has ended keeps its reason.
        session.abort(BAD_TEST, &error.to_string());
    }
    let others = running.end(number);
    say(&format!("{}{}", told(outcome), beside(others, "at the same time")));
}

/// The tests that run now.
#[derive(Default)]
struct Running(Mutex<Tests>);

#[derive(Default)]
struct Tests {
    last: u64,
    /// Most other tests during each one.
    others: BTreeMap<u64, usize>,
}

impl Running {
    /// Begins a test: its number, and how many others run.
    fn begin(&self) -> (u64, usize) {
        let mut tests = self.tests();
        tests.last += 1;
        let (number, others) = (tests.last, tests.others.len());
        tests.others.insert(number, 0);
        for most in tests.others.values_mut() {
            *most = others.max(*most);
        }
        (number, others)
    }

    /// Ends a test: the most others that ran during it.
    fn end(&self, number: u64) -> usize {
        self.tests().others.remove(&number).unwrap_or_default()
    }

    fn tests(&self) -> MutexGuard<'_, Tests> {
        self.0.lock().expect("no panic while held")
    }
}

/// The other tests, if there are any.
fn beside(others: usize, when: &str) -> String {
    if others == 0 {
        String::new()
    } else {
        format!("; {} {when}", human::count(others as u64, "other test"))
    }
}

/// Shows the server's addresses on standard error, and prints the command for the client on standard output.
fn announce(ticket: &Ticket, context: &Context) -> Result<(), Failure> {
    if !context.quiet {
        let places: Vec<String> = ticket.addresses.iter().map(ToString::to_string).collect();
        out::sentence(&format!("{} listens on {}", ticket.node, places.join(", ")));
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
    /// The client was gone before the end; the bytes that came from it until then.
    Lost(u64),
}

async fn test(session: &Session) -> std::io::Result<Served> {
    let mut control = Control::accept(session).await?;
    let Ok(Message::Start(order)) = control.recv(PATIENCE).await else {
        return Err(refuse(session, OTHER_COMMAND, "this ticket is for `anabranch bench client`"));
    };
    if let Some(objection) = order.objection() {
        return Err(refuse(session, BAD_TEST, objection));
    }
    control.send(&Message::Ready).await?;
    let served = if order.reverse {
        send(session, &order).await?
    } else {
        Served::Received(receive(session, order, &mut control).await?)
    };
    // A client that has its result says farewell.
    let is_over = tokio::time::timeout(PATIENCE, session.closed()).await.is_ok();
    if is_over && session.close_reason() != Some(CloseReason::IdleTimeout) {
        return Ok(served);
    }
    session.abort(0, "the test is over");
    Ok(Served::Lost(if let Served::Received(sample) = served { sample.bytes } else { 0 }))
}

fn refuse(session: &Session, code: u64, why: &str) -> std::io::Error {
    session.abort(code, why);
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
    let longest = Duration::from_nanos(order.time().as_nanos()) + PATIENCE;
    let sending = async {
        // A client may allow no streams.
        Sender::start(session, order.streams).await?.stopped().await;
        match session.close_reason() {
            // The client has its result, or still says farewell.
            None | Some(CloseReason::Finished | CloseReason::Peer { code: 0, .. }) => {
                Ok(Served::Sent(order.time()))
            }
            Some(reason) => Err(over(reason)),
        }
    };
    match tokio::time::timeout(longest, sending).await {
        Ok(sent) => sent,
        Err(_) => Err(refuse(session, BAD_TEST, "the client did not end the test")),
    }
}

/// The outcome of a test in words.
fn told(outcome: std::io::Result<Served>) -> String {
    match outcome {
        Ok(Served::Received(sample)) => {
            let span = Span::from_micros(sample.elapsed_us);
            let rate = mbit_s(sample.bytes, span);
            format!("received {} in {span}, {rate:.1} Mbit/s", human::bytes(sample.bytes))
        }
        Ok(Served::Sent(span)) => format!("sent for {span}"),
        Ok(Served::Lost(0)) => "lost during the test".to_owned(),
        Ok(Served::Lost(bytes)) => format!("lost during the test, after {}", human::bytes(bytes)),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use anabranch_net::{
        CloseReason, Config, Endpoint, EndpointConfig, NodeKey, PublicKey, ShareId, Target, Verdict,
    };

    use super::super::protocol::VERSION;
    use super::*;

    async fn endpoint(seed: u8) -> Endpoint {
        let config = EndpointConfig::new(NodeKey::from_random([seed; 32]))
            .addresses(Addresses::Exactly(vec![[127, 0, 0, 1].into()]))
            .authorize(|_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None });
        Endpoint::bind(config).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_ends_when_its_test_fails() {
        let (near, far) = (endpoint(1).await, endpoint(2).await);
        let target = Target::new(near.node(), near.local_addresses());
        let (client, server) = tokio::join!(far.connect(&target, Config::default()), near.accept());
        let (client, server) = (client.unwrap(), server.unwrap());
        let served = server.clone();
        let serving = tokio::spawn(async move { serve_one(&served, &Running::default(), true).await });
        let mut control = Control::open(&client).await.unwrap();
        let (time_us, interval_us) = (60_000_000, 10_000);
        let order = Order { version: VERSION, reverse: false, streams: 1, time_us, interval_us };
        control.send(&Message::Start(order)).await.unwrap();
        assert_eq!(control.recv(PATIENCE).await.unwrap(), Message::Ready);
        let mut data = client.open_stream().await.unwrap();
        data.write_chunk(vec![1; 1000].into()).await.unwrap();
        // No one takes the samples.
        drop(control);
        let ended = tokio::time::timeout(Duration::from_secs(20), client.closed()).await;
        assert!(matches!(ended, Ok(CloseReason::Peer { code: BAD_TEST, .. })), "{ended:?}");
        serving.await.unwrap();
    }

    #[test]
    fn each_test_knows_how_many_others_ran_at_the_same_time() {
        let running = Running::default();
        assert_eq!((running.begin(), running.begin(), running.begin()), ((1, 0), (2, 1), (3, 2)));
        assert_eq!((running.end(1), running.end(3)), (2, 2));
        assert_eq!((running.begin(), running.end(2), running.end(4)), ((4, 1), 2, 1));
        assert_eq!(running.begin(), (5, 0));
        assert_eq!(
            beside(0, "now") + &beside(1, "now") + &beside(2, "now"),
            "; 1 other test now; 2 other tests now"
        );
    }
}
