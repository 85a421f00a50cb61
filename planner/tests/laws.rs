//! The laws, on random worlds: users edit, pods start, fail and vanish, the operator sees late and dies half-way.

use crate::world::{self, FORGERIES, How, Rule, World, make_ready};
use api::names::{HOTPATCH_ANNOTATION, PROTECTED_LABEL, PROTECTION_FINALIZER};
use api::tkex::{
    Canary, ContainerOrder, HookStep, HookTemplate, HotPatch, HotPatchExecutor, Phase as Verdict, PodHook, PodIndex, UpdateType,
    WhenNotPossible,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use planner::facts::pod::{Gate, Phase, PodFacts};
use planner::hold::Hold;
use planner::plan::{Action, DeleteReason, PatchReason, PodPatch};
use planner::refusal::{Fallout, Refusals};
use planner::workload::decide;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use serde_json::{Value, json};

#[derive(Debug, Clone)]
enum Event {
    Scale(i32),
    Template(u8),
    Partition(IntOrString),
    MaxUnavailable(IntOrString),
    MaxSurge(IntOrString),
    Pause(bool),
    Type(UpdateType),
    Grace(i32),
    Order(ContainerOrder),
    Ungated(bool),
    Recreate(bool),
    Steps(usize),
    HookTemplate(bool),
    Answer(Verdict),
    AnswerOne(usize, Verdict),
    PodHooks(usize),
    PodHookTemplate(bool),
    Retry,
    Numbers(Option<(i32, i32)>),
    LoseRun(usize),
    Crash(usize),
    Gate(usize, bool),
    Lose(u8),
    TakeOut(u8),
    Find,
    Protect(bool),
    Cordon(u8),
    Uncordon,
    LoseBudget,
    LoseFinalizer,
    NameForDeletion(usize),
    Ready(usize),
    Unready(usize),
    Fail(usize),
    Vanish(usize),
    Orphan(usize),
    Relabel(usize),
    AllReady,
    Buried,
    Pass(i64),
    /// The API server refuses something from now on, or no more than so often.
    Refuse(Option<&'static str>, Option<usize>, (How, bool), Option<u32>),
    /// The API server refuses nothing any more.
    Allow,
    /// The operator works: it may die after some actions.
    Work(Option<usize>),
}

const TYPES: &[UpdateType] =
    &[UpdateType::RollingUpdate, UpdateType::InplaceUpdate, UpdateType::InplaceUpdate, UpdateType::HotPatchUpdate, UpdateType::OnDelete];

const ORDERS: &[ContainerOrder] = &[ContainerOrder::DisOrdered, ContainerOrder::OrderedReady, ContainerOrder::OrderedUpdated];

/// Two containers, of which the first has the same image in every other template.
fn template(number: u8) -> Value {
    let mut template = world::template(number);
    let containers = template["spec"]["containers"].as_array_mut().unwrap();
    containers.insert(0, json!({ "name": "side", "image": format!("side:{}", number % 2) }));
    template
}

/// Rollouts in steps, as YAML; the first has none.
const STEPS: &[&str] = &[
    "[]",
    "[{partition: 3}, {pause: {}}, {partition: 2}, {pause: {duration: 60}}, {hook: {templateName: test}}]",
    "[{partition: 50%}, {hook: {templateName: test}, onFailure: Rollback}, {pause: {duration: 5}}]",
    "[{pause: {duration: 30}}, {partition: 0}]",
    "[{hook: {templateName: test}}, {partition: 9}, {partition: 1}]",
];

/// Hooks about pods: before a deletion, before an update in place, after it.
const POD_HOOKS: &[[bool; 3]] = &[[false; 3], [true, false, false], [false, true, false], [true, true, false], [true, true, true]];

/// Writes that can be refused; none means any.
const WORDS: &[Option<&str>] = &[
    None,
    Some("create_pod"),
    Some("delete_pod"),
    Some("mark_pod"),
    Some("unmark_pod"),
    Some("drain_pod"),
    Some("update_pod_inplace"),
    Some("hot_patch_pod"),
    Some("restore_pod"),
    Some("adopt_pod"),
    Some("protect_pod"),
    Some("create_hookrun"),
    Some("delete_hookrun"),
    Some("create_revision"),
    Some("set_finalizers"),
    Some("create_budget"),
    Some("pause"),
    Some("resume"),
    Some("reset_retry"),
];

const HOWS: &[How] = &[How::Quota, How::Policy, How::Conflict, How::Overload, How::Broken, How::Done];

const VERDICTS: &[Verdict] = &[Verdict::Successful, Verdict::Successful, Verdict::Failed, Verdict::Cancelled];

pub(crate) fn hook_template(name: &str) -> HookTemplate {
    let metric = json!({ "name": "webtest", "provider": { "web": { "url": "http://1.1.1.1", "jsonPath": "{.age}" } } });
    let template = json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": { "name": name }, "spec": { "metrics": [metric] } });
    serde_json::from_value(template).unwrap()
}

fn count() -> impl Strategy<Value = IntOrString> {
    prop_oneof![(0..6).prop_map(IntOrString::Int), (0..=100).prop_map(|percent| IntOrString::String(format!("{percent}%")))]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..14).prop_map(Event::Scale),
        3 => (0_u8..6).prop_map(Event::Template),
        2 => count().prop_map(Event::Partition),
        1 => count().prop_map(Event::MaxUnavailable),
        1 => count().prop_map(Event::MaxSurge),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => prop::sample::select(TYPES).prop_map(Event::Type),
        1 => (0..40).prop_map(Event::Grace),
        1 => prop::sample::select(ORDERS).prop_map(Event::Order),
        1 => any::<bool>().prop_map(Event::Ungated),
        1 => any::<bool>().prop_map(Event::Recreate),
        1 => (0_usize..STEPS.len()).prop_map(Event::Steps),
        1 => any::<bool>().prop_map(Event::HookTemplate),
        2 => prop::sample::select(VERDICTS).prop_map(Event::Answer),
        3 => (0_usize..20, prop::sample::select(VERDICTS)).prop_map(|(index, verdict)| Event::AnswerOne(index, verdict)),
        2 => (0_usize..POD_HOOKS.len()).prop_map(Event::PodHooks),
        1 => prop::bool::weighted(0.8).prop_map(Event::PodHookTemplate),
        1 => Just(Event::Retry),
        1 => proptest::option::of((0..4, 8..30)).prop_map(Event::Numbers),
        1 => (0_usize..20).prop_map(Event::LoseRun),
        1 => (0_usize..20).prop_map(Event::Crash),
        1 => (0_u8..3).prop_map(Event::Lose),
        1 => (0_u8..3).prop_map(Event::TakeOut),
        1 => Just(Event::Find),
        2 => prop::bool::weighted(0.7).prop_map(Event::Protect),
        1 => (0_u8..3).prop_map(Event::Cordon),
        1 => Just(Event::Uncordon),
        1 => Just(Event::LoseBudget),
        1 => Just(Event::LoseFinalizer),
        1 => (0_usize..20, any::<bool>()).prop_map(|(index, up)| Event::Gate(index, up)),
        1 => (0_usize..20).prop_map(Event::NameForDeletion),
        4 => (0_usize..20).prop_map(Event::Ready),
        1 => (0_usize..20).prop_map(Event::Unready),
        1 => (0_usize..20).prop_map(Event::Fail),
        1 => (0_usize..20).prop_map(Event::Vanish),
        1 => (0_usize..20).prop_map(Event::Orphan),
        1 => (0_usize..20).prop_map(Event::Relabel),
        3 => Just(Event::AllReady),
        2 => Just(Event::Buried),
        2 => (0_i64..30).prop_map(Event::Pass),
        12 => proptest::option::of(0_usize..6).prop_map(Event::Work),
        2 => refusal(),
        1 => Just(Event::Allow),
    ]
}

fn refusal() -> impl Strategy<Value = Event> {
    let what = (prop::sample::select(WORDS), proptest::option::weighted(0.7, 0_usize..20));
    let how = (prop::sample::select(HOWS), prop::bool::weighted(0.2));
    (what, how, proptest::option::of(1_u32..5)).prop_map(|((word, pod), how, left)| Event::Refuse(word, pod, how, left))
}

fn worlds() -> impl Strategy<Value = (World, Vec<Event>)> {
    let order = prop::sample::select(ORDERS);
    let spec = (0..12, 0..3, any::<bool>(), any::<bool>(), order).prop_map(|(replicas, min_ready, surge, stays, order)| {
        let kind = if stays { "InplaceUpdate" } else { "RollingUpdate" };
        let strategy = json!({ "type": kind, "maxSurge": i32::from(surge), "inPlaceUpdateStrategy": { "policy": order } });
        json!({ "replicas": replicas, "minReadySeconds": min_ready * 5, "template": template(0), "updateStrategy": strategy })
    });
    (spec, proptest::collection::vec(event(), 1..40)).prop_map(|(spec, events)| (World::new(&spec), events))
}

fn happen(world: &mut World, event: &Event) {
    let now = world.now;
    let chosen = |world: &World, index: usize| world.pods.keys().nth(index % world.pods.len().max(1)).cloned();
    match event {
        Event::Scale(replicas) => world.edit(|spec| spec.replicas = *replicas),
        Event::Template(number) => world.edit(|spec| spec.template = template(*number).into()),
        Event::Partition(value) => world.edit(|spec| spec.update_strategy.partition = value.clone()),
        Event::MaxUnavailable(value) => world.edit(|spec| spec.update_strategy.max_unavailable = value.clone()),
        Event::MaxSurge(value) => world.edit(|spec| spec.update_strategy.max_surge = value.clone()),
        Event::Pause(paused) => pause(world, *paused),
        Event::Ungated(yes) => world.edit(|spec| spec.disable_readiness_gate = Some(*yes)),
        Event::HookTemplate(exists) => world.hook_templates = if *exists { vec![hook_template("test")] } else { Vec::new() },
        Event::Answer(phase) => world.answer(*phase),
        Event::AnswerOne(index, phase) => world.answer_one(*index, *phase),
        Event::LoseRun(index) => {
            let name = world.hook_runs.keys().nth(index % world.hook_runs.len().max(1)).cloned();
            drop(name.and_then(|name| world.hook_runs.remove(&name)));
        }
        Event::PodHookTemplate(exists) => world.pod_hook = exists.then(|| hook_template("pod")),
        Event::NameForDeletion(index) => {
            let names = chosen(world, *index).into_iter().collect::<Vec<_>>();
            world.edit(|spec| spec.scale_strategy.get_or_insert_default().pods_to_delete.extend(names));
        }
        Event::Pass(seconds) => world.pass(*seconds),
        Event::AllReady => {
            let names: Vec<String> =
                world.pods.values().filter(|pod| pod.is_active() && world.answers(pod)).map(|pod| pod.name.clone()).collect();
            world.pods.iter_mut().filter(|(name, _)| names.contains(name)).for_each(|(_, pod)| make_ready(pod, now));
        }
        Event::Buried => world.pods.retain(|_, pod| !pod.deleting),
        Event::Vanish(index) => drop(chosen(world, *index).and_then(|name| world.pods.remove(&name))),
        Event::Ready(index)
        | Event::Unready(index)
        | Event::Fail(index)
        | Event::Orphan(index)
        | Event::Relabel(index)
        | Event::Crash(index)
        | Event::Gate(index, _) => {
            if let Some(name) = chosen(world, *index) {
                befall(world, &name, event);
            }
        }
        Event::Work(cut) => work(world, *cut),
        Event::Refuse(word, index, (how, lies), left) => {
            let pod = index.and_then(|index| chosen(world, index));
            refuse(world, Rule { word: *word, pod, how: *how, left: *left, lies: *lies });
        }
        Event::Allow => world.rules.clear(),
        Event::Lose(_)
        | Event::TakeOut(_)
        | Event::Find
        | Event::Protect(_)
        | Event::Cordon(_)
        | Event::Uncordon
        | Event::LoseBudget
        | Event::LoseFinalizer => {
            guard(world, event);
        }
        _ => edit_strategy(world, event),
    }
}

/// A person pauses or resumes. What the operator has paused is not a person's.
fn pause(world: &mut World, paused: bool) {
    world.paused_by_person = paused && (world.paused_by_person || !world.game.spec.update_strategy.paused);
    world.edit(|spec| spec.update_strategy.paused = paused);
}

/// The API server refuses something. If it refused everything nothing could be said about the rest.
fn refuse(world: &mut World, rule: Rule) {
    if rule.word.is_some() || rule.pod.is_some() {
        world.rules.push(rule);
    }
}

/// Something happens to a pod.
fn befall(world: &mut World, name: &str, event: &Event) {
    let now = world.now;
    let answers = world.pods.get(name).is_some_and(|pod| world.answers(pod));
    let Some(pod) = world.pods.get_mut(name) else { return };
    match event {
        Event::Ready(_) if pod.is_active() && answers => make_ready(pod, now),
        Event::Unready(_) => pod.ready_since = None,
        Event::Fail(_) => (pod.phase, pod.ready_since) = (Phase::Failed, None),
        Event::Gate(_, up) if pod.gate != Gate::Absent => pod.gate = if *up { Gate::Up } else { Gate::Down(now) },
        Event::Crash(_) => {
            (pod.trouble, pod.ready_since) = (Some("CrashLoopBackOff".to_owned()), None);
            pod.containers.iter_mut().for_each(|container| container.running = false);
        }
        Event::Orphan(_) => pod.controller = None,
        Event::Relabel(_) => drop(pod.labels.insert("app".to_owned(), "other".to_owned())),
        _ => {}
    }
}

fn guard(world: &mut World, event: &Event) {
    match event {
        Event::Lose(number) => world.lose(&format!("node-{number}")),
        Event::TakeOut(number) => world.take_out(&format!("node-{number}")),
        Event::Find => {
            world.lost.clear();
            world.gone.clear();
        }
        Event::Protect(yes) => world.edit(|spec| spec.pre_delete_update_strategy.get_or_insert_default().protect = Some(*yes)),
        Event::Cordon(number) => drop(world.cordoned.insert(format!("node-{number}"))),
        Event::Uncordon => world.cordoned.clear(),
        Event::LoseBudget => world.budgets.clear(),
        Event::LoseFinalizer => world.game.metadata.finalizers = None,
        _ => {}
    }
}

fn edit_strategy(world: &mut World, event: &Event) {
    match event {
        Event::Type(kind) => world.edit(|spec| {
            spec.update_strategy.kind = *kind;
            spec.update_strategy.hot_patch = Some(HotPatch { executor: Some(HotPatchExecutor::Kubelet), ..HotPatch::default() });
        }),
        Event::Grace(seconds) => {
            world.edit(|spec| spec.update_strategy.in_place_update_strategy.get_or_insert_default().grace_period_seconds = Some(*seconds));
        }
        Event::Order(order) => {
            world.edit(|spec| spec.update_strategy.in_place_update_strategy.get_or_insert_default().policy = Some(*order));
        }
        Event::Recreate(yes) => world.edit(|spec| {
            let what = if *yes { WhenNotPossible::Recreate } else { WhenNotPossible::Hold };
            spec.update_strategy.in_place_update_strategy.get_or_insert_default().when_not_possible = Some(what);
        }),
        Event::PodHooks(index) => world.edit(|spec| {
            let hook = |yes: bool| yes.then(|| HookStep { template_name: "pod".to_owned(), args: Vec::new() });
            let [before, change, after] = POD_HOOKS[*index].map(hook);
            spec.pre_delete_update_strategy.get_or_insert_default().hook = before;
            spec.pre_inplace_update_strategy = Some(PodHook { hook: change, retry: None });
            spec.post_inplace_update_strategy = Some(PodHook { hook: after, retry: None });
        }),
        Event::Numbers(range) => world.edit(|spec| spec.pod_index = range.map(|(start, end)| PodIndex { start, end })),
        Event::Retry => world.edit(|spec| {
            spec.pre_delete_update_strategy.get_or_insert_default().retry = Some(true);
            spec.pre_inplace_update_strategy.get_or_insert_default().retry = Some(true);
        }),
        Event::Steps(index) => {
            let steps = serde_saphyr::from_str(STEPS[*index]).unwrap();
            world.edit(|spec| spec.update_strategy.canary = Some(Canary { steps }));
        }
        _ => {}
    }
}

/// Lets the operator work and holds every action against the laws.
fn work(world: &mut World, cut: Option<usize>) {
    let plan = world.decide();
    let (before, leaving) = (world.clone(), world.leaving(&plan));
    let missing = |world: &World| world.replicas().saturating_sub(world.available());
    let mut fallout = Fallout::default();
    world.refusals = plan.refusals.clone();
    for action in plan.actions().take(cut.unwrap_or(usize::MAX)) {
        if !fallout.stands(action) {
            continue;
        }
        let present = world.present();
        assert!(before.is_agreed(action), "law 5: nobody agreed to {action:?}");
        if let Action::PatchPod(change) = action {
            assert_gentle(world, change);
        }
        if let Action::Pause { paused: false, .. } = action {
            assert!(!world.paused_by_person, "a person's pause was ended: {action:?}");
        }
        if let Action::CreatePod(new) = action {
            assert_numbered(world, new);
            assert_guarded(world, new);
        }
        let updated = world.on_revision(&plan.status.update_revision, &leaving);
        world.attempt(action, &mut fallout);
        let (limits, replicas) = (world.limits(), world.replicas());
        if world.present() > present {
            assert!(ours(world) <= replicas + limits.max_surge, "law 3: too many pods after {action:?}");
        }
        let allowed = limits.max_unavailable.saturating_sub(limits.max_surge).max(missing(&before));
        assert!(missing(world) <= allowed, "law 3: {} unavailable, {allowed} allowed, after {action:?}", missing(world));
        let now_updated = world.on_revision(&plan.status.update_revision, &leaving);
        if now_updated > updated {
            let rolling = stable(&before, &plan.status) != plan.status.update_revision;
            let kept = world.partition(&plan.status);
            // Pods that are too many and may not be deleted are no reason to update fewer.
            let stay = ["delete_pod", "mark_pod", "create_hookrun"].iter().any(|word| world.refused.contains_key(*word));
            let undeleted = if stay { filling(world).saturating_sub(replicas) } else { 0 };
            assert!(!rolling || now_updated <= replicas - kept + undeleted, "law 4: {now_updated} pods updated after {action:?}");
            assert!(!rolling || !before.game.spec.update_strategy.paused, "a paused rollout went on: {action:?}");
        }
        if let Action::DeletePod { why: DeleteReason::Update, .. } = action {
            let rolls_back = plan.holds.iter().any(|hold| matches!(hold, Hold::HookFailed { rolls_back: true, .. }));
            assert!(rolls_back || !before.game.spec.update_strategy.paused, "a paused rollout went on");
        }
    }
    match cut {
        None => world.record_if(&before.game.metadata.resource_version, &plan),
        // What it remembered is lost with it.
        Some(_) => world.refusals = Refusals::default(),
    }
}

/// Lets the operator work on an object that is being deleted.
fn leave(world: &mut World, cut: Option<usize>) {
    let plan = world.decide();
    let (mut fallout, version) = (Fallout::default(), world.game.metadata.resource_version.clone());
    world.refusals = plan.refusals.clone();
    for action in plan.actions().take(cut.unwrap_or(usize::MAX)) {
        if !fallout.stands(action) {
            continue;
        }
        assert!(world.is_agreed(action), "law 5: nobody agreed to {action:?}");
        assert!(!matches!(action, Action::CreatePod(_) | Action::AdoptPod { .. }), "nothing is made any more: {action:?}");
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

/// No container restarts while its pod serves, before its grace is over, out of turn, or for nothing.
fn assert_gentle(world: &World, change: &PodPatch) {
    let Some(pod) = world.pods.get(&change.name).filter(|pod| pod.uid == change.uid) else { return };
    let conditions = change.body["status"]["conditions"].as_array().into_iter().flatten();
    conditions.for_each(|one| assert_eq!(one["type"], "InPlaceUpdateReady", "readiness itself is the kubelet's to tell"));
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
    assert!(world.now.duration_since(since).as_secs() >= grace, "law 5: a pod is restarted before its grace is over: {change:?}");
}

/// Where containers have an order, one is changed at a time, and those before it have come back.
fn assert_in_turn(world: &World, pod: &PodFacts, images: &[Value]) {
    let settings = world.game.spec.update_strategy.in_place_update_strategy.clone().unwrap_or_default();
    if matches!(settings.policy, None | Some(ContainerOrder::DisOrdered)) || pod.annotations.contains_key(HOTPATCH_ANNOTATION) {
        return;
    }
    assert_eq!(images.len(), 1, "containers change together: {images:?}");
    let before = pod.containers.iter().take_while(|container| images[0]["name"] != container.name.as_str());
    for container in before.filter(|container| !container.actual_image.is_empty()) {
        assert_eq!(container.actual_image, container.image, "the one before has not come back: {pod:?}");
    }
}

/// Where pods get numbers every new pod has one, and no other pod has it.
fn assert_numbered(world: &World, new: &planner::plan::NewPod) {
    let Some(range) = &world.game.spec.pod_index else { return };
    let Some(number) = new.index else { panic!("{} has no number", new.name) };
    assert!((range.start..range.end).contains(&number), "{number} is not in {range:?}");
    let key = "tkex.bkbcs.tencent.com/gamedeployment-index-id";
    let others = world.pods.values().filter(|pod| pod.name != new.name && pod.controller.is_some() && pod.labels["app"] == "game");
    assert!(others.filter_map(|pod| pod.annotations.get(key)).all(|taken| *taken != number.to_string()), "{number} is taken");
}

/// A pod that is protected is so from its first moment, and what guards it is there before it.
fn assert_guarded(world: &World, new: &planner::plan::NewPod) {
    assert_eq!(new.protected, world.protects(), "{} is not what its hook makes of it", new.name);
    let holds_on = world.game.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION_FINALIZER);
    let is_refused = world.refused.contains_key("create_budget") || world.refused.contains_key("delete_budget");
    assert!(!new.protected || holds_on && (is_refused || !world.budgets.is_empty()), "law 5: {} is made before it is guarded", new.name);
}

/// The stable revision that a decision started from.
fn stable(before: &World, after: &api::tkex::GameDeploymentStatus) -> String {
    let remembered = before.game.status.as_ref().map(|status| status.current_revision.clone());
    remembered.filter(|name| before.revisions.contains_key(name)).unwrap_or_else(|| after.current_revision.clone())
}

/// Pods that count for the owner.
fn ours(world: &World) -> usize {
    world.ours().filter(|pod| pod.controller.is_some() && world.fills(pod)).count()
}

/// Pods that count for the owner, or will once it has adopted them.
fn filling(world: &World) -> usize {
    world.ours().filter(|pod| world.fills(pod)).count()
}

/// What the spec asks for, once nothing moves any more.
fn assert_satisfied(world: &World) {
    let spec = &world.game.spec;
    let matching: Vec<_> = world.ours().collect();
    assert_eq!(matching.len(), world.replicas(), "law 2: the number of pods");
    assert!(matching.iter().all(|pod| pod.controller.is_some() && pod.is_ready()), "law 2: pods that do not serve");
    let guards = [
        matching.iter().all(|pod| pod.labels.contains_key(PROTECTED_LABEL) == world.protects()),
        world.budgets.is_empty() != world.protects(),
        world.game.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) != world.protects(),
    ];
    assert_eq!(guards, [true; 3], "law 2: protection of pods, of evictions, of the object");
    let status = world.game.status.as_ref().unwrap();
    let held = world.decide().holds.into_iter().any(|hold| matches!(hold, Hold::NotInPlace { .. } | Hold::HookNotPossible { .. }));
    if spec.update_strategy.paused || spec.update_strategy.kind == UpdateType::OnDelete || held {
        return;
    }
    let updated = matching.iter().filter(|pod| pod.revision() == Some(&status.update_revision)).count();
    let kept = matching.iter().filter(|pod| pod.revision() == Some(&status.current_revision)).count();
    assert!(updated >= world.replicas() - world.partition(status), "law 2: {updated} pods updated");
    if status.current_revision != status.update_revision {
        assert_eq!(updated + kept, world.replicas(), "law 2: pods on a third revision");
    }
}

/// Writes are refused, for ever: who is not concerned is as it should be, and nobody is kept out of service for what cannot come.
fn assert_only_refused_suffer(world: &World, start: jiff::Timestamp) {
    let is_refused = |pod: &PodFacts, words: &[&str]| {
        let is_meant =
            |rule: &Rule| rule.pod.as_ref().is_none_or(|name| *name == pod.name) && rule.word.is_none_or(|word| words.contains(&word));
        world.rules.iter().any(is_meant)
    };
    for pod in world.ours().filter(|pod| pod.is_active()) {
        let gate_refused = is_refused(pod, &["restore_pod", "adopt_pod"]);
        assert!(
            gate_refused || pod.is_ready(),
            "law 9: {} is out of service: {pod:?} {:?} {:?}",
            pod.name,
            world.rules,
            world.decide().steps
        );
    }
    for (word, times) in &world.refused {
        let later = times.iter().filter(|time| time.duration_since(start).as_secs() >= 60).count();
        // Two groups at most per word: pods of two revisions, or two rules.
        let minutes = usize::try_from(world.now.duration_since(start).as_secs() / 60).unwrap();
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
        again <= 2 * 9 * u32::try_from(world.rules.len()).unwrap(),
        "law 9: pods are drained in vain {again} times: {:?}",
        world.drained
    );
    // A pod that may not return to its services is unavailable, whatever that costs the others.
    let available = world.ours().filter(|pod| world.is_available(pod)).count();
    let unavailable = world.replicas().saturating_sub(available);
    if world.rules.iter().any(of_all) || held || unavailable > 0 || world.game.spec.update_strategy.kind == UpdateType::OnDelete {
        return;
    }
    let status = world.game.status.as_ref().unwrap();
    let concerned = |pod: &PodFacts| world.rules.iter().any(|rule| rule.pod.as_ref() == Some(&pod.name));
    let others = world.ours().filter(|pod| pod.is_active() && !concerned(pod));
    let outdated = others.filter(|pod| pod.revision() != Some(&status.update_revision)).count();
    let kept = world.partition(status);
    assert!(
        outdated <= kept,
        "law 9: {outdated} pods that nothing is refused of are outdated, {kept} kept: {:?} {:?}",
        world.rules,
        world.decide().holds
    );
}

fn config() -> Config {
    let cases = std::env::var("PLANNER_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000);
    Config { cases, rng_seed: RngSeed::Fixed(20_261_115), failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_world_keeps_the_laws_and_comes_to_rest((mut world, events) in worlds()) {
        for event in &events {
            happen(&mut world, event);
        }
        prop_assert!(world.settle().is_some(), "law 2: no rest; {:?}", world.decide().steps);
        assert_satisfied(&world);
        let plan = world.decide();
        prop_assert!(plan.steps.is_empty() && plan.wake.is_none(), "law 8: a settled world has work: {:?}", plan.steps);
    }

    #[test]
    fn a_forged_approval_lets_no_pod_go((mut world, events) in worlds(), forged in proptest::collection::vec((0_usize..20, prop::sample::select(FORGERIES)), 1..20)) {
        world.pod_hook = Some(hook_template("pod"));
        happen(&mut world, &Event::PodHooks(1));
        for (event, (index, forgery)) in events.iter().zip(forged.iter().cycle()) {
            happen(&mut world, event);
            let pod = world.pods.keys().nth(index % world.pods.len().max(1)).cloned();
            pod.into_iter().for_each(|pod| world.forge(&pod, *forgery));
            // Holds every deletion against what was really approved.
            work(&mut world, None);
        }
    }

    #[test]
    fn where_every_hook_says_no_nobody_is_asked_for_ever((mut world, events) in worlds()) {
        for event in &events {
            happen(&mut world, event);
        }
        // The clock stands still: whoever has said no is left alone.
        let mut rounds = 0;
        loop {
            world.answer(Verdict::Failed);
            let plan = world.decide();
            if !plan.actions().any(|action| matches!(action, Action::CreateHookRun(_))) {
                break;
            }
            rounds += 1;
            prop_assert!(rounds < 100, "law 8: {:?}", plan.steps);
            work(&mut world, None);
        }
    }

    #[test]
    fn a_refused_write_suffers_alone((mut world, events) in worlds(), refused in proptest::collection::vec(refusal(), 1..3)) {
        for event in &events {
            happen(&mut world, event);
        }
        prop_assert!(world.settle().is_some(), "law 2");
        let (template, replicas) = (world.game.spec.template.value(), world.game.spec.replicas);
        for event in &refused {
            let Event::Refuse(word, pod, how, _) = event else { unreachable!() };
            happen(&mut world, &Event::Refuse(*word, *pod, *how, None));
        }
        world.refused.clear();
        world.drained.clear();
        world.edit(|spec| {
            spec.template = if template == self::template(0) { self::template(1) } else { self::template(0) }.into();
            spec.replicas = (replicas - 1).max(0);
            spec.update_strategy.paused = false;
        });
        world.paused_by_person = false;
        let start = world.now;
        // Until nothing is done any more but what is refused.
        let (mut done, mut quiet) = (0, 0);
        for _ in 0..400 {
            work(&mut world, None);
            world.calm();
            world.pass(3);
            quiet = if world.done == done { quiet + 1 } else { 0 };
            done = world.done;
            if quiet == 25 {
                break;
            }
        }
        prop_assert_eq!(quiet, 25, "law 9: what is not refused does not come to an end: {:?} {:?}", world.rules, world.decide().steps);
        assert_only_refused_suffer(&world, start);
        prop_assert!(world.settle().is_some(), "law 9: no rest once nothing is refused; {:?}", world.decide().steps);
        assert_satisfied(&world);
    }

    #[test]
    fn a_workload_that_is_deleted_waits_for_its_protected_pods((mut world, events) in worlds(), later in proptest::collection::vec(event(), 1..30)) {
        for event in &events {
            happen(&mut world, event);
        }
        happen(&mut world, &Event::PodHooks(1));
        happen(&mut world, &Event::Protect(true));
        prop_assert!(world.settle().is_some());
        world.delete();
        for event in &later {
            match event {
                Event::Work(cut) => leave(&mut world, *cut),
                // Who takes the finalizer away, or lets pods belong to nobody, does not want them to be waited for.
                Event::LoseFinalizer | Event::Orphan(_) => {}
                event => happen(&mut world, event),
            }
        }
        for _ in 0..100 {
            if world.game.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
                break;
            }
            world.rules.clear();
            world.pod_hook = Some(hook_template("pod"));
            world.answer(Verdict::Successful);
            leave(&mut world, None);
            happen(&mut world, &Event::Buried);
            world.pass(600);
        }
        prop_assert_eq!(world.game.metadata.finalizers.clone().unwrap_or_default(), Vec::<String>::new(), "law 2: {:?}", world.decide().steps);
    }

    #[test]
    fn the_order_of_what_is_seen_does_not_matter((mut world, events) in worlds(), turn in 0_usize..7) {
        for event in &events {
            happen(&mut world, event);
        }
        let mut shuffled = world.observed();
        if !shuffled.seen.pods.is_empty() {
            let turn = turn % shuffled.seen.pods.len();
            shuffled.seen.pods.rotate_left(turn);
        }
        shuffled.seen.pods.reverse();
        shuffled.seen.revisions.reverse();
        let (straight, other) = (world.decide(), decide(&shuffled, world.now));
        let sorted = |plan: &planner::plan::Plan<_>| {
            let mut steps: Vec<Vec<String>> = plan.steps.iter().map(|step| step.iter().map(|action| format!("{action:?}")).collect()).collect();
            steps.iter_mut().for_each(|step| step.sort());
            steps
        };
        prop_assert_eq!(sorted(&straight), sorted(&other), "law 1");
        prop_assert_eq!(straight.status, other.status, "law 1");
        prop_assert_eq!(straight.holds, other.holds, "law 1");
    }

    #[test]
    fn a_plan_carried_out_twice_does_nothing_twice((mut world, events) in worlds(), cut in 0_usize..12) {
        for event in &events {
            happen(&mut world, event);
        }
        let plan = world.decide();
        plan.actions().take(cut).for_each(|action| world.apply(action));
        let once = world.clone();
        // The whole plan again, decided on a view from before its first write.
        plan.actions().for_each(|action| world.apply(action));
        let missing = |world: &World| world.replicas().saturating_sub(world.available());
        let allowed = world.limits().max_unavailable.saturating_sub(world.limits().max_surge).max(missing(&once));
        prop_assert!(missing(&world) <= allowed, "law 7: an unsafe delete on a stale view");
        prop_assert!(filling(&world) <= (world.replicas() + world.limits().max_surge).max(filling(&once)), "law 6: a duplicate pod");
    }

    #[test]
    fn a_view_from_before_our_own_writes_does_no_harm((mut world, events) in worlds(), behind in 1_usize..6) {
        for event in &events {
            happen(&mut world, event);
        }
        // Which revision is stable is remembered in status, which every pass writes, unless it has changed the object itself.
        for _ in 0..2 {
            let plan = world.decide();
            let is_of_object = |action: &&Action| matches!(action, Action::ResetRetry { .. } | Action::SetFinalizers { .. } | Action::Pause { .. });
            let of_object = plan.actions().filter(is_of_object);
            of_object.for_each(|action| world.apply(action));
        }
        world.record(&world.decide());
        let plan = world.decide();
        let total = plan.actions().count();
        let mut late = world.clone();
        for (index, action) in plan.actions().enumerate() {
            world.apply(action);
            if index + behind < total {
                late.apply(action);
            }
        }
        let missing = |world: &World| world.replicas().saturating_sub(world.available());
        let (present, lacking) = (filling(&world), missing(&world));
        for action in late.decide().actions() {
            prop_assert!(late.is_agreed(action), "law 5: nobody agreed to {action:?}");
            world.apply(action);
        }
        let limits = world.limits();
        prop_assert!(filling(&world) <= present.max(world.replicas() + limits.max_surge), "law 7: too many pods on a stale view");
        let allowed = limits.max_unavailable.saturating_sub(limits.max_surge);
        prop_assert!(missing(&world) <= lacking.max(allowed), "law 7: an unsafe delete on a stale view");
    }

    #[test]
    fn wake_is_in_the_future((mut world, events) in worlds()) {
        for event in &events {
            happen(&mut world, event);
        }
        let plan = world.decide();
        prop_assert!(plan.wake.is_none_or(|wake| wake > world.now), "law 8: {:?} is not after {}", plan.wake, world.now);
    }
}

/// The node has not seen the image of the hot patch, and the next template brings back what runs all the time.
#[test]
fn pods_that_were_hot_patched_can_be_updated_in_place() {
    let mut world = World::new(&json!({ "replicas": 4, "template": template(0), "updateStrategy": { "type": "HotPatchUpdate" } }));
    happen(&mut world, &Event::Type(UpdateType::HotPatchUpdate));
    for event in [Event::Work(None), Event::AllReady, Event::Template(1), Event::Work(None)] {
        happen(&mut world, &event);
    }
    happen(&mut world, &Event::Type(UpdateType::InplaceUpdate));
    happen(&mut world, &Event::Template(2));
    assert!(world.settle().is_some(), "law 2: no rest");
    assert_satisfied(&world);
}

/// Between our resume and the status that tells of it a person pauses.
#[test]
fn a_person_who_pauses_right_after_the_operator_resumed_stays_paused() {
    let spec = json!({ "replicas": 1, "template": template(0), "updateStrategy": { "type": "RollingUpdate" } });
    // A new template, other steps, and the end of a timed pause.
    for (steps, change) in [(1, Event::Template(2)), (3, Event::Steps(0)), (0, Event::Pass(100))] {
        for pauses_after in 0..4 {
            let mut world = World::new(&spec);
            for event in [Event::Work(None), Event::AllReady, Event::Steps(steps), Event::Template(1)] {
                happen(&mut world, &event);
            }
            for _ in 0..4 {
                [Event::Work(None), Event::AllReady, Event::Buried].iter().for_each(|event| happen(&mut world, event));
            }
            happen(&mut world, &change);
            (0..pauses_after).for_each(|_| happen(&mut world, &Event::Work(None)));
            happen(&mut world, &Event::Pause(true));
            (0..4).for_each(|_| happen(&mut world, &Event::Work(None)));
        }
    }
}

/// Half of a change is made when the template changes, and again before the rest is: what has not changed yet is not forgotten.
#[test]
fn a_pod_that_has_half_of_a_change_gets_the_rest_when_the_template_comes_back() {
    for templates in [vec![1, 2, 1], vec![1, 2, 3, 2], vec![1, 3, 2, 3, 1]] {
        let strategy = json!({ "type": "InplaceUpdate", "inPlaceUpdateStrategy": { "policy": "OrderedReady" } });
        let mut world = World::new(&json!({ "replicas": 1, "template": template(0), "updateStrategy": strategy }));
        for event in [Event::Work(None), Event::AllReady, Event::Work(None)] {
            happen(&mut world, &event);
        }
        for number in templates {
            happen(&mut world, &Event::Template(number));
            (0..2).for_each(|_| happen(&mut world, &Event::Work(None)));
        }
        let wanted = world.game.spec.template.value();
        assert!(world.settle().is_some(), "law 2: no rest");
        assert_satisfied(&world);
        for (container, wanted) in
            world.pods.values().flat_map(|pod| pod.containers.iter().zip(wanted["spec"]["containers"].as_array().unwrap()))
        {
            assert_eq!(wanted["image"], container.image.as_str(), "{}", container.name);
        }
    }
}

/// A change in place was announced when the strategy became a hot patch, and the template comes back to it.
#[test]
fn a_hot_patch_ends_what_was_announced_in_place() {
    let spec = json!({ "replicas": 1, "template": template(0), "updateStrategy": { "type": "InplaceUpdate" } });
    for order in ORDERS {
        let mut world = World::new(&spec);
        for event in [
            Event::Order(*order),
            Event::Work(None),
            Event::Template(1),
            Event::Work(None),
            Event::Type(UpdateType::HotPatchUpdate),
            Event::AllReady,
            Event::Work(None),
            Event::Template(0),
            Event::Scale(2),
        ] {
            happen(&mut world, &event);
        }
        assert!(world.settle().is_some(), "law 2: no rest");
        happen(&mut world, &Event::Template(1));
        assert!(world.settle().is_some(), "law 2: no rest");
        assert_satisfied(&world);
    }
}

/// Half of a change is made when the pod is chosen to go, and then stays after all; its approval to go cannot be taken back.
#[test]
fn a_pod_whose_approval_cannot_be_taken_back_serves_with_half_of_its_change() {
    let strategy = json!({ "type": "InplaceUpdate", "inPlaceUpdateStrategy": { "policy": "OrderedReady" } });
    let mut world = World::new(&json!({ "replicas": 4, "template": template(0), "updateStrategy": strategy }));
    for event in [
        Event::Work(None),
        Event::Scale(5),
        Event::PodHooks(4),
        Event::AllReady,
        Event::Work(None),
        Event::Scale(4),
        Event::Template(1),
        Event::Work(None),
        Event::Buried,
        Event::Partition(IntOrString::Int(2)),
        Event::Fail(14),
    ] {
        happen(&mut world, &event);
    }
    assert!(world.settle().is_some(), "law 2: no rest");
    for event in [Event::Refuse(Some("delete_hookrun"), None, (How::Quota, false), None), Event::Template(0), Event::Scale(3)] {
        happen(&mut world, &event);
    }
    for _ in 0..40 {
        work(&mut world, None);
        world.calm();
        world.pass(3);
    }
    let out: Vec<&str> = world.ours().filter(|pod| pod.is_active() && !pod.is_ready()).map(|pod| pod.name.as_str()).collect();
    assert!(out.is_empty(), "law 9: {out:?}");
    assert!(world.settle().is_some(), "law 9: no rest once nothing is refused");
    assert_satisfied(&world);
}

/// A pod has two approvals that cannot be taken back: each of them is tried again, and when nothing is refused any more both go.
#[test]
fn two_approvals_of_one_pod_do_not_wait_for_each_other() {
    let strategy = json!({ "type": "InplaceUpdate", "inPlaceUpdateStrategy": { "policy": "OrderedReady" } });
    let mut world = World::new(&json!({ "replicas": 2, "template": template(0), "updateStrategy": strategy }));
    happen(&mut world, &Event::PodHooks(3));
    assert!(world.settle().is_some(), "law 2: no rest");
    for event in [
        Event::Refuse(Some("delete_pod"), None, (How::Quota, false), None),
        Event::Refuse(Some("delete_hookrun"), None, (How::Quota, false), None),
        Event::Template(1),
        Event::Scale(1),
    ] {
        happen(&mut world, &event);
    }
    for _ in 0..40 {
        work(&mut world, None);
        world.calm();
        world.pass(3);
    }
    assert!(world.settle().is_some(), "law 9: no rest once nothing is refused");
    assert_satisfied(&world);
}

/// The pod that should go may not be deleted, and the one that the partition keeps goes instead: the first one takes its place in the partition.
#[test]
fn a_pod_that_may_not_be_deleted_takes_the_place_in_the_partition_of_the_one_that_goes_instead() {
    let mut world = World::new(&json!({ "replicas": 2, "template": template(0) }));
    for event in [
        Event::Template(3),
        Event::Work(None),
        Event::Vanish(2),
        Event::Type(UpdateType::InplaceUpdate),
        Event::Template(0),
        Event::Partition(IntOrString::Int(1)),
    ] {
        happen(&mut world, &event);
    }
    assert!(world.settle().is_some(), "law 2: no rest");
    for event in [Event::Refuse(Some("delete_pod"), Some(0), (How::Quota, false), None), Event::Template(1), Event::Scale(1)] {
        happen(&mut world, &event);
    }
    for _ in 0..10 {
        work(&mut world, None);
        world.calm();
        world.pass(3);
    }
    let status = world.game.status.clone().unwrap();
    let revisions: Vec<Option<&str>> = world.pods.values().map(PodFacts::revision).collect();
    assert_eq!(revisions, [Some(&*status.current_revision)], "{status:?}");
    assert_ne!(status.current_revision, status.update_revision, "the partition keeps it");
}
