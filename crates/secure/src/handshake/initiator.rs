//! The client's side of the handshake.

use std::fmt;

use anabranch_wire::Pid;
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::{
    ACK_BODY_LEN, ACK_MAC1_AT, ACK_PADDING_AT, CREDENTIAL_LEN, HandshakeError, INIT_BODY_LEN, INIT_MAC1_AT,
    INIT_MAC2_AT, INIT_PREFIX_LEN, PAYLOAD_1_LEN, PAYLOAD_2_LEN, PSK_POSITION, Refusal, SessionKeys, VERSION,
    builder, derive_psk, is_zero, params_in, put_params, session_keys,
};
use crate::cookie::{self, Cookie, CookieError};
use crate::keys::{NodeKey, PublicKey};
use crate::secret;
use crate::ticket::{ShareId, TicketSecret};

/// The node to open a session with, and the ticket used for it.
#[derive(Clone, Debug)]
pub struct Dial {
    /// The node's identity: no other node can answer.
    pub remote: PublicKey,
    /// The share and the secret of a ticket, if one is used.
    pub credential: Option<(ShareId, TicketSecret)>,
}

/// The client's side of one handshake. Copies of its INIT may be sent over any number of candidate paths, any number of
/// times; the first authentic INIT ACK completes it.
pub struct Initiator {
    noise: Box<HandshakeState>,
    /// The INIT, with mac2 zero.
    body: Vec<u8>,
    local: PublicKey,
    remote: PublicKey,
    psk: Option<Zeroizing<[u8; 32]>>,
}

impl Initiator {
    /// Makes the INIT. Cookies are sent to `reply_pid`, the INIT ACK to the PID inside `params`. `seed` must be 32 fresh
    /// random bytes, used for nothing else.
    pub fn new(
        local: &NodeKey,
        dial: &Dial,
        reply_pid: Pid,
        params: &[u8],
        seed: [u8; 32],
    ) -> Result<Self, HandshakeError> {
        let seed = secret::take(seed);
        let builder = builder(local, &seed).remote_public_key(dial.remote.as_bytes());
        let noise = builder.and_then(Builder::build_initiator);
        let mut noise = noise.map_err(|_| HandshakeError::BadPublicKey)?;

        let share = dial.credential.as_ref().map(|(share, _)| *share);
        let payload = init_payload(share, params)?;
        let mut body = vec![0; INIT_BODY_LEN];
        body[0] = VERSION;
        body[1..INIT_PREFIX_LEN].copy_from_slice(&reply_pid.0.to_be_bytes());
        let message = &mut body[INIT_PREFIX_LEN..INIT_MAC1_AT];
        noise.write_message(&payload, message).map_err(|_| HandshakeError::BadPublicKey)?;
        cookie::put_mac1(&dial.remote, &mut body[..INIT_MAC2_AT]);

        let psk = dial.credential.as_ref().map(|(share, secret)| derive_psk(*share, secret));
        Ok(Self { noise: Box::new(noise), body, local: local.public(), remote: dial.remote, psk })
    }

    /// The body of the INIT: always the same bytes, except for the mac2 that the candidate path's cookie adds.
    pub fn init_body(&self, cookie: Option<&Cookie>) -> Vec<u8> {
        let mut body = self.body.clone();
        if let Some(cookie) = cookie {
            cookie::put_mac2(cookie, &mut body);
        }
        body
    }

    /// Opens the body of a COOKIE that answers the INIT. The cookie is valid for the candidate path on which it returned (the
    /// address the server saw), for about two minutes.
    ///
    /// # Errors
    /// When it does not answer this INIT, or the server speaks another version.
    pub fn open_cookie(&self, body: &[u8]) -> Result<Cookie, CookieError> {
        cookie::open(&self.remote, &self.body, body)
    }

    /// Handles the body of an INIT ACK; returns the keys and the server's parameters. A forged one changes nothing: keep
    /// waiting for the real one.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`] is the server's final answer; after any other, keep waiting.
    pub fn handle_ack(&mut self, body: &[u8]) -> Result<(SessionKeys, Vec<u8>), HandshakeError> {
        let ours = body.len() == ACK_BODY_LEN && body[0] == VERSION && is_zero(&body[ACK_PADDING_AT..]);
        if !ours {
            return Err(HandshakeError::Malformed);
        }
        if !cookie::mac1_is_right(&cookie::mac1_key(&self.local), &body[..ACK_PADDING_AT]) {
            return Err(HandshakeError::NotAuthentic);
        }
        let message = &body[1..ACK_MAC1_AT];
        let zero = Zeroizing::new([0; 32]);
        let psk = self.psk.as_ref().unwrap_or(&zero).clone();
        match self.read(&psk, message) {
            Ok((0, params)) => Ok((session_keys(&mut self.noise), params)),
            Ok((code, _)) => Err(HandshakeError::Refused(Refusal::from_code(code))),
            // A server that does not know the ticket answers without its secret, and may only refuse.
            Err(error) if self.psk.is_some() => match self.read(&zero, message) {
                Ok((0, _)) | Err(_) => Err(error),
                Ok((code, _)) => Err(HandshakeError::Refused(Refusal::from_code(code))),
            },
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, psk: &[u8; 32], message: &[u8]) -> Result<(u8, Vec<u8>), HandshakeError> {
        let mut payload = Zeroizing::new([0; PAYLOAD_2_LEN]);
        self.noise.set_psk(usize::from(PSK_POSITION), psk).map_err(|_| HandshakeError::NotAuthentic)?;
        let read = self.noise.read_message(message, payload.as_mut_slice());
        read.map_err(|_| HandshakeError::NotAuthentic)?;
        Ok((payload[0], params_in(&payload[1..])?))
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator").field("remote", &self.remote).finish_non_exhaustive()
    }
}

fn init_payload(share: Option<ShareId>, params: &[u8]) -> Result<Zeroizing<Vec<u8>>, HandshakeError> {
    let mut payload = Zeroizing::new(vec![0; PAYLOAD_1_LEN]);
    if let Some(ShareId(share)) = share {
        payload[0] = 1;
        payload[1..CREDENTIAL_LEN].copy_from_slice(&share.to_be_bytes());
    }
    put_params(&mut payload[CREDENTIAL_LEN..], params)?;
    Ok(payload)
}
