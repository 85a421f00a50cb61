//! What is written, in which order, and why.

use super::moves::Moves;
use super::revision;
use super::view::{Group, View};
use crate::plan::Action;

/// The writes of one plan. A write that is refused stops only what depends on it.
pub(super) fn of(view: &View, moves: &mut Moves) -> Vec<Vec<Action>> {
    let protection = view.protection();
    let guards = if view.protects() { protection.put_up() } else { protection.take_down() };
    let proven = view.ours.iter().filter(|pod| view.group(pod) == Group::Update && !pod.is_changing()).count();
    let (ending, starting) = std::mem::take(&mut moves.changes).into_steps(proven);
    let gates = std::mem::take(&mut moves.gates);
    let [missing, deletions, successors, ended] =
        [&mut moves.missing, &mut moves.deletions, &mut moves.successors, &mut moves.ended].map(std::mem::take);
    let one = |step: Vec<Action>| vec![step];
    let order: [Vec<Vec<Action>>; 17] = [
        one(gates.voids),                   // an approval that is no longer wanted is gone before anything is done to its pod
        one(gates.unmarks),                 // and so is the mark of a pod that stays
        one(view.claims.clone()),           // only what is ours is changed
        ending,                             // what is under way ends first: pods serve again, containers restart after their grace
        guards,                             // what protects a pod is there before the pod
        one(view.canary.actions.clone()),   // a pause or its end is told before the rollout moves
        one(view.revision_actions.clone()), // what a pod is made from is there before the pod
        one(missing),                       // what is missing comes before anything goes
        one(gates.skips),                   // that a hook is skipped is told before its pod goes
        one(deletions),                     // a pod goes
        one(successors),                    // before its successor comes: there are never more than replicas + maxSurge
        starting,                           // pods start to change when what others started has ended
        one(gates.marks),                   // which pod is to go is written down
        one(gates.questions),               // before its hook is asked
        one(gates.resets),                  // `retry` has done its work
        one(ended),                         // pods that ended fill no place any more
        one(view.canary.leftovers.clone()), // and HookRuns of earlier steps decide nothing
    ];
    order.into_iter().flatten().collect()
}

/// The writes that are made now: without those that wait for a refused one, and each write of the workload itself at most once. `tidy` comes last.
pub(super) fn admitted(view: &View, writes: Vec<Vec<Action>>, tidy: [Vec<Action>; 2]) -> Vec<Vec<Action>> {
    let mut steps = view.refusals.admit(writes, view.now);
    write_workload_once(&mut steps);
    steps.extend(tidy);
    steps.retain(|step| !step.is_empty());
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
pub(super) fn forgotten(view: &View, current_revision: &str) -> Vec<Action> {
    let needed = |name: &str| {
        let carried = view.ours.iter().any(|pod| pod.revision() == Some(name));
        carried || [&*view.update.name, &*view.current.name, &*view.revision, current_revision].contains(&name)
    };
    revision::superfluous(&view.seen.revisions, view.history_limit().min(super::view::MOST_REVISIONS), needed)
}
