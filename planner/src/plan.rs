//! What a decision is made of.

use std::sync::Arc;

use api::names::{event, reason};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What to do next for one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan<S> {
    /// What to do. Outer: in order, stop at the first failure. Inner: independent, may run together.
    pub steps: Vec<Vec<Action>>,
    /// From what was seen, never from what the steps hope to achieve.
    pub status: S,
    /// What is worth telling a person when the status is written.
    pub notes: Vec<Note>,
    /// Why work that looks due is not done now.
    pub holds: Vec<Hold>,
    /// Look again then, even if nothing changes.
    pub wake: Option<Timestamp>,
    /// The status is likely to change at once: for so long it need not be written.
    pub patience: Option<SignedDuration>,
}

impl<S> Plan<S> {
    /// Nothing to do; this is how things are.
    pub fn only(status: S) -> Self {
        Self { steps: Vec::new(), status, notes: Vec::new(), holds: Vec::new(), wake: None, patience: None }
    }

    /// All actions, in order.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.steps.iter().flatten()
    }
}

/// Something worth telling a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether something went wrong.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// One write. Each names the uid it was decided on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Record a template.
    CreateRevision(NewRevision),
    /// Make an older revision the newest (a rollback).
    BumpRevision { name: String, uid: String, number: i64 },
    /// Become the owner of a revision that has none.
    AdoptRevision { name: String, uid: String },
    /// Forget a revision that nothing needs.
    DeleteRevision { name: String, uid: String },
    /// Become the owner of a pod that has none.
    AdoptPod { name: String, uid: String },
    /// Stop owning a pod that no longer matches the selector.
    ReleasePod { name: String, uid: String },
    /// Create a pod.
    CreatePod(NewPod),
    /// Delete a pod.
    DeletePod { name: String, uid: String, why: DeleteReason },
    /// Measure something for a HookRun.
    Measure(NewMeasurement),
    /// Forget a HookRun that nobody owns.
    DeleteHookRun { name: String, uid: String },
}

/// A measurement to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMeasurement {
    /// The metric.
    pub metric: String,
    /// How many measurements of the metric there were before.
    pub number: i32,
}

/// A revision to create.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewRevision {
    /// Its name.
    pub name: String,
    /// The hash in its name.
    pub hash: String,
    /// Its place in history.
    pub number: i64,
    /// The template it records.
    pub template: Arc<Value>,
}

/// A pod to create.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewPod {
    /// Its name.
    pub name: String,
    /// The characters at the end of its name.
    pub id: String,
    /// The revision it is made from.
    pub revision: String,
    /// The template of that revision.
    pub template: Arc<Value>,
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeleteReason {
    /// More pods exist than are wanted, or the user named it.
    Scale,
    /// Its successor has the new template.
    Update,
    /// It ended and does not come back.
    Ended,
}

impl Action {
    /// The event that tells a person that the action succeeded: reason and message.
    #[must_use]
    pub fn success(&self) -> Option<(&'static str, String)> {
        match self {
            Self::CreatePod(pod) => Some((event::SUCCESSFUL_CREATE, format!("succeed to create pod {}", pod.name))),
            Self::DeletePod { name, why: DeleteReason::Update, .. } => {
                Some((event::SUCCESSFUL_RECREATE, format!("successfully delete pod {name} for update")))
            }
            Self::DeletePod { name, .. } => Some((event::SUCCESSFUL_DELETE, format!("succeed to delete pod {name}"))),
            Self::CreateRevision(_)
            | Self::BumpRevision { .. }
            | Self::AdoptRevision { .. }
            | Self::DeleteRevision { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. }
            | Self::Measure(_)
            | Self::DeleteHookRun { .. } => None,
        }
    }

    /// The event that tells a person that the action failed: reason and message.
    #[must_use]
    pub fn failure(&self, error: &str) -> (&'static str, String) {
        match self {
            Self::CreatePod(pod) => (event::FAILED_CREATE, format!("failed to create pod {}: {error}", pod.name)),
            Self::DeletePod { name, why: DeleteReason::Update, .. } => {
                (event::FAILED_RECREATE, format!("failed to delete pod {name} for update: {error}"))
            }
            Self::DeletePod { name, .. } => (event::FAILED_DELETE, format!("failed to delete pod {name}: {error}")),
            Self::AdoptPod { name, .. } => (event::FAILED_CLAIM, format!("failed to adopt pod {name}: {error}")),
            Self::ReleasePod { name, .. } => (event::FAILED_CLAIM, format!("failed to release pod {name}: {error}")),
            Self::Measure(NewMeasurement { metric, .. }) => (event::FAILED_MEASUREMENT, format!("failed to measure {metric}: {error}")),
            Self::DeleteHookRun { name, .. } => (event::FAILED_DELETE, format!("failed to delete HookRun {name}: {error}")),
            Self::CreateRevision(NewRevision { name, .. })
            | Self::BumpRevision { name, .. }
            | Self::AdoptRevision { name, .. }
            | Self::DeleteRevision { name, .. } => (event::FAILED_REVISION, format!("failed to write revision {name}: {error}")),
        }
    }

    /// A word for metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::CreateRevision(_) => "create_revision",
            Self::BumpRevision { .. } => "bump_revision",
            Self::AdoptRevision { .. } => "adopt_revision",
            Self::DeleteRevision { .. } => "delete_revision",
            Self::AdoptPod { .. } => "adopt_pod",
            Self::ReleasePod { .. } => "release_pod",
            Self::CreatePod(_) => "create_pod",
            Self::DeletePod { .. } => "delete_pod",
            Self::Measure(_) => "measure",
            Self::DeleteHookRun { .. } => "delete_hookrun",
        }
    }
}

/// Why work that looks due is not done now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    /// The user paused the rollout.
    PausedByUser,
    /// Pods stay on the current revision because the partition says so.
    Partition { kept: usize },
    /// More pods would be unavailable than `maxUnavailable` allows.
    Budget { waiting: usize, unavailable: usize, allowed: usize },
    /// Pods wait until somebody deletes them.
    OnDelete { waiting: usize },
    /// Pods ended right after their start; their successors wait.
    EndedTooSoon { pods: usize, until: Timestamp },
    /// The spec asks for something that this version cannot do.
    NotInThisVersion(Feature),
    /// A field has a value that cannot be followed.
    Invalid { field: String, problem: String },
}

/// What this version cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Feature {
    /// `updateStrategy.type: InplaceUpdate`.
    InplaceUpdate,
    /// `updateStrategy.type: HotPatchUpdate`.
    HotPatchUpdate,
    /// `updateStrategy.canary.steps`.
    Canary,
    /// `preDeleteUpdateStrategy.hook`.
    PreDeleteHook,
}

impl Feature {
    /// The reason that conditions carry.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::InplaceUpdate => reason::NO_INPLACE_UPDATE,
            Self::HotPatchUpdate => reason::NO_HOT_PATCH,
            Self::Canary => reason::NO_CANARY,
            Self::PreDeleteHook => reason::NO_PRE_DELETE_HOOK,
        }
    }
}

impl std::fmt::Display for Feature {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::InplaceUpdate => "spec.updateStrategy.type InplaceUpdate is not in this version: pods keep their revision until the type is RollingUpdate or OnDelete",
            Self::HotPatchUpdate => "spec.updateStrategy.type HotPatchUpdate is not in this version: pods keep their revision until the type is RollingUpdate or OnDelete",
            Self::Canary => "spec.updateStrategy.canary.steps are not in this version: pods keep their revision until the steps are removed",
            Self::PreDeleteHook => "spec.preDeleteUpdateStrategy.hook is not in this version: running pods are not deleted until the hook is removed",
        })
    }
}

impl std::fmt::Display for Hold {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PausedByUser => write!(out, "the rollout is paused: set spec.updateStrategy.paused to false to go on"),
            Self::Partition { kept } => write!(out, "{kept} pods stay on the current revision (spec.updateStrategy.partition)"),
            Self::Budget { waiting, unavailable, allowed } => {
                write!(out, "{waiting} pods wait for their turn: {unavailable} of at most {allowed} are unavailable")
            }
            Self::OnDelete { waiting } => write!(out, "{waiting} pods are updated when somebody deletes them"),
            Self::EndedTooSoon { pods, until } => write!(out, "{pods} pods ended right after their start; they are replaced at {until}"),
            Self::NotInThisVersion(feature) => write!(out, "{feature}"),
            Self::Invalid { field, problem } => write!(out, "{field}: {problem}"),
        }
    }
}
