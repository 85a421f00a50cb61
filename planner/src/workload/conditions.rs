//! The status of an object: counts and conditions, the same for every kind that owns pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::{PAUSED_BY_HOOK, PAUSED_BY_STEP, condition as kind, reason};
use api::tkex::{PodHookCondition, UpdateType};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::gate::{Place, Waiting};
use super::moves::Moves;
use super::view::View;
use super::{Now, Status, canary, protect};
use crate::condition::{self, Verdict};
use crate::facts::pod::PodFacts;
use crate::hold::Hold;
use crate::hookrun::word;
use crate::plan::{Plan, Summary, Wait};

/// What shared decisions report about an object. Each kind puts it into its own status.
#[derive(Debug, Clone)]
pub struct Report {
    /// The generation of the object.
    pub generation: Option<i64>,
    /// Pods that neither ended nor are being deleted.
    pub replicas: i32,
    /// Those of them that are ready.
    pub ready: i32,
    /// Those that are available.
    pub available: i32,
    /// Those that are updated.
    pub updated: i32,
    /// Those that are updated and ready.
    pub updated_ready: i32,
    /// The stable revision.
    pub current_revision: String,
    /// The progress of the canary, and the revision of the template.
    pub rollout: canary::Memory,
    /// How often the name of a revision was taken by another template.
    pub collisions: i32,
    /// The selector as text.
    pub selector: String,
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// Pods that wait for a hook, by [`Place`].
    pub waiting: [Vec<PodHookCondition>; 3],
}

/// A plan without actions: only the status is written.
pub(super) fn plan<S: Status>(status: S) -> Plan<S> {
    let summary = summary(&status);
    Plan { summary, ..Plan::only(status) }
}

/// What metrics report for an object with this status.
fn summary(status: &impl Status) -> Summary {
    let progressing = status.conditions().iter().find(|one| one.type_ == kind::PROGRESSING);
    let of = |all: &[PodHookCondition]| Wait { pods: all.len(), since: all.iter().map(|one| one.start_time.0).min() };
    Summary { state: progressing.map(|one| one.reason.clone()).unwrap_or_default(), waiting: status.waiting().map(of) }
}

/// The plan for an object of which not everything is known: no actions, and the status stays as it is.
pub(super) fn unknown<S: Status>(mut status: S, hold: Hold, generation: Option<i64>, now: Now) -> Plan<S> {
    let reason = if matches!(hold, Hold::NotListed { .. }) { reason::NOT_LISTED } else { reason::TOO_LARGE };
    let (conditions, observed) = status.conditions_mut();
    condition::set(conditions, kind::PROGRESSING, Verdict::no(reason, hold.to_string()), generation, now);
    condition::set(conditions, kind::DEGRADED, Verdict::yes(reason, hold.to_string()), generation, now);
    *observed = generation;
    Plan { holds: vec![hold], ..plan(status) }
}

/// Adds to a status that the plan could not be carried out. `before` is the status so far, which records since when
/// that is the case.
#[must_use]
pub fn with_trouble<S: Status>(mut status: S, before: Option<&S>, reason: &'static str, message: &str, now: Now) -> S {
    let (conditions, observed) = status.conditions_mut();
    let generation = *observed;
    let degraded = |one: &&Condition| one.type_ == kind::DEGRADED;
    if let Some(known) = before.and_then(|before| before.conditions().iter().find(degraded)) {
        conditions.retain(|one| one.type_ != kind::DEGRADED);
        conditions.push(known.clone());
    }
    condition::set(conditions, kind::DEGRADED, Verdict::yes(reason, message), generation, now);
    status
}

/// The status of an object.
pub(super) fn report<S: Status>(before: &S, view: &View, moves: &Moves) -> Report {
    let mut report = counted(before, view, &moves.waiting);
    let mut say = |kind: &str, verdict: Verdict| condition::set(&mut report.conditions, kind, verdict, report.generation, view.now);
    say(kind::PROGRESSING, progressing(view, moves));
    say(kind::AVAILABLE, available(view));
    say(kind::PAUSED, paused(view));
    say(kind::DEGRADED, degraded(&moves.holds));
    if let Some(verdict) = protected(view, &moves.waiting) {
        say(kind::PROTECTED, verdict);
    }
    report
}

/// The status of an object that is being deleted. Protected pods are deleted once their hook approves.
pub(super) fn deleting<S: Status>(before: &S, view: &View, waits: &[Waiting], holds: &[Hold]) -> Report {
    let mut report = counted(before, view, waits);
    let mut says = vec!["the object is being deleted; nothing is created or updated any more".to_owned()];
    says.extend(holds.iter().map(ToString::to_string));
    if !holds.is_empty() {
        says.push("set spec.preDeleteUpdateStrategy.protect to false to delete all pods at once".to_owned());
    }
    let mut say = |kind: &str, verdict: Verdict| condition::set(&mut report.conditions, kind, verdict, report.generation, view.now);
    say(kind::PROGRESSING, Verdict::no(reason::DELETING, says.join("; ")));
    say(kind::DEGRADED, degraded(holds));
    if let Some(verdict) = protected(view, waits) {
        say(kind::PROTECTED, verdict);
    }
    report
}

fn counted<S: Status>(before: &S, view: &View, waits: &[Waiting]) -> Report {
    let memory = &view.canary.memory;
    let active: Vec<&Arc<PodFacts>> = view.ours.iter().filter(|pod| pod.is_active()).collect();
    let updated = |pod: &PodFacts| view.is_updated(pod);
    let count = |filter: &dyn Fn(&PodFacts) -> bool| i32::try_from(active.iter().filter(|pod| filter(pod)).count()).unwrap_or(i32::MAX);
    let complete = active.len() >= view.replicas && active.iter().all(|pod| updated(pod) && view.is_available(pod));
    // A revision becomes the stable one only after all its steps.
    let is_through = memory.index.is_none_or(|index| index >= view.steps());
    let promoted = complete && view.stop.is_none() && is_through && !view.canary.rolls_back;
    let known_waits = before.waiting();
    let mut places = Place::ALL.iter().zip(known_waits);
    Report {
        generation: view.workload.metadata.generation,
        replicas: count(&|_| true),
        ready: count(&PodFacts::is_ready),
        available: count(&|pod| view.is_available(pod)),
        updated: count(&updated),
        updated_ready: count(&|pod| updated(pod) && pod.is_ready()),
        current_revision: if promoted { view.revision.clone() } else { view.current.name.clone() },
        rollout: memory.clone(),
        collisions: view.collisions,
        selector: view.workload.selector.to_string(),
        conditions: known(before.conditions(), view),
        waiting: std::array::from_fn(|_| places.next().map_or_else(Vec::new, |(place, known)| waiting(waits, *place, known))),
    }
}

/// The most pods per hook that the status names.
const MAX_NAMED_PODS: usize = 500;

/// Pods that wait for a hook. A pod whose hook is asked again has waited since the first time.
fn waiting(all: &[Waiting], place: Place, before: &[PodHookCondition]) -> Vec<PodHookCondition> {
    let known: BTreeMap<&str, &Time> = before.iter().map(|one| (one.pod_name.as_str(), &one.start_time)).collect();
    let mut all: Vec<_> = all.iter().filter(|waiting| waiting.place == place).collect();
    all.sort_by_key(|waiting| &waiting.pod);
    let tell = |waiting: &&Waiting| {
        let since = known.get(waiting.pod.as_str()).map_or(waiting.since, |known| known.0.min(waiting.since));
        let since = Timestamp::from_second(since.as_second()).unwrap_or(since);
        PodHookCondition { pod_name: waiting.pod.clone(), start_time: Time(since), phase: word(waiting.phase).to_owned() }
    };
    all.iter().take(MAX_NAMED_PODS).map(tell).collect()
}

/// The condition Protected: how many pods only the operator may delete, and which of them wait for their hook. None if
/// the workload does not protect its pods.
fn protected(view: &View, waits: &[Waiting]) -> Option<Verdict> {
    if !view.workload.protect {
        return None;
    }
    if !view.protects() {
        return Some(Verdict::no(reason::NO_HOOK, "nothing is protected, because there is no spec.preDeleteUpdateStrategy.hook"));
    }
    let uid = view.protection().uid;
    let active = || view.ours.iter().filter(|pod| pod.is_active());
    let (all, safe) = (active().count(), active().filter(|pod| protect::protector(pod) == Some(uid)).count());
    let mut leaving: Vec<&str> = waits.iter().filter(|one| one.place == Place::PreDelete).map(|one| one.pod.as_str()).collect();
    leaving.sort_unstable();
    let names = match leaving.split_at_checked(3) {
        None | Some((_, [])) => leaving.join(", "),
        Some((first, rest)) => format!("{} and {} more", first.join(", "), rest.len()),
    };
    let names = if names.is_empty() { "no pod waits for it now".to_owned() } else { format!("waiting for it now: {names}") };
    let what = "kubectl delete pod is refused, and evictions and the deletion of this object wait for spec.preDeleteUpdateStrategy.hook";
    let message = format!("{safe} of {all} pods are protected: {what}; {names}");
    let is_up = view.protection().is_up();
    Some(if is_up { Verdict::yes(reason::HOOK_DECIDES, message) } else { Verdict::no(reason::NOT_ALL_PROTECTED, message) })
}

/// Conditions of the operator's types: those that another operator left have other types, and would stay for ever.
fn known(conditions: &[Condition], view: &View) -> Vec<Condition> {
    let ours = [kind::PROGRESSING, kind::AVAILABLE, kind::PAUSED, kind::DEGRADED];
    let is_ours =
        |condition: &&Condition| ours.contains(&condition.type_.as_str()) || view.workload.protect && condition.type_ == kind::PROTECTED;
    conditions.iter().filter(is_ours).cloned().collect()
}

fn progressing(view: &View, moves: &Moves) -> Verdict {
    let active = || view.ours.iter().filter(|pod| pod.is_active());
    let updated = active().filter(|pod| view.is_updated(pod)).count();
    let available = active().filter(|pod| view.is_available(pod)).count();
    let (replicas, outdated) = (view.replicas, active().count() - updated);
    let held = || moves.holds.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let say = |start: String| [start, waited_for(view), held()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    let settled = active().count() == replicas && available == replicas && view.ended.is_empty();
    // Refused writes for some pods do not stop the rollout as long as there is something else to do.
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
    if !settled || view.rolls() && !moves.is_idle {
        let rolling = outdated > 0 && view.rolls();
        return Verdict::yes(if rolling { reason::ROLLING_OUT } else { reason::SCALING }, say(numbers));
    }
    if outdated > 0 && view.workload.strategy.kind == UpdateType::OnDelete {
        return Verdict::no(reason::ON_DELETE, say(numbers));
    }
    if outdated > 0 {
        return Verdict::no(reason::PARTITION_REACHED, say(numbers));
    }
    Verdict::no(reason::COMPLETE, say(numbers))
}

/// The reason why nothing moves although something is due; none if the hold does not stop everything.
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

/// The pods that are not available yet, the first few by name, each with the reason that Kubernetes reports.
fn waited_for(view: &View) -> String {
    let mut late: Vec<_> = view.placed.iter().filter(|pod| !view.is_available(pod)).collect();
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

fn available(view: &View) -> Verdict {
    let available = view.ours.iter().filter(|pod| view.is_available(pod)).count();
    let floor = view.replicas.saturating_sub(view.limits.max_unavailable);
    let message = format!("{available} of {} pods are available, at least {floor} are needed", view.replicas);
    if available >= floor { Verdict::yes(reason::ENOUGH_AVAILABLE, message) } else { Verdict::no(reason::TOO_FEW_AVAILABLE, message) }
}

fn paused(view: &View) -> Verdict {
    match view.canary.stop.as_ref().map(|hold| (standstill(hold), hold)) {
        Some((Some(reason), hold)) if matches!(hold, Hold::PausedByStep { .. } | Hold::HookFailed { .. }) => {
            Verdict::yes(reason, hold.to_string())
        }
        _ if view.workload.strategy.paused => Verdict::yes(reason::PAUSED_BY_USER, Hold::PausedByUser.to_string()),
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
