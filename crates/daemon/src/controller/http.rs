//! The controller's HTTP API: the requests of its Unix socket, and events.
//!
//! | request | answer |
//! |---|---|
//! | `GET /api/v1/status` | all relays |
//! | `GET /api/v1/relays/{key}` | one relay |
//! | `GET /api/v1/clients/{key}/grants` | the grants of a client |
//! | `DELETE /api/v1/clients/{key}/grants`, `…/grants/{id}` | revokes all of them, or one |
//! | `GET /api/v1/events` | server-sent events: `status` whenever it has changed |
//! | `GET /api/v1/openapi.json` | the description of this API, as an OpenAPI 3.1 document |
//! | `GET /metrics` | for Prometheus |

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anabranch_net::PublicKey;
use anabranch_overlay::controller::{ControlError, Denied};
use anabranch_overlay::grant::GrantId;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get};
use axum::{Json, Router};
use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::status::{GrantStatus, Status};
use super::{Watch, openapi};
use anabranch_service::http::{metrics, problem};

const TAKEN: &str = "as many listen to events already as may; `/api/v1/status` tells the same to who asks";

/// How often changes are looked for, for events.
const LOOK: Duration = Duration::from_secs(1);

/// Most callers that listen to events. They stay, and must leave connections to other callers.
pub const MOST_LISTENERS: usize = 64;

/// The routes.
pub fn routes(watch: Watch) -> Router {
    let for_metrics = watch.clone();
    let places = Arc::new(Semaphore::new(MOST_LISTENERS));
    let listen = move |State(watch): State<Watch>| async move {
        match places.try_acquire_owned() {
            Ok(place) => events(watch, place).into_response(),
            Err(_) => problem(StatusCode::SERVICE_UNAVAILABLE, TAKEN),
        }
    };
    Router::new()
        .route("/api/v1/status", get(|State(watch): State<Watch>| async move { Json(watch.status()) }))
        .route("/api/v1/relays/{key}", get(relay))
        .route("/api/v1/clients/{key}/grants", get(grants).delete(revoke_all))
        .route("/api/v1/clients/{key}/grants/{id}", delete(revoke_one))
        .route("/api/v1/events", get(listen))
        .route("/api/v1/openapi.json", get(|| async { Json(openapi::document()) }))
        .with_state(watch)
        .merge(metrics(move || to_prometheus(&for_metrics.status())))
}

async fn relay(State(watch): State<Watch>, Path(key): Path<String>) -> Response {
    match watch.status().relays.into_iter().find(|relay| relay.node == key) {
        Some(relay) => Json(relay).into_response(),
        None => problem(StatusCode::NOT_FOUND, "no relay of this key has registered"),
    }
}

async fn grants(State(watch): State<Watch>, Path(key): Path<String>) -> Response {
    let Ok(client) = key.parse::<PublicKey>() else { return no_key() };
    answer(watch.grants(client).await)
}

async fn revoke_all(State(watch): State<Watch>, Path(key): Path<String>) -> Response {
    let Ok(client) = key.parse::<PublicKey>() else { return no_key() };
    answer(watch.revoke(client, None).await)
}

async fn revoke_one(State(watch): State<Watch>, Path((key, id)): Path<(String, String)>) -> Response {
    let Ok(client) = key.parse::<PublicKey>() else { return no_key() };
    match id.parse::<GrantId>() {
        Ok(id) => answer(watch.revoke(client, Some(id)).await),
        Err(_) => problem(StatusCode::BAD_REQUEST, "a grant's name is 32 hexadecimal digits"),
    }
}

fn no_key() -> Response {
    problem(
        StatusCode::BAD_REQUEST,
        "this is no key; `anabranch keys show` prints one, which begins with ab1",
    )
}

fn answer(done: Result<Vec<GrantStatus>, ControlError>) -> Response {
    match done {
        Ok(grants) => Json(grants).into_response(),
        Err(ControlError::Denied(Denied::NoSuchGrant)) => {
            problem(StatusCode::NOT_FOUND, Denied::NoSuchGrant.to_string())
        }
        Err(ControlError::Denied(why)) => problem(StatusCode::CONFLICT, why.to_string()),
        Err(ControlError::Store(why)) => problem(StatusCode::SERVICE_UNAVAILABLE, why.to_string()),
    }
}

fn events(watch: Watch, place: OwnedSemaphorePermit) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let closing = watch.clone().closing();
    let events = stream::unfold((watch, place, None::<Status>), |(watch, place, told)| async move {
        loop {
            let status = watch.status();
            if told.as_ref() != Some(&status) {
                // Plain values: nothing in them cannot be written.
                let event = Event::default().event("status").json_data(&status).unwrap_or_default();
                return Some((Ok(event), (watch, place, Some(status))));
            }
            tokio::time::sleep(LOOK).await;
        }
    });
    Sse::new(events.take_until(closing)).keep_alive(KeepAlive::default())
}

/// The status in Prometheus' text format 0.0.4.
fn to_prometheus(status: &Status) -> String {
    let mut text = String::new();
    let mut put = |name: &str, help: &str, samples: &[(String, f64)]| {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "# HELP anabranch_controller_{name} {help}\n# TYPE anabranch_controller_{name} gauge"
        );
        for (labels, value) in samples {
            let _ = writeln!(text, "anabranch_controller_{name}{labels} {value}");
        }
    };
    let each = |value: &dyn Fn(&super::status::RelayStatus) -> f64| {
        let sample =
            |relay: &super::status::RelayStatus| (format!("{{key=\"{}\"}}", relay.node), value(relay));
        status.relays.iter().map(sample).collect::<Vec<_>>()
    };
    put("relays", "Relays that have registered", &[(String::new(), status.relays.len() as f64)]);
    put("relay_alive", "1 while a relay is heard", &each(&|relay| f64::from(u8::from(relay.alive))));
    put("relay_pids_granted", "PIDs that are granted", &each(&|relay| relay.pids[1] as f64));
    put("relay_pids_used", "PIDs in use", &each(&|relay| relay.pids[2] as f64));
    put("relay_rate_bits", "Rate that a relay forwards, in bit/s", &each(&|relay| relay.rate_used as f64));
    put("relay_links", "Links to other relays that it measures", &each(&|relay| relay.links[0] as f64));
    put("relay_links_down", "Of those, down", &each(&|relay| relay.links[1] as f64));
    text
}
