//! Tries the addresses of a server one after the other with a head start each (RFC 8305). The first connection wins.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long all addresses together may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The next address is tried when the one before has not answered after this long (RFC 8305 §5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Most addresses that are tried.
const MOST_TRIED: usize = 8;

/// Makes an `attempt` at each address until one succeeds. Of two failures, `telling` chooses the one to report.
///
/// # Errors
/// Why no attempt succeeded; `None` when no address answered in time, or the list is empty.
pub async fn race<T, E, F>(
    addresses: Vec<SocketAddr>,
    attempt: impl Fn(SocketAddr) -> F,
    telling: impl Fn(E, E) -> E,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let mut waiting = interleaved(addresses);
    waiting.truncate(MOST_TRIED);
    let (mut trying, mut worst) = (JoinSet::new(), None);
    let racing = async {
        loop {
            match waiting.pop_front() {
                Some(next) => drop(trying.spawn(attempt(next))),
                None if trying.is_empty() => return Err(worst.take()),
                None => {}
            }
            tokio::select! {
                Some(ended) = trying.join_next() => match ended {
                    Ok(Ok(connection)) => return Ok(connection),
                    Ok(Err(error)) => {
                        worst = Some(match worst.take() {
                            Some(before) => telling(before, error),
                            None => error,
                        });
                    }
                    Err(error) => tracing::debug!(%error, "an attempt to connect was lost"),
                },
                () = sleep(HEAD_START), if !waiting.is_empty() => {}
            }
        }
    };
    timeout(PATIENCE, racing).await.unwrap_or(Err(None))
}

/// The addresses of both families by turns, the first one's family first (RFC 8305 §4): many of one family do not hide
/// the other.
fn interleaved(addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut one, mut other): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first);
    let mut all = VecDeque::new();
    while let Some(next) = one.pop_front() {
        all.push_back(next);
        std::mem::swap(&mut one, &mut other);
        if one.is_empty() {
            std::mem::swap(&mut one, &mut other);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 1);
        let all = ["::1", "::2", "::3", "192.0.2.1"].map(address).to_vec();
        let order: Vec<String> = interleaved(all).iter().map(|address| address.ip().to_string()).collect();
        assert_eq!(order, ["::1", "192.0.2.1", "::2", "::3"]);
        let begins_with_v4 = ["192.0.2.1", "::1"].map(address).to_vec();
        assert_eq!(interleaved(begins_with_v4.clone()), begins_with_v4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_slow_gets_company_and_the_more_telling_failure_is_reported() {
        let addresses: Vec<SocketAddr> = (1..=3).map(|last| ([192, 0, 2, last], 1).into()).collect();
        // The first never answers, the second fails late, the third succeeds later still.
        let attempt = |at: SocketAddr| async move {
            match at.to_string().as_str() {
                "192.0.2.1:1" => std::future::pending().await,
                "192.0.2.2:1" => sleep(HEAD_START * 4).await,
                _ => sleep(HEAD_START * 6).await,
            }
            if at.to_string() == "192.0.2.3:1" { Ok(at) } else { Err(2) }
        };
        let begin = tokio::time::Instant::now();
        assert_eq!(race(addresses.clone(), attempt, |_, later| later).await, Ok(addresses[2]));
        assert_eq!(begin.elapsed(), HEAD_START * 8);
        let failing = |at: SocketAddr| async move { Err::<(), _>(at.ip().to_string()) };
        assert_eq!(race(addresses.clone(), failing, |one, _| one).await, Err(Some("192.0.2.1".to_owned())));
        let silent = |_| std::future::pending::<Result<(), ()>>();
        assert_eq!(race(addresses, silent, |_, later| later).await, Err(None));
    }
}
