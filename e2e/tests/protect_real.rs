//! Protected pods on real nodes: sessions outlive whatever people do.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::{Game, Place, Scene, Suite, eventually, until, until_gone};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::gates::until_waiting;
use crate::gates_real::play;
use crate::protect::{refusal, until_protected};
use crate::real::{get, ip};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.disturbing(Place::Real, a_session_outlives_delete_drain_and_the_end_of_its_workload);
}

fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default()
}

/// Whether the same process serves its player and has been told nothing.
fn is_untouched(pod: &Pod) -> Result<bool> {
    let state = get(pod, "/")?;
    Ok(state.contains("\"sessions\":1") && state.contains("\"sigterm\":0"))
}

async fn a_session_outlives_delete_drain_and_the_end_of_its_workload(scene: Arc<Scene>) -> Result<()> {
    scene.kubectl(&["apply", "-f", &format!("{}/../examples/tkex/protected.yaml", env!("CARGO_MANIFEST_DIR"))])?;
    let game = Game::named(&scene, "protected");
    let mut players = BTreeMap::new();
    for pod in until_protected(&game).await? {
        players.insert(pod.name_any(), play(&ip(&pod)?)?);
    }

    let victim = game.pods().await?.pop().context("no pod")?;
    let said = refusal(&scene, &["delete", "pod", &victim.name_any(), "--wait=false"])?;
    ensure!(said.contains("it is protected by GameDeployment protected"), "{said}");
    // Whatever it asks for: a pod without requests cannot be given any.
    let more = r#"{"spec":{"containers":[{"name":"game"}]}}"#;
    let said = refusal(&scene, &["patch", "pod", &victim.name_any(), "--subresource=resize", "-p", more])?;
    ensure!(said.contains("change them in the template of GameDeployment protected"), "{said}");
    ensure!(is_untouched(&victim)?, "the session noticed kubectl delete");

    let drained = drain(&scene, &game, &victim, &mut players).await;
    // The node takes pods again also if the test has failed.
    scene.kubectl(&["uncordon", &node_of(&victim)])?;
    drained?;

    for pod in until_protected(&game).await? {
        if let Entry::Vacant(seat) = players.entry(pod.name_any()) {
            seat.insert(play(&ip(&pod)?)?);
        }
    }
    end(&scene, &game, players).await
}

/// A drain waits for the last player and then has its way.
async fn drain<P>(scene: &Scene, game: &Game, victim: &Pod, players: &mut BTreeMap<String, P>) -> Result<()> {
    let node = node_of(victim);
    let on_node: Vec<Pod> = game.pods().await?.into_iter().filter(|pod| node_of(pod) == node).collect();
    let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", "--pod-selector=app=protected"];
    let mut running = scene.kubectl_command().args(drain).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let asked = || {
        let path = "jsonpath={.items[*].status.metricResults[0].failed}";
        scene
            .kubectl(&["get", "hookruns", "-o", path])
            .is_ok_and(|failed| failed.split_whitespace().any(|failed| failed.parse().unwrap_or(0) > 1))
    };
    eventually("somebody on the node is asked, and says no", asked).await?;
    let told = game.until("the cordoned node is told", |status| {
        let all = status["conditions"].as_array().into_iter().flatten();
        all.filter(|one| one["type"] == "Progressing")
            .any(|one| one["message"].as_str().is_some_and(|text| text.contains("cordoned nodes")))
    });
    told.await?;
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
    until_waiting(game, "preDeleteHookCondition", pods.len()).await?;
    for pod in &pods {
        ensure!(is_untouched(pod)?, "the session of {} noticed the deletion of its workload", pod.name_any());
        drop(players.remove(&pod.name_any()));
        let leaves = |pod: Option<&Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        let leaving = until(&scene.pods(), &pod.name_any(), "leaving", leaves).await?.context("it went without a grace")?;
        ensure!(
            leaving.metadata.deletion_grace_period_seconds == Some(7),
            "its grace is {:?}",
            leaving.metadata.deletion_grace_period_seconds
        );
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    until_gone(&game.api(), "protected").await
}
