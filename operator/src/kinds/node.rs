//! Nodes: whether they answer, their deletion cost, and their addresses.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use planner::facts::node::{NodeFacts, NodeRead};

use crate::store::{Cached, Change, Index};

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

impl Cached for Node {
    const KIND: &'static str = "Node";
    const PATH: &'static str = "/api/v1/nodes";
    const IS_CORE: bool = true;

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let NodeRead { metadata, facts, addresses, pod_networks } = NodeRead::of(json)?;
        let (name, uid, version) = (metadata.name, metadata.uid, metadata.version);
        // There are host names among the addresses: they are skipped.
        let addresses = addresses.iter().filter_map(|one| one.parse().ok()).collect();
        let pod_networks = pod_networks.iter().filter_map(|network| network.parse().ok()).collect();
        Ok(Self { facts, addresses, pod_networks, name, uid, version })
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn namespace(&self) -> &str {
        ""
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
}
