use super::*;

fn loopback() -> UdpSocket {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    UdpSocket::bind(&BindTo { address, interface: None }).unwrap()
}

async fn receive(socket: &UdpSocket) -> (Vec<u8>, Received) {
    let mut buffer = vec![0; 65_536];
    let empty =
        Received { remote: socket.local_addr(), len: 0, stride: 1, ecn: Ecn::NotEct, waited: Span::ZERO };
    let mut filled = [empty];
    loop {
        socket.readable().await.unwrap();
        match socket.receive(&mut [IoSliceMut::new(&mut buffer)], &mut filled) {
            Ok(_) => return (buffer[..filled[0].len].to_vec(), filled[0]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
}

#[tokio::test]
async fn a_batch_arrives_whole_in_order_and_marked() {
    let (sender, receiver) = (loopback(), loopback());
    let contents: Vec<u8> = (0..10 * 1200 + 7).map(|at| (at % 251) as u8).collect();
    let batch = Batch { remote: receiver.local_addr(), contents: &contents, segment: 1200, ecn: Ecn::Ect0 };
    sender.send(&batch).unwrap();
    let mut bytes = Vec::new();
    while bytes.len() < contents.len() {
        let (part, received) = receive(&receiver).await;
        // quinn-udp's receive times would push the mark of a batch out of the control buffer.
        assert_eq!(received.ecn, Ecn::Ect0);
        assert_eq!(received.remote, sender.local_addr());
        assert_eq!(received.stride.min(part.len()), 1200.min(part.len()));
        bytes.extend(part);
    }
    assert_eq!(bytes, contents);
    assert_eq!(sender.stats().sent, 11);
    assert_eq!((receiver.stats().received, receiver.stats().received_bytes), (11, 12_007));
}

#[tokio::test]
async fn a_datagram_longer_than_the_link_takes_is_counted_and_no_error() {
    let (sender, receiver) = (loopback(), loopback());
    let contents = vec![0; 65_530];
    let batch =
        Batch { remote: receiver.local_addr(), contents: &contents, segment: 65_530, ecn: Ecn::NotEct };
    sender.send(&batch).unwrap();
    assert_eq!((sender.stats().too_long, sender.stats().sent), (1, 0));
    assert_eq!(sender.refusal(receiver.local_addr()), Some(SendRefusal::TooLong));
    sender.send(&Batch { contents: &contents[..9], ..batch }).unwrap();
    assert_eq!(sender.refusal(receiver.local_addr()), None);
}

#[tokio::test]
async fn a_destination_that_refuses_offload_does_not_spoil_the_others() {
    let (sender, receiver) = (loopback(), loopback());
    // More segments than the system cuts in one call: it refuses.
    let contents = vec![7; 3000];
    let remote = receiver.local_addr();
    sender.send(&Batch { remote, contents: &contents, segment: 10, ecn: Ecn::NotEct }).unwrap();
    assert_eq!(sender.max_segments(remote), 1);
    assert_eq!(sender.stats().sent, 300);
    let other = loopback().local_addr();
    assert_eq!(sender.max_segments(other), MAX_SEGMENTS);
    sender.send(&Batch { remote: other, contents: &contents, segment: 1000, ecn: Ecn::NotEct }).unwrap();
    assert_eq!(sender.stats().sent, 303);
}

/// No socket can have port 0.
#[tokio::test]
async fn a_batch_of_datagrams_that_are_refused_singly_too_does_not_end_offload() {
    let (sender, nobody) = (loopback(), SocketAddr::from(([127, 0, 0, 1], 0)));
    sender.send(&Batch { remote: nobody, contents: &[7; 300], segment: 100, ecn: Ecn::NotEct }).unwrap();
    assert_eq!((sender.stats().failed, sender.max_segments(nobody)), (3, MAX_SEGMENTS));
}

/// After a refusal of a batch, and of a single datagram: no socket can have port 0.
#[tokio::test]
async fn marks_are_kept_after_something_was_refused() {
    let (sender, receiver, other) = (loopback(), loopback(), loopback());
    let contents = vec![7; 3000];
    let remote = receiver.local_addr();
    let marked = |remote, segment| Batch { remote, contents: &contents, segment, ecn: Ecn::Ect0 };
    let remote_of_nobody = SocketAddr::new(remote.ip(), 0);
    for (refused, segment) in [(remote, 10), (remote_of_nobody, contents.len())] {
        sender.send(&marked(refused, segment)).unwrap();
        sender.send(&marked(other.local_addr(), 1_000)).unwrap();
        let (_, received) = receive(&other).await;
        assert_eq!(received.ecn, Ecn::Ect0, "after {refused}");
    }
    assert_eq!(receive(&receiver).await.1.ecn, Ecn::Ect0, "of the refused batch itself");
}

#[tokio::test]
async fn on_a_kernel_that_damages_equal_batches_one_byte_follows_them() {
    let (sender, receiver) = (UdpSocket { needs_tail: true, ..loopback() }, loopback());
    let remote = receiver.local_addr();
    for (len, arrives) in [(2_400, 2_401), (2_300, 2_300), (1_200, 1_200)] {
        let contents = vec![7; len];
        let batch = Batch { remote, contents: &contents, segment: 1_200, ecn: Ecn::NotEct };
        sender.send(&batch).unwrap();
        sender.send_each(&[batch, batch]);
        let mut bytes = 0;
        while bytes < 3 * arrives {
            bytes += receive(&receiver).await.0.len();
        }
        assert_eq!(bytes, 3 * arrives);
    }
    assert_eq!((sender.stats().sent, receiver.stats().received), (15, 18));
}

#[tokio::test]
async fn a_taken_port_is_named_in_the_error() {
    let first = loopback();
    let address = first.local_addr();
    let error = UdpSocket::bind(&BindTo { address, interface: None }).unwrap_err();
    let text = explain_bind_error(&error, address).to_string();
    assert!(text.contains(&address.port().to_string()) && text.contains("another port"), "{text}");
}

#[tokio::test]
async fn buffers_are_asked_for_and_what_was_granted_is_told() {
    let (send, receive) = loopback().stats().buffers;
    assert!(send >= 64 << 10 && receive >= 64 << 10, "{send} {receive}");
}

async fn several_destinations_by_one_call(host: &str) {
    let bind = || {
        UdpSocket::bind(&BindTo { address: format!("{host}:0").parse().unwrap(), interface: None }).unwrap()
    };
    let (sender, receivers) = (bind(), [bind(), bind(), bind()]);
    let contents: Vec<u8> = (0..2 * 1200 + 7).map(|at| (at % 251) as u8).collect();
    let batches = receivers.each_ref().map(|receiver| Batch {
        remote: receiver.local_addr(),
        contents: &contents,
        segment: 1200,
        ecn: Ecn::Ect0,
    });
    sender.send_each(&batches);
    for receiver in &receivers {
        let mut bytes = Vec::new();
        while bytes.len() < contents.len() {
            let (part, received) = receive(receiver).await;
            assert_eq!(received.ecn, Ecn::Ect0);
            assert!(received.stride <= 1200, "{}", received.stride);
            bytes.extend(part);
        }
        assert_eq!(bytes, contents);
    }
    assert_eq!(sender.stats().sent, 9);
    if cfg!(target_os = "linux") {
        assert_eq!(sender.stats().send_calls, 1);
    }
}

#[tokio::test]
async fn batches_to_several_destinations_leave_by_one_call_marked_and_cut() {
    several_destinations_by_one_call("127.0.0.1").await;
    several_destinations_by_one_call("[::1]").await;
}

#[tokio::test]
async fn what_the_system_refuses_among_many_is_counted_and_the_others_leave() {
    let (sender, receiver) = (loopback(), loopback());
    let (short, long) = (vec![7; 100], vec![0; 65_530]);
    let batch =
        |contents| Batch { remote: receiver.local_addr(), contents, segment: 65_530, ecn: Ecn::NotEct };
    sender.send_each(&[batch(&short), batch(&long), batch(&short), batch(&long), batch(&short)]);
    assert_eq!((sender.stats().too_long, sender.stats().sent), (2, 3));
    for _ in 0..3 {
        assert_eq!(receive(&receiver).await.0, short);
    }
}
