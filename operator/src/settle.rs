//! Read your writes: an object is not reconciled until the caches have seen what was last written for it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use planner::request::Resource;
use tokio::time::Instant;

use crate::client::{CallError, Server, Written};
use crate::store::{Cached, Key, Store};

/// If the cache has not seen a write after this time, its watch is opened again.
pub const UNSEEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How many objects are looked up concurrently.
const AT_ONCE: usize = 16;

/// What the cache of one kind must have seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Everything up to this version.
    pub version: u64,
    /// Objects that must be gone: their keys and uids.
    pub gone: HashSet<(Key, String)>,
    /// Objects whose write got no answer: only the API server knows whether it was done.
    pub unanswered: HashSet<Key>,
}

impl Expected {
    /// A write resulted in this version.
    pub fn wrote(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// The API server reported that the object does not exist.
    pub fn lost(&mut self, key: Key, uid: &str) {
        self.gone.insert((key, uid.to_owned()));
    }

    /// Both.
    pub fn join(&mut self, other: Self) {
        self.version = self.version.max(other.version);
        self.gone.extend(other.gone);
        self.unanswered.extend(other.unanswered);
    }
}

/// The cache of one kind, whichever it is.
pub trait Cache: Send + Sync {
    /// Whether it has seen all that is expected.
    fn has_seen(&self, expected: &Expected) -> bool;
    /// The cache lacks something that it should have seen: its watch is opened again.
    fn watch_again(&self);
    /// Asks the API server about writes that got no answer, and returns what the cache must see of them.
    fn look_up<'a>(&'a self, server: &'a Server, unanswered: &'a HashSet<Key>) -> BoxFuture<'a, Result<Expected, CallError>>;
}

impl<T: Cached> Cache for Store<T> {
    fn has_seen(&self, expected: &Expected) -> bool {
        let present = |(key, uid): &(Key, String)| self.get(key).is_some_and(|object| object.uid() == uid);
        self.progress() >= expected.version && !expected.gone.iter().any(present)
    }

    fn watch_again(&self) {
        self.is_stalled();
    }

    fn look_up<'a>(&'a self, server: &'a Server, unanswered: &'a HashSet<Key>) -> BoxFuture<'a, Result<Expected, CallError>> {
        let paths: Vec<String> = unanswered.iter().map(path::<T>).collect();
        let one = move |path: String| async move {
            match server.get::<Written>(&path).await {
                Ok(found) => Ok(Some(found.metadata.version())),
                // The write was not done, or the object is gone and the watch reports that.
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        };
        async move {
            let found: Vec<Option<u64>> = futures::stream::iter(paths).map(one).buffer_unordered(AT_ONCE).try_collect().await?;
            let mut expected = Expected::default();
            found.into_iter().flatten().for_each(|version| expected.wrote(version));
            Ok(expected)
        }
        .boxed()
    }
}

/// The API path of one object.
pub(crate) fn path<T: Cached>(key: &Key) -> String {
    let (group, plural) = T::PATH.rsplit_once('/').unwrap_or_default();
    format!("{group}/namespaces/{}/{plural}/{}", key.namespace, key.name)
}

/// What was written for one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writes(BTreeMap<Resource, Expected>);

impl Writes {
    /// What is expected of one resource.
    pub fn of(&mut self, resource: Resource) -> &mut Expected {
        self.0.entry(resource).or_default()
    }

    /// What is expected, resource by resource.
    pub fn iter(&self) -> impl Iterator<Item = (Resource, &Expected)> {
        self.0.iter().map(|(resource, expected)| (*resource, expected))
    }

    fn join(&mut self, other: Self) {
        for (resource, expected) in other.0 {
            self.of(resource).join(expected);
        }
    }
}

/// Whether an object may be reconciled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The cache has seen every write.
    Yes,
    /// Not yet.
    No,
    /// Not after a long time.
    Overdue,
    /// A write got no answer.
    Unanswered,
}

/// Writes that the caches have not seen yet, by object.
#[derive(Debug, Default)]
pub struct Settle {
    open: Mutex<HashMap<Key, (Writes, Instant)>>,
}

impl Settle {
    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<Key, (Writes, Instant)>> {
        self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Remembers writes.
    pub fn expect(&self, key: &Key, writes: Writes) {
        if writes.iter().all(|(_, expected)| *expected == Expected::default()) {
            return;
        }
        let mut open = self.open();
        let (known, since) = open.entry(key.clone()).or_insert_with(|| (Writes::default(), Instant::now()));
        *since = Instant::now();
        known.join(writes);
    }

    /// Whether the cache has seen every write for the object, as far as `is_met` can tell.
    pub fn check(&self, key: &Key, is_met: impl Fn(&Writes) -> bool) -> Settled {
        let mut open = self.open();
        let Some((writes, since)) = open.get(key) else { return Settled::Yes };
        if writes.iter().any(|(_, expected)| !expected.unanswered.is_empty()) {
            return Settled::Unanswered;
        }
        if is_met(writes) {
            open.remove(key);
            return Settled::Yes;
        }
        if since.elapsed() < UNSEEN_TIMEOUT {
            return Settled::No;
        }
        Settled::Overdue
    }

    /// What is expected.
    pub fn expected(&self, key: &Key) -> Writes {
        self.open().get(key).map(|(writes, _)| writes.clone()).unwrap_or_default()
    }

    /// The API server was asked about writes that got no answer: `found` is what the caches must see of them.
    pub fn answered(&self, key: &Key, found: Vec<(Resource, Expected)>) {
        if let Some((writes, since)) = self.open().get_mut(key) {
            *since = Instant::now();
            writes.0.values_mut().for_each(|expected| expected.unanswered.clear());
            for (resource, found) in found {
                writes.of(resource).join(found);
            }
        }
    }

    /// The object is gone.
    pub fn forget(&self, key: &Key) {
        self.open().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key { namespace: "play".to_owned(), name: "game".to_owned() }
    }

    fn pods(expected: Expected) -> Writes {
        Writes([(Resource::Pod, expected)].into())
    }

    fn version(writes: &Writes) -> u64 {
        writes.0[&Resource::Pod].version
    }

    fn wrote(version: u64) -> Writes {
        pods(Expected { version, ..Expected::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_waits_for_its_newest_write() {
        let settle = Settle::default();
        settle.expect(&key(), wrote(7));
        settle.expect(&key(), wrote(5));
        assert_eq!(settle.check(&key(), |writes| version(writes) <= 6), Settled::No);
        assert_eq!(settle.check(&key(), |writes| version(writes) <= 7), Settled::Yes);
        assert_eq!(settle.check(&key(), |_| false), Settled::Yes, "nothing is expected any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_never_seen_does_not_freeze_the_object() {
        let settle = Settle::default();
        settle.expect(&key(), wrote(7));
        tokio::time::advance(UNSEEN_TIMEOUT).await;
        assert_eq!(settle.check(&key(), |_| false), Settled::Overdue);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_an_answer_is_looked_up() {
        let settle = Settle::default();
        settle.expect(&key(), pods(Expected { unanswered: HashSet::from([key()]), ..Expected::default() }));
        assert_eq!(settle.check(&key(), |_| true), Settled::Unanswered);
        let found = Expected { version: 9, ..Expected::default() };
        settle.answered(&key(), vec![(Resource::Pod, found)]);
        assert_eq!(settle.check(&key(), |writes| version(writes) < 9), Settled::No, "what was done is to be seen");
        assert_eq!(settle.check(&key(), |writes| version(writes) == 9), Settled::Yes);
    }
}
