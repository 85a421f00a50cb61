//! Everything we ever ask of a node.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// How long a node may be silent before it counts as lost: as long as Kubernetes leaves pods there by itself.
pub const DEFAULT_SILENCE: SignedDuration = SignedDuration::from_mins(5);

/// While more of all nodes are silent than so many in a hundred, none counts as lost because of its silence: then it is more likely that nobody hears them.
pub const MOST_SILENT_PERCENT: usize = 55;

/// Nodes as decisions see them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nodes {
    /// By name. Those that are not among them are well and cost nothing.
    pub known: BTreeMap<String, NodeFacts>,
    /// How long a node may be silent before it counts as lost.
    pub silence: SignedDuration,
    /// Whether so many nodes are silent that none counts as lost.
    pub braked: bool,
    /// Silence counts only from then on: when the operator started to listen, or when so many were silent for the last time. After a partition nodes return one by one.
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
    /// Whether it takes no new pods: somebody wants to empty it.
    pub cordoned: bool,
    /// `io.tencent.bcs.dev/node-deletion-cost`.
    pub deletion_cost: i32,
}

impl Nodes {
    /// When a node counts as lost, if it does not answer again; never as long as too many are silent.
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

    /// Since when a node is silent that does not count as lost: its pods may serve, and nobody can tell.
    #[must_use]
    pub fn silent_since(&self, name: &str, now: Timestamp) -> Option<Timestamp> {
        self.known.get(name)?.silent.filter(|_| !self.is_lost(name, now))
    }

    /// Whether a node answers.
    #[must_use]
    pub fn answers(&self, name: &str) -> bool {
        self.known.get(name).is_none_or(|node| node.silent.is_none() && !node.gone)
    }

    /// Whether a node takes no new pods.
    #[must_use]
    pub fn is_cordoned(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|node| node.cordoned)
    }

    /// What it costs to delete a pod there.
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
        assert!(nodes.is_lost("gone", at(0)), "somebody has said so");
    }
}
