//! Fake nodes: kwok plays them and their pods through the API, by the Stages in `stages/`.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::cache::{Cache, go_architecture};
use crate::controlplane::ControlPlane;
use crate::error::{Asking, Error, Result};
use crate::pki::Subject;
use crate::process::{Daemon, bound_command};
use crate::rundir::RunDir;
use crate::tools::Tool;

const STAGES: [&str; 3] = [include_str!("../stages/kwok.yaml"), include_str!("../stages/node.yaml"), include_str!("../stages/pod.yaml")];

/// The label by which kwok recognises its nodes. With any value but `on` the node falls silent: no heartbeat, no change to its pods.
pub const FAKE_LABEL: &str = "localkube/fake";

/// Starts kwok and creates the nodes `fake-1` to `fake-<count>`.
pub(crate) async fn start(run: &RunDir, cache: &Cache, plane: &ControlPlane, count: u32) -> Result<Daemon> {
    let subject = Subject { user: "kwok", group: Some("system:masters") };
    let kubeconfig = plane.kubeconfig_for(run, "kwok", &subject)?;
    let stages = run.file("stages.yaml", STAGES.join("---\n"))?;
    let mut command = bound_command(cache.binary(Tool::Kwok)?);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--config")
        .arg(stages)
        .arg(format!("--manage-nodes-with-label-selector={FAKE_LABEL}=on"))
        .args(["--cidr=10.128.0.1/9", "--node-ip=10.127.0.1", "--node-lease-duration-seconds=40"])
        .arg("--v=WARN")
        // Memory is cheaper here than processor time.
        .env("GOGC", "400")
        .env("HOME", run.path());
    let daemon = Daemon::start("kwok", run.path(), command)?;
    let nodes: Api<Node> = Api::all(plane.client.clone());
    futures::stream::iter((1..=count).map(|number| create(&nodes, number))).buffer_unordered(16).try_collect::<Vec<()>>().await?;
    Ok(daemon)
}

async fn create(nodes: &Api<Node>, number: u32) -> Result<()> {
    let name = format!("fake-{number}");
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": {
            FAKE_LABEL: "on",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": go_architecture(),
        }},
    });
    let node = serde_json::from_value(node).map_err(|error| Error::Invalid(format!("{name}: {error}")))?;
    nodes.create(&PostParams::default(), &node).await.asking("cannot create a fake node").map(drop)
}
