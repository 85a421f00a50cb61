//! Forged approvals, and questions that change.

use api::names::ASKED_ANNOTATION;
use api::tkex::Phase;
use planner::plan::{Action, PatchReason, PodPatch};
use planner::workload::approval::fingerprint;
use serde_json::{Value, json};

use crate::world::{FORGERIES, GameWorld, How, Rule, hook_template};

/// Two pods, of which one is to be deleted and waits for its hook; its name.
fn waiting() -> (GameWorld, String) {
    let mut world = GameWorld::new(&json!({ "replicas": 2, "preDeleteUpdateStrategy": { "hook": { "templateName": "pod" } } }));
    world.cluster.pod_hook = Some(hook_template("pod"));
    assert!(world.settle().is_some());
    world.edit(|spec| *spec.replicas = 1);
    work(&mut world);
    let name = world.cluster.pods.values().find(|pod| planner::workload::gate::is_marked(pod)).unwrap().name.clone();
    assert_eq!(world.cluster.hook_runs.len(), 1, "one question");
    (world, name)
}

fn work(world: &mut GameWorld) {
    let plan = world.decide();
    world.carry_out(&plan);
}

fn deletes(world: &GameWorld) -> bool {
    world.decide().actions().any(|action| matches!(action, Action::DeletePod { .. }))
}

/// The hash on the mark of a pod, and that of its only question.
fn hashes(world: &GameWorld, pod: &str) -> (String, String) {
    let run = world.cluster.hook_runs.values().next().unwrap();
    assert_eq!(world.cluster.hook_runs.len(), 1);
    (world.cluster.pods[pod].annotations[ASKED_ANNOTATION].to_string(), fingerprint(&run.spec))
}

#[test]
fn no_forged_approval_lets_a_pod_go() {
    for forgery in FORGERIES {
        let (mut world, pod) = waiting();
        for _ in 0..10 {
            world.forge(&pod, *forgery);
            assert!(!deletes(&world), "{forgery:?}");
            work(&mut world);
            world.cluster.pass(30);
        }
        world.cluster.hook_runs.retain(|name, _| !name.starts_with("forged"));
        work(&mut world);
        world.cluster.answer(Phase::Successful);
        assert!(deletes(&world), "the real approval counts: {forgery:?}");
    }
}

#[test]
fn an_approval_that_was_there_before_the_mark_does_not_count() {
    for forgery in FORGERIES {
        let (mut world, _) = waiting();
        world.edit(|spec| *spec.replicas = 2);
        work(&mut world);
        let pods: Vec<String> = world.cluster.pods.keys().cloned().collect();
        pods.iter().for_each(|pod| world.forge(pod, *forgery));
        world.edit(|spec| *spec.replicas = 1);
        for _ in 0..10 {
            assert!(!deletes(&world), "{forgery:?}");
            work(&mut world);
            world.cluster.pass(30);
        }
    }
}

#[test]
fn a_mark_and_what_is_asked_are_one_write_and_go_together() {
    let (mut world, pod) = waiting();
    let (mark, question) = hashes(&world, &pod);
    assert_eq!(mark, question);
    world.edit(|spec| *spec.replicas = 2);
    let plan = world.decide();
    let patches: Vec<&Value> =
        plan.actions().filter_map(|action| if let Action::PatchPod(PodPatch { body, .. }) = action { Some(body) } else { None }).collect();
    assert_eq!(patches.len(), 1, "{patches:?}");
    world.carry_out(&plan);
    assert!(!world.cluster.pods[&pod].annotations.contains_key(ASKED_ANNOTATION), "the hash is removed with the mark");
}

/// The hook has denied, and its template has been edited.
fn asked_otherwise() -> (GameWorld, String, String) {
    let (mut world, pod) = waiting();
    let before = hashes(&world, &pod).0;
    world.cluster.answer(Phase::Failed);
    world.cluster.pod_hook.as_mut().unwrap().spec.metrics[0].name = "edited".to_owned();
    work(&mut world);
    assert_eq!(hashes(&world, &pod), (before.clone(), before.clone()), "a HookRun keeps what it was created with");
    world.cluster.pass(60);
    (world, pod, before)
}

#[test]
fn an_edited_question_is_on_the_mark_before_it_is_asked_wherever_the_operator_dies() {
    let steps = asked_otherwise().0.decide().actions().count();
    assert_eq!(steps, 3, "the old HookRun is deleted, the mark changes, the new HookRun is created");
    for cut in 0..=steps {
        let (mut world, pod, before) = asked_otherwise();
        let plan = world.decide();
        plan.actions().take(cut).for_each(|action| world.apply(action));
        assert!(!deletes(&world));
        work(&mut world);
        let (mark, question) = hashes(&world, &pod);
        assert_eq!(mark, question, "after {cut} writes");
        assert_ne!(mark, before, "after {cut} writes");
        world.cluster.answer(Phase::Successful);
        assert!(deletes(&world), "after {cut} writes");
    }
}

#[test]
fn a_mark_that_is_refused_asks_nothing_until_it_passes() {
    let (mut world, ..) = asked_otherwise();
    world.cluster.rules.push(Rule { word: Some("mark_pod"), pod: None, how: How::Policy, left: None, lies: false });
    for _ in 0..20 {
        work(&mut world);
        world.cluster.answer(Phase::Successful);
        assert!(!deletes(&world));
        world.cluster.pass(10);
    }
    world.cluster.rules.clear();
    for _ in 0..20 {
        work(&mut world);
        world.cluster.answer(Phase::Successful);
        world.cluster.pass(10);
    }
    assert_eq!(world.cluster.pods.values().filter(|pod| !pod.deleting).count(), 1, "no pod is stuck");
}

#[test]
fn a_mark_of_an_older_operator_counts_as_it_did() {
    let (mut world, pod) = waiting();
    world.cluster.pods.get_mut(&pod).unwrap().annotations.remove(ASKED_ANNOTATION);
    let writes =
        world.decide().actions().filter(|action| matches!(action, Action::PatchPod(PodPatch { why: PatchReason::Mark, .. }))).count();
    assert_eq!(writes, 0, "the marks of waiting pods are not written again");
    world.cluster.answer(Phase::Successful);
    assert!(deletes(&world));
}

#[test]
fn a_canary_step_believes_only_its_own_run() {
    let steps = json!({ "steps": [{ "partition": 1 }, { "hook": { "templateName": "test" } }] });
    let mut world = GameWorld::new(&json!({ "replicas": 2, "updateStrategy": { "canary": steps } }));
    world.cluster.hook_templates = vec![hook_template("test")];
    assert!(world.settle().is_some());
    world.edit(|spec| *spec.template = crate::world::template(1).into());
    for _ in 0..10 {
        work(&mut world);
        world.cluster.pods.retain(|_, pod| !pod.deleting);
        let now = world.cluster.now;
        world.cluster.pods.values_mut().for_each(|pod| crate::world::make_ready(pod, now));
        world.cluster.pass(10);
    }
    assert_eq!(world.cluster.hook_runs.len(), 1, "the step asks");
    let owners = |world: &GameWorld| world.cluster.hook_runs.values().next().unwrap().metadata.owner_references.clone();
    let (step, own) = (world.decide().status.current_step_index, owners(&world));
    world.cluster.answer(Phase::Successful);
    let run = world.cluster.hook_runs.values_mut().next().unwrap();
    run.metadata.owner_references.as_mut().unwrap()[0].kind = "GameStatefulSet".to_owned();
    assert_eq!(world.decide().status.current_step_index, step, "a run of something else counts");
    world.cluster.hook_runs.values_mut().next().unwrap().metadata.owner_references = own;
    assert_ne!(world.decide().status.current_step_index, step);
}

#[test]
fn a_question_is_told_by_what_it_asks_and_not_by_whether_it_was_stopped() {
    let (world, _) = waiting();
    let spec = world.cluster.hook_runs.values().next().unwrap().spec.clone();
    let mut other = spec.clone();
    other.terminate = Some(true);
    assert_eq!(fingerprint(&spec), fingerprint(&other));
    other.args[0].value = Some("another".to_owned());
    assert_ne!(fingerprint(&spec), fingerprint(&other));
    assert_eq!(fingerprint(&spec).len(), 64);
}

#[test]
fn a_pod_with_an_approval_does_not_wait_for_the_cleanup_of_others() {
    let spec = json!({ "replicas": 4, "preDeleteUpdateStrategy": { "hook": { "templateName": "pod" } } });
    let mut world = GameWorld::new(&spec);
    world.cluster.pod_hook = Some(hook_template("pod"));
    assert!(world.settle().is_some());
    world.edit(|spec| *spec.replicas = 1);
    work(&mut world);
    world.cluster.answer(Phase::Successful);
    // One of the three is gone already.
    let gone =
        world.decide().actions().find_map(|action| if let Action::DeletePod { name, .. } = action { Some(name.clone()) } else { None });
    world.cluster.pods.remove(&gone.unwrap());
    let words: Vec<&str> = world.decide().actions().map(Action::word).collect();
    assert_eq!(words, ["delete_pod", "delete_pod", "delete_hookrun"]);
}

#[test]
fn a_pod_that_is_released_loses_its_approval_first() {
    let (mut world, pod) = waiting();
    world.cluster.answer(Phase::Successful);
    world.cluster.pods.get_mut(&pod).unwrap().labels.insert("app", "other");
    let words: Vec<&str> = world.decide().actions().map(Action::word).collect();
    assert_eq!(words, ["delete_hookrun", "release_pod"]);
}
