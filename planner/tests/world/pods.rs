//! Pods as the API server makes and changes them, and as a node runs them.

use api::names::{INPLACE_GRACE_ANNOTATION, INPLACE_STATE_ANNOTATION, READINESS_GATE};
use jiff::Timestamp;
use planner::facts::pod::{Container, Gate, Phase, PodFacts};
use planner::facts::text::{Text, Texts};
use planner::plan::PodPatch;
use planner::workload::inplace::Update;
use serde_json::{Value, json};

/// A pod as the API server would make it.
pub(crate) fn pod(name: &str, version: u64, body: &Value, now: Timestamp) -> PodFacts {
    let texts = |part: &str| serde_json::from_value(body["metadata"][part].clone()).unwrap_or_default();
    let container = |one: &Value| Container {
        name: one["name"].as_str().unwrap_or_default().into(),
        image: one["image"].as_str().unwrap_or_default().into(),
        ..Container::default()
    };
    let gated = body["spec"]["readinessGates"].as_array().is_some_and(|gates| gates.contains(&json!({ "conditionType": READINESS_GATE })));
    PodFacts {
        name: name.to_owned(),
        namespace: "play".to_owned(),
        uid: format!("uid-{version}"),
        resource_version: version,
        labels: texts("labels"),
        controller: Some("uid-game".to_owned()),
        created: now,
        deleting: false,
        phase: Phase::Pending,
        ready_since: None,
        node: None,
        ip: String::new(),
        host_ip: Text::default(),
        restarts: 0,
        deletion_cost: 0,
        trouble: None,
        annotations: texts("annotations"),
        gate: if gated { Gate::Unset } else { Gate::Absent },
        containers: body["spec"]["containers"].as_array().into_iter().flatten().map(container).collect(),
        update: None,
        is_resizing: false,
        spec: None,
        is_seen_by_node: true,
    }
}

/// Changes a pod as the API server would.
pub(super) fn patch(pod: &mut PodFacts, change: &PodPatch) {
    let body = &change.body;
    let mut update = pod.update.take().unwrap_or_default();
    for (key, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
        set(&mut pod.labels, key, value);
    }
    for (key, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
        match key.as_str() {
            INPLACE_STATE_ANNOTATION => update.state = Update::read(value.as_str(), None).and_then(|read| read.state),
            INPLACE_GRACE_ANNOTATION => update.pending = Update::read(None, value.as_str()).and_then(|read| read.pending),
            _ => set(&mut pod.annotations, key, value),
        }
    }
    pod.update = (*update != Update::default()).then_some(update);
    for condition in body["status"]["conditions"].as_array().into_iter().flatten() {
        let since: Timestamp = condition["lastTransitionTime"].as_str().unwrap().parse().unwrap();
        pod.gate = if condition["status"] == "True" { Gate::Up } else { Gate::Down(since) };
    }
    for wanted in body["spec"]["containers"].as_array().into_iter().flatten() {
        let container = pod.containers.iter_mut().find(|container| wanted["name"] == container.name.as_str()).unwrap();
        if let Some(image) = wanted["image"].as_str() {
            container.image = image.into();
        }
    }
}

fn set(texts: &mut Texts, key: &str, value: &Value) {
    match value.as_str() {
        Some(text) => drop(texts.insert(key, text)),
        None => drop(texts.remove(key)),
    }
}

/// The kubelet has caught up: containers run the images of the spec, and the pod is ready if its readiness gate allows it.
pub(crate) fn make_ready(pod: &mut PodFacts, now: Timestamp) {
    let node = pod.name.bytes().map(u64::from).sum::<u64>() % 3;
    pod.node = Some(format!("node-{node}").into());
    pod.phase = Phase::Running;
    pod.trouble = None;
    for container in &mut pod.containers {
        if container.running && container.actual_image != container.image {
            container.restarts += 1;
            // Readiness was lost in between.
            pod.ready_since = None;
            container.running = false;
        }
        // A container that runs the image of the spec is left alone.
        if !container.running {
            container.started = Some(now);
        }
        container.actual_image.clone_from(&container.image);
        container.image_id = format!("sha256:{}", container.image).into();
        container.running = true;
        container.ready = true;
    }
    match pod.gate {
        Gate::Up | Gate::Absent => drop(pod.ready_since.get_or_insert(now)),
        Gate::Unset | Gate::Down(_) => pod.ready_since = None,
    }
}
