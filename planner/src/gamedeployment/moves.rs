//! Which pods go and which come.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::template::PodTemplate;
use api::tkex::UpdateType;

use super::changes::{Changes, Manner};
use super::situation::{Group, Situation, Target};
use crate::naming;
use crate::plan::{Action, DeleteReason, Feature, Hold, NewPod};
use crate::pod::PodFacts;

/// The most pods that one plan deletes, and the most that it creates: the next plan is made from fresh facts, so that a pause or a rollback takes effect soon.
const SLICE: usize = 500;

#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Pods that are missing already.
    pub(super) missing: Vec<Action>,
    pub(super) deletions: Vec<Action>,
    /// Pods for which the deletions make room.
    pub(super) successors: Vec<Action>,
    /// Pods that stay and change.
    pub(super) changes: Changes,
    /// Pods that ended and fill no place any more.
    pub(super) ended: Vec<Action>,
    pub(super) holds: Vec<Hold>,
}

/// Pods that remain, and how many of them are available.
struct Remaining<'s, 'a> {
    situation: &'s Situation<'a>,
    pods: Vec<Arc<PodFacts>>,
    available: usize,
    /// How many pods of the stable revision may go.
    current_to_spare: usize,
    /// How many pods of the stable revision are missing.
    current_missing: usize,
    deletions: Vec<Action>,
    changes: Changes,
    /// Pods that have begun to change. They stay, and count as updated.
    changed: Vec<Arc<PodFacts>>,
    /// Of these, those that go to the stable revision.
    changed_to_current: usize,
    /// Pods that cannot be changed, and what is in the way.
    impossible: usize,
    obstacles: Vec<String>,
    /// Pods that should go or change and cannot, because a hook would have to agree.
    guarded: usize,
}

impl Moves {
    pub(super) fn of(situation: &Situation) -> Self {
        let mut remaining = Remaining::of(situation);
        let surge = situation.limits.max_surge.min(remaining.to_replace());
        let already_missing = (situation.replicas + surge).saturating_sub(remaining.count());
        remaining.scale_in();
        let waiting = remaining.replace();
        let mut missing = remaining.creations(waiting);
        let successors = missing.split_off(already_missing.min(missing.len()));
        let ended = situation.ended.iter().take(SLICE).map(|pod| delete(pod, DeleteReason::Ended)).collect();
        remaining.upkeep();
        let holds = remaining.holds(waiting);
        Self { missing, deletions: remaining.deletions, successors, changes: remaining.changes, ended, holds }
    }

    /// Whether anything is to be done.
    pub(super) fn is_empty(&self) -> bool {
        let Changes { upkeep, drains, resizes, restarts, .. } = &self.changes;
        let all = [&self.missing, &self.deletions, &self.successors, &self.ended, upkeep, drains, resizes, restarts];
        all.iter().all(|actions| actions.is_empty())
    }
}

fn delete(pod: &PodFacts, why: DeleteReason) -> Action {
    Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone(), why }
}

impl<'s, 'a> Remaining<'s, 'a> {
    fn of(situation: &'s Situation<'a>) -> Self {
        let pods = situation.placed.clone();
        let available = pods.iter().filter(|pod| situation.is_available(pod)).count();
        let current = pods.iter().filter(|pod| situation.group(pod) == Group::Current).count();
        let current_to_spare = current.saturating_sub(situation.limits.partition);
        let named = pods.iter().filter(|pod| situation.group(pod) == Group::Current && situation.is_named_for_deletion(pod)).count();
        let current_missing = (situation.limits.partition + named).saturating_sub(current);
        Self {
            situation,
            pods,
            available,
            current_to_spare,
            current_missing,
            deletions: Vec::new(),
            changes: Changes::default(),
            changed: Vec::new(),
            changed_to_current: 0,
            impossible: 0,
            obstacles: Vec::new(),
            guarded: 0,
        }
    }

    /// Pods that remain.
    fn count(&self) -> usize {
        self.pods.len() + self.changed.len()
    }

    /// How many pods must stay available.
    fn floor(&self) -> usize {
        self.situation.replicas.saturating_sub(self.situation.limits.max_unavailable)
    }

    /// How many pods still have to be replaced.
    fn to_replace(&self) -> usize {
        let situation = self.situation;
        let (mut current, mut others) = (0, 0);
        for pod in self.pods.iter().filter(|pod| situation.is_named_for_deletion(pod) || situation.rolls()) {
            let named = situation.is_named_for_deletion(pod);
            match situation.group(pod) {
                Group::Current => current += usize::from(named),
                Group::Stray => others += 1,
                Group::Update => others += usize::from(named),
            }
        }
        // Named pods of the stable revision are among those that the partition can spare.
        others + if situation.rolls() { current.max(self.current_to_spare) } else { current }
    }

    fn take(&mut self, index: usize) -> Arc<PodFacts> {
        let pod = self.pods.remove(index);
        self.available -= usize::from(self.situation.is_available(&pod));
        if self.situation.group(&pod) == Group::Current {
            self.current_to_spare = self.current_to_spare.saturating_sub(1);
        }
        pod
    }

    fn remove(&mut self, index: usize, why: DeleteReason) {
        let pod = self.take(index);
        self.deletions.push(delete(&pod, why));
    }

    /// Where a pod goes that stays: a stray one fills a gap in the partition.
    fn target(&self, pod: &PodFacts) -> &'s Target {
        let fills_gap = self.current_missing > 0 && self.situation.group(pod) == Group::Stray;
        if fills_gap { &self.situation.current } else { &self.situation.update }
    }

    fn change(&mut self, index: usize, target: &Target) {
        let pod = self.take(index);
        if target.name != self.situation.update.name {
            self.current_missing = self.current_missing.saturating_sub(1);
            self.changed_to_current += 1;
        }
        self.changes.start(self.situation, &pod, &target.name);
        self.changed.push(pod);
    }

    /// What pods need that neither go nor begin to change.
    fn upkeep(&mut self) {
        for pod in self.pods.iter().filter(|pod| pod.is_active()) {
            self.changes.upkeep(self.situation, pod);
        }
    }

    /// Deletes pods beyond the wanted number: named ones first, then old ones as far as the partition lets them go, then updated ones.
    fn scale_in(&mut self) {
        let surge = self.situation.limits.max_surge.min(self.to_replace());
        let wanted = self.situation.replicas + surge;
        while self.count() > wanted && self.deletions.len() < SLICE {
            // As long as an unavailable pod can go instead, no available one goes below the floor.
            let at_floor = self.available <= self.floor();
            let rank = |pod: &PodFacts| (at_floor && self.situation.is_available(pod), self.class(pod));
            let victims = self.pods.iter().enumerate().filter(|(_, pod)| self.situation.may_delete(pod));
            let Some((index, _)) = victims.min_by_key(|(index, pod)| (rank(pod), *index)) else {
                self.guarded += self.count() - wanted;
                return;
            };
            self.remove(index, DeleteReason::Scale);
        }
    }

    fn class(&self, pod: &PodFacts) -> u8 {
        if self.situation.is_named_for_deletion(pod) {
            return 0;
        }
        match self.situation.group(pod) {
            Group::Stray => 1,
            Group::Current if self.current_to_spare > 0 => 2,
            Group::Update => 3,
            Group::Current => 4,
        }
    }

    /// Deletes pods whose successors shall differ, as many as may be unavailable. Pods that are unavailable anyway cost nothing. Returns how many have to wait.
    fn replace(&mut self) -> usize {
        self.replace_each(true);
        if self.situation.rolls() {
            self.replace_each(false);
        }
        self.to_replace()
    }

    fn replace_each(&mut self, named: bool) {
        let mut index = 0;
        while let Some(pod) = self.pods.get(index).filter(|_| self.deletions.len() + self.changed.len() < SLICE) {
            let due = if named { self.situation.is_named_for_deletion(pod) } else { self.is_outdated(pod) };
            let free = !self.situation.is_available(pod) || self.available > self.floor();
            let pod = Arc::clone(pod);
            let target = self.target(&pod);
            let manner = if due && !named { self.changes.manner(self.situation, &pod, target) } else { Manner::Recreate };
            let agreed = if manner == Manner::Stay { self.situation.may_change(&pod) } else { self.situation.may_delete(&pod) };
            match manner {
                _ if !due => index += 1,
                Manner::Hold => {
                    self.impossible += 1;
                    if self.obstacles.is_empty() {
                        self.obstacles = self.changes.obstacles(self.situation, &pod, target).to_vec();
                    }
                    index += 1;
                }
                Manner::Recreate | Manner::Stay if !free => index += 1,
                Manner::Recreate | Manner::Stay if !agreed => {
                    self.guarded += 1;
                    index += 1;
                }
                Manner::Recreate => self.remove(index, if named { DeleteReason::Scale } else { DeleteReason::Update }),
                Manner::Stay => self.change(index, target),
            }
        }
    }

    fn is_outdated(&self, pod: &PodFacts) -> bool {
        match self.situation.group(pod) {
            Group::Update => false,
            Group::Current => self.current_to_spare > 0,
            Group::Stray => true,
        }
    }

    /// Pods to create: of the stable revision as far as the partition demands, or all while the rollout stands still; of the update revision otherwise.
    fn creations(&self, waiting: usize) -> Vec<Action> {
        let situation = self.situation;
        let wanted = situation.replicas + situation.limits.max_surge.min(waiting);
        let missing = wanted.saturating_sub(self.count());
        // A pod that is named for deletion will not be there to fill the partition.
        let stays = |pod: &&Arc<PodFacts>| situation.group(pod) == Group::Current && !situation.is_named_for_deletion(pod);
        let current = self.pods.iter().filter(stays).count() + self.changed_to_current;
        let from_current = if situation.current.name == situation.update.name {
            0
        } else if situation.stop.is_some() {
            missing
        } else {
            situation.limits.partition.saturating_sub(current).min(missing)
        };
        let mut taken: BTreeSet<String> = self.taken_ids();
        let mut creations = self.pods_of(&situation.current, from_current.min(SLICE), &mut taken);
        let from_update = (missing - from_current).min(SLICE - creations.len());
        creations.append(&mut self.pods_of(&situation.update, from_update, &mut taken));
        creations
    }

    /// Names that no new pod may have: of pods that exist, that others use, and that the user wants deleted.
    fn taken_ids(&self) -> BTreeSet<String> {
        let seen = self.situation.seen;
        let prefix = format!("{}-", seen.object.metadata.name.as_deref().unwrap_or_default());
        let names = seen.pods.iter().map(|pod| &pod.name).chain(&seen.taken_pod_names).map(String::as_str);
        let names = names.chain(self.situation.named.iter().copied());
        names.filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect()
    }

    fn pods_of(&self, target: &Target, count: usize, taken: &mut BTreeSet<String>) -> Vec<Action> {
        // A pod that the selector does not match would be let go at once and created again, for ever.
        if count == 0 || !self.situation.spec.selector.matches(&PodTemplate((*target.template).clone()).labels()) {
            return Vec::new();
        }
        let metadata = &self.situation.seen.object.metadata;
        let (owner, uid) = (metadata.name.as_deref().unwrap_or_default(), metadata.uid.as_deref().unwrap_or_default());
        let gated = self.situation.stays() && self.situation.spec.disable_readiness_gate != Some(true);
        let new = |id: String| {
            let (name, revision) = (format!("{owner}-{id}"), target.name.clone());
            Action::CreatePod(NewPod { name, id, revision, template: Arc::clone(&target.template), gated })
        };
        naming::ids(uid, &target.name, taken).take(count).map(new).collect()
    }

    fn holds(&self, waiting: usize) -> Vec<Hold> {
        let situation = self.situation;
        let outdated = self.pods.iter().filter(|pod| situation.group(pod) != Group::Update).count();
        let mut holds: Vec<Hold> = situation.invalid.iter().cloned().collect();
        if outdated > 0 || situation.standing.retreats {
            let stop = situation.standing.stop.as_ref().or(situation.stop.as_ref());
            holds.extend(stop.filter(|stop| situation.invalid.as_ref() != Some(stop)).cloned());
        }
        holds.extend(situation.standing.holds.iter().cloned());
        if self.impossible > 0 {
            holds.push(Hold::NotInPlace { pods: self.impossible, paths: self.obstacles.clone() });
        }
        if self.guarded > 0 {
            holds.push(Hold::NotInThisVersion(Feature::PreDeleteHook));
        }
        if situation.stop.is_none() && situation.spec.update_strategy.kind == UpdateType::OnDelete && outdated > 0 {
            holds.push(Hold::OnDelete { waiting: outdated });
        }
        let waiting = waiting.saturating_sub(self.impossible);
        let kept = outdated.saturating_sub(waiting + self.impossible);
        if situation.rolls() && kept > 0 {
            holds.push(Hold::Partition { kept });
        }
        if waiting > 0 && self.guarded == 0 {
            let unavailable = situation.replicas.saturating_sub(self.available);
            holds.push(Hold::Budget { waiting, unavailable, allowed: situation.limits.max_unavailable });
        }
        holds.extend(situation.ended_too_soon());
        holds.extend(situation.ignored());
        holds
    }
}
