//! What to do for an object that is being deleted.

use std::sync::Arc;

use api::names::ORPHAN_FINALIZER;

use super::gate::{Gates, Leaving};
use super::ledger::MAX_MOVES;
use super::view::View;
use super::{Kind, conditions};
use crate::facts::pod::PodFacts;
use crate::plan::{Action, DeleteReason, Plan};
use crate::refusal::{Held, Wanted};

/// Pods are left to the garbage collector, unless they are protected: then each is deleted once its hook approves, and
/// the object stays until the last pod is gone.
pub(super) fn decide<K: Kind>(before: &K::Status, view: &View) -> Plan<K::Status> {
    let protection = view.protection();
    let refusals = &view.refusals;
    let told =
        |waits: &[_], holds: &[_]| conditions::plan(K::report(before.clone(), view, conditions::deleting(before, view, waits, holds)));
    let plan = |steps: Vec<Vec<Action>>, told| {
        let steps = refusals.admit(steps, view.now).into_iter().filter(|step| !step.is_empty()).collect();
        Plan { steps, refusals: refusals.clone(), wake: refusals.wake(view.now), ..told }
    };
    if !protection.holds_on() {
        return told(&[], &[]);
    }
    if protection.finalizers.iter().any(|finalizer| finalizer == ORPHAN_FINALIZER) {
        return plan(protection.take_down(), told(&[], &[]));
    }
    if !view.protects() {
        return plan(vec![protection.let_go()], told(&[], &[]));
    }
    let mut gates = view.gates();
    let staying: Vec<&Arc<PodFacts>> = view.ours.iter().filter(|pod| pod.controller.is_some() && pod.is_active()).collect();
    let (mut deletions, mut held) = (Vec::new(), Vec::new());
    for pod in &staying {
        if deletions.len() >= MAX_MOVES {
            gates.cut();
            break;
        }
        if refusals.hold_back(&pod.uid, Wanted::Leave) {
            held.push(Held::new(pod, Wanted::Leave));
        } else if gates.let_leave(pod) == Leaving::Now {
            gates.leave(pod);
            deletions.push(gates.delete(pod, DeleteReason::Scale));
        }
    }
    // A pod that waits for its hook stays protected.
    let guards = if staying.is_empty() { vec![protection.let_go()] } else { protection.put_up() };
    let mut holds = gates.waits();
    let writes = gates.writes(&view.ours, &view.seen.pods);
    let Gates { waiting, wake, .. } = gates;
    let steps =
        vec![writes.voids, writes.unmarks, writes.skips, deletions, writes.marks, writes.questions, writes.resets, writes.leftovers];
    let steps = [steps, guards].concat();
    holds.extend(refusals.holds(&held, &steps, &[]));
    let mut plan = plan(steps, told(&waiting, &holds));
    plan.steps.extend(Some(refusals.probes(&held, view.now)).filter(|probes| !probes.is_empty()));
    Plan { holds, wake: wake.into_iter().chain(plan.wake).min(), ..plan }
}
