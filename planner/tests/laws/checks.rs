//! What the laws check: each action when it is carried out, and the world when it has come to rest.

use api::names::{HOTPATCH_ANNOTATION, PROTECTED_LABEL, PROTECTION_FINALIZER};
use api::tkex::{ContainerOrder, UpdateType};
use jiff::Timestamp;
use planner::facts::pod::{Gate, PodFacts};
use planner::hold::Hold;
use planner::plan::{Action, DeleteReason, NewPod, PatchReason, PodPatch};
use planner::refusal::{Fallout, Refusals};
use serde_json::Value;

use crate::world::{Rule, Subject, World};

/// Lets the operator work, and checks every action against the laws.
pub(crate) fn work<S: Subject>(world: &mut World<S>, cut: Option<usize>) {
    let plan = world.decide();
    let (before, leaving) = (world.clone(), world.leaving(&plan));
    let missing = |world: &World<S>| world.replicas().saturating_sub(world.available());
    let mut fallout = Fallout::default();
    world.refusals = plan.refusals.clone();
    for action in plan.actions().take(cut.unwrap_or(usize::MAX)) {
        if !fallout.stands(action) {
            continue;
        }
        let present = world.present();
        assert!(before.is_approved(action), "law 5: no hook approved {action:?}");
        if let Action::PatchPod(change) = action {
            assert_gentle(world, change);
        }
        if let Action::Pause { paused: false, .. } = action {
            assert!(!world.paused_by_user, "a user's pause was ended: {action:?}");
        }
        if let Action::CreatePod(new) = action {
            assert_numbered(world, new);
            assert_guarded(world, new);
        }
        let updated = world.on_revision(S::rollout(&plan.status).update, &leaving);
        world.attempt(action, &mut fallout);
        let (limits, replicas) = (world.limits(), world.replicas());
        if world.present() > present {
            assert!(ours(world) <= replicas + limits.max_surge, "law 3: too many pods after {action:?}");
        }
        let allowed = limits.max_unavailable.saturating_sub(limits.max_surge).max(missing(&before));
        assert!(missing(world) <= allowed, "law 3: {} unavailable, {allowed} allowed, after {action:?}", missing(world));
        let now_updated = world.on_revision(S::rollout(&plan.status).update, &leaving);
        if now_updated > updated && !is_restored_to_what_it_is(&before, action, S::rollout(&plan.status).update) {
            let rolling = stable(&before, &plan.status) != S::rollout(&plan.status).update;
            let kept = world.partition(&plan.status);
            // Surplus pods that may not be deleted are no reason to update fewer.
            let stay = ["delete_pod", "mark_pod", "create_hookrun"].iter().any(|word| world.refused.contains_key(*word));
            let undeleted = if stay { filling(world).saturating_sub(replicas) } else { 0 };
            assert!(!rolling || now_updated <= replicas - kept + undeleted, "law 4: {now_updated} pods updated after {action:?}");
            assert!(!rolling || !before.paused(), "a paused rollout continued: {action:?}");
        }
        if let Action::DeletePod { why: DeleteReason::Update, .. } = action {
            let rolls_back = plan.holds.iter().any(|hold| matches!(hold, Hold::HookFailed { rolls_back: true, .. }));
            assert!(rolls_back || !before.paused(), "a paused rollout continued");
        }
    }
    match cut {
        None => world.record_if(&before.version(), &plan),
        // What it remembered of refused writes is lost with it.
        Some(_) => world.refusals = Refusals::default(),
    }
}

/// Whether a pod gets the label of a revision back whose images it has: another change was announced, and cannot come.
fn is_restored_to_what_it_is<S: Subject>(before: &World<S>, action: &Action, revision: &str) -> bool {
    let Action::PatchPod(PodPatch { why: PatchReason::Restore, name, .. }) = action else { return false };
    before.cluster.pods.get(name).is_some_and(|pod| before.cluster.has_images_of(pod, revision))
}

/// Lets the operator work on an object that is being deleted.
pub(crate) fn leave<S: Subject>(world: &mut World<S>, cut: Option<usize>) {
    let plan = world.decide();
    let (mut fallout, version) = (Fallout::default(), world.version());
    world.refusals = plan.refusals.clone();
    for action in plan.actions().take(cut.unwrap_or(usize::MAX)) {
        if !fallout.stands(action) {
            continue;
        }
        assert!(world.is_approved(action), "law 5: no hook approved {action:?}");
        assert!(!matches!(action, Action::CreatePod(_) | Action::AdoptPod { .. }), "nothing is created any more: {action:?}");
        if matches!(action, Action::SetFinalizers { .. }) && world.protects() {
            let stays = world.ours().filter(|pod| pod.controller.is_some() && pod.is_active()).count();
            assert_eq!(stays, 0, "law 5: the object goes before its pods");
        }
        world.attempt(action, &mut fallout);
    }
    match cut {
        None => world.record_if(&version, &plan),
        Some(_) => world.refusals = Refusals::default(),
    }
}

/// No container restarts while its pod serves, before its grace period is over, out of order, or without need.
fn assert_gentle<S: Subject>(world: &World<S>, change: &PodPatch) {
    let Some(pod) = world.cluster.pods.get(&change.name).filter(|pod| pod.uid == change.uid) else { return };
    let conditions = change.body["status"]["conditions"].as_array().into_iter().flatten();
    conditions.for_each(|one| assert_eq!(one["type"], "InPlaceUpdateReady", "only the kubelet reports readiness itself"));
    let Some(images) = change.body["spec"]["containers"].as_array() else { return };
    for (name, image) in images.iter().map(|one| (&one["name"], &one["image"])) {
        let container = pod.containers.iter().find(|container| name == container.name.as_str()).unwrap();
        assert_ne!(image, container.image.as_str(), "a restart for nothing: {change:?}");
    }
    if change.why == PatchReason::HotPatch {
        return;
    }
    assert_in_turn(world, pod, images);
    if pod.gate == Gate::Absent {
        return;
    }
    let Gate::Down(since) = pod.gate else { panic!("law 5: a pod that serves is restarted: {change:?}") };
    let grace = pod.update.as_ref().unwrap().pending.as_ref().unwrap().grace_seconds;
    assert!(world.cluster.now.duration_since(since).as_secs() >= grace, "law 5: a pod is restarted within its grace period: {change:?}");
}

/// If containers have an order, one is changed at a time, when the containers before it run again.
fn assert_in_turn<S: Subject>(world: &World<S>, pod: &PodFacts, images: &[Value]) {
    let settings = world.object.workload().strategy.in_place_update_strategy.clone().unwrap_or_default();
    if matches!(settings.policy, None | Some(ContainerOrder::DisOrdered)) || pod.annotations.contains_key(HOTPATCH_ANNOTATION) {
        return;
    }
    assert_eq!(images.len(), 1, "containers change together: {images:?}");
    let before = pod.containers.iter().take_while(|container| images[0]["name"] != container.name.as_str());
    for container in before.filter(|container| !container.actual_image.is_empty()) {
        assert_eq!(container.actual_image, container.image, "the container before it does not run yet: {pod:?}");
    }
}

/// If pods get numbers, every new pod has one that no other pod has.
fn assert_numbered<S: Subject>(world: &World<S>, new: &NewPod) {
    let Some(range) = world.object.workload().index else { return };
    let Some(number) = new.index else { panic!("{} has no number", new.name) };
    assert!((range.start..range.end).contains(&number), "{number} is not in {range:?}");
    let key = "tkex.bkbcs.tencent.com/gamedeployment-index-id";
    let others = world.cluster.pods.values().filter(|pod| pod.name != new.name && pod.controller.is_some() && pod.labels["app"] == "game");
    assert!(others.filter_map(|pod| pod.annotations.get(key)).all(|taken| *taken != number.to_string()), "{number} is taken");
}

/// A protected pod is protected when it is created, and the finalizer and the PodDisruptionBudget exist before it.
fn assert_guarded<S: Subject>(world: &World<S>, new: &NewPod) {
    assert_eq!(new.protected, world.protects(), "{} is not protected as its hook asks", new.name);
    let holds_on = world.finalizers().iter().any(|finalizer| finalizer == PROTECTION_FINALIZER);
    let is_refused = world.refused.contains_key("create_budget") || world.refused.contains_key("delete_budget");
    assert!(
        !new.protected || holds_on && (is_refused || !world.cluster.budgets.is_empty()),
        "law 5: {} is created before it is guarded",
        new.name
    );
}

/// The stable revision that a decision started from.
fn stable<S: Subject>(before: &World<S>, after: &S::Status) -> String {
    let remembered = before.object.status().map(|status| S::rollout(status).current);
    remembered.filter(|name| before.cluster.revisions.contains_key(*name)).unwrap_or(S::rollout(after).current).to_owned()
}

/// Pods that count for the owner.
fn ours<S: Subject>(world: &World<S>) -> usize {
    world.ours().filter(|pod| pod.controller.is_some() && world.fills(pod)).count()
}

/// Pods that count for the owner, or will once it has adopted them.
pub(crate) fn filling<S: Subject>(world: &World<S>) -> usize {
    world.ours().filter(|pod| world.fills(pod)).count()
}

/// The world is as the spec asks, once it has come to rest.
pub(crate) fn assert_satisfied<S: Subject>(world: &World<S>) {
    let strategy = world.object.workload().strategy;
    let matching: Vec<_> = world.ours().collect();
    assert_eq!(matching.len(), world.replicas(), "law 2: the number of pods");
    assert!(matching.iter().all(|pod| pod.controller.is_some() && pod.is_ready()), "law 2: pods that do not serve");
    let guards = [
        matching.iter().all(|pod| pod.labels.contains_key(PROTECTED_LABEL) == world.protects()),
        world.cluster.budgets.is_empty() != world.protects(),
        world.finalizers().is_empty() != world.protects(),
    ];
    assert_eq!(guards, [true; 3], "law 2: protection of pods, of evictions, of the object");
    let status = world.object.status().unwrap();
    let rollout = S::rollout(status);
    let held = world.decide().holds.into_iter().any(|hold| matches!(hold, Hold::NotInPlace { .. } | Hold::HookNotPossible { .. }));
    if strategy.paused || strategy.kind == UpdateType::OnDelete || held {
        return;
    }
    let updated = matching.iter().filter(|pod| pod.revision() == Some(rollout.update)).count();
    let kept = matching.iter().filter(|pod| pod.revision() == Some(rollout.current)).count();
    assert!(updated >= world.replicas() - world.partition(status), "law 2: {updated} pods updated");
    if rollout.current != rollout.update {
        assert_eq!(updated + kept, world.replicas(), "law 2: pods on a third revision");
    }
}

/// Writes are refused without end: other pods are as they should be, and no pod stays drained for an update that is refused.
pub(crate) fn assert_only_refused_suffer<S: Subject>(world: &World<S>, start: Timestamp) {
    let is_refused = |pod: &PodFacts, words: &[&str]| {
        let is_meant =
            |rule: &Rule| rule.pod.as_ref().is_none_or(|name| *name == pod.name) && rule.word.is_none_or(|word| words.contains(&word));
        world.cluster.rules.iter().any(is_meant)
    };
    for pod in world.ours().filter(|pod| pod.is_active()) {
        let gate_refused = is_refused(pod, &["restore_pod", "adopt_pod"]);
        assert!(
            gate_refused || pod.is_ready(),
            "law 9: {} is out of service: {pod:?} {:?} {:?}",
            pod.name,
            world.cluster.rules,
            world.decide().steps
        );
    }
    for (word, times) in &world.refused {
        let later = times.iter().filter(|time| time.duration_since(start).as_secs() >= 60).count();
        // Two groups at most per word: pods of two revisions, or two rules.
        let minutes = usize::try_from(world.cluster.now.duration_since(start).as_secs() / 60).unwrap();
        assert!(later <= 2 * 20 * minutes, "law 9: {later} refused {word} in {minutes} minutes");
    }
    let of_all = |rule: &Rule| rule.pod.is_none();
    let held = world.decide().holds.into_iter().any(|hold| {
        matches!(
            hold,
            Hold::NotInPlace { .. }
                | Hold::HookNotPossible { .. }
                | Hold::GateNotPossible { .. }
                | Hold::PausedByStep { .. }
                | Hold::HookFailed { .. }
        )
    });
    let again: u32 = world.drained.values().map(|times| times - 1).sum();
    // Pauses double from 4 seconds up to 5 minutes: nine tries in twenty minutes, of two groups at most.
    assert!(
        again <= 2 * 9 * u32::try_from(world.cluster.rules.len()).unwrap(),
        "law 9: pods are drained in vain {again} times: {:?}",
        world.drained
    );
    // A pod whose readiness gate may not be set is unavailable, and the rollout limits hold back the others.
    let available = world.ours().filter(|pod| world.is_available(pod)).count();
    let unavailable = world.replicas().saturating_sub(available);
    if world.cluster.rules.iter().any(of_all) || held || unavailable > 0 || world.object.workload().strategy.kind == UpdateType::OnDelete {
        return;
    }
    let status = world.object.status().unwrap();
    let rollout = S::rollout(status);
    let concerned = |pod: &PodFacts| world.cluster.rules.iter().any(|rule| rule.pod.as_ref() == Some(&pod.name));
    let others = world.ours().filter(|pod| pod.is_active() && !concerned(pod));
    let outdated = others.filter(|pod| pod.revision() != Some(rollout.update)).count();
    let kept = world.partition(status);
    assert!(
        outdated <= kept,
        "law 9: {outdated} pods without refused writes are outdated, {kept} kept: {:?} {:?}",
        world.cluster.rules,
        world.decide().holds
    );
}
