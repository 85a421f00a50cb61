//! Canary steps on fake nodes.

use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::hook::HookServer;
use e2e::pod::restarts;
use e2e::walkthrough::{canary, example, hook_template, resume, set_image};
use e2e::{Game, Metrics, Place, Scene, Suite, autoscaler, counts, row};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, the_canary_walk_through_comes_out_as_written);
    suite.sharing(fake, a_hook_that_approves_lets_the_rollout_finish);
    suite.sharing(fake, going_back_skips_the_steps);
    suite.sharing(fake, steps_and_template_in_one_apply_are_honoured);
    suite.sharing(fake, steps_can_be_edited_on_the_way);
    suite.sharing(fake, scaling_continues_in_a_pause);
    suite.disturbing(fake, an_autoscaler_grows_a_game_in_a_pause);
    suite.sharing(fake, a_hook_that_cannot_be_asked_is_waited_for);
    suite.sharing(fake, a_hook_that_denies_can_roll_back);
    suite.sharing(fake, what_a_person_paused_stays_paused);
    suite.sharing(fake, a_person_s_pause_stays_when_the_hook_denies);
    suite.sharing(fake, steps_work_for_rolling_updates_too);
}

/// Waits for a pause at a step with this reason, and checks that `spec.updateStrategy.paused` is set.
async fn until_paused(game: &Game, step: i64, reason: &str) -> Result<Value> {
    let status = game
        .until(&format!("paused at step {step}: {reason}"), |status| {
            status["currentStepIndex"] == step && status["pauseConditions"][0]["reason"] == reason
        })
        .await?;
    let object = game.api().get("test-gamedeployment").await?;
    ensure!(object.data["spec"]["updateStrategy"]["paused"] == true, "{}", object.data["spec"]["updateStrategy"]);
    ensure!(status["pauseConditions"][0]["startTime"].is_string(), "{status}");
    Ok(status)
}

async fn the_canary_walk_through_comes_out_as_written(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "name": "bryan", "male": "yes", "age": 32 })).await?;
    scene.apply(&hook_template(&server, "asInt(result) < 30")?)?;
    let game = canary(&scene, &json!({}))?;
    let first = game.until_rest("Complete").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "4", "4", "4", "4", "4"], "{:?}", row(&scene)?);
    ensure!(first["currentStepIndex"] == 5 && first["canary"]["revision"] == first["updateRevision"], "{first}");
    set_image(&scene, "python:3.5")?;
    let status = until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "4", "1", "1", "4", "4"], "{:?}", row(&scene)?);
    ensure!(status["canary"]["revision"] == first["updateRevision"] && status["updateRevision"] != first["updateRevision"], "{status}");
    ensure!(status["currentStepHash"].is_string() && status["availableReplicas"] == 4 && status["collisionCount"] == 0, "{status}");
    game.until_condition("Paused", "True", "PausedByCanaryPauseStep").await?;
    resume(&scene)?;
    until_paused(&game, 3, "PausedByCanaryPauseStep").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "4", "2", "2", "4", "4"], "{:?}", row(&scene)?);
    // After its time the pause ends by itself, and the hook is asked.
    let status = until_paused(&game, 4, "PausedByStepBasedHook").await?;
    let run = format!("{}-4-test", status["updateRevision"].as_str().unwrap_or_default());
    ensure!(status["canary"]["currentStepHookRun"] == run.as_str(), "{status}");
    let phase =
        scene.kubectl(&["get", "hookrun", &run, "-o", "jsonpath={.status.phase} {.status.metricResults[0].measurements[0].value}"])?;
    ensure!(phase == "Failed 32", "{phase}");
    let said = game.until_condition("Degraded", "True", "PausedByStepBasedHook").await?;
    ensure!(said.contains(&run) && said.contains("paused to false"), "{said}");
    // Continue anyway: two pods are out of service at once, and UPDATED counts them.
    resume(&scene)?;
    let columns = ["updatedReplicas", "updatedReadyReplicas", "readyReplicas", "replicas"];
    game.until("4 4 2 2 4", |status| columns.map(|column| status[column].as_i64().unwrap_or(-1)) == [4, 2, 2, 4]).await?;
    let status = game.until_rest("Complete").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "4", "4", "4", "4", "4"], "{:?}", row(&scene)?);
    ensure!(status["canary"]["revision"] == status["updateRevision"] && status["currentStepIndex"] == 5, "{status}");
    ensure!(restarts(&game.pods().await?).get(&1) == Some(&4), "{:?}", restarts(&game.pods().await?));
    Ok(())
}

async fn a_hook_that_approves_lets_the_rollout_finish(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    scene.apply(&hook_template(&server, "asInt(result) > 30")?)?;
    let game = canary(&scene, &json!({}))?;
    game.until_rest("Complete").await?;
    set_image(&scene, "python:3.5")?;
    until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    resume(&scene)?;
    // The hook approves, so no one has to resume.
    game.until_rest("Complete").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "4", "4", "4", "4", "4"], "{:?}", row(&scene)?);
    ensure!(server.requests() == 2, "{} requests", server.requests());
    let object = game.api().get("test-gamedeployment").await?;
    ensure!(object.data["spec"]["updateStrategy"]["paused"] == false, "{}", object.data["spec"]["updateStrategy"]);
    let is_reported = || scene.kubectl(&["get", "events"]).is_ok_and(|events| events.contains("Set Step Index to 5"));
    e2e::eventually("no event reports the last step", is_reported).await
}

async fn going_back_skips_the_steps(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    scene.apply(&hook_template(&server, "asInt(result) < 30")?)?;
    let game = canary(&scene, &json!({}))?;
    let first = game.until_rest("Complete").await?;
    set_image(&scene, "python:3.5")?;
    until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    set_image(&scene, "python:latest")?;
    let status = game.until_rest("Complete").await?;
    ensure!(status["updateRevision"] == first["updateRevision"] && status["currentStepIndex"] == 5, "{status}");
    ensure!(status["pauseConditions"].is_null(), "{status}");
    let object = game.api().get("test-gamedeployment").await?;
    ensure!(object.data["spec"]["updateStrategy"]["paused"] == false, "the pause is left behind");
    ensure!(game.images().await? == counts(&[("python:latest", 4)]), "{:?}", game.images().await?);
    // The same template again goes through the steps again, and its hook is asked again.
    set_image(&scene, "python:3.5")?;
    until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    Ok(())
}

async fn steps_and_template_in_one_apply_are_honoured(scene: Arc<Scene>) -> Result<()> {
    let game = canary(&scene, &json!({ "updateStrategy": { "canary": null } }))?;
    let status = game.until_rest("Complete").await?;
    ensure!(status["currentStepIndex"].is_null(), "{status}");
    let mut object = example(
        "gamedeployment.yaml",
        &json!({ "updateStrategy": { "inPlaceUpdateStrategy": { "gracePeriodSeconds": 0 }, "partition": 1 } }),
    )?;
    object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("python:3.5");
    scene.apply(&object)?;
    until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "4", "1", "1", "4", "4"], "{:?}", row(&scene)?);
    let said = game.until_condition("Progressing", "False", "PausedByCanaryPauseStep").await?;
    ensure!(said.contains("spec.updateStrategy.partition has no effect"), "{said}");
    Ok(())
}

async fn steps_can_be_edited_on_the_way(scene: Arc<Scene>) -> Result<()> {
    let game = canary(&scene, &json!({ "updateStrategy": { "canary": { "steps": [{ "partition": 2 }, { "pause": {} }] } } }))?;
    game.until_rest("Complete").await?;
    set_image(&scene, "python:3.5")?;
    until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    // Steps that are satisfied already pass at once; a new pause step pauses.
    let steps = json!([{ "partition": 3 }, { "partition": "25%" }, { "pause": {} }, { "partition": 0 }]);
    game.patch(json!({ "spec": { "updateStrategy": { "canary": { "steps": steps } } } })).await?;
    until_paused(&game, 2, "PausedByCanaryPauseStep").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "4", "3", "3", "4", "4"], "{:?}", row(&scene)?);
    // Without steps everything is updated.
    game.patch(json!({ "spec": { "updateStrategy": { "canary": null } } })).await?;
    let status = game.until_rest("Complete").await?;
    ensure!(status["currentStepIndex"].is_null() && status["updatedReplicas"] == 4, "{status}");
    Ok(())
}

async fn scaling_continues_in_a_pause(scene: Arc<Scene>) -> Result<()> {
    let game = canary(&scene, &json!({}))?;
    game.until_rest("Complete").await?;
    set_image(&scene, "python:3.5")?;
    until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    scene.kubectl(&["scale", "gd/test-gamedeployment", "--replicas=7"])?;
    let status = game.until("7 ready", |status| status["readyReplicas"] == 7).await?;
    ensure!(status["updatedReplicas"] == 1 && status["currentStepIndex"] == 1, "{status}");
    scene.kubectl(&["scale", "gd/test-gamedeployment", "--replicas=0"])?;
    game.until("none left", |status| status["replicas"] == 0).await?;
    scene.kubectl(&["scale", "gd/test-gamedeployment", "--replicas=3"])?;
    let status = game.until("3 ready", |status| status["readyReplicas"] == 3).await?;
    ensure!(status["currentStepIndex"] == 1 && status["pauseConditions"][0]["reason"] == "PausedByCanaryPauseStep", "{status}");
    ensure!(game.images().await? == counts(&[("python:latest", 3)]), "a paused rollout continued: {:?}", game.images().await?);
    Ok(())
}

async fn an_autoscaler_grows_a_game_in_a_pause(scene: Arc<Scene>) -> Result<()> {
    let metrics = Metrics::start(&scene).await?;
    let game = canary(&scene, &json!({}))?;
    game.until_rest("Complete").await?;
    metrics.set(40);
    scene.apply(&autoscaler("test-gamedeployment"))?;
    set_image(&scene, "python:3.5")?;
    until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    metrics.set(70);
    let status = game.until("7 ready", |status| status["readyReplicas"] == 7 && status["replicas"] == 7).await?;
    ensure!(status["updatedReplicas"] == 1 && status["currentStepIndex"] == 1, "{status}");
    ensure!(status["pauseConditions"][0]["reason"] == "PausedByCanaryPauseStep", "{status}");
    ensure!(game.images().await? == counts(&[("python:latest", 6), ("python:3.5", 1)]), "{:?}", game.images().await?);
    Ok(())
}

async fn a_hook_that_cannot_be_asked_is_waited_for(scene: Arc<Scene>) -> Result<()> {
    let steps = json!([{ "partition": 3 }, { "hook": { "templateName": "test", "args": [{ "name": "age", "value": "30" }] } }]);
    let game = canary(&scene, &json!({ "updateStrategy": { "canary": { "steps": steps } } }))?;
    game.until_rest("Complete").await?;
    set_image(&scene, "python:3.5")?;
    let said = game.until_condition("Degraded", "True", "HookNotPossible").await?;
    ensure!(said.contains("HookTemplate test does not exist"), "{said}");
    scene.kubectl(&["scale", "gd/test-gamedeployment", "--replicas=5"])?;
    game.until("5 ready", |status| status["readyReplicas"] == 5).await?;
    // The template is created, and lacks a value for an argument.
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    let mut template = hook_template(&server, "asInt(result) > 30")?;
    template["spec"]["args"] = json!([{ "name": "missing" }]);
    scene.apply(&template)?;
    let wait = |words: &'static str| game.until(words, move |status| status["conditions"].to_string().contains(words));
    wait("args.missing has no value").await?;
    template["spec"]["args"] = json!([{ "name": "missing", "value": "found" }]);
    scene.apply(&template)?;
    game.until_rest("Complete").await?;
    ensure!(row(&scene)? == ["test-gamedeployment", "5", "5", "5", "5", "5"], "{:?}", row(&scene)?);
    Ok(())
}

async fn a_hook_that_denies_can_roll_back(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    scene.apply(&hook_template(&server, "asInt(result) < 30")?)?;
    let steps = json!([{ "partition": 2 }, { "hook": { "templateName": "test" }, "onFailure": "Rollback" }]);
    let game = canary(&scene, &json!({ "updateStrategy": { "canary": { "steps": steps } } }))?;
    game.until_rest("Complete").await?;
    set_image(&scene, "python:3.5")?;
    let said = game.until_condition("Degraded", "True", "RolledBackByHook").await?;
    ensure!(said.contains("updated pods return to the stable revision"), "{said}");
    let status = game.until("all pods are back", |status| status["updatedReplicas"] == 0 && status["readyReplicas"] == 4).await?;
    ensure!(status["pauseConditions"][0]["reason"] == "PausedByStepBasedHook" && status["currentStepIndex"] == 1, "{status}");
    ensure!(game.images().await? == counts(&[("python:latest", 4)]), "{:?}", game.images().await?);
    // A person can continue anyway.
    resume(&scene)?;
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == counts(&[("python:3.5", 4)]), "{:?}", game.images().await?);
    Ok(())
}

async fn what_a_person_paused_stays_paused(scene: Arc<Scene>) -> Result<()> {
    let game =
        canary(&scene, &json!({ "updateStrategy": { "canary": { "steps": [{ "partition": 3 }, { "pause": { "duration": 1 } }] } } }))?;
    game.until_rest("Complete").await?;
    game.patch(json!({ "spec": { "updateStrategy": { "paused": true } } })).await?;
    set_image(&scene, "python:3.5")?;
    game.until_condition("Paused", "True", "PausedByUser").await?;
    let status = game.until_condition("Progressing", "False", "PausedByUser").await?;
    ensure!(status.contains("0 of 4 pods are updated"), "{status}");
    // Another template does not clear it either.
    set_image(&scene, "python:3.6")?;
    game.until_condition("Progressing", "False", "PausedByUser").await?;
    let object = game.api().get("test-gamedeployment").await?;
    ensure!(object.data["spec"]["updateStrategy"]["paused"] == true, "the operator cleared what a person set");
    resume(&scene)?;
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == counts(&[("python:3.6", 4)]), "{:?}", game.images().await?);
    Ok(())
}

async fn a_person_s_pause_stays_when_the_hook_denies(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    let mut template = hook_template(&server, "asInt(result) < 30")?;
    template["spec"]["metrics"][0]["initialDelay"] = json!("4s");
    scene.apply(&template)?;
    let steps = json!({ "updateStrategy": { "canary": { "steps": [{ "partition": 3 }, { "hook": { "templateName": "test" } }] } } });
    let game = canary(&scene, &steps)?;
    game.until_rest("Complete").await?;
    set_image(&scene, "python:3.5")?;
    game.until("the hook is asked", |status| status["canary"]["currentStepHookRun"].is_string()).await?;
    game.patch(json!({ "spec": { "updateStrategy": { "paused": true } } })).await?;
    let failed = "jsonpath={.items[0].status.phase}";
    e2e::eventually("the hook does not deny", || scene.kubectl(&["get", "hookruns", "-o", failed]).is_ok_and(|phase| phase == "Failed"))
        .await?;
    let paused = || scene.kubectl(&["get", "gamedeployment", "test-gamedeployment", "-o", "jsonpath={.spec.updateStrategy.paused}"]);
    // A new template waits for the person, and starts at the first step.
    set_image(&scene, "python:3.9")?;
    let waits = |status: &Value| status["currentStepIndex"] == 0 && status["pauseConditions"].as_array().is_none_or(Vec::is_empty);
    game.until("it waits at the first step", waits).await?;
    game.until_condition("Paused", "True", "PausedByUser").await?;
    ensure!(paused()? == "true", "the person's pause is gone");
    ensure!(!game.images().await?.contains_key("python:3.9"), "it continued: {:?}", game.images().await?);
    resume(&scene)?;
    // Resumed, it is paused by the hook; resumed again it continues.
    until_paused(&game, 1, "PausedByStepBasedHook").await?;
    resume(&scene)?;
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == counts(&[("python:3.9", game.pods().await?.len())]), "{:?}", game.images().await?);
    Ok(())
}

async fn steps_work_for_rolling_updates_too(scene: Arc<Scene>) -> Result<()> {
    let steps = json!([{ "partition": "50%" }, { "pause": {} }]);
    let game = canary(
        &scene,
        &json!({ "updateStrategy": { "type": "RollingUpdate", "maxSurge": 1, "maxUnavailable": 0, "canary": { "steps": steps } } }),
    )?;
    game.until_rest("Complete").await?;
    let seen = e2e::watch_pods(&scene.pods(), "app=test-gamedeployment").await?;
    set_image(&scene, "python:3.5")?;
    until_paused(&game, 1, "PausedByCanaryPauseStep").await?;
    ensure!(game.images().await? == counts(&[("python:latest", 2), ("python:3.5", 2)]), "{:?}", game.images().await?);
    resume(&scene)?;
    game.until_rest("Complete").await?;
    let seen = seen();
    ensure!(seen.most <= 5 && seen.fewest_ready >= 4, "{seen:?}");
    ensure!(game.images().await? == counts(&[("python:3.5", 4)]), "{:?}", game.images().await?);
    Ok(())
}
