//! What to do for an object that is being deleted.

use std::sync::Arc;

use api::names::ORPHAN_FINALIZER;
use api::tkex::GameDeploymentStatus;

use super::Observed;
use super::situation::Situation;
use super::status;
use crate::gate::{Gates, Leaving};
use crate::plan::{Action, DeleteReason, Plan};
use crate::pod::PodFacts;
use crate::refusal::{Held, Wanted};

/// The most pods that one plan deletes.
const MAX_DELETIONS: usize = 500;

/// Pods are left to the garbage collector, unless they are protected: then each leaves when its hook agrees, and the object stays until the last one has gone.
pub(super) fn decide(seen: &Observed, situation: &Situation) -> Plan<GameDeploymentStatus> {
    let protection = situation.protection();
    let refusals = &situation.refusals;
    let plan = |steps: Vec<Vec<Action>>, status| {
        let steps = refusals.admit(steps, situation.now).into_iter().filter(|step| !step.is_empty()).collect();
        Plan { steps, refusals: refusals.clone(), wake: refusals.wake(situation.now), ..Plan::only(status) }
    };
    if !protection.holds_on() {
        return Plan::only(status::deleting(seen, situation, &[], &[]));
    }
    if protection.finalizers.iter().any(|finalizer| finalizer == ORPHAN_FINALIZER) {
        return plan(protection.take_down(), status::deleting(seen, situation, &[], &[]));
    }
    if !situation.protects() {
        return plan(vec![protection.let_go()], status::deleting(seen, situation, &[], &[]));
    }
    let mut gates = situation.gates();
    let staying: Vec<&Arc<PodFacts>> = situation.ours.iter().filter(|pod| pod.controller.is_some() && pod.is_active()).collect();
    let (mut deletions, mut held) = (Vec::new(), Vec::new());
    for pod in &staying {
        if deletions.len() >= MAX_DELETIONS {
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
    // Who waits is as protected as before.
    let guards = if staying.is_empty() { vec![protection.let_go()] } else { protection.put_up() };
    let mut holds = gates.waits();
    let writes = gates.writes(&situation.ours);
    let Gates { waiting, wake, .. } = gates;
    let steps = vec![writes.voids, writes.unmarks, writes.skips, deletions, writes.marks, writes.questions, writes.resets];
    let steps = [steps, guards].concat();
    holds.extend(refusals.holds(&held, &steps, &[]));
    let status = status::deleting(seen, situation, &waiting, &holds);
    let mut plan = plan(steps, status);
    plan.steps.extend(Some(refusals.probes(&held, situation.now)).filter(|probes| !probes.is_empty()));
    Plan { holds, wake: wake.into_iter().chain(plan.wake).min(), ..plan }
}
