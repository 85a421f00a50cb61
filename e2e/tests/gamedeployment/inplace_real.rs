//! In-place updates on real nodes: players and neighbouring containers do not notice them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::game_server::{ask, get};
use e2e::pod::{container, gate, ip, node_of};
use e2e::{Game, Place, Scene, Suite, audited, in_place};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use localkube::game_image;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let real = Place::Real;
    suite.sharing(real, a_neighbour_and_shared_memory_notice_nothing);
    suite.sharing(real, a_rollout_fails_no_request);
    suite.sharing(real, a_retag_a_broken_image_and_a_rollback_complete);
    suite.disturbing(real, a_lost_node_holds_up_only_its_own_pod);
    suite.sharing(real, resources_change_without_a_restart);
    suite.sharing(real, a_memory_limit_is_lowered_where_kubernetes_can);
}

fn server(name: &str, image: &str, port: u16) -> Value {
    json!({
        "name": name, "image": image, "env": [{ "name": "PORT", "value": port.to_string() }, { "name": "GAME_DRAIN", "value": "0" }],
        "readinessProbe": { "httpGet": { "path": "/readyz", "port": port }, "periodSeconds": 1 },
    })
}

fn spec(replicas: i32, grace: i32, containers: &Value) -> Value {
    let mut spec = in_place(replicas, grace);
    spec["template"] = json!({ "spec": { "containers": containers } });
    spec
}

fn service(scene: &Scene, name: &str) -> Result<()> {
    scene.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": { "selector": { "app": name }, "ports": [{ "port": 8000 }] },
    }))
}

/// The ready addresses of a Service, kept up to date until it is dropped.
struct Followed {
    ready: Arc<Mutex<BTreeSet<String>>>,
    /// How often an address was removed from the endpoints.
    removals: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Followed {
    fn start(scene: &Scene, service: &str) -> Self {
        let slices: Api<EndpointSlice> = scene.api();
        let (ready, removals) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicUsize::new(0)));
        let (known, removed) = (Arc::clone(&ready), Arc::clone(&removals));
        let config = watcher::Config::default().labels(&format!("kubernetes.io/service-name={service}"));
        let task = tokio::spawn(async move {
            let mut changes = std::pin::pin!(watcher(slices, config).default_backoff().applied_objects());
            while let Some(change) = changes.next().await {
                let Ok(slice) = change else { continue };
                let serving = slice
                    .endpoints
                    .into_iter()
                    .flatten()
                    .filter(|one| one.conditions.as_ref().is_some_and(|seen| seen.ready == Some(true)));
                let now: BTreeSet<String> = serving.flat_map(|one| one.addresses).collect();
                let mut known = known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                removed.fetch_add(known.difference(&now).count(), Ordering::Relaxed);
                *known = now;
            }
        });
        Self { ready, removals, task }
    }

    fn addresses(&self) -> BTreeSet<String> {
        self.ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

async fn a_neighbour_and_shared_memory_notice_nothing(scene: Arc<Scene>) -> Result<()> {
    let pair = |image: &str| json!([server("game", image, 8000), server("side", "main:v1", 8001)]);
    let game = Game::apply(&scene, "pair", &spec(1, 5, &pair("main:v1")))?;
    service(&scene, "pair")?;
    let followed = Followed::start(&scene, "pair");
    game.until_rest("Complete").await?;
    let before = game.pods().await?.pop().context("no pod")?;
    let address = ip(&before)?;
    e2e::eventually("the endpoints lack the pod", || followed.addresses().contains(&address)).await?;
    ask(&before, "PUT /shm/score HTTP/1.1\r\nContent-Length: 4\r\n\r\n1234")?;
    // A player on the neighbouring container, whose session must not break.
    let mut player = TcpStream::connect((address.as_str(), 8001))?;
    player.set_read_timeout(Some(Duration::from_secs(30)))?;
    player.write_all(b"GET /play HTTP/1.1\r\n\r\n")?;
    game.patch(json!({ "spec": { "template": { "spec": { "containers": pair("main:v2") } } } })).await?;
    e2e::eventually("the pod is still in the endpoints", || followed.addresses().is_empty()).await?;
    let drained = game.pods().await?.pop().context("no pod")?;
    ensure!(
        container(&drained, "game").is_some_and(|game| game.restart_count == 0),
        "it restarted before it was removed from the endpoints"
    );
    ensure!(get(&drained, "/version")? == "v1", "the old version is gone before the end of the grace period");
    game.until_rest("Complete").await?;
    let after = game.pods().await?.pop().context("no pod")?;
    ensure!(
        (after.uid(), ip(&after)?, node_of(&after)?) == (before.uid(), address.clone(), node_of(&before)?),
        "another pod, address or node"
    );
    let status = |pod: &Pod, name: &str| container(pod, name).map(|one| (one.container_id.clone(), one.restart_count));
    ensure!(status(&after, "side") == status(&before, "side"), "the neighbouring container restarted");
    ensure!(status(&after, "game").is_some_and(|(_, restarts)| restarts == 1), "{:?}", status(&after, "game"));
    ensure!(get(&after, "/version")? == "v2" && get(&after, "/shm/score")? == "1234", "shared memory is lost");
    let pause = started(&after).zip(gate_since(&drained)).map(|(started, drained)| started.duration_since(drained).as_secs());
    ensure!(pause.is_some_and(|seconds| seconds >= 5), "restarted {pause:?} seconds after it was drained");
    e2e::eventually("the pod is not back in the endpoints", || followed.addresses().contains(&address)).await?;
    // The session has lasted all the time: a line for every second.
    let lines = BufReader::new(player).lines().take(8).collect::<Result<Vec<_>, _>>()?;
    ensure!(lines.len() == 8, "the session on the neighbouring container broke");
    Ok(())
}

fn started(pod: &Pod) -> Option<jiff::Timestamp> {
    Some(container(pod, "game")?.state.as_ref()?.running.as_ref()?.started_at.clone()?.0)
}

fn gate_since(pod: &Pod) -> Option<jiff::Timestamp> {
    Some(gate(pod).filter(|gate| gate.status == "False")?.last_transition_time.clone()?.0)
}

async fn a_rollout_fails_no_request(scene: Arc<Scene>) -> Result<()> {
    let one = |image: &str| json!([server("game", image, 8000)]);
    let game = Game::apply(&scene, "shop", &spec(6, 5, &one("main:v1")))?;
    service(&scene, "shop")?;
    let followed = Arc::new(Followed::start(&scene, "shop"));
    game.until_rest("Complete").await?;
    e2e::eventually("not all six pods are in the endpoints", || followed.addresses().len() == 6).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let (over, known) = (Arc::clone(&stop), Arc::clone(&followed));
    let client = tokio::task::spawn_blocking(move || {
        let (mut answers, mut failures) = (BTreeMap::<String, usize>::new(), Vec::new());
        while !over.load(Ordering::Relaxed) {
            for address in known.addresses() {
                match version(&address) {
                    Ok(version) => *answers.entry(version).or_default() += 1,
                    Err(error) => failures.push(format!("{address}: {error:#}")),
                }
            }
        }
        (answers, failures)
    });
    game.patch(json!({ "spec": { "template": { "spec": { "containers": one("main:v2") } } } })).await?;
    let rest = game.until_rest("Complete").await;
    e2e::eventually("not all six pods are back in the endpoints", || followed.addresses().len() == 6).await?;
    stop.store(true, Ordering::Relaxed);
    let (answers, failures) = client.await?;
    rest?;
    ensure!(failures.is_empty(), "{} requests failed: {:?}", failures.len(), failures.first());
    ensure!(answers.get("v1").is_some_and(|count| *count > 100) && answers.get("v2").is_some_and(|count| *count > 100), "{answers:?}");
    ensure!(followed.removals.load(Ordering::Relaxed) == 6, "{} removals from the endpoints", followed.removals.load(Ordering::Relaxed));
    Ok(())
}

fn version(address: &str) -> Result<String> {
    use std::io::Read as _;
    let mut stream = TcpStream::connect_timeout(&format!("{address}:8000").parse()?, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"GET /version HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("half an answer")?;
    ensure!(head.contains("200"), "{head}");
    Ok(body.to_owned())
}

async fn a_retag_a_broken_image_and_a_rollback_complete(scene: Arc<Scene>) -> Result<()> {
    let one = |image: &str| json!([server("game", image, 8000)]);
    let game = Game::apply(&scene, "odd", &spec(1, 0, &one("main:v1")))?;
    game.until_rest("Complete").await?;
    let uid = game.pods().await?.pop().context("no pod")?.uid();
    let set = |image: &str| game.patch(json!({ "spec": { "template": { "spec": { "containers": one(image) } } } }));
    let pod = || async { game.pods().await?.pop().context("no pod") };
    // The same digest under another tag: only the restart count shows that the update is complete.
    scene.cluster().push_image("main:v1-again", &game_image("v1")?)?;
    set("main:v1-again").await?;
    game.until_rest("Complete").await?;
    ensure!(container(&pod().await?, "game").is_some_and(|game| game.restart_count == 1), "a retag did not restart");
    // An image that does not exist, repaired by another template.
    set("main:nowhere").await?;
    game.until("the pull fails", |status| status["conditions"].to_string().contains("ImagePull")).await?;
    set("main:v2").await?;
    game.until_rest("Complete").await?;
    ensure!(get(&pod().await?, "/version")? == "v2", "the new version does not run");
    // The same, repaired by a rollback to what ran before.
    set("main:nowhere-either").await?;
    game.until("the pull fails", |status| status["conditions"].to_string().contains("ImagePull")).await?;
    set("main:v2").await?;
    game.until_rest("Complete").await?;
    ensure!(get(&pod().await?, "/version")? == "v2", "the old version does not run");
    // A rollback in the grace period restarts nothing.
    let restarts = container(&pod().await?, "game").map(|game| game.restart_count);
    game.patch(json!({ "spec": { "updateStrategy": { "inPlaceUpdateStrategy": { "gracePeriodSeconds": 600 } } } })).await?;
    set("main:v1").await?;
    game.until("drained", |status| status["readyReplicas"] == 0 && status["updatedReplicas"] == 1).await?;
    set("main:v2").await?;
    game.until_rest("Complete").await?;
    let after = pod().await?;
    ensure!(
        container(&after, "game").map(|game| game.restart_count) == restarts && after.uid() == uid,
        "restarted without need, or replaced"
    );
    Ok(())
}

async fn resources_change_without_a_restart(scene: Arc<Scene>) -> Result<()> {
    let one = |cpu: &str, image: &str| {
        let mut container = server("game", image, 8000);
        container["resources"] = json!({ "requests": { "cpu": cpu, "memory": "32Mi" }, "limits": { "cpu": "1", "memory": "64Mi" } });
        json!([container])
    };
    let game = Game::apply(&scene, "sized", &spec(2, 0, &one("50m", "main:v1")))?;
    game.until_rest("Complete").await?;
    let set = |cpu: &'static str, image: &'static str| {
        game.patch(json!({ "spec": { "template": { "spec": { "containers": one(cpu, image) } } } }))
    };
    let requested = |pod: &Pod| {
        let resources = container(pod, "game").and_then(|game| game.resources.clone()).and_then(|resources| resources.requests);
        resources.and_then(|requests| requests.get("cpu").map(|cpu| cpu.0.clone()))
    };
    let before: Vec<_> = game.pods().await?.iter().map(ResourceExt::uid).collect();
    set("100m", "main:v1").await?;
    game.until_rest("Complete").await?;
    for pod in game.pods().await? {
        ensure!(before.contains(&pod.uid()) && requested(&pod).as_deref() == Some("100m"), "{:?}", requested(&pod));
        ensure!(container(&pod, "game").is_some_and(|game| game.restart_count == 0), "restarted for a change of resources");
    }
    // Together with an image, in one update.
    set("150m", "main:v2").await?;
    game.until_rest("Complete").await?;
    for pod in game.pods().await? {
        ensure!(requested(&pod).as_deref() == Some("150m") && get(&pod, "/version")? == "v2", "{:?}", requested(&pod));
        ensure!(container(&pod, "game").is_some_and(|game| game.restart_count == 1), "not exactly one restart");
    }
    // More than any node has: nothing restarts, the rollout stops and reports why, and a rollback repairs it.
    set("150m", "main:v2").await?;
    let huge = json!([{ "name": "game", "image": "main:v2", "resources": { "requests": { "cpu": "64", "memory": "32Mi" }, "limits": { "cpu": "64", "memory": "64Mi" } } }]);
    let mut template = one("150m", "main:v2");
    e2e::merge(&mut template[0], &huge[0]);
    game.patch(json!({ "spec": { "template": { "spec": { "containers": template } } } })).await?;
    game.until("the resize is infeasible", |status| status["conditions"].to_string().contains("ResizeInfeasible")).await?;
    set("150m", "main:v2").await?;
    game.until_rest("Complete").await?;
    Ok(())
}

async fn a_lost_node_holds_up_only_its_own_pod(scene: Arc<Scene>) -> Result<()> {
    let spread = json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "app": "split" } },
    }] });
    let mut spec = spec(2, 0, &json!([server("game", "main:v1", 8000)]));
    e2e::merge(&mut spec["template"]["spec"], &spread);
    spec["updateStrategy"]["maxUnavailable"] = json!(2);
    let game = Game::apply(&scene, "split", &spec)?;
    game.until_rest("Complete").await?;
    let lost = scene.cluster().real_nodes().get(1).context("no second node")?;
    scene.cluster().set_link(lost, false)?;
    let update = async {
        let container = json!([server("game", "main:v2", 8000)]);
        game.patch(json!({ "spec": { "template": { "spec": { "containers": container } } } })).await?;
        // The pod on the other node is updated; the one on the lost node is waited for and named.
        game.until("one is updated", |status| status["updatedReadyReplicas"] == 1 && status["readyReplicas"] == 1).await
    };
    let updated = update.await;
    // The link is restored even if the test has failed.
    scene.cluster().set_link(lost, true)?;
    let status = updated?;
    ensure!(status["conditions"].to_string().contains("waiting for split-"), "{status}");
    game.until_rest("Complete").await?;
    for pod in game.pods().await? {
        ensure!(container(&pod, "game").is_some_and(|game| game.restart_count == 1), "not exactly one restart");
    }
    Ok(())
}

async fn a_memory_limit_is_lowered_where_kubernetes_can(scene: Arc<Scene>) -> Result<()> {
    let version: Value = serde_json::from_str(&scene.kubectl(&["version", "-o", "json"])?)?;
    let can = version["serverVersion"]["minor"].as_str().and_then(|minor| minor.parse::<u32>().ok()).context("no version")? >= 34;
    let containers = |memory: &str| {
        let mut container = server("game", "main:v1", 8000);
        container["resources"] = json!({ "requests": { "memory": "32Mi" }, "limits": { "memory": memory } });
        json!([container])
    };
    let game = Game::apply(&scene, "memory", &spec(2, 0, &containers("64Mi")))?;
    game.until_rest("Complete").await?;
    game.patch(json!({ "spec": { "template": { "spec": { "containers": containers("48Mi") } } } })).await?;
    let status = game.until_rest(if can { "Complete" } else { "InPlaceNotPossible" }).await?.to_string();
    ensure!(can || status.contains("resources.limits.memory (is lowered"), "{status}");
    ensure!(audited(&scene, "pods", "resize", "patch") == if can { 2 } else { 0 }, "an unexpected number of resizes");
    Ok(())
}
