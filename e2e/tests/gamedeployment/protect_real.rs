//! Protected pods on real nodes: sessions outlive deletions, drains and the deletion of their workload.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::game_server::{get, play};
use e2e::pod::{is_leaving, node_of};
use e2e::{Game, Place, Scene, Suite, eventually, says, until, until_gone};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.disturbing(Place::Real, a_session_outlives_delete_drain_and_the_end_of_its_workload);
}

/// Whether the same process serves its player and has received no SIGTERM.
fn is_untouched(pod: &Pod) -> Result<bool> {
    let state = get(pod, "/")?;
    Ok(state.contains("\"sessions\":1") && state.contains("\"sigterm\":0"))
}

async fn a_session_outlives_delete_drain_and_the_end_of_its_workload(scene: Arc<Scene>) -> Result<()> {
    scene.apply_file("examples/tkex/protected.yaml")?;
    let game = Game::named(&scene, "protected");
    let mut players = BTreeMap::new();
    for pod in game.until_protected().await? {
        players.insert(pod.name_any(), play(&pod)?);
    }

    let victim = game.pods().await?.pop().context("no pod")?;
    let said = scene.refusal(&["delete", "pod", &victim.name_any(), "--wait=false"])?;
    ensure!(said.contains("it is protected by GameDeployment protected"), "{said}");
    // Any resize is refused, even one that changes nothing: a pod without requests cannot be given any.
    let more = r#"{"spec":{"containers":[{"name":"game"}]}}"#;
    let said = scene.refusal(&["patch", "pod", &victim.name_any(), "--subresource=resize", "-p", more])?;
    ensure!(said.contains("change them in the template of GameDeployment protected"), "{said}");
    ensure!(is_untouched(&victim)?, "the session noticed kubectl delete");

    let drained = drain(&scene, &game, &victim, &mut players).await;
    // The node takes pods again even if the test has failed.
    scene.kubectl(&["uncordon", &node_of(&victim)?])?;
    drained?;

    for pod in game.until_protected().await? {
        if let Entry::Vacant(seat) = players.entry(pod.name_any()) {
            seat.insert(play(&pod)?);
        }
    }
    end(&scene, &game, players).await
}

/// A drain waits for the last player and then completes.
async fn drain<P>(scene: &Scene, game: &Game, victim: &Pod, players: &mut BTreeMap<String, P>) -> Result<()> {
    let node = node_of(victim)?;
    let on_node: Vec<Pod> = game.pods().await?.into_iter().filter(|pod| node_of(pod).is_ok_and(|other| other == node)).collect();
    let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", "--pod-selector=app=protected"];
    let mut running = scene.kubectl_command().args(drain).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let asked = || {
        let path = "jsonpath={.items[*].status.metricResults[0].failed}";
        scene
            .kubectl(&["get", "hookruns", "-o", path])
            .is_ok_and(|failed| failed.split_whitespace().any(|failed| failed.parse().unwrap_or(0) > 1))
    };
    eventually("no hook of a pod on the node denies", asked).await?;
    game.until("the cordoned node is reported", |status| says(status, "Progressing", "cordoned nodes")).await?;
    ensure!(running.try_wait()?.is_none(), "the drain did not wait");
    for pod in &on_node {
        ensure!(is_untouched(pod)?, "the session of {} noticed the drain", pod.name_any());
    }
    for pod in &on_node {
        drop(players.remove(&pod.name_any()));
    }
    for pod in &on_node {
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    let output = tokio::task::spawn_blocking(move || running.wait_with_output()).await??;
    ensure!(output.status.success(), "the drain failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A workload that is deleted waits for its players too.
async fn end<P>(scene: &Scene, game: &Game, mut players: BTreeMap<String, P>) -> Result<()> {
    let pods = game.pods().await?;
    scene.kubectl(&["delete", "gamedeployment", "protected", "--wait=false"])?;
    game.until_waiting("preDeleteHookCondition", pods.len()).await?;
    for pod in &pods {
        ensure!(is_untouched(pod)?, "the session of {} noticed the deletion of its workload", pod.name_any());
        drop(players.remove(&pod.name_any()));
        let leaving = until(&scene.pods(), &pod.name_any(), "leaving", is_leaving).await?.context("it was gone without a grace period")?;
        ensure!(
            leaving.metadata.deletion_grace_period_seconds == Some(7),
            "its grace period is {:?}",
            leaving.metadata.deletion_grace_period_seconds
        );
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    until_gone(&game.api(), "protected").await
}
