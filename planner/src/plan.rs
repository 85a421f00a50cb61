//! What a decision is made of.

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
    /// What to do. Outer: in order. Inner: independent, may run together. What is refused stops only what depends on it ([`crate::refusal::Fallout`]).
    pub steps: Vec<Vec<Action>>,
    /// From what was seen, never from what the steps hope to achieve.
    pub status: S,
    /// What metrics tell of the object.
    pub summary: Summary,
    /// What is worth telling a person when the status is written.
    pub notes: Vec<Note>,
    /// Why work that looks due is not done now.
    pub holds: Vec<Hold>,
    /// Look again then, even if nothing changes.
    pub wake: Option<Timestamp>,
    /// The status is likely to change at once: for so long it need not be written.
    pub status_delay: Option<SignedDuration>,
    /// What was refused before and is still worth remembering.
    pub refusals: Refusals,
}

impl<S> Plan<S> {
    /// Nothing to do; this is how things are.
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

/// What metrics tell of an object.
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
    /// Since when the first of them waits.
    pub since: Option<Timestamp>,
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
    /// Delete a pod, if it is still this version. Without one whatever has become of it.
    DeletePod { name: String, uid: String, why: DeleteReason, version: Option<u64> },
    /// Change a pod.
    PatchPod(PodPatch),
    /// Pause or resume the rollout, for everybody to see, and say what a pause is for. Only if the object is still this version.
    Pause { paused: bool, mark: Option<String>, version: String },
    /// Tell that the hook of a pod is skipped, and why. Nothing is written.
    SkipHook { name: String, uid: String, why: String },
    /// Keep the object until its pods have left, or no longer. Only if the object is still this version.
    SetFinalizers { finalizers: Vec<String>, version: String },
    /// Refuse evictions of protected pods.
    CreateBudget { name: String },
    /// Refuse them no longer, or not so.
    DeleteBudget { name: String, uid: String },
    /// Set `retry` of a hook back. Only if the object is still this version.
    ResetRetry { field: String, version: String },
    /// Ask a hook.
    CreateHookRun(NewHookRun),
    /// Measure something for a HookRun.
    Measure(NewMeasurement),
    /// Forget a HookRun that nobody owns or needs. `pod` is the uid of the pod that it asks about.
    DeleteHookRun { name: String, uid: String, pod: Option<String> },
    /// Find out with a dry run whether a write that was refused would pass now.
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
    /// Which part of the pod it goes to.
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
    /// It leaves its services before its containers restart.
    Drain,
    /// Its containers get new images, or it gets new labels and annotations.
    InPlace,
    /// It may serve.
    Restore,
    /// Its containers get new images under their feet.
    HotPatch,
    /// Its containers get other resources.
    Resize,
    /// It is chosen to go.
    Mark,
    /// It stays after all.
    Unmark,
    /// Nobody may delete it before its hook agrees.
    Protect,
    /// Everybody may.
    Unprotect,
}

/// A part of a pod that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPart {
    /// Metadata and spec.
    Main,
    /// Status, and metadata too.
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
    /// Whether it gets our readiness gate.
    pub gated: bool,
    /// Its number, if pods get any.
    #[serde(default)]
    pub index: Option<i32>,
    /// Whether nobody may delete it before its hook agrees.
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

    /// The event that tells a person that the action failed: reason and message.
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
