//! The order in which pods are deleted and updated.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::facts::node::Nodes;
use crate::facts::pod::PodFacts;

/// Sorts pods, those first whose loss matters least: ended, on a node that answers, unscheduled, not ready, with a low
/// `node-deletion-cost`, with a low `pod-deletion-cost`, on a node with many pods, ready for the shortest time,
/// restarted most often, newest. The name decides the rest.
///
/// `all` are the pods that count for how many pods a node has. Those that are being deleted are among them, so that a
/// deletion under way does not change the order of the others.
pub fn least_missed_first(pods: &mut [Arc<PodFacts>], all: &[Arc<PodFacts>], nodes: &Nodes, now: Timestamp) {
    let mut crowd: BTreeMap<&str, usize> = BTreeMap::new();
    for node in all.iter().filter_map(|pod| pod.node.as_deref()) {
        *crowd.entry(node).or_default() += 1;
    }
    pods.sort_by_cached_key(|pod| {
        let crowd = pod.node.as_deref().and_then(|node| crowd.get(node)).copied().unwrap_or_default();
        let ready = if pod.is_ready() { pod.ready_since } else { None };
        (
            !pod.has_ended(),
            // Whether such a pod serves is not known.
            pod.node.as_deref().is_some_and(|node| nodes.silent_since(node, now).is_some()),
            pod.node.is_some(),
            pod.phase,
            ready.is_some(),
            pod.node.as_deref().map_or(0, |node| nodes.deletion_cost(node)),
            pod.deletion_cost,
            Reverse(crowd),
            Reverse(ready),
            Reverse(pod.restarts),
            Reverse(pod.created),
            pod.name.clone(),
        )
    });
}
