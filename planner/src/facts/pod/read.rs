//! How a pod is read from the API server's JSON, without building more than what decisions need.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use api::names::{DELETION_COST_ANNOTATION, INPLACE_GRACE_ANNOTATION, INPLACE_STATE_ANNOTATION, READINESS_GATE};
use jiff::Timestamp;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{Container, Gate, Phase, PodFacts, Resources};
use crate::facts::object::{Metadata, OwnerReference};
use crate::facts::text::{Strings, Text, Texts};
use crate::workload::inplace::Update;

/// The longest reason that is kept, in characters.
const MAX_REASON_CHARS: usize = 128;
/// Longer specs are not kept.
const MAX_SPEC_BYTES: usize = 32 * 1024;
/// Conditions of a pod whose resize is pending or in progress.
const RESIZING: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];
/// The last applied object, which kubectl stores: long, and not needed here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[derive(Default)]
struct Wire {
    metadata: Option<Metadata>,
    spec: Spec,
    status: Status,
}

/// Reads a pod; of one whose controller does not count only the metadata.
struct OfWire<F>(F);

impl<'de, F: Fn(&OwnerReference) -> bool> DeserializeSeed<'de> for OfWire<F> {
    type Value = Wire;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Wire, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de, F: Fn(&OwnerReference) -> bool> Visitor<'de> for OfWire<F> {
    type Value = Wire;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("a pod")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Wire, A::Error> {
        let mut wire = Wire::default();
        // The API server writes the metadata first.
        let counts = |wire: &Wire| wire.metadata.as_ref().and_then(|read| read.controller.as_ref()).is_none_or(&self.0);
        while let Some(key) = map.next_key::<Cow<str>>()? {
            match &*key {
                "metadata" => wire.metadata = Some(map.next_value()?),
                "spec" if counts(&wire) => wire.spec = map.next_value()?,
                "status" if counts(&wire) => wire.status = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(wire)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<Text>,
    readiness_gates: Vec<ReadinessGate>,
    containers: Vec<ContainerSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReadinessGate {
    condition_type: String,
}

#[derive(Deserialize)]
struct ContainerSpec {
    name: Text,
    #[serde(default)]
    image: Text,
    #[serde(default)]
    resources: Amounts,
}

/// Requests and limits.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Amounts {
    requests: Texts,
    limits: Texts,
}

impl Amounts {
    fn flat(self) -> Resources {
        let named = |kind: &'static str| move |(name, amount): (&Text, &Text)| (format!("{kind}.{name}"), amount.clone());
        self.requests.iter().map(named("requests")).chain(self.limits.iter().map(named("limits"))).collect()
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
    #[serde(rename = "hostIP")]
    host_ip: Text,
    reason: Option<String>,
    observed_generation: Option<i64>,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    last_transition_time: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: Text,
    image: Text,
    #[serde(rename = "imageID")]
    image_id: Text,
    ready: bool,
    restart_count: i32,
    state: State,
    resources: Option<Amounts>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    waiting: Option<Waiting>,
    running: Option<Running>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Running {
    started_at: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: Option<String>,
}

impl PodFacts {
    /// Reads a pod from the API server's JSON; also its controller.
    pub fn read(json: &str) -> Result<(Self, Option<OwnerReference>), serde_json::Error> {
        Self::read_of(json, |_| true)
    }

    /// The same, but if the pod has a controller that does not count, nothing except its metadata.
    pub fn read_of(json: &str, counts: impl Fn(&OwnerReference) -> bool) -> Result<(Self, Option<OwnerReference>), serde_json::Error> {
        let mut from = serde_json::Deserializer::from_str(json);
        let Wire { metadata, spec, status } = OfWire(counts).deserialize(&mut from)?;
        from.end()?;
        let mut meta = metadata.ok_or_else(|| serde_json::Error::missing_field("metadata"))?;
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready" && condition.status == "True");
        let ready_since = ready.map(|ready| ready.last_transition_time.unwrap_or(meta.creation_timestamp));
        let resizing = status.conditions.iter().find(|condition| RESIZING.contains(&condition.kind.as_str()) && condition.status == "True");
        let state = meta.annotations.remove(INPLACE_STATE_ANNOTATION);
        let pending = meta.annotations.remove(INPLACE_GRACE_ANNOTATION);
        meta.annotations.remove(LAST_APPLIED);
        let facts = Self {
            ready_since,
            trouble: if ready_since.is_some() { resizing.and_then(resize_trouble) } else { trouble(&status) }.map(shortened),
            phase: phase(&status.phase),
            restarts: status.container_statuses.iter().map(|container| container.restart_count).max().unwrap_or_default(),
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.version,
            labels: meta.labels,
            controller: meta.controller.as_ref().map(|owner| owner.uid.to_string()),
            created: meta.creation_timestamp,
            deleting: meta.deleting,
            node: spec.node_name.filter(|node| !node.is_empty()),
            ip: status.pod_ip,
            host_ip: status.host_ip,
            deletion_cost: meta.annotations.get(DELETION_COST_ANNOTATION).and_then(|cost| cost.parse().ok()).unwrap_or_default(),
            annotations: meta.annotations,
            gate: gate(&spec.readiness_gates, &status.conditions, meta.creation_timestamp),
            update: Update::read(state.as_deref(), pending.as_deref()),
            is_resizing: resizing.is_some(),
            spec: None,
            is_seen_by_node: status.observed_generation.is_none_or(|seen| seen >= meta.generation),
            containers: containers(spec.containers, status.container_statuses),
        };
        Ok((facts, meta.controller))
    }

    /// Replaces strings by those that other pods have.
    pub fn share(&mut self, strings: &mut Strings) {
        strings.share_all(&mut self.labels);
        strings.share_all(&mut self.annotations);
        for text in self.node.iter_mut().chain([&mut self.host_ip]) {
            strings.share(text);
        }
        for container in &mut self.containers {
            let Container { name, image, actual_image, image_id, .. } = container;
            [name, image, actual_image, image_id].into_iter().for_each(|text| strings.share(text));
            strings.share_all(&mut container.resources);
            container.actual_resources.iter_mut().for_each(|resources| strings.share_all(resources));
        }
        if let Some(update) = &mut self.update {
            update.share(strings);
        }
    }

    /// Reads the spec too, from the same JSON, if it is not too long: a pod without a revision is compared by its spec.
    pub fn read_spec(&mut self, json: &str) -> Result<(), serde_json::Error> {
        let whole: Whole = serde_json::from_str(json)?;
        self.spec = whole.spec.map(RawValue::get).filter(|spec| spec.len() <= MAX_SPEC_BYTES).map(Arc::from);
        Ok(())
    }
}

/// Truncates a reason. Those of Kubernetes itself are shorter.
fn shortened(mut reason: String) -> String {
    if let Some((end, _)) = reason.char_indices().nth(MAX_REASON_CHARS) {
        reason.truncate(end);
        reason.shrink_to_fit();
    }
    reason
}

/// A pod's spec, not decoded.
#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
}

/// `ResizeDeferred`, `ResizeInfeasible` or `ResizeError`.
fn resize_trouble(condition: &Condition) -> Option<String> {
    condition.reason.as_ref().map(|reason| format!("Resize{reason}"))
}

fn gate(gates: &[ReadinessGate], conditions: &[Condition], created: Timestamp) -> Gate {
    if !gates.iter().any(|gate| gate.condition_type == READINESS_GATE) {
        return Gate::Absent;
    }
    match conditions.iter().find(|condition| condition.kind == READINESS_GATE) {
        None => Gate::Unset,
        Some(condition) if condition.status == "True" => Gate::Up,
        Some(condition) => Gate::Down(condition.last_transition_time.unwrap_or(created)),
    }
}

fn containers(specs: Vec<ContainerSpec>, mut statuses: Vec<ContainerStatus>) -> Vec<Container> {
    let mut all = Vec::with_capacity(specs.len());
    for ContainerSpec { name, image, resources } in specs {
        let place = statuses.iter().position(|status| status.name == name);
        let status = place.map(|place| statuses.swap_remove(place)).unwrap_or_default();
        all.push(Container {
            name,
            image,
            resources: resources.flat(),
            actual_resources: status.resources.map(Amounts::flat),
            actual_image: status.image,
            image_id: status.image_id,
            running: status.state.running.is_some(),
            ready: status.ready,
            restarts: status.restart_count,
            started: status.state.running.and_then(|running| running.started_at),
        });
    }
    all
}

fn phase(word: &str) -> Phase {
    match word {
        "Running" => Phase::Running,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        "Unknown" => Phase::Unknown,
        _ => Phase::Pending,
    }
}

/// The reason that Kubernetes reports for what is wrong with the pod, if something is.
fn trouble(status: &Status) -> Option<String> {
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    let waiting = containers.filter_map(|container| container.state.waiting.as_ref()?.reason.clone());
    let normal = ["ContainerCreating", "PodInitializing"];
    let unscheduled = status.conditions.iter().find(|condition| condition.kind == "PodScheduled" && condition.status == "False");
    let unscheduled = unscheduled.and_then(|condition| condition.reason.clone());
    waiting.filter(|reason| !normal.contains(&reason.as_str())).chain(unscheduled).chain(status.reason.clone()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_read_as_the_api_server_writes_it() {
        let json = serde_json::json!({
            "metadata": {
                "name": "game-b7xkq", "namespace": "play", "uid": "u", "resourceVersion": "42", "creationTimestamp": "2026-11-15T10:00:00Z",
                "labels": { "app": "game", "controller-revision-hash": "game-1" },
                "annotations": { DELETION_COST_ANNOTATION: "-5", "other": "x", INPLACE_STATE_ANNOTATION: "{\"revision\":\"game-1\"}" },
                "ownerReferences": [{ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "game", "uid": "o", "controller": true }],
                "managedFields": [{ "fieldsV1": {} }],
            },
            "spec": {
                "nodeName": "node-1", "readinessGates": [{ "conditionType": READINESS_GATE }],
                "containers": [{ "name": "side", "image": "side:1" }, { "name": "game", "image": "game:2", "resources": { "limits": { "cpu": "1" } } }],
            },
            "status": {
                "phase": "Running",
                "conditions": [
                    { "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T10:00:09Z" },
                    { "type": READINESS_GATE, "status": "True" },
                ],
                "containerStatuses": [
                    { "name": "game", "image": "game:1", "imageID": "a", "restartCount": 1, "state": { "running": {} } },
                    { "name": "side", "restartCount": 3, "state": {} },
                ],
            },
        });
        let (facts, controller) = PodFacts::read(&json.to_string()).unwrap();
        assert_eq!((facts.restarts, facts.deletion_cost, facts.resource_version), (3, -5, 42));
        assert_eq!(facts.revision(), Some("game-1"));
        assert!(facts.is_ready());
        assert_eq!(facts.gate, Gate::Up);
        let game = &facts.containers[1];
        assert_eq!((game.image.as_str(), game.actual_image.as_str(), game.running, game.restarts), ("game:2", "game:1", true, 1));
        assert_eq!(game.resources, Resources::from([("limits.cpu", "1")]));
        assert_eq!(facts.update.as_ref().unwrap().state.as_ref().unwrap().revision, "game-1");
        assert!(!facts.annotations.contains_key(INPLACE_STATE_ANNOTATION));
        assert_eq!(facts.ready_since, Some("2026-11-15T10:00:09Z".parse().unwrap()));
        let controller = controller.unwrap();
        assert_eq!((controller.kind.as_str(), controller.name.as_str(), controller.uid.as_str()), ("GameDeployment", "game", "o"));
    }

    #[test]
    fn of_a_pod_of_another_controller_only_the_metadata_is_read() {
        let owner = |kind: &str| format!(r#"[{{"apiVersion":"v1","kind":"{kind}","name":"n","uid":"o","controller":true}}]"#);
        let of = |kind: &str| {
            let metadata = format!(r#"{{"name":"p","uid":"u","resourceVersion":"1","ownerReferences":{}}}"#, owner(kind));
            let json = format!(
                r#"{{"kind":"Pod","metadata":{metadata},"spec":{{"nodeName":"n","containers":[]}},"status":{{"phase":"Running"}}}}"#
            );
            let (facts, controller) = PodFacts::read_of(&json, |owner| owner.kind == "Ours").unwrap();
            (facts.name, controller.is_some(), facts.node.is_some(), facts.phase)
        };
        assert_eq!(of("Ours"), ("p".to_owned(), true, true, Phase::Running));
        assert_eq!(of("Other"), ("p".to_owned(), true, false, Phase::Pending));
        assert!(PodFacts::read(r#"{"kind":"Pod"}"#).unwrap_err().to_string().contains("metadata"));
    }

    #[test]
    fn the_cause_of_a_pod_that_does_not_start_is_kept() {
        let json = serde_json::json!({
            "metadata": { "name": "p", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-15T10:00:00Z" },
            "status": { "phase": "Pending", "containerStatuses": [{ "state": { "waiting": { "reason": "ImagePullBackOff" } } }] },
        });
        assert_eq!(PodFacts::read(&json.to_string()).unwrap().0.trouble.as_deref(), Some("ImagePullBackOff"));
    }

    #[test]
    fn a_controller_with_fields_longer_than_any_objects_owns_nothing() {
        let long = "x".repeat(300);
        let json = serde_json::json!({ "metadata": {
            "name": "p", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-15T10:00:00Z",
            "ownerReferences": [{ "apiVersion": "v1", "kind": "GameDeployment", "name": long, "uid": "o", "controller": true }],
        } });
        let (facts, controller) = PodFacts::read(&json.to_string()).unwrap();
        assert_eq!((facts.controller.as_deref(), controller), (Some(""), Some(OwnerReference::default())), "nor is it an orphan");
    }
}
