//! Pods whose successors differ, or that change: as many as may be unavailable, those first whose hook has approved.

use std::sync::Arc;

use api::tkex::UpdateType;

use super::gate::{Answer, Intent};
use super::inplace::changes::{Manner, changed_containers, is_return};
use super::ledger::{Ledger, MAX_MOVES};
use super::view::{Group, Target};
use crate::facts::pod::PodFacts;
use crate::plan::DeleteReason;
use crate::refusal::{Held, Wanted};

/// Whose turn it is to go or to change: those whose hook has agreed, those whose hook is being asked, those who were not asked, those whose hook said no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
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

impl<'s> Ledger<'s, '_> {
    /// Deletes pods whose successors shall differ, as many as may be unavailable. Pods that are unavailable anyway cost nothing. Returns how many have to wait.
    ///
    /// Where a hook has to agree, not more pods are asked at once than may be unavailable; one whose hook says no makes room for the next.
    pub(super) fn replace(&mut self) -> usize {
        let turns: &[Turn] = if self.gates.are_any() { &[Turn::Agreed, Turn::Asked, Turn::Open, Turn::Refused] } else { &[Turn::Agreed] };
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
            // Who is to go anyway is not updated first.
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
            self.obstacles = self.changes.obstacles(self.view, pod, target).to_vec();
        }
    }

    fn look(&self, pod: &PodFacts, intent: Intent) -> Answer {
        match intent {
            // What was approved before is not done; nothing new happens to the pod.
            Intent::Update(revision) if is_return(self.view, pod, revision) => Answer::Free,
            // The kubelet changes the pod while it serves; the original asks nobody either.
            Intent::Update(_) if self.view.workload.strategy.kind == UpdateType::HotPatchUpdate => Answer::Free,
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

    pub(super) fn asks(&mut self, pod: &PodFacts, intent: Intent) -> bool {
        let changed = match intent {
            Intent::Update(revision) => changed_containers(self.view, pod, revision),
            Intent::Delete | Intent::Updated(_) => Vec::new(),
        };
        self.gates.ask(pod, intent, &changed)
    }

    /// Whether a pod is to have another revision. Who said no may be asked again as long as the others have not taken its place for good.
    pub(super) fn is_outdated(&self, pod: &PodFacts, whose: Turn) -> bool {
        match self.view.group(pod) {
            Group::Update => false,
            Group::Current if whose == Turn::Refused => self.current_at_first > self.current_gone,
            Group::Current => self.current_to_spare > 0,
            Group::Stray => true,
        }
    }
}
