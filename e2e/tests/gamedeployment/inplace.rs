//! In-place updates on fake nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::pod::{self, gate, node_of, restarts, uids};
use e2e::walkthrough::{example, set_image};
use e2e::{Game, Place, Scene, Suite, audited, counts, in_place, row, until, watch_pods};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, the_in_place_walk_through_comes_out_as_written);
    suite.sharing(fake, three_writes_a_pod_and_no_more);
    suite.sharing(fake, a_rollback_in_the_grace_restarts_nothing);
    suite.sharing(fake, a_new_template_in_the_grace_is_what_runs);
    suite.disturbing(fake, going_back_before_the_node_has_seen_it);
    suite.sharing(fake, a_change_that_cannot_be_made_in_place_is_held_or_replaces_pods);
    suite.sharing(fake, an_image_that_cannot_be_pulled_is_mended);
    suite.sharing(fake, pods_without_the_gate_are_updated_too);
    suite.sharing(fake, a_gate_that_is_flipped_by_hand_is_set_right);
    suite.sharing(fake, only_changed_containers_restart_and_in_order);
    suite.sharing(fake, labels_and_annotations_change_without_a_restart);
    suite.sharing(fake, a_pod_deleted_in_its_grace_is_replaced);
    suite.sharing(fake, lone_pods_are_adopted_and_updated_in_place);
    suite.sharing(fake, the_type_can_be_switched_on_the_way);
    suite.sharing(fake, images_change_under_running_containers);
}

async fn the_in_place_walk_through_comes_out_as_written(scene: Arc<Scene>) -> Result<()> {
    scene
        .apply(&example("inplace-update.yaml", &json!({ "updateStrategy": { "inPlaceUpdateStrategy": { "gracePeriodSeconds": 2 } } }))?)?;
    let game = Game::named(&scene, "test-gamedeployment");
    game.until_rest("Complete").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "8", "8", "8", "8", "8"], "{:?}", row(&scene)?);
    let before = game.pods().await?;
    let seen = watch_pods(&scene.pods(), "app=test-gamedeployment").await?;
    set_image(&scene, "python:latest")?;
    game.until_rest("PartitionReached").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "8", "5", "5", "8", "8"], "{:?}", row(&scene)?);
    let pods = game.pods().await?;
    ensure!(uids(&pods) == uids(&before), "pods were replaced");
    ensure!(restarts(&pods) == BTreeMap::from([(0, 3), (1, 5)]), "{:?}", restarts(&pods));
    ensure!(game.images().await? == counts(&[("python:3.5", 3), ("python:latest", 5)]), "{:?}", game.images().await?);
    ensure!(seen().fewest_ready >= 6, "more than two were out of service");
    game.patch(json!({ "spec": { "updateStrategy": { "partition": 0 } } })).await?;
    game.until_rest("Complete").await?;
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(1, 8)]), "{:?}", restarts(&game.pods().await?));
    let described = scene.kubectl(&["describe", "gamedeployment", "test-gamedeployment"])?;
    ensure!(
        described.contains("SuccessfulUpdatePodInPlace") && described.contains("successfully update pod test-gamedeployment-"),
        "{described}"
    );
    Ok(())
}

async fn three_writes_a_pod_and_no_more(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "exact", &in_place(6, 0))?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    let count = |subresource: &str, verb: &str| audited(&scene, "pods", subresource, verb);
    e2e::eventually("fewer than 18 status writes", || count("status", "patch") >= 18).await?;
    let seen = (count("", "create"), count("", "patch"), count("status", "patch"), count("", "get"), count("", "delete"));
    ensure!(seen == (6, 6, 18, 0, 0), "creates, patches, status patches, gets and deletes: {seen:?}");
    Ok(())
}

async fn a_rollback_in_the_grace_restarts_nothing(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "back", &in_place(4, 600))?;
    let first = game.until_rest("Complete").await?["updateRevision"].clone();
    game.set_image("game:2").await?;
    game.until_drained(2).await?;
    game.set_image("game:1").await?;
    let status = game.until_rest("Complete").await?;
    ensure!(status["updateRevision"] == first && status["currentRevision"] == first, "{status}");
    Game::expect_counts(&status, 4, 4, 4)?;
    let pods = game.pods().await?;
    ensure!(restarts(&pods) == BTreeMap::from([(0, 4)]), "{:?}", restarts(&pods));
    ensure!(pods.iter().all(|pod| !pod.annotations().contains_key("inplace-update-grace")), "the annotation of a grace period is left");
    Ok(())
}

async fn a_new_template_in_the_grace_is_what_runs(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "again", &in_place(4, 4))?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    game.until_drained(2).await?;
    game.set_image("game:3").await?;
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == counts(&[("game:3", 4)]), "{:?}", game.images().await?);
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(1, 4)]), "{:?}", restarts(&game.pods().await?));
    Ok(())
}

async fn going_back_before_the_node_has_seen_it(scene: Arc<Scene>) -> Result<()> {
    // The grace period is long enough for the node to fall silent before the image changes.
    let game = Game::apply(&scene, "unseen", &in_place(1, 4))?;
    game.until_rest("Complete").await?;
    let pod = game.pods().await?.pop().context("no pod")?;
    let node = node_of(&pod)?;
    scene.kubectl(&["label", "node", &node, "localkube/fake=off", "--overwrite"])?;
    let there_and_back = async {
        for image in ["game:2", "game:1"] {
            game.set_image(image).await?;
            until(&scene.pods(), &pod.name_any(), image, |pod| pod.is_some_and(|pod| pod::image(pod) == image)).await?;
        }
        Ok(())
    };
    let done: Result<()> = there_and_back.await;
    // The node comes back even if the test has failed.
    scene.kubectl(&["label", "node", &node, "localkube/fake=on", "--overwrite"])?;
    done?;
    game.until_rest("Complete").await?;
    let after = game.pods().await?;
    ensure!(uids(&after) == uids(&[pod]) && restarts(&after) == BTreeMap::from([(0, 1)]), "{:?}", restarts(&after));
    Ok(())
}

async fn a_change_that_cannot_be_made_in_place_is_held_or_replaces_pods(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "env", &in_place(3, 0))?;
    game.until_rest("Complete").await?;
    let before = game.pods().await?;
    let container = json!({ "name": "game", "image": "game:2", "env": [{ "name": "MODE", "value": "hard" }] });
    game.patch(json!({ "spec": { "template": { "spec": { "containers": [container] } } } })).await?;
    let said = game.until_condition("Degraded", "True", "InPlaceNotPossible").await?;
    ensure!(said.contains("template.spec.containers[0].env") && said.contains("whenNotPossible"), "{said}");
    ensure!(uids(&game.pods().await?) == uids(&before) && restarts(&game.pods().await?) == BTreeMap::from([(0, 3)]), "pods were touched");
    // Scaling is not affected.
    scene.kubectl(&["scale", "gd/env", "--replicas=5"])?;
    let status = game.until("scaled", |status| status["readyReplicas"] == 5).await?;
    ensure!(status["updatedReplicas"] == 2, "{status}");
    game.patch(json!({ "spec": { "updateStrategy": { "inPlaceUpdateStrategy": { "whenNotPossible": "Recreate" } } } })).await?;
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == counts(&[("game:2", 5)]), "{:?}", game.images().await?);
    game.until_condition("Degraded", "False", "AsExpected").await?;
    Ok(())
}

async fn an_image_that_cannot_be_pulled_is_mended(scene: Arc<Scene>) -> Result<()> {
    let mut spec = in_place(6, 0);
    spec["template"] = json!({ "metadata": { "annotations": { "localkube/pull-failure": "game:2,game:4" } } });
    let game = Game::apply(&scene, "broken", &spec)?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    game.until("two that cannot be pulled", |status| {
        status["readyReplicas"] == 4 && status["conditions"].to_string().contains("ErrImagePull")
    })
    .await?;
    ensure!(game.images().await?.get("game:2") == Some(&2), "{:?}", game.images().await?);
    // A new template repairs it.
    game.set_image("game:3").await?;
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 6, 6, 6)?;
    // So does a rollback.
    game.set_image("game:4").await?;
    game.until("two that cannot be pulled", |status| status["readyReplicas"] == 4).await?;
    game.set_image("game:3").await?;
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == counts(&[("game:3", 6)]), "{:?}", game.images().await?);
    Ok(())
}

async fn pods_without_the_gate_are_updated_too(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "gateless", &json!({ "replicas": 3, "updateStrategy": { "maxUnavailable": 1 } }))?;
    game.until_rest("Complete").await?;
    let before = game.pods().await?;
    ensure!(
        before.iter().all(|pod| pod.spec.as_ref().is_some_and(|spec| spec.readiness_gates.is_none())),
        "a pod has a readiness gate with RollingUpdate"
    );
    game.patch(json!({ "spec": { "updateStrategy": { "type": "InplaceUpdate" } } })).await?;
    let seen = watch_pods(&scene.pods(), "app=gateless").await?;
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    let pods = game.pods().await?;
    ensure!(uids(&pods) == uids(&before) && restarts(&pods) == BTreeMap::from([(1, 3)]), "{:?}", restarts(&pods));
    ensure!(seen().fewest_ready >= 2, "more than one was out of service");
    let is_warned = || scene.kubectl(&["get", "events"]).is_ok_and(|events| events.contains("UpdatedWithoutReadinessGate"));
    e2e::eventually("no warning about the missing gate", is_warned).await
}

async fn a_gate_that_is_flipped_by_hand_is_set_right(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "flip", &in_place(2, 600))?;
    game.until_rest("Complete").await?;
    let flip = |name: &str, status: &str| {
        let patch = json!({ "status": { "conditions": [{ "type": "InPlaceUpdateReady", "status": status }] } }).to_string();
        scene.kubectl(&["patch", "pod", name, "--subresource=status", "--type=strategic", "-p", &patch])
    };
    let pod = game.pods().await?.first().context("no pod")?.name_any();
    flip(&pod, "False")?;
    let is = |pod: Option<&Pod>, status: &str| pod.and_then(gate).is_some_and(|gate| gate.status == status);
    e2e::until(&scene.pods(), &pod, "back", |pod| is(pod, "True")).await?;
    // A pod whose gate is set to True by hand in its grace period is drained again, and the grace period starts again.
    game.set_image("game:2").await?;
    game.until_drained(2).await?;
    flip(&pod, "True")?;
    e2e::until(&scene.pods(), &pod, "drained again", |pod| is(pod, "False")).await?;
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(0, 2)]), "a container restarted while its pod served");
    Ok(())
}

async fn only_changed_containers_restart_and_in_order(scene: Arc<Scene>) -> Result<()> {
    let games = [("several", false), ("gateless", true)].map(|(name, gateless)| restart_in_order(&scene, name, gateless));
    futures::future::try_join_all(games).await.map(drop)
}

async fn restart_in_order(scene: &Arc<Scene>, name: &str, gateless: bool) -> Result<()> {
    let containers = |side: &str, first: &str, second: &str| json!([{ "name": "side", "image": side }, { "name": "first", "image": first }, { "name": "second", "image": second }]);
    // Without the gate a pod is not drained, so its grace period is not waited for.
    let mut spec = in_place(2, if gateless { 600 } else { 0 });
    spec["disableReadinessGate"] = json!(gateless);
    spec["updateStrategy"]["inPlaceUpdateStrategy"]["policy"] = json!("OrderedReady");
    let slowly = json!({ "annotations": { "localkube/ready-after": "2s" } });
    spec["template"] = json!({ "metadata": slowly, "spec": { "containers": containers("side:1", "first:1", "second:1") } });
    let game = Game::apply(scene, name, &spec)?;
    game.until_rest("Complete").await?;
    game.patch(json!({ "spec": { "template": { "spec": { "containers": containers("side:1", "first:2", "second:2") } } } })).await?;
    game.until_rest("Complete").await?;
    for pod in game.pods().await? {
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let restarts: Vec<i32> = statuses.iter().map(|status| status.restart_count).collect();
        ensure!(restarts == [0, 1, 1], "{restarts:?}");
        let started = |index: usize| {
            let started = statuses.get(index).and_then(|status| Some(status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0));
            started.with_context(|| format!("container {index} does not run"))
        };
        let waited = started(2)?.duration_since(started(1)?);
        ensure!(waited >= jiff::SignedDuration::from_secs(2), "the second did not wait until the first was ready: {waited:?}");
    }
    Ok(())
}

async fn labels_and_annotations_change_without_a_restart(scene: Arc<Scene>) -> Result<()> {
    let mut spec = in_place(2, 600);
    spec["template"] = json!({ "metadata": { "labels": { "tier": "one", "old": "yes" } } });
    let game = Game::apply(&scene, "words", &spec)?;
    game.until_rest("Complete").await?;
    let metadata = json!({ "labels": { "tier": "two", "old": null }, "annotations": { "note": "new" } });
    game.patch(json!({ "spec": { "template": { "metadata": metadata } } })).await?;
    game.until_rest("Complete").await?;
    let pods = game.pods().await?;
    for pod in &pods {
        let labels = pod.labels();
        ensure!(labels.get("tier").is_some_and(|tier| tier == "two") && !labels.contains_key("old"), "{labels:?}");
        ensure!(pod.annotations().get("note").is_some_and(|note| note == "new"), "{:?}", pod.annotations());
    }
    ensure!(restarts(&pods) == BTreeMap::from([(0, 2)]), "{:?}", restarts(&pods));
    Ok(())
}

async fn a_pod_deleted_in_its_grace_is_replaced(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "lost", &in_place(4, 600))?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    game.until_drained(2).await?;
    let is_drained = |pod: &&Pod| pod.annotations().contains_key("inplace-update-grace");
    let drained = game.pods().await?.iter().find(is_drained).context("no pod is in its grace period")?.name_any();
    scene.kubectl(&["delete", "pod", &drained, "--grace-period=0", "--force"])?;
    // Its replacement has the new revision and serves at once, so that the next pod is drained.
    game.until("replaced", |status| status["replicas"] == 4 && status["updatedReadyReplicas"] == 1 && status["updatedReplicas"] == 3)
        .await?;
    ensure!(game.images().await? == counts(&[("game:1", 3), ("game:2", 1)]), "{:?}", game.images().await?);
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(0, 4)]), "a container restarted in the grace period");
    Ok(())
}

async fn the_type_can_be_switched_on_the_way(scene: Arc<Scene>) -> Result<()> {
    let mut spec = in_place(6, 1);
    spec["updateStrategy"]["partition"] = json!(3);
    let game = Game::apply(&scene, "switch", &spec)?;
    game.until_rest("Complete").await?;
    let before = uids(&game.pods().await?);
    game.set_image("game:2").await?;
    game.until("two pods are being updated", |status| status["updatedReplicas"] == 2).await?;
    game.patch(json!({ "spec": { "updateStrategy": { "type": "RollingUpdate", "partition": 0 } } })).await?;
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 6, 6, 6)?;
    ensure!(game.images().await? == counts(&[("game:2", 6)]), "{:?}", game.images().await?);
    let stayed = uids(&game.pods().await?).iter().filter(|uid| before.contains(*uid)).count();
    ensure!(stayed >= 2, "pods that were being updated were replaced");
    Ok(())
}

async fn images_change_under_running_containers(scene: Arc<Scene>) -> Result<()> {
    scene.apply(&example("hotpatch-update.yaml", &json!({}))?)?;
    let game = Game::named(&scene, "test-gamedeployment");
    game.until_rest("Complete").await?;
    set_image(&scene, "main:v2")?;
    game.until_rest("PartitionReached").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "8", "5", "5", "8", "8"], "{:?}", row(&scene)?);
    let images = ["get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[0].image}"];
    let is_patched = || scene.kubectl(&images).is_ok_and(|images| images.matches("main:v2").count() == 5);
    e2e::eventually("not exactly five pods run the new image", is_patched).await?;
    let pods = game.pods().await?;
    ensure!(restarts(&pods) == BTreeMap::from([(0, 8)]), "{:?}", restarts(&pods));
    let is_marked = |pod: &&Pod| pod.annotations().get("io.kubernetes.hotpatch.container").is_some_and(|value| value == "true");
    let patched: Vec<&Pod> = pods.iter().filter(is_marked).collect();
    ensure!(patched.len() == 5, "{} pods are marked", patched.len());
    for pod in patched {
        let state: Value = serde_json::from_str(pod.annotations().get("hotpatch-update-state").context("no state")?)?;
        ensure!(state["lastContainerStatuses"]["main"]["imageID"] == "sha256:main:v1" && state["revision"].is_string(), "{state}");
    }
    let described = scene.kubectl(&["describe", "gamedeployment", "test-gamedeployment"])?;
    ensure!(described.contains("SuccessfulUpdatePodHotPatch") && described.contains(" hot-patch"), "{described}");
    Ok(())
}

async fn lone_pods_are_adopted_and_updated_in_place(scene: Arc<Scene>) -> Result<()> {
    let made_by_hand = |name, env| {
        scene.pod(
            name,
            "game:0",
            &json!({ "metadata": { "labels": { "app": "lone" } }, "spec": { "terminationGracePeriodSeconds": 1, "containers": env } }),
        )
    };
    let container = |value: &str| json!([{ "name": "game", "image": "game:0", "env": [{ "name": "MAP", "value": value }] }]);
    made_by_hand("lone-same", container("desert"))?;
    made_by_hand("lone-other", container("forest"))?;
    for name in ["lone-same", "lone-other"] {
        e2e::until_pod_ready(&scene.pods(), name).await?;
    }
    let mut spec = in_place(3, 0);
    spec["template"] =
        json!({ "spec": { "containers": [{ "name": "game", "image": "game:1", "env": [{ "name": "MAP", "value": "desert" }] }] } });
    let game = Game::apply(&scene, "lone", &spec)?;
    let status = game.until_rest("InPlaceNotPossible").await?.to_string();
    ensure!(status.contains("template.spec.containers[0].env[0].value"), "{status}");
    let whole = json!({ "spec": { "updateStrategy": { "inPlaceUpdateStrategy": { "whenNotPossible": "Recreate" } } } });
    game.patch(whole).await?;
    Game::expect_counts(&game.until_rest("Complete").await?, 3, 3, 3)?;
    let pods = game.pods().await?;
    let kept = pods.iter().find(|pod| pod.name_any() == "lone-same").context("the pod that could stay is gone")?;
    ensure!(restarts(std::slice::from_ref(kept)) == BTreeMap::from([(1, 1)]), "{:?}", kept.status);
    ensure!(!pods.iter().any(|pod| pod.name_any() == "lone-other"), "a pod that cannot follow the template counts as updated");
    Ok(())
}
