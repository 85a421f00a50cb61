//! What depends on a refused write: it is left out of the plan, and everything else is done.

use std::collections::{BTreeMap, BTreeSet};

use api::names::RUN_POD_UID_LABEL;

use super::CLOSED_AFTER;
use crate::plan::{Action, PatchReason, PodPatch};

/// What a write is about, and what others wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject<'a> {
    /// The workload's finalizers.
    Finalizers,
    /// The revision with this name.
    Revision(&'a str),
    /// The pod with this uid.
    Pod(&'a str),
}

/// The subject of an action that others depend on, with an owned name.
type Lost = (u8, String);

impl Subject<'_> {
    fn owned(&self) -> Lost {
        match self {
            Self::Finalizers => (0, String::new()),
            Self::Revision(name) => (1, (*name).to_owned()),
            Self::Pod(uid) => (2, (*uid).to_owned()),
        }
    }
}

/// The pod that a HookRun is about.
fn asked_about(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(RUN_POD_UID_LABEL).map(String::as_str)
}

/// What an action is about, if anything can depend on that.
pub(super) fn about(action: &Action) -> Option<Subject<'_>> {
    match action {
        Action::CreateRevision(new) => Some(Subject::Revision(&new.name)),
        Action::SetFinalizers { .. } => Some(Subject::Finalizers),
        Action::DeleteHookRun { pod, .. } => pod.as_deref().map(Subject::Pod),
        Action::CreateHookRun(new) => asked_about(&new.labels).map(Subject::Pod),
        Action::DeletePod { uid, .. } | Action::AdoptPod { uid, .. } | Action::ReleasePod { uid, .. } => Some(Subject::Pod(uid)),
        Action::PatchPod(PodPatch { why: PatchReason::Restore | PatchReason::Protect | PatchReason::Unprotect, .. }) => None,
        Action::PatchPod(change) => Some(Subject::Pod(&change.uid)),
        Action::Probe(_)
        | Action::CreatePod(_)
        | Action::BumpRevision { .. }
        | Action::AdoptRevision { .. }
        | Action::DeleteRevision { .. }
        | Action::Pause { .. }
        | Action::SkipHook { .. }
        | Action::CreateBudget { .. }
        | Action::DeleteBudget { .. }
        | Action::ResetRetry { .. }
        | Action::Measure(_) => None,
    }
}

/// What must not have been refused for an action to make sense.
fn needs(action: &Action) -> Vec<Subject<'_>> {
    let pod = if let Action::SkipHook { uid, .. } = action {
        Some(Subject::Pod(uid))
    } else {
        // One approval is taken back without the other.
        about(action).filter(|_| !matches!(action, Action::DeleteHookRun { .. }))
    };
    let revision = target(action).filter(|_| !matches!(action, Action::Probe(_))).map(Subject::Revision);
    let finalizers = matches!(action, Action::CreatePod(new) if new.protected).then_some(Subject::Finalizers);
    pod.into_iter().chain(revision).chain(finalizers).collect()
}

/// Which writes of a plan make no sense any more because others were refused.
#[derive(Debug, Clone, Default)]
pub struct Fallout {
    lost: BTreeSet<Lost>,
    /// Pods that were to be deleted and are still there: as many successors are not created.
    undeleted: usize,
    /// How often in a row writes of one kind were refused.
    rows: BTreeMap<(&'static str, Option<String>), u32>,
    /// Revisions that a pod could not be changed to: no other pod is drained for them in this plan.
    doubtful: BTreeSet<String>,
}

impl Fallout {
    /// Whether an action still makes sense. What depends on one that does not, does not either.
    pub fn stands(&mut self, action: &Action) -> bool {
        if let Action::CreatePod(new) = action
            && new.successor
            && self.undeleted > 0
        {
            self.undeleted -= 1;
            return false;
        }
        let kind = (action.word(), target(action).map(str::to_owned));
        let most = if matches!(action, Action::CreatePod(_)) { 1 } else { CLOSED_AFTER };
        let is_hopeless = !matches!(action, Action::Probe(_)) && self.rows.get(&kind).is_some_and(|row| *row >= most);
        let is_doubtful = matches!(action, Action::PatchPod(PodPatch { why: PatchReason::Drain, revision: Some(revision), .. }) if self.doubtful.contains(revision));
        let stands = !is_hopeless && !is_doubtful && !self.needs_lost(action);
        if !stands {
            self.lose(action);
        }
        stands
    }

    /// Whether something that an action needs was refused.
    pub(super) fn needs_lost(&self, action: &Action) -> bool {
        needs(action).iter().any(|needed| self.lost.contains(&needed.owned()))
    }

    /// An action was done.
    pub fn done(&mut self, action: &Action) {
        self.rows.remove(&(action.word(), target(action).map(str::to_owned)));
    }

    /// An action was refused.
    pub fn refuse(&mut self, action: &Action) {
        *self.rows.entry((action.word(), target(action).map(str::to_owned))).or_default() += 1;
        if let Action::PatchPod(PodPatch { why: PatchReason::InPlace | PatchReason::Resize, revision: Some(revision), .. }) = action {
            self.doubtful.insert(revision.clone());
        }
        self.lose(action);
    }

    /// An action is not done.
    pub fn lose(&mut self, action: &Action) {
        self.undeleted += usize::from(matches!(action, Action::DeletePod { .. }));
        self.lost.extend(about(action).map(|subject| subject.owned()));
    }
}

/// The revision that an action brings a pod to.
pub(super) fn target(action: &Action) -> Option<&str> {
    let inner = tried(action);
    if let Action::CreatePod(new) = inner {
        return Some(&new.revision);
    }
    if let Action::PatchPod(change) = inner { change.revision.as_deref() } else { None }
}

/// The write itself, or the one that a dry run is of.
pub(super) fn tried(action: &Action) -> &Action {
    if let Action::Probe(inner) = action { inner } else { action }
}

/// What a refused write is told from others of its kind by: the uid of the pod, or a name.
pub(super) fn identity(action: &Action) -> &str {
    match action {
        Action::CreateHookRun(new) => asked_about(&new.labels).unwrap_or(&new.name),
        Action::DeleteHookRun { uid, .. }
        | Action::DeletePod { uid, .. }
        | Action::AdoptPod { uid, .. }
        | Action::ReleasePod { uid, .. } => uid,
        Action::PatchPod(change) => &change.uid,
        Action::CreatePod(new) => &new.revision,
        Action::CreateRevision(new) => &new.name,
        Action::BumpRevision { name, .. } | Action::AdoptRevision { name, .. } | Action::DeleteRevision { name, .. } => name,
        Action::CreateBudget { name } | Action::DeleteBudget { name, .. } | Action::SkipHook { name, .. } => name,
        Action::Probe(inner) => identity(inner),
        Action::ResetRetry { field, .. } => field,
        Action::Measure(new) => &new.metric,
        Action::Pause { .. } | Action::SetFinalizers { .. } => "",
    }
}
