//! Nodes: whether they answer, and what it costs to take pods from them.

use std::collections::BTreeMap;

use api::names::NODE_DELETION_COST_ANNOTATION;
use jiff::Timestamp;
use planner::node::NodeFacts;
use serde::Deserialize;

use crate::store::{Index, Kept, Key};

/// A node.
#[derive(Debug)]
pub struct Node {
    /// What decisions see.
    pub facts: NodeFacts,
    name: String,
    uid: String,
    version: u64,
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
    uid: String,
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    last_transition_time: Option<Timestamp>,
}

impl Kept for Node {
    const KIND: &'static str = "Node";
    const PATH: &'static str = "/api/v1/nodes";

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let Wire { metadata: meta, spec, status } = serde_json::from_str(json)?;
        let is_silent = |condition: &Condition| condition.kind == "Ready" && condition.status == "Unknown";
        let cost = meta.annotations.get(NODE_DELETION_COST_ANNOTATION).and_then(|cost| cost.parse().ok());
        let silent = status.conditions.iter().find(|condition| is_silent(condition));
        // One that has never answered is as old as time.
        let lost = silent.map(|condition| condition.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH));
        let facts = NodeFacts { lost, cordoned: spec.unschedulable, deletion_cost: cost.unwrap_or_default() };
        Ok(Self { facts, name: meta.name, uid: meta.uid, version: meta.resource_version.parse().unwrap_or_default() })
    }

    fn key(&self) -> Key {
        Key { namespace: String::new(), name: self.name.clone() }
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn index(&self) -> Option<Index> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str, annotations: &serde_json::Value) -> NodeFacts {
        let json = serde_json::json!({
            "metadata": { "name": "n", "uid": "u", "resourceVersion": "1", "annotations": annotations },
            "status": { "conditions": [{ "type": "MemoryPressure", "status": "Unknown" }, { "type": "Ready", "status": ready }] },
        });
        Node::decode(&json.to_string()).unwrap().facts
    }

    #[test]
    fn a_node_is_lost_when_it_does_not_answer() {
        for (ready, lost) in [("True", false), ("False", false), ("Unknown", true)] {
            assert_eq!(node(ready, &serde_json::json!({})).lost.is_some(), lost, "{ready}");
        }
    }

    #[test]
    fn a_node_that_takes_no_new_pods_is_cordoned() {
        for (spec, cordoned) in [("{}", false), (r#"{"unschedulable":true}"#, true)] {
            let json = format!(r#"{{"metadata":{{"name":"n","uid":"u","resourceVersion":"1"}},"spec":{spec}}}"#);
            assert_eq!(Node::decode(&json).unwrap().facts.cordoned, cordoned, "{spec}");
        }
    }

    #[test]
    fn a_cost_that_is_no_number_is_none() {
        for (cost, expected) in [("7", 7), ("-3", -3), ("ff", 0), ("", 0)] {
            assert_eq!(node("True", &serde_json::json!({ NODE_DELETION_COST_ANNOTATION: cost })).deletion_cost, expected, "{cost}");
        }
    }
}
