//! What decisions know of a node.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// How long a node may be silent before it counts as lost: as long as Kubernetes itself waits before it evicts the
/// pods.
pub const DEFAULT_SILENCE: SignedDuration = SignedDuration::from_mins(5);

/// If more than this percentage of all nodes is silent, no node counts as lost because of its silence: then it is more
/// likely that the control plane is cut off from them.
pub const MOST_SILENT_PERCENT: usize = 55;

/// Nodes as decisions see them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nodes {
    /// By name. A node that is not among them answers, takes new pods and has no deletion cost.
    pub known: BTreeMap<String, NodeFacts>,
    /// How long a node may be silent before it counts as lost.
    pub silence: SignedDuration,
    /// Whether so many nodes are silent that none counts as lost.
    pub braked: bool,
    /// Silence counts only from this time on: the start of the operator, or the last time that too many nodes were
    /// silent. After a partition nodes return one by one.
    pub heard_since: Timestamp,
}

impl Default for Nodes {
    fn default() -> Self {
        Self { known: BTreeMap::new(), silence: DEFAULT_SILENCE, braked: false, heard_since: Timestamp::MIN }
    }
}

/// A node as decisions see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// Since when it does not answer.
    pub silent: Option<Timestamp>,
    /// Whether it was deleted, or has the taint `node.kubernetes.io/out-of-service`.
    pub gone: bool,
    /// Whether it is cordoned, and takes no new pods.
    pub cordoned: bool,
    /// `io.tencent.bcs.dev/node-deletion-cost`.
    pub deletion_cost: i32,
}

impl Nodes {
    /// When a node that is silent or gone counts as lost, unless it answers before. None if it answers, or as long as
    /// too many nodes are silent.
    #[must_use]
    pub fn lost_at(&self, name: &str) -> Option<Timestamp> {
        let node = self.known.get(name)?;
        if node.gone {
            return Some(Timestamp::MIN);
        }
        let since = node.silent.filter(|_| !self.braked)?.max(self.heard_since);
        Some(since.checked_add(self.silence).unwrap_or(Timestamp::MAX))
    }

    /// Whether a node counts as lost.
    #[must_use]
    pub fn is_lost(&self, name: &str, now: Timestamp) -> bool {
        self.lost_at(name).is_some_and(|at| at <= now)
    }

    /// Since when a node is silent that does not count as lost yet: whether its pods serve is not known.
    #[must_use]
    pub fn silent_since(&self, name: &str, now: Timestamp) -> Option<Timestamp> {
        self.known.get(name)?.silent.filter(|_| !self.is_lost(name, now))
    }

    /// Whether a node answers.
    #[must_use]
    pub fn answers(&self, name: &str) -> bool {
        self.known.get(name).is_none_or(|node| node.silent.is_none() && !node.gone)
    }

    /// Whether a node is cordoned.
    #[must_use]
    pub fn is_cordoned(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|node| node.cordoned)
    }

    /// The deletion cost of the pods on a node.
    #[must_use]
    pub fn deletion_cost(&self, name: &str) -> i32 {
        self.known.get(name).map_or(0, |node| node.deletion_cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_end_of_a_partition() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let silent = NodeFacts { silent: Some(at(0)), ..NodeFacts::default() };
        let known = BTreeMap::from([("one".to_owned(), silent), ("gone".to_owned(), NodeFacts { gone: true, ..silent })]);
        let mut nodes = Nodes { known, heard_since: at(-900), ..Nodes::default() };
        assert_eq!(nodes.lost_at("one"), Some(at(300)));
        assert!(!nodes.is_lost("one", at(299)) && nodes.is_lost("one", at(300)) && nodes.is_lost("gone", at(0)));
        nodes.heard_since = at(1000);
        assert_eq!(nodes.lost_at("one"), Some(at(1300)), "others have only just returned");
        nodes.braked = true;
        assert_eq!((nodes.lost_at("one"), nodes.silent_since("one", at(5000))), (None, Some(at(0))));
        assert!(nodes.is_lost("gone", at(0)), "it is known to be gone");
    }
}
