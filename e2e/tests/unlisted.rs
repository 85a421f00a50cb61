//! A CustomResourceDefinition or a right that is missing: what does not need it goes on, the rest says so, and continues when it is there.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::{operator_metrics, readyz};
use e2e::{Game, Scene, Suite, eventually, eventually_says, run};
use localkube::{Cluster, OperatorOptions};
use serde_json::{Value, json};

use crate::gates::{before_delete, door};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(what_needs_no_missing_kind_goes_on);
}

fn kubectl(cluster: &Cluster, words: &[&str], input: &str) -> Result<String> {
    run(cluster.kubectl().args(words), input)
}

/// Applies a file of the chart's.
fn deploy(cluster: &Cluster, file: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file).display().to_string();
    kubectl(cluster, &["apply", "-f", &path], "").map(drop)
}

/// Takes a right away from the operator.
fn forbid(cluster: &Cluster, resource: &str) -> Result<()> {
    let mut role: Value = serde_json::from_str(&kubectl(cluster, &["get", "clusterrole", "gameplane", "-o", "json"], "")?)?;
    let rules = role["rules"].as_array_mut().context("no rules")?;
    rules.retain(|rule| !rule["resources"].as_array().is_some_and(|all| all.contains(&json!(resource))));
    kubectl(cluster, &["replace", "-f", "-"], &role.to_string()).map(drop)
}

async fn until_failing(scene: &Scene, kind: &str, failing: bool) -> Result<()> {
    let line = format!("gameplane_watch_failing{{kind=\"{kind}\"}} {}", u8::from(failing));
    let is_told = || async { Ok(operator_metrics(scene).await?.lines().any(|one| one == line)) };
    eventually_says(&format!("no {line}"), is_told).await
}

async fn what_needs_no_missing_kind_goes_on(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let options = OperatorOptions { args: vec!["--leader-elect=false".into()], ..OperatorOptions::default() };
    let operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "unlisted").await?);
    let (_door, sessions) = door(&scene, true).await?;
    sessions.end_all();
    let plain = Game::apply(&scene, "plain", &json!({ "replicas": 3 }))?;
    let hooked = Game::apply(&scene, "hooked", &json!({ "replicas": 3, "preDeleteUpdateStrategy": before_delete() }))?;
    let mut protect = before_delete();
    protect["protect"] = json!(true);
    let protected = Game::apply(&scene, "protected", &json!({ "replicas": 3, "preDeleteUpdateStrategy": protect }))?;
    for game in [&plain, &hooked, &protected] {
        game.until_rest("Complete").await?;
    }
    operators.stop().await;
    kubectl(&cluster, &["delete", "crd", "hookruns.tkex.tencent.com"], "")?;
    forbid(&cluster, "poddisruptionbudgets")?;
    let _operators = cluster.start_operators(&options).await?;
    let pid = || std::fs::read_to_string(cluster.folder().join("operator-1.pid"));
    let first = pid()?;

    plain.set_image("game:2").await?;
    plain.until_rest("Complete").await?;
    Game::apply(&scene, "new", &json!({ "replicas": 2 }))?.until_rest("Complete").await?;
    for game in [&hooked, &protected] {
        game.patch(json!({ "spec": { "replicas": 2 } })).await?;
    }
    let told = hooked.until_condition("Degraded", "True", "NotListed").await?;
    ensure!(told.contains("nothing is done: HookRuns cannot be listed") && told.contains("CustomResourceDefinition is missing"), "{told}");
    ensure!(!told.contains("PodDisruptionBudgets"), "it needs none: {told}");
    let told = protected.until_condition("Degraded", "True", "NotListed").await?;
    ensure!(told.contains("HookRuns cannot be listed") && told.contains("PodDisruptionBudgets cannot be listed"), "{told}");
    ensure!(told.contains("the ServiceAccount lacks rights"), "{told}");
    for game in [&hooked, &protected] {
        ensure!(game.pods().await?.len() == 3, "something was done");
    }
    let ready = readyz(&cluster).await?;
    ensure!(ready.contains("200 OK") && ready.contains("\nHookRun: ") && ready.contains("\nPodDisruptionBudget: "), "{ready}");
    until_failing(&scene, "HookRun", true).await?;

    deploy(&cluster, "01-resources.yaml")?;
    hooked.until("two pods", |status| status["replicas"] == 2).await?;
    hooked.until_rest("Complete").await?;
    until_failing(&scene, "HookRun", false).await?;
    until_failing(&scene, "PodDisruptionBudget", true).await?;
    ensure!(protected.pods().await?.len() == 3, "its PodDisruptionBudget is not known");
    deploy(&cluster, "03-rbac.yaml")?;
    protected.until("two pods", |status| status["replicas"] == 2).await?;
    protected.until_rest("Complete").await?;
    until_failing(&scene, "PodDisruptionBudget", false).await?;
    let ready = readyz(&cluster).await?;
    ensure!(ready.ends_with("leading\n"), "{ready}");
    let asked = || sessions.asked().len() >= 2;
    eventually("the hooks were not asked", asked).await?;
    ensure!(pid()? == first, "the operator was started again");
    Ok(())
}
