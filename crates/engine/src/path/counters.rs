//! Counters of one path.

/// Counters of one path since it was opened. Bytes are UDP payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    pub packets_sent: u64,
    pub bytes_sent: u64,
    /// Stream and datagram bytes sent, including retransmissions, copies and parity.
    pub data_sent: u64,
    pub packets_received: u64,
    pub bytes_received: u64,
    /// Packets that have not arrived although later ones have: lost or still in flight.
    pub packets_missing: u64,
    /// New stream and datagram bytes received.
    pub data_received: u64,
    /// Stream and datagram bytes received that had arrived before.
    pub data_duplicate: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets declared lost that arrived after all.
    pub spurious_losses: u64,
    /// Times the window was reduced.
    pub congestion_events: u64,
    pub probe_timeouts: u64,
    /// Times it was given up.
    pub failures: u64,
    /// Acknowledgement frames sent for its packets.
    pub acks_sent: u64,
}
