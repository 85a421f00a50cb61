//! What the informers have seen, found by key or by index.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

/// Something that can be kept: slim, and decoded without building more than itself.
pub trait Kept: Send + Sync + Sized + 'static {
    /// The kind, for logs and metrics.
    const KIND: &'static str;
    /// The path of the collection in all namespaces.
    const PATH: &'static str;
    /// Reads it from the API server's JSON.
    fn decode(json: &str) -> Result<Self, serde_json::Error>;
    /// Its namespace and name.
    fn key(&self) -> Key;
    /// Its uid.
    fn uid(&self) -> &str;
    /// The version of the object.
    fn version(&self) -> u64;
    /// What it can be found by.
    fn index(&self) -> Option<Index>;
    /// Whether it can ever matter to us. What cannot is not kept.
    fn matters(&self) -> bool {
        true
    }
}

/// What objects can be found by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Index {
    /// The uid of the controller.
    Owner(String),
    /// Nobody controls it: the namespace.
    Orphan(String),
    /// The namespace.
    Namespace(String),
}

/// A change that was seen.
#[derive(Debug)]
pub struct Change<T> {
    /// What was known before.
    pub old: Option<Arc<T>>,
    /// What is known now.
    pub new: Option<Arc<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    objects: HashMap<Key, Arc<T>>,
    indexed: HashMap<Index, BTreeMap<Key, Arc<T>>>,
}

/// All objects of one kind.
#[derive(Debug)]
pub struct Store<T> {
    inner: RwLock<Inner<T>>,
    /// Everything up to this version has been seen.
    progress: watch::Sender<u64>,
    /// Whether there was a list.
    listed: watch::Sender<bool>,
    stalled: tokio::sync::Notify,
    /// When it was last said that the watch shows less than it should.
    stalled_at: Mutex<Option<Instant>>,
}

/// How often a watch is opened again at most because it shows less than it should.
const STALLED_AGAIN: Duration = Duration::from_secs(30);

impl<T: Kept> Default for Store<T> {
    fn default() -> Self {
        let inner = RwLock::new(Inner { objects: HashMap::new(), indexed: HashMap::new() });
        let (progress, listed) = (watch::Sender::new(0), watch::Sender::new(false));
        Self { inner, progress, listed, stalled: tokio::sync::Notify::new(), stalled_at: Mutex::default() }
    }
}

impl<T: Kept> Store<T> {
    fn read<R>(&self, look: impl FnOnce(&Inner<T>) -> R) -> R {
        look(&self.inner.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// One object.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.read(|inner| inner.objects.get(key).cloned())
    }

    /// All objects under an index, in the order of their keys.
    #[must_use]
    pub fn find(&self, index: &Index) -> Vec<Arc<T>> {
        self.read(|inner| inner.indexed.get(index).map(|found| found.values().cloned().collect()).unwrap_or_default())
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.read(|inner| inner.objects.keys().cloned().collect())
    }

    /// How many objects are such.
    pub fn count(&self, is_such: impl Fn(&T) -> bool) -> usize {
        self.read(|inner| inner.objects.values().filter(|object| is_such(object)).count())
    }

    /// How many objects are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read(|inner| inner.objects.len())
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything up to this version has been seen; 0 before the first list.
    #[must_use]
    pub fn progress(&self) -> u64 {
        *self.progress.borrow()
    }

    /// Returns when a list is here.
    pub async fn listed(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// The watch shows less than it should: if it is open, the informer opens it again.
    pub(crate) fn is_stalled(&self) {
        let mut last = self.stalled_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= STALLED_AGAIN) {
            *last = Some(Instant::now());
            tracing::warn!(kind = T::KIND, "a write was not seen; opening the watch again");
            self.stalled.notify_waiters();
        }
    }

    pub(crate) async fn watch_is_stalled(&self) {
        self.stalled.notified().await;
    }

    pub(crate) fn advance(&self, version: u64) {
        self.progress.send_if_modified(|progress| {
            let moved = version > *progress;
            *progress = version.max(*progress);
            moved
        });
    }

    /// Puts one object in place of what was there, or removes it.
    pub fn put(&self, key: &Key, new: Option<T>) -> Change<T> {
        let new = new.map(Arc::new);
        let mut inner = self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let old = inner.put(key, new.clone());
        Change { old, new }
    }

    /// Puts a complete list in place of everything. Objects that are no longer there are changes too.
    pub(crate) fn replace(&self, fresh: HashMap<Key, T>, version: u64) -> Vec<Change<T>> {
        let mut inner = self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let gone: Vec<Key> = inner.objects.keys().filter(|key| !fresh.contains_key(*key)).cloned().collect();
        let mut changes: Vec<Change<T>> = gone.iter().map(|key| Change { old: inner.put(key, None), new: None }).collect();
        for (key, object) in fresh {
            let known = inner.objects.get(&key).is_some_and(|old| old.uid() == object.uid() && old.version() == object.version());
            if !known {
                let new = Some(Arc::new(object));
                changes.push(Change { old: inner.put(&key, new.clone()), new });
            }
        }
        drop(inner);
        // A list is the truth, even where an older server answers with an older version.
        self.progress.send_modify(|progress| *progress = version.max(*progress));
        self.listed.send_replace(true);
        changes
    }
}

impl<T: Kept> Inner<T> {
    fn put(&mut self, key: &Key, new: Option<Arc<T>>) -> Option<Arc<T>> {
        let old = match &new {
            Some(object) => self.objects.insert(key.clone(), Arc::clone(object)),
            None => self.objects.remove(key),
        };
        if let Some(index) = old.as_ref().and_then(|old| old.index())
            && let Some(found) = self.indexed.get_mut(&index)
        {
            found.remove(key);
            if found.is_empty() {
                self.indexed.remove(&index);
            }
        }
        if let Some(object) = new
            && let Some(index) = object.index()
        {
            self.indexed.entry(index).or_default().insert(key.clone(), object);
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Thing {
        name: &'static str,
        owner: &'static str,
        version: u64,
    }

    impl Kept for Thing {
        const KIND: &'static str = "Thing";
        const PATH: &'static str = "/things";

        fn decode(json: &str) -> Result<Self, serde_json::Error> {
            serde_json::from_str::<serde_json::Value>(json).map(|_| thing("decoded", "", 0))
        }

        fn key(&self) -> Key {
            key(self.name)
        }

        fn uid(&self) -> &str {
            self.name
        }

        fn version(&self) -> u64 {
            self.version
        }

        fn index(&self) -> Option<Index> {
            Some(Index::Owner(self.owner.to_owned()))
        }
    }

    fn thing(name: &'static str, owner: &'static str, version: u64) -> Thing {
        Thing { name, owner, version }
    }

    fn key(name: &str) -> Key {
        Key { namespace: "play".to_owned(), name: name.to_owned() }
    }

    fn owned(store: &Store<Thing>, owner: &str) -> Vec<&'static str> {
        store.find(&Index::Owner(owner.to_owned())).iter().map(|thing| thing.name).collect()
    }

    #[test]
    fn an_index_follows_every_change() {
        let store = Store::default();
        store.put(&key("b"), Some(thing("b", "x", 1)));
        store.put(&key("a"), Some(thing("a", "x", 2)));
        assert_eq!(owned(&store, "x"), ["a", "b"]);
        store.put(&key("a"), Some(thing("a", "y", 3)));
        assert_eq!((owned(&store, "x"), owned(&store, "y")), (vec!["b"], vec!["a"]));
        store.put(&key("b"), None);
        assert!(owned(&store, "x").is_empty());
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn a_list_reports_what_vanished_and_what_changed_and_nothing_else() {
        let store = Store::default();
        let list = |things: Vec<Thing>| things.into_iter().map(|thing| (thing.key(), thing)).collect::<HashMap<_, _>>();
        store.replace(list(vec![thing("same", "x", 1), thing("older", "x", 2), thing("gone", "x", 3)]), 5);
        let changes = store.replace(list(vec![thing("same", "x", 1), thing("older", "x", 7), thing("new", "x", 8)]), 9);
        let mut seen: Vec<_> =
            changes.iter().map(|change| (change.old.as_ref().map(|old| old.name), change.new.as_ref().map(|new| new.name))).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(None, Some("new")), (Some("gone"), None), (Some("older"), Some("older"))]);
        assert_eq!(store.progress(), 9);
    }
}
