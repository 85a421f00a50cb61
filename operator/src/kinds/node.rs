//! Nodes: whether they answer, their deletion cost, and their addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::names::{NODE_DELETION_COST_ANNOTATION, OUT_OF_SERVICE_TAINT};
use ipnet::IpNet;
use jiff::Timestamp;
use planner::facts::node::NodeFacts;
use serde::Deserialize;

use crate::store::{Cached, Change, Index, Key};

/// A node.
#[derive(Debug)]
pub struct Node {
    /// What decisions see.
    pub facts: NodeFacts,
    /// Its addresses, which are refused to hooks.
    pub addresses: Vec<IpAddr>,
    /// The networks of its pods' addresses, if it has them in `podCIDRs`.
    pub pod_networks: Vec<IpNet>,
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

impl Cached for Node {
    const KIND: &'static str = "Node";
    const PATH: &'static str = "/api/v1/nodes";
    const IS_CORE: bool = true;

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let Wire { metadata: meta, spec, status } = serde_json::from_str(json)?;
        let is_silent = |condition: &Condition| condition.kind == "Ready" && condition.status == "Unknown";
        let cost = meta.annotations.get(NODE_DELETION_COST_ANNOTATION).and_then(|cost| cost.parse().ok());
        let silent = status.conditions.iter().find(|condition| is_silent(condition));
        // Without a transition time the node counts as silent since 1970.
        let silent = silent.map(|condition| condition.last_transition_time.unwrap_or(Timestamp::UNIX_EPOCH));
        let gone = spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE_TAINT);
        let facts = NodeFacts { silent, gone, cordoned: spec.unschedulable, deletion_cost: cost.unwrap_or_default() };
        // `status.addresses` has host names too: they are skipped.
        let addresses = status.addresses.iter().filter_map(|one| one.address.parse().ok()).collect();
        let pod_networks = spec.pod_cidrs.iter().filter_map(|network| network.parse().ok()).collect();
        let version = meta.resource_version.parse().unwrap_or_default();
        Ok(Self { facts, addresses, pod_networks, name: meta.name, uid: meta.uid, version })
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

/// Whether a change adds or removes addresses or pod networks.
#[must_use]
pub fn has_moved(change: &Change<Node>) -> bool {
    let places = |node: &Arc<Node>| (node.addresses.clone(), node.pod_networks.clone());
    change.old.as_ref().map(places) != change.new.as_ref().map(places)
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
            assert_eq!(node(ready, &serde_json::json!({})).silent.is_some(), lost, "{ready}");
        }
    }

    #[test]
    fn a_node_tells_its_addresses_and_the_networks_of_its_pods() {
        let node = |spec: &str, status: &str| {
            let json = format!(r#"{{"metadata":{{"name":"n","uid":"u","resourceVersion":"1"}},"spec":{spec},"status":{status}}}"#);
            Node::decode(&json).unwrap()
        };
        let addresses = r#"{"addresses":[{"type":"InternalIP","address":"10.1.0.7"},{"type":"Hostname","address":"n"},{"type":"ExternalIP","address":"2001:db8::7"}]}"#;
        let full = node(r#"{"podCIDR":"10.2.0.0/24","podCIDRs":["10.2.0.0/24","fd00::/64"]}"#, addresses);
        let text = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(full.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), text(&["10.1.0.7", "2001:db8::7"]));
        assert_eq!(full.pod_networks.iter().map(ToString::to_string).collect::<Vec<_>>(), text(&["10.2.0.0/24", "fd00::/64"]));
        let (full, same, bare) = (Arc::new(full), node(r#"{"unschedulable":true}"#, addresses), node("{}", "{}"));
        let same = Arc::new(Node { pod_networks: full.pod_networks.clone(), ..same });
        let change = |old: &Arc<Node>, new: &Arc<Node>| Change { old: Some(Arc::clone(old)), new: Some(Arc::clone(new)) };
        assert!(!has_moved(&change(&full, &same)) && has_moved(&change(&full, &Arc::new(bare))));
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
