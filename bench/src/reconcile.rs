//! What one look at one object costs, without a cluster: observing it in the caches and deciding what to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use operator::controller::Known;
use operator::controller::Workload;
use operator::kinds::gamedeployment::{Entry, GameDeployments};
use operator::kinds::node::Deleted;
use operator::kinds::pod::Pod;
use operator::store::{Kept, Key};
use serde_json::json;

/// Own pods, and pods of other GameDeployments.
const SIZES: [(usize, usize); 5] = [(100, 0), (1_000, 0), (10_000, 0), (1_000, 100_000), (10_000, 100_000)];
/// Looks per size.
const LOOKS: u32 = 20;

/// One row per size.
pub(crate) fn table() -> Result<Vec<String>> {
    let mut lines = vec![
        "| own pods | pods of others | one look | per own pod | allocations per own pod | bytes per own pod |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    for (own, others) in SIZES {
        let Look { time, allocations, bytes } = measure(own, others)?;
        let per_pod = |total: f64| total / own as f64;
        lines.push(format!(
            "| {own} | {others} | {:.2} ms | {:.2} µs | {:.2} | {:.0} |",
            time.as_secs_f64() * 1e3,
            per_pod(time.as_secs_f64() * 1e6),
            per_pod(allocations as f64),
            per_pod(bytes as f64)
        ));
    }
    Ok(lines)
}

/// What one look costs.
struct Look {
    time: Duration,
    allocations: u64,
    bytes: u64,
}

fn measure(own: usize, others: usize) -> Result<Look> {
    let (deleted, _) = Deleted::new();
    let world = GameDeployments::new(Arc::default(), Arc::new(deleted), jiff::SignedDuration::from_mins(5));
    let key = add_game(&world, "bench", own)?;
    // A look before there are pods names the revision that pods then carry.
    let revision = world.pass(&key, &Known::default(), Timestamp::now()).context("no object")?.plan.status.update_revision;
    add_pods(&world, "bench", own, &revision)?;
    for number in 0..others / 1_000 {
        add_pods(&world, &format!("other-{number}"), 1_000, "other-1")?;
    }
    let look = || {
        let pass = world.pass(&key, &Known::default(), Timestamp::now()).context("no object")?;
        ensure!(pass.pods == own, "{} pods were seen", pass.pods);
        Ok(())
    };
    let started = Instant::now();
    (0..LOOKS).try_for_each(|_| look())?;
    let time = started.elapsed() / LOOKS;
    // Counted apart: counting takes time.
    let mut counted = Ok(());
    let memory = allocation_counter::measure(|| counted = look());
    counted?;
    Ok(Look { time, allocations: memory.count_total, bytes: memory.bytes_total })
}

fn add_game(world: &GameDeployments, name: &str, replicas: usize) -> Result<Key> {
    let object = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
        "metadata": { "name": name, "namespace": "bench", "uid": name, "resourceVersion": "1", "generation": 1 },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": { "containers": [{ "name": "game", "image": "game:1" }] } },
        },
    });
    let entry = Entry::decode(&object.to_string())?;
    let key = entry.key();
    world.objects.put(&key, Some(entry));
    Ok(key)
}

fn add_pods(world: &GameDeployments, owner: &str, count: usize, revision: &str) -> Result<()> {
    for number in 0..count {
        let object = json!({
            "metadata": {
                "name": format!("{owner}-{number}"), "namespace": "bench", "uid": format!("{owner}-{number}"), "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { "app": owner, "controller-revision-hash": revision, "tkex.bkbcs.tencent.com/gamedeployment-instance-id": "xxxxx" },
                "ownerReferences": [{ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": owner, "uid": owner, "controller": true }],
            },
            "spec": { "nodeName": format!("node-{}", number % 10) },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z" }] },
        });
        let pod = Pod::decode(&object.to_string())?;
        world.pods.put(&pod.key(), Some(pod));
    }
    Ok(())
}
