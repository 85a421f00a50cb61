//! Which addresses hooks may connect to: not nodes, and with a policy only the cluster or the namespace.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::{HookServer, hook_run, impatient, own_address, verdict};
use e2e::operator::{log, single};
use e2e::pod::ip;
use e2e::{Game, Place, Scene, Suite, eventually, until, until_gone};
use localkube::{Cluster, Operators};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.sharing(Place::Real, a_node_address_is_reached_only_for_its_host_network_pod);
    suite.alone(within_the_cluster_means_its_networks_and_no_node);
    suite.alone(own_pods_means_pods_of_the_namespace);
}

/// Runs a hook that asks this address, and returns its message; none if it is successful.
async fn said(scene: &Scene, name: &str, url: &str) -> Result<Option<String>> {
    scene.apply(&hook_run(name, &impatient(json!({ "url": url }))))?;
    let status = verdict(scene, name).await?;
    Ok((status["phase"] != "Successful").then(|| status["message"].as_str().unwrap_or_default().to_owned()))
}

/// Asks repeatedly until the policy has noticed a change: until the message contains these words, or without words until
/// the run is successful.
async fn until_said(scene: &Scene, case: &str, url: &str, words: Option<&str>) -> Result<()> {
    let mut last = None;
    for number in 0..60 {
        last = said(scene, &format!("{case}-{number}"), url).await?;
        if last.as_deref().map_or(words.is_none(), |said| words.is_some_and(|words| said.contains(words))) {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    anyhow::bail!("{case}: {last:?}, not {words:?}")
}

/// Lets the operator list a resource, as the chart does for a policy.
async fn may_list(scene: &Scene, resource: &str) -> Result<()> {
    scene.kubectl(&["create", "clusterrole", "egress", "--verb=list", &format!("--resource={resource}")])?;
    scene.kubectl(&["create", "clusterrolebinding", "egress", "--clusterrole=egress", "--serviceaccount=bcs-system:gameplane"])?;
    scene.until_allowed(&["list", resource, "--as=system:serviceaccount:bcs-system:gameplane"]).await
}

async fn operators(cluster: &Cluster, policy: &str) -> Result<Operators> {
    let mut options = single();
    options.args.push(format!("--hook-policy={policy}").into());
    Ok(cluster.start_operators(&options).await?)
}

/// A HookTemplate that asks a URL with arguments about the pod, and ends at the first error.
fn template(name: &str, url: &str) -> Value {
    let metric = json!({
        "name": "sessions", "consecutiveErrorLimit": 0, "successCondition": "asInt(result) == 0",
        "provider": { "web": { "url": url, "jsonPath": "{$.sessions}", "timeoutSeconds": 5 } },
    });
    json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": { "name": name }, "spec": { "metrics": [metric] } })
}

async fn a_node_address_is_reached_only_for_its_host_network_pod(scene: Arc<Scene>) -> Result<()> {
    scene.apply(&template("kubelet", "http://{{ args.HostIP }}:10250/"))?;
    scene.apply(&template("game", "http://{{ args.PodIP }}:8000/"))?;
    let container = json!({
        "name": "game", "image": "main:v1", "env": [{ "name": "PORT", "value": "8000" }], "ports": [{ "containerPort": 8000 }],
        "readinessProbe": { "httpGet": { "path": "/readyz", "port": 8000 }, "periodSeconds": 1 },
    });
    let spec = json!({ "hostNetwork": true, "containers": [container] });
    let hook = |name: &str| json!({ "hook": { "templateName": name } });
    let spec = json!({ "replicas": 1, "preDeleteUpdateStrategy": hook("kubelet"), "template": { "spec": spec } });
    let game = Game::apply(&scene, "host", &spec)?;
    game.until_rest("Complete").await?;
    let pod = game.pods().await?.pop().context("no pod")?;
    let (name, address) = (pod.metadata.name.clone().context("no name")?, ip(&pod)?);
    // A HookRun that is not the operator's own.
    let refused = said(&scene, "by-hand", &format!("http://{address}:8000/")).await?.unwrap_or_default();
    ensure!(refused.contains(&format!("{address} is refused: it is a node's; --hook-allow-cidr {address}/32 would allow it")), "{refused}");
    // The operator's own, at a port that the pod does not declare.
    game.patch(json!({ "spec": { "replicas": 0 } })).await?;
    let refused = || {
        let path = "jsonpath={.items[*].status.message}";
        let about = ["get", "hookruns", "-l", "hook-template=kubelet", "-o", path];
        scene.kubectl(&about).is_ok_and(|said| said.contains("is refused: it is a node's"))
    };
    eventually("the kubelet's address is not refused", refused).await?;
    ensure!(game.pods().await?.len() == 1, "the pod was deleted without its hook");
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": hook("game") } })).await?;
    until_gone(&scene.pods(), &name).await
}

async fn within_the_cluster_means_its_networks_and_no_node(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = operators(&cluster, "cluster").await?;
    let scene = Scene::open(Arc::clone(&cluster), "within").await?;
    let (server, address) = (HookServer::json(&json!({ "age": 32 })).await?, own_address()?);
    let unknown = said(&scene, "unknown", &server.url()).await?.unwrap_or_default();
    ensure!(unknown.contains("the networks of this cluster are not known"), "{unknown}");
    ensure!(
        log(&cluster, "operator-1.log").contains("--hook-policy=cluster refuses all hooks over the network"),
        "the log does not say so"
    );
    may_list(&scene, "servicecidrs.networking.k8s.io").await?;
    until_said(&scene, "outside", &server.url(), Some("it is neither in the podCIDRs of a node nor in a ServiceCIDR")).await?;
    ensure!(server.requests() == 0, "an address outside was asked");
    let nodes = scene.kubectl(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
    let node = nodes.split_whitespace().next().context("no node")?;
    let network = json!({ "spec": { "podCIDR": format!("{address}/32"), "podCIDRs": [format!("{address}/32")] } });
    scene.kubectl(&["patch", "node", node, "--type=merge", "-p", &network.to_string()])?;
    until_said(&scene, "pod", &server.url(), None).await?;
    ensure!(server.requests() == 1, "{} requests", server.requests());
    // An address that is in a podCIDR and a node's counts as a node's.
    let place = json!({ "status": { "addresses": [{ "type": "ExternalIP", "address": address }] } });
    scene.kubectl(&["patch", "node", node, "--subresource=status", "--type=merge", "-p", &place.to_string()])?;
    until_said(&scene, "node", &server.url(), Some("it is a node's")).await?;
    let asked = server.requests();
    let mapped = said(&scene, "mapped", &format!("http://[::ffff:{address}]:{}/", server.port())).await?.unwrap_or_default();
    ensure!(mapped.contains("it is a node's") && server.requests() == asked, "{mapped}");
    Ok(())
}

async fn own_pods_means_pods_of_the_namespace(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = operators(&cluster, "own-pods").await?;
    let mine = Scene::open(Arc::clone(&cluster), "mine").await?;
    let yours = Scene::open(Arc::clone(&cluster), "yours").await?;
    let (server, address) = (HookServer::json(&json!({ "age": 32 })).await?, own_address()?);
    let lost = said(&yours, "lost", &server.url()).await?.unwrap_or_default();
    ensure!(lost.contains(&format!("it cannot be looked up whether {address} belongs to a Service of this namespace")), "{lost}");
    may_list(&yours, "services").await?;
    // A fake pod gets the address where the server listens.
    mine.pod("game", "game:1", &json!({}))?;
    until(&mine.pods(), "game", "Running", |pod| {
        pod.is_some_and(|pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running")))
    })
    .await?;
    let place = json!({ "status": { "podIP": address, "podIPs": [{ "ip": address }] } });
    mine.kubectl(&["patch", "pod", "game", "--subresource=status", "--type=merge", "-p", &place.to_string()])?;
    ensure!(said(&mine, "own", &server.url()).await?.is_none(), "its own pod is not asked");
    ensure!(server.requests() == 1, "{} requests", server.requests());
    let foreign = said(&yours, "foreign", &server.url()).await?.unwrap_or_default();
    ensure!(foreign.contains("it belongs neither to a pod of this namespace nor to a Service of it that has a selector"), "{foreign}");
    mine.apply(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "bare" }, "spec": { "ports": [{ "port": 80 }] } }))?;
    let service = mine.kubectl(&["get", "service", "bare", "-o", "jsonpath={.spec.clusterIP}"])?;
    let bare = said(&mine, "bare", &format!("http://{service}/")).await?.unwrap_or_default();
    ensure!(bare.contains("it belongs neither"), "a Service without a selector leads anywhere: {bare}");
    ensure!(server.requests() == 1, "{} requests", server.requests());
    Ok(())
}
