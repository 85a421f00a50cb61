//! Everything we ever ask of a node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Nodes by name. Those that are not among them are well and cost nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nodes(pub BTreeMap<String, NodeFacts>);

/// A node as decisions see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// Since when it does not answer.
    pub lost: Option<Timestamp>,
    /// Whether it takes no new pods: somebody wants to empty it.
    pub cordoned: bool,
    /// `io.tencent.bcs.dev/node-deletion-cost`.
    pub deletion_cost: i32,
}

impl Nodes {
    /// Whether a node does not answer.
    #[must_use]
    pub fn is_lost(&self, name: &str) -> bool {
        self.lost_since(name).is_some()
    }

    /// Since when a node does not answer.
    #[must_use]
    pub fn lost_since(&self, name: &str) -> Option<Timestamp> {
        self.0.get(name)?.lost
    }

    /// Whether a node takes no new pods.
    #[must_use]
    pub fn is_cordoned(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|node| node.cordoned)
    }

    /// What it costs to delete a pod there.
    #[must_use]
    pub fn deletion_cost(&self, name: &str) -> i32 {
        self.0.get(name).map_or(0, |node| node.deletion_cost)
    }
}
