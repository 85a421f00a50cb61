//! What decisions need to know of the nodes of pods: which are silent, lost or deleted.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use planner::facts::node::{MOST_SILENT_PERCENT, NodeFacts, Nodes};
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
    silence: SignedDuration,
    silent: Mutex<Silent>,
    /// Nodes that were deleted while pods were on them.
    deleted: Mutex<HashSet<String>>,
    /// Nodes of pods that are not in the cache: they may be too new, or deleted long ago. They are looked up once.
    unknown: mpsc::UnboundedSender<String>,
    asked: Mutex<HashSet<String>>,
}

/// Names of nodes that have to be looked up.
pub type UnknownNodes = mpsc::UnboundedReceiver<String>;

/// Nodes that do not answer, as far as this operator knows.
#[derive(Debug)]
struct Silent {
    /// Since when this operator has seen each as silent: clocks differ, and an operator without connection learns of it late.
    since: BTreeMap<String, Timestamp>,
    /// Whether so many are silent that none counts as lost.
    is_braked: bool,
    /// When that was last the case, or when this term started.
    heard_since: Timestamp,
}

/// What depends on the change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEffect {
    /// Whether pods on the node count as available.
    Availability,
    /// Whether pods on the node have to leave it, or can skip their hook.
    Deletions,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeStates {
    /// No node is known yet. The names from the receiver have to be looked up.
    #[must_use]
    pub fn new(silence: SignedDuration) -> (Self, UnknownNodes) {
        let (unknown, names) = mpsc::unbounded_channel();
        let silent = Mutex::new(Silent { since: BTreeMap::new(), is_braked: false, heard_since: Timestamp::now() });
        let (store, deleted, asked) = (Arc::default(), Mutex::default(), Mutex::default());
        (Self { store, silence, silent, deleted, unknown, asked }, names)
    }

    /// The nodes of pods, except those with nothing that matters to a decision.
    #[must_use]
    pub fn of(&self, pods: &[Arc<PodFacts>]) -> Nodes {
        let names: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.node.as_deref()).collect();
        let silent = locked(&self.silent);
        let facts = |name: &str| {
            let key = Key { namespace: String::new(), name: name.to_owned() };
            // A silent node that is not counted yet was only just seen as silent.
            let heard = |since: Timestamp| since.max(silent.since.get(name).copied().unwrap_or_else(Timestamp::now));
            let known = self.store.get(&key).map(|node| NodeFacts { silent: node.facts.silent.map(heard), ..node.facts });
            // A node that is not in the cache may be too new.
            known.unwrap_or_else(|| NodeFacts { gone: self.is_deleted(name), ..NodeFacts::default() })
        };
        let all = names.into_iter().map(|name| (name.to_owned(), facts(name)));
        let known: BTreeMap<String, NodeFacts> = all.filter(|(_, facts)| *facts != NodeFacts::default()).collect();
        Nodes { known, silence: self.silence, braked: silent.is_braked, heard_since: silent.heard_since }
    }

    /// A node appeared, changed or was deleted. Returns what depends on that, if anything does.
    pub fn changed(&self, change: &Change<Node>) -> Option<NodeEffect> {
        match (&change.old, &change.new) {
            (_, Some(node)) => {
                let name = node.key().name;
                locked(&self.deleted).remove(&name);
                locked(&self.asked).remove(&name);
            }
            (Some(node), None) => self.delete(&node.key().name),
            (None, None) => {}
        }
        let facts = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.facts);
        let (old, new) = (facts(&change.old), facts(&change.new));
        let answers = |facts: Option<NodeFacts>| facts.map(|facts| (facts.silent.is_some(), facts.gone));
        if answers(old) != answers(new) {
            self.count_silent(change);
            return Some(NodeEffect::Availability);
        }
        let is_cordoned = |facts: Option<NodeFacts>| facts.map(|facts| facts.cordoned);
        (is_cordoned(old) != is_cordoned(new)).then_some(NodeEffect::Deletions)
    }

    /// Counts silent nodes, when one becomes silent or lost, answers again, appears or is deleted.
    fn count_silent(&self, change: &Change<Node>) {
        let count = self.store.count(|node| node.facts.silent.is_some());
        let is_braked = count * 100 > self.store.len() * MOST_SILENT_PERCENT;
        let is_silent = change.new.as_ref().is_some_and(|node| node.facts.silent.is_some());
        let name = change.new.as_ref().or(change.old.as_ref()).map(|node| node.key().name).unwrap_or_default();
        let (mut silent, now) = (locked(&self.silent), Timestamp::now());
        if is_silent {
            silent.since.entry(name).or_insert(now);
        } else {
            silent.since.remove(&name);
        }
        if is_braked || silent.is_braked {
            silent.heard_since = now;
        }
        silent.is_braked = is_braked;
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
                // The next decision that needs it tries again.
                Err(_) => drop(locked(&self.asked).remove(&name)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, spec: &str, ready: &str) -> Option<Arc<Node>> {
        let metadata = format!(r#"{{"name":"{name}","uid":"{name}","resourceVersion":"1"}}"#);
        let status = format!(r#"{{"conditions":[{{"type":"Ready","status":"{ready}"}}]}}"#);
        Some(Arc::new(Node::decode(&format!(r#"{{"metadata":{metadata},"spec":{spec},"status":{status}}}"#)).unwrap()))
    }

    #[test]
    fn a_node_counts_as_deleted_when_that_was_seen_or_looked_up() {
        let (nodes, mut unknown) = NodeStates::new(SignedDuration::from_mins(5));
        assert!(!nodes.is_deleted("one") && !nodes.is_deleted("one"), "it may be too new");
        assert_eq!((unknown.try_recv().ok().as_deref(), unknown.try_recv().ok()), (Some("one"), None), "it is looked up once");
        nodes.delete("one");
        assert!(nodes.is_deleted("one"));
        nodes.changed(&Change { old: None, new: node("one", "{}", "True") });
        assert!(!nodes.is_deleted("one"), "it is back");
        nodes.changed(&Change { old: node("one", "{}", "True"), new: None });
        assert!(nodes.is_deleted("one"));
    }

    #[test]
    fn the_change_of_a_node_says_what_depends_on_it() {
        let (nodes, _names) = NodeStates::new(SignedDuration::from_mins(5));
        let change = |old: (&str, &str), new: (&str, &str)| {
            nodes.changed(&Change { old: node("one", old.0, old.1), new: node("one", new.0, new.1) })
        };
        let cordoned = r#"{"unschedulable":true}"#;
        assert_eq!(change(("{}", "True"), ("{}", "False")), None);
        assert_eq!(change(("{}", "True"), ("{}", "Unknown")), Some(NodeEffect::Availability));
        assert_eq!(change(("{}", "True"), (cordoned, "True")), Some(NodeEffect::Deletions));
        assert_eq!(change((cordoned, "Unknown"), ("{}", "True")), Some(NodeEffect::Availability));
    }
}
