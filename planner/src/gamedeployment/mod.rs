//! What to do next for one GameDeployment.
//!
//! Pods fall into three groups by their revision: `update` (the template of the spec), `current` (the stable revision, remembered in status) and `stray` (neither).
//! Deletions come before creations within one plan, so that the number of pods never passes `replicas + maxSurge`; names of new pods follow from what is seen, so that
//! a plan carried out twice creates nothing twice.

mod changes;
mod leaving;
mod moves;
mod needs;
mod situation;
mod status;

use std::sync::Arc;

use api::tkex::{GameDeployment, GameDeploymentStatus, HookRun, HookTemplate};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::moves::Moves;
use self::situation::{Group, Situation};
use crate::hold::Hold;
use crate::node::Nodes;
use crate::plan::{Action, Plan};
use crate::pod::PodFacts;
use crate::protect::BudgetFacts;
use crate::refusal::Refusals;
use crate::revision::{self, RevisionFacts};

pub use needs::{Needed, Unlisted, asks_about_pods, guards_pods, hook_templates};
pub use status::{summary, with_trouble};

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
    /// What the API server has refused.
    #[serde(default)]
    pub refusals: Refusals,
    /// Why not all that is stored of it or of its pods, revisions and HookRuns is known.
    #[serde(default)]
    pub too_large: Option<String>,
    /// Kinds that have not been listed.
    #[serde(default)]
    pub unlisted: Vec<Unlisted>,
    /// Whether memory limits can be lowered without a restart: since Kubernetes 1.34.
    #[serde(default = "yes")]
    pub lowers_memory: bool,
}

fn yes() -> bool {
    true
}

/// What to do next. Never fails: what cannot be followed is a hold.
#[must_use]
pub fn decide(seen: &Observed, now: Now) -> Plan<GameDeploymentStatus> {
    if let Some(what) = &seen.too_large {
        let hold = Hold::TooLarge { what: what.clone() };
        return Plan { holds: vec![hold.clone()], ..Plan::only(status::unknown(&seen.object, &hold, now)) };
    }
    if let Some(plan) = needs::plan(seen, now) {
        return plan;
    }
    let situation = Situation::of(seen, now);
    if seen.object.metadata.deletion_timestamp.is_some() {
        return leaving::decide(seen, &situation);
    }
    let mut moves = moves::Moves::of(&situation);
    let steps = steps(&situation, &mut moves);
    let refused = situation.refusals.holds(&moves.held, &steps, &moves.missing_revisions);
    moves.holds.extend(refused);
    let status = status::status(seen, &situation, &moves);
    let mut steps = situation.refusals.admit(steps, now);
    write_workload_once(&mut steps);
    steps.push(forgotten(seen, &situation, &status));
    steps.push(situation.refusals.probes(&moves.held, now));
    steps.retain(|step| !step.is_empty());
    let notes = [situation.canary.notes.clone(), moves.notes].concat();
    let wake = situation.wake().into_iter().chain(moves.wake).chain(situation.refusals.wake(now)).min();
    let (holds, refusals) = (moves.holds, situation.refusals.clone());
    Plan { steps, holds, notes, wake, refusals, ..Plan::only(status) }
}

/// What is written, in this order. A write that is refused stops only what depends on it.
fn steps(situation: &Situation, moves: &mut Moves) -> Vec<Vec<Action>> {
    let protection = situation.protection();
    let guards = if situation.protects() { protection.put_up() } else { protection.take_down() };
    let proven = situation.ours.iter().filter(|pod| situation.group(pod) == Group::Update && !pod.is_changing()).count();
    let (ending, starting) = std::mem::take(&mut moves.changes).into_steps(proven);
    let gates = std::mem::take(&mut moves.gates);
    let [missing, deletions, successors, ended] =
        [&mut moves.missing, &mut moves.deletions, &mut moves.successors, &mut moves.ended].map(std::mem::take);
    let canary = &situation.canary;
    // An approval that is not wanted any more is gone before anything is done to its pod.
    let mut steps = vec![gates.voids, gates.unmarks, situation.claims.clone()];
    // What is under way ends first: pods return to their services, containers restart after their grace.
    steps.extend(ending);
    // What guards a pod, and what it is made from, is there before the pod.
    steps.extend(guards);
    steps.extend([canary.actions.clone(), situation.revision_actions.clone()]);
    // What is missing comes before anything goes, and a pod goes before its successor comes.
    steps.extend([missing, gates.skips, deletions, successors]);
    // Pods that stay begin to change when what others began has ended.
    steps.extend(starting);
    // A choice is written down before the hook is asked.
    steps.extend([gates.marks, gates.questions, gates.resets]);
    // What only tidies up comes last.
    steps.extend([ended, canary.leftovers.clone()]);
    steps
}

/// Each write of the workload names the version that was seen: the first is made now, the others on what it brings.
fn write_workload_once(steps: &mut [Vec<Action>]) {
    let mut is_written = false;
    for step in steps {
        step.retain(|action| {
            let is_of_workload = matches!(action, Action::SetFinalizers { .. } | Action::Pause { .. } | Action::ResetRetry { .. });
            !(is_of_workload && std::mem::replace(&mut is_written, true))
        });
    }
}

/// Revisions that nothing needs any more.
fn forgotten(seen: &Observed, situation: &Situation, status: &GameDeploymentStatus) -> Vec<Action> {
    let needed = |name: &str| {
        let carried = situation.ours.iter().any(|pod| pod.revision() == Some(name));
        let live = [&situation.update.name, &situation.current.name, &situation.revision, &status.current_revision];
        carried || live.iter().any(|live| *live == name)
    };
    let limit = situation::history_limit(&seen.object.spec).min(situation::MOST_REVISIONS);
    revision::superfluous(&seen.revisions, limit, needed)
}
