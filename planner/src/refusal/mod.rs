//! Writes that the API server refuses: what depends on them, which of them wait, and when one is tried again.
//!
//! A refusal concerns one write. What depends on it is left out ([`Fallout`]); everything else is done. Writes of a workload that are refused alike form a [`Group`] and
//! wait together: one of them, in rotation, is tried after 1, 2 and 4 seconds and then every 4 seconds, and when it passes the others follow. A pod whose deletion or
//! in-place update is refused gives up its place in the rollout, and is tried with dry runs, so that nothing happens to it before the write can pass.
//!
//! Refusals are kept in memory between passes. Losing them costs one more refused write each, never safety.

mod fallout;
mod group;
mod outcome;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::tkex::HookRun;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::fallout::Fallout;
use self::fallout::identity;
use self::group::Group;
use crate::facts::pod::PodFacts;
use crate::hold::Hold;
use crate::plan::Action;

/// After so many refusals in a row without a success, writes of the same kind that were not tried yet wait too.
const CLOSED_AFTER: u32 = 3;
/// A refusal that was not tried again for so long is forgotten.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// Writes about a pod whose refusal keeps it where it is, besides those of its own transition.
const ABOUT_HOOKS: [&str; 3] = ["create_hookrun", "delete_hookrun", "unmark_pod"];
/// Of these, those that come before the rest of a change.
const TO_VOID: [&str; 2] = ["delete_hookrun", "unmark_pod"];
const TO_LEAVE: [&str; 2] = ["delete_pod", "mark_pod"];
const TO_END: [&str; 2] = ["update_pod_inplace", "resize_pod"];
const TO_CHANGE: [&str; 4] = ["drain_pod", "update_pod_inplace", "resize_pod", "hot_patch_pod"];

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done; a dry run would have been.
    Done,
    /// It was refused, with the API server's reason and message.
    Refused { reason: String, message: String },
    /// A dry run could not be made, so that only the write itself can tell.
    Unknown,
    /// What it was about is gone.
    Gone,
}

/// What is wanted of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// That it goes.
    Leave,
    /// That it gets this revision and stays.
    Change(&'a str),
    /// That it gets the rest of this revision.
    Rest(&'a str),
}

/// A pod that does not get what is wanted of it because the API server refuses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<'a> {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// What is wanted.
    pub wanted: Wanted<'a>,
}

impl<'a> Held<'a> {
    /// A pod that is held back.
    #[must_use]
    pub fn new(pod: &PodFacts, wanted: Wanted<'a>) -> Self {
        Self { name: pod.name.clone(), uid: pod.uid.clone(), wanted }
    }

    /// The same write for this pod.
    fn instead(&self, action: &Action) -> Option<Action> {
        let mut action = action.clone();
        if let Action::DeletePod { name, uid, version, .. } = &mut action {
            name.clone_from(&self.name);
            uid.clone_from(&self.uid);
            *version = None;
        } else if let Action::PatchPod(change) = &mut action {
            change.name.clone_from(&self.name);
            change.uid.clone_from(&self.uid);
            *change.body.pointer_mut("/metadata/uid")? = Value::String(self.uid.clone());
        } else {
            return None;
        }
        Some(action)
    }
}

/// What the API server has refused of one workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Refusals {
    groups: Vec<Group>,
    /// The generation of the workload that was tried.
    generation: Option<i64>,
}

impl Refusals {
    /// Whether nothing is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// What is still worth remembering: a pod that is gone or was changed, and a workload with another spec, may get another answer.
    #[must_use]
    pub fn refreshed(&self, pods: &[Arc<PodFacts>], runs: &[Arc<HookRun>], generation: Option<i64>, now: Timestamp) -> Self {
        let mut all = self.clone();
        if all.groups.is_empty() {
            return Self { generation, ..all };
        }
        let pods: BTreeMap<&str, &PodFacts> = pods.iter().map(|pod| (pod.uid.as_str(), &**pod)).collect();
        for group in &mut all.groups {
            group.members.retain(|member| !member.is_over(&pods, runs));
            for member in &mut group.members {
                if member.has_changed(&pods) {
                    (group.next, member.at) = (now, Timestamp::MIN);
                }
            }
            if self.generation.is_some() && self.generation != generation {
                (group.tries, group.relapses, group.next) = (0, 0, now);
            }
        }
        // A user who sets `retry` again wants it to be acted on.
        all.groups.retain(|group| group.write != "reset_retry" || self.generation == generation);
        let is_fresh = |at: Timestamp| at.checked_add(FORGOTTEN_AFTER).is_ok_and(|end| end > now);
        all.groups
            .retain(|group| !group.members.is_empty() && (is_fresh(group.next) || group.members.iter().any(|member| is_fresh(member.at))));
        all.generation = generation;
        all
    }

    /// Whether a pod cannot get what is wanted of it, because a write for that is refused.
    #[must_use]
    pub fn hold_back(&self, uid: &str, wanted: Wanted) -> bool {
        self.holding(uid, wanted).next().is_some()
    }

    fn holding<'s>(&'s self, uid: &'s str, wanted: Wanted<'s>) -> impl Iterator<Item = &'s Group> {
        let is_meant = move |group: &&Group| {
            let word = group.write.as_str();
            let is_target = |revision: &str| group.target.as_deref().is_none_or(|target| target == revision);
            let of_intent = match wanted {
                Wanted::Leave => TO_LEAVE.contains(&word),
                Wanted::Change(revision) => TO_CHANGE.contains(&word) && is_target(revision),
                Wanted::Rest(revision) => TO_END.contains(&word) && is_target(revision),
            };
            let of_hooks = || group.members.iter().any(|member| !member.passed && member.pod() == Some(uid));
            let about_hooks = if matches!(wanted, Wanted::Rest(_)) { &TO_VOID[..] } else { &ABOUT_HOOKS };
            of_intent && group.holds_back(uid) || about_hooks.contains(&word) && of_hooks()
        };
        self.groups.iter().filter(is_meant)
    }

    /// Whether writes with this word are refused.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        self.groups.iter().any(|group| group.write == word)
    }

    /// Whether the deletion of a pod was refused, or had to wait because others were: its approval may have grown old meanwhile.
    #[must_use]
    pub fn is_deletion_refused(&self, uid: &str) -> bool {
        self.groups.iter().any(|group| group.write == "delete_pod" && (group.is_closed() || group.member(uid).is_some()))
    }

    /// How many pods of a revision may be created now; None for any number.
    #[must_use]
    pub fn creations(&self, revision: &str, now: Timestamp) -> Option<usize> {
        let mut closed =
            self.groups.iter().filter(|group| group.write == "create_pod" && group.target.as_deref() == Some(revision)).peekable();
        closed.peek()?;
        Some(usize::from(closed.all(|group| group.is_due(now))))
    }

    /// Whether a group is the reason why a pod is held back.
    fn is_held_by(&self, group: &Group, held: &Held) -> bool {
        self.holding(&held.uid, held.wanted).any(|one| std::ptr::eq(one, group))
    }

    /// What is refused and still wanted: of pods that are held back, and of a plan's writes.
    #[must_use]
    pub fn holds(&self, held: &[Held], planned: &[Vec<Action>], missing: &[&str]) -> Vec<Hold> {
        let of_pods = |group: &Group| held.iter().filter(|held| self.is_held_by(group, held)).count();
        let of_plan =
            |group: &Group| planned.iter().flatten().filter(|action| group.is_of(action) && group.holds_back(identity(action))).count();
        let of_creation = |group: &Group| {
            usize::from(group.write == "create_pod" && missing.iter().any(|revision| group.target.as_deref() == Some(revision)))
        };
        let tell = |group: &Group| {
            let first = group.members.iter().min_by_key(|member| &member.identity)?;
            let writes = of_pods(group).max(of_plan(group)).max(of_creation(group));
            // A conflict with another writer is normal, unless it never ends.
            let is_told = group.reason != "Conflict" || group.tries > CLOSED_AFTER;
            (writes > 0 && is_told).then(|| Hold::Refused { reason: first.reason.clone(), writes, message: first.message.clone() })
        };
        self.groups.iter().filter_map(tell).collect()
    }

    /// When something is tried again.
    #[must_use]
    pub fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        self.groups.iter().map(|group| group.next).filter(|at| *at > now).min()
    }
}
