use super::*;
use data_encoding::HEXLOWER;
use snow::{Builder, HandshakeState};

/// Vector `Noise_IKpsk2_25519_AESGCM_SHA256` of the Cacophony collection.
const PROLOGUE: &str = "4a6f686e2047616c74";
const PSK: &str = "54686973206973206d7920417573747269616e20706572737065637469766521";
const INIT_STATIC: &str = "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1";
const INIT_EPHEMERAL: &str = "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a";
const RESP_PUBLIC: &str = "31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62";
const RESP_STATIC: &str = "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893";
const RESP_EPHEMERAL: &str = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";
const HASH: &str = "48c3f1eb397c797af6b139032c6074cb41282ff033ee25d5aee4a4badd3a2c3f";
const PAYLOADS: [&str; 4] = [
    "4c756477696720766f6e204d69736573",
    "4d757272617920526f746862617264",
    "462e20412e20486179656b",
    "4361726c204d656e676572",
];
const MESSAGES: [&str; 4] = [
    "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c79445a1baf339186d7867062b0dd31f5de322d370165\
     d217939b2b7ed9e2bae7840458ea65c2ce1554e0e8077fe7334c4bd514c658fd04d97b86d216f58f59714a7e24144155045c8f36\
     bed85a2cb0fd9af7",
    "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f1448088432fe8d675e949799d2a968211a66cc7ba2b0f4cad\
     8eda3c2bd37eae737bbf88",
    "38cbf3835c78b7802df0dd0d9640ff8575debd0cb61cfb52590da1",
    "ffc365ff6955fc66c5d809b31ac995f812c5770bd29f0df12f0ffd",
];

fn hex(text: &str) -> Vec<u8> {
    HEXLOWER.decode(text.as_bytes()).unwrap()
}

fn key(text: &str) -> [u8; 32] {
    hex(text).try_into().unwrap()
}

fn write(noise: &mut HandshakeState, payload: &str) -> String {
    let mut message = [0; 1024];
    let len = noise.write_message(&hex(payload), &mut message).unwrap();
    HEXLOWER.encode(&message[..len])
}

fn read(noise: &mut HandshakeState, message: &str) -> String {
    let mut payload = [0; 1024];
    let len = noise.read_message(&hex(message), &mut payload).unwrap();
    HEXLOWER.encode(&payload[..len])
}

fn open(key: [u8; 32], message: &str) -> String {
    let mut cipher = AesGcm::default();
    cipher.set(&key);
    let mut text = [0; 1024];
    let len = cipher.decrypt(0, &[], &hex(message), &mut text).unwrap();
    HEXLOWER.encode(&text[..len])
}

#[test]
fn our_primitives_under_snow_give_the_published_messages_hash_and_keys() {
    let seed = Zeroizing::new([0; 32]);
    let (prologue, psk) = (hex(PROLOGUE), key(PSK));
    let statics = [key(INIT_STATIC), key(RESP_STATIC)];
    let ephemerals = [key(INIT_EPHEMERAL), key(RESP_EPHEMERAL)];
    let remote = key(RESP_PUBLIC);
    let builder = |end: usize| {
        let pattern = "Noise_IKpsk2_25519_AESGCM_SHA256".parse().unwrap();
        let builder = Builder::with_resolver(pattern, Box::new(Resolver::new(&seed)));
        let builder = builder.local_private_key(&statics[end]).unwrap().prologue(&prologue).unwrap();
        builder.psk(2, &psk).unwrap().fixed_ephemeral_key_for_testing_only(&ephemerals[end])
    };
    let mut initiator = builder(0).remote_public_key(&remote).unwrap().build_initiator().unwrap();
    let mut responder = builder(1).build_responder().unwrap();
    assert_eq!(write(&mut initiator, PAYLOADS[0]), MESSAGES[0]);
    assert_eq!(read(&mut responder, MESSAGES[0]), PAYLOADS[0]);
    assert_eq!(write(&mut responder, PAYLOADS[1]), MESSAGES[1]);
    assert_eq!(read(&mut initiator, MESSAGES[1]), PAYLOADS[1]);
    for end in [&mut initiator, &mut responder] {
        assert_eq!(HEXLOWER.encode(end.get_handshake_hash()), HASH);
        let (to_responder, to_initiator) = end.dangerously_get_raw_split();
        assert_eq!(open(to_responder, MESSAGES[2]), PAYLOADS[2]);
        assert_eq!(open(to_initiator, MESSAGES[3]), PAYLOADS[3]);
    }
}

#[test]
fn different_seeds_and_different_draws_give_different_bytes() {
    let draws = |seed: u8| {
        let mut random = Seeded { seed: Zeroizing::new([seed; 32]), drawn: 0 };
        [(); 2].map(|()| {
            let mut bytes = [0; 32];
            random.try_fill_bytes(&mut bytes).unwrap();
            bytes
        })
    };
    let ([a, b], [c, d]) = (draws(1), draws(2));
    assert!(a != b && a != c && b != d && b != c);
    assert_eq!(draws(1), [a, b]);
}

/// The ephemeral secret derived from a seed, for the protocol's test vectors.
pub(crate) fn ephemeral(seed: [u8; 32]) -> [u8; 32] {
    let mut secret = [0; 32];
    Seeded { seed: Zeroizing::new(seed), drawn: 0 }.try_fill_bytes(&mut secret).unwrap();
    secret
}
