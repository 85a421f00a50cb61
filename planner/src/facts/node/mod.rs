//! What decisions know of a node.

mod read;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub use read::NodeRead;

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

/// Which nodes are silent, as far as one operator knows.
#[derive(Debug, Clone)]
pub struct Silence {
    /// Since when this operator has known each to be silent: clocks differ, and an operator without a connection learns of
    /// it late.
    since: BTreeMap<String, Timestamp>,
    /// Whether so many are silent that none counts as lost.
    pub is_braked: bool,
    /// When that was last the case, or when this operator started.
    pub heard_since: Timestamp,
}

impl Silence {
    /// No node is known yet.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { since: BTreeMap::new(), is_braked: false, heard_since: now }
    }

    /// A node becomes silent, answers again, appears or is deleted: now `silent` of `all` nodes are silent.
    pub fn count(&mut self, name: &str, is_silent: bool, (silent, all): (usize, usize), now: Timestamp) {
        if is_silent {
            self.since.entry(name.to_owned()).or_insert(now);
        } else {
            self.since.remove(name);
        }
        let is_braked = silent * 100 > all * MOST_SILENT_PERCENT;
        if is_braked || self.is_braked {
            self.heard_since = now;
        }
        self.is_braked = is_braked;
    }

    /// Since when a node counts as silent that reports `reported` itself. One that is not counted yet is silent from now
    /// on.
    #[must_use]
    pub fn since(&self, name: &str, reported: Timestamp, now: Timestamp) -> Timestamp {
        reported.max(self.since.get(name).copied().unwrap_or(now))
    }
}

/// What depends on the change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeEffect {
    /// Whether pods on the node count as available.
    Availability,
    /// Whether pods on the node have to leave it, or can skip their hook.
    Deletions,
}

impl NodeEffect {
    /// What depends on a change, if anything does. None stands for a node that does not exist.
    #[must_use]
    pub fn of(old: Option<NodeFacts>, new: Option<NodeFacts>) -> Option<Self> {
        let answers = |facts: Option<NodeFacts>| facts.map(|facts| (facts.silent.is_some(), facts.gone));
        let is_cordoned = |facts: Option<NodeFacts>| facts.map(|facts| facts.cordoned);
        if answers(old) != answers(new) {
            return Some(Self::Availability);
        }
        (is_cordoned(old) != is_cordoned(new)).then_some(Self::Deletions)
    }
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

    #[test]
    fn while_too_many_nodes_are_silent_none_is_lost_and_afterwards_silence_counts_anew() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let mut silence = Silence::new(at(0));
        silence.count("one", true, (1, 20), at(10));
        assert_eq!((silence.is_braked, silence.heard_since, silence.since("one", at(3), at(99))), (false, at(0), at(10)));
        assert_eq!(silence.since("two", at(3), at(99)), at(99), "it is not counted yet");
        silence.count("two", true, (12, 20), at(20));
        assert_eq!((silence.is_braked, silence.heard_since), (true, at(20)));
        silence.count("two", false, (11, 20), at(30));
        assert_eq!((silence.is_braked, silence.heard_since), (false, at(30)), "11 of 20 are 55 %");
        silence.count("one", false, (10, 20), at(40));
        assert_eq!((silence.heard_since, silence.since("one", at(3), at(99))), (at(30), at(99)));
    }

    #[test]
    fn the_change_of_a_node_says_what_depends_on_it() {
        let facts = |silent: bool, cordoned: bool| {
            Some(NodeFacts { silent: silent.then_some(Timestamp::UNIX_EPOCH), cordoned, ..NodeFacts::default() })
        };
        let (well, silent, cordoned, both) = (facts(false, false), facts(true, false), facts(false, true), facts(true, true));
        assert_eq!(NodeEffect::of(well, well), None);
        assert_eq!(NodeEffect::of(well, silent), Some(NodeEffect::Availability));
        assert_eq!(NodeEffect::of(well, cordoned), Some(NodeEffect::Deletions));
        assert_eq!(NodeEffect::of(both, well), Some(NodeEffect::Availability));
        assert_eq!(NodeEffect::of(None, well), Some(NodeEffect::Availability), "its pods were on a node that was not known");
    }
}
