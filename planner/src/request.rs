//! What an action asks of the API server: a verb on a resource.

use std::borrow::Cow;

use api::names::PAUSED_FOR_ANNOTATION;
use serde_json::{Value, json};

use crate::plan::{Action, PodPart, PodPatch};
use crate::workload::manifest::{self, Owner};

/// A resource that workloads write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// The object that the plan is for.
    Object,
    /// `pods`.
    Pod,
    /// `controllerrevisions`.
    ControllerRevision,
    /// `hookruns`.
    HookRun,
    /// `poddisruptionbudgets`.
    PodDisruptionBudget,
}

impl Resource {
    /// The path of all objects of the resource in a namespace; none for the object that the plan is for.
    #[must_use]
    pub fn collection(self, namespace: &str) -> Option<String> {
        let (group, plural) = match self {
            Self::Object => return None,
            Self::Pod => ("/api/v1", "pods"),
            Self::ControllerRevision => ("/apis/apps/v1", "controllerrevisions"),
            Self::HookRun => ("/apis/tkex.tencent.com/v1alpha1", "hookruns"),
            Self::PodDisruptionBudget => ("/apis/policy/v1", "poddisruptionbudgets"),
        };
        Some(format!("{group}/namespaces/{namespace}/{plural}"))
    }
}

/// One object of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The resource.
    pub resource: Resource,
    /// The object's name.
    pub name: &'a str,
    /// Its uid; empty if it does not exist yet.
    pub uid: &'a str,
}

/// What is done to an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb<'a> {
    /// It is created.
    Create(Value),
    /// It is changed. A strategic merge patch merges lists by their keys.
    Patch { strategic: bool, part: PodPart, body: Cow<'a, Value> },
    /// It gets a controller, unless that controller is gone or being deleted.
    Adopt(Value),
    /// It is deleted. With a version only if it still has it.
    Delete { version: Option<u64> },
}

/// The object that an action writes; none if it writes nothing, or if it is a dry run.
#[must_use]
pub fn subject<'a>(owner: &'a Owner, action: &'a Action) -> Option<Subject<'a>> {
    let (resource, name, uid) = match action {
        Action::CreatePod(new) => (Resource::Pod, &*new.name, ""),
        Action::DeletePod { name, uid, .. } | Action::AdoptPod { name, uid } | Action::ReleasePod { name, uid } => {
            (Resource::Pod, &**name, &**uid)
        }
        Action::PatchPod(PodPatch { name, uid, .. }) => (Resource::Pod, &**name, &**uid),
        Action::CreateRevision(new) => (Resource::ControllerRevision, &*new.name, ""),
        Action::BumpRevision { name, uid, .. } | Action::AdoptRevision { name, uid } | Action::DeleteRevision { name, uid } => {
            (Resource::ControllerRevision, &**name, &**uid)
        }
        Action::Pause { .. } | Action::ResetRetry { .. } | Action::SetFinalizers { .. } => (Resource::Object, &*owner.name, &*owner.uid),
        Action::CreateBudget { name } => (Resource::PodDisruptionBudget, &**name, ""),
        Action::DeleteBudget { name, uid } => (Resource::PodDisruptionBudget, &**name, &**uid),
        Action::CreateHookRun(new) => (Resource::HookRun, &*new.name, ""),
        // A finished HookRun is itself the object that the plan is for.
        Action::DeleteHookRun { name, uid, .. } => (if owner.uid == *uid { Resource::Object } else { Resource::HookRun }, &**name, &**uid),
        Action::Probe(_) | Action::SkipHook { .. } | Action::Measure(_) => return None,
    };
    Some(Subject { resource, name, uid })
}

/// What an action does to its [`subject`].
#[must_use]
pub fn verb<'a>(owner: &Owner, action: &'a Action) -> Option<Verb<'a>> {
    let patch = |strategic, body| Verb::Patch { strategic, part: PodPart::Main, body: Cow::Owned(body) };
    Some(match action {
        Action::CreatePod(new) => Verb::Create(manifest::pod(owner, new)),
        Action::CreateRevision(new) => Verb::Create(manifest::controller_revision(owner, new)),
        Action::CreateBudget { name } => Verb::Create(manifest::budget(owner, name)),
        Action::CreateHookRun(new) => Verb::Create(manifest::hook_run(owner, new)),
        Action::AdoptPod { uid, .. } | Action::AdoptRevision { uid, .. } => Verb::Adopt(manifest::adoption(owner, uid)),
        Action::ReleasePod { uid, .. } => patch(true, manifest::release(owner, uid)),
        Action::PatchPod(change) => Verb::Patch { strategic: true, part: change.part, body: Cow::Borrowed(&change.body) },
        Action::BumpRevision { uid, number, .. } => patch(false, json!({ "metadata": { "uid": uid }, "revision": number })),
        Action::Pause { paused, mark, version } => {
            let metadata = json!({ "resourceVersion": version, "annotations": { PAUSED_FOR_ANNOTATION: mark } });
            patch(false, json!({ "metadata": metadata, "spec": { "updateStrategy": { "paused": paused } } }))
        }
        Action::ResetRetry { field, version } => {
            patch(false, json!({ "metadata": { "resourceVersion": version }, "spec": { field: { "retry": false } } }))
        }
        Action::SetFinalizers { finalizers, version } => {
            patch(false, json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } }))
        }
        Action::DeletePod { version, .. } => Verb::Delete { version: *version },
        Action::DeleteRevision { .. } | Action::DeleteBudget { .. } | Action::DeleteHookRun { .. } => Verb::Delete { version: None },
        Action::Probe(_) | Action::SkipHook { .. } | Action::Measure(_) => return None,
    })
}
