//! Real nodes that are drained or lose their network.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::pod::{container, is_ready, node_of};
use e2e::{Place, Scene, Suite, until, until_pod_ready, until_some_pod};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use localkube::nodes::ready_status;
use serde_json::json;

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.disturbing(Place::Real, a_drained_nodes_pod_moves_to_the_other);
    suite.disturbing(Place::Real, a_cut_cable_makes_a_node_unknown);
}

async fn a_drained_nodes_pod_moves_to_the_other(scene: Arc<Scene>) -> Result<()> {
    // A drain covers all namespaces, so the pod selector has a label that only this test uses.
    scene.kubectl(&["create", "deployment", "drained", "--image=main:v1"])?;
    let pods = scene.pods();
    let before = until_some_pod(&pods, "Ready", is_ready).await?;
    let first = node_of(&before)?;
    let drain = ["drain", &first, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", "--pod-selector=app=drained"];
    let moved = async {
        scene.kubectl(&drain)?;
        until_some_pod(&pods, "another one Ready", |pod| is_ready(pod) && pod.uid() != before.uid()).await
    };
    let after = moved.await;
    // The node takes pods again even if the test has failed.
    scene.kubectl(&["uncordon", &first])?;
    let second = node_of(&after?)?;
    ensure!(first != second, "the pod stayed on {first}");
    Ok(())
}

async fn a_cut_cable_makes_a_node_unknown(scene: Arc<Scene>) -> Result<()> {
    let node = scene.cluster().real_nodes().get(1).context("no second node")?;
    scene.pod("game", "main:v1", &json!({ "spec": { "nodeName": node.name() } }))?;
    let pods = scene.pods();
    let before = until_pod_ready(&pods, "game").await?;
    let nodes: Api<Node> = Api::all(scene.client());
    scene.cluster().set_link(node, false)?;
    let unknown = until(&nodes, &node.name(), "Unknown", |node| node.and_then(ready_status) == Some("Unknown")).await;
    let unready = until(&pods, "game", "not Ready", |pod| pod.is_some_and(|pod| !is_ready(pod))).await;
    // The link is restored even if the test has failed.
    scene.cluster().set_link(node, true)?;
    unknown?;
    unready?;
    until(&nodes, &node.name(), "Ready again", |node| node.and_then(ready_status) == Some("True")).await?;
    let after = until_pod_ready(&pods, "game").await?;
    ensure!(before.uid() == after.uid(), "another pod");
    ensure!(container(&after, "game").is_some_and(|game| game.restart_count == 0), "a container restarted because of the cut link");
    Ok(())
}
