//! The pages that are being sent, counted: a page is in memory as a whole, and its reader may be slow.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use anabranch_wire::site;
use hyper::body::{Body, Bytes, Frame, SizeHint};

/// Most bytes of all pages together.
const MOST: usize = 32 << 20;
/// Most bytes of the pages for one source.
const OF_A_SOURCE: usize = 8 << 20;
/// Most bytes of the pages for one site.
const OF_A_SITE: usize = 16 << 20;

/// Bytes sent in one piece.
const PIECE: usize = 128 << 10;

/// The bytes of pages by source.
#[derive(Debug, Default)]
pub(super) struct Pages(Mutex<BTreeMap<IpAddr, usize>>);

/// The body of a page, which counts until it is dropped.
pub(super) struct PageBody {
    pages: Arc<Pages>,
    source: IpAddr,
    page: String,
    sent: usize,
}

impl Pages {
    /// The body of a page for this source, if there is room for it.
    pub fn admit(self: &Arc<Self>, source: IpAddr, page: String) -> Option<PageBody> {
        let mut held = self.held();
        let all: usize = held.values().sum();
        let own = held.get(&source).copied().unwrap_or_default();
        let neighbours = held.iter().filter(|(other, _)| site(**other) == site(source));
        let of_site: usize = neighbours.map(|(_, bytes)| bytes).sum();
        let is_within = |held: usize, most: usize| held + page.len() <= most;
        if !is_within(all, MOST) || !is_within(of_site, OF_A_SITE) || !is_within(own, OF_A_SOURCE) {
            return None;
        }
        held.insert(source, own + page.len());
        Some(PageBody { pages: self.clone(), source, page, sent: 0 })
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PageBody {
    fn drop(&mut self) {
        let mut held = self.pages.held();
        let left = held.get(&self.source).map_or(0, |held| held.saturating_sub(self.page.len()));
        if left > 0 {
            held.insert(self.source, left);
        } else {
            held.remove(&self.source);
        }
    }
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    /// Pieces are copies, so that the last one, which outlives the body, does not keep the page.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let left = &self.page.as_bytes()[self.sent..];
        let piece = Bytes::copy_from_slice(&left[..left.len().min(PIECE)]);
        self.sent += piece.len();
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.sent == self.page.len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.page.len() - self.sent) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn pages_that_are_being_sent_are_bounded_for_a_source_and_in_all() {
        let pages = Arc::new(Pages::default());
        let page = || "x".repeat(1 << 20);
        let mut held: Vec<PageBody> = (0..8).map(|_| pages.admit(source(1), page()).unwrap()).collect();
        assert!(pages.admit(source(1), page()).is_none());
        drop(held.pop());
        assert!(pages.admit(source(1), page()).is_some());
        held.extend((0..25).map(|number| pages.admit(source(2 + number / 8), page()).unwrap()));
        assert!(pages.admit(source(9), page()).is_none());
        drop(held);
        assert!(pages.held().is_empty());
    }

    #[test]
    fn pages_for_all_networks_of_one_ipv6_site_leave_room_for_others() {
        let pages = Arc::new(Pages::default());
        let of_site = (0..20).map(|net| IpAddr::from([0x2001, 0xdb8, 0, net, 0, 0, 0, 0]));
        let held: Vec<_> = of_site.map(|source| pages.admit(source, "x".repeat(1 << 20))).collect();
        assert_eq!(held.iter().flatten().count(), 16);
        assert!(pages.admit(source(1), "x".repeat(1 << 20)).is_some());
    }

    #[tokio::test]
    async fn a_page_is_sent_in_pieces() {
        let page: String = (0..300_000_u32).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
        let mut body = Arc::new(Pages::default()).admit(source(1), page.clone()).unwrap();
        let mut received = Vec::new();
        while !body.is_end_stream() {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap();
            let piece = frame.unwrap().into_data().unwrap();
            assert!(piece.len() <= PIECE);
            received.extend_from_slice(&piece);
        }
        assert!(received == page.as_bytes());
    }
}
