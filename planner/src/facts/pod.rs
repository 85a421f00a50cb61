//! Everything we ever ask of a pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::REVISION_LABEL;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

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
    /// Its address; empty as long as it has none.
    #[serde(default)]
    pub ip: String,
    /// The address of its node.
    #[serde(default)]
    pub host_ip: String,
    /// The most restarts that any of its containers had.
    pub restarts: i32,
    /// `controller.kubernetes.io/pod-deletion-cost`.
    pub deletion_cost: i32,
    /// Why it is not ready, in Kubernetes' own word (ImagePullBackOff, Unschedulable, …).
    pub trouble: Option<String>,
    /// Its annotations, apart from those that say what is updated.
    pub annotations: BTreeMap<String, String>,
    /// Its readiness gate of ours.
    pub gate: Gate,
    /// Its containers, in the order of its spec.
    pub containers: Vec<Container>,
    /// An update in place, as its annotations tell.
    pub update: Option<Box<Update>>,
    /// Whether its node is changing requests or limits, or cannot yet.
    pub is_resizing: bool,
    /// Its spec as JSON, if it does not say which revision it was made from.
    #[serde(default)]
    pub spec: Option<Arc<str>>,
    /// Whether its node has seen the newest spec; true where nodes do not say.
    pub is_seen_by_node: bool,
}

/// A readiness gate of ours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gate {
    /// The pod has none.
    #[default]
    Absent,
    /// Nobody has said anything yet.
    Unset,
    /// The pod may not serve, since then.
    Down(Timestamp),
    /// The pod may serve.
    Up,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// The image that it should run.
    pub image: String,
    /// What its requests and limits should be.
    pub resources: Resources,
    /// What its requests and limits are, as its node says.
    pub actual_resources: Option<Resources>,
    /// The image that it runs, as its node says.
    pub actual_image: String,
    /// The digest of that image.
    pub image_id: String,
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
pub type Resources = BTreeMap<String, String>;

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

    /// Whether it is ready. One that we have just taken out of its services is not, whatever its node still says.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Running && self.ready_since.is_some() && !matches!(self.gate, Gate::Down(_))
    }

    /// Whether its containers crash again and again, and none runs.
    #[must_use]
    pub fn is_crash_looping(&self) -> bool {
        self.trouble.as_deref() == Some("CrashLoopBackOff") && !self.containers.iter().any(|container| container.running)
    }

    /// Whether its containers are about to restart, or have not come back yet.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.update.as_deref().is_some_and(|update| update.is_under_way(self))
    }

    /// Whether a part of a change is made, and it serves because the rest was refused.
    #[must_use]
    pub fn is_half_changed(&self) -> bool {
        self.update.as_deref().is_some_and(|update| update.progress(self) == Progress::Exposed)
    }

    /// Whether it has been ready for long enough.
    #[must_use]
    pub fn is_available(&self, min_ready: SignedDuration, now: Timestamp) -> bool {
        let is_out = self.is_changing() && !self.is_half_changed();
        self.is_ready() && !is_out && (min_ready.is_zero() || self.available_at(min_ready).is_some_and(|at| at <= now))
    }

    /// When a ready pod has been ready for long enough.
    #[must_use]
    pub fn available_at(&self, min_ready: SignedDuration) -> Option<Timestamp> {
        self.ready_since.map(|since| since.checked_add(min_ready).unwrap_or(Timestamp::MAX))
    }
}
