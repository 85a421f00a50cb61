//! Which pods go and which come.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::tkex::UpdateType;
use jiff::Timestamp;

use super::changes::{Changes, Manner, Upkeep, changed_containers, is_return};
use super::situation::{Group, Situation, Target};
use crate::gate::{self, Answer, Gates, Intent, Leaving, Waiting};
use crate::hold::Hold;
use crate::index;
use crate::naming;
use crate::plan::{Action, DeleteReason, NewPod, Note};
use crate::pod::PodFacts;
use crate::refusal::{Held, Wanted};

/// The most pods that one plan deletes, and the most that it creates: the next plan is made from fresh facts, so that a pause or a rollback takes effect soon.
const MAX_MOVES: usize = 500;

#[derive(Debug, Default)]
pub(super) struct Moves<'s> {
    /// Pods that are missing already.
    pub(super) missing: Vec<Action>,
    pub(super) deletions: Vec<Action>,
    /// Pods for which the deletions make room.
    pub(super) successors: Vec<Action>,
    /// Pods that stay and change.
    pub(super) changes: Changes,
    /// Pods that ended and fill no place any more.
    pub(super) ended: Vec<Action>,
    /// What is asked of hooks about pods.
    pub(super) gates: gate::Writes,
    /// Pods that wait for their hook.
    pub(super) waiting: Vec<Waiting>,
    pub(super) holds: Vec<Hold>,
    /// When a hook is to be asked again.
    pub(super) wake: Option<Timestamp>,
    /// Pods that do not get what is wanted of them because the API server refuses it.
    pub(super) held: Vec<Held<'s>>,
    /// Revisions of which pods are missing because the API server refuses them.
    pub(super) missing_revisions: Vec<&'s str>,
    /// What is worth telling.
    pub(super) notes: Vec<Note>,
    /// Whether no pod comes, goes or changes.
    pub(super) is_idle: bool,
}

/// Whose turn it is to go or to change: those whose hook has agreed, those whose hook is being asked, those who were not asked, those whose hook said no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Agreed,
    Asked,
    Open,
    Refused,
}

fn turn(answer: Answer) -> Turn {
    match answer {
        Answer::Free | Answer::Skipped(_) | Answer::Yes => Turn::Agreed,
        Answer::Asking => Turn::Asked,
        Answer::Open => Turn::Open,
        Answer::No(_) | Answer::Again => Turn::Refused,
    }
}

/// Pods that remain, and how many of them are available.
struct Remaining<'s, 'a> {
    situation: &'s Situation<'a>,
    pods: Vec<Arc<PodFacts>>,
    available: usize,
    /// How many pods of the stable revision may go, besides those that the user wants deleted.
    current_to_spare: usize,
    /// How many these were before anybody was chosen, and how many of them go or change in this plan.
    current_at_first: usize,
    current_gone: usize,
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
    /// Pods that are not made because every number is in use.
    unnumbered: usize,
    /// Pods that do not get what is wanted of them because the API server refuses it.
    held: Vec<Held<'s>>,
    /// Revisions of which pods are missing.
    missing: Vec<&'s str>,
    gates: Gates<'s>,
    /// Pods that should go or change and wait for their hook, or for their turn after it agreed.
    asked: Vec<Arc<PodFacts>>,
    /// Of these, those whose hook agreed and that wait for their turn.
    agreed: usize,
    /// Of these, those that are more than are wanted.
    asked_to_leave: usize,
    /// Of these, those that are available and may not be any more at any moment.
    promised: usize,
}

impl<'s> Moves<'s> {
    pub(super) fn of(situation: &'s Situation) -> Self {
        let mut remaining = Remaining::of(situation);
        let surge = situation.limits.max_surge.min(remaining.to_replace());
        let already_missing = (situation.replicas + surge).saturating_sub(remaining.count());
        remaining.scale_in();
        let waiting = remaining.replace();
        let mut missing = remaining.creations(waiting);
        let mut successors = missing.split_off(already_missing.min(missing.len()));
        successors.iter_mut().for_each(|action| {
            if let Action::CreatePod(new) = action {
                new.successor = true;
            }
        });
        let ended = situation.ended.iter().take(MAX_MOVES).map(|pod| delete_ended(pod)).collect();
        remaining.upkeep();
        let holds = remaining.holds(waiting);
        let Remaining { deletions, changes, mut gates, held, missing: missing_revisions, .. } = remaining;
        let writes = gates.writes(&situation.ours);
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

/// It has ended, and nobody is asked.
fn delete_ended(pod: &PodFacts) -> Action {
    Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone(), why: DeleteReason::Ended, version: None }
}

impl<'s, 'a> Remaining<'s, 'a> {
    fn of(situation: &'s Situation<'a>) -> Self {
        let pods = situation.placed.clone();
        let available = pods.iter().filter(|pod| situation.is_available(pod)).count();
        let stays = |pod: &&Arc<PodFacts>| situation.group(pod) == Group::Current && !situation.is_named_for_deletion(pod);
        let current = pods.iter().filter(stays).count();
        let current_to_spare = current.saturating_sub(situation.limits.partition);
        let current_missing = situation.limits.partition.saturating_sub(current);
        Self {
            situation,
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
            gates: situation.gates(),
            asked: Vec::new(),
            agreed: 0,
            asked_to_leave: 0,
            promised: 0,
        }
    }

    /// Pods that remain.
    fn count(&self) -> usize {
        self.pods.len() + self.changed.len() + self.asked.len()
    }

    /// How many pods must stay available. Surge pods come first: what they make up for need not be missing.
    fn floor(&self) -> usize {
        let limits = &self.situation.limits;
        self.situation.replicas.saturating_sub(limits.max_unavailable.saturating_sub(limits.max_surge))
    }

    /// How many pods still have to be replaced.
    fn to_replace(&self) -> usize {
        let situation = self.situation;
        let is_due =
            |pod: &&Arc<PodFacts>| situation.is_named_for_deletion(pod) || situation.rolls() && situation.group(pod) == Group::Stray;
        let due = self.pods.iter().filter(is_due).count();
        due + self.asked.len() - self.asked_to_leave + if situation.rolls() { self.current_to_spare } else { 0 }
    }

    fn take(&mut self, index: usize) -> Arc<PodFacts> {
        let pod = self.pods.remove(index);
        self.gone(&pod);
        pod
    }

    /// Counts a pod that goes or changes.
    fn gone(&mut self, pod: &PodFacts) {
        self.available -= usize::from(self.situation.is_available(pod));
        self.current_gone += usize::from(self.spare(pod));
    }

    /// Counts a pod of the stable revision that goes. Says whether it is one. If none was to spare, it leaves a gap in the partition.
    fn spare(&mut self, pod: &PodFacts) -> bool {
        let is_one = self.situation.group(pod) == Group::Current && !self.situation.is_named_for_deletion(pod);
        if is_one && self.current_to_spare == 0 {
            self.current_missing += 1;
        } else if is_one {
            self.current_to_spare -= 1;
        }
        is_one
    }

    /// A pod waits for its hook, or for its turn after it agreed.
    fn set_aside(&mut self, pod: Arc<PodFacts>) {
        self.promised += usize::from(self.situation.is_available(&pod));
        self.spare(&pod);
        self.asked.push(pod);
    }

    fn remove(&mut self, index: usize, why: DeleteReason) {
        let pod = self.pods.remove(index);
        self.delete(&pod, why);
    }

    fn delete(&mut self, pod: &PodFacts, why: DeleteReason) {
        self.gone(pod);
        self.gates.leave(pod);
        self.deletions.push(self.gates.delete(pod, why));
    }

    /// Whether a write that is needed for what is wanted of a pod is refused.
    fn is_held(&self, pod: &PodFacts, wanted: Wanted) -> bool {
        self.situation.refusals.hold_back(&pod.uid, wanted)
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
        self.changes.start(self.situation, &pod, &target.name, self.gates.asks_after());
        self.changed.push(pod);
    }

    /// What pods need that neither go nor begin to change.
    fn upkeep(&mut self) {
        let staying = self.pods.len();
        let pods: Vec<_> = self.pods.iter().chain(&self.asked).cloned().collect();
        for (index, pod) in pods.iter().enumerate().filter(|(_, pod)| pod.is_active()) {
            match self.changes.upkeep(self.situation, pod) {
                Upkeep::Done => {}
                Upkeep::Waits(revision) => self.gates.keep(pod, Intent::Update(revision)),
                Upkeep::Refused => self.hold_rest(pod),
                // Who is to go anyway, or to another revision, is not changed first.
                Upkeep::Exposed if index < staying => self.finish(pod),
                Upkeep::Exposed => {}
            }
            self.after(pod);
        }
    }

    /// The rest of a pod's change is refused, or what has to come before it.
    fn hold_rest(&mut self, pod: &PodFacts) {
        let targets = [&self.situation.update.name, &self.situation.current.name];
        let target = targets.into_iter().find(|target| pod.revision() == Some(target));
        self.held.extend(target.map(|target| Held::new(pod, Wanted::Change(target))));
    }

    /// A part of a pod's change is made, and it serves again because the rest was refused: it is taken out of its services for the rest like any other pod.
    fn finish(&mut self, pod: &PodFacts) {
        let is_elsewhere = self.is_outdated(pod, Turn::Agreed) || self.situation.is_named_for_deletion(pod);
        let Some(revision) = pod.revision().filter(|_| self.situation.rolls() && !is_elsewhere) else { return };
        // Also an approval that cannot be taken back holds it.
        if self.is_held(pod, Wanted::Change(revision)) {
            self.hold_rest(pod);
            return;
        }
        let (intent, is_available) = (Intent::Update(revision), self.situation.is_available(pod));
        let is_free = !is_available && !self.situation.is_silent(pod);
        match self.gates.look(pod, intent) {
            Answer::Free | Answer::Skipped(_) | Answer::Yes if is_free || self.available > self.floor() => {
                self.available -= usize::from(is_available);
                self.gates.keep(pod, intent);
                self.changes.drain(pod, self.situation.now);
            }
            Answer::Open | Answer::Again if self.may_ask(is_free) && self.asks(pod, intent) => self.promised += usize::from(is_available),
            Answer::Open | Answer::Free | Answer::Skipped(_) => {}
            Answer::Yes | Answer::Asking | Answer::No(_) | Answer::Again => {
                self.promised += usize::from(is_available);
                self.gates.keep(pod, intent);
            }
        }
    }

    /// Whether another pod may be asked: it may go at any moment once it agrees.
    fn may_ask(&self, is_free: bool) -> bool {
        is_free || self.available.saturating_sub(self.promised) > self.floor()
    }

    /// Asks about a pod that was updated in place, once it serves again.
    fn after(&mut self, pod: &PodFacts) {
        let Some(update) = pod.update.as_deref() else { return };
        let Some(revision) = update.asked_about(pod) else { return };
        let intent = Intent::Updated(revision);
        let serves = pod.is_ready() && !update.is_under_way(pod);
        match self.gates.look(pod, intent) {
            Answer::Free | Answer::Skipped(_) => {}
            Answer::Open | Answer::Again if serves && self.gates.ask(pod, intent, &[]) => {}
            // What was asked before stays; a pod that does not serve is asked later.
            Answer::Open | Answer::Again | Answer::Yes | Answer::Asking | Answer::No(_) => self.gates.keep(pod, intent),
        }
    }

    /// Deletes pods beyond the wanted number: named ones first, then old ones as far as the partition lets them go, then updated ones. A pod whose hook is being asked
    /// stays the one that goes; one whose deletion is refused is spared for another, unless the user named it.
    fn scale_in(&mut self) {
        let surge = self.situation.limits.max_surge.min(self.to_replace());
        let mut surplus = (self.count() - self.asked_to_leave).saturating_sub(self.situation.replicas + surge);
        if surplus == 0 {
            return;
        }
        let chosen = self.chosen();
        let any_silent = self.pods.iter().any(|pod| self.is_spared_for_silence(pod));
        let mut pool: Vec<Option<Arc<PodFacts>>> = std::mem::take(&mut self.pods).into_iter().map(Some).collect();
        let mut asks = 0;
        // The order changes only when the floor is reached, and when no pod of the stable revision is left to spare.
        let terms = |all: &Self| (all.available.saturating_sub(all.promised) <= all.floor(), all.current_to_spare == 0);
        'order: while surplus > 0 {
            let (before, order) = (terms(self), self.victims(&pool, &chosen));
            for index in order {
                if surplus == 0 || terms(self) != before {
                    continue 'order;
                }
                if self.deletions.len() >= MAX_MOVES || asks >= MAX_MOVES {
                    self.gates.cut();
                    break 'order;
                }
                let Some(pod) = pool.get_mut(index).and_then(Option::take) else { continue };
                // Those on silent nodes may be all that serve besides one that would go below the floor.
                let waits = self.is_spared_for_silence(&pod) || any_silent && before.0 && self.situation.is_available(&pod);
                surplus -= 1;
                if waits {
                    self.set_aside(pod);
                    self.asked_to_leave += 1;
                } else {
                    asks += usize::from(self.leave(pod));
                }
            }
            break;
        }
        self.pods.extend(pool.into_iter().flatten());
    }

    /// Places of pods, in the order in which they go. As long as an unavailable pod is left, no available one goes below the floor. One whose deletion is refused waits for
    /// it only if the user named it or no other pod can go instead.
    fn victims(&self, pool: &[Option<Arc<PodFacts>>], chosen: &[u8]) -> Vec<usize> {
        let at_floor = self.available.saturating_sub(self.promised) <= self.floor();
        let rank = |(index, pod): (usize, &Option<Arc<PodFacts>>)| {
            let pod = pod.as_deref()?;
            let is_spared =
                (self.is_held(pod, Wanted::Leave) || self.situation.is_silent(pod)) && !self.situation.is_named_for_deletion(pod);
            let choice = chosen.get(index).copied();
            Some((at_floor && self.situation.is_available(pod), is_spared, choice, self.class(pod), index))
        };
        let mut order: Vec<_> = pool.iter().enumerate().filter_map(rank).collect();
        order.sort_unstable();
        order.into_iter().map(|(.., index)| index).collect()
    }

    /// Whether a scale-in rather waits than takes a pod: nobody can tell whether it serves, and the user did not name it.
    fn is_spared_for_silence(&self, pod: &PodFacts) -> bool {
        self.situation.is_silent(pod) && !self.situation.is_named_for_deletion(pod)
    }

    /// Deletes a pod that is too many, or sees to it that its hook is asked. Says whether it is asked now.
    fn leave(&mut self, pod: Arc<PodFacts>) -> bool {
        if self.is_held(&pod, Wanted::Leave) {
            self.held.push(Held::new(&pod, Wanted::Leave));
            self.set_aside(pod);
            self.asked_to_leave += 1;
            return false;
        }
        match self.gates.let_leave(&pod) {
            Leaving::Now => self.delete(&pod, DeleteReason::Scale),
            leaving @ (Leaving::Asked | Leaving::Later) => {
                self.set_aside(pod);
                self.asked_to_leave += 1;
                return leaving == Leaving::Asked;
            }
        }
        false
    }

    /// How pods were chosen to go before: first those whose hook has agreed, then those that were asked, then all others.
    fn chosen(&self) -> Vec<u8> {
        let choice = |pod: &Arc<PodFacts>| match gate::is_marked(pod) {
            true => u8::from(self.gates.look(pod, Intent::Delete) != Answer::Yes),
            false => 2,
        };
        self.pods.iter().map(choice).collect()
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
    ///
    /// Where a hook has to agree, not more pods are asked at once than may be unavailable; one whose hook says no makes room for the next.
    fn replace(&mut self) -> usize {
        let turns: &[Turn] = if self.gates.are_any() { &[Turn::Agreed, Turn::Asked, Turn::Open, Turn::Refused] } else { &[Turn::Agreed] };
        for turn in turns {
            self.replace_each(true, *turn);
            if self.situation.rolls() {
                self.replace_each(false, *turn);
            }
        }
        self.to_replace()
    }

    fn replace_each(&mut self, named: bool, whose: Turn) {
        let mut index = 0;
        while let Some(pod) = self.pods.get(index) {
            if self.deletions.len() + self.changed.len() >= MAX_MOVES {
                self.gates.cut();
                return;
            }
            // Who is to go anyway is not updated first.
            let due = self.situation.is_named_for_deletion(pod) == named && (named || self.is_outdated(pod, whose));
            if !due {
                index += 1;
                continue;
            }
            let pod = Arc::clone(pod);
            let target = self.target(&pod);
            let manner = if named { Manner::Recreate } else { self.changes.manner(self.situation, &pod, target) };
            let wanted = if manner == Manner::Recreate { Wanted::Leave } else { Wanted::Change(&target.name) };
            let went = match manner {
                Manner::Hold => {
                    self.hold_back(&pod, target, whose);
                    false
                }
                // Another pod gets the turn of one whose change is refused.
                Manner::Recreate | Manner::Stay if self.is_held(&pod, wanted) => {
                    self.held.extend((whose == Turn::Agreed).then(|| Held::new(&pod, wanted)));
                    false
                }
                Manner::Recreate => {
                    let why = if named { DeleteReason::Scale } else { DeleteReason::Update };
                    self.pass(index, &pod, (Intent::Delete, whose), |all| all.remove(index, why))
                }
                Manner::Stay => self.pass(index, &pod, (Intent::Update(&target.name), whose), |all| all.change(index, target)),
            };
            index += usize::from(!went);
        }
    }

    fn hold_back(&mut self, pod: &PodFacts, target: &Target, whose: Turn) {
        if whose != Turn::Agreed {
            return;
        }
        self.impossible += 1;
        if self.obstacles.is_empty() {
            self.obstacles = self.changes.obstacles(self.situation, pod, target).to_vec();
        }
    }

    fn look(&self, pod: &PodFacts, intent: Intent) -> Answer {
        match intent {
            // What was approved before is not done; nothing new happens to the pod.
            Intent::Update(revision) if is_return(self.situation, pod, revision) => Answer::Free,
            // The kubelet changes the pod while it serves; the original asks nobody either.
            Intent::Update(_) if self.situation.spec.update_strategy.kind == UpdateType::HotPatchUpdate => Answer::Free,
            Intent::Delete | Intent::Update(_) | Intent::Updated(_) => self.gates.look(pod, intent),
        }
    }

    /// Does `act` to a pod if its hook has agreed and its turn has come, or sees to it that the hook is asked. Says whether the pod is not where it was.
    fn pass(&mut self, index: usize, pod: &PodFacts, (intent, whose): (Intent, Turn), act: impl FnOnce(&mut Self)) -> bool {
        let answer = self.look(pod, intent);
        if turn(answer) != whose {
            return false;
        }
        // One that nobody can tell anything about is not there for free.
        let is_free = !self.situation.is_available(pod) && !self.situation.is_silent(pod);
        let has_room = is_free || self.available > self.floor();
        let is_spare =
            self.situation.group(pod) != Group::Current || self.current_to_spare > 0 || self.situation.is_named_for_deletion(pod);
        let may_ask = is_spare && self.may_ask(is_free);
        match answer {
            Answer::Free | Answer::Skipped(_) if !has_room => return false,
            Answer::Free => act(self),
            Answer::Skipped(why) => {
                self.gates.skip(pod, why);
                act(self);
            }
            Answer::Yes => {
                self.gates.keep(pod, intent);
                if has_room {
                    act(self);
                } else {
                    self.wait_at(index);
                    self.agreed += 1;
                }
            }
            Answer::Asking => {
                self.gates.keep(pod, intent);
                self.wait_at(index);
            }
            Answer::Open | Answer::Again if may_ask && self.asks(pod, intent) => self.wait_at(index),
            Answer::Open => return false,
            Answer::No(_) | Answer::Again => {
                self.gates.keep(pod, intent);
                return false;
            }
        }
        true
    }

    fn wait_at(&mut self, index: usize) {
        let pod = self.pods.remove(index);
        self.set_aside(pod);
    }

    fn asks(&mut self, pod: &PodFacts, intent: Intent) -> bool {
        let changed = match intent {
            Intent::Update(revision) => changed_containers(self.situation, pod, revision),
            Intent::Delete | Intent::Updated(_) => Vec::new(),
        };
        self.gates.ask(pod, intent, &changed)
    }

    /// Whether a pod is to have another revision. Who said no may be asked again as long as the others have not taken its place for good.
    fn is_outdated(&self, pod: &PodFacts, whose: Turn) -> bool {
        match self.situation.group(pod) {
            Group::Update => false,
            Group::Current if whose == Turn::Refused => self.current_at_first > self.current_gone,
            Group::Current => self.current_to_spare > 0,
            Group::Stray => true,
        }
    }

    /// Pods to create: of the stable revision as far as the partition demands, or all while the rollout stands still; of the update revision otherwise.
    fn creations(&mut self, waiting: usize) -> Vec<Action> {
        let situation = self.situation;
        let wanted = situation.replicas + situation.limits.max_surge.min(waiting);
        let missing = wanted.saturating_sub(self.count());
        if missing == 0 {
            return Vec::new();
        }
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
        let mut creations = Vec::new();
        for (target, count) in [(&situation.current, from_current), (&situation.update, missing - from_current)] {
            let admitted = situation.refusals.creations(&target.name, situation.now);
            self.missing.extend((count > 0 && admitted.is_some()).then_some(target.name.as_str()));
            let count = count.min(MAX_MOVES - creations.len()).min(admitted.unwrap_or(usize::MAX));
            creations.append(&mut self.pods_of(target, count, &mut taken));
        }
        self.number(creations)
    }

    /// Gives new pods their numbers, as far as there are any: a pod without one is not made.
    fn number(&mut self, mut creations: Vec<Action>) -> Vec<Action> {
        let range = match &self.situation.index {
            Ok(None) => return creations,
            Ok(Some(range)) => range,
            Err(_) => return Vec::new(),
        };
        let mut numbers = index::free(range, &self.situation.ours);
        let wanted = creations.len();
        creations.retain_mut(|action| {
            let Action::CreatePod(new) = action else { return true };
            new.index = numbers.next();
            new.index.is_some()
        });
        self.unnumbered = wanted - creations.len();
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
        let is_usable = !target.is_leaving && target.template.too_large().is_none();
        // A pod that the selector does not match would be let go at once and created again, for ever.
        if count == 0 || !is_usable || !self.situation.spec.selector.matches(&target.template.labels()) {
            return Vec::new();
        }
        let metadata = &self.situation.seen.object.metadata;
        let (owner, uid) = (metadata.name.as_deref().unwrap_or_default(), metadata.uid.as_deref().unwrap_or_default());
        let gated = self.situation.stays() && self.situation.spec.disable_readiness_gate != Some(true);
        let protected = self.situation.protects();
        let new = |id: String| {
            let (name, revision) = (format!("{owner}-{id}"), target.name.clone());
            let template = target.template.clone();
            Action::CreatePod(NewPod { name, id, revision, template, gated, index: None, protected, successor: false })
        };
        naming::ids(uid, &target.name, taken).take(count).map(new).collect()
    }

    fn holds(&self, waiting: usize) -> Vec<Hold> {
        let situation = self.situation;
        let outdated = self.pods.iter().filter(|pod| situation.group(pod) != Group::Update).count();
        let leaving = situation.update.is_leaving.then(|| Hold::RevisionLeaving { name: situation.update.name.clone() });
        let mut holds: Vec<Hold> = situation.invalid.iter().cloned().chain(leaving.clone()).collect();
        if outdated > 0 || situation.canary.rolls_back {
            let stop = situation.canary.stop.as_ref().or(situation.stop.as_ref());
            holds.extend(stop.filter(|stop| ![situation.invalid.as_ref(), leaving.as_ref()].contains(&Some(stop))).cloned());
        }
        holds.extend(situation.canary.holds.iter().cloned());
        if self.impossible > 0 {
            holds.push(Hold::NotInPlace { pods: self.impossible, paths: self.obstacles.clone() });
        }
        holds.extend(self.gates.waits());
        holds.extend(situation.guarded());
        holds.extend(situation.silent());
        match &situation.index {
            Ok(Some(range)) if self.unnumbered > 0 => {
                let too_few = index::size(range) < situation.replicas;
                holds.push(Hold::NoIndex { missing: self.unnumbered, start: range.start, end: range.end, too_few });
            }
            Ok(_) => {}
            Err(invalid) => holds.push(invalid.clone()),
        }
        if situation.stop.is_none() && situation.spec.update_strategy.kind == UpdateType::OnDelete && outdated > 0 {
            holds.push(Hold::OnDelete { waiting: outdated });
        }
        let asked = self.asked.len() - self.asked_to_leave;
        let waiting = waiting.saturating_sub(self.impossible + asked) + self.agreed;
        let kept = outdated.saturating_sub(waiting + self.impossible);
        if situation.rolls() && kept > 0 {
            holds.push(Hold::Partition { kept });
        }
        if waiting > 0 {
            let unavailable = situation.replicas.saturating_sub(self.available);
            let allowed = situation.replicas - self.floor();
            holds.push(Hold::Budget { waiting, unavailable, allowed, surge: situation.limits.max_surge });
        }
        holds.extend(situation.ended_too_soon());
        holds.extend(situation.ignored());
        holds
    }
}
