//! Scale-in: which of the surplus pods go.

use std::sync::Arc;

use super::Kind;
use super::gate::{self, Answer, Intent, Leaving};
use super::ledger::{Ledger, MAX_MOVES};
use crate::facts::pod::PodFacts;
use crate::plan::DeleteReason;
use crate::refusal::{Held, Wanted};

impl Ledger<'_, '_> {
    /// Deletes pods beyond the wanted number: named ones first, then outdated ones as far as the partition allows, then
    /// updated ones. A pod whose hook is being asked stays the chosen one; a pod whose deletion is refused is kept, and
    /// another goes, unless the user named it.
    pub(super) fn scale_in<K: Kind>(&mut self) {
        let surge = self.view.limits.max_surge.min(self.to_replace());
        let mut surplus = (self.count() - self.asked_to_leave).saturating_sub(self.view.replicas + surge);
        if surplus == 0 {
            return;
        }
        let chosen = self.chosen();
        let any_silent = self.pods.iter().any(|pod| self.is_spared_for_silence(pod));
        let mut pool: Vec<Option<Arc<PodFacts>>> = std::mem::take(&mut self.pods).into_iter().map(Some).collect();
        let mut asks = 0;
        // The order depends on whether the floor is reached, and on whether a pod of the stable revision is left to
        // spare.
        let terms = |all: &Self| (all.available.saturating_sub(all.promised) <= all.floor(), all.current_to_spare == 0);
        'order: while surplus > 0 {
            let (before, order) = (terms(self), self.victims::<K>(&pool, &chosen));
            for index in order {
                if surplus == 0 || terms(self) != before {
                    continue 'order;
                }
                if self.deletions.len() >= MAX_MOVES || asks >= MAX_MOVES {
                    self.gates.cut();
                    break 'order;
                }
                let Some(pod) = pool.get_mut(index).and_then(Option::take) else { continue };
                // If this pod goes below the floor, pods on silent nodes may be all that serve besides it.
                let waits = self.is_spared_for_silence(&pod) || any_silent && before.0 && self.view.is_available(&pod);
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

    /// Indexes of pods, in the order in which they go. As long as an unavailable pod is left, no available one goes
    /// below the floor. A pod whose deletion is refused is chosen only if the user named it or no other pod can go
    /// instead.
    fn victims<K: Kind>(&self, pool: &[Option<Arc<PodFacts>>], chosen: &[u8]) -> Vec<usize> {
        let at_floor = self.available.saturating_sub(self.promised) <= self.floor();
        let class = |pod: &PodFacts| if self.view.is_named_for_deletion(pod) { 0 } else { K::class(self, pod).saturating_add(1) };
        let rank = |(index, pod): (usize, &Option<Arc<PodFacts>>)| {
            let pod = pod.as_deref()?;
            let is_spared = (self.is_held(pod, Wanted::Leave) || self.view.is_silent(pod)) && !self.view.is_named_for_deletion(pod);
            let choice = chosen.get(index).copied();
            Some((at_floor && self.view.is_available(pod), is_spared, choice, class(pod), index))
        };
        let mut order: Vec<_> = pool.iter().enumerate().filter_map(rank).collect();
        order.sort_unstable();
        order.into_iter().map(|(.., index)| index).collect()
    }

    /// Whether a scale-in waits instead of deleting a pod: whether it serves is not known, and the user did not name
    /// it.
    fn is_spared_for_silence(&self, pod: &PodFacts) -> bool {
        self.view.is_silent(pod) && !self.view.is_named_for_deletion(pod)
    }

    /// Deletes a surplus pod, or asks its hook. Returns whether it is asked now.
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

    /// How far the deletion of each pod has come: first those with an approval, then those that are marked, then all
    /// others.
    fn chosen(&self) -> Vec<u8> {
        let choice = |pod: &Arc<PodFacts>| match gate::is_marked(pod) {
            true => u8::from(self.gates.answer(pod, Intent::Delete) != Answer::Approved),
            false => 2,
        };
        self.pods.iter().map(choice).collect()
    }
}
