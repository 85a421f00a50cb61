//! Upkeep of pods that neither go nor start to change: the end of a grace period, the return to endpoints, the hook
//! after an in-place update.

use super::gate::{Answer, Intent};
use super::inplace::changes::Upkeep;
use super::ledger::Ledger;
use super::replace::Turn;
use crate::facts::pod::PodFacts;
use crate::refusal::{Held, Wanted};

impl Ledger<'_, '_> {
    /// Ends what is under way for pods that neither go nor start to change.
    pub(super) fn upkeep(&mut self) {
        let staying = self.pods.len();
        let pods: Vec<_> = self.pods.iter().chain(&self.asked).cloned().collect();
        for (index, pod) in pods.iter().enumerate().filter(|(_, pod)| pod.is_active()) {
            match self.changes.upkeep(self.view, pod) {
                Upkeep::Done => {}
                Upkeep::Waits(revision) => self.gates.keep(pod, Intent::Update(revision)),
                Upkeep::Refused => self.hold_rest(pod),
                // A pod that is set aside to be deleted or updated does not finish its earlier change first.
                Upkeep::Exposed if index < staying => self.finish(pod),
                Upkeep::Exposed => {}
            }
            self.after(pod);
        }
    }

    /// Records that the rest of a pod's change is refused, or a write that has to come before it.
    fn hold_rest(&mut self, pod: &PodFacts) {
        let targets = [&self.view.update.name, &self.view.current.name];
        let target = targets.into_iter().find(|target| pod.revision() == Some(target));
        self.held.extend(target.map(|target| Held::new(pod, Wanted::Change(target))));
    }

    /// Drains a pod for the rest of a change of which a part is made: the rest was refused, and the pod serves
    /// meanwhile. The same limits and hooks apply as for any other pod.
    fn finish(&mut self, pod: &PodFacts) {
        let is_elsewhere = self.is_outdated(pod, Turn::Approved) || self.view.is_named_for_deletion(pod);
        let Some(revision) = pod.revision().filter(|_| self.view.rolls() && !is_elsewhere) else { return };
        // An approval that cannot be deleted holds it too.
        if self.is_held(pod, Wanted::Change(revision)) {
            self.hold_rest(pod);
            return;
        }
        let (intent, is_available) = (Intent::Update(revision), self.view.is_available(pod));
        let is_free = !is_available && !self.view.is_silent(pod);
        match self.gates.answer(pod, intent) {
            Answer::Free | Answer::Skipped(_) | Answer::Approved if is_free || self.available > self.floor() => {
                self.available -= usize::from(is_available);
                self.gates.keep(pod, intent);
                self.changes.drain(pod, self.view.now);
            }
            Answer::Open | Answer::Again if self.may_ask(is_free) && self.asks(pod, intent) => self.promised += usize::from(is_available),
            Answer::Open | Answer::Free | Answer::Skipped(_) => {}
            Answer::Approved | Answer::Asking | Answer::Denied(_) | Answer::Again => {
                self.promised += usize::from(is_available);
                self.gates.keep(pod, intent);
            }
        }
    }

    /// Asks the hook about a pod that was updated in-place, once it serves again.
    fn after(&mut self, pod: &PodFacts) {
        let Some(update) = pod.update.as_deref() else { return };
        let Some(revision) = update.asked_about(pod) else { return };
        let intent = Intent::Updated(revision);
        let serves = pod.is_ready() && !update.is_under_way(pod);
        match self.gates.answer(pod, intent) {
            Answer::Free | Answer::Skipped(_) => {}
            Answer::Open | Answer::Again if serves && self.gates.ask(pod, intent, &[]) => {}
            // The earlier question stays; a pod that does not serve yet is asked about later.
            Answer::Open | Answer::Again | Answer::Approved | Answer::Asking | Answer::Denied(_) => self.gates.keep(pod, intent),
        }
    }
}
