//! Everything we ever ask of a pod.

use std::collections::BTreeMap;

use api::names::REVISION_LABEL;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// A pod as decisions see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
    /// The version of the object that these facts are from.
    pub resource_version: u64,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The uid of its controller.
    pub controller: Option<String>,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its phase.
    pub phase: Phase,
    /// Since when it is ready.
    pub ready_since: Option<Timestamp>,
    /// Where it runs.
    pub node: Option<String>,
    /// The most restarts that any of its containers had.
    pub restarts: i32,
    /// `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: i32,
    /// Why it is not ready, in Kubernetes' own word (ImagePullBackOff, Unschedulable, …).
    pub trouble: Option<String>,
}

/// The phase of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Not all containers have started.
    #[default]
    Pending,
    /// Its node does not answer.
    Unknown,
    /// It runs.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, one of them badly, or the node threw it out.
    Failed,
}

impl PodFacts {
    /// The name of its revision.
    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        self.labels.get(REVISION_LABEL).map(String::as_str)
    }

    /// Whether all its containers ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether it serves or may still come to serve.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.deleting && !self.has_ended()
    }

    /// Whether it is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Running && self.ready_since.is_some()
    }

    /// Whether it has been ready for long enough.
    #[must_use]
    pub fn is_available(&self, min_ready: SignedDuration, now: Timestamp) -> bool {
        self.is_ready() && (min_ready.is_zero() || self.available_at(min_ready).is_some_and(|at| at <= now))
    }

    /// When a ready pod has been ready for long enough.
    #[must_use]
    pub fn available_at(&self, min_ready: SignedDuration) -> Option<Timestamp> {
        self.ready_since.map(|since| since.checked_add(min_ready).unwrap_or(Timestamp::MAX))
    }
}
