//! In-place updates: containers restart on another image, a quarter of the pods at a time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use localkube::{Cluster, OperatorOptions, Pace};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};

use crate::pods::{self, Seen};
use crate::process::{idle, serving};
use crate::workload::{Contender, Cost, Costs};
use crate::{PEER_ROUNDS, kruise, median, rounds};

/// One row each: how long it took, and what it cost.
pub(crate) async fn table(cluster: &Cluster, sizes: &[usize], workers: usize, peers: bool) -> Result<Vec<String>> {
    let mut rows = Rows::new();
    let operators = serving(cluster, &OperatorOptions::default()).await?;
    let ours = Contender::ours_in_place();
    let mut turns: BTreeMap<usize, (Vec<Seen>, Vec<Costs>)> = BTreeMap::new();
    // In turns, so that a slow minute of the machine affects every contender and every size.
    for round in 0..sizes.iter().map(|count| rounds(*count)).max().unwrap_or_default() {
        for count in sizes.iter().copied().filter(|count| round < rounds(*count)) {
            let (plain, costs) = turns.entry(count).or_default();
            plain.push(raw(cluster, count, workers).await?);
            costs.push(ours.measure(cluster, count).await?);
        }
    }
    for (count, (plain, costs)) in turns {
        rows.plain(count, &median(plain, |seen| seen.ready)?);
        rows.contender(ours.label, count, &Costs::median(&costs)?);
    }
    operators.stop().await;
    if peers {
        for (pace, label, rounds) in [(Pace::Unlimited, "CloneSet, unlimited", PEER_ROUNDS), (Pace::Shipped, "CloneSet, as shipped", 1)] {
            let _manager = kruise::start(cluster, pace).await?;
            let contender = Contender::clone_set_in_place(label);
            rows.contender(label, 1000, &contender.median(cluster, 1000, rounds).await?);
        }
    }
    Ok(rows.lines)
}

struct Rows {
    lines: Vec<String>,
    /// How long the plain client took, by the number of pods.
    plain: HashMap<usize, f64>,
    /// How long each contender took for the fewest pods.
    fewest: HashMap<String, f64>,
}

impl Rows {
    fn new() -> Self {
        let mut rows = Self { lines: Vec::new(), plain: HashMap::new(), fewest: HashMap::new() };
        rows.say("| contender | pods | updated and ready s | rate / plain | / fewest pods | pod writes | other writes | CPU s | peak MiB | each tenth ready after s |".to_owned());
        rows.say(format!("|{}", "---|".repeat(10)));
        rows
    }

    fn say(&mut self, line: String) {
        println!("{line}");
        self.lines.push(line);
    }

    fn plain(&mut self, count: usize, seen: &Seen) {
        let seconds = seen.ready.as_secs_f64();
        self.plain.insert(count, seconds);
        let growth = self.growth("plain client", seconds);
        self.say(format!("| plain client | {count} | {seconds:.1} | 1.00 | {growth} | 3.00 | | | | {} |", tenths(seen)));
    }

    fn contender(&mut self, label: &str, count: usize, costs: &Costs) {
        let Costs { roll: Cost { seen, cpu, pod_writes, other_writes }, peak_memory, .. } = costs;
        let seconds = seen.ready.as_secs_f64();
        let ratio = self.plain.get(&count).copied().unwrap_or(f64::NAN) / seconds;
        let growth = self.growth(label, seconds);
        self.say(format!(
            "| {label} | {count} | {seconds:.1} | {ratio:.2} | {growth} | {pod_writes:.2} | {other_writes:.2} | {cpu:.1} | {} | {} |",
            peak_memory / (1024 * 1024),
            tenths(seen)
        ));
    }

    /// How many times longer than for the fewest pods.
    fn growth(&mut self, label: &str, seconds: f64) -> String {
        match self.fewest.get(label) {
            Some(fewest) => format!("{:.1}", seconds / fewest),
            None => {
                self.fewest.insert(label.to_owned(), seconds);
                String::new()
            }
        }
    }
}

fn tenths(seen: &Seen) -> String {
    seen.tenths.iter().map(|tenth| format!("{:.1}", tenth.as_secs_f64())).collect::<Vec<_>>().join(" ")
}

/// What the plain client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Restarted,
    Ready,
}

type Waiting = Arc<Mutex<HashMap<String, (Wanted, oneshot::Sender<()>)>>>;

/// The baseline: the same three writes for each pod, a quarter of the pods at a time.
async fn raw(cluster: &Cluster, count: usize, workers: usize) -> Result<Seen> {
    let client = cluster.client();
    let name = pods::fresh_namespace(&client, &format!("raw-in-place-{count}")).await?;
    let api: Api<Pod> = Api::namespaced(client.clone(), &name);
    let created = Instant::now();
    let create = async {
        futures::stream::iter((0..count).map(|number| create(&api, number))).buffer_unordered(workers).try_collect::<Vec<()>>().await
    };
    tokio::try_join!(create, pods::until_ready(&api, "game:1", count, created))?;
    let waiting = Waiting::default();
    let watching = tokio::spawn(watch(api.clone(), Arc::clone(&waiting)));
    let calls = Semaphore::new(workers);
    idle(cluster).await?;
    let started = Instant::now();
    let update = async {
        let all = futures::stream::iter((0..count).map(|number| update(&api, number, &calls, &waiting)));
        all.buffer_unordered((count / 4).max(1)).try_collect::<Vec<()>>().await
    };
    let (_, seen) = tokio::try_join!(update, pods::until_ready(&api, "game:2", count, started))?;
    watching.abort();
    eprintln!("plain client, {count} pods: updated in place in {:.1} s", seen.ready.as_secs_f64());
    pods::remove_namespace(&client, &name).await?;
    Ok(seen)
}

fn gate(up: bool) -> Value {
    json!({ "status": { "conditions": [{ "type": "InPlaceUpdateReady", "status": if up { "True" } else { "False" } }] } })
}

async fn create(api: &Api<Pod>, number: usize) -> Result<()> {
    let name = format!("pod-{number}");
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": "bench" } },
        "spec": {
            "terminationGracePeriodSeconds": 1, "readinessGates": [{ "conditionType": "InPlaceUpdateReady" }],
            "containers": [{ "name": "game", "image": "game:1" }],
        },
    });
    api.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(gate(true))).await?;
    Ok(())
}

async fn update(api: &Api<Pod>, number: usize, calls: &Semaphore, waiting: &Waiting) -> Result<()> {
    let (name, params) = (format!("pod-{number}"), PatchParams::default());
    let wait = |wanted: Wanted| {
        let (done, waits) = oneshot::channel();
        waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), (wanted, done));
        async move {
            tokio::time::timeout(Duration::from_secs(600), waits)
                .await
                .context("a pod did not become ready within 600 s")?
                .context("the watch ended")
        }
    };
    let call = calls.acquire().await?;
    let mut down = gate(false);
    if let Some(fields) = down.as_object_mut() {
        let metadata = json!({ "labels": { "controller-revision-hash": "bench-2" }, "annotations": { "inplace-update-state": "{}" } });
        fields.insert("metadata".to_owned(), metadata);
    }
    api.patch_status(&name, &params, &Patch::Strategic(down)).await?;
    let restarted = wait(Wanted::Restarted);
    let image = json!({ "spec": { "containers": [{ "name": "game", "image": "game:2" }] } });
    api.patch(&name, &params, &Patch::Strategic(image)).await?;
    drop(call);
    restarted.await?;
    let ready = wait(Wanted::Ready);
    let call = calls.acquire().await?;
    api.patch_status(&name, &params, &Patch::Strategic(gate(true))).await?;
    drop(call);
    ready.await
}

/// Wakes the updates whose pods have restarted or become ready.
async fn watch(api: Api<Pod>, waiting: Waiting) {
    let mut changes = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
    while let Some(change) = changes.next().await {
        let Ok(pod) = change else { continue };
        let status = pod.status.as_ref();
        let restarted = status
            .and_then(|status| status.container_statuses.as_ref()?.first())
            .is_some_and(|container| container.image == "game:2" && container.state.as_ref().is_some_and(|state| state.running.is_some()));
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let ready = conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"));
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_reached = |(wanted, _): &(Wanted, oneshot::Sender<()>)| match wanted {
            Wanted::Restarted => restarted,
            Wanted::Ready => restarted && ready,
        };
        if waiting.get(&pod.name_any()).is_some_and(is_reached)
            && let Some((_, done)) = waiting.remove(&pod.name_any())
        {
            // The update may have timed out.
            let _ = done.send(());
        }
    }
}
