//! GameDeployments on fake nodes, as users write and watch them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::pod::uids;
use e2e::walkthrough::set_image;
use e2e::{Game, Metrics, Place, Scene, Suite, audited, autoscaler, counts, manifest, row, until, until_gone, until_some_pod, watch_pods};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, surge_pods_come_first);
    suite.sharing(fake, the_rolling_walk_through_comes_out_as_written);
    suite.sharing(fake, writes_are_counted_exactly);
    suite.sharing(fake, nothing_is_written_when_nothing_changes);
    suite.sharing(fake, a_rollout_keeps_its_limits);
    suite.sharing(fake, surge_comes_first_and_goes_last);
    suite.sharing(fake, scaling_in_the_middle_of_a_rollout);
    suite.sharing(fake, the_old_template_brings_the_old_revision_back);
    suite.sharing(fake, paused_stops_the_rollout_and_not_scaling);
    suite.sharing(fake, on_delete_waits_for_the_user_to_delete);
    suite.sharing(fake, named_pods_go_first_and_are_replaced);
    suite.sharing(fake, cheap_pods_go_first);
    suite.sharing(fake, min_ready_seconds_holds_the_rollout);
    suite.sharing(fake, an_ended_pod_is_replaced);
    suite.sharing(fake, a_broken_image_stops_the_rollout_and_is_named);
    suite.sharing(fake, lone_pods_are_adopted_and_others_left_alone);
    suite.sharing(fake, orphans_are_taken_over_without_a_restart);
    suite.sharing(fake, history_is_kept_as_long_as_asked);
    suite.sharing(fake, an_unsupported_update_type_holds_visibly);
    suite.sharing(fake, deleting_it_takes_its_pods_along);
    suite.sharing(fake, an_autoscaler_follows_a_metric_up_and_down);
}

async fn the_rolling_walk_through_comes_out_as_written(scene: Arc<Scene>) -> Result<()> {
    scene.apply_file("examples/tkex/rolling-update.yaml")?;
    let game = Game::named(&scene, "test-gamedeployment");
    game.until_rest("Complete").await?;
    let table = scene.kubectl(&["get", "gamedeployment"])?;
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    ensure!(header == ["NAME", "DESIRED", "UPDATED", "UPDATED_READY", "READY", "TOTAL", "AGE"], "{header:?}");
    ensure!(row(&scene)? == ["test-gamedeployment", "8", "8", "8", "8", "8"], "{:?}", row(&scene)?);
    let first: Vec<String> = game.pods().await?.iter().map(ResourceExt::name_any).collect();
    for name in &first {
        let id = name.strip_prefix("test-gamedeployment-").unwrap_or_default();
        ensure!(id.len() == 5 && id.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)), "{name}");
    }
    let said = set_image(&scene, "python:latest")?;
    ensure!(said.trim() == "gamedeployment.tkex.tencent.com/test-gamedeployment patched", "{said}");
    game.until_rest("PartitionReached").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "8", "5", "5", "8", "8"], "{:?}", row(&scene)?);
    ensure!(game.images().await? == counts(&[("python:3.5", 3), ("python:latest", 5)]), "{:?}", game.images().await?);
    let kept = game.pods().await?.iter().filter(|pod| first.contains(&pod.name_any())).count();
    ensure!(kept == 3, "{kept} pods were kept");
    game.patch(json!({ "spec": { "updateStrategy": { "partition": 0 } } })).await?;
    game.until_rest("Complete").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "8", "8", "8", "8", "8"], "{:?}", row(&scene)?);
    scene.kubectl(&["wait", "--for=condition=Available", "gd/test-gamedeployment", "--timeout=60s"])?;
    let described = scene.kubectl(&["describe", "gamedeployment", "test-gamedeployment"])?;
    for line in
        ["SuccessfulCreate", "SuccessfulUpdatePodReCreate", "bcs-gamedeployment-operator", "succeed to create pod test-gamedeployment-"]
    {
        ensure!(described.contains(line), "{line} is missing in {described}");
    }
    Ok(())
}

async fn surge_pods_come_first(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "surge", &json!({ "replicas": 8, "updateStrategy": { "maxSurge": 2 } }))?;
    game.until_rest("Complete").await?;
    let seen = watch_pods(&scene.pods(), "app=surge").await?;
    game.set_image("game:2").await?;
    Game::expect_counts(&game.until_rest("Complete").await?, 8, 8, 8)?;
    let seen = seen();
    ensure!(seen.fewest_ready >= 8 && seen.most <= 10, "{} ready, {} at once", seen.fewest_ready, seen.most);
    Ok(())
}

async fn writes_are_counted_exactly(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "exact", &json!({ "replicas": 12, "updateStrategy": { "maxUnavailable": 3 } }))?;
    game.until_rest("Complete").await?;
    e2e::eventually("fewer than 12 creates", || audited(&scene, "pods", "", "create") >= 12).await?;
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    e2e::eventually("fewer than 24 creates", || audited(&scene, "pods", "", "create") >= 24).await?;
    let count = |resource: &str, subresource: &str, verb: &str| audited(&scene, resource, subresource, verb);
    let pods = (count("pods", "", "create"), count("pods", "", "delete"), count("pods", "", ""));
    ensure!(pods == (24, 12, 36), "creates, deletes and all calls for pods: {pods:?}");
    let revisions = count("controllerrevisions", "", "");
    ensure!(revisions == 2, "{revisions} calls for revisions");
    let gets = count("gamedeployments", "", "get");
    ensure!(gets == 0, "{gets} live reads of the object");
    Ok(())
}

async fn nothing_is_written_when_nothing_changes(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "idle", &json!({ "replicas": 5 }))?;
    game.until_rest("Complete").await?;
    let all = || {
        ["pods", "gamedeployments", "controllerrevisions"]
            .iter()
            .map(|kind| audited(&scene, kind, "", "") + audited(&scene, kind, "status", ""))
            .sum::<usize>()
    };
    e2e::eventually("fewer than 5 creates", || audited(&scene, "pods", "", "create") >= 5).await?;
    // Events about what was done may still be on their way.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = (all(), audited(&scene, "events", "", ""));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = (all(), audited(&scene, "events", "", ""));
    ensure!(before == after, "calls before and after a quiet minute: {before:?}, {after:?}");
    Ok(())
}

async fn a_rollout_keeps_its_limits(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "limits", &json!({ "replicas": 20, "updateStrategy": { "maxUnavailable": "25%" } }))?;
    game.until_rest("Complete").await?;
    let seen = watch_pods(&scene.pods(), "app=limits").await?;
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    let seen = seen();
    ensure!(seen.most == 20, "{} pods at once", seen.most);
    ensure!(seen.fewest_ready >= 15, "only {} were ready", seen.fewest_ready);
    ensure!(game.images().await? == counts(&[("game:2", 20)]));
    Ok(())
}

async fn surge_comes_first_and_goes_last(scene: Arc<Scene>) -> Result<()> {
    let strategy = json!({ "maxUnavailable": 0, "maxSurge": 3 });
    let game = Game::apply(&scene, "surge", &json!({ "replicas": 10, "updateStrategy": strategy }))?;
    game.until_rest("Complete").await?;
    let seen = watch_pods(&scene.pods(), "app=surge").await?;
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    let seen = seen();
    ensure!((11..=13).contains(&seen.most), "{} pods at once", seen.most);
    ensure!(seen.fewest_ready >= 10, "only {} were ready", seen.fewest_ready);
    ensure!(game.images().await? == counts(&[("game:2", 10)]));
    Ok(())
}

async fn scaling_in_the_middle_of_a_rollout(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "middle", &json!({ "replicas": 8, "updateStrategy": { "partition": 3, "maxUnavailable": 2 } }))?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    game.until_rest("PartitionReached").await?;
    scene.kubectl(&["scale", "gamedeployment/middle", "--replicas=12"])?;
    let status = game.until("12 pods", |status| status["readyReplicas"] == 12).await?;
    Game::expect_counts(&status, 12, 12, 9)?;
    scene.kubectl(&["scale", "gamedeployment/middle", "--replicas=4"])?;
    game.until("4 pods", |status| status["replicas"] == 4).await?;
    game.until_rest("PartitionReached").await?;
    ensure!(game.images().await? == counts(&[("game:1", 3), ("game:2", 1)]), "{:?}", game.images().await?);
    Ok(())
}

async fn the_old_template_brings_the_old_revision_back(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "back", &json!({ "replicas": 4 }))?;
    let first = game.until_rest("Complete").await?["updateRevision"].clone();
    game.set_image("game:2").await?;
    let second = game.until_rest("Complete").await?["updateRevision"].clone();
    ensure!(first != second, "the revision did not change");
    game.set_image("game:1").await?;
    let third = game.until_rest("Complete").await?["updateRevision"].clone();
    ensure!(first == third, "{first} came back as {third}");
    ensure!(game.images().await? == counts(&[("game:1", 4)]));
    Ok(())
}

async fn paused_stops_the_rollout_and_not_scaling(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "paused", &json!({ "replicas": 4 }))?;
    game.until_rest("Complete").await?;
    game.patch(json!({ "spec": { "updateStrategy": { "paused": true } } })).await?;
    game.set_image("game:2").await?;
    game.until_rest("PausedByUser").await?;
    game.until_condition("Paused", "True", "PausedByUser").await?;
    scene.kubectl(&["scale", "gd/paused", "--replicas=6"])?;
    game.until("6 ready", |status| status["readyReplicas"] == 6).await?;
    ensure!(game.images().await? == counts(&[("game:1", 6)]), "{:?}", game.images().await?);
    let paused = game.api().get("paused").await?.data["spec"]["updateStrategy"]["paused"].clone();
    ensure!(paused == true, "the operator changed what the user set");
    game.patch(json!({ "spec": { "updateStrategy": { "paused": false } } })).await?;
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == counts(&[("game:2", 6)]));
    Ok(())
}

async fn on_delete_waits_for_the_user_to_delete(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "ondelete", &json!({ "replicas": 3, "updateStrategy": { "type": "OnDelete" } }))?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    game.until_rest("WaitingForDelete").await?;
    let victim = game.pods().await?.first().map(ResourceExt::name_any).context("no pod")?;
    scene.kubectl(&["delete", "pod", &victim])?;
    game.until("one pod updated and 3 ready", |status| status["updatedReadyReplicas"] == 1 && status["readyReplicas"] == 3).await?;
    ensure!(game.images().await? == counts(&[("game:1", 2), ("game:2", 1)]));
    Ok(())
}

async fn named_pods_go_first_and_are_replaced(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "named", &json!({ "replicas": 4 }))?;
    game.until_rest("Complete").await?;
    let victim = game.pods().await?.last().map(ResourceExt::name_any).context("no pod")?;
    game.patch(json!({ "spec": { "replicas": 3, "scaleStrategy": { "podsToDelete": [victim] } } })).await?;
    until_gone(&scene.pods(), &victim).await?;
    game.until_rest("Complete").await?;
    ensure!(game.pods().await?.len() == 3);
    let second = game.pods().await?.last().map(ResourceExt::name_any).context("no pod")?;
    game.patch(json!({ "spec": { "scaleStrategy": { "podsToDelete": [victim, second] } } })).await?;
    until_gone(&scene.pods(), &second).await?;
    game.until_rest("Complete").await?;
    let names: Vec<String> = game.pods().await?.iter().map(ResourceExt::name_any).collect();
    ensure!(names.len() == 3 && !names.contains(&second) && !names.contains(&victim), "{names:?}");
    Ok(())
}

async fn cheap_pods_go_first(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "cheap", &json!({ "replicas": 4 }))?;
    game.until_rest("Complete").await?;
    let cheap = game.pods().await?.get(2).map(ResourceExt::name_any).context("no pod")?;
    let cost = json!({ "metadata": { "annotations": { "controller.kubernetes.io/pod-deletion-cost": "-10" } } });
    scene.pods().patch(&cheap, &PatchParams::default(), &Patch::Merge(cost)).await?;
    scene.kubectl(&["scale", "gd/cheap", "--replicas=3"])?;
    until_gone(&scene.pods(), &cheap).await?;
    game.until_rest("Complete").await.map(drop)
}

async fn min_ready_seconds_holds_the_rollout(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "ripe", &json!({ "replicas": 2, "minReadySeconds": 3, "updateStrategy": { "maxUnavailable": 1 } }))?;
    let status = game.until("2 ready", |status| status["readyReplicas"] == 2).await?;
    ensure!(status["availableReplicas"] != 2, "available as soon as ready");
    game.until("2 available", |status| status["availableReplicas"] == 2).await?;
    game.set_image("game:2").await?;
    let started = std::time::Instant::now();
    game.until_rest("Complete").await?;
    // Two pods, one after the other, three seconds each.
    ensure!(started.elapsed() >= Duration::from_secs(5), "the second pod did not wait for the first");
    Ok(())
}

async fn an_ended_pod_is_replaced(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "ended", &json!({ "replicas": 3 }))?;
    game.until_rest("Complete").await?;
    let victim = game.pods().await?.first().map(ResourceExt::name_any).context("no pod")?;
    let failed = json!({ "status": { "phase": "Failed", "reason": "Evicted" } });
    scene.pods().patch_status(&victim, &PatchParams::default(), &Patch::Merge(failed)).await?;
    until_gone(&scene.pods(), &victim).await?;
    game.until_rest("Complete").await?;
    ensure!(game.pods().await?.len() == 3);
    Ok(())
}

async fn a_broken_image_stops_the_rollout_and_is_named(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "broken", &json!({ "replicas": 4, "updateStrategy": { "maxUnavailable": 1 } }))?;
    game.until_rest("Complete").await?;
    let seen = watch_pods(&scene.pods(), "app=broken").await?;
    let template = json!({ "metadata": { "annotations": { "localkube/pull-failure": "*" } } });
    game.patch(json!({ "spec": { "template": template } })).await?;
    let status = game.until("the failing pull is named", |status| status.to_string().contains("ErrImagePull")).await?;
    Game::expect_counts(&status, 4, 3, 1)?;
    game.patch(json!({ "spec": { "template": { "metadata": { "annotations": null } } } })).await?;
    game.until_rest("Complete").await?;
    ensure!(seen().fewest_ready >= 3, "more than one pod was missing");
    Ok(())
}

async fn lone_pods_are_adopted_and_others_left_alone(scene: Arc<Scene>) -> Result<()> {
    scene.pod("lone", "game:1", &json!({ "metadata": { "labels": { "app": "adopt" } } }))?;
    let foreign = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "other" }, "spec": {
        "replicas": 2, "selector": { "matchLabels": { "app": "adopt", "by": "other" } },
        "template": { "metadata": { "labels": { "app": "adopt", "by": "other" } }, "spec": { "containers": [{ "name": "game", "image": "game:1" }] } },
    } });
    scene.apply(&foreign)?;
    until_some_pod(&scene.pods(), "a pod of the ReplicaSet", |pod| pod.name_any().starts_with("other-")).await?;
    let game = Game::apply(&scene, "adopt", &json!({ "replicas": 3 }))?;
    let owned = |pod: &Pod, kind: &str| pod.owner_references().iter().any(|owner| owner.kind == kind && owner.controller == Some(true));
    let pods = scene.pods();
    until(&pods, "lone", "adopted or replaced", |pod| pod.is_none_or(|pod| owned(pod, "GameDeployment"))).await?;
    game.until_rest("Complete").await?;
    let all = game.pods().await?;
    ensure!(all.iter().filter(|pod| owned(pod, "GameDeployment")).count() == 3, "{} pods", all.len());
    ensure!(all.iter().filter(|pod| owned(pod, "ReplicaSet")).count() == 2, "pods of another owner were touched");
    // A pod that no longer matches is released and replaced.
    let freed = all.iter().find(|pod| owned(pod, "GameDeployment")).map(ResourceExt::name_any).context("no pod")?;
    scene.pods().patch(&freed, &PatchParams::default(), &Patch::Merge(json!({ "metadata": { "labels": { "app": "debug" } } }))).await?;
    until(&pods, &freed, "released", |pod| pod.is_some_and(|pod| pod.owner_references().is_empty())).await?;
    game.until("3 ready again", |status| status["readyReplicas"] == 3).await.map(drop)
}

async fn orphans_are_taken_over_without_a_restart(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "heir", &json!({ "replicas": 3 }))?;
    game.until_rest("Complete").await?;
    let before = uids(&game.pods().await?);
    scene.kubectl(&["delete", "gd/heir", "--cascade=orphan"])?;
    // The same template, written differently.
    let mut again = manifest("heir", &json!({ "replicas": 3 }));
    again["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
    again["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    scene.apply(&again)?;
    game.until_rest("Complete").await?;
    ensure!(uids(&game.pods().await?) == before, "pods were replaced");
    Ok(())
}

async fn history_is_kept_as_long_as_asked(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "history", &json!({ "replicas": 1, "revisionHistoryLimit": 2 }))?;
    game.until_rest("Complete").await?;
    for number in 2..=6 {
        game.set_image(&format!("game:{number}")).await?;
        game.until_rest("Complete").await?;
    }
    let revisions = || scene.kubectl(&["get", "controllerrevisions", "-o", "name"]).map(|names| names.lines().count()).unwrap_or_default();
    e2e::eventually("old revisions stay", || revisions() == 3).await
}

async fn an_unsupported_update_type_holds_visibly(scene: Arc<Scene>) -> Result<()> {
    let reason = "HotPatchUpdateNotInThisVersion";
    let game = Game::apply(&scene, "hotpatch", &json!({ "updateStrategy": { "type": "HotPatchUpdate" } }))?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    game.until_condition("Progressing", "False", reason).await?;
    game.until_condition("Degraded", "True", reason).await?;
    ensure!(game.images().await? == counts(&[("game:1", 1)]), "it touched its pod");
    scene.kubectl(&["scale", "gd/hotpatch", "--replicas=2"])?;
    game.until("2 ready", |status| status["readyReplicas"] == 2).await.map(drop)
}

async fn deleting_it_takes_its_pods_along(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "gone", &json!({ "replicas": 3 }))?;
    game.until_rest("Complete").await?;
    let pods: Vec<String> = game.pods().await?.iter().map(ResourceExt::name_any).collect();
    game.api().delete("gone", &DeleteParams::foreground()).await?;
    for pod in &pods {
        until_gone(&scene.pods(), pod).await?;
    }
    until_gone(&game.api(), "gone").await
}

async fn an_autoscaler_follows_a_metric_up_and_down(scene: Arc<Scene>) -> Result<()> {
    let metrics = Metrics::start(&scene).await?;
    let game = Game::apply(&scene, "hpa", &json!({ "replicas": 3 }))?;
    game.until_rest("Complete").await?;
    metrics.set(30);
    scene.apply(&autoscaler("hpa"))?;
    // Neither number is minReplicas or maxReplicas, so only the metric can have led there.
    for (players, replicas) in [(80, 8), (40, 4)] {
        metrics.set(players);
        game.until(&format!("{replicas} ready"), |status| status["readyReplicas"] == replicas && status["replicas"] == replicas).await?;
    }
    game.until_rest("Complete").await.map(drop)
}
