//! A node as users write it: a ticket, or a key with addresses.

use std::str::FromStr;

use anabranch_net::{PublicKey, Ticket};
use anabranch_node::{Dial, NodeAt};

use crate::errors::Failure;
use crate::values;

/// How every ticket begins. QR codes hold tickets in capitals.
const TICKET_PREFIX: &str = "anabranch1";

/// The word for a node.
#[derive(Clone, Debug)]
pub struct NodeWord {
    text: String,
    at: At,
}

#[derive(Clone, Debug)]
enum At {
    Ticket(Box<Ticket>),
    Key(NodeAt),
}

impl FromStr for NodeWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = match is_key(text) {
            true => At::Key(
                text.parse()
                    .map_err(|()| format!("`{text}` is no node; write KEY@ADDRESS:PORT, or a ticket"))?,
            ),
            false => At::Ticket(Box::new(values::ticket(text)?)),
        };
        Ok(Self { text: text.to_owned(), at })
    }
}

impl NodeWord {
    /// How the node is dialled.
    pub async fn dial(&self) -> Result<Dial, Failure> {
        match &self.at {
            At::Ticket(ticket) => Ok(Dial::ticket(ticket)),
            At::Key(at) => {
                let found = at.resolve().await.map_err(|error| Failure::local(error.to_string()))?;
                Ok(Dial::node(found.node, found.addresses))
            }
        }
    }

    /// The ticket that was given as a word.
    pub fn ticket_word(&self) -> Option<&str> {
        let is_ticket = matches!(self.at, At::Ticket(_)) && begins_ticket(&self.text);
        is_ticket.then_some(&*self.text)
    }

    /// True for a key with addresses, if this is the key.
    pub fn is_of(&self, key: &PublicKey) -> bool {
        matches!(&self.at, At::Key(at) if at.node == *key)
    }
}

/// True for a word that begins as a ticket does.
pub fn begins_ticket(word: &str) -> bool {
    word.get(..TICKET_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(TICKET_PREFIX))
}

/// True for a word that looks like a node rather than a path.
pub fn looks_like_node(word: &str) -> bool {
    word.starts_with('@') || begins_ticket(word) || (word.starts_with("ab1") && is_key(word))
}

fn is_key(word: &str) -> bool {
    word.find('@').is_some_and(|at| at > 0)
}
