//! Which pods are deleted, created and changed in one plan, and what it waits for.

use std::collections::BTreeSet;

use api::tkex::UpdateType;
use jiff::Timestamp;

use super::Kind;
use super::gate::{self, Gates, Waiting};
use super::index;
use super::inplace::changes::Changes;
use super::ledger::{Ledger, MAX_CREATIONS, MAX_MOVES};
use super::view::{Group, Target, View};
use crate::facts::pod::PodFacts;
use crate::hold::Hold;
use crate::plan::{Action, DeleteReason, Note};
use crate::refusal::Held;

#[derive(Debug, Default)]
pub(super) struct Moves<'s> {
    /// Pods that are missing already.
    pub(super) missing: Vec<Action>,
    pub(super) deletions: Vec<Action>,
    /// Pods for which the deletions make room.
    pub(super) successors: Vec<Action>,
    /// Pods that stay and change.
    pub(super) changes: Changes,
    /// Pods that ended, and do not count any more.
    pub(super) ended: Vec<Action>,
    /// Questions to hooks about pods.
    pub(super) gates: gate::Writes,
    /// Pods that wait for their hook.
    pub(super) waiting: Vec<Waiting>,
    pub(super) holds: Vec<Hold>,
    /// When a hook is to be asked again.
    pub(super) wake: Option<Timestamp>,
    /// Pods whose deletion or change the API server refuses.
    pub(super) held: Vec<Held<'s>>,
    /// Revisions whose new pods the API server refuses.
    pub(super) missing_revisions: Vec<&'s str>,
    /// Events.
    pub(super) notes: Vec<Note>,
    /// Whether no pod is created, deleted or changed.
    pub(super) is_idle: bool,
}

impl<'s> Moves<'s> {
    /// Decides in this order: surplus pods go, then pods are replaced, then missing pods are created. What is under way
    /// continues in any case.
    pub(super) fn of<K: Kind>(view: &'s View) -> Self {
        let mut ledger = Ledger::of(view);
        let surge = view.limits.max_surge.min(ledger.to_replace());
        let already_missing = (view.replicas + surge).saturating_sub(ledger.count());
        ledger.scale_in::<K>();
        let waiting = ledger.replace();
        let mut missing = ledger.creations::<K>(waiting);
        let mut successors = missing.split_off(already_missing.min(missing.len()));
        successors.iter_mut().for_each(|action| {
            if let Action::CreatePod(new) = action {
                new.successor = true;
            }
        });
        let ended = view.ended.iter().take(MAX_MOVES).map(|pod| delete_ended(pod)).collect();
        ledger.upkeep();
        let holds = ledger.holds(waiting);
        let Ledger { deletions, changes, mut gates, held, missing: missing_revisions, .. } = ledger;
        let writes = gates.writes(&view.ours, &view.seen.pods);
        let Gates { waiting, wake, .. } = gates;
        let is_idle = changes.is_empty() && [&missing, &deletions, &successors, &ended].iter().all(|actions| actions.is_empty());
        let notes = changes.notes.clone();
        Self {
            missing,
            deletions,
            successors,
            changes,
            ended,
            gates: writes,
            waiting,
            holds,
            wake,
            held,
            missing_revisions,
            notes,
            is_idle,
        }
    }
}

/// The deletion of an ended pod, which no hook is asked about.
fn delete_ended(pod: &PodFacts) -> Action {
    Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone(), why: DeleteReason::Ended, version: None }
}

impl Ledger<'_, '_> {
    /// Pods to create: of the stable revision as far as the partition requires, or all while the rollout does not
    /// continue; otherwise of the update revision.
    fn creations<K: Kind>(&mut self, waiting: usize) -> Vec<Action> {
        let view = self.view;
        let wanted = view.replicas + view.limits.max_surge.min(waiting);
        let missing = wanted.saturating_sub(self.count());
        if missing == 0 {
            return Vec::new();
        }
        let current = self.pods.iter().filter(|pod| view.is_kept(pod)).count() + self.changed_to_current;
        let from_current = if view.current.name == view.update.name {
            0
        } else if view.stop.is_some() {
            missing
        } else {
            view.limits.partition.saturating_sub(current).min(missing)
        };
        let mut taken: BTreeSet<String> = self.taken_names();
        let mut creations = Vec::new();
        for (target, count) in [(&view.current, from_current), (&view.update, missing - from_current)] {
            let admitted = view.refusals.creations(&target.name, view.now);
            self.missing.extend((count > 0 && admitted.is_some()).then_some(target.name.as_str()));
            let count = count.min(MAX_CREATIONS - creations.len()).min(admitted.unwrap_or(usize::MAX));
            creations.append(&mut self.pods_of::<K>(target, count, &mut taken));
        }
        self.number(creations)
    }

    /// Gives new pods their numbers. A pod for which no number is free is not created.
    fn number(&mut self, mut creations: Vec<Action>) -> Vec<Action> {
        let range = match &self.view.index {
            Ok(None) => return creations,
            Ok(Some(range)) => range,
            Err(_) => return Vec::new(),
        };
        let mut numbers = index::free(range, &self.view.ours);
        let wanted = creations.len();
        creations.retain_mut(|action| {
            let Action::CreatePod(new) = action else { return true };
            new.index = numbers.next();
            new.index.is_some()
        });
        self.unnumbered = wanted - creations.len();
        creations
    }

    /// Names that new pods must not have: those of existing pods, of pods of other objects, and of pods that the user
    /// wants deleted.
    fn taken_names(&self) -> BTreeSet<String> {
        let seen = self.view.seen;
        let names = seen.pods.iter().map(|pod| &pod.name).chain(&seen.taken_pod_names).map(String::as_str);
        names.chain(self.view.named.iter().copied()).map(str::to_owned).collect()
    }

    fn pods_of<K: Kind>(&self, target: &Target, count: usize, taken: &mut BTreeSet<String>) -> Vec<Action> {
        let is_usable = !target.is_leaving && target.template.too_large().is_none();
        // A pod that the selector does not match would be released at once and created again, for ever.
        if count == 0 || !is_usable || !self.view.workload.selector.matches(&target.template.labels()) {
            return Vec::new();
        }
        K::pods(self.view, target, count, taken).into_iter().map(Action::CreatePod).collect()
    }

    /// Why work that is due is not done now.
    fn holds(&self, waiting: usize) -> Vec<Hold> {
        let view = self.view;
        let outdated = self.pods.iter().filter(|pod| view.group(pod) != Group::Update).count();
        let leaving = view.update.is_leaving.then(|| Hold::RevisionLeaving { name: view.update.name.clone() });
        let mut holds: Vec<Hold> = view.invalid.iter().cloned().chain(leaving.clone()).collect();
        if outdated > 0 || view.canary.rolls_back {
            let stop = view.canary.stop.as_ref().or(view.stop.as_ref());
            holds.extend(stop.filter(|stop| ![view.invalid.as_ref(), leaving.as_ref()].contains(&Some(stop))).cloned());
        }
        holds.extend(view.canary.holds.iter().cloned());
        if self.impossible > 0 {
            holds.push(Hold::NotInPlace { pods: self.impossible, paths: self.obstacles.clone() });
        }
        holds.extend(self.gates.waits());
        holds.extend(view.guarded());
        holds.extend(view.silent());
        match &view.index {
            Ok(Some(range)) if self.unnumbered > 0 => {
                let too_few = index::size(range) < view.replicas;
                holds.push(Hold::NoIndex { missing: self.unnumbered, start: range.start, end: range.end, too_few });
            }
            Ok(_) => {}
            Err(invalid) => holds.push(invalid.clone()),
        }
        if view.stop.is_none() && view.workload.strategy.kind == UpdateType::OnDelete && outdated > 0 {
            holds.push(Hold::OnDelete { waiting: outdated });
        }
        let asked = self.asked.len() - self.asked_to_leave;
        let waiting = waiting.saturating_sub(self.impossible + asked) + self.approved;
        let kept = outdated.saturating_sub(waiting + self.impossible);
        if view.rolls() && kept > 0 {
            holds.push(Hold::Partition { kept });
        }
        if waiting > 0 {
            let unavailable = view.replicas.saturating_sub(self.available);
            let allowed = view.replicas - self.floor();
            holds.push(Hold::Budget { waiting, unavailable, allowed, surge: view.limits.max_surge });
        }
        holds.extend(view.ended_too_soon());
        holds.extend(view.ignored());
        holds
    }
}
