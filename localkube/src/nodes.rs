//! Whether nodes are Ready.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

use crate::error::Result;

/// Waits until `count` nodes are Ready.
pub(crate) async fn wait_nodes_ready(client: &Client, count: usize) -> Result<()> {
    use kube::runtime::{WatchStreamExt, watcher};
    let nodes: Api<Node> = Api::all(client.clone());
    let mut changes = std::pin::pin!(watcher(nodes, watcher::Config::default()).default_backoff().applied_objects());
    let mut ready = std::collections::BTreeSet::new();
    while ready.len() < count {
        let Some(change) = changes.next().await else { break };
        // The watcher retries by itself; the caller's timeout ends the wait.
        let Ok(node) = change else { continue };
        let name = node.metadata.name.clone().unwrap_or_default();
        if is_ready(&node) {
            ready.insert(name)
        } else {
            ready.remove(&name)
        };
    }
    Ok(())
}

/// Whether the node's Ready condition is True.
#[must_use]
pub fn is_ready(node: &Node) -> bool {
    ready_status(node) == Some("True")
}

/// The status of the node's Ready condition.
#[must_use]
pub fn ready_status(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status.as_str())
}

/// Timeout until all nodes are Ready.
pub(crate) const NODES_WITHIN: Duration = Duration::from_secs(120);
