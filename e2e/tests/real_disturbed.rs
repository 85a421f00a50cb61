//! What happens to real nodes when something happens to them.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::{Place, Scene, Suite, pod_is_ready, until, until_pod_ready};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use localkube::nodes::ready_status;
use serde_json::json;

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.disturbing(Place::Real, "disturbed::a_drained_nodes_pod_moves_to_the_other", a_drained_nodes_pod_moves_to_the_other);
    suite.disturbing(Place::Real, "disturbed::a_cut_cable_makes_a_node_unknown", a_cut_cable_makes_a_node_unknown);
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

async fn a_drained_nodes_pod_moves_to_the_other(scene: Arc<Scene>) -> Result<()> {
    scene.kubectl(&["create", "deployment", "game", "--image=main:v1"])?;
    let deployments: Api<Deployment> = scene.api();
    let available = |deployment: Option<&Deployment>| {
        let status = deployment.and_then(|deployment| deployment.status.as_ref());
        status.is_some_and(|status| status.available_replicas == Some(1) && status.replicas == Some(1))
    };
    until(&deployments, "game", "available", available).await?;
    let pods = scene.pods();
    let only = |list: Vec<Pod>| list.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
    let before = only(pods.list(&ListParams::default()).await?.items).context("no pod")?;
    let first = node_of(&before).context("no node")?.to_owned();
    scene.kubectl(&["drain", &first, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", "--pod-selector=app=game"])?;
    until(&deployments, "game", "available again", available).await?;
    let after = only(pods.list(&ListParams::default()).await?.items).context("no pod")?;
    let second = node_of(&after).context("no node")?.to_owned();
    scene.kubectl(&["uncordon", &first])?;
    ensure!(first != second && before.uid() != after.uid(), "the pod stayed on {first}");
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
    let unready = until(&pods, "game", "not Ready", |pod| pod.is_some_and(|pod| !pod_is_ready(pod))).await;
    // The cable goes back in also if the test has failed.
    scene.cluster().set_link(node, true)?;
    unknown?;
    unready?;
    until(&nodes, &node.name(), "Ready again", |node| node.and_then(ready_status) == Some("True")).await?;
    let after = until_pod_ready(&pods, "game").await?;
    ensure!(before.uid() == after.uid(), "another pod");
    let restarts = |pod: &Pod| pod.status.as_ref()?.container_statuses.as_ref()?.first().map(|status| status.restart_count);
    ensure!(restarts(&after) == Some(0), "a cut cable restarts nothing");
    Ok(())
}
