//! The order of the writes, and the reason for it.

use super::ledger::MAX_MOVES;
use super::moves::Moves;
use super::revision;
use super::view::{Group, View};
use crate::plan::Action;

/// The writes of one plan. A refused write stops only what depends on it.
pub(super) fn of(view: &View, moves: &mut Moves) -> Vec<Vec<Action>> {
    let protection = view.protection();
    let guards = if view.protects() { protection.put_up() } else { protection.take_down() };
    let proven = view.ours.iter().filter(|pod| view.group(pod) == Group::Update && !pod.is_changing()).count();
    let (ending, starting) = std::mem::take(&mut moves.changes).into_steps(proven);
    let gates = std::mem::take(&mut moves.gates);
    let [missing, deletions, successors, ended] =
        [&mut moves.missing, &mut moves.deletions, &mut moves.successors, &mut moves.ended].map(std::mem::take);
    let one = |step: Vec<Action>| vec![step];
    let order: [Vec<Vec<Action>>; 18] = [
        one(gates.voids),                   // an approval that is not needed any more is deleted before its pod is touched
        one(gates.unmarks),                 // and so is the mark of a pod that stays
        one(view.adoptions.clone()),        // only pods and revisions that the workload controls are changed
        ending,                             // what is under way ends first: pods return to endpoints, containers restart
        guards,                             // the protection of a pod exists before the pod
        one(view.canary.actions.clone()),   // a pause or its end is written before the rollout continues
        one(view.revision_actions.clone()), // the revision of a pod exists before the pod
        one(missing),                       // missing pods are created before any is deleted
        one(gates.skips),                   // that a hook is skipped is recorded before its pod is deleted
        one(deletions),                     // a pod is deleted
        one(successors),                    // before its successor is created: there are never more than replicas + maxSurge
        starting,                           // pods start to change when what others started has ended
        one(gates.marks),                   // a pod that is to be deleted is marked
        one(gates.questions),               // before its hook is asked
        one(gates.resets),                  // `retry` is reset once its question is asked
        one(ended),                         // ended pods do not count any more
        one(gates.leftovers),               // nor do HookRuns about pods that are gone
        one(view.canary.leftovers.clone()), // or about earlier steps
    ];
    order.into_iter().flatten().collect()
}

/// The writes that are made now: not those that depend on a refused one, and at most one write of the workload itself.
/// `tidy` comes last.
pub(super) fn admitted(view: &View, writes: Vec<Vec<Action>>, tidy: [Vec<Action>; 2]) -> Vec<Vec<Action>> {
    let mut steps = view.refusals.admit(writes, view.now);
    write_workload_once(&mut steps);
    steps.extend(tidy);
    steps.retain(|step| !step.is_empty());
    let fills_gaps = |step: &Vec<Action>| step.iter().all(Action::fills_a_gap);
    // Whatever follows does not wait for thousands of pods.
    if let Some(place) = steps.iter().position(fills_gaps).filter(|place| place + 1 < steps.len())
        && let Some(missing) = steps.get_mut(place)
    {
        missing.truncate(MAX_MOVES);
    }
    steps
}

/// Each write of the workload names the version that was observed, so only the first is made now. The others follow in
/// the next plan.
fn write_workload_once(steps: &mut [Vec<Action>]) {
    let mut is_written = false;
    for step in steps {
        step.retain(|action| {
            let is_of_workload = matches!(action, Action::SetFinalizers { .. } | Action::Pause { .. } | Action::ResetRetry { .. });
            !(is_of_workload && std::mem::replace(&mut is_written, true))
        });
    }
}

/// Deletions of revisions that are not used any more.
pub(super) fn forgotten(view: &View, current_revision: &str) -> Vec<Action> {
    let needed = |name: &str| {
        let carried = view.ours.iter().any(|pod| pod.revision() == Some(name));
        carried || [&*view.update.name, &*view.current.name, &*view.revision, current_revision].contains(&name)
    };
    revision::superfluous(&view.seen.revisions, view.history_limit().min(super::view::MOST_REVISIONS), needed)
}
