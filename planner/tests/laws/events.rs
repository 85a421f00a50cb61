//! What happens in random worlds: users edit, pods start, fail and vanish, nodes fall silent, the API server refuses writes, the operator
//! works and dies half-way.

use api::tkex::{
    Canary, ContainerOrder, HookStep, HotPatch, HotPatchExecutor, Phase as Verdict, PodHook, PodIndex, UpdateType, WhenNotPossible,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use planner::facts::pod::{Gate, Phase, PodFacts};
use planner::workload::{Needed, Unlisted};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::checks::work;
use crate::world::{self, How, Rule, Subject, World, hook_template, make_ready};

#[derive(Debug, Clone)]
pub(crate) enum Event {
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
    Removed,
    Pass(i64),
    /// The API server refuses some writes from now on, without end or so many times.
    Refuse(Option<&'static str>, Option<usize>, (How, bool), Option<u32>),
    /// The API server refuses nothing any more.
    Allow,
    /// A kind that decisions need is not listed from now on, for a reason that lasts or not.
    Unlist(Needed, bool),
    /// Every kind is listed again.
    List,
    /// The operator works: it may die after some actions.
    Work(Option<usize>),
}

const TYPES: &[UpdateType] =
    &[UpdateType::RollingUpdate, UpdateType::InplaceUpdate, UpdateType::InplaceUpdate, UpdateType::HotPatchUpdate, UpdateType::OnDelete];

pub(crate) const ORDERS: &[ContainerOrder] = &[ContainerOrder::DisOrdered, ContainerOrder::OrderedReady, ContainerOrder::OrderedUpdated];

/// Two containers, of which the first has the same image in every other template.
pub(crate) fn template(number: u8) -> Value {
    let mut template = world::template(number);
    let containers = template["spec"]["containers"].as_array_mut().unwrap();
    containers.insert(0, json!({ "name": "side", "image": format!("side:{}", number % 2) }));
    template
}

/// Canary steps, as YAML; the first has none.
const STEPS: &[&str] = &[
    "[]",
    "[{partition: 3}, {pause: {}}, {partition: 2}, {pause: {duration: 60}}, {hook: {templateName: test}}]",
    "[{partition: 50%}, {hook: {templateName: test}, onFailure: Rollback}, {pause: {duration: 5}}]",
    "[{pause: {duration: 30}}, {partition: 0}]",
    "[{hook: {templateName: test}}, {partition: 9}, {partition: 1}]",
];

/// Hooks about pods: before a deletion, before an in-place update, after it.
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

/// Kinds that decisions need.
const NEEDED: &[Needed] =
    &[Needed::Pod, Needed::ControllerRevision, Needed::Node, Needed::HookRun, Needed::HookTemplate, Needed::PodDisruptionBudget];

const HOWS: &[How] = &[How::Quota, How::Policy, How::Conflict, How::Overload, How::Broken, How::Done];

const VERDICTS: &[Verdict] = &[Verdict::Successful, Verdict::Successful, Verdict::Failed, Verdict::Cancelled];

fn count() -> impl Strategy<Value = IntOrString> {
    prop_oneof![(0..6).prop_map(IntOrString::Int), (0..=100).prop_map(|percent| IntOrString::String(format!("{percent}%")))]
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
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
        2 => Just(Event::Removed),
        2 => (0_i64..30).prop_map(Event::Pass),
        12 => proptest::option::of(0_usize..6).prop_map(Event::Work),
        2 => refusal(),
        1 => Just(Event::Allow),
        1 => (prop::sample::select(NEEDED), any::<bool>()).prop_map(|(kind, lasts)| Event::Unlist(kind, lasts)),
        2 => Just(Event::List),
    ]
}

pub(crate) fn refusal() -> impl Strategy<Value = Event> {
    let what = (prop::sample::select(WORDS), proptest::option::weighted(0.7, 0_usize..20));
    let how = (prop::sample::select(HOWS), prop::bool::weighted(0.2));
    (what, how, proptest::option::of(1_u32..5)).prop_map(|((word, pod), how, left)| Event::Refuse(word, pod, how, left))
}

pub(crate) fn worlds<S: Subject>() -> impl Strategy<Value = (World<S>, Vec<Event>)> {
    let order = prop::sample::select(ORDERS);
    let spec = (0..12, 0..3, any::<bool>(), any::<bool>(), order).prop_map(|(replicas, min_ready, surge, stays, order)| {
        let kind = if stays { "InplaceUpdate" } else { "RollingUpdate" };
        let strategy = json!({ "type": kind, "maxSurge": i32::from(surge), "inPlaceUpdateStrategy": { "policy": order } });
        json!({ "replicas": replicas, "minReadySeconds": min_ready * 5, "template": template(0), "updateStrategy": strategy })
    });
    (spec, proptest::collection::vec(event(), 1..40)).prop_map(|(spec, events)| (World::new(&spec), events))
}

pub(crate) fn happen<S: Subject>(world: &mut World<S>, event: &Event) {
    let chosen = |world: &World<S>, index: usize| world.cluster.pods.keys().nth(index % world.cluster.pods.len().max(1)).cloned();
    match event {
        Event::Scale(replicas) => world.edit(|spec| *spec.replicas = *replicas),
        Event::Template(number) => world.edit(|spec| *spec.template = template(*number).into()),
        Event::Partition(value) => world.edit(|spec| spec.strategy.partition = value.clone()),
        Event::MaxUnavailable(value) => world.edit(|spec| spec.strategy.max_unavailable = value.clone()),
        Event::MaxSurge(value) => world.edit(|spec| spec.strategy.max_surge = value.clone()),
        Event::Pause(paused) => pause(world, *paused),
        Event::Ungated(yes) => world.edit(|spec| spec.ungated.into_iter().for_each(|ungated| *ungated = Some(*yes))),
        Event::HookTemplate(_) | Event::PodHookTemplate(_) | Event::Answer(_) | Event::AnswerOne(..) | Event::LoseRun(_) => {
            change_hooks(world, event);
        }
        Event::NameForDeletion(index) => {
            let name = chosen(world, *index);
            world.edit(|spec| spec.pods_to_delete.into_iter().for_each(|named| named.extend(name.clone())));
        }
        Event::Pass(seconds) => world.cluster.pass(*seconds),
        Event::AllReady => all_ready(world),
        Event::Removed => world.cluster.pods.retain(|_, pod| !pod.deleting),
        Event::Vanish(index) => drop(chosen(world, *index).and_then(|name| world.cluster.pods.remove(&name))),
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
        Event::Allow => world.cluster.rules.clear(),
        Event::Unlist(kind, lasts) => world.cluster.unlisted.push(Unlisted { kind: *kind, why: lasts.then(|| "forbidden".to_owned()) }),
        Event::List => world.cluster.unlisted.clear(),
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

/// Every pod whose node answers comes to serve.
fn all_ready<S: Subject>(world: &mut World<S>) {
    let is_served = |pod: &&PodFacts| pod.is_active() && world.cluster.answers(pod);
    let names: Vec<String> = world.cluster.pods.values().filter(is_served).map(|pod| pod.name.clone()).collect();
    let now = world.cluster.now;
    world.cluster.pods.iter_mut().filter(|(name, _)| names.contains(name)).for_each(|(_, pod)| make_ready(pod, now));
}

/// Something happens to hooks and what they are asked.
fn change_hooks<S: Subject>(world: &mut World<S>, event: &Event) {
    match event {
        Event::HookTemplate(exists) => world.cluster.hook_templates = if *exists { vec![hook_template("test")] } else { Vec::new() },
        Event::Answer(phase) => world.cluster.answer(*phase),
        Event::AnswerOne(index, phase) => world.cluster.answer_one(*index, *phase),
        Event::LoseRun(index) => {
            let name = world.cluster.hook_runs.keys().nth(index % world.cluster.hook_runs.len().max(1)).cloned();
            drop(name.and_then(|name| world.cluster.hook_runs.remove(&name)));
        }
        Event::PodHookTemplate(exists) => world.cluster.pod_hook = exists.then(|| hook_template("pod")),
        _ => {}
    }
}

/// A user pauses or resumes. What the operator has paused is not a user's pause.
fn pause<S: Subject>(world: &mut World<S>, paused: bool) {
    world.paused_by_user = paused && (world.paused_by_user || !world.paused());
    world.edit(|spec| spec.strategy.paused = paused);
}

/// The API server refuses some writes. If it refused all of them, nothing could be said about the rest.
fn refuse<S: Subject>(world: &mut World<S>, rule: Rule) {
    if rule.word.is_some() || rule.pod.is_some() {
        world.cluster.rules.push(rule);
    }
}

/// Something happens to a pod.
fn befall<S: Subject>(world: &mut World<S>, name: &str, event: &Event) {
    let now = world.cluster.now;
    let answers = world.cluster.pods.get(name).is_some_and(|pod| world.cluster.answers(pod));
    let Some(pod) = world.cluster.pods.get_mut(name) else { return };
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

fn guard<S: Subject>(world: &mut World<S>, event: &Event) {
    match event {
        Event::Lose(number) => world.cluster.lose(&format!("node-{number}")),
        Event::TakeOut(number) => world.cluster.take_out(&format!("node-{number}")),
        Event::Find => world.cluster.find_nodes(),
        Event::Protect(yes) => world.edit(|spec| spec.hooks.into_iter().for_each(|hooks| hooks.pre_delete.protect = Some(*yes))),
        Event::Cordon(number) => drop(world.cluster.cordoned.insert(format!("node-{number}"))),
        Event::Uncordon => world.cluster.cordoned.clear(),
        Event::LoseBudget => world.cluster.budgets.clear(),
        Event::LoseFinalizer => world.object.metadata().finalizers = None,
        _ => {}
    }
}

fn edit_strategy<S: Subject>(world: &mut World<S>, event: &Event) {
    match event {
        Event::Type(kind) => world.edit(|spec| {
            spec.strategy.kind = *kind;
            spec.strategy.hot_patch = Some(HotPatch { executor: Some(HotPatchExecutor::Kubelet), ..HotPatch::default() });
        }),
        Event::Grace(seconds) => {
            world.edit(|spec| spec.strategy.in_place_update_strategy.get_or_insert_default().grace_period_seconds = Some(*seconds));
        }
        Event::Order(order) => {
            world.edit(|spec| spec.strategy.in_place_update_strategy.get_or_insert_default().policy = Some(*order));
        }
        Event::Recreate(yes) => world.edit(|spec| {
            let what = if *yes { WhenNotPossible::Recreate } else { WhenNotPossible::Hold };
            spec.strategy.in_place_update_strategy.get_or_insert_default().when_not_possible = Some(what);
        }),
        Event::PodHooks(index) => world.edit(|spec| {
            let Some(hooks) = spec.hooks else { return };
            let hook = |yes: bool| yes.then(|| HookStep { template_name: "pod".to_owned(), args: Vec::new() });
            let [before, change, after] = POD_HOOKS[*index].map(hook);
            hooks.pre_delete.hook = before;
            *hooks.pre_inplace = PodHook { hook: change, retry: None };
            *hooks.post_inplace = PodHook { hook: after, retry: None };
        }),
        Event::Numbers(range) => {
            world.edit(|spec| spec.index.into_iter().for_each(|index| *index = range.map(|(start, end)| PodIndex { start, end })));
        }
        Event::Retry => world.edit(|spec| {
            let Some(hooks) = spec.hooks else { return };
            (hooks.pre_delete.retry, hooks.pre_inplace.retry) = (Some(true), Some(true));
        }),
        Event::Steps(index) => {
            let steps = serde_saphyr::from_str(STEPS[*index]).unwrap();
            world.edit(|spec| spec.strategy.canary = Some(Canary { steps }));
        }
        _ => {}
    }
}
