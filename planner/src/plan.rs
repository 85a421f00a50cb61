//! The result of a decision: actions, status, notes and holds.

use std::collections::BTreeMap;

use api::names::event;
use api::template::PodTemplate;
use api::tkex::HookRunSpec;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hold::Hold;
use crate::refusal::Refusals;

/// What to do next for one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan<S> {
    /// The actions. The outer list is in order; the actions of an inner list are independent and may run concurrently.
    /// A refused action stops only what depends on it ([`crate::refusal::Fallout`]).
    pub steps: Vec<Vec<Action>>,
    /// The status, from what was observed, never from what the steps are expected to achieve.
    pub status: S,
    /// What metrics report for the object.
    pub summary: Summary,
    /// Events that are recorded when the status is written.
    pub notes: Vec<Note>,
    /// Why work that is due is not done now.
    pub holds: Vec<Hold>,
    /// When to reconcile again, even if nothing changes.
    pub wake: Option<Timestamp>,
    /// How long the status need not be written, because it is likely to change again soon.
    pub status_delay: Option<SignedDuration>,
    /// Refused writes that still matter.
    pub refusals: Refusals,
}

impl<S> Plan<S> {
    /// A plan without actions: only the status is written.
    pub fn only(status: S) -> Self {
        Self {
            steps: Vec::new(),
            status,
            summary: Summary::default(),
            notes: Vec::new(),
            holds: Vec::new(),
            wake: None,
            status_delay: None,
            refusals: Refusals::default(),
        }
    }

    /// All actions, in order.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.steps.iter().flatten()
    }
}

/// What metrics report for an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The reason of its condition Progressing.
    pub state: String,
    /// Pods that wait for each hook, by [`crate::workload::gate::Place`].
    pub waiting: [Wait; 3],
}

/// Pods that wait for a hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wait {
    /// How many.
    pub pods: usize,
    /// Since when the first of them has waited.
    pub since: Option<Timestamp>,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether something went wrong.
    pub warning: bool,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// One write or measurement. Each names the uid that it was decided on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Action {
    /// Record a template.
    CreateRevision(NewRevision),
    /// Make an older revision the newest one (a rollback).
    BumpRevision { name: String, uid: String, number: i64 },
    /// Adopt a revision that has no controller.
    AdoptRevision { name: String, uid: String },
    /// Delete a revision that is not used any more.
    DeleteRevision { name: String, uid: String },
    /// Adopt a pod that has no controller.
    AdoptPod { name: String, uid: String },
    /// Release a pod that no longer matches the selector.
    ReleasePod { name: String, uid: String },
    /// Create a pod.
    CreatePod(NewPod),
    /// Delete a pod. With a version only if the pod still has it.
    DeletePod { name: String, uid: String, why: DeleteReason, version: Option<u64> },
    /// Change a pod.
    PatchPod(PodPatch),
    /// Set `spec.updateStrategy.paused`, and the annotation that records what the pause is for. Only if the object is
    /// still this version.
    Pause { paused: bool, mark: Option<String>, version: String },
    /// Record that the hook of a pod is skipped, and why. Nothing is written.
    SkipHook { name: String, uid: String, why: String },
    /// Add or remove the finalizer that keeps the object until its pods are gone. Only if the object is still this
    /// version.
    SetFinalizers { finalizers: Vec<String>, version: String },
    /// Create the PodDisruptionBudget that refuses evictions of protected pods.
    CreateBudget { name: String },
    /// Delete that PodDisruptionBudget, because it is not needed any more or is not as it should be.
    DeleteBudget { name: String, uid: String },
    /// Reset `retry` of a hook. Only if the object is still this version.
    ResetRetry { field: String, version: String },
    /// Ask a hook: create its HookRun.
    CreateHookRun(NewHookRun),
    /// Measure something for a HookRun.
    Measure(NewMeasurement),
    /// Delete a HookRun that is not needed any more. `pod` is the uid of the pod that it asks about, if it asks about
    /// one.
    DeleteHookRun { name: String, uid: String, pod: Option<String> },
    /// Find out with a dry run whether a refused write would be accepted now.
    Probe(Box<Action>),
}

/// A change of a pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodPatch {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Why.
    pub why: PatchReason,
    /// The subresource that it is sent to.
    pub part: PodPart,
    /// The revision that the pod gets with it.
    #[serde(default)]
    pub revision: Option<String>,
    /// A strategic merge patch that names only what changes.
    pub body: Value,
}

/// Why a pod is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PatchReason {
    /// It is removed from its endpoints before its containers restart.
    Drain,
    /// Its containers get new images, or it gets new labels and annotations.
    InPlace,
    /// It returns to its endpoints.
    Restore,
    /// Its containers get new images without a restart.
    HotPatch,
    /// Its containers get other requests or limits.
    Resize,
    /// It is chosen for deletion, and marked so.
    Mark,
    /// It is not to be deleted any more: its mark is removed.
    Unmark,
    /// It gets the label with which only the operator may delete it, once its hook approves.
    Protect,
    /// It loses that label.
    Unprotect,
}

/// A part of a pod that is written by one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPart {
    /// Metadata and spec.
    Main,
    /// Status and metadata.
    Status,
    /// Resources of its containers.
    Resize,
}

/// A HookRun to create.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewHookRun {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What it asks.
    pub spec: HookRunSpec,
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
    pub template: PodTemplate,
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
    pub template: PodTemplate,
    /// Whether it gets the operator's readiness gate.
    pub gated: bool,
    /// Its number, if pods get any.
    #[serde(default)]
    pub index: Option<i32>,
    /// Whether only the operator may delete it, once its hook approves.
    #[serde(default)]
    pub protected: bool,
    /// Whether another pod has to be deleted first to make room for it.
    #[serde(default)]
    pub successor: bool,
}

/// Why a pod is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeleteReason {
    /// More pods exist than are wanted, or the user named it.
    Scale,
    /// Its successor has another revision.
    Update,
    /// Its containers ended for good.
    Ended,
}

impl Action {
    /// Whether it creates a pod that is missing already: how many are missing depends on nothing that the plan does before.
    #[must_use]
    pub fn fills_a_gap(&self) -> bool {
        matches!(self, Self::CreatePod(new) if !new.successor)
    }

    /// The event for an action that succeeded: reason and message.
    #[must_use]
    pub fn success(&self) -> Option<(&'static str, String)> {
        match self {
            Self::CreatePod(pod) => Some((event::SUCCESSFUL_CREATE, format!("succeed to create pod {}", pod.name))),
            Self::DeletePod { name, why: DeleteReason::Update, .. } => {
                Some((event::SUCCESSFUL_RECREATE, format!("successfully delete pod {name} for update")))
            }
            Self::DeletePod { name, .. } => Some((event::SUCCESSFUL_DELETE, format!("succeed to delete pod {name}"))),
            Self::PatchPod(PodPatch { name, why: PatchReason::InPlace, .. }) => {
                Some((event::SUCCESSFUL_INPLACE, format!("successfully update pod {name} in-place")))
            }
            Self::PatchPod(PodPatch { name, why: PatchReason::HotPatch, .. }) => {
                Some((event::SUCCESSFUL_HOT_PATCH, format!("successfully update pod {name} hot-patch")))
            }
            Self::SkipHook { name, why, .. } => Some((event::HOOK_SKIPPED, format!("the hook of pod {name} is skipped: {why}"))),
            Self::CreateHookRun(run) => Some((event::SUCCESSFUL_CREATE_RUN, format!("asks hook {}", run.name))),
            Self::PatchPod(_)
            | Self::Pause { .. }
            | Self::ResetRetry { .. }
            | Self::SetFinalizers { .. }
            | Self::CreateBudget { .. }
            | Self::DeleteBudget { .. }
            | Self::CreateRevision(_)
            | Self::BumpRevision { .. }
            | Self::AdoptRevision { .. }
            | Self::DeleteRevision { .. }
            | Self::AdoptPod { .. }
            | Self::ReleasePod { .. }
            | Self::Measure(_)
            | Self::Probe(_)
            | Self::DeleteHookRun { .. } => None,
        }
    }

    /// The event for an action that failed: reason and message.
    #[must_use]
    pub fn failure(&self, error: &str) -> (&'static str, String) {
        match self {
            Self::CreatePod(pod) => (event::FAILED_CREATE, format!("failed to create pod {}: {error}", pod.name)),
            Self::DeletePod { name, why: DeleteReason::Update, .. } => {
                (event::FAILED_RECREATE, format!("failed to delete pod {name} for update: {error}"))
            }
            Self::DeletePod { name, .. } => (event::FAILED_DELETE, format!("failed to delete pod {name}: {error}")),
            Self::PatchPod(PodPatch { name, why: PatchReason::HotPatch, .. }) => {
                (event::FAILED_HOT_PATCH, format!("failed to update pod {name} hot-patch: {error}"))
            }
            Self::PatchPod(PodPatch { name, why: PatchReason::Mark | PatchReason::Unmark, .. }) => {
                (event::FAILED_MARK, format!("failed to mark pod {name}: {error}"))
            }
            Self::PatchPod(PodPatch { name, why: PatchReason::Protect | PatchReason::Unprotect, .. }) => {
                (event::FAILED_PROTECTION, format!("failed to change the protection of pod {name}: {error}"))
            }
            Self::SetFinalizers { .. } => (event::FAILED_PROTECTION, format!("failed to change the finalizers: {error}")),
            Self::CreateBudget { name } | Self::DeleteBudget { name, .. } => {
                (event::FAILED_PROTECTION, format!("failed to write PodDisruptionBudget {name}: {error}"))
            }
            Self::PatchPod(PodPatch { name, .. }) => (event::FAILED_INPLACE, format!("failed to update pod {name} in-place: {error}")),
            Self::Pause { paused: true, .. } => (event::FAILED_PAUSE, format!("failed to pause the rollout: {error}")),
            Self::Pause { paused: false, .. } => (event::FAILED_PAUSE, format!("failed to resume the rollout: {error}")),
            Self::SkipHook { name, why, .. } => (event::HOOK_SKIPPED, format!("the hook of pod {name} is skipped: {why}: {error}")),
            Self::ResetRetry { field, .. } => (event::FAILED_RETRY, format!("failed to reset spec.{field}.retry: {error}")),
            Self::CreateHookRun(NewHookRun { name, .. }) => (event::FAILED_RUN, format!("failed to create HookRun {name}: {error}")),
            Self::AdoptPod { name, .. } => (event::FAILED_CLAIM, format!("failed to adopt pod {name}: {error}")),
            Self::ReleasePod { name, .. } => (event::FAILED_CLAIM, format!("failed to release pod {name}: {error}")),
            Self::Measure(NewMeasurement { metric, .. }) => (event::FAILED_MEASUREMENT, format!("failed to measure {metric}: {error}")),
            Self::Probe(inner) => inner.failure(error),
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
            Self::PatchPod(PodPatch { why, .. }) => match why {
                PatchReason::Drain => "drain_pod",
                PatchReason::InPlace => "update_pod_inplace",
                PatchReason::Restore => "restore_pod",
                PatchReason::HotPatch => "hot_patch_pod",
                PatchReason::Resize => "resize_pod",
                PatchReason::Mark => "mark_pod",
                PatchReason::Unmark => "unmark_pod",
                PatchReason::Protect => "protect_pod",
                PatchReason::Unprotect => "unprotect_pod",
            },
            Self::Pause { paused: true, .. } => "pause",
            Self::Pause { paused: false, .. } => "resume",
            Self::SkipHook { .. } => "skip_hook",
            Self::SetFinalizers { .. } => "set_finalizers",
            Self::CreateBudget { .. } => "create_budget",
            Self::DeleteBudget { .. } => "delete_budget",
            Self::ResetRetry { .. } => "reset_retry",
            Self::CreateHookRun(_) => "create_hookrun",
            Self::Measure(_) => "measure",
            Self::DeleteHookRun { .. } => "delete_hookrun",
            Self::Probe(_) => "probe",
        }
    }
}
