//! A CustomResourceDefinition or a permission that is missing: workloads that do not need it are served, the others report
//! it, and are served when it is there.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::{serve_sessions, sessions_hook};
use e2e::operator::{self, single};
use e2e::{Game, Scene, Suite, eventually, eventually_says, run};
use localkube::Cluster;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(workloads_that_need_no_missing_kind_are_served);
}

fn kubectl(cluster: &Cluster, words: &[&str], input: &str) -> Result<String> {
    run(cluster.kubectl().args(words), input)
}

/// Removes a resource from the operator's ClusterRole.
fn forbid(cluster: &Cluster, resource: &str) -> Result<()> {
    let mut role: Value = serde_json::from_str(&kubectl(cluster, &["get", "clusterrole", "gameplane", "-o", "json"], "")?)?;
    let rules = role["rules"].as_array_mut().context("no rules")?;
    rules.retain(|rule| !rule["resources"].as_array().is_some_and(|all| all.contains(&json!(resource))));
    kubectl(cluster, &["replace", "-f", "-"], &role.to_string()).map(drop)
}

async fn until_failing(scene: &Scene, kind: &str, failing: bool) -> Result<()> {
    let line = format!("gameplane_watch_failing{{kind=\"{kind}\"}} {}", u8::from(failing));
    let is_reported = || async { Ok(operator::ask(scene.cluster(), "/metrics").await?.lines().any(|one| one == line)) };
    eventually_says(&format!("no {line}"), is_reported).await
}

async fn workloads_that_need_no_missing_kind_are_served(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let options = single();
    let operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "unlisted").await?);
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    sessions.end_all();
    let plain = Game::apply(&scene, "plain", &json!({ "replicas": 3 }))?;
    let hooked = Game::apply(&scene, "hooked", &json!({ "replicas": 3, "preDeleteUpdateStrategy": sessions_hook() }))?;
    let mut protect = sessions_hook();
    protect["protect"] = json!(true);
    let protected = Game::apply(&scene, "protected", &json!({ "replicas": 3, "preDeleteUpdateStrategy": protect }))?;
    for game in [&plain, &hooked, &protected] {
        game.until_rest("Complete").await?;
    }
    operators.stop().await;
    kubectl(&cluster, &["delete", "crd", "hookruns.tkex.tencent.com"], "")?;
    forbid(&cluster, "poddisruptionbudgets")?;
    let _operators = cluster.start_operators(&options).await?;
    let pid = || operator::pid(&cluster);
    let first = pid()?;

    plain.set_image("game:2").await?;
    plain.until_rest("Complete").await?;
    Game::apply(&scene, "new", &json!({ "replicas": 2 }))?.until_rest("Complete").await?;
    for game in [&hooked, &protected] {
        game.patch(json!({ "spec": { "replicas": 2 } })).await?;
    }
    let message = hooked.until_condition("Degraded", "True", "NotListed").await?;
    ensure!(
        message.contains("nothing is done: HookRuns cannot be listed") && message.contains("CustomResourceDefinition is missing"),
        "{message}"
    );
    ensure!(!message.contains("PodDisruptionBudgets"), "it needs no PodDisruptionBudgets: {message}");
    let message = protected.until_condition("Degraded", "True", "NotListed").await?;
    ensure!(message.contains("HookRuns cannot be listed") && message.contains("PodDisruptionBudgets cannot be listed"), "{message}");
    ensure!(message.contains("the ServiceAccount lacks rights"), "{message}");
    for game in [&hooked, &protected] {
        ensure!(game.pods().await?.len() == 3, "a pod was deleted although not everything is listed");
    }
    let ready = operator::ask(&cluster, "/readyz").await?;
    ensure!(ready.contains("200 OK") && ready.contains("\nHookRun: ") && ready.contains("\nPodDisruptionBudget: "), "{ready}");
    until_failing(&scene, "HookRun", true).await?;

    operator::deploy(&cluster, "01-resources.yaml")?;
    hooked.until("two pods", |status| status["replicas"] == 2).await?;
    hooked.until_rest("Complete").await?;
    until_failing(&scene, "HookRun", false).await?;
    until_failing(&scene, "PodDisruptionBudget", true).await?;
    ensure!(protected.pods().await?.len() == 3, "a pod was deleted although PodDisruptionBudgets are not listed");
    operator::deploy(&cluster, "03-rbac.yaml")?;
    protected.until("two pods", |status| status["replicas"] == 2).await?;
    protected.until_rest("Complete").await?;
    until_failing(&scene, "PodDisruptionBudget", false).await?;
    let ready = operator::ask(&cluster, "/readyz").await?;
    ensure!(ready.ends_with("leading\n"), "{ready}");
    let asked = || sessions.asked().len() >= 2;
    eventually("the hooks were not asked", asked).await?;
    ensure!(pid()? == first, "the operator was started again");
    Ok(())
}
