//! What decisions know of a PodDisruptionBudget.

use std::collections::BTreeMap;

use api::selector::LabelSelector;
use serde::{Deserialize, Serialize};

/// A PodDisruptionBudget as decisions see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PdbFacts {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The uid of its controller.
    pub controller: Option<String>,
    /// The pods that it selects. An empty one selects every pod.
    pub selector: LabelSelector,
    /// Whether it refuses every eviction, however many pods there are.
    pub is_closed: bool,
}

impl PdbFacts {
    /// Whether it selects pods with these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selector.is_empty() || self.selector.matches(labels)
    }
}
