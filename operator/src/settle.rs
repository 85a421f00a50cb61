//! Read your writes: an object is not acted on until the cache has seen what was last written for it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{Kept, Key, Store};

/// If the cache has not seen a write after this time, a fresh list is asked for.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What the cache must have seen of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Everything up to this version.
    pub version: u64,
    /// Objects that must be gone: their keys and uids.
    pub gone: HashSet<(Key, String)>,
}

impl Expected {
    /// A write made this version.
    pub fn wrote(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    /// The server says that the object does not exist.
    pub fn lost(&mut self, key: Key, uid: &str) {
        self.gone.insert((key, uid.to_owned()));
    }

    /// Whether the cache has seen it all.
    pub fn is_met<T: Kept>(&self, store: &Store<T>) -> bool {
        let present = |(key, uid): &(Key, String)| store.get(key).is_some_and(|object| object.uid() == uid);
        store.progress() >= self.version && !self.gone.iter().any(present)
    }

    fn join(&mut self, other: Self) {
        self.version = self.version.max(other.version);
        self.gone.extend(other.gone);
    }
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
    /// A write got no answer: only a fresh list tells whether it was done.
    pub unknown: bool,
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
        known.unknown |= writes.unknown;
    }

    /// Whether the cache has seen every write for the object, as far as `is_met` can tell.
    pub fn check(&self, key: &Key, is_met: impl Fn(&Writes) -> bool) -> Settled {
        let mut open = self.open();
        let Some((writes, since)) = open.get(key) else { return Settled::Yes };
        if writes.unknown {
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

    /// A list that began after the last write has been seen: whatever it shows is what was done.
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
    async fn a_write_without_an_answer_needs_a_fresh_list() {
        let settle = Settle::default();
        settle.expect(&key(), Writes { unknown: true, ..Writes::default() });
        assert_eq!(settle.check(&key(), |_| true), Settled::Overdue);
        settle.forget(&key());
        assert_eq!(settle.check(&key(), |_| true), Settled::Yes);
    }
}
