//! The walk-throughs while the operator is killed again and again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::hook::HookServer;
use e2e::operator::{Killer, single};
use e2e::pod::{self, restarts};
use e2e::walkthrough::{canary, example, hook_template, resume, set_image};
use e2e::{Game, Scene, Suite, row, watch_pods};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use localkube::OperatorOptions;
use serde_json::json;

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(kill_9_breaks_no_walk_through);
}

/// What was violated at any event of any pod.
#[derive(Default)]
struct Violations {
    all: Vec<String>,
    /// Since when a pod is drained, by name.
    drained: BTreeMap<String, jiff::Timestamp>,
    images: BTreeMap<String, String>,
    revisions: BTreeMap<String, String>,
}

impl Violations {
    /// Checks a pod; at most `most` pods may have left the first revision.
    fn check(&mut self, pod: &Pod, grace: i64, first: &str, most: usize) {
        let name = pod.name_any();
        let image = pod::image(pod);
        let gate = pod::gate(pod).map(|gate| (gate.status == "True", gate.last_transition_time.clone()));
        if self.images.get(&name).is_some_and(|known| *known != image) {
            let since = self.drained.get(&name).copied();
            let waited = since.map(|since| jiff::Timestamp::now().duration_since(since).as_secs());
            if waited.is_none_or(|waited| waited < grace) {
                self.all.push(format!("{name} was updated {waited:?} seconds after it was drained"));
            }
        }
        self.images.insert(name.clone(), image);
        match gate {
            Some((false, Some(since))) => drop(self.drained.insert(name.clone(), since.0)),
            _ => drop(self.drained.remove(&name)),
        }
        self.revisions.insert(name, pod.labels().get("controller-revision-hash").cloned().unwrap_or_default());
        let moved = self.revisions.values().filter(|revision| *revision != first).count();
        if moved > most {
            self.all.push(format!("{moved} pods have left {first}, at most {most} may"));
        }
    }
}

/// Watches every event of the pods until the closure is called, which returns what was violated.
fn watch(pods: Api<Pod>, grace: i64, first: String, most: usize) -> impl FnOnce() -> Vec<String> {
    let violations = Arc::new(Mutex::new(Violations::default()));
    let seen = Arc::clone(&violations);
    let task = tokio::spawn(async move {
        let mut changes = std::pin::pin!(watcher(pods, watcher::Config::default()).default_backoff().applied_objects());
        while let Some(change) = changes.next().await {
            if let Ok(pod) = change {
                seen.lock().unwrap_or_else(PoisonError::into_inner).check(&pod, grace, &first, most);
            }
        }
    });
    move || {
        task.abort();
        std::mem::take(&mut violations.lock().unwrap_or_else(PoisonError::into_inner).all)
    }
}

async fn kill_9_breaks_no_walk_through(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let options = OperatorOptions { longest_pause: Duration::from_millis(300), ..single() };
    let _operators = cluster.start_operators(&options).await?;
    let killer = Killer::start(&cluster);
    let mut round = 0;
    // Both walk-throughs, repeated until the operator was killed often enough.
    while round == 0 || killer.kills() < 30 {
        let scene = Arc::new(Scene::open(Arc::clone(&cluster), &format!("in-place-{round}")).await?);
        in_place(&scene).await.context("in place")?;
        let scene = Arc::new(Scene::open(Arc::clone(&cluster), &format!("canary-{round}")).await?);
        canary_steps(&scene).await.context("canary")?;
        round += 1;
    }
    Ok(())
}

async fn in_place(scene: &Arc<Scene>) -> Result<()> {
    scene
        .apply(&example("inplace-update.yaml", &json!({ "updateStrategy": { "inPlaceUpdateStrategy": { "gracePeriodSeconds": 2 } } }))?)?;
    let game = Game::named(scene, "test-gamedeployment");
    let first = game.until_rest("Complete").await?["updateRevision"].as_str().unwrap_or_default().to_owned();
    let ready = watch_pods(&scene.pods(), "app=test-gamedeployment").await?;
    let violations = watch(scene.pods(), 2, first, 5);
    set_image(scene, "python:latest")?;
    game.until_rest("PartitionReached").await?;
    let violations = violations();
    ensure!(violations.is_empty(), "{violations:?}");
    ensure!(row(scene)? == ["test-gamedeployment", "8", "5", "5", "8", "8"], "{:?}", row(scene)?);
    game.patch(json!({ "spec": { "updateStrategy": { "partition": 0 } } })).await?;
    game.until_rest("Complete").await?;
    ensure!(ready().fewest_ready >= 6, "more than two were out of service");
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(1, 8)]), "{:?}", restarts(&game.pods().await?));
    Ok(())
}

async fn canary_steps(scene: &Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    scene.apply(&hook_template(&server, "asInt(result) < 30")?)?;
    let game = canary(scene, &json!({}))?;
    let first = game.until_rest("Complete").await?["updateRevision"].as_str().unwrap_or_default().to_owned();
    let ready = watch_pods(&scene.pods(), "app=test-gamedeployment").await?;
    set_image(scene, "python:3.5")?;
    for (step, reason, most) in [(1, "PausedByCanaryPauseStep", 1), (4, "PausedByStepBasedHook", 2)] {
        let violations = watch(scene.pods(), 2, first.clone(), most);
        game.until(&format!("paused at step {step}"), |status| {
            status["currentStepIndex"] == step && status["pauseConditions"][0]["reason"] == reason
        })
        .await?;
        let violations = violations();
        ensure!(violations.is_empty(), "before step {step}: {violations:?}");
        resume(scene)?;
    }
    game.until_rest("Complete").await?;
    ensure!(ready().fewest_ready >= 2, "more than two were out of service");
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(1, 4)]), "{:?}", restarts(&game.pods().await?));
    Ok(())
}
