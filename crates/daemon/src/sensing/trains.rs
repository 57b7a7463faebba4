//! Sends packet trains. Each has its own session without pacing, whose first window holds the whole train.

use std::sync::Arc;
use std::time::Duration;

use anabranch_engine::MtuConfig;
use anabranch_net::{Config, Session, Span, Target};
use anabranch_overlay::controller::message::GrantedRelay;
use anabranch_overlay::sense::{CAR, SenseMessage, Train};

use super::{Sensing, send};

/// How often the end of a train is sent without a report, and how long each time to wait for it.
const ENDS: usize = 4;
const WAIT: Duration = Duration::from_millis(700);
/// A train that takes longer is given up.
const LONGEST: Duration = Duration::from_secs(10);
/// Longest message that is accepted: the report on a train.
const LONGEST_ANSWER: u16 = 64;

/// Sends a train, and handles the report on it.
pub(super) async fn run(sensing: Arc<Sensing>, relay: GrantedRelay, train: Train) {
    let attempt = async {
        let target = Target::new(relay.node, relay.addresses);
        let Ok(session) = sensing.endpoint.connect(&target, config(&train)).await else { return };
        if leave(&session, &sensing, &train).await {
            end(&sensing, &session, train.number).await;
        }
        session.close().await;
    };
    if tokio::time::timeout(LONGEST, attempt).await.is_err() {
        tracing::debug!(to = %train.to, "a packet train took too long");
    }
    sensing.wake.notify_one();
}

/// One path, whose first window holds the train.
fn config(train: &Train) -> Config {
    let mut config = Config::default();
    let mtu = config.mtu.base;
    config.cc.initial_window = u64::from(train.packets) * 2;
    config.cc.pacing = false;
    config.memory.datagrams = usize::from(train.packets) + 8;
    config.datagrams.largest = LONGEST_ANSWER;
    Config { max_paths: 1, mtu: MtuConfig { base: mtu, max: mtu }, ..config }
}

/// Sends each packet at its time, when the gate admits it. False if the session ended or other packets delayed the
/// train, which makes it useless.
async fn leave(session: &Session, sensing: &Sensing, train: &Train) -> bool {
    let clock = sensing.endpoint.clock();
    let begin = clock.now();
    // When the last unscheduled packet left.
    let mut last = (begin, Span::ZERO);
    for index in 0..train.packets {
        let due = last.0 + train.offset(index).saturating_sub(last.1);
        if train.has_a_time(index) && due > clock.now() {
            tokio::time::sleep_until(clock.instant(due).into()).await;
        }
        while let Err(at) = (sensing.gate)(CAR) {
            tokio::time::sleep_until(clock.instant(at).into()).await;
        }
        if !train.has_a_time(index) {
            last = (clock.now(), train.offset(index));
        }
        let car = SenseMessage::Car(train.car(index, clock.now()));
        if !send(session, &car) {
            return false;
        }
    }
    !train.is_held_up(clock.now().since(begin))
}

/// Sends the end of the train until the report arrives.
async fn end(sensing: &Sensing, session: &Session, number: u32) {
    for _ in 0..ENDS {
        send(session, &SenseMessage::End(number));
        let answer = async {
            while let Ok((at, datagram)) = session.recv_datagram_at().await {
                let message = SenseMessage::decode(&datagram.data);
                sensing.handle(session, (at, &datagram.data));
                if matches!(message, Ok(SenseMessage::Seen(seen)) if seen.number == number) {
                    return;
                }
            }
        };
        if tokio::time::timeout(WAIT, answer).await.is_ok() {
            return;
        }
    }
}
