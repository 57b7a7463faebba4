//! Two controllers that each know another relay: their decisions about one client share only its record.

use super::*;

type Act<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Runs another decision before the first transaction.
struct Meanwhile<'a> {
    inner: &'a MemoryStore,
    act: Mutex<Option<Act<'a>>>,
}

impl Store for Meanwhile<'_> {
    async fn get(&self, keys: &[String]) -> Result<Vec<Entry>, StoreError> {
        self.inner.get(keys).await
    }

    async fn range(&self, prefix: &str, after: &str) -> Result<Vec<(String, Entry)>, StoreError> {
        self.inner.range(prefix, after).await
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Commit, StoreError> {
        if let Some(act) = self.act.lock().unwrap().take() {
            act();
        }
        self.inner.commit(transaction).await
    }
}

/// Two relays and two directories; each has heard only one of them.
fn two_relays() -> (World, [Mutex<Directory>; 2]) {
    let world = World::new(2);
    let of = |seed| {
        let mut directory = Directory::default();
        directory.hear(world.now, (key(seed), 7), Load::default()).unwrap();
        directory.note(key(seed), world.relay(seed));
        Mutex::new(directory)
    };
    let directories = [of(100), of(101)];
    (world, directories)
}

/// The answers of two controllers, of which the second decides while the first is about to commit.
fn both(
    world: &World,
    directories: &[Mutex<Directory>; 2],
    asks: [&Ask; 2],
) -> [Result<Approved, ControlError>; 2] {
    let second = Mutex::new(None);
    let act = || {
        let controller = Controller { directory: &directories[1], ..world.controller() };
        *second.lock().unwrap() = Some(run(allocate(&controller, world.clocks(), key(1), asks[1])));
    };
    let store = Meanwhile { inner: &world.store, act: Mutex::new(Some(Box::new(act))) };
    let controller = Controller { store: &store, policy: &world.policy, directory: &directories[0] };
    let first = run(allocate(&controller, world.clocks(), key(1), asks[0]));
    drop(store);
    [first, second.into_inner().unwrap().expect("it was asked")]
}

fn reserved(world: &World) -> [u64; 2] {
    [100, 101].map(|seed| world.relay(seed).reserved(world.wall).pids)
}

#[test]
fn one_request_that_two_controllers_decide_at_once_over_different_relays_gets_one_grant() {
    let (world, directories) = two_relays();
    let request = ask(START, 1, 1, limits(4, 20));
    let [first, second] = both(&world, &directories, [&request; 2]);
    assert_eq!(first, second);
    assert_eq!(second.unwrap().grant().relays, [key(101)]);
    assert_eq!(reserved(&world), [0, 4]);
}

#[test]
fn a_quota_is_not_given_twice_by_two_controllers_at_once_over_different_relays() {
    let (world, directories) = two_relays();
    let asks = [1, 2].map(|number| ask(START, number, 1, limits(16, 20)));
    let [first, second] = both(&world, &directories, [&asks[0], &asks[1]]);
    assert!(matches!(first, Err(ControlError::Denied(Denied::Quota { what: "PIDs", .. }))), "{first:?}");
    assert!(second.is_ok());
    assert_eq!(reserved(&world), [0, 16]);
}
