//! The server's side of the handshake: reads an INIT, leaves the decision to the caller, and answers.

use std::fmt;

use anabranch_wire::Side;
use snow::HandshakeState;
use zeroize::Zeroizing;

use super::{
    ACK_BODY_LEN, ACK_MAC1_AT, ACK_PADDING_AT, CREDENTIAL_LEN, HandshakeError, PAYLOAD_1_LEN, PAYLOAD_2_LEN,
    PSK_POSITION, Refusal, SessionKeys, VERSION, builder, derive_psk, init_message, params_in, put_params,
    session_keys,
};
use crate::cookie;
use crate::keys::{NodeKey, PublicKey};
use crate::secret;
use crate::ticket::{ShareId, TicketSecret};

/// An opened INIT: who sent it and what it asks for. The caller decides, denying by default, and either
/// [`PendingInit::accept`]s it, [`PendingInit::refuse`]s it or drops it.
pub struct PendingInit {
    /// The client, proven by its key; but the message may be a replay, see the module `handshake`.
    pub remote: PublicKey,
    /// The share of the client's ticket, if it names one. Only its first packet proves that it knows the secret.
    pub share: Option<ShareId>,
    /// The client's parameters, encoded.
    pub params: Vec<u8>,
    noise: Box<HandshakeState>,
}

/// An accepted INIT: the answer and the keys.
#[derive(Debug)]
pub struct Accepted {
    /// Body of the INIT ACK, to be sent again whenever the same INIT arrives again.
    pub body: Vec<u8>,
    /// Keys of a session that is valid only after a packet was opened under them.
    pub keys: SessionKeys,
}

/// Opens the body of an INIT that [`crate::CookieJar::admit`] let pass. Costs three Diffie-Hellman exchanges. `seed` must
/// be 32 fresh random bytes, used for nothing else.
pub fn read_init(local: &NodeKey, body: &[u8], seed: [u8; 32]) -> Result<PendingInit, HandshakeError> {
    let message = init_message(body).ok_or(HandshakeError::Malformed)?;
    let seed = secret::take(seed);
    let mut noise = builder(local, &seed).build_responder().map_err(|_| HandshakeError::NotAuthentic)?;
    let mut payload = Zeroizing::new([0; PAYLOAD_1_LEN]);
    let read = noise.read_message(message, payload.as_mut_slice());
    read.map_err(|_| HandshakeError::NotAuthentic)?;
    let remote = noise.get_remote_static().and_then(|key| key.try_into().ok());
    let remote = PublicKey::from_bytes(remote.ok_or(HandshakeError::NotAuthentic)?);
    let (credential, rest) =
        payload.split_first_chunk::<CREDENTIAL_LEN>().ok_or(HandshakeError::Malformed)?;
    let [kind, share @ ..] = *credential;
    let share = match kind {
        0 => None,
        1 => Some(ShareId(u64::from_be_bytes(share))),
        _ => return Err(HandshakeError::Malformed),
    };
    Ok(PendingInit { remote, share, params: params_in(rest)?, noise: Box::new(noise) })
}

impl PendingInit {
    /// Accepts, with `params` as this end's parameters. `secret` is the ticket's if and only if [`PendingInit::share`] names
    /// one: a client without it cannot read the answer.
    ///
    /// # Errors
    /// When secret and credential do not match, or `params` are too long.
    pub fn accept(self, secret: Option<&TicketSecret>, params: &[u8]) -> Result<Accepted, HandshakeError> {
        let psk = match (self.share, secret) {
            (Some(share), Some(secret)) => derive_psk(share, secret),
            (None, None) => Zeroizing::new([0; 32]),
            _ => return Err(HandshakeError::WrongCredential),
        };
        self.answer(&psk, 0, params)
    }

    /// Refuses: returns a body to send once, instead of an INIT ACK. Nothing is stored.
    ///
    /// # Errors
    /// When the client's key cannot belong to a node.
    pub fn refuse(self, why: Refusal) -> Result<Vec<u8>, HandshakeError> {
        self.answer(&Zeroizing::new([0; 32]), why.code(), &[]).map(|accepted| accepted.body)
    }

    fn answer(
        mut self,
        psk: &Zeroizing<[u8; 32]>,
        status: u8,
        params: &[u8],
    ) -> Result<Accepted, HandshakeError> {
        let mut payload = Zeroizing::new([0; PAYLOAD_2_LEN]);
        payload[0] = status;
        put_params(&mut payload[1..], params)?;
        let mut body = vec![0; ACK_BODY_LEN];
        body[0] = VERSION;
        let set = self.noise.set_psk(usize::from(PSK_POSITION), psk.as_slice());
        let message = &mut body[1..ACK_MAC1_AT];
        let written = set.and_then(|()| self.noise.write_message(payload.as_slice(), message));
        written.map_err(|_| HandshakeError::BadPublicKey)?;
        cookie::put_mac1(&self.remote, &mut body[..ACK_PADDING_AT]);
        let mut keys = session_keys(&mut self.noise);
        std::mem::swap(&mut keys.send, &mut keys.receive);
        keys.side = Side::Server;
        Ok(Accepted { body, keys })
    }
}

impl fmt::Debug for PendingInit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PendingInit");
        debug.field("remote", &self.remote).field("share", &self.share).finish_non_exhaustive()
    }
}
