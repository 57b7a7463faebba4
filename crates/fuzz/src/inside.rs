//! Bytes from strangers and authenticated peers for a proxy, an exit and a tunnel.

use anabranch_proxy::message::{Answer, Head, Request};
use anabranch_proxy::{http, socks4, socks5};
use anabranch_tunnel::coalesce::Coalescer;
use anabranch_tunnel::flow::FlowKey;
use anabranch_tunnel::offload::{VirtioHeader, split};
use anabranch_tunnel::packet::Header;
use anabranch_tunnel::{icmp, message, rewrite};
use bytes::{Bytes, BytesMut};

/// Bytes that programs send to a proxy's port, and that the two ends of a proxy send to each other.
pub fn proxy(input: &[u8]) {
    let read = [
        http::request(input).ok().flatten().map(|(_, len)| len),
        socks4::request(input).ok().flatten().map(|(_, len)| len),
        socks5::greeting(input).ok().flatten().map(|(_, len)| len),
        socks5::request(input).ok().flatten().map(|(_, len)| len),
    ];
    for len in read.into_iter().flatten() {
        assert!((1..=input.len()).contains(&len), "{len} of {} bytes", input.len());
    }
    if let Ok((_, payload)) = socks5::datagram(input) {
        assert!(payload.len() < input.len());
    }
    if let Ok(head) = Head::read(input) {
        assert_eq!(Head::read(&head.to_bytes()), Ok(head));
    }
    let _ = Head::length(input);
    let _ = serde_json::from_slice::<Request>(input);
    let _ = serde_json::from_slice::<Answer>(input);
}

/// Packets from a TUN device and from the far end, and the messages of a tunnel's ends.
pub fn tunnel(input: &[u8]) {
    if let Ok(request) = message::read::<message::Request>(input) {
        let line = message::write(&request);
        assert_eq!(message::read(&line), Ok(request));
    }
    let _ = message::read::<message::Answer>(input);
    packet(input);
    if let Some((header, packet)) = VirtioHeader::read(input)
        && let Some(packets) = split(&header, packet, &mut BytesMut::new())
    {
        // Each segment holds at least its headers and a byte, so the work is bounded by the bytes read.
        assert!(packets.len() <= packet.len().max(1));
    }
}

fn packet(input: &[u8]) {
    let Some(header) = Header::read(input) else { return };
    let key = FlowKey::of(&header, input);
    assert_eq!(key.hash(7), FlowKey::of(&header, input).hash(7));
    let mut changed = input.to_vec();
    rewrite::clamp_segment_size(&mut changed, 1280);
    rewrite::mark_congestion(&mut changed);
    assert_eq!(changed.len(), input.len());
    assert_eq!(Header::read(&changed).map(|header| FlowKey::of(&header, &changed)), Some(key));
    if let Some(answer) = icmp::too_big(input, 1280) {
        assert!(answer.len() <= 1280);
        assert!(Header::read(&answer).is_some());
    }
    let mut coalescer = Coalescer::new(true);
    let copies = 3;
    for _ in 0..copies {
        coalescer.push(Bytes::copy_from_slice(input));
    }
    assert!(coalescer.drain().count() <= copies);
}
