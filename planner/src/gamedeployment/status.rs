//! What people are told.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::{PAUSED_BY_HOOK, PAUSED_BY_STEP, condition as kind, reason};
use api::tkex::{CanaryStatus, GameDeployment, GameDeploymentStatus, PodHookCondition, UpdateType};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::moves::Moves;
use super::situation::Situation;
use super::{Now, Observed};
use crate::condition::{self, Verdict};
use crate::gate::{Place, Waiting};
use crate::hold::Hold;
use crate::hookrun::word;
use crate::plan::{Summary, Wait};
use crate::pod::PodFacts;
use crate::protect;

pub(super) fn status(seen: &Observed, situation: &Situation, moves: &Moves<'_>) -> GameDeploymentStatus {
    let mut status = counted(seen, situation);
    let mut say = |kind: &str, verdict: Verdict| {
        condition::set(&mut status.conditions, kind, verdict, seen.object.metadata.generation, situation.now);
    };
    say(kind::PROGRESSING, progressing(situation, moves));
    say(kind::AVAILABLE, available(situation));
    say(kind::PAUSED, paused(situation));
    say(kind::DEGRADED, degraded(&moves.holds));
    if let Some(verdict) = protected(situation, &moves.waiting) {
        say(kind::PROTECTED, verdict);
    }
    status.pre_delete_hook_condition = waiting(&moves.waiting, Place::PreDelete, &status.pre_delete_hook_condition);
    status.pre_inplace_hook_condition = waiting(&moves.waiting, Place::PreInplace, &status.pre_inplace_hook_condition);
    status.post_inplace_hook_condition = waiting(&moves.waiting, Place::PostInplace, &status.post_inplace_hook_condition);
    status
}

/// The status of an object of which not everything is known: what was known of it stays.
pub(super) fn unknown(object: &GameDeployment, hold: &Hold, now: Now) -> GameDeploymentStatus {
    let mut status = object.status.clone().unwrap_or_default();
    let generation = object.metadata.generation;
    let reason = if matches!(hold, Hold::NotListed { .. }) { reason::NOT_LISTED } else { reason::TOO_LARGE };
    condition::set(&mut status.conditions, kind::PROGRESSING, Verdict::no(reason, hold.to_string()), generation, now);
    condition::set(&mut status.conditions, kind::DEGRADED, Verdict::yes(reason, hold.to_string()), generation, now);
    status.observed_generation = generation;
    status
}

/// What metrics tell of an object with this status.
#[must_use]
pub fn summary(status: &GameDeploymentStatus) -> Summary {
    let progressing = status.conditions.iter().find(|one| one.type_ == kind::PROGRESSING);
    let of = |all: &[PodHookCondition]| Wait { pods: all.len(), since: all.iter().map(|one| one.start_time.0).min() };
    Summary {
        state: progressing.map(|one| one.reason.clone()).unwrap_or_default(),
        waiting: Place::ALL.map(|place| match place {
            Place::PreDelete => of(&status.pre_delete_hook_condition),
            Place::PreInplace => of(&status.pre_inplace_hook_condition),
            Place::PostInplace => of(&status.post_inplace_hook_condition),
        }),
    }
}

/// The most pods of one hook that the status names.
const NAMED: usize = 500;

/// Pods that wait for a hook. Who was asked again has waited since the first question.
fn waiting(all: &[Waiting], place: Place, before: &[PodHookCondition]) -> Vec<PodHookCondition> {
    let known: BTreeMap<&str, &Time> = before.iter().map(|one| (one.pod_name.as_str(), &one.start_time)).collect();
    let mut all: Vec<_> = all.iter().filter(|waiting| waiting.place == place).collect();
    all.sort_by_key(|waiting| &waiting.pod);
    let tell = |waiting: &&Waiting| {
        let since = known.get(waiting.pod.as_str()).map_or(waiting.since, |known| known.0.min(waiting.since));
        let since = Timestamp::from_second(since.as_second()).unwrap_or(since);
        PodHookCondition { pod_name: waiting.pod.clone(), start_time: Time(since), phase: word(waiting.phase).to_owned() }
    };
    all.iter().take(NAMED).map(tell).collect()
}

/// The status of an object that is being deleted. Pods that are protected leave when their hook agrees.
pub(super) fn deleting(seen: &Observed, situation: &Situation, waits: &[Waiting], holds: &[Hold]) -> GameDeploymentStatus {
    let mut status = counted(seen, situation);
    let mut says = vec!["the object is being deleted; nothing is created or updated any more".to_owned()];
    says.extend(holds.iter().map(ToString::to_string));
    if !holds.is_empty() {
        says.push("set spec.preDeleteUpdateStrategy.protect to false to delete all pods at once".to_owned());
    }
    let message = says.join("; ");
    let generation = seen.object.metadata.generation;
    condition::set(&mut status.conditions, kind::PROGRESSING, Verdict::no(reason::DELETING, message), generation, situation.now);
    condition::set(&mut status.conditions, kind::DEGRADED, degraded(holds), generation, situation.now);
    if let Some(verdict) = protected(situation, waits) {
        condition::set(&mut status.conditions, kind::PROTECTED, verdict, generation, situation.now);
    }
    status.pre_delete_hook_condition = waiting(waits, Place::PreDelete, &status.pre_delete_hook_condition);
    status.pre_inplace_hook_condition = Vec::new();
    status.post_inplace_hook_condition = Vec::new();
    status
}

/// How many pods nobody may delete before their hook agrees, and who waits for it. Nothing if nobody asked for protection.
fn protected(situation: &Situation, waits: &[Waiting]) -> Option<Verdict> {
    if situation.spec.pre_delete_update_strategy.as_ref()?.protect != Some(true) {
        return None;
    }
    if !situation.protects() {
        return Some(Verdict::no(reason::NO_HOOK, "nothing is protected, because there is no spec.preDeleteUpdateStrategy.hook"));
    }
    let uid = situation.protection().uid;
    let active = || situation.ours.iter().filter(|pod| pod.is_active());
    let (all, safe) = (active().count(), active().filter(|pod| protect::protector(pod) == Some(uid)).count());
    let mut leaving: Vec<&str> = waits.iter().filter(|one| one.place == Place::PreDelete).map(|one| one.pod.as_str()).collect();
    leaving.sort_unstable();
    let who = match leaving.split_at_checked(3) {
        None | Some((_, [])) => leaving.join(", "),
        Some((first, rest)) => format!("{} and {} more", first.join(", "), rest.len()),
    };
    let who = if who.is_empty() { "no pod waits for it now".to_owned() } else { format!("waiting for it now: {who}") };
    let what = "kubectl delete pod is refused, and evictions and the deletion of this object wait for spec.preDeleteUpdateStrategy.hook";
    let message = format!("{safe} of {all} pods are protected: {what}; {who}");
    let is_up = situation.protection().is_up();
    Some(if is_up { Verdict::yes(reason::HOOK_DECIDES, message) } else { Verdict::no(reason::NOT_ALL_PROTECTED, message) })
}

/// Adds to a status that the plan could not be carried out. `before` is the status so far, which knows since when that is so.
#[must_use]
pub fn with_trouble(
    mut status: GameDeploymentStatus,
    before: Option<&GameDeploymentStatus>,
    reason: &'static str,
    message: &str,
    now: Now,
) -> GameDeploymentStatus {
    let generation = status.observed_generation;
    let degraded = |one: &&Condition| one.type_ == kind::DEGRADED;
    if let Some(known) = before.and_then(|before| before.conditions.iter().find(degraded)) {
        status.conditions.retain(|one| one.type_ != kind::DEGRADED);
        status.conditions.push(known.clone());
    }
    condition::set(&mut status.conditions, kind::DEGRADED, Verdict::yes(reason, message), generation, now);
    status
}

/// The state of a rollout in steps, where there are or were any.
fn canary(before: Option<&CanaryStatus>, situation: &Situation, current: &str) -> Option<CanaryStatus> {
    if before.is_none() && situation.spec.update_strategy.canary.is_none() {
        return None;
    }
    let hook_run = situation.canary.memory.hook_run.clone();
    Some(CanaryStatus { revision: Some(current.to_owned()), pause_start_time: None, current_step_hook_run: hook_run })
}

fn counted(seen: &Observed, situation: &Situation) -> GameDeploymentStatus {
    let memory = &situation.canary.memory;
    let before = seen.object.status.clone().unwrap_or_default();
    let active: Vec<&Arc<PodFacts>> = situation.ours.iter().filter(|pod| pod.is_active()).collect();
    let updated = |pod: &PodFacts| situation.is_updated(pod);
    let count = |filter: &dyn Fn(&PodFacts) -> bool| i32::try_from(active.iter().filter(|pod| filter(pod)).count()).unwrap_or(i32::MAX);
    let complete = active.len() >= situation.replicas && active.iter().all(|pod| updated(pod) && situation.is_available(pod));
    // Only what has been through all its steps becomes the stable revision.
    let is_through = memory.index.is_none_or(|index| index >= situation.steps());
    let promoted = complete && situation.stop.is_none() && is_through && !situation.canary.rolls_back;
    let current = if promoted { situation.revision.clone() } else { situation.current.name.clone() };
    GameDeploymentStatus {
        observed_generation: seen.object.metadata.generation,
        replicas: count(&|_| true),
        ready_replicas: count(&PodFacts::is_ready),
        available_replicas: count(&|pod| situation.is_available(pod)),
        updated_replicas: count(&updated),
        updated_ready_replicas: count(&|pod| updated(pod) && pod.is_ready()),
        update_revision: memory.revision.clone(),
        current_revision: current.clone(),
        pause_conditions: memory.pauses.clone(),
        current_step_index: memory.index.and_then(|index| i32::try_from(index).ok()),
        current_step_hash: memory.hash.clone(),
        canary: canary(before.canary.as_ref(), situation, &current),
        collision_count: Some(situation.collisions),
        label_selector: situation.spec.selector.to_string(),
        conditions: known(&before.conditions, situation),
        ..before
    }
}

/// Conditions of other operators have other types and would stay for ever.
fn known(conditions: &[Condition], situation: &Situation) -> Vec<Condition> {
    let wants = situation.spec.pre_delete_update_strategy.as_ref().is_some_and(|strategy| strategy.protect == Some(true));
    let ours = [kind::PROGRESSING, kind::AVAILABLE, kind::PAUSED, kind::DEGRADED];
    let is_ours = |condition: &&Condition| ours.contains(&condition.type_.as_str()) || wants && condition.type_ == kind::PROTECTED;
    conditions.iter().filter(is_ours).cloned().collect()
}

fn progressing(situation: &Situation, moves: &Moves) -> Verdict {
    let active = || situation.ours.iter().filter(|pod| pod.is_active());
    let updated = active().filter(|pod| situation.is_updated(pod)).count();
    let available = active().filter(|pod| situation.is_available(pod)).count();
    let (replicas, outdated) = (situation.replicas, active().count() - updated);
    let held = || moves.holds.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let say =
        |start: String| [start, waited_for(situation), held()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    let settled = active().count() == replicas && available == replicas && situation.ended.is_empty();
    // What is refused of some pods stops nothing as long as there is something else to do.
    let is_refusal = |hold: &&Hold| matches!(hold, Hold::Refused { .. });
    let stopped = moves.holds.iter().filter(|hold| settled && moves.is_idle || !is_refusal(hold)).find_map(|hold| standstill(hold));
    let numbers = format!("{updated} of {replicas} pods are updated, {available} available");
    if let Some(reason) = stopped.filter(|_| settled || moves.is_idle && active().count() >= replicas) {
        return Verdict::no(reason, say(numbers));
    }
    let asking = moves.holds.iter().any(|hold| matches!(hold, Hold::HookRunning { .. }));
    if asking && settled && moves.is_idle {
        return Verdict::yes(reason::HOOK_RUNNING, say(numbers));
    }
    let waiting = moves.waiting.iter().any(|waiting| waiting.place != Place::PostInplace);
    if waiting && moves.is_idle && available >= replicas.min(active().count()) {
        return Verdict::yes(reason::WAITING_FOR_HOOK, say(numbers));
    }
    if !settled || situation.rolls() && !moves.is_idle {
        let rolling = outdated > 0 && situation.rolls();
        return Verdict::yes(if rolling { reason::ROLLING_OUT } else { reason::SCALING }, say(numbers));
    }
    if outdated > 0 && situation.spec.update_strategy.kind == UpdateType::OnDelete {
        return Verdict::no(reason::ON_DELETE, say(numbers));
    }
    if outdated > 0 {
        return Verdict::no(reason::PARTITION_REACHED, say(numbers));
    }
    Verdict::no(reason::COMPLETE, say(numbers))
}

/// The reason for which nothing moves although something is due.
fn standstill(hold: &Hold) -> Option<&'static str> {
    match hold {
        Hold::PausedByUser => Some(reason::PAUSED_BY_USER),
        Hold::PausedByStep { .. } => Some(PAUSED_BY_STEP),
        Hold::HookFailed { rolls_back: true, .. } => Some(reason::ROLLED_BACK),
        Hold::HookFailed { rolls_back: false, .. } => Some(PAUSED_BY_HOOK),
        Hold::HookNotPossible { .. } => Some(reason::HOOK_NOT_POSSIBLE),
        Hold::GateNotPossible { .. } => Some(reason::HOOK_NOT_POSSIBLE),
        Hold::NoIndex { too_few: true, .. } => Some(reason::NO_INDEX),
        Hold::NotInPlace { .. } => Some(reason::INPLACE_NOT_POSSIBLE),
        Hold::NotInThisVersion(feature) => Some(feature.reason()),
        Hold::Invalid { .. } => Some(reason::INVALID_SPEC),
        Hold::RevisionLeaving { .. } => Some(reason::REVISION_LEAVING),
        Hold::TooLarge { .. } => Some(reason::TOO_LARGE),
        Hold::NotListed { .. } => Some(reason::NOT_LISTED),
        Hold::Refused { .. } => Some(reason::REFUSED),
        Hold::Partition { .. }
        | Hold::Budget { .. }
        | Hold::OnDelete { .. }
        | Hold::EndedTooSoon { .. }
        | Hold::HookRunning { .. }
        | Hold::WaitingForHook { .. }
        | Hold::Cordoned { .. }
        | Hold::NodesSilent { .. }
        | Hold::OtherBudget { .. }
        | Hold::NoIndex { too_few: false, .. }
        | Hold::Step { .. }
        | Hold::Clamped { .. }
        | Hold::Ignored { .. } => None,
    }
}

/// The pods that are not available yet, the first few by name, with Kubernetes' word for what is wrong.
fn waited_for(situation: &Situation) -> String {
    let mut late: Vec<_> = situation.placed.iter().filter(|pod| !situation.is_available(pod)).collect();
    late.sort_by_key(|pod| (pod.trouble.is_none(), &pod.name));
    if late.is_empty() {
        return String::new();
    }
    let name = |pod: &&Arc<PodFacts>| pod.trouble.as_ref().map_or_else(|| pod.name.clone(), |trouble| format!("{} ({trouble})", pod.name));
    let names: Vec<_> = late.iter().take(3).map(name).collect();
    let more = late.len() - names.len();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("waiting for {}{rest}", names.join(", "))
}

fn available(situation: &Situation) -> Verdict {
    let available = situation.ours.iter().filter(|pod| situation.is_available(pod)).count();
    let floor = situation.replicas.saturating_sub(situation.limits.max_unavailable);
    let message = format!("{available} of {} pods are available, at least {floor} are needed", situation.replicas);
    if available >= floor { Verdict::yes(reason::ENOUGH_AVAILABLE, message) } else { Verdict::no(reason::TOO_FEW_AVAILABLE, message) }
}

fn paused(situation: &Situation) -> Verdict {
    match situation.canary.stop.as_ref().map(|hold| (standstill(hold), hold)) {
        Some((Some(reason), hold)) if matches!(hold, Hold::PausedByStep { .. } | Hold::HookFailed { .. }) => {
            Verdict::yes(reason, hold.to_string())
        }
        _ if situation.spec.update_strategy.paused => Verdict::yes(reason::PAUSED_BY_USER, Hold::PausedByUser.to_string()),
        _ => Verdict::no(reason::NOT_PAUSED, "the rollout is not paused"),
    }
}

fn degraded(holds: &[Hold]) -> Verdict {
    let wrong = holds.iter().find_map(|hold| match hold {
        Hold::Refused { reason, .. } => Some(Verdict::yes(reason.clone(), hold.to_string())),
        Hold::NotInThisVersion(_)
        | Hold::Invalid { .. }
        | Hold::RevisionLeaving { .. }
        | Hold::TooLarge { .. }
        | Hold::NotListed { .. }
        | Hold::HookFailed { .. }
        | Hold::HookNotPossible { .. }
        | Hold::GateNotPossible { .. }
        | Hold::NoIndex { too_few: true, .. }
        | Hold::NotInPlace { .. } => standstill(hold).map(|reason| Verdict::yes(reason, hold.to_string())),
        Hold::PausedByUser
        | Hold::Partition { .. }
        | Hold::Budget { .. }
        | Hold::OnDelete { .. }
        | Hold::EndedTooSoon { .. }
        | Hold::PausedByStep { .. }
        | Hold::HookRunning { .. }
        | Hold::WaitingForHook { .. }
        | Hold::Cordoned { .. }
        | Hold::NodesSilent { .. }
        | Hold::OtherBudget { .. }
        | Hold::NoIndex { too_few: false, .. }
        | Hold::Step { .. }
        | Hold::Clamped { .. }
        | Hold::Ignored { .. } => None,
    });
    wrong.unwrap_or_else(|| Verdict::no(reason::AS_EXPECTED, "nothing is wrong"))
}
