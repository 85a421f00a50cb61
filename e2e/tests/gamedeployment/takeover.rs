//! Objects of the original operators on a real API server: taken over while their games run.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::command::chart;
use e2e::hook::HookServer;
use e2e::operator::single;
use e2e::pod::restarts;
use e2e::walkthrough::{hook_template, resume};
use e2e::{Game, Scene, Suite, counts, eventually, root, run, until_pod_ready};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(the_originals_objects_are_taken_over_as_they_are);
}

/// The user that stores the original's HookRuns: they are approvals, so the chart has to exempt the user.
const RESTORER: [&str; 2] = ["--as=restorer", "--as-group=system:masters"];

/// Lets the restorer write HookRuns as the operator does, as the guide says.
async fn exempt_restorer(scene: &Scene) -> Result<()> {
    let policy = chart("hook-approvals.yaml", "hooks.exemptUsers={restorer}")?;
    run(scene.kubectl_command().args(["apply", "-f", "-"]), &policy)?;
    // A policy takes effect a moment after it was changed.
    let probe = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": { "name": "probe", "labels": { "attempt": "1" } },
        "spec": { "metrics": [{ "name": "probe", "provider": { "web": { "url": "http://192.0.2.1" } } }] },
    });
    let try_it = || run(scene.kubectl_command().args(["create", "--dry-run=server", "-f", "-"]).args(RESTORER), &probe.to_string());
    eventually("the policy exempts the restorer", || try_it().is_ok()).await
}

/// Stores the objects of a file as the original operator had them.
async fn load(scene: &Scene, file: &str) -> Result<()> {
    let text = std::fs::read_to_string(root().join("planner/tests/compat").join(file))?
        .replace("namespace: play", &format!("namespace: {}", scene.namespace()));
    let mut owner = String::new();
    for mut object in serde_saphyr::from_multiple::<Value>(&text)? {
        let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        object = serde_json::from_str(&object.to_string().replace("OWNER", &owner))?;
        for field in ["uid", "resourceVersion", "generation"] {
            object["metadata"].as_object_mut().context("no metadata")?.remove(field);
        }
        let status = object.as_object_mut().and_then(|fields| fields.remove("status"));
        let restorer: &[&str] = if kind == "hookrun" { &RESTORER } else { &[] };
        run(scene.kubectl_command().args(["apply", "-f", "-"]).args(restorer), &object.to_string())?;
        if kind == "gamedeployment" {
            owner = scene.kubectl(&["get", &kind, &name, "-o", "jsonpath={.metadata.uid}"])?;
        }
        let Some(mut status) = status else { continue };
        if kind == "pod" {
            e2e::until(&scene.pods(), &name, "Running", |pod| pod.is_some_and(is_running)).await?;
            // The grace period has just started.
            status["conditions"][0]["lastTransitionTime"] = json!(jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
        let how = if kind == "pod" { "--type=strategic" } else { "--type=merge" };
        let status = json!({ "status": status }).to_string();
        scene.kubectl(&[&["patch", &kind, &name, "--subresource=status", how, "-p", &status], restorer].concat())?;
    }
    Ok(())
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

fn identities(pods: &[Pod]) -> BTreeMap<String, Option<String>> {
    pods.iter().map(|pod| (pod.name_any(), pod.uid())).collect()
}

async fn the_originals_objects_are_taken_over_as_they_are(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "originals").await?);
    exempt_restorer(&scene).await?;
    load(&scene, "canary.yaml").await?;
    load(&scene, "grace.yaml").await?;
    for pod in ["4z5ff", "8ncs6", "klxlp", "mghr5"] {
        until_pod_ready(&scene.pods(), &format!("test-gamedeployment-{pod}")).await?;
    }
    let (canary, grace) = (Game::named(&scene, "test-gamedeployment"), Game::named(&scene, "grace-gamedeployment"));
    let (before, graced) = (canary.pods().await?, grace.pods().await?);
    let revisions = || scene.kubectl(&["get", "controllerrevisions", "-o", "jsonpath={range .items[*]}{.metadata.name}={.revision} {end}"]);
    let history = revisions()?;
    let _operators = cluster.start_operators(&single()).await?;

    // The canary waits at the same step as before.
    let said = canary.until_condition("Progressing", "False", "PausedByCanaryPauseStep").await?;
    ensure!(said.contains("canary step 3"), "{said}");
    let status = canary.until("its status", |status| status["currentRevision"].is_string()).await?;
    ensure!(status["currentStepIndex"] == 3 && status["pauseConditions"][0]["startTime"] == "2020-11-10T09:01:05Z", "{status}");
    ensure!(status["currentRevision"] == "test-gamedeployment-67864c6f65" && status["updatedReadyReplicas"] == 2, "{status}");
    ensure!(identities(&canary.pods().await?) == identities(&before), "pods were replaced");
    ensure!(restarts(&canary.pods().await?) == BTreeMap::from([(0, 4)]), "pods were restarted");

    // The pod in its grace period gets its image, and then the other pod does, each once.
    let status = grace.until_rest("Complete").await?;
    Game::expect_counts(&status, 2, 2, 2)?;
    ensure!(identities(&grace.pods().await?) == identities(&graced), "pods were replaced");
    ensure!(restarts(&grace.pods().await?) == BTreeMap::from([(1, 2)]), "{:?}", restarts(&grace.pods().await?));
    ensure!(revisions()? == history, "{} instead of {history}", revisions()?);

    // Resumed, it continues at exactly this step: the hook is next, under the name of the walk-through.
    let server = HookServer::json(&json!({ "age": 12 })).await?;
    scene.apply(&hook_template(&server, "asInt(result) < 30")?)?;
    resume(&scene)?;
    let status = canary.until_rest("Complete").await?;
    ensure!(status["currentStepIndex"] == 5 && status["canary"]["revision"] == "test-gamedeployment-9d78dd5db", "{status}");
    ensure!(canary.images().await? == counts(&[("python:3.5", 4)]), "{:?}", canary.images().await?);
    ensure!(identities(&canary.pods().await?) == identities(&before), "pods were replaced");
    ensure!(restarts(&canary.pods().await?) == BTreeMap::from([(0, 2), (1, 2)]), "{:?}", restarts(&canary.pods().await?));
    let runs = scene.kubectl(&["get", "hookruns", "-o", "name"])?;
    ensure!(
        runs.contains("test-gamedeployment-9d78dd5db-4-test") && runs.contains("canary-test-gamedeployment-9d78dd5db-1-test"),
        "{runs}"
    );
    ensure!(revisions()? == history, "{} instead of {history}", revisions()?);
    Ok(())
}
