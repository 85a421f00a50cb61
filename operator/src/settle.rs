//! Read your writes: an object is not acted on until the cache has seen what was last written for it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::client::{CallError, Server};
use crate::store::{Kept, Key, Store};

/// If the cache has not seen a write after this time, the server is asked about it.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How many objects are looked up at once.
const AT_ONCE: usize = 16;

/// What the cache must have seen of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Everything up to this version.
    pub version: u64,
    /// Objects that were written, and the version that this made.
    pub written: HashMap<Key, u64>,
    /// Objects that must be gone: their keys and uids.
    pub gone: HashSet<(Key, String)>,
    /// Objects whose write got no answer: only the server can tell whether it was done.
    pub unanswered: HashSet<Key>,
}

impl Expected {
    /// A write made this version.
    pub fn wrote(&mut self, key: Key, version: u64) {
        self.version = self.version.max(version);
        self.written.insert(key, version);
    }

    /// The server says that the object does not exist.
    pub fn lost(&mut self, key: Key, uid: &str) {
        self.gone.insert((key, uid.to_owned()));
    }

    fn join(&mut self, other: Self) {
        self.version = self.version.max(other.version);
        self.written.extend(other.written);
        self.gone.extend(other.gone);
        self.unanswered.extend(other.unanswered);
    }
}

/// What was seen of one kind, whichever it is.
pub trait Cache: Send + Sync {
    /// Whether it has seen all that is expected.
    fn has_seen(&self, expected: &Expected) -> bool;
    /// Whether it stands still because of a list, or has done so until just now.
    fn is_listing(&self) -> bool;
    /// Asks the server about what is expected and was not seen.
    fn look_up<'a>(&'a self, server: &'a Server, expected: &'a Expected) -> BoxFuture<'a, Result<(), CallError>>;
}

impl<T: Kept> Cache for Store<T> {
    fn has_seen(&self, expected: &Expected) -> bool {
        let present = |(key, uid): &(Key, String)| self.get(key).is_some_and(|object| object.uid() == uid);
        self.progress() >= expected.version && expected.unanswered.is_empty() && !expected.gone.iter().any(present)
    }

    fn is_listing(&self) -> bool {
        self.last_list().is_none_or(|ended| ended.elapsed() < PATIENCE)
    }

    fn look_up<'a>(&'a self, server: &'a Server, expected: &'a Expected) -> BoxFuture<'a, Result<(), CallError>> {
        let is_behind = |(key, version): &(&Key, &u64)| self.get(key).is_none_or(|object| object.version() < **version);
        let behind = expected.written.iter().filter(is_behind).map(|(key, _)| key);
        let mut keys: HashSet<&Key> = behind.chain(expected.gone.iter().map(|(key, _)| key)).collect();
        if !keys.is_empty() {
            self.watch_again();
        }
        keys.extend(&expected.unanswered);
        let looked_up = futures::stream::iter(keys).map(move |key| async move {
            let found: Box<RawValue> = match server.get(&path::<T>(key)).await {
                Err(error) if error.is_not_found() => {
                    self.put(key, None);
                    return Ok(());
                }
                found => found?,
            };
            // What cannot be read or does not matter is not kept, here as elsewhere.
            self.put(key, T::decode(found.get()).ok().filter(T::matters));
            Ok(())
        });
        looked_up.buffer_unordered(AT_ONCE).try_collect().boxed()
    }
}

/// The path of one object, from that of all.
fn path<T: Kept>(key: &Key) -> String {
    let (group, plural) = T::PATH.rsplit_once('/').unwrap_or_default();
    format!("{group}/namespaces/{}/{plural}/{}", key.namespace, key.name)
}

/// What was written for one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writes {
    /// Of the object itself.
    pub object: Expected,
    /// Of its pods.
    pub pods: Expected,
    /// Of its revisions.
    pub revisions: Expected,
    /// Of its HookRuns.
    pub hook_runs: Expected,
    /// Of its PodDisruptionBudgets.
    pub budgets: Expected,
}

impl Writes {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether an object may be acted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The cache has seen every write.
    Yes,
    /// Not yet.
    No,
    /// Not after a long time: something was missed.
    Overdue,
}

/// What was written and not yet seen, by object.
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
        if writes.is_nothing() {
            return;
        }
        let mut open = self.open();
        let (known, since) = open.entry(key.clone()).or_insert_with(|| (Writes::default(), Instant::now()));
        *since = Instant::now();
        known.object.join(writes.object);
        known.pods.join(writes.pods);
        known.revisions.join(writes.revisions);
        known.hook_runs.join(writes.hook_runs);
        known.budgets.join(writes.budgets);
    }

    /// Whether the cache has seen every write for the object, as far as `is_met` can tell.
    pub fn check(&self, key: &Key, is_met: impl Fn(&Writes) -> bool) -> Settled {
        let mut open = self.open();
        let Some((writes, since)) = open.get(key) else { return Settled::Yes };
        let all = [&writes.object, &writes.pods, &writes.revisions, &writes.hook_runs, &writes.budgets];
        if all.iter().any(|expected| !expected.unanswered.is_empty()) {
            return Settled::Overdue;
        }
        if is_met(writes) {
            open.remove(key);
            return Settled::Yes;
        }
        if since.elapsed() < PATIENCE {
            return Settled::No;
        }
        Settled::Overdue
    }

    /// What is expected.
    pub fn expected(&self, key: &Key) -> Writes {
        self.open().get(key).map(|(writes, _)| writes.clone()).unwrap_or_default()
    }

    /// Every write was seen, or the server was asked about it.
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

    fn wrote(version: u64) -> Writes {
        Writes { pods: Expected { version, ..Expected::default() }, ..Writes::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_waits_for_its_newest_write() {
        let settle = Settle::default();
        settle.expect(&key(), wrote(7));
        settle.expect(&key(), wrote(5));
        assert_eq!(settle.check(&key(), |writes| writes.pods.version <= 6), Settled::No);
        assert_eq!(settle.check(&key(), |writes| writes.pods.version <= 7), Settled::Yes);
        assert_eq!(settle.check(&key(), |_| false), Settled::Yes, "nothing is expected any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_never_seen_does_not_freeze_the_object() {
        let settle = Settle::default();
        settle.expect(&key(), wrote(7));
        tokio::time::advance(PATIENCE).await;
        assert_eq!(settle.check(&key(), |_| false), Settled::Overdue);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_without_an_answer_is_looked_up() {
        let settle = Settle::default();
        let pods = Expected { unanswered: HashSet::from([key()]), ..Expected::default() };
        settle.expect(&key(), Writes { pods, ..Writes::default() });
        assert_eq!(settle.check(&key(), |_| true), Settled::Overdue);
        settle.forget(&key());
        assert_eq!(settle.check(&key(), |_| true), Settled::Yes);
    }
}
