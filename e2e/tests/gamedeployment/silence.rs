//! Nodes that do not answer: a silent node is not yet a lost node.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::{serve_sessions, sessions_hook};
use e2e::pod::{is_leaving, node_of, uids};
use e2e::{Game, Place, Scene, Suite, eventually, node_silence, until};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use localkube::OperatorOptions;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.disturbing(fake, a_named_pod_is_kept_until_its_node_is_lost);
    suite.disturbing(fake, a_node_that_is_out_of_service_is_lost_at_once);
    suite.alone(when_all_nodes_are_silent_no_pod_is_given_up);
}

/// Pods that Kubernetes does not evict from a node that does not answer.
fn patient(replicas: i32) -> Value {
    let toleration = json!({ "key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute" });
    json!({ "replicas": replicas, "template": { "spec": { "tolerations": [toleration] } } })
}

fn fall_silent(scene: &Scene, node: &str, silent: bool) -> Result<()> {
    let label = format!("localkube/fake={}", if silent { "off" } else { "on" });
    scene.kubectl(&["label", "node", node, &label, "--overwrite"]).map(drop)
}

/// Waits until a node is Unknown, and returns since when it is.
async fn until_unknown(scene: &Scene, node: &str) -> Result<Timestamp> {
    let nodes: Api<Node> = Api::all(scene.client());
    let unknown = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let ready = conditions.into_iter().find(|one| one.type_ == "Ready" && one.status == "Unknown");
        ready.and_then(|one| one.last_transition_time).map(|time| time.0)
    };
    let seen = until(&nodes, node, "Unknown", |node| node.is_some_and(|node| unknown(node).is_some())).await?;
    seen.as_ref().and_then(unknown).context("no node")
}

async fn a_named_pod_is_kept_until_its_node_is_lost(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let mut spec = patient(4);
    e2e::merge(&mut spec, &json!({ "preDeleteUpdateStrategy": sessions_hook() }));
    let game = Game::apply(&scene, "door", &spec)?;
    game.until_rest("Complete").await?;
    let before = game.pods().await?;
    let named = before.first().context("no pod")?;
    let (name, node) = (named.name_any(), node_of(named)?);
    game.patch(json!({ "spec": { "scaleStrategy": { "podsToDelete": [name] } } })).await?;
    eventually("the hook is not asked", || !sessions.asked().is_empty()).await?;
    fall_silent(&scene, &node, true)?;
    let kept = async {
        let since = until_unknown(&scene, &node).await?;
        game.until("the pods that are kept are reported", |status| status["conditions"].to_string().contains("are kept")).await?;
        until(&scene.pods(), &name, "being deleted", is_leaving).await?;
        let waited = Timestamp::now().duration_since(since).as_secs();
        ensure!(waited >= i64::try_from(node_silence().as_secs())?, "it was deleted after {waited} s");
        eventually("no event says that the node is lost", || {
            scene.kubectl(&["get", "events"]).is_ok_and(|events| events.contains("its node is lost"))
        })
        .await?;
        let now = game.pods().await?;
        let is_there = |pod: &&Pod| now.iter().any(|other| other.uid() == pod.uid());
        let gone: Vec<String> = before.iter().filter(|pod| !is_there(pod)).map(ResourceExt::name_any).collect();
        ensure!(gone == [name.clone()], "{gone:?} were deleted");
        Ok(())
    };
    let kept = kept.await;
    fall_silent(&scene, &node, false)?;
    kept
}

async fn a_node_that_is_out_of_service_is_lost_at_once(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 1, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let pod = game.pods().await?.pop().context("no pod")?;
    let node = node_of(&pod)?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=0"])?;
    eventually("the hook is not asked", || !sessions.asked().is_empty()).await?;
    fall_silent(&scene, &node, true)?;
    let gone = async {
        until_unknown(&scene, &node).await?;
        scene.kubectl(&["taint", "node", &node, "node.kubernetes.io/out-of-service=nodeshutdown:NoSchedule"])?;
        until(&scene.pods(), &pod.name_any(), "being deleted", is_leaving).await?;
        eventually("no event says that the node is lost", || {
            scene.kubectl(&["get", "events"]).is_ok_and(|events| events.contains("its node is lost"))
        })
        .await
    };
    let gone = gone.await;
    fall_silent(&scene, &node, false)?;
    // It is no error if the taint was never set.
    let _ = scene.kubectl(&["taint", "node", &node, "node.kubernetes.io/out-of-service-"]);
    gone
}

async fn when_all_nodes_are_silent_no_pod_is_given_up(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let args = vec!["--leader-elect=false".into(), format!("--node-silence={}s", node_silence().as_secs()).into()];
    let _operators = cluster.start_operators(&OperatorOptions { args, ..OperatorOptions::default() }).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "silence").await?);
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let mut spec = patient(9);
    e2e::merge(&mut spec, &json!({ "preDeleteUpdateStrategy": { "protect": true, "hook": { "templateName": "drained" } } }));
    let game = Game::apply(&scene, "door", &spec)?;
    let before = uids(&game.until_protected().await?);
    let nodes: Vec<String> = scene.kubectl(&["get", "nodes", "-o", "name"])?.lines().map(|line| line.replace("node/", "")).collect();
    for node in &nodes {
        fall_silent(&scene, node, true)?;
    }
    let mut since = Timestamp::MIN;
    for node in &nodes {
        since = since.max(until_unknown(&scene, node).await?);
    }
    game.until("the reason why no node counts as lost is reported", |status| {
        status["conditions"].to_string().contains("none of them counts as lost")
    })
    .await?;
    // A scale-in meanwhile deletes no pod: it is not known which pods still serve.
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=8"])?;
    let beyond = i64::try_from(2 * node_silence().as_secs())?;
    let mut lost = 0;
    eventually("no pod was deleted, and the wait did not end", || {
        let times = scene.kubectl(&["get", "pods", "-o", "jsonpath={.items[*].metadata.deletionTimestamp}"]);
        lost = times.map_or(0, |times| times.split_whitespace().count());
        lost > 0 || Timestamp::now().duration_since(since).as_secs() > beyond
    })
    .await?;
    ensure!(lost == 0, "{lost} pods were deleted");
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=9"])?;
    for node in &nodes {
        fall_silent(&scene, node, false)?;
    }
    ensure!(uids(&game.until_protected().await?) == before, "pods were replaced");
    ensure!(sessions.asked().is_empty(), "the hook was asked: {:?}", sessions.asked());
    Ok(())
}
