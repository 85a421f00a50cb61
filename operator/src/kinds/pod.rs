//! Pods, decoded without building more than what decisions need.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use planner::pod::{Phase, PodFacts};
use serde::Deserialize;

use super::OwnerReference;
use crate::store::{Index, Kept, Key};

/// A pod that we own or that nobody owns.
#[derive(Debug)]
pub struct Pod {
    /// What decisions see.
    pub facts: Arc<PodFacts>,
    /// Who controls it.
    pub controller: Option<OwnerReference>,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    resource_version: String,
    creation_timestamp: Timestamp,
    #[serde(default)]
    deletion_timestamp: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: Annotations,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

#[derive(Default, Deserialize)]
struct Annotations {
    // The value of api::names::DELETION_COST_ANNOTATION; an attribute takes only a literal.
    #[serde(rename = "controller.kubernetes.io/pod-deletion-cost", default)]
    deletion_cost: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    reason: Option<String>,
    conditions: Vec<Condition>,
    container_statuses: Vec<Container>,
    init_container_statuses: Vec<Container>,
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
struct Container {
    restart_count: i32,
    state: State,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    waiting: Option<Waiting>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: Option<String>,
}

impl From<Wire> for Pod {
    fn from(wire: Wire) -> Self {
        let Wire { metadata: meta, spec, status } = wire;
        let controller = OwnerReference::controller(meta.owner_references);
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready" && condition.status == "True");
        let ready_since = ready.map(|ready| ready.last_transition_time.unwrap_or(meta.creation_timestamp));
        let facts = PodFacts {
            ready_since,
            trouble: if ready_since.is_some() { None } else { trouble(&status) },
            phase: phase(&status.phase),
            restarts: status.container_statuses.iter().map(|container| container.restart_count).max().unwrap_or_default(),
            name: meta.name,
            namespace: meta.namespace,
            uid: meta.uid,
            resource_version: meta.resource_version.parse().unwrap_or_default(),
            labels: meta.labels,
            controller: controller.as_ref().map(|owner| owner.uid.clone()),
            created: meta.creation_timestamp,
            deleting: meta.deletion_timestamp.is_some(),
            node: spec.node_name.filter(|node| !node.is_empty()),
            deletion_cost: meta.annotations.deletion_cost.and_then(|cost| cost.parse().ok()).unwrap_or_default(),
        };
        Self { facts: Arc::new(facts), controller }
    }
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

/// Kubernetes' own word for what is wrong, if something is.
fn trouble(status: &Status) -> Option<String> {
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    let waiting = containers.filter_map(|container| container.state.waiting.as_ref()?.reason.clone());
    let normal = ["ContainerCreating", "PodInitializing"];
    let unscheduled = status.conditions.iter().find(|condition| condition.kind == "PodScheduled" && condition.status == "False");
    let unscheduled = unscheduled.and_then(|condition| condition.reason.clone());
    waiting.filter(|reason| !normal.contains(&reason.as_str())).chain(unscheduled).chain(status.reason.clone()).next()
}

impl Kept for Pod {
    const KIND: &'static str = "Pod";
    const PATH: &'static str = "/api/v1/pods";

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<Wire>(json).map(Self::from)
    }

    fn key(&self) -> Key {
        Key { namespace: self.facts.namespace.clone(), name: self.facts.name.clone() }
    }

    fn uid(&self) -> &str {
        &self.facts.uid
    }

    fn version(&self) -> u64 {
        self.facts.resource_version
    }

    fn index(&self) -> Option<Index> {
        let orphan = || Index::Orphan(self.facts.namespace.clone());
        Some(self.controller.as_ref().map_or_else(orphan, |owner| Index::Owner(owner.uid.clone())))
    }

    fn matters(&self) -> bool {
        self.controller.as_ref().is_none_or(OwnerReference::is_ours)
    }
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
                "annotations": { api::names::DELETION_COST_ANNOTATION: "-5", "other": "x" },
                "ownerReferences": [{ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "game", "uid": "o", "controller": true }],
                "managedFields": [{ "fieldsV1": {} }],
            },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "game" }] },
            "status": {
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T10:00:09Z" }],
                "containerStatuses": [{ "restartCount": 1, "state": { "running": {} } }, { "restartCount": 3, "state": {} }],
            },
        });
        let pod = Pod::decode(&json.to_string()).unwrap();
        assert!(pod.matters());
        let facts = &pod.facts;
        assert_eq!((facts.restarts, facts.deletion_cost, facts.resource_version), (3, -5, 42));
        assert_eq!(facts.revision(), Some("game-1"));
        assert!(facts.is_ready());
        assert_eq!(facts.ready_since, Some("2026-11-15T10:00:09Z".parse().unwrap()));
        assert!(matches!(pod.index(), Some(Index::Owner(uid)) if uid == "o"));
    }

    #[test]
    fn the_cause_of_a_pod_that_does_not_start_is_kept() {
        let json = serde_json::json!({
            "metadata": { "name": "p", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-15T10:00:00Z" },
            "status": { "phase": "Pending", "containerStatuses": [{ "state": { "waiting": { "reason": "ImagePullBackOff" } } }] },
        });
        assert_eq!(Pod::decode(&json.to_string()).unwrap().facts.trouble.as_deref(), Some("ImagePullBackOff"));
    }

    #[test]
    fn pods_of_other_controllers_are_not_kept() {
        let json = serde_json::json!({
            "metadata": {
                "name": "p", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-15T10:00:00Z",
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "o", "controller": true }],
            },
        });
        assert!(!Pod::decode(&json.to_string()).unwrap().matters());
    }
}
