//! Objects as the original operators stored them: nothing restarts, nothing is forgotten.

mod releases;

use std::sync::Arc;

use crate::world::{make_ready, pod};
use api::names::{INPLACE_GRACE_ANNOTATION, INPLACE_STATE_ANNOTATION};
use api::tkex::GameDeployment;
use jiff::Timestamp;
use planner::facts::node::Nodes;
use planner::facts::pod::{Gate, PodFacts};
use planner::facts::revision::RevisionFacts;
use planner::plan::{Action, PatchReason};
use planner::refusal::Refusals;
use planner::workload::inplace::Update;
use planner::workload::{Observed, Seen, decide};
use serde_json::Value;

fn objects(file: &str) -> Vec<Value> {
    let path = format!("{}/tests/compat/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn facts(object: &Value, now: Timestamp) -> PodFacts {
    let name = object["metadata"]["name"].as_str().unwrap();
    let mut facts = pod(name, 1, object, now);
    facts.controller = Some("OWNER".to_owned());
    let mut text = |key: &str| facts.annotations.remove(key);
    let (state, pending) = (text(INPLACE_STATE_ANNOTATION), text(INPLACE_GRACE_ANNOTATION));
    facts.update = Update::read(state.as_deref(), pending.as_deref());
    let gate = &object["status"]["conditions"][0];
    let since = gate["lastTransitionTime"].as_str().unwrap().parse().unwrap();
    facts.gate = if gate["status"] == "True" { Gate::Up } else { Gate::Down(since) };
    make_ready(&mut facts, now);
    facts
}

fn observed(file: &str) -> (Observed<GameDeployment>, Timestamp) {
    let now: Timestamp = "2026-11-15T10:00:00Z".parse().unwrap();
    let all = objects(file);
    let of = |kind: &'static str| all.iter().filter(move |object| object["kind"] == kind);
    let revision = |object: &Value| RevisionFacts {
        name: object["metadata"]["name"].as_str().unwrap().to_owned(),
        uid: format!("uid-{}", object["metadata"]["name"]),
        controller: Some("OWNER".to_owned()),
        number: object["revision"].as_i64().unwrap(),
        template: (&object["data"]["spec"]["template"]).into(),
        deleting: false,
    };
    let seen = Seen {
        pods: of("Pod").map(|object| Arc::new(facts(object, now))).collect(),
        revisions: of("ControllerRevision").map(|object| Arc::new(revision(object))).collect(),
        hook_runs: of("HookRun").map(|object| Arc::new(serde_json::from_value(object.clone()).unwrap())).collect(),
        hook_templates: Vec::new(),
        nodes: Nodes::default(),
        budgets: Vec::new(),
        taken_revision_names: Vec::new(),
        taken_pod_names: Vec::new(),
        refusals: Refusals::default(),
        lowers_memory: true,
        too_large: None,
        unlisted: Vec::new(),
    };
    let object = Arc::new(serde_json::from_value(of("GameDeployment").next().unwrap().clone()).unwrap());
    (Observed { object, seen }, now)
}

#[test]
fn a_rollout_of_the_original_waits_where_it_waited() {
    let (seen, now) = observed("canary.yaml");
    let plan = decide(&seen, now);
    assert_eq!(plan.steps, Vec::<Vec<Action>>::new(), "there is nothing to do");
    let status = plan.status;
    assert_eq!((status.current_step_index, status.updated_replicas), (Some(3), 2));
    assert_eq!(status.current_revision, "test-gamedeployment-67864c6f65");
    assert_eq!(status.pause_conditions, seen.object.status.as_ref().unwrap().pause_conditions);
    assert_ne!(status.current_step_hash.as_deref(), Some("79cffb7b9"), "the hash is ours from now on");
}

#[test]
fn a_grace_of_the_original_is_ended_properly() {
    let (seen, now) = observed("grace.yaml");
    let plan = decide(&seen, now);
    let actions: Vec<_> = plan.actions().collect();
    let [Action::PatchPod(change)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!((change.why, change.name.as_str()), (PatchReason::InPlace, "grace-gamedeployment-mtqn6"));
    assert_eq!(change.body["spec"]["containers"][0]["image"], "python:3.5");
}
