//! Ten thousand pods of one GameDeployment: how the time grows with their number, how soon a change takes effect, and what a small
//! neighbour notices.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use localkube::{Cluster, OperatorOptions};
use serde_json::{Value, json};

use crate::process::{idle, peak_memory, serving};
use crate::raw::Pods;
use crate::workload::Contender;
use crate::{median, pods, raw, rounds};

const PODS: usize = 10_000;
/// How often the number of pods is changed while nothing else happens.
const CHANGES: usize = 5;
/// How often the small neighbour is changed.
const EVERY: Duration = Duration::from_secs(1);
const SMALL: &str = "small";

/// One row per number of pods.
pub(crate) async fn growth(cluster: &Cluster, sizes: &[usize], workers: usize) -> Result<Vec<String>> {
    let operators = serving(cluster, &OperatorOptions::default()).await?;
    let ours = Contender::ours();
    let mut lines = vec![
        "| pods | plain client, bare pods: ready s | / 1000 pods | Gameplane: ready s | / 1000 pods | rate / plain |".to_owned(),
        format!("|{}", "---|".repeat(6)),
    ];
    let mut all = vec![(Vec::new(), Vec::new()); sizes.len()];
    for round in 0..sizes.iter().map(|count| rounds(*count)).max().unwrap_or_default() {
        for (count, (plain, created)) in sizes.iter().zip(&mut all).filter(|(count, _)| round < rounds(**count)) {
            plain.push(raw::measure(cluster, Pods::Bare, *count, workers).await?.ready);
            created.push(ours.create_only(cluster, *count).await?.ready);
        }
    }
    let mut fewest = None;
    for (count, (plain, created)) in sizes.iter().zip(all) {
        let (plain, created) = (median(plain, |time| *time)?.as_secs_f64(), median(created, |time| *time)?.as_secs_f64());
        let (plain_before, created_before) = *fewest.get_or_insert((plain, created));
        lines.push(format!(
            "| {count} | {plain:.1} | {:.1} | {created:.1} | {:.1} | {:.2} |",
            plain / plain_before,
            created / created_before,
            plain / created
        ));
    }
    operators.stop().await;
    Ok(lines)
}

/// One row.
pub(crate) async fn at_work(cluster: &Cluster) -> Result<Vec<String>> {
    // A new process, whose peak memory is that of these pods.
    let operators = serving(cluster, &OperatorOptions::default()).await?;
    let ours = Contender::ours_in_place();
    let (big, small) = (ours.prepare(cluster, "big", PODS).await?, ours.prepare(cluster, SMALL, 3).await?);
    pods::until_ready(&big.pods, "game:1", PODS, Instant::now()).await?;
    pods::until_ready(&small.pods, "game:1", 3, Instant::now()).await?;
    for change in 1..=CHANGES {
        idle(cluster).await?;
        scale(&big.api, PODS + change).await?;
        pods::until_ready(&big.pods, "game:1", PODS + change, Instant::now()).await?;
    }
    let changes = delays(cluster, "big")?;
    ensure!(changes.len() == CHANGES, "{} of {CHANGES} changes were followed by a write", changes.len());
    let started = Instant::now();
    let image = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "game", "image": "game:2" }] } } } });
    big.api.patch("bench", &PatchParams::default(), &Patch::Merge(image)).await?;
    let disturb = async {
        for replicas in [4, 3].into_iter().cycle() {
            tokio::time::sleep(EVERY).await;
            scale(&small.api, replicas).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        updated = pods::until_ready(&big.pods, "game:2", PODS + CHANGES, started) => drop(updated?),
        ended = disturb => ended?,
    }
    let (took, peak) = (started.elapsed(), peak_memory(ours.pid(cluster)?)?);
    let beside = delays(cluster, SMALL)?;
    operators.stop().await;
    for namespace in ["big", SMALL] {
        pods::remove_namespace(&cluster.client(), namespace).await?;
    }
    let at = |all: &[Duration], share: usize| all.get(all.len() * share / 100).copied().context("no change was followed by a write");
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(vec![
        "| pods updated in place | s | peak MiB | from a spec change to the first write, median of 5 | small changes beside it | from such a change to the first write, median | 99 % |".to_owned(),
        format!("|{}", "---|".repeat(7)),
        format!(
            "| {} | {:.1} | {} | {:.0} ms | {} | {:.0} ms | {:.0} ms |",
            PODS + CHANGES,
            took.as_secs_f64(),
            peak / (1024 * 1024),
            milliseconds(at(&changes, 50)?),
            beside.len(),
            milliseconds(at(&beside, 50)?),
            milliseconds(at(&beside, 99)?),
        ),
    ])
}

async fn scale(api: &Api<DynamicObject>, replicas: usize) -> Result<()> {
    api.patch("bench", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "replicas": replicas } }))).await?;
    Ok(())
}

/// How long after each change of a GameDeployment's spec the operator's first write in the namespace arrived at the API server, from
/// arrival to arrival, sorted.
fn delays(cluster: &Cluster, namespace: &str) -> Result<Vec<Duration>> {
    let (mut changed, mut delays): (Option<Timestamp>, Vec<Duration>) = (None, Vec::new());
    let mut entries = Vec::new();
    for line in BufReader::new(std::fs::File::open(cluster.audit_log())?).lines() {
        let line = line?;
        if !line.contains(&format!("\"namespace\":\"{namespace}\"")) {
            continue;
        }
        let entry: Value = serde_json::from_str(&line)?;
        let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let is_write = ["create", "patch", "delete"].contains(&text("/verb")) && text("/stage") == "ResponseComplete";
        let is_ours = text("/user/username") == "system:serviceaccount:bcs-system:gameplane";
        let is_status = text("/objectRef/subresource") == "status" && text("/objectRef/resource") == "gamedeployments";
        let is_change = !is_ours && text("/verb") == "patch" && text("/objectRef/resource") == "gamedeployments";
        if is_write && is_ours && !is_status && text("/objectRef/resource") != "events" {
            entries.push((text("/requestReceivedTimestamp").parse::<Timestamp>()?, false));
        } else if is_write && is_change {
            entries.push((text("/requestReceivedTimestamp").parse()?, true));
        }
    }
    entries.sort();
    for (time, is_change) in entries {
        if is_change {
            changed = Some(time);
        } else if let Some(since) = changed.take() {
            delays.push(time.duration_since(since).try_into().unwrap_or_default());
        }
    }
    delays.sort();
    Ok(delays)
}

/// A workload under measurement.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) api: Api<DynamicObject>,
    pub(crate) pods: Api<Pod>,
}

impl Contender {
    /// A workload of `count` pods in a new namespace.
    async fn prepare(&self, cluster: &Cluster, namespace: &str, count: usize) -> Result<Prepared> {
        pods::namespace(&cluster.client(), namespace).await?;
        let (api, pods) = self.apis(cluster, namespace)?;
        api.create(&PostParams::default(), &serde_json::from_value(self.manifest(count))?).await?;
        Ok(Prepared { api, pods })
    }
}
