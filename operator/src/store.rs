//! The caches that informers fill, with lookup by key or by index.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};
use std::time::Duration;

use planner::facts::text::Strings;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::allowance::Allowance;
use crate::fair::Turns;

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

/// An object in a cache: it has only the fields that are needed, and is decoded without building the rest.
pub trait Cached: Send + Sync + Sized + 'static {
    /// The kind, for logs and metrics.
    const KIND: &'static str;
    /// The path of the collection in all namespaces.
    const PATH: &'static str;
    /// Whether every workload needs it.
    const IS_CORE: bool = false;
    /// Reads it from the API server's JSON.
    fn decode(json: &str) -> Result<Self, serde_json::Error>;
    /// Replaces strings by those that other objects of the kind have.
    fn share(&mut self, _: &mut Strings) {}
    /// Its name.
    fn name(&self) -> &str;
    /// Its namespace; empty if it has none.
    fn namespace(&self) -> &str;
    /// Its namespace and name.
    fn key(&self) -> Key {
        Key { namespace: self.namespace().to_owned(), name: self.name().to_owned() }
    }
    /// Its uid.
    fn uid(&self) -> &str;
    /// The version of the object.
    fn version(&self) -> u64;
    /// The index entry that it is found by.
    fn index(&self) -> Option<Index>;
    /// Whether it is kept. Objects that can never affect a decision are not.
    fn matters(&self) -> bool {
        true
    }
    /// How many bytes of its namespace's allowance it needs; 0 if it is cut.
    fn size(&self) -> usize {
        0
    }
    /// Why not all of its fields are kept.
    fn too_large(&self) -> Option<&str> {
        None
    }
    /// Drops the fields that can be large. The object still counts as existing, and `why` is what its workload reports.
    fn cut(&mut self, _why: String) {}
}

/// Index entries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Index {
    /// Its controller.
    Owner(OwnerKey),
    /// It has no controller: the namespace.
    Orphan(String),
    /// The namespace.
    Namespace(String),
}

/// A controller as an owner reference names it. Any user can write owner references: all fields have to match.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerKey {
    /// The kind, which is one of the operator's own.
    pub kind: String,
    /// The namespace, which is that of the object itself, and the controller's name.
    pub key: Key,
    /// The uid.
    pub uid: String,
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
    indexed: HashMap<Index, BTreeSet<ByName<T>>>,
    /// Objects that are cut because their namespace has no room.
    cut: BTreeMap<Key, Cut>,
    /// What they have in common.
    strings: Strings,
}

/// An object among those of one index, all of which are in one namespace.
#[derive(Debug)]
struct ByName<T>(Arc<T>);

impl<T: Cached> Borrow<str> for ByName<T> {
    fn borrow(&self) -> &str {
        self.0.name()
    }
}

impl<T: Cached> PartialEq for ByName<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl<T: Cached> Eq for ByName<T> {}

impl<T: Cached> PartialOrd for ByName<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Cached> Ord for ByName<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name().cmp(other.0.name())
    }
}

/// An object of which not all fields are kept.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// The bytes that the whole object needs.
    size: usize,
    version: u64,
}

/// A list that is not complete yet.
#[derive(Debug)]
pub(crate) struct Fresh<T> {
    objects: HashMap<Key, T>,
    /// Objects that are cut.
    cut: BTreeMap<Key, Cut>,
    used: HashMap<String, usize>,
    strings: Strings,
}

impl<T: Cached> Fresh<T> {
    pub(crate) fn new() -> Self {
        Self { objects: HashMap::new(), cut: BTreeMap::new(), used: HashMap::new(), strings: Strings::default() }
    }

    /// Adds an object to the list. It is cut if the list alone would exceed the allowance of its namespace.
    pub(crate) fn insert(&mut self, mut object: T, allowance: &Allowance) {
        let (key, size) = (object.key(), object.size());
        self.remove(&key);
        let used = self.used.entry(key.namespace.clone()).or_default();
        if allowance.is_exceeded_by(used.saturating_add(size)) {
            object.cut(allowance.words(&key.namespace));
            self.cut.insert(key.clone(), Cut { size, version: object.version() });
            if !object.matters() {
                return;
            }
        } else {
            *used += size;
        }
        object.share(&mut self.strings);
        self.objects.insert(key, object);
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.cut.remove(key);
        if let Some(old) = self.objects.remove(key)
            && let Some(used) = self.used.get_mut(&key.namespace)
        {
            *used = used.saturating_sub(old.size());
        }
    }
}

/// All objects of one kind.
#[derive(Debug)]
pub struct Store<T> {
    inner: RwLock<Inner<T>>,
    allowance: Arc<Allowance>,
    /// Everything up to this version has been seen.
    progress: watch::Sender<u64>,
    /// Whether the first list is complete.
    listed: watch::Sender<bool>,
    stalled: tokio::sync::Notify,
    /// When the watch was last reported as stalled.
    stalled_at: Mutex<Option<Instant>>,
}

/// The least time between two restarts of a watch that is reported as stalled.
const STALLED_AGAIN: Duration = Duration::from_secs(30);

impl<T: Cached> Default for Store<T> {
    fn default() -> Self {
        Self::within(Arc::default())
    }
}

impl<T: Cached> Store<T> {
    /// An empty store whose objects share the memory allowance of their namespaces.
    #[must_use]
    pub fn within(allowance: Arc<Allowance>) -> Self {
        let inner =
            RwLock::new(Inner { objects: HashMap::new(), indexed: HashMap::new(), cut: BTreeMap::new(), strings: Strings::default() });
        let (progress, listed) = (watch::Sender::new(0), watch::Sender::new(false));
        Self { inner, allowance, progress, listed, stalled: tokio::sync::Notify::new(), stalled_at: Mutex::default() }
    }

    pub(crate) fn allowance(&self) -> &Allowance {
        &self.allowance
    }

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
        self.read(|inner| inner.indexed.get(index).map(|found| found.iter().map(|one| Arc::clone(&one.0)).collect()).unwrap_or_default())
    }

    /// All keys.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        self.read(|inner| inner.objects.keys().cloned().collect())
    }

    /// All objects.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<T>> {
        self.read(|inner| inner.objects.values().cloned().collect())
    }

    /// How many objects satisfy `is_such`.
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

    /// Whether the first list is complete.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// The first list is complete.
    pub fn set_listed(&self) {
        self.listed.send_replace(true);
    }

    /// Returns when the first list is complete.
    pub async fn listed(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// The watch has not shown a write that it should have: if it is open, the informer opens it again.
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

    /// Stores an object in place of the previous one, or removes it.
    pub fn put(&self, key: &Key, new: Option<T>) -> Change<T> {
        self.write().put(key, new, &self.allowance)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<T>> {
        self.inner.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Replaces all objects with a complete list. Objects that are missing in it are reported as changes too.
    pub(crate) fn replace(&self, mut fresh: Fresh<T>, version: u64) -> Vec<Change<T>> {
        let mut inner = self.write();
        let gone: Vec<Key> = inner.objects.keys().filter(|key| !fresh.objects.contains_key(*key)).cloned().collect();
        let mut changes: Vec<Change<T>> = gone.iter().map(|key| inner.put(key, None, &self.allowance)).collect();
        inner.cut.retain(|key, _| fresh.objects.contains_key(key));
        for (key, object) in fresh.objects {
            let known = inner.objects.get(&key).is_some_and(|old| old.uid() == object.uid() && old.version() == object.version());
            if known {
                fresh.cut.remove(&key);
            } else {
                changes.push(inner.put(&key, Some(object), &self.allowance));
            }
        }
        inner.cut.extend(fresh.cut);
        drop(inner);
        // An API server that lags behind can list an older version: its list is taken over, but the progress does not go back.
        self.progress.send_modify(|progress| *progress = version.max(*progress));
        self.set_listed();
        changes
    }

    /// At most `most` objects that are cut although their namespace has room again, round-robin between namespaces.
    pub(crate) fn to_restore(&self, most: usize) -> Vec<Key> {
        let mut turns = Turns::default();
        self.read(|inner| {
            let has_room = |(key, cut): &(&Key, &Cut)| self.allowance.has_room(&key.namespace, cut.size);
            inner.cut.iter().filter(has_room).for_each(|(key, _)| turns.push(&key.namespace, key.clone()));
        });
        std::iter::from_fn(|| turns.pop()).take(most).collect()
    }

    /// Replaces a cut object with the whole one if it is the same version; newer versions come from the watch.
    pub(crate) fn restore(&self, whole: T) -> Option<Change<T>> {
        let key = whole.key();
        let mut inner = self.write();
        let is_same = inner.cut.get(&key).is_some_and(|cut| cut.version == whole.version());
        let has_room = self.allowance.has_room(&key.namespace, whole.size());
        (is_same && has_room).then(|| inner.put(&key, Some(whole), &self.allowance))
    }
}

impl<T: Cached> Inner<T> {
    fn put(&mut self, key: &Key, new: Option<T>, allowance: &Allowance) -> Change<T> {
        let old = self.objects.remove(key);
        if let Some(old) = &old {
            allowance.give(&key.namespace, old.size());
        }
        if let Some(index) = old.as_ref().and_then(|old| old.index())
            && let Some(found) = self.indexed.get_mut(&index)
        {
            found.remove(key.name.as_str());
            if found.is_empty() {
                self.indexed.remove(&index);
            }
        }
        self.cut.remove(key);
        let new = new.and_then(|new| self.fit(key, new, allowance)).map(Arc::new);
        if let Some(object) = &new {
            self.objects.insert(key.clone(), Arc::clone(object));
            if let Some(index) = object.index() {
                self.indexed.entry(index).or_default().insert(ByName(Arc::clone(object)));
            }
        }
        Change { old, new }
    }

    /// The object as it is kept: cut if its namespace has no room, none if it is not needed.
    fn fit(&mut self, key: &Key, mut object: T, allowance: &Allowance) -> Option<T> {
        let size = object.size();
        if !allowance.take(&key.namespace, size) {
            object.cut(allowance.words(&key.namespace));
            self.cut.insert(key.clone(), Cut { size, version: object.version() });
        }
        object.share(&mut self.strings);
        Some(object).filter(T::matters)
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

    impl Cached for Thing {
        const KIND: &'static str = "Thing";
        const PATH: &'static str = "/things";

        fn decode(json: &str) -> Result<Self, serde_json::Error> {
            serde_json::from_str::<serde_json::Value>(json).map(|_| thing("decoded", "", 0))
        }

        fn name(&self) -> &str {
            self.name
        }

        fn namespace(&self) -> &'static str {
            "play"
        }

        fn uid(&self) -> &str {
            self.name
        }

        fn version(&self) -> u64 {
            self.version
        }

        fn index(&self) -> Option<Index> {
            Some(Index::Owner(owner(self.owner)))
        }
    }

    fn thing(name: &'static str, owner: &'static str, version: u64) -> Thing {
        Thing { name, owner, version }
    }

    fn key(name: &str) -> Key {
        Key { namespace: "play".to_owned(), name: name.to_owned() }
    }

    fn owner(name: &str) -> OwnerKey {
        OwnerKey { kind: "Game".to_owned(), key: key(name), uid: name.to_owned() }
    }

    fn owned(store: &Store<Thing>, name: &str) -> Vec<&'static str> {
        store.find(&Index::Owner(owner(name))).iter().map(|thing| thing.name).collect()
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

    /// An object with a size, which is 0 when it is cut.
    #[derive(Debug)]
    struct Large(Thing, usize, bool);

    impl Cached for Large {
        const KIND: &'static str = "Large";
        const PATH: &'static str = "/larges";

        fn decode(json: &str) -> Result<Self, serde_json::Error> {
            Thing::decode(json).map(|thing| Self(thing, 0, false))
        }

        fn name(&self) -> &str {
            self.0.name()
        }

        fn namespace(&self) -> &str {
            self.0.namespace()
        }

        fn uid(&self) -> &str {
            self.0.uid()
        }

        fn version(&self) -> u64 {
            self.0.version
        }

        fn index(&self) -> Option<Index> {
            self.0.index()
        }

        fn size(&self) -> usize {
            if self.2 { 0 } else { self.1 }
        }

        fn cut(&mut self, why: String) {
            assert!(why.contains("namespace play"), "{why}");
            self.2 = true;
        }
    }

    fn large(name: &'static str, version: u64, size: usize) -> Large {
        Large(thing(name, "x", version), size, false)
    }

    #[test]
    fn what_a_namespace_has_no_room_for_is_cut_and_comes_back_when_there_is_room() {
        let allowance = Arc::new(Allowance::of(100));
        let (store, other) = (Store::within(Arc::clone(&allowance)), Store::within(allowance));
        let is_cut = |store: &Store<Large>, name: &str| store.get(&key(name)).unwrap().2;
        store.put(&key("a"), Some(large("a", 1, 60)));
        other.put(&key("b"), Some(large("b", 1, 60)));
        assert!(!is_cut(&store, "a") && is_cut(&other, "b"), "all kinds of a namespace share its room");
        assert!(other.to_restore(9).is_empty() && other.restore(large("b", 1, 60)).is_none());
        store.put(&key("a"), Some(large("a", 2, 30)));
        assert_eq!(other.to_restore(9), [key("b")]);
        assert!(other.restore(large("b", 2, 60)).is_none(), "what is newer comes from the watch");
        assert!(other.restore(large("b", 1, 60)).is_some() && !is_cut(&other, "b"));
        assert!(other.to_restore(9).is_empty());
        store.put(&key("a"), None);
        other.put(&key("b"), None);
        assert!(store.allowance.has_room("play", 100), "all is given back");
    }

    #[test]
    fn a_list_needs_no_more_than_its_namespaces_may_have() {
        let store = Store::within(Arc::new(Allowance::of(100)));
        let list = |things: [Large; 3]| {
            let mut fresh = Fresh::new();
            things.into_iter().for_each(|thing| fresh.insert(thing, store.allowance()));
            fresh
        };
        store.replace(list([large("a", 1, 60), large("b", 1, 60), large("a", 2, 10)]), 5);
        assert_eq!(store.to_restore(9), [key("b")]);
        // The same list again changes nothing.
        assert!(store.replace(list([large("a", 2, 10), large("b", 1, 60), large("a", 2, 10)]), 6).is_empty());
        assert!(store.restore(large("b", 1, 60)).is_some());
        assert!(!store.allowance.has_room("play", 31) && store.allowance.has_room("play", 30));
    }

    #[test]
    fn a_list_reports_what_vanished_and_what_changed_and_nothing_else() {
        let store = Store::default();
        let list = |things: Vec<Thing>| {
            let mut fresh = Fresh::new();
            things.into_iter().for_each(|thing| fresh.insert(thing, store.allowance()));
            fresh
        };
        store.replace(list(vec![thing("same", "x", 1), thing("older", "x", 2), thing("gone", "x", 3)]), 5);
        let changes = store.replace(list(vec![thing("same", "x", 1), thing("older", "x", 7), thing("new", "x", 8)]), 9);
        let mut seen: Vec<_> =
            changes.iter().map(|change| (change.old.as_ref().map(|old| old.name), change.new.as_ref().map(|new| new.name))).collect();
        seen.sort_unstable();
        assert_eq!(seen, [(None, Some("new")), (Some("gone"), None), (Some("older"), Some("older"))]);
        assert_eq!(store.progress(), 9);
    }
}
