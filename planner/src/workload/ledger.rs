//! The ledger of one decision: how many pods may still go or change, which ones do, and which hooks are asked. Nothing
//! else decides that.

use std::sync::Arc;

use super::gate::Gates;
use super::inplace::changes::Changes;
use super::view::{Group, Target, View};
use crate::facts::pod::PodFacts;
use crate::plan::{Action, DeleteReason};
use crate::refusal::{Held, Wanted};

/// The most pods that one plan deletes or changes: the next plan is decided from fresh facts.
pub(super) const MAX_MOVES: usize = 500;
/// The most pods that one plan creates.
pub(super) const MAX_CREATIONS: usize = 5_000;

/// Pods that remain, how many of them are available, and what is decided so far.
#[derive(Debug)]
pub struct Ledger<'s, 'a> {
    /// What is observed.
    pub view: &'s View<'a>,
    pub(super) pods: Vec<Arc<PodFacts>>,
    pub(super) available: usize,
    /// How many pods of the stable revision may go, not counting those that the user wants deleted.
    pub current_to_spare: usize,
    /// How many these were at first, and how many of them go or change in this plan.
    pub(super) current_at_first: usize,
    pub(super) current_gone: usize,
    /// How many pods of the stable revision are missing.
    pub(super) current_missing: usize,
    pub(super) deletions: Vec<Action>,
    pub(super) changes: Changes,
    /// Pods that start to change in this plan. They stay, and count as updated.
    pub(super) changed: Vec<Arc<PodFacts>>,
    /// How many of these change to the stable revision.
    pub(super) changed_to_current: usize,
    /// How many pods cannot be updated in-place, and why.
    pub(super) impossible: usize,
    pub(super) obstacles: Vec<String>,
    /// How many pods are not created because every number is in use.
    pub(super) unnumbered: usize,
    /// Pods whose deletion or change the API server refuses.
    pub(super) held: Vec<Held<'s>>,
    /// Revisions of which pods are missing.
    pub(super) missing: Vec<&'s str>,
    pub(super) gates: Gates<'s>,
    /// Pods that should go or change, and wait for their hook, or for their turn after it approved.
    pub(super) asked: Vec<Arc<PodFacts>>,
    /// How many of these have an approval and wait for their turn.
    pub(super) approved: usize,
    /// How many of these are surplus.
    pub(super) asked_to_leave: usize,
    /// How many of these are available: they may become unavailable at any moment.
    pub(super) promised: usize,
}

impl<'s, 'a> Ledger<'s, 'a> {
    pub(super) fn of(view: &'s View<'a>) -> Self {
        let pods = view.placed.clone();
        let available = pods.iter().filter(|pod| view.is_available(pod)).count();
        let current = pods.iter().filter(|pod| view.is_kept(pod)).count();
        let current_to_spare = current.saturating_sub(view.limits.partition);
        let current_missing = view.limits.partition.saturating_sub(current);
        Self {
            view,
            pods,
            available,
            current_to_spare,
            current_at_first: current_to_spare,
            current_gone: 0,
            current_missing,
            deletions: Vec::new(),
            changes: Changes::default(),
            changed: Vec::new(),
            changed_to_current: 0,
            impossible: 0,
            obstacles: Vec::new(),
            unnumbered: 0,
            held: Vec::new(),
            missing: Vec::new(),
            gates: view.gates(),
            asked: Vec::new(),
            approved: 0,
            asked_to_leave: 0,
            promised: 0,
        }
    }

    /// Pods that remain.
    pub(super) fn count(&self) -> usize {
        self.pods.len() + self.changed.len() + self.asked.len()
    }

    /// How many pods must stay available. Surge pods come first, so they reduce how many others may be unavailable.
    pub(super) fn floor(&self) -> usize {
        let limits = &self.view.limits;
        self.view.replicas.saturating_sub(limits.max_unavailable.saturating_sub(limits.max_surge))
    }

    /// How many pods still have to be replaced.
    pub(super) fn to_replace(&self) -> usize {
        let view = self.view;
        let is_due = |pod: &&Arc<PodFacts>| view.is_named_for_deletion(pod) || view.rolls() && view.group(pod) == Group::Stray;
        let due = self.pods.iter().filter(is_due).count();
        due + self.asked.len() - self.asked_to_leave + if view.rolls() { self.current_to_spare } else { 0 }
    }

    pub(super) fn take(&mut self, index: usize) -> Arc<PodFacts> {
        let pod = self.pods.remove(index);
        self.gone(&pod);
        pod
    }

    /// Counts a pod that goes or changes.
    pub(super) fn gone(&mut self, pod: &PodFacts) {
        self.available -= usize::from(self.view.is_available(pod));
        self.current_gone += usize::from(self.spare(pod));
    }

    /// Counts a pod that goes, if it is of the stable revision. Returns whether it is. If none was to spare, it leaves
    /// a gap in the partition.
    pub(super) fn spare(&mut self, pod: &PodFacts) -> bool {
        let is_one = self.view.is_kept(pod);
        if is_one && self.current_to_spare == 0 {
            self.current_missing += 1;
        } else if is_one {
            self.current_to_spare -= 1;
        }
        is_one
    }

    /// Sets a pod aside that waits for its hook, or for its turn after it approved.
    pub(super) fn set_aside(&mut self, pod: Arc<PodFacts>) {
        self.promised += usize::from(self.view.is_available(&pod));
        self.spare(&pod);
        self.asked.push(pod);
    }

    pub(super) fn remove(&mut self, index: usize, why: DeleteReason) {
        let pod = self.pods.remove(index);
        self.delete(&pod, why);
    }

    pub(super) fn delete(&mut self, pod: &PodFacts, why: DeleteReason) {
        self.gone(pod);
        self.gates.leave(pod);
        self.deletions.push(self.gates.delete(pod, why));
    }

    /// Whether the API server refuses a write that the pod needs for this.
    pub(super) fn is_held(&self, pod: &PodFacts, wanted: Wanted) -> bool {
        self.view.refusals.hold_back(&pod.uid, wanted)
    }

    /// The revision that a pod is updated to: a stray one fills a gap in the partition.
    pub(super) fn target(&self, pod: &PodFacts) -> &'s Target {
        let fills_gap = self.current_missing > 0 && self.view.group(pod) == Group::Stray;
        if fills_gap { &self.view.current } else { &self.view.update }
    }

    pub(super) fn change(&mut self, index: usize, target: &Target) {
        let pod = self.take(index);
        if target.name != self.view.update.name {
            self.current_missing = self.current_missing.saturating_sub(1);
            self.changed_to_current += 1;
        }
        self.changes.start(self.view, &pod, &target.name, self.gates.asks_after());
        self.changed.push(pod);
    }

    /// Whether the hook of another pod may be asked: the pod may go at any moment after the approval.
    pub(super) fn may_ask(&self, is_free: bool) -> bool {
        is_free || self.available.saturating_sub(self.promised) > self.floor()
    }
}
