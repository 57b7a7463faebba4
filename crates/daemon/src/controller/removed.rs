//! Revokes the grants of clients that the configuration no longer lists, and tries again until all are revoked.

use std::sync::atomic::Ordering;

use anabranch_net::PublicKey;
use anabranch_overlay::controller::{StoreError, unlisted};

use super::Watch;

/// Revokes the grants of a client; relays end its paths with their next heartbeat. False if some are left. Only the
/// first failure is a warning.
pub(super) async fn revoke_all(watch: Watch, client: PublicKey, is_first: bool) -> bool {
    let error = match watch.revoke(client, None).await {
        Ok(grants) => {
            let count = grants.len();
            if count > 0 {
                tracing::info!(%client, count, "grants revoked: the configuration no longer lists this key");
            }
            return true;
        }
        Err(error) => error,
    };
    if is_first {
        tracing::warn!(
            %client,
            "its grants cannot be revoked though the configuration no longer lists this key: {error}; trying again"
        );
    } else {
        tracing::debug!(%client, %error, "its grants cannot be revoked yet");
    }
    false
}

/// Revokes the grants of all clients that the policy does not list, if that is due. Clients may have been taken off the
/// list while this controller did not run. `is_first` is false while it is tried again.
pub(super) async fn check(watch: &Watch, is_first: &mut bool) -> Result<(), StoreError> {
    let due = &watch.shared.unchecked;
    if !due.swap(false, Ordering::Relaxed) {
        return Ok(());
    }
    let done = revoke_unlisted(watch, *is_first).await;
    if done != Ok(true) {
        due.store(true, Ordering::Relaxed);
    }
    *is_first = done != Ok(false);
    done.map(|_| ())
}

/// Whether nothing is left to be revoked.
async fn revoke_unlisted(watch: &Watch, is_first: bool) -> Result<bool, StoreError> {
    let policy = watch.shared.policy();
    let mut is_done = true;
    for client in unlisted(&watch.shared.store, |client| policy.quota(client).is_ok()).await? {
        is_done &= revoke_all(watch.clone(), client, is_first).await;
    }
    Ok(is_done)
}

#[cfg(test)]
mod tests {
    use anabranch_net::NodeKey;
    use anabranch_overlay::controller::{Commit, Store, Transaction};

    use super::super::{ControllerService, config::ControllerSettings};
    use super::*;

    /// Writes a client's record with one grant at these relays.
    async fn put(watch: &Watch, client: &PublicKey, relays: &str) {
        let grant = format!(
            r#"{{"relays":[{relays}],"pids":2,"rate":1,"bytes":1,"tos":0,"issued":1,"until":99999999999}}"#
        );
        let record = format!(
            r#"{{"version":1,"touched":0,"grants":{{"1-0000000000000000":{grant}}},"answered":{{}}}}"#
        );
        let writes = vec![(format!("client/{client}"), Some(record.into_bytes()))];
        let transaction = Transaction { expect: Vec::new(), writes };
        assert_eq!(watch.shared.store.commit(&transaction).await, Ok(Commit::Committed));
    }

    #[tokio::test]
    async fn a_grant_that_cannot_be_revoked_is_tried_again() {
        let settings = "key = \"k\"\nport = 0\naddresses = [\"127.0.0.1\"]\n[store]\nmemory = true\n";
        let settings = ControllerSettings::parse(settings, "controller.toml").expect("settings");
        let service = ControllerService::start(NodeKey::from_random([7; 32]), &settings).await;
        let service = service.expect("it starts");
        // Otherwise they check too.
        service.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let (watch, client) = (service.watch(), NodeKey::from_random([8; 32]).public());
        let is_due = || watch.shared.unchecked.load(Ordering::Relaxed);
        let mut is_first = true;
        put(&watch, &client, "\"no key\"").await;
        assert!(is_due());
        assert_eq!(check(&watch, &mut is_first).await, Ok(()));
        assert!(is_due() && !is_first);
        put(&watch, &client, "").await;
        assert_eq!(check(&watch, &mut is_first).await, Ok(()));
        assert!(!is_due() && is_first);
        assert_eq!(watch.grants(client).await, Ok(Vec::new()));
    }
}
