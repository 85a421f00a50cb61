//! Writes that the API server refuses: what depends on them, which of them wait, and when one is tried again.
//!
//! A refusal concerns one write. What depends on it is left out ([`Fallout`]); everything else is done. Writes of a workload that are refused alike form a [`Group`] and
//! wait together: one of them, in rotation, is tried after 1, 2 and 4 seconds and then every 4 seconds, and when it passes the others follow. A pod whose deletion or
//! in-place update is refused gives up its place in the rollout, and is tried with dry runs, so that nothing happens to it before the write can pass.
//!
//! Refusals are kept in memory between passes. Losing them costs one more refused write each, never safety.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::names::{ASKED_ANNOTATION, DELETING_ANNOTATION, PROTECTED_LABEL, REVISION_LABEL, RUN_POD_UID_LABEL};
use api::tkex::HookRun;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::facts::pod::PodFacts;
use crate::hold::Hold;
use crate::plan::{Action, PatchReason, PodPatch};

/// The longest time between two tries of a group.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(4);
/// The longest time between two tries of a pod whose dry run passes although the write itself is refused.
const LONGEST_DISTRUST: SignedDuration = SignedDuration::from_mins(5);
/// After so many refusals in a row without a success, writes of the same kind that were not tried yet wait too.
const CLOSED_AFTER: u32 = 3;
/// The most dry runs of one group in one pass, once one has passed.
const MOST_PROBES: usize = 10;
/// A refusal that was not tried again for so long is forgotten.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// What a write is about, and what others wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject<'a> {
    /// The workload's finalizers.
    Finalizers,
    /// The revision with this name.
    Revision(&'a str),
    /// The pod with this uid.
    Pod(&'a str),
}

/// The subject of an action that others depend on, with an owned name.
type Lost = (u8, String);

impl Subject<'_> {
    fn owned(&self) -> Lost {
        match self {
            Self::Finalizers => (0, String::new()),
            Self::Revision(name) => (1, (*name).to_owned()),
            Self::Pod(uid) => (2, (*uid).to_owned()),
        }
    }
}

/// The pod that a HookRun is about.
fn asked_about(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(RUN_POD_UID_LABEL).map(String::as_str)
}

/// What an action is about, if anything can depend on that.
fn about(action: &Action) -> Option<Subject<'_>> {
    match action {
        Action::CreateRevision(new) => Some(Subject::Revision(&new.name)),
        Action::SetFinalizers { .. } => Some(Subject::Finalizers),
        Action::DeleteHookRun { pod, .. } => pod.as_deref().map(Subject::Pod),
        Action::CreateHookRun(new) => asked_about(&new.labels).map(Subject::Pod),
        Action::DeletePod { uid, .. } | Action::AdoptPod { uid, .. } | Action::ReleasePod { uid, .. } => Some(Subject::Pod(uid)),
        Action::PatchPod(PodPatch { why: PatchReason::Restore | PatchReason::Protect | PatchReason::Unprotect, .. }) => None,
        Action::PatchPod(change) => Some(Subject::Pod(&change.uid)),
        Action::Probe(_)
        | Action::CreatePod(_)
        | Action::BumpRevision { .. }
        | Action::AdoptRevision { .. }
        | Action::DeleteRevision { .. }
        | Action::Pause { .. }
        | Action::SkipHook { .. }
        | Action::CreateBudget { .. }
        | Action::DeleteBudget { .. }
        | Action::ResetRetry { .. }
        | Action::Measure(_) => None,
    }
}

/// What must not have been refused for an action to make sense.
fn needs(action: &Action) -> Vec<Subject<'_>> {
    let pod = if let Action::SkipHook { uid, .. } = action {
        Some(Subject::Pod(uid))
    } else {
        // One approval is taken back without the other.
        about(action).filter(|_| !matches!(action, Action::DeleteHookRun { .. }))
    };
    let revision = target(action).filter(|_| !matches!(action, Action::Probe(_))).map(Subject::Revision);
    let finalizers = matches!(action, Action::CreatePod(new) if new.protected).then_some(Subject::Finalizers);
    pod.into_iter().chain(revision).chain(finalizers).collect()
}

/// Which writes of a plan make no sense any more because others were refused.
#[derive(Debug, Clone, Default)]
pub struct Fallout {
    lost: BTreeSet<Lost>,
    /// Pods that were to be deleted and are still there: as many successors are not created.
    undeleted: usize,
    /// How often in a row writes of one kind were refused.
    rows: BTreeMap<(&'static str, Option<String>), u32>,
    /// Revisions that a pod could not be changed to: no other pod is drained for them in this plan.
    doubtful: BTreeSet<String>,
}

impl Fallout {
    /// Whether an action still makes sense. What depends on one that does not, does not either.
    pub fn stands(&mut self, action: &Action) -> bool {
        if let Action::CreatePod(new) = action
            && new.successor
            && self.undeleted > 0
        {
            self.undeleted -= 1;
            return false;
        }
        let kind = (action.word(), target(action).map(str::to_owned));
        let most = if matches!(action, Action::CreatePod(_)) { 1 } else { CLOSED_AFTER };
        let is_hopeless = !matches!(action, Action::Probe(_)) && self.rows.get(&kind).is_some_and(|row| *row >= most);
        let is_doubtful = matches!(action, Action::PatchPod(PodPatch { why: PatchReason::Drain, revision: Some(revision), .. }) if self.doubtful.contains(revision));
        let stands = !is_hopeless && !is_doubtful && !self.needs_lost(action);
        if !stands {
            self.lose(action);
        }
        stands
    }

    /// Whether something that an action needs was refused.
    fn needs_lost(&self, action: &Action) -> bool {
        needs(action).iter().any(|needed| self.lost.contains(&needed.owned()))
    }

    /// An action was done.
    pub fn done(&mut self, action: &Action) {
        self.rows.remove(&(action.word(), target(action).map(str::to_owned)));
    }

    /// An action was refused.
    pub fn refuse(&mut self, action: &Action) {
        *self.rows.entry((action.word(), target(action).map(str::to_owned))).or_default() += 1;
        if let Action::PatchPod(PodPatch { why: PatchReason::InPlace | PatchReason::Resize, revision: Some(revision), .. }) = action {
            self.doubtful.insert(revision.clone());
        }
        self.lose(action);
    }

    /// An action is not done.
    pub fn lose(&mut self, action: &Action) {
        self.undeleted += usize::from(matches!(action, Action::DeletePod { .. }));
        self.lost.extend(about(action).map(|subject| subject.owned()));
    }
}

/// The revision that an action brings a pod to.
fn target(action: &Action) -> Option<&str> {
    let inner = tried(action);
    if let Action::CreatePod(new) = inner {
        return Some(&new.revision);
    }
    if let Action::PatchPod(change) = inner { change.revision.as_deref() } else { None }
}

/// The write itself, or the one that a dry run is of.
fn tried(action: &Action) -> &Action {
    if let Action::Probe(inner) = action { inner } else { action }
}

/// What a refused write is told from others of its kind by: the uid of the pod, or a name.
fn identity(action: &Action) -> &str {
    match action {
        Action::CreateHookRun(new) => asked_about(&new.labels).unwrap_or(&new.name),
        Action::DeleteHookRun { uid, .. }
        | Action::DeletePod { uid, .. }
        | Action::AdoptPod { uid, .. }
        | Action::ReleasePod { uid, .. } => uid,
        Action::PatchPod(change) => &change.uid,
        Action::CreatePod(new) => &new.revision,
        Action::CreateRevision(new) => &new.name,
        Action::BumpRevision { name, .. } | Action::AdoptRevision { name, .. } | Action::DeleteRevision { name, .. } => name,
        Action::CreateBudget { name } | Action::DeleteBudget { name, .. } | Action::SkipHook { name, .. } => name,
        Action::Probe(inner) => identity(inner),
        Action::ResetRetry { field, .. } => field,
        Action::Measure(new) => &new.metric,
        Action::Pause { .. } | Action::SetFinalizers { .. } => "",
    }
}

/// What became of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done; a dry run would have been.
    Done,
    /// It was refused: the API server's one word, and its words.
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

/// Writes about a pod whose refusal keeps it where it is, besides those of its own transition.
const ABOUT_HOOKS: [&str; 3] = ["create_hookrun", "delete_hookrun", "unmark_pod"];
/// Of these, those that come before the rest of a change.
const TO_VOID: [&str; 2] = ["delete_hookrun", "unmark_pod"];
const TO_LEAVE: [&str; 2] = ["delete_pod", "mark_pod"];
const TO_END: [&str; 2] = ["update_pod_inplace", "resize_pod"];
const TO_CHANGE: [&str; 4] = ["drain_pod", "update_pod_inplace", "resize_pod", "hot_patch_pod"];
/// Writes that are tried with dry runs.
const PROBED: [&str; 7] = ["delete_pod", "mark_pod", "create_hookrun", "drain_pod", "update_pod_inplace", "resize_pod", "hot_patch_pod"];

/// A refused write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Member {
    /// The pod's uid, or a name.
    identity: String,
    /// What to try with a dry run.
    action: Option<Action>,
    /// The reason of the event that told it.
    reason: String,
    /// What was told.
    message: String,
    /// When it was last tried.
    at: Timestamp,
    /// A dry run has passed: the write may be tried.
    passed: bool,
    /// Labels and annotations of the pod when it was refused. Others may get another answer.
    seen: Option<(BTreeMap<String, String>, BTreeMap<String, String>)>,
}

impl Member {
    /// The uid of the pod that it is about.
    fn pod(&self) -> Option<&str> {
        let action = self.action.as_ref()?;
        if let Action::PatchPod(change) = action {
            return Some(&change.uid);
        }
        if let Subject::Pod(uid) = about(action)? { Some(uid) } else { None }
    }

    /// Whether somebody has changed the pod since it was refused: it may get another answer.
    fn has_changed(&mut self, pods: &BTreeMap<&str, &PodFacts>) -> bool {
        let Some(now) = self.pod().and_then(|uid| pods.get(uid)).map(|pod| foreign_metadata(pod)) else { return false };
        self.seen.replace(now.clone()).is_some_and(|before| before != now)
    }

    /// Whether what it is about is gone or done.
    fn is_over(&self, pods: &BTreeMap<&str, &PodFacts>, runs: &[Arc<HookRun>]) -> bool {
        // A write may have been done although it was answered with an error.
        let is_done = if let Some(Action::DeleteHookRun { uid, .. }) = &self.action {
            !runs.iter().any(|run| run.metadata.uid.as_ref() == Some(uid))
        } else if let Some(Action::PatchPod(PodPatch { why: PatchReason::Unmark, uid, .. })) = &self.action {
            pods.get(uid.as_str()).is_some_and(|pod| !pod.annotations.contains_key(DELETING_ANNOTATION))
        } else {
            false
        };
        let is_of_pod = matches!(
            &self.action,
            Some(Action::DeletePod { .. } | Action::AdoptPod { .. } | Action::ReleasePod { .. } | Action::PatchPod(_))
        );
        is_done || is_of_pod && self.pod().is_some_and(|uid| !pods.contains_key(uid))
    }
}

/// Writes that are refused alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Group {
    /// The action's word: verb and resource.
    write: String,
    /// The revision that pods were to get.
    target: Option<String>,
    /// The API server's one word.
    reason: String,
    tries: u32,
    next: Timestamp,
    /// How many were refused for the first time without a success in between.
    row: u32,
    /// One has passed: the others are tried without a pause.
    eager: bool,
    /// How often a write was refused although its dry run had passed, since the last one that was done.
    relapses: u32,
    members: Vec<Member>,
}

impl Group {
    fn is_of(&self, action: &Action) -> bool {
        let inner = tried(action);
        self.write == inner.word() && self.target.as_deref() == target(inner)
    }

    fn member(&self, identity: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.identity == identity)
    }

    /// Whether also writes that were not tried yet wait.
    fn is_closed(&self) -> bool {
        let most = if self.write == "create_pod" { 1 } else { CLOSED_AFTER };
        self.row >= most
    }

    fn holds_back(&self, identity: &str) -> bool {
        match self.member(identity) {
            Some(member) => !member.passed,
            None => self.is_closed(),
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        self.eager || self.next <= now
    }

    /// How long to wait where dry runs pass and writes do not.
    fn distrust(&self) -> SignedDuration {
        SignedDuration::from_secs(4 << self.relapses.min(10)).min(LONGEST_DISTRUST)
    }

    fn wait(&mut self, now: Timestamp, pause: SignedDuration) {
        (self.next, self.eager) = (now.checked_add(pause).unwrap_or(Timestamp::MAX), false);
    }

    fn refused(&mut self, now: Timestamp) {
        if self.is_due(now) {
            let pause = SignedDuration::from_secs(1 << self.tries.min(10)).min(LONGEST_PAUSE);
            self.tries = self.tries.saturating_add(1);
            self.wait(now, if self.relapses == 0 { pause } else { self.distrust() });
        }
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
        // A person who sets it again means it.
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
            // That somebody else was faster is normal, unless it never ends.
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

    /// Learns what became of a write. Says whether it is the first of its kind to be refused.
    pub fn note(&mut self, action: &Action, outcome: &Outcome, now: Timestamp) -> bool {
        if self.groups.is_empty() && !matches!(outcome, Outcome::Refused { .. }) {
            return false;
        }
        let known = self.groups.len();
        let (inner, is_probe) = (tried(action), matches!(action, Action::Probe(_)));
        let identity = identity(inner);
        match outcome {
            Outcome::Refused { reason, message } => self.refuse(inner, reason, message, now),
            Outcome::Gone => self
                .groups
                .iter_mut()
                .filter(|group| group.is_of(inner))
                .for_each(|group| group.members.retain(|member| member.identity != identity)),
            Outcome::Done if is_probe => self.pass(inner, true, now),
            Outcome::Unknown => self.pass(inner, false, now),
            Outcome::Done => {
                for group in self.groups.iter_mut().filter(|group| group.is_of(inner)) {
                    group.row = 0;
                    let was_tried = group.member(identity).map(|member| member.passed);
                    match was_tried {
                        // What one could do all can.
                        Some(false) => group.members.clear(),
                        Some(true) => {
                            group.members.retain(|member| member.identity != identity);
                            (group.eager, group.relapses) = (true, 0);
                        }
                        None => {}
                    }
                }
            }
        }
        let is_new = self.groups.len() > known;
        self.groups.retain(|group| !group.members.is_empty());
        is_new
    }

    /// A dry run has passed, or only the write itself can tell: then the others wait for what becomes of it.
    fn pass(&mut self, action: &Action, is_sure: bool, now: Timestamp) {
        for group in self.groups.iter_mut().filter(|group| group.is_of(action)) {
            let for_all = is_sure && group.relapses == 0;
            match group.members.iter_mut().find(|member| member.identity == identity(action)) {
                Some(member) => (member.passed, member.at) = (true, now),
                None if for_all => {}
                None => {
                    let (identity, action) = (identity(action).to_owned(), Some(action.clone()));
                    let (reason, message) =
                        group.members.first().map(|first| (first.reason.clone(), first.message.clone())).unwrap_or_default();
                    group.members.push(Member { identity, action, reason, message, at: now, passed: true, seen: None });
                }
            }
            if for_all {
                (group.row, group.eager) = (0, true);
            } else {
                group.refused(now);
            }
        }
    }

    fn refuse(&mut self, action: &Action, reason: &str, message: &str, now: Timestamp) {
        let (word, target) = (action.word(), target(action));
        let is_it = |group: &&mut Group| group.write == word && group.target.as_deref() == target && group.reason == reason;
        // It may have been refused for another reason before, or have been the turn of others.
        let (mut relapses, mut had_passed) = (0, false);
        for group in self.groups.iter_mut().filter(|group| group.is_of(action) && group.reason != reason) {
            had_passed |= group.member(identity(action)).is_some_and(|member| member.passed);
            relapses = relapses.max(group.relapses);
            group.members.retain(|member| member.identity != identity(action));
            group.refused(now);
        }
        if !self.groups.iter_mut().any(|group| is_it(&group)) {
            self.groups.push(Group {
                write: word.to_owned(),
                target: target.map(str::to_owned),
                reason: reason.to_owned(),
                tries: 0,
                next: now,
                row: 0,
                eager: false,
                relapses: 0,
                members: Vec::new(),
            });
        }
        let Some(group) = self.groups.iter_mut().find(is_it) else { return };
        group.relapses = group.relapses.max(relapses);
        group.refused(now);
        let (told, message) = action.failure(message);
        let mut action = (!matches!(action, Action::CreatePod(_))).then(|| action.clone());
        // A dry run is about what has become of the pod meanwhile.
        if let Some(Action::DeletePod { version, .. }) = &mut action {
            *version = None;
        }
        let identity = action.as_ref().map_or_else(|| target.unwrap_or_default(), |action| self::identity(action)).to_owned();
        match group.members.iter_mut().find(|member| member.identity == identity) {
            Some(member) => {
                had_passed |= std::mem::replace(&mut member.passed, false);
                (member.at, member.action, member.reason, member.message) = (now, action, told.to_owned(), message);
            }
            None => {
                group.row = group.row.saturating_add(1);
                let reason = told.to_owned();
                group.members.push(Member { identity, action, reason, message, at: now, passed: false, seen: None });
            }
        }
        if had_passed {
            group.relapses = group.relapses.saturating_add(1);
            group.wait(now, group.distrust());
        }
    }
}

/// Labels and annotations that are not ours to write.
fn foreign_metadata(pod: &PodFacts) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let keep = |all: &BTreeMap<String, String>, ours: &[&str]| {
        all.iter().filter(|(key, _)| !ours.contains(&key.as_str())).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    (keep(&pod.labels, &[REVISION_LABEL, PROTECTED_LABEL]), keep(&pod.annotations, &[DELETING_ANNOTATION, ASKED_ANNOTATION]))
}
