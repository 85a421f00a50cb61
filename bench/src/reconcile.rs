//! The cost of one reconcile pass of one object, without a cluster: observing it in the caches and deciding what to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use operator::allowance::Allowance;
use operator::caches::Caches;
use operator::controller::{Known, Pass, Reconcile};
use operator::kinds::gamedeployment::GameDeployments;
use operator::store::{Cached, Key, Store};
use serde_json::json;

use crate::median;

/// Own pods, and pods of other GameDeployments.
const SIZES: [(usize, usize); 5] = [(100, 0), (1_000, 0), (10_000, 0), (1_000, 100_000), (10_000, 100_000)];
/// Pods that are all to be deleted and wait for their hook.
const WAITING: usize = 5_000;
/// Passes per size, of which the median counts.
const PASSES: usize = 21;

/// One row per size.
pub(crate) fn table() -> Result<Vec<String>> {
    let mut lines = vec![
        "| own pods | pods of others | one pass | per own pod | allocations per own pod | bytes per own pod |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    for (own, others) in SIZES {
        lines.push(row(&own.to_string(), (own, others), &measure(own, others)?));
    }
    lines.push(row(&format!("{WAITING}, surplus, all waiting for their hook"), (WAITING, 0), &measure_waiting()?));
    Ok(lines)
}

fn row(what: &str, (own, others): (usize, usize), cost: &PassCost) -> String {
    let per_pod = |total: f64| total / own as f64;
    let (time, allocations, bytes) = (cost.time.as_secs_f64(), per_pod(cost.allocations as f64), per_pod(cost.bytes as f64));
    format!("| {what} | {others} | {:.2} ms | {:.2} µs | {allocations:.2} | {bytes:.0} |", time * 1e3, per_pod(time * 1e6))
}

/// What one pass costs.
struct PassCost {
    time: Duration,
    allocations: u64,
    bytes: u64,
}

fn world() -> GameDeployments {
    let (caches, _) = Caches::new(Arc::new(Allowance::default()), jiff::SignedDuration::from_mins(5), Arc::default());
    // Empty, but listed.
    caches.pods.set_listed();
    caches.revisions.set_listed();
    caches.hook_runs.set_listed();
    caches.hook_templates.set_listed();
    caches.nodes.store.set_listed();
    caches.budgets.set_listed();
    GameDeployments::new(Arc::new(caches))
}

fn pass(world: &GameDeployments, key: &Key) -> Result<Pass<<GameDeployments as Reconcile>::Status>> {
    world.pass(key, &Known::default(), Timestamp::now()).context("no object")
}

fn measure(own: usize, others: usize) -> Result<PassCost> {
    let world = world();
    let key = add_game(&world, "bench", own)?;
    // A pass without pods, for the name of the revision that the pods get.
    let revision = pass(&world, &key)?.plan.status.update_revision;
    add_pods(&world, "bench", own, &revision, &json!({}))?;
    for number in 0..others / 1_000 {
        add_pods(&world, &format!("other-{number}"), 1_000, "other-1", &json!({}))?;
    }
    measure_passes(&world, &key, own)
}

/// A scale-in to 0: the hooks of all pods are asked, and none has answered.
fn measure_waiting() -> Result<PassCost> {
    let world = world();
    let metric = json!({ "name": "ask", "provider": { "web": { "url": "http://192.0.2.1", "jsonPath": "{.free}" } } });
    let template = json!({ "metadata": { "name": "ask", "namespace": "bench", "uid": "ask", "resourceVersion": "1" }, "spec": { "metrics": [metric] } });
    put(&world.caches.hook_templates, &template)?;
    let key = add_game(&world, "bench", 0)?;
    let revision = pass(&world, &key)?.plan.status.update_revision;
    add_pods(&world, "bench", WAITING, &revision, &json!({ "io.tencent.bcs.dev/game-pod-deleting": "true" }))?;
    loop {
        let plan = serde_json::to_value(pass(&world, &key)?.plan.steps)?;
        let new: Vec<_> = plan
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|step| step.as_array())
            .flatten()
            .filter_map(|action| action.get("CreateHookRun"))
            .collect();
        if new.is_empty() {
            break;
        }
        for new in new {
            let owner = json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "bench", "uid": "bench", "controller": true });
            let metadata = json!({
                "name": new["name"], "namespace": "bench", "uid": new["name"], "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": new["labels"], "ownerReferences": [owner],
            });
            put(&world.caches.hook_runs, &json!({ "metadata": metadata, "spec": new["spec"] }))?;
        }
    }
    ensure!(world.caches.hook_runs.len() == WAITING, "{} hooks are asked", world.caches.hook_runs.len());
    measure_passes(&world, &key, WAITING)
}

fn put<T: Cached>(store: &Store<T>, object: &serde_json::Value) -> Result<()> {
    let object = T::decode(&object.to_string())?;
    store.put(&object.key(), Some(object));
    Ok(())
}

fn measure_passes(world: &GameDeployments, key: &Key, own: usize) -> Result<PassCost> {
    let once = || {
        let pass = pass(world, key)?;
        ensure!(pass.pods == own, "{} pods were seen", pass.pods);
        Ok(())
    };
    let timed = || {
        let started = Instant::now();
        once().map(|()| started.elapsed())
    };
    let time = median((0..PASSES).map(|_| timed()).collect::<Result<Vec<Duration>>>()?, |time| *time)?;
    // Allocations are counted in a separate pass, because counting takes time.
    let mut counted = Ok(());
    let memory = allocation_counter::measure(|| counted = once());
    counted?;
    Ok(PassCost { time, allocations: memory.count_total, bytes: memory.bytes_total })
}

fn add_game(world: &GameDeployments, name: &str, replicas: usize) -> Result<Key> {
    let object = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
        "metadata": { "name": name, "namespace": "bench", "uid": name, "resourceVersion": "1", "generation": 1 },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": { "containers": [{ "name": "game", "image": "game:1" }] } },
            "preDeleteUpdateStrategy": { "hook": { "templateName": "ask" } },
        },
    });
    put(&world.objects, &object)?;
    Ok(Key { namespace: "bench".to_owned(), name: name.to_owned() })
}

fn add_pods(world: &GameDeployments, owner: &str, count: usize, revision: &str, annotations: &serde_json::Value) -> Result<()> {
    for number in 0..count {
        let object = json!({
            "metadata": {
                "name": format!("{owner}-{number}"), "namespace": "bench", "uid": format!("{owner}-{number}"), "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": annotations,
                "labels": { "app": owner, "controller-revision-hash": revision, "tkex.bkbcs.tencent.com/gamedeployment-instance-id": format!("{number:05}") },
                "ownerReferences": [{ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": owner, "uid": owner, "controller": true }],
            },
            "spec": { "nodeName": format!("node-{}", number % 10) },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z" }] },
        });
        put(&world.caches.pods, &object)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the middle of an in-place update, with two containers.
    const MOST_BYTES_OF_A_POD: i64 = 1_800;

    #[test]
    fn a_pass_allocates_little_for_each_pod_and_nothing_for_those_of_others() {
        let (alone, among_others) = (measure(1_000, 0).unwrap().allocations, measure(1_000, 20_000).unwrap().allocations);
        assert!(alone <= 1_500, "{alone} allocations for 1,000 pods");
        assert_eq!(alone, among_others);
    }

    /// A pod in the middle of an in-place update, as an API server sends it.
    fn recorded_pod() -> serde_json::Value {
        let recorded = include_str!("../../planner/tests/compat/0.1.0.yaml");
        let all: serde_json::Value = serde_saphyr::from_str(recorded).unwrap();
        let is_updated = |pod: &&serde_json::Value| pod["metadata"]["annotations"].get("inplace-update-grace").is_some();
        all["items"].as_array().unwrap().iter().filter(|object| object["kind"] == "Pod").find(is_updated).unwrap().clone()
    }

    #[test]
    fn a_pod_needs_little_memory_and_one_that_is_gone_none() {
        let world = world();
        let (recorded, key) = (recorded_pod(), |number: usize| format!("game-{number}"));
        let put_pod = |number: usize| {
            let mut pod = recorded.clone();
            let name = key(number);
            pod["metadata"]["name"] = json!(name);
            pod["metadata"]["uid"] = json!(format!("0f418b08-a749-4382-8bce-{number:012}"));
            pod["metadata"]["labels"]["tkex.bkbcs.tencent.com/gamedeployment-instance-id"] = json!(format!("{number:05}"));
            pod["status"]["podIP"] = json!(format!("10.128.{}.{}", number / 256, number % 256));
            pod["status"]["podIPs"] = json!([{ "ip": pod["status"]["podIP"] }]);
            put(&world.caches.pods, &pod).unwrap();
        };
        let namespace = recorded["metadata"]["namespace"].as_str().unwrap().to_owned();
        let remove = |number: usize| drop(world.caches.pods.put(&Key { namespace: namespace.clone(), name: key(number) }, None));
        let kept = allocation_counter::measure(|| (0..1_000).for_each(put_pod)).bytes_current;
        assert_eq!(world.caches.pods.len(), 1_000);
        assert!(kept <= 1_000 * MOST_BYTES_OF_A_POD, "{} bytes for each pod", kept / 1_000);
        (0..1_000).for_each(remove);
        // The room in the maps stays for the next pods.
        let left = allocation_counter::measure(|| {
            for first in [1_000, 2_000, 3_000] {
                (first..first + 1_000).for_each(put_pod);
                (first..first + 1_000).for_each(remove);
            }
        });
        assert!(left.bytes_current <= 3_000, "{} bytes are left of three thousand pods", left.bytes_current);
    }
}
