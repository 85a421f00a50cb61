//! What has to be seen of other kinds before anything is decided.

use api::names::PROTECTION_FINALIZER;
use api::tkex::{GameDeployment, GameDeploymentSpec, GameDeploymentStatus, HookStep};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::{Now, Observed, status};
use crate::hold::Hold;
use crate::plan::Plan;

/// A kind that is not needed by every object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Needed {
    /// `HookRun`.
    HookRun,
    /// `HookTemplate`.
    HookTemplate,
    /// `Node`.
    Node,
    /// `PodDisruptionBudget`.
    PodDisruptionBudget,
}

impl Needed {
    fn word(self) -> &'static str {
        match self {
            Self::HookRun => "HookRuns",
            Self::HookTemplate => "HookTemplates",
            Self::Node => "Nodes",
            Self::PodDisruptionBudget => "PodDisruptionBudgets",
        }
    }
}

/// A kind that has not been listed: that none of its objects is seen does not mean that there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlisted {
    /// The kind.
    pub kind: Needed,
    /// Why it cannot be listed; none if nothing is known to be wrong.
    pub why: Option<String>,
}

/// How soon an object is reconciled again that waits for a list which may still come.
const SOON: SignedDuration = SignedDuration::from_secs(5);

/// What to do with an object as long as not everything that it needs is listed: nothing.
pub(super) fn plan(seen: &Observed, now: Now) -> Option<Plan<GameDeploymentStatus>> {
    let mut missing = seen.unlisted.iter().filter(|unlisted| is_needed(&seen.object, unlisted.kind)).peekable();
    missing.peek()?;
    let troubles: Vec<String> =
        missing.filter_map(|unlisted| Some(format!("{} cannot be listed: {}", unlisted.kind.word(), unlisted.why.as_ref()?))).collect();
    if troubles.is_empty() {
        let status = seen.object.status.clone().unwrap_or_default();
        return Some(Plan { wake: now.checked_add(SOON).ok(), ..Plan::only(status) });
    }
    let hold = Hold::NotListed { troubles: troubles.join("; ") };
    Some(Plan { holds: vec![hold.clone()], ..Plan::only(status::unknown(&seen.object, &hold, now)) })
}

fn is_needed(object: &GameDeployment, kind: Needed) -> bool {
    match kind {
        Needed::HookRun | Needed::HookTemplate => hooks(&object.spec).next().is_some() || guards_pods(object),
        Needed::Node => asks_about_pods(object) || guards_pods(object),
        Needed::PodDisruptionBudget => guards_pods(object),
    }
}

/// Hooks that an object asks about pods.
fn pod_hooks(spec: &GameDeploymentSpec) -> impl Iterator<Item = &HookStep> {
    let pre_delete = spec.pre_delete_update_strategy.as_ref().and_then(|strategy| strategy.hook.as_ref());
    let in_place = [&spec.pre_inplace_update_strategy, &spec.post_inplace_update_strategy];
    pre_delete.into_iter().chain(in_place.into_iter().flatten().filter_map(|strategy| strategy.hook.as_ref()))
}

fn hooks(spec: &GameDeploymentSpec) -> impl Iterator<Item = &HookStep> {
    let steps = spec.update_strategy.canary.iter().flat_map(|canary| &canary.steps);
    steps.filter_map(|step| step.hook.as_ref()).chain(pod_hooks(spec))
}

/// Names of HookTemplates that an object uses.
pub fn hook_templates(object: &GameDeployment) -> impl Iterator<Item = &str> {
    hooks(&object.spec).map(|hook| hook.template_name.as_str())
}

/// Whether hooks are asked about the pods of an object.
#[must_use]
pub fn asks_about_pods(object: &GameDeployment) -> bool {
    pod_hooks(&object.spec).next().is_some()
}

/// Whether an object protects its pods, or did and has not ended it.
#[must_use]
pub fn guards_pods(object: &GameDeployment) -> bool {
    let wants = object.spec.pre_delete_update_strategy.as_ref().is_some_and(|strategy| strategy.protect == Some(true));
    wants || object.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION_FINALIZER)
}
