//! How a node is read from the API server's JSON.

use api::names::{NODE_DELETION_COST_ANNOTATION, OUT_OF_SERVICE_TAINT};
use jiff::Timestamp;
use serde::Deserialize;

use super::NodeFacts;
use crate::facts::object::Metadata;

/// A node as it was read.
#[derive(Debug)]
pub struct NodeRead {
    /// Its metadata.
    pub metadata: Metadata,
    /// What decisions know of it.
    pub facts: NodeFacts,
    /// Its addresses and host names.
    pub addresses: Vec<String>,
    /// The networks of its pods' addresses, if it has them in `podCIDRs`.
    pub pod_networks: Vec<String>,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: bool,
    taints: Vec<Taint>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Deserialize)]
struct Taint {
    key: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
    addresses: Vec<Address>,
}

#[derive(Deserialize)]
struct Address {
    address: String,
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

impl NodeRead {
    /// Reads a node from the API server's JSON.
    pub fn of(json: &str) -> Result<Self, serde_json::Error> {
        let Wire { metadata, spec, status } = serde_json::from_str(json)?;
        let is_silent = |condition: &&Condition| condition.kind == "Ready" && condition.status == "Unknown";
        let silent = status.conditions.iter().find(is_silent);
        let cost = metadata.annotations.get(NODE_DELETION_COST_ANNOTATION).and_then(|cost| cost.parse().ok());
        let facts = NodeFacts {
            // Without a transition time the node counts as silent since 1970.
            silent: silent.map(|condition| condition.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH)),
            gone: spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE_TAINT),
            cordoned: spec.unschedulable,
            deletion_cost: cost.unwrap_or_default(),
        };
        let addresses = status.addresses.into_iter().map(|one| one.address).collect();
        Ok(Self { metadata, facts, addresses, pod_networks: spec.pod_cidrs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str, annotations: &serde_json::Value, spec: &serde_json::Value) -> NodeFacts {
        let json = serde_json::json!({
            "metadata": { "name": "n", "uid": "u", "resourceVersion": "1", "annotations": annotations },
            "spec": spec,
            "status": { "conditions": [{ "type": "MemoryPressure", "status": "Unknown" }, { "type": "Ready", "status": ready }] },
        });
        NodeRead::of(&json.to_string()).unwrap().facts
    }

    #[test]
    fn a_node_that_does_not_answer_is_silent() {
        for (ready, silent) in [("True", false), ("False", false), ("Unknown", true)] {
            assert_eq!(node(ready, &serde_json::json!({}), &serde_json::json!({})).silent.is_some(), silent, "{ready}");
        }
    }

    #[test]
    fn a_node_that_takes_no_new_pods_is_cordoned_and_one_out_of_service_is_gone() {
        let taint = serde_json::json!({ "taints": [{ "key": OUT_OF_SERVICE_TAINT, "effect": "NoExecute" }] });
        for (spec, expected) in
            [(serde_json::json!({}), (false, false)), (serde_json::json!({ "unschedulable": true }), (true, false)), (taint, (false, true))]
        {
            let facts = node("True", &serde_json::json!({}), &spec);
            assert_eq!((facts.cordoned, facts.gone), expected, "{spec}");
        }
    }

    #[test]
    fn a_cost_that_is_no_number_is_none() {
        for (cost, expected) in [("7", 7), ("-3", -3), ("ff", 0), ("", 0)] {
            let annotations = serde_json::json!({ NODE_DELETION_COST_ANNOTATION: cost });
            assert_eq!(node("True", &annotations, &serde_json::json!({})).deletion_cost, expected, "{cost}");
        }
    }
}
