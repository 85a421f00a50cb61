//! What decisions know of a pod.

mod read;

use std::sync::Arc;

use api::names::REVISION_LABEL;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::facts::text::{Text, Texts};
use crate::workload::inplace::{Progress, Update};

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
    pub labels: Texts,
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
    /// The name of its node, once it is scheduled.
    pub node: Option<Text>,
    /// Its address; empty as long as it has none.
    #[serde(default)]
    pub ip: String,
    /// The address of its node.
    #[serde(default)]
    pub host_ip: Text,
    /// The highest restart count of its containers.
    pub restarts: i32,
    /// `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: i32,
    /// The reason that Kubernetes reports for it not being ready (ImagePullBackOff, Unschedulable, …).
    pub trouble: Option<String>,
    /// Its annotations, except those of an in-place update.
    pub annotations: Texts,
    /// The operator's readiness gate.
    pub gate: Gate,
    /// Its containers, in the order of its spec.
    pub containers: Vec<Container>,
    /// The in-place update that its annotations record.
    pub update: Option<Box<Update>>,
    /// Whether a resize of its requests or limits is pending or in progress.
    pub is_resizing: bool,
    /// Its spec as JSON, if it has no label that names its revision.
    #[serde(default)]
    pub spec: Option<Arc<str>>,
    /// Whether its node has seen the newest spec; true where nodes do not report that.
    pub is_seen_by_node: bool,
}

/// The operator's readiness gate of a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// The pod has none.
    #[default]
    Absent,
    /// The pod has it, and its condition is not set yet.
    Unset,
    /// The condition is False since this time: the pod is not in its endpoints.
    Down(Timestamp),
    /// The condition is True: the pod is in its endpoints once its containers are ready.
    Up,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Its name.
    pub name: Text,
    /// The image that it should run.
    pub image: Text,
    /// What its requests and limits should be.
    pub resources: Resources,
    /// Its requests and limits, as its node reports them.
    pub actual_resources: Option<Resources>,
    /// The image that it runs, as its node reports it.
    pub actual_image: Text,
    /// The digest of that image.
    pub image_id: Text,
    /// Whether it runs.
    pub running: bool,
    /// Whether it is ready.
    pub ready: bool,
    /// How often it was restarted.
    pub restarts: i32,
    /// When it started.
    pub started: Option<Timestamp>,
}

/// Requests and limits: `requests.cpu`, `limits.memory`, …
pub type Resources = Texts;

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
    /// All containers ended without an error.
    Succeeded,
    /// All containers ended, at least one with an error, or the node evicted the pod.
    Failed,
}

impl PodFacts {
    /// The name of its revision.
    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        self.labels.get(REVISION_LABEL).map(Text::as_str)
    }

    /// Whether all its containers ended for good.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether it serves or may start to serve.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.deleting && !self.has_ended()
    }

    /// Whether it is ready. A pod that the operator has just drained is not, even if its node still reports it as
    /// ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Running && self.ready_since.is_some() && !matches!(self.gate, Gate::Down(_))
    }

    /// Whether it is in a crash loop, and none of its containers runs now.
    #[must_use]
    pub fn is_crash_looping(&self) -> bool {
        self.trouble.as_deref() == Some("CrashLoopBackOff") && !self.containers.iter().any(|container| container.running)
    }

    /// Whether its containers are about to restart, or have not come back yet.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.update.as_deref().is_some_and(|update| update.is_under_way(self))
    }

    /// Whether a part of a change is made, and the pod is in its endpoints because the rest was refused.
    #[must_use]
    pub fn is_half_changed(&self) -> bool {
        self.update.as_deref().is_some_and(|update| update.progress(self) == Progress::Exposed)
    }

    /// Whether it is available: ready for at least `min_ready`.
    #[must_use]
    pub fn is_available(&self, min_ready: SignedDuration, now: Timestamp) -> bool {
        let is_out = self.is_changing() && !self.is_half_changed();
        self.is_ready() && !is_out && (min_ready.is_zero() || self.available_at(min_ready).is_some_and(|at| at <= now))
    }

    /// When a ready pod becomes available.
    #[must_use]
    pub fn available_at(&self, min_ready: SignedDuration) -> Option<Timestamp> {
        self.ready_since.map(|since| since.checked_add(min_ready).unwrap_or(Timestamp::MAX))
    }
}
