//! What to do next for one GameDeployment.
//!
//! Pods fall into three groups by their revision: `update` (the template of the spec), `current` (the stable revision, remembered in status) and `stray` (neither).
//! Deletions come before creations within one plan, so that the number of pods never passes `replicas + maxSurge`; names of new pods follow from what is seen, so that
//! a plan carried out twice creates nothing twice.

mod changes;
mod leaving;
mod moves;
mod situation;
mod status;

use std::sync::Arc;

use api::tkex::{GameDeployment, GameDeploymentStatus, HookRun, HookTemplate};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::node::Nodes;
use crate::plan::{Action, Plan};
use crate::pod::PodFacts;
use crate::protect::BudgetFacts;
use crate::revision::{self, RevisionFacts};

pub use status::with_trouble;

/// The moment of the decision.
pub type Now = Timestamp;

/// Everything a decision is made from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Observed {
    /// The object, with defaults.
    pub object: Arc<GameDeployment>,
    /// Pods that it controls, and pods of its namespace that nobody controls.
    pub pods: Vec<Arc<PodFacts>>,
    /// Revisions that it controls, and those that nobody controls and its selector matches.
    pub revisions: Vec<Arc<RevisionFacts>>,
    /// HookRuns that it controls.
    #[serde(default)]
    pub hook_runs: Vec<Arc<HookRun>>,
    /// HookTemplates that it names.
    #[serde(default)]
    pub hook_templates: Vec<Arc<HookTemplate>>,
    /// Nodes that its pods are on.
    #[serde(default)]
    pub nodes: Nodes,
    /// PodDisruptionBudgets of its namespace, if it protects its pods.
    #[serde(default)]
    pub budgets: Vec<Arc<BudgetFacts>>,
    /// Names of revisions that others use.
    pub taken_revision_names: Vec<String>,
    /// Names of pods that others use.
    pub taken_pod_names: Vec<String>,
}

/// What to do next. Never fails: what cannot be followed is a hold.
#[must_use]
pub fn decide(seen: &Observed, now: Now) -> Plan<GameDeploymentStatus> {
    let situation = situation::Situation::of(seen, now);
    if seen.object.metadata.deletion_timestamp.is_some() {
        return leaving::decide(seen, &situation);
    }
    let moves = moves::Moves::of(&situation);
    let (status, holds) = (status::status(seen, &situation, &moves), moves.holds.clone());
    let needed = |name: &str| {
        let carried = situation.ours.iter().any(|pod| pod.revision() == Some(name));
        let live = [&situation.update.name, &situation.current.name, &situation.revision, &status.current_revision];
        carried || live.iter().any(|live| *live == name)
    };
    let limit = usize::try_from(seen.object.spec.revision_history_limit).unwrap_or_default();
    let forgotten = revision::superfluous(&seen.revisions, limit, needed);
    let protection = situation.protection();
    let guards = if situation.protects() { protection.put_up() } else { protection.take_down() };
    let (claims, revisions) = (situation.claims.clone(), situation.revision_actions.clone());
    let (wake, canary) = (situation.wake().into_iter().chain(moves.wake).min(), situation.standing);
    let tidying = [moves.ended, canary.leftovers, forgotten].concat();
    // What was agreed to and is not wanted any more is gone before anything else is done. What is missing comes before anything goes. What only concerns the steps, and what only tidies up, comes last, so that a refusal there holds nothing up.
    let gates = moves.gates;
    let pods = [gates.voids, gates.unmarks, claims].into_iter().chain(guards);
    let pods = pods.chain([revisions, moves.missing, gates.skips, moves.deletions, moves.successors]);
    let notes = [canary.notes, moves.changes.notes.clone()].concat();
    let changes = moves.changes.into_steps();
    // A choice is written down before anybody is asked.
    let questions = [gates.marks, gates.questions, gates.resets];
    let steps = pods.chain(changes).chain(questions).chain([canary.actions, tidying]);
    let steps: Vec<Vec<Action>> = steps.filter(|step| !step.is_empty()).collect();
    Plan { steps, holds, notes, wake, ..Plan::only(status) }
}
