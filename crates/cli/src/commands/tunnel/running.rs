//! Requests to a running tunnel: `status`, `down`, `reload`, and `set` with settings.

use std::sync::{Arc, Mutex, PoisonError};

use anabranch_net::{Endpoint, Event, PathChange, PathInfo, PathRule, PathRules, Priority, Session, Terms};
use anabranch_node::{keep_caps, parse_rule, warn_of_idle_rules};
use anabranch_service::control::{self, Answer};
use anabranch_tunnel::policy::Policy;
use anabranch_tunnel_io::client::Client;
use anabranch_tunnel_io::server::Server;
use anabranch_tunnel_io::status::Status;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::lane;
use crate::commands::service::Signals;
use crate::context::Context;
use crate::errors::Failure;
use crate::ui::out;

/// The usage, for wrong requests.
const WORDS: &str = "write lane=LANE, class.NAME=LANE or path.PATTERN=USE";

/// The answer to a request that changes a tunnel.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Each change, for people.
    pub done: Vec<String>,
}

/// One end of a tunnel.
#[derive(Clone)]
pub enum End {
    /// The client's.
    Client(Arc<Client>),
    /// The server's.
    Server(Arc<Server>),
}

/// Settings that a running tunnel can take over.
pub struct Changeable {
    /// How packets travel; the client's settings count for both ends.
    pub policy: Policy,
    /// Networks that clients of a server may reach.
    pub allow: Vec<IpNet>,
    pub rules: PathRules,
}

/// Reads the settings again.
pub type Read = Box<dyn Fn() -> Result<Changeable, Failure> + Send + Sync>;

/// One end of a running tunnel; clones are handles to the same one.
#[derive(Clone)]
pub struct Running(Arc<Inner>);

struct Inner {
    end: End,
    endpoint: Arc<Endpoint>,
    /// The name of the tunnel's own interface.
    device: String,
    rules: Mutex<PathRules>,
    read: Read,
    stop: Notify,
}

impl Running {
    /// A tunnel that was started with these rules, on an endpoint and an interface.
    pub fn new(end: End, (endpoint, device): (Arc<Endpoint>, &str), rules: PathRules, read: Read) -> Self {
        let (device, rules) = (device.to_owned(), Mutex::new(rules));
        Self(Arc::new(Inner { end, endpoint, device, rules, read, stop: Notify::new() }))
    }

    /// Waits for `tunnel down`.
    pub async fn stopped(&self) {
        self.0.stop.notified().await;
    }

    /// The current status.
    pub fn status(&self) -> Status {
        match &self.0.end {
            End::Client(client) => client.status(),
            End::Server(server) => server.status(),
        }
    }

    /// The rules of now.
    pub fn rules(&self) -> PathRules {
        self.0.rules.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives a new session the rules of now. If they exclude its first path, that is a backup until another one opens.
    pub fn adopt(&self, session: &Session) {
        let rules = self.rules();
        if session.path_rules() != rules && session.set_path_rules(rules).is_err() {
            tracing::info!("the rules exclude all paths of a new session: they stay until another one opens");
            let running = self.clone();
            tokio::spawn(adopt_later(session.clone(), move || running.rules()));
        }
    }

    /// Reads the settings again and takes over what can be changed.
    pub fn reload(&self) -> Result<Done, String> {
        let wanted = (self.0.read)().map_err(|failure| failure.to_string())?;
        self.warn_of_idle(&wanted.rules);
        self.set_rules(wanted.rules)?;
        match &self.0.end {
            End::Client(client) => client.set_policy(wanted.policy),
            End::Server(server) => server.set_allowed(wanted.allow).map_err(|error| error.to_string())?,
        }
        Ok(Done { done: vec!["the settings were read again".to_owned()] })
    }

    fn warn_of_idle(&self, rules: &PathRules) {
        warn_of_idle_rules(&self.0.endpoint, rules, Some(&self.0.device));
    }

    fn set_rules(&self, rules: PathRules) -> Result<(), String> {
        let sessions = match &self.0.end {
            End::Client(client) => client.session().into_iter().collect(),
            End::Server(server) => server.sessions(),
        };
        for session in sessions {
            session.set_path_rules(rules.clone()).map_err(|error| error.to_string())?;
        }
        *self.0.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules;
        Ok(())
    }

    /// Takes over all settings, or none of them.
    fn set(&self, settings: &[&str]) -> Result<Done, String> {
        if settings.is_empty() {
            return Err(WORDS.to_owned());
        }
        let (mut policy, mut rules): (Option<Policy>, Option<PathRules>) = (None, None);
        for setting in settings {
            let (key, value) = setting.rsplit_once('=').ok_or(WORDS)?;
            match key.split_once('.') {
                None if key == "lane" => self.policy(&mut policy)?.lane = lane::lane(value)?,
                Some(("class", name)) => {
                    let lane = lane::lane(value)?;
                    let class = self.policy(&mut policy)?.classes.iter_mut().find(|class| class.name == name);
                    class.ok_or_else(|| format!("there is no class `{name}`"))?.lane = lane;
                }
                Some(("path", pattern)) => {
                    let rule = parse_rule(&format!("{pattern}={value}"))?;
                    rules = Some(rules.unwrap_or_else(|| self.rules()).with(&rule));
                    self.warn_of_idle(&PathRules::new(vec![rule]));
                }
                _ => return Err(format!("`{key}` is not a setting; {WORDS}")),
            }
        }
        if let Some(rules) = rules {
            self.set_rules(keep_caps(rules).map_err(|error| error.to_string())?)?;
        }
        if let (End::Client(client), Some(policy)) = (&self.0.end, policy) {
            client.set_policy(policy);
        }
        Ok(Done { done: settings.iter().map(|setting| (*setting).to_owned()).collect() })
    }

    /// The policy to change: at first the client's own.
    fn policy<'a>(&self, changed: &'a mut Option<Policy>) -> Result<&'a mut Policy, String> {
        let End::Client(client) = &self.0.end else {
            return Err("the client's lanes count for both ends: set them there".to_owned());
        };
        Ok(changed.get_or_insert_with(|| client.policy()))
    }

    fn handle(&self, line: &str) -> Result<Done, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["down"] => {
                self.0.stop.notify_one();
                Ok(Done { done: vec!["the tunnel ends".to_owned()] })
            }
            ["reload"] => self.reload(),
            ["set", settings @ ..] => self.set(settings),
            _ => Err("say `status`, `down`, `reload` or `set`".to_owned()),
        }
    }
}

impl Answer for Running {
    async fn answer(&self, line: &str) -> String {
        if line.trim() == "status" {
            return control::reply(&self.status());
        }
        match self.handle(line) {
            Ok(done) => control::reply(&done),
            Err(why) => control::refusal(&why),
        }
    }
}

/// Applies the rules as soon as they leave the session an open path. Until then, its excluded paths are backups.
async fn adopt_later(session: Session, rules: impl Fn() -> PathRules) {
    let mut events = session.events();
    while session.set_path_rules(rules()).is_err() {
        let terms = Terms { priority: Priority::Backup, ..Terms::default() };
        let backup =
            |path: PathInfo| PathRule { pattern: session.pattern_of(&path.route), terms: terms.clone() };
        let backups = session.paths().into_iter().map(backup);
        let meanwhile = backups.fold(rules(), |rules, backup| rules.with(&backup));
        if let Err(error) = session.set_path_rules(meanwhile) {
            tracing::debug!(%error, "the paths of a new session have changed");
        }
        loop {
            match events.next().await {
                Some(Event::Path { change: PathChange::Opened(_), .. }) => break,
                Some(Event::Closed(_)) | None => return,
                Some(_) => {}
            }
        }
    }
}

/// Waits for a signal to end or for `tunnel down`. Reads the settings again at SIGHUP.
pub(super) async fn until_stopped(signals: &mut Signals, running: &Running, context: &Context) {
    loop {
        tokio::select! {
            _ = signals.hang_up.recv() => match running.reload() {
                Ok(_) if context.quiet => {}
                Ok(read) => out::sentence(&read.done.join("\n")),
                Err(why) => tracing::error!("{why}; the tunnel keeps its settings"),
            },
            _ = signals.interrupt.recv() => return,
            _ = signals.terminate.recv() => return,
            () = running.stopped() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use anabranch_net::{
        Addresses, Config, Endpoint, EndpointConfig, NodeKey, PathState, PublicKey, ShareId, Target, Verdict,
    };

    use super::*;

    async fn endpoint(seed: u8, addresses: &[IpAddr]) -> Endpoint {
        let config = EndpointConfig::new(NodeKey::from_random([seed; 32]))
            .addresses(Addresses::Exactly(addresses.to_vec()))
            .authorize(|_: &PublicKey, _: Option<ShareId>| Verdict::Accept { secret: None });
        Endpoint::bind(config).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rules_that_exclude_a_new_sessions_only_path_apply_once_another_is_open() {
        let ip = |last: u8| IpAddr::from([127, 0, 0, last]);
        let rules = |word: &str| PathRules::new(vec![parse_rule(word).unwrap()]);
        let (near, far) = (endpoint(1, &[ip(1)]).await, endpoint(2, &[ip(2), ip(3)]).await);
        let to = near.local_addresses()[0];
        let mut target = Target::new(near.node(), vec![to]);
        target.pins = vec![(ip(2), to), (ip(3), to)];
        let config = Config { rules: rules("from:127.0.0.3=never"), ..Config::default() };
        let (there, here) = tokio::join!(far.connect(&target, config), near.accept());
        let (there, here) = (there.unwrap(), here.unwrap());

        let wanted = rules("to:127.0.0.2=never");
        let set = wanted.clone();
        let adopting = tokio::spawn(adopt_later(here.clone(), move || set.clone()));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!adopting.is_finished() && here.close_reason().is_none());
        there.set_path_rules(rules("*=primary")).unwrap();
        let adopted = tokio::time::timeout(Duration::from_secs(20), adopting).await;
        adopted.expect("the other path opens").unwrap();
        assert_eq!((here.path_rules(), here.close_reason()), (wanted, None));
        let stays = |path: &PathInfo| path.route.remote.ip() == ip(3) || path.state == PathState::Closing;
        assert!(here.paths().iter().all(stays), "{:?}", here.paths());
    }
}
