//! What decisions need to know of the nodes of pods: which are silent, lost or deleted.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use planner::facts::node::{NodeEffect, NodeFacts, Nodes, Silence};
use planner::facts::pod::PodFacts;
use tokio::sync::mpsc;

use crate::client::Server;
use crate::kinds::node::Node;
use crate::store::{Cached as _, Change, Key, Store};

/// The nodes of the cluster.
#[derive(Debug)]
pub struct NodeStates {
    /// The objects.
    pub store: Arc<Store<Node>>,
    /// How long a node may be silent before it counts as lost.
    timeout: SignedDuration,
    silence: Mutex<Silence>,
    /// Nodes that were deleted while pods were on them.
    deleted: Mutex<HashSet<String>>,
    /// Nodes of pods that are not in the cache: they may be too new, or deleted long ago. They are looked up once.
    unknown: mpsc::UnboundedSender<String>,
    asked: Mutex<HashSet<String>>,
}

/// Names of nodes that have to be looked up.
pub type UnknownNodes = mpsc::UnboundedReceiver<String>;

/// How soon the API server is asked again if it did not say whether a node exists.
const LOOK_UP_RETRY: Duration = Duration::from_secs(1);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeStates {
    /// No node is known yet. The names from the receiver have to be looked up.
    #[must_use]
    pub fn new(timeout: SignedDuration) -> (Self, UnknownNodes) {
        let (unknown, names) = mpsc::unbounded_channel();
        let silence = Mutex::new(Silence::new(Timestamp::now()));
        let (store, deleted, asked) = (Arc::default(), Mutex::default(), Mutex::default());
        (Self { store, timeout, silence, deleted, unknown, asked }, names)
    }

    /// The nodes of pods, except those with nothing that matters to a decision. Nothing is decided before nodes are listed.
    #[must_use]
    pub fn of(&self, pods: &[Arc<PodFacts>]) -> Nodes {
        let (silence, now) = (locked(&self.silence), Timestamp::now());
        let rest = Nodes { known: BTreeMap::new(), silence: self.timeout, braked: silence.is_braked, heard_since: silence.heard_since };
        if !self.store.is_listed() {
            return rest;
        }
        let names: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.node.as_deref()).collect();
        let facts = |name: &str| {
            let key = Key { namespace: String::new(), name: name.to_owned() };
            let since = |reported: Timestamp| silence.since(name, reported, now);
            let known = self.store.get(&key).map(|node| NodeFacts { silent: node.facts.silent.map(since), ..node.facts });
            // A node that is not in the cache may be too new.
            known.unwrap_or_else(|| NodeFacts { gone: self.is_deleted(name), ..NodeFacts::default() })
        };
        let all = names.into_iter().map(|name| (name.to_owned(), facts(name)));
        Nodes { known: all.filter(|(_, facts)| *facts != NodeFacts::default()).collect(), ..rest }
    }

    /// A node appeared, changed or was deleted. Returns what depends on that, if anything does.
    pub fn changed(&self, change: &Change<Node>) -> Option<NodeEffect> {
        let name = change.new.as_ref().or(change.old.as_ref())?.key().name;
        if change.new.is_some() {
            locked(&self.deleted).remove(&name);
            locked(&self.asked).remove(&name);
        } else {
            self.delete(&name);
        }
        let facts = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.facts);
        let (old, new) = (facts(&change.old), facts(&change.new));
        let effect = NodeEffect::of(old, new)?;
        if effect == NodeEffect::Availability {
            let silent = self.store.count(|node| node.facts.silent.is_some());
            let is_silent = new.is_some_and(|facts| facts.silent.is_some());
            locked(&self.silence).count(&name, is_silent, (silent, self.store.len()), Timestamp::now());
        }
        Some(effect)
    }

    fn delete(&self, name: &str) {
        locked(&self.deleted).insert(name.to_owned());
    }

    /// Whether a node that is not in the cache is known to be deleted. If that is not known, it is looked up.
    fn is_deleted(&self, name: &str) -> bool {
        if locked(&self.deleted).contains(name) {
            return true;
        }
        if locked(&self.asked).insert(name.to_owned()) {
            // The receiver lives as long as the engine.
            let _ = self.unknown.send(name.to_owned());
        }
        false
    }

    /// Looks up nodes that are not in the cache. Calls `deleted` when one does not exist. Never returns.
    pub async fn look_up(&self, server: &Server, mut names: UnknownNodes, deleted: impl Fn()) {
        while let Some(name) = names.recv().await {
            match server.get::<serde::de::IgnoredAny>(&format!("{}/{name}", Node::PATH)).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {
                    self.delete(&name);
                    deleted();
                }
                // The next decision that needs it asks again.
                Err(_) => {
                    tokio::time::sleep(LOOK_UP_RETRY).await;
                    locked(&self.asked).remove(&name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Option<Arc<Node>> {
        Some(Arc::new(Node::decode(&format!(r#"{{"metadata":{{"name":"{name}","uid":"{name}","resourceVersion":"1"}}}}"#)).unwrap()))
    }

    #[test]
    fn a_node_counts_as_deleted_when_that_was_seen_or_looked_up() {
        let (nodes, mut unknown) = NodeStates::new(SignedDuration::from_mins(5));
        assert!(!nodes.is_deleted("one") && !nodes.is_deleted("one"), "it may be too new");
        assert_eq!((unknown.try_recv().ok().as_deref(), unknown.try_recv().ok()), (Some("one"), None), "it is looked up once");
        nodes.delete("one");
        assert!(nodes.is_deleted("one"));
        nodes.changed(&Change { old: None, new: node("one") });
        assert!(!nodes.is_deleted("one"), "it is back");
        nodes.changed(&Change { old: node("one"), new: None });
        assert!(nodes.is_deleted("one"));
    }
}
