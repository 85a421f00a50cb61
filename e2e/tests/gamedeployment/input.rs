//! Bad input: a clear error at `kubectl apply` where the schema can detect it, otherwise a condition with the API server's
//! message; other objects are still served.

use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::policy::{forbid, lift};
use e2e::{Game, Place, Scene, Suite, manifest};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, what_makes_no_sense_is_refused_at_once);
    suite.sharing(fake, what_makes_sense_is_accepted);
    suite.sharing(fake, the_selector_cannot_change);
    suite.sharing(fake, a_long_name_is_refused_and_the_longest_works);
    suite.sharing(fake, a_refused_template_is_told_and_mended);
    suite.sharing(fake, a_quota_that_leaves_no_room_for_surge_is_told);
    suite.sharing(fake, a_quota_is_told_and_lifted);
    suite.sharing(fake, a_denied_create_is_told_in_the_policys_words);
    suite.sharing(fake, a_taken_revision_name_is_passed_by);
    suite.sharing(fake, defaults_are_those_of_the_guide);
}

/// The API server's error for a manifest; empty if it is accepted.
fn refusal(scene: &Scene, manifest: &Value) -> String {
    scene.apply(manifest).err().map(|error| format!("{error:#}")).unwrap_or_default()
}

async fn what_makes_no_sense_is_refused_at_once(scene: Arc<Scene>) -> Result<()> {
    let strategy = |strategy: Value| json!({ "updateStrategy": strategy });
    let step = |step: Value| json!({ "updateStrategy": { "canary": { "steps": [step] } } });
    let cases = [
        (json!({ "replicas": -1 }), "spec.replicas"),
        (json!({ "minReadySeconds": -1 }), "spec.minReadySeconds"),
        (json!({ "revisionHistoryLimit": -1 }), "spec.revisionHistoryLimit"),
        (strategy(json!({ "type": "Recreate" })), "spec.updateStrategy.type"),
        (strategy(json!({ "partition": -1 })), "spec.updateStrategy.partition"),
        (strategy(json!({ "partition": "101%" })), "spec.updateStrategy.partition"),
        (strategy(json!({ "partition": "three" })), "spec.updateStrategy.partition"),
        (strategy(json!({ "maxUnavailable": -2 })), "spec.updateStrategy.maxUnavailable"),
        (strategy(json!({ "maxUnavailable": "-5%" })), "spec.updateStrategy.maxUnavailable"),
        (strategy(json!({ "maxSurge": -2 })), "spec.updateStrategy.maxSurge"),
        (strategy(json!({ "maxUnavailable": 0 })), "maxUnavailable and maxSurge may not both be zero"),
        (strategy(json!({ "maxUnavailable": "0%", "maxSurge": "0%" })), "maxUnavailable and maxSurge may not both be zero"),
        (strategy(json!({ "inPlaceUpdateStrategy": { "gracePeriodSeconds": -1 } })), "gracePeriodSeconds"),
        (step(json!({})), "spec.updateStrategy.canary.steps[0]"),
        (step(json!({ "partition": 1, "pause": {} })), "a step has exactly one of partition, pause and hook"),
        (step(json!({ "pause": { "duration": -1 } })), "spec.updateStrategy.canary.steps[0].pause.duration"),
        (step(json!({ "hook": {} })), "templateName"),
        (json!({ "template": { "spec": { "restartPolicy": "Never" } } }), "spec.template.spec.restartPolicy"),
        (json!({ "template": { "metadata": { "labels": { "app": "other" } } } }), "spec.template.metadata.labels"),
        (json!({ "selector": { "matchLabels": null } }), "an empty selector"),
        (
            json!({ "selector": { "matchExpressions": [{ "key": "tier", "operator": "Exists" }] } }),
            "must satisfy selector.matchExpressions",
        ),
        (json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "Is", "values": ["x"] }] } }), "operator"),
        (json!({ "replica": 3 }), "unknown field \"spec.replica\""),
    ];
    for (spec, words) in cases {
        let said = refusal(&scene, &manifest("refused", &spec));
        ensure!(said.contains(words), "{spec} should be refused with {words:?}, not {said:?}");
    }
    Ok(())
}

async fn what_makes_sense_is_accepted(scene: Arc<Scene>) -> Result<()> {
    let steps = json!([{ "partition": 3 }, { "pause": {} }, { "partition": "50%" }, { "pause": { "duration": 60 } }, { "hook": { "templateName": "test", "args": [{ "name": "a", "value": "b" }] } }]);
    let cases = [
        json!({ "replicas": 0 }),
        json!({ "replicas": 0, "updateStrategy": { "partition": "100%", "maxUnavailable": "100%", "maxSurge": "150%" } }),
        json!({ "replicas": 0, "updateStrategy": { "maxUnavailable": 0, "maxSurge": 1 } }),
        json!({ "replicas": 0, "updateStrategy": { "type": "InplaceUpdate", "partition": 1, "maxUnavailable": 2, "canary": { "steps": steps }, "inPlaceUpdateStrategy": { "gracePeriodSeconds": 30 } }, "preDeleteUpdateStrategy": { "hook": { "templateName": "test" } } }),
        json!({ "replicas": 0, "serviceName": "anything" }),
        json!({ "replicas": 0, "template": { "metadata": { "creationTimestamp": null }, "spec": { "fieldOfTomorrow": { "a": [1] } } } }),
        json!({ "replicas": 0, "selector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["a", "accepted-6"] }, { "key": "gone", "operator": "DoesNotExist" }] } }),
    ];
    for (number, spec) in cases.iter().enumerate() {
        let said = refusal(&scene, &manifest(&format!("accepted-{number}"), spec));
        ensure!(said.is_empty(), "{spec} was refused: {said}");
    }
    let kept = scene.kubectl(&["get", "gd/accepted-5", "-o", "jsonpath={.spec.template.spec.fieldOfTomorrow.a[0]}"])?;
    ensure!(kept == "1", "an unknown field of the template was lost");
    Game::named(&scene, "accepted-0").until_rest("Complete").await.map(drop)
}

async fn the_selector_cannot_change(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "fixed", &json!({ "replicas": 1 }))?;
    game.until_rest("Complete").await?;
    let labels = json!({ "app": "fixed", "tier": "gold" });
    let said = refusal(
        &scene,
        &manifest("fixed", &json!({ "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels } } })),
    );
    ensure!(said.contains("spec.selector") && said.contains("the selector cannot be changed"), "{said}");
    Ok(())
}

async fn a_long_name_is_refused_and_the_longest_works(scene: Arc<Scene>) -> Result<()> {
    let said = refusal(&scene, &manifest(&"n".repeat(53), &json!({})));
    ensure!(said.contains("at most 52 characters"), "{said}");
    let game = Game::apply(&scene, &"n".repeat(52), &json!({ "replicas": 2 }))?;
    game.until_rest("Complete").await.map(drop)
}

async fn a_refused_template_is_told_and_mended(scene: Arc<Scene>) -> Result<()> {
    let spec = json!({ "replicas": 2, "template": { "spec": { "containers": [{ "name": "Not A Name", "image": "game:1" }] } } });
    let game = Game::apply(&scene, "refused", &spec)?;
    let said = game.until_condition("Degraded", "True", "FailedCreate").await?;
    ensure!(said.contains("spec.containers[0].name") && said.contains("Not A Name"), "{said}");
    let other = Game::apply(&scene, "other", &json!({ "replicas": 2 }))?;
    other.until_rest("Complete").await?;
    game.set_image("game:1").await?;
    game.until_rest("Complete").await?;
    game.until_condition("Degraded", "False", "AsExpected").await.map(drop)
}

async fn a_quota_is_told_and_lifted(scene: Arc<Scene>) -> Result<()> {
    let quota = |pods: &str| json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "few" }, "spec": { "hard": { "pods": pods } } });
    scene.apply(&quota("6"))?;
    let quotas: kube::Api<k8s_openapi::api::core::v1::ResourceQuota> = scene.api();
    e2e::until(&quotas, "few", "counted", |quota| quota.and_then(|quota| quota.status.as_ref()?.hard.as_ref()).is_some()).await?;
    let game = Game::apply(&scene, "greedy", &json!({ "replicas": 100_000 }))?;
    let said = game.until_condition("Degraded", "True", "FailedCreate").await?;
    ensure!(said.contains("exceeded quota: few"), "{said}");
    // The GameDeployment that asks for far too many pods does not hold up another one.
    game.patch(json!({ "spec": { "replicas": 4 } })).await?;
    game.until_rest("Complete").await?;
    let modest = Game::apply(&scene, "modest", &json!({ "replicas": 2 }))?;
    modest.until_rest("Complete").await?;
    // Exhausted in the middle of a rollout with surge: it waits, and continues when there is room.
    game.patch(json!({ "spec": { "updateStrategy": { "maxUnavailable": 0, "maxSurge": 1 } } })).await?;
    game.set_image("game:2").await?;
    game.until_condition("Degraded", "True", "FailedCreate").await?;
    scene.apply(&quota("7"))?;
    game.until_rest("Complete").await?;
    Game::expect_counts(&game.until_rest("Complete").await?, 4, 4, 4)
}

async fn a_denied_create_is_told_in_the_policys_words(scene: Arc<Scene>) -> Result<()> {
    let message = "the studio has not approved this pod";
    let probe = ["run", "probe", "--image=game:1", "--dry-run=server"];
    forbid(&scene, "CREATE", "'approved' in object.metadata.labels", message, &probe).await?;
    let game = Game::apply(&scene, "denied", &json!({ "replicas": 2 }))?;
    let said = game.until_condition("Degraded", "True", "FailedCreate").await?;
    ensure!(said.contains(message), "{said}");
    game.patch(json!({ "spec": { "template": { "metadata": { "labels": { "approved": "yes" } } } } })).await?;
    game.until_rest("Complete").await?;
    lift(&scene)
}

async fn a_taken_revision_name_is_passed_by(scene: Arc<Scene>) -> Result<()> {
    let first = Game::apply(&scene, "collide", &json!({ "replicas": 1 }))?;
    let revision = first.until_rest("Complete").await?["updateRevision"].as_str().unwrap_or_default().to_owned();
    scene.kubectl(&["delete", "gd/collide", "--cascade=foreground", "--wait"])?;
    // A revision of another owner has the name that the new one would get.
    let owner =
        json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid_of_config_map(&scene)?, "controller": true }]);
    scene.apply(&json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": { "name": revision, "ownerReferences": owner }, "data": { "other": true }, "revision": 1,
    }))?;
    let seen = e2e::watch_pods(&scene.pods(), "app=collide").await?;
    let again = Game::apply(&scene, "collide", &json!({ "replicas": 3 }))?;
    let status = again.until_rest("Complete").await?;
    let names = seen().names;
    ensure!(names.len() == 3, "pods were created for the revision of another owner and then replaced: {names:?}");
    ensure!(status["updateRevision"] != revision.as_str() && status["collisionCount"] == 1, "{status}");
    Ok(())
}

fn uid_of_config_map(scene: &Scene) -> Result<String> {
    scene.apply(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "owner" } }))?;
    scene.kubectl(&["get", "configmap/owner", "-o", "jsonpath={.metadata.uid}"])
}

async fn defaults_are_those_of_the_guide(scene: Arc<Scene>) -> Result<()> {
    scene.apply(&manifest("plain", &json!({})))?;
    let spec: Value = serde_json::from_str(&scene.kubectl(&["get", "gd/plain", "-o", "jsonpath={.spec}"])?)?;
    ensure!(spec["replicas"] == 1 && spec["revisionHistoryLimit"] == 10 && spec["minReadySeconds"] == 0, "{spec}");
    let strategy = json!({ "type": "RollingUpdate", "partition": 0, "maxUnavailable": "25%", "maxSurge": 0, "paused": false });
    ensure!(spec["updateStrategy"] == strategy, "{spec}");
    Game::named(&scene, "plain").until_rest("Complete").await.map(drop)
}

async fn a_quota_that_leaves_no_room_for_surge_is_told(scene: Arc<Scene>) -> Result<()> {
    let spec = json!({ "replicas": 3, "updateStrategy": { "maxUnavailable": 0, "maxSurge": 1 } });
    let game = Game::apply(&scene, "tight", &spec)?;
    game.until_rest("Complete").await?;
    scene.kubectl(&["create", "quota", "tight", "--hard=pods=3"])?;
    // A quota takes effect when its status shows the used pods.
    e2e::eventually("the quota has no effect", || {
        scene.kubectl(&["get", "quota", "tight", "-o", "jsonpath={.status.used.pods}"]).is_ok_and(|used| used == "3")
    })
    .await?;
    game.set_image("game:2").await?;
    let said = game.until_condition("Degraded", "True", "FailedCreate").await?;
    ensure!(said.contains("exceeded quota"), "{said}");
    ensure!(game.pods().await?.len() == 3, "a pod was deleted although none could be created");
    scene.kubectl(&["delete", "quota", "tight"])?;
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 3, 3, 3)
}
