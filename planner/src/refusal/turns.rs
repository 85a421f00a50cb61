//! Which refused writes are tried in this pass: of each group that is due one write, or a dry run of it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::fallout::{Fallout, identity};
use super::group::Group;
use super::{Held, Refusals};
use crate::plan::Action;

/// The most dry runs of one group in one pass, once one has passed.
const MOST_PROBES: usize = 10;
/// Writes that are tried with dry runs.
const PROBED: [&str; 7] = ["delete_pod", "mark_pod", "create_hookrun", "drain_pod", "update_pod_inplace", "resize_pod", "hot_patch_pod"];

impl Refusals {
    /// Dry runs that are due: of each group one, or several if one has passed. Pods that were tried longest ago, or not at all, come first.
    #[must_use]
    pub fn probes(&self, held: &[Held], now: Timestamp) -> Vec<Action> {
        let mut probes = Vec::new();
        for group in self.groups.iter().filter(|group| PROBED.contains(&group.write.as_str()) && group.is_due(now)) {
            let pattern = group.members.iter().find_map(|member| member.action.as_ref());
            let candidate = |held: &Held| {
                let (at, action) = match group.member(&held.uid) {
                    Some(member) if member.passed => return None,
                    Some(member) => (Some(member.at), member.action.clone()),
                    None => (None, held.instead(pattern?)),
                };
                Some((at, held.uid.clone(), action?))
            };
            let mut due: Vec<_> = held.iter().filter(|held| self.is_held_by(group, held)).filter_map(candidate).collect();
            due.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
            due.dedup_by(|one, other| one.1 == other.1);
            let most = if group.eager { MOST_PROBES } else { 1 };
            probes.extend(due.into_iter().take(most).map(|(.., action)| Action::Probe(Box::new(action))));
        }
        probes
    }

    /// Leaves out of a plan what waits because it was refused, and what depends on that. Of each group that is due one write is tried.
    #[must_use]
    pub fn admit(&self, steps: Vec<Vec<Action>>, now: Timestamp) -> Vec<Vec<Action>> {
        if self.groups.is_empty() {
            return steps;
        }
        let turns = self.turns(&steps, now, &BTreeSet::new());
        let (admitted, blocked) = self.admit_turns(&steps, &turns);
        if turns.iter().all(|turn| !blocked.contains(&(*turn.0, *turn.1))) {
            return admitted;
        }
        // A write that cannot be made, because something else is refused that it needs, does not take the turn of those that can.
        self.admit_turns(&steps, &self.turns(&steps, now, &blocked)).0
    }

    /// The groups in which a write waits, by their place.
    fn waiting_in<'s>(&'s self, action: &'s Action) -> impl Iterator<Item = (usize, &'s Group)> {
        let groups = self.groups.iter().enumerate();
        groups.filter(move |(_, group)| group.is_of(action) && group.holds_back(identity(action)))
    }

    /// Of each group that is due the write that was tried longest ago, by the place of the group.
    fn turns<'s>(&'s self, steps: &'s [Vec<Action>], now: Timestamp, blocked: &BTreeSet<(usize, &str)>) -> BTreeMap<usize, &'s str> {
        let mut turns: BTreeMap<usize, &str> = BTreeMap::new();
        for action in steps.iter().flatten() {
            let identity = identity(action);
            for (place, group) in
                self.waiting_in(action).filter(|(place, group)| group.is_due(now) && !blocked.contains(&(*place, identity)))
            {
                let tried = |identity: &str| (group.member(identity).map(|member| member.at), identity.to_owned());
                let turn = turns.entry(place).or_insert(identity);
                if tried(identity) < tried(turn) {
                    *turn = identity;
                }
            }
        }
        turns
    }

    /// What is left of a plan if these writes have their turn, and which of those that wait could not be made if they had it.
    fn admit_turns<'s>(
        &'s self,
        steps: &'s [Vec<Action>],
        turns: &BTreeMap<usize, &str>,
    ) -> (Vec<Vec<Action>>, BTreeSet<(usize, &'s str)>) {
        let (mut fallout, mut blocked) = (Fallout::default(), BTreeSet::new());
        let mut admitted: Vec<Vec<Action>> = Vec::new();
        for step in steps {
            let mut kept = Vec::new();
            for action in step {
                let identity = identity(action);
                if fallout.needs_lost(action) {
                    blocked.extend(self.waiting_in(action).map(|(place, _)| (place, identity)));
                }
                let has_own_way = matches!(action, Action::Probe(_) | Action::CreatePod(_));
                if !has_own_way && self.waiting_in(action).any(|(place, _)| turns.get(&place).copied() != Some(identity)) {
                    fallout.lose(action);
                } else if fallout.stands(action) {
                    kept.push(action.clone());
                }
            }
            admitted.push(kept);
        }
        (admitted, blocked)
    }
}
