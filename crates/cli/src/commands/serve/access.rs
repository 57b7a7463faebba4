//! The tickets and keys of a server, and their rights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;

use anabranch_net::{PublicKey, Session};
use anabranch_node::{Access, TicketShare};
use anabranch_transfer::{Rights, Visitor};
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::ServeArgs;
use crate::commands::ticket;
use crate::errors::Failure;
use crate::ticket_store::TicketStore;

/// The ticket's name by default, if the name of the first folder does not fit.
const TICKET: &str = "serve";

/// The rights, with the words for them.
const RIGHTS: [(&str, Rights); 3] =
    [("read", Rights::Read), ("write", Rights::Write), ("drop", Rights::Drop)];

/// The word for these rights.
pub fn name(rights: Rights) -> &'static str {
    RIGHTS[rights as usize].0
}

/// The rights that a word names.
fn rights(word: &str) -> Result<Rights, String> {
    let known = RIGHTS.iter().find(|(name, _)| *name == word).map(|(_, rights)| *rights);
    known.ok_or_else(|| format!("`{word}` names no rights; write read, write or drop"))
}

/// A parser for one of the words; `--help` lists them.
pub fn parser() -> impl TypedValueParser<Value = Rights> {
    PossibleValuesParser::new(RIGHTS.map(|(name, _)| name)).try_map(|word| rights(&word))
}

/// A ticket as users write it: NAME or NAME=RIGHTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketWord {
    name: String,
    rights: Option<Rights>,
}

impl FromStr for TicketWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rights) = split(text)?;
        Ok(Self { name: ticket::name(name)?, rights })
    }
}

/// A client as users write it: KEY or KEY=RIGHTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientWord {
    key: PublicKey,
    rights: Option<Rights>,
}

impl FromStr for ClientWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, rights) = split(text)?;
        let key =
            key.parse().map_err(|_| format!("`{key}` is not a key; `anabranch keys show` prints one"))?;
        Ok(Self { key, rights })
    }
}

fn split(text: &str) -> Result<(&str, Option<Rights>), String> {
    match text.split_once('=') {
        None => Ok((text, None)),
        Some((word, named)) => Ok((word, Some(rights(named)?))),
    }
}

/// A ticket of the server.
#[derive(Clone, Debug)]
pub struct Door {
    pub name: String,
    pub rights: Rights,
    pub share: TicketShare,
}

/// All tickets and keys.
#[derive(Clone, Debug)]
pub struct Doors {
    access: Access,
    tickets: Vec<Door>,
    keys: BTreeMap<PublicKey, Rights>,
    store: TicketStore,
}

impl Doors {
    /// The tickets and keys that the user named, for these folders.
    pub fn open(args: &ServeArgs, folders: &[PathBuf], store: TicketStore) -> Result<Self, Failure> {
        let usual = folders.first().and_then(|folder| ticket::name(folder.file_name()?.to_str()?).ok());
        let usual = TicketWord { name: usual.unwrap_or_else(|| TICKET.into()), rights: None };
        let named = match (&args.tickets[..], args.no_ticket) {
            (_, true) => &[][..],
            ([], false) => std::slice::from_ref(&usual),
            (named, false) => named,
        };
        let given = named.iter().map(|ticket| ticket.rights);
        let mut given = given.chain(args.clients.iter().map(|client| client.rights));
        if args.http.is_some() && given.any(|rights| rights.unwrap_or(args.rights) == Rights::Drop) {
            let failure = Failure::usage("`--http` shows the folders to everyone, and a drop box to no one");
            return Err(failure.hint("serve the drop box by another `anabranch serve`"));
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = named.iter().find(|word| !names.insert(word.name.as_str())) {
            return Err(Failure::usage(format!("two tickets are named `{}`", twice.name)));
        }
        let ticket = |word: &TicketWord| {
            let rights = word.rights.unwrap_or(args.rights);
            let share = store.open(&word.name, name(rights), folders)?;
            Ok(Door { name: word.name.clone(), rights, share })
        };
        let tickets = named.iter().map(ticket).collect::<Result<Vec<Door>, Failure>>()?;
        let keys = args.clients.iter().map(|client| (client.key, client.rights.unwrap_or(args.rights)));
        let keys: BTreeMap<_, _> = keys.collect();
        let access = Access::by_keys(keys.keys().copied());
        tickets.iter().for_each(|ticket| access.allow_share(ticket.share.clone()));
        Ok(Self { access, tickets, keys, store })
    }

    /// Stores the tickets' rights and folders, now that the server runs.
    pub fn keep(&self, folders: &[PathBuf]) -> Result<(), Failure> {
        self.tickets
            .iter()
            .try_for_each(|ticket| self.store.renew(&ticket.name, name(ticket.rights), folders))
    }

    /// The access control of the node.
    pub fn access(&self) -> Access {
        self.access.clone()
    }

    /// The tickets.
    pub fn tickets(&self) -> &[Door] {
        &self.tickets
    }

    /// True if any client may change something in the folders.
    pub fn let_write(&self) -> bool {
        let all = self.tickets.iter().map(|ticket| ticket.rights).chain(self.keys.values().copied());
        all.into_iter().any(|rights| rights != Rights::Read)
    }

    /// Closes the doors of tickets that were revoked, and returns those tickets.
    pub fn close_revoked(&mut self) -> Vec<Door> {
        let store = &self.store;
        let (open, revoked): (Vec<_>, Vec<_>) =
            self.tickets.drain(..).partition(|ticket| store.has(&ticket.name, ticket.share.id));
        self.tickets = open;
        revoked.iter().for_each(|ticket| self.access.remove_share(ticket.share.id));
        revoked
    }

    /// The client at the other end of a session; `None` if its ticket or key opens nothing.
    pub fn visitor(&self, session: &Session) -> Option<Visitor> {
        let rights = match session.share() {
            Some(share) => self.tickets.iter().find(|ticket| ticket.share.id == share)?.rights,
            None => *self.keys.get(&session.peer())?,
        };
        Some(Visitor { rights, name: session.peer().to_string() })
    }
}

#[cfg(test)]
mod tests {
    use anabranch_net::NodeKey;

    use super::*;
    use crate::commands::test::parse;

    fn open(words: &[&str], directory: &std::path::Path) -> Doors {
        let args: ServeArgs = parse(words).unwrap();
        Doors::open(&args, &["/srv/my pub".into()], TicketStore::at(directory)).unwrap()
    }

    #[test]
    fn tickets_and_keys_have_the_rights_that_they_are_given_or_the_usual_ones() {
        let directory = tempfile::tempdir().unwrap();
        let client = NodeKey::from_random([1; 32]).public();
        let listed = format!("{client}=write");
        let words = ["a", "--rights", "drop", "--ticket", "x", "--ticket", "y=read", "--client", &listed];
        let doors = open(&words, directory.path());
        let rights: Vec<_> = doors.tickets().iter().map(|door| (&*door.name, door.rights)).collect();
        assert_eq!(rights, [("x", Rights::Drop), ("y", Rights::Read)]);
        assert!(doors.keys[&client] == Rights::Write && doors.let_write());
        assert_ne!(doors.tickets[0].share.id, doors.tickets[1].share.id);
        for words in [["a", "--ticket", "../x"], ["a", "--ticket", "x=all"], ["a", "--client", "ab1x"]] {
            assert!(parse::<ServeArgs>(&words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn without_a_ticket_only_listed_keys_come_in() {
        let directory = tempfile::tempdir().unwrap();
        let client = NodeKey::from_random([1; 32]).public().to_string();
        let doors = open(&["a", "--no-ticket", "--client", &client], directory.path());
        assert!(doors.tickets().is_empty() && !doors.let_write());
        assert!(parse::<ServeArgs>(&["a", "--no-ticket"]).is_err(), "no one could come");
    }

    #[test]
    fn a_drop_box_and_folders_for_listed_keys_alone_are_not_shown_over_http() {
        let directory = tempfile::tempdir().unwrap();
        let client = NodeKey::from_random([1; 32]).public();
        let http = ["a", "--http", "127.0.0.1:0"];
        let (dropping, client) = (format!("{client}=drop"), client.to_string());
        let refused = |words: &[&str]| {
            let args: ServeArgs = parse(&[&http[..], words].concat()).unwrap();
            Doors::open(&args, &["/srv/pub".into()], TicketStore::at(directory.path())).is_err()
        };
        for words in [&["--rights", "drop"][..], &["--ticket", "x=drop"], &["--client", &dropping]] {
            assert!(refused(words), "{words:?}");
        }
        assert!(TicketStore::at(directory.path()).list().unwrap().tickets.is_empty());
        assert!(!refused(&["--rights", "write", "--client", &client]));
        assert!(parse::<ServeArgs>(&[&http[..], &["--no-ticket", "--client", &client]].concat()).is_err());
        assert!(parse::<ServeArgs>(&["a", "--http", "8080"]).is_err(), "no address is usual");
    }

    #[test]
    fn a_revoked_ticket_opens_nothing_and_the_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let mut doors = open(&["a", "--ticket", "x", "--ticket", "y"], directory.path());
        assert!(doors.close_revoked().is_empty());
        TicketStore::at(directory.path()).revoke("x").unwrap();
        assert_eq!(doors.close_revoked()[0].name, "x");
        assert_eq!(doors.tickets()[0].name, "y");
        assert_eq!(open(&["a"], directory.path()).tickets()[0].name, TICKET, "the folder's name has a space");
    }
}
