use std::net::IpAddr;

use super::*;
use proptest::prelude::*;

fn sample() -> Ticket {
    Ticket {
        node: PublicKey::from_bytes([1; 32]),
        addresses: vec!["192.0.2.1:4000".parse().unwrap(), "[2001:db8::1]:4001".parse().unwrap()],
        relays: vec![RelayHint {
            node: PublicKey::from_bytes([2; 32]),
            addresses: vec!["198.51.100.7:9".parse().unwrap()],
        }],
        share: ShareId(0x0123_4567_89ab_cdef),
        secret: TicketSecret::from_random([0x5a; 16]),
        expires: Some(1_800_000_000),
    }
}

/// Any bytes with a right checksum.
fn sealed(bytes: &[u8]) -> String {
    text::encode::<CHECKSUM_LEN>(PREFIX, bytes).to_string()
}

#[test]
fn a_ticket_is_one_line_and_parses_back() {
    let text = sample().to_text();
    assert!(text.starts_with("anabranch1"));
    assert!(text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()));
    assert_eq!(text.parse(), Ok(sample()));
}

#[test]
fn a_ticket_survives_upper_case_white_space_and_broken_lines() {
    let text = sample().to_text();
    let (head, tail) = text.split_at(70);
    assert_eq!(format!("  {head}\r\n   {tail}\n").parse(), Ok(sample()));
    assert_eq!(text.to_uppercase().parse(), Ok(sample()));
}

#[test]
fn every_single_typing_mistake_is_found_and_explained() {
    let text = sample().to_text();
    for at in PREFIX.len()..text.len() {
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] = if bytes[at] == b'q' { b'r' } else { b'q' };
        let error = String::from_utf8(bytes).unwrap().parse::<Ticket>().unwrap_err();
        assert!(error.to_string().contains("was it copied whole?"), "at {at}: {error}");
        let error = text[..at].parse::<Ticket>().unwrap_err();
        assert!(error.to_string().contains("was it copied whole?"), "cut at {at}: {error}");
    }
}

#[test]
fn each_error_says_what_to_do() {
    let error = |text: &str| text.parse::<Ticket>().unwrap_err().to_string();
    assert_eq!(
        error("anabranch2qqqq"),
        "this ticket has format `2`, which this version does not know: update anabranch on this machine"
    );
    assert_eq!(error("hello"), "this is not a ticket: a ticket begins with `anabranch`");
    assert_eq!(error(""), "this is not a ticket: a ticket begins with `anabranch`");
    assert_eq!(error("anabranch"), "this is not a ticket: a ticket begins with `anabranch`");
    assert_eq!(error("änabränch1x"), "this is not a ticket: a ticket begins with `anabranch`");
    assert_eq!(
        error("anabranch1a!"),
        "this ticket holds a character that does not belong there: was it copied whole?"
    );
    assert_eq!(error(&sealed(b"short")), "this ticket's contents are malformed: ask for a new one");
}

#[test]
fn contents_with_counts_too_large_or_trailing_bytes_are_malformed() {
    let fixed = [0; 64];
    let malformed = |tail: &[u8]| sealed(&[&fixed, tail].concat()).parse::<Ticket>();
    assert!(malformed(&[0, 0]).is_ok());
    assert_eq!(malformed(&[0, 0, 0]), Err(TicketError::Malformed));
    assert_eq!(malformed(&[0]), Err(TicketError::Malformed));
    assert_eq!(malformed(&[1, 5, 1, 2, 3, 4, 0, 1, 0]), Err(TicketError::Malformed));
    let many: Vec<u8> = std::iter::once(17).chain([4, 1, 2, 3, 4, 0, 1].repeat(17)).chain([0]).collect();
    assert_eq!(malformed(&many), Err(TicketError::Malformed));
    let relays: Vec<u8> = [0, 9].into_iter().chain([0; 33].repeat(9)).collect();
    assert_eq!(malformed(&relays), Err(TicketError::Malformed));
}

#[test]
fn the_largest_ticket_fits_and_any_excess_is_left_out() {
    let address: SocketAddr = "[2001:db8::1]:4001".parse().unwrap();
    let relay = RelayHint { node: PublicKey::from_bytes([2; 32]), addresses: vec![address; 20] };
    let ticket = Ticket { addresses: vec![address; 20], relays: vec![relay; 20], ..sample() };
    let text = ticket.to_text();
    assert!(text.len() <= MAX_TEXT_LEN, "{}", text.len());
    let read: Ticket = text.parse().unwrap();
    assert_eq!((read.addresses.len(), read.relays.len(), read.relays[7].addresses.len()), (16, 8, 16));
    let huge = format!("anabranch1{}", "a".repeat(MAX_TEXT_LEN));
    assert_eq!(huge.parse::<Ticket>(), Err(TicketError::Damaged(TextError::Length)));
}

#[test]
fn the_secret_is_never_printed() {
    let shown = format!("{:?}", sample());
    assert!(shown.contains("TicketSecret(not shown)"));
    assert!(!shown.contains("5a5a") && !shown.contains("90, 90"));
}

fn any_address() -> impl Strategy<Value = SocketAddr> {
    (any::<bool>(), any::<[u8; 16]>(), any::<u16>()).prop_map(|(four, bytes, port)| {
        let [a, b, c, d, ..] = bytes;
        let ip = if four { IpAddr::from([a, b, c, d]) } else { IpAddr::from(bytes) };
        SocketAddr::new(ip, port)
    })
}

fn any_relay() -> impl Strategy<Value = RelayHint> {
    (any::<[u8; 32]>(), prop::collection::vec(any_address(), 0..=MAX_ADDRESSES))
        .prop_map(|(node, addresses)| RelayHint { node: PublicKey::from_bytes(node), addresses })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_ticket_survives_being_written_and_read(
        node in any::<[u8; 32]>(),
        secret in any::<[u8; 16]>(),
        share in any::<u64>(),
        expires in prop::option::of(1..=u64::MAX),
        addresses in prop::collection::vec(any_address(), 0..=MAX_ADDRESSES),
        relays in prop::collection::vec(any_relay(), 0..=MAX_RELAYS),
    ) {
        let ticket = Ticket {
            node: PublicKey::from_bytes(node),
            addresses,
            relays,
            share: ShareId(share),
            secret: TicketSecret::from_random(secret),
            expires,
        };
        prop_assert_eq!(ticket.to_text().parse(), Ok(ticket));
    }

    #[test]
    fn no_text_makes_the_decoder_panic(text in "(anabranch1?)?[a-z2-7 ]{0,200}|.{0,60}") {
        let _ = text.parse::<Ticket>();
        let _ = text.parse::<PublicKey>();
        let _ = crate::NodeKey::from_file_text(&text);
    }

    #[test]
    fn no_contents_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = sealed(&bytes).parse::<Ticket>();
    }
}
