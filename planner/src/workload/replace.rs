//! Which pods are replaced or updated: as many as may be unavailable, those with an approval first.

use std::sync::Arc;

use api::tkex::UpdateType;

use super::gate::{Answer, Intent};
use super::inplace::changes::{Manner, changed_containers, is_return};
use super::ledger::{Ledger, MAX_MOVES};
use super::view::{Group, Target};
use crate::facts::pod::PodFacts;
use crate::plan::DeleteReason;
use crate::refusal::{Held, Wanted};

/// Pods go or change in this order: those with an approval, those whose hook is being asked, those whose hook was not
/// asked, those whose hook denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Approved,
    Asked,
    Open,
    Refused,
}

fn turn(answer: Answer) -> Turn {
    match answer {
        Answer::Free | Answer::Skipped(_) | Answer::Approved => Turn::Approved,
        Answer::Asking => Turn::Asked,
        Answer::Open => Turn::Open,
        Answer::Denied(_) | Answer::Again => Turn::Refused,
    }
}

impl<'s> Ledger<'s, '_> {
    /// Replaces or updates outdated pods, as many as may be unavailable. Pods that are unavailable already cost
    /// nothing. Returns how many have to wait.
    ///
    /// With a hook, no more pods are asked about at once than may be unavailable; a denied pod makes room for the next.
    pub(super) fn replace(&mut self) -> usize {
        let turns: &[Turn] =
            if self.gates.are_any() { &[Turn::Approved, Turn::Asked, Turn::Open, Turn::Refused] } else { &[Turn::Approved] };
        for turn in turns {
            self.replace_each(true, *turn);
            if self.view.rolls() {
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
            // A pod that the user named for deletion is not updated first.
            let due = self.view.is_named_for_deletion(pod) == named && (named || self.is_outdated(pod, whose));
            if !due {
                index += 1;
                continue;
            }
            let pod = Arc::clone(pod);
            let target = self.target(&pod);
            let manner = if named { Manner::Recreate } else { self.changes.manner(self.view, &pod, target) };
            let wanted = if manner == Manner::Recreate { Wanted::Leave } else { Wanted::Change(&target.name) };
            let went = match manner {
                Manner::Hold => {
                    self.hold_back(&pod, target, whose);
                    false
                }
                // A pod whose change is refused gives its turn to another one.
                Manner::Recreate | Manner::Stay if self.is_held(&pod, wanted) => {
                    self.held.extend((whose == Turn::Approved).then(|| Held::new(&pod, wanted)));
                    false
                }
                Manner::Recreate => {
                    let why = if named { DeleteReason::Scale } else { DeleteReason::Update };
                    self.act_or_ask(index, &pod, (Intent::Delete, whose), |all| all.remove(index, why))
                }
                Manner::Stay => self.act_or_ask(index, &pod, (Intent::Update(&target.name), whose), |all| all.change(index, target)),
            };
            index += usize::from(!went);
        }
    }

    fn hold_back(&mut self, pod: &PodFacts, target: &Target, whose: Turn) {
        if whose != Turn::Approved {
            return;
        }
        self.impossible += 1;
        if self.obstacles.is_empty() {
            self.obstacles = self.changes.obstacles(self.view, pod, target).to_vec();
        }
    }

    fn answer_of(&self, pod: &PodFacts, intent: Intent) -> Answer {
        match intent {
            // The change was only announced, so nothing happens to the pod.
            Intent::Update(revision) if is_return(self.view, pod, revision) => Answer::Free,
            // The kubelet changes the pod while it serves; like the original operator, no hook is asked.
            Intent::Update(_) if self.view.workload.strategy.kind == UpdateType::HotPatchUpdate => Answer::Free,
            Intent::Delete | Intent::Update(_) | Intent::Updated(_) => self.gates.answer(pod, intent),
        }
    }

    /// Does `act` to a pod if it is approved and its turn has come, or asks its hook. Returns whether the pod left the
    /// list of those that remain.
    fn act_or_ask(&mut self, index: usize, pod: &PodFacts, (intent, whose): (Intent, Turn), act: impl FnOnce(&mut Self)) -> bool {
        let answer = self.answer_of(pod, intent);
        if turn(answer) != whose {
            return false;
        }
        // An unavailable pod costs nothing, but one on a silent node may still serve.
        let is_free = !self.view.is_available(pod) && !self.view.is_silent(pod);
        let has_room = is_free || self.available > self.floor();
        let is_spare = self.view.group(pod) != Group::Current || self.current_to_spare > 0 || self.view.is_named_for_deletion(pod);
        let may_ask = is_spare && self.may_ask(is_free);
        match answer {
            Answer::Free | Answer::Skipped(_) if !has_room => return false,
            Answer::Free => act(self),
            Answer::Skipped(why) => {
                self.gates.skip(pod, why);
                act(self);
            }
            Answer::Approved => {
                self.gates.keep(pod, intent);
                if has_room {
                    act(self);
                } else {
                    self.wait_at(index);
                    self.approved += 1;
                }
            }
            Answer::Asking => {
                self.gates.keep(pod, intent);
                self.wait_at(index);
            }
            Answer::Open | Answer::Again if may_ask && self.asks(pod, intent) => self.wait_at(index),
            Answer::Open => return false,
            Answer::Denied(_) | Answer::Again => {
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

    pub(super) fn asks(&mut self, pod: &PodFacts, intent: Intent) -> bool {
        let changed = match intent {
            Intent::Update(revision) => changed_containers(self.view, pod, revision),
            Intent::Delete | Intent::Updated(_) => Vec::new(),
        };
        self.gates.ask(pod, intent, &changed)
    }

    /// Whether a pod should get another revision. The hook of a denied pod may be asked again until as many other pods
    /// have gone or changed as the partition allows.
    pub(super) fn is_outdated(&self, pod: &PodFacts, whose: Turn) -> bool {
        match self.view.group(pod) {
            Group::Update => false,
            Group::Current if whose == Turn::Refused => self.current_at_first > self.current_gone,
            Group::Current => self.current_to_spare > 0,
            Group::Stray => true,
        }
    }
}
