//! Which other kinds have to be listed before anything is decided.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::{Now, Status, Workload, conditions};
use crate::hold::Hold;
use crate::plan::Plan;

/// A kind that decisions about other objects need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Needed {
    /// `Pod`.
    Pod,
    /// `ControllerRevision`.
    ControllerRevision,
    /// `Node`.
    Node,
    /// `HookRun`.
    HookRun,
    /// `HookTemplate`.
    HookTemplate,
    /// `PodDisruptionBudget`.
    PodDisruptionBudget,
}

impl Needed {
    fn word(self) -> &'static str {
        match self {
            Self::Pod => "Pods",
            Self::ControllerRevision => "ControllerRevisions",
            Self::Node => "Nodes",
            Self::HookRun => "HookRuns",
            Self::HookTemplate => "HookTemplates",
            Self::PodDisruptionBudget => "PodDisruptionBudgets",
        }
    }
}

/// A kind that is not listed: that none of its objects is in the cache does not mean that there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlisted {
    /// The kind.
    pub kind: Needed,
    /// Why it cannot be listed, if that lasts.
    pub why: Option<String>,
}

/// How soon an object is reconciled again while a kind that it needs is not listed.
const LIST_RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Kinds that an object needs and that are not listed: an empty cache never counts as "there is none".
pub(super) fn missing<'u>(workload: &Workload, unlisted: &'u [Unlisted]) -> Option<Vec<&'u Unlisted>> {
    let missing: Vec<_> = unlisted.iter().filter(|unlisted| is_needed(workload, unlisted.kind)).collect();
    (!missing.is_empty()).then_some(missing)
}

/// The plan for an object while a kind that it needs is not listed: no actions. Lists that are under way are soon
/// complete, so the status does not mention them.
pub(super) fn plan<S: Status>(before: S, missing: &[&Unlisted], generation: Option<i64>, now: Now) -> Plan<S> {
    let troubles: Vec<String> = missing
        .iter()
        .filter_map(|unlisted| Some(format!("{} cannot be listed: {}", unlisted.kind.word(), unlisted.why.as_ref()?)))
        .collect();
    let wake = now.checked_add(LIST_RETRY).ok();
    if troubles.is_empty() {
        return Plan { wake, status_delay: Some(LIST_RETRY), ..conditions::plan(before) };
    }
    Plan { wake, ..conditions::unknown(before, Hold::NotListed { troubles: troubles.join("; ") }, generation, now) }
}

fn is_needed(workload: &Workload, kind: Needed) -> bool {
    match kind {
        // Without nodes, an unavailable pod could be on a silent node, and still serve.
        Needed::Pod | Needed::ControllerRevision | Needed::Node => true,
        Needed::HookRun | Needed::HookTemplate => workload.hook_templates().next().is_some(),
        Needed::PodDisruptionBudget => workload.guards_pods(),
    }
}
