//! Hooks that must agree before a pod goes or changes, on fake nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::command::chart;
use e2e::hook::{HookServer, Manner, serve_sessions, sessions_hook, sessions_template};
use e2e::pod::{node_of, restarts, waits_for};
use e2e::{Game, Metrics, Place, Scene, Suite, audited, autoscaler, eventually, says, until, until_gone};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use serde_json::json;

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, a_scale_in_deletes_exactly_the_pods_that_were_asked);
    suite.sharing(fake, an_aborted_scale_in_spares_its_pods_and_asks_anew);
    suite.sharing(fake, an_agreement_that_was_not_used_is_void);
    suite.sharing(fake, a_rolling_update_asks_pod_by_pod);
    suite.sharing(fake, an_update_in_place_asks_pod_by_pod);
    suite.sharing(fake, a_hook_is_asked_after_an_update_in_place);
    suite.sharing(fake, who_says_no_is_asked_again);
    suite.sharing(fake, a_hook_template_may_come_late);
    suite.sharing(fake, a_hook_server_may_be_down_for_a_while);
    suite.sharing(fake, pods_that_cannot_be_asked_go_without);
    suite.sharing(fake, without_the_hook_everybody_goes_on);
    suite.disturbing(fake, a_deletion_cost_of_a_node_comes_before_one_of_a_pod);
    suite.sharing(fake, questions_are_counted_exactly);
    suite.sharing(fake, five_hundred_wait_and_cost_nothing);
    suite.sharing(fake, pods_get_numbers_and_keep_them);
    suite.disturbing(fake, what_is_labelled_is_not_deleted_by_mistake);
    suite.disturbing(fake, an_autoscaler_waits_for_sessions_too);
}

fn is_marked(pod: &Pod) -> bool {
    pod.annotations().get("io.tencent.bcs.dev/game-pod-deleting").is_some_and(|value| value == "true")
}

fn names(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().map(ResourceExt::name_any).collect()
}

async fn runs(scene: &Scene) -> Result<Vec<DynamicObject>> {
    Ok(scene.custom("HookRun").list(&ListParams::default()).await?.items)
}

async fn a_scale_in_deletes_exactly_the_pods_that_were_asked(scene: Arc<Scene>) -> Result<()> {
    let (server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 8, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let all = names(&game.pods().await?);
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=3"])?;
    let asked = game.until_waiting("preDeleteHookCondition", 5).await?;
    let told = game.until_condition("Progressing", "True", "WaitingForHook").await?;
    ensure!(
        told.contains("5 pods wait for spec.preDeleteUpdateStrategy.hook") && told.contains("kubectl describe hookrun predelete-door-"),
        "{told}"
    );
    eventually("everybody is asked", || sessions.asked().len() == 5).await?;
    let pods = game.pods().await?;
    ensure!(names(&pods) == all, "somebody went before it agreed");
    ensure!(names(&pods.iter().filter(|pod| is_marked(pod)).cloned().collect::<Vec<_>>()) == asked, "others are marked");
    ensure!(sessions.asked().into_keys().collect::<BTreeSet<_>>() == asked, "others are asked: {:?}", sessions.asked());
    ensure!(server.last_request().contains("GET /door-"), "{}", server.last_request());
    // The last one first.
    for (gone, name) in asked.iter().rev().enumerate() {
        sessions.end(name);
        until_gone(&scene.pods(), name).await?;
        ensure!(game.pods().await?.len() == 8 - gone - 1, "somebody else went with {name}");
    }
    game.until_rest("Complete").await?;
    ensure!(names(&game.pods().await?) == all.difference(&asked).cloned().collect(), "others went than were asked");
    let status = game.until("nobody waits", |status| status["preDeleteHookCondition"].is_null()).await?;
    Game::expect_counts(&status, 3, 3, 3)?;
    eventually_no_runs(&scene).await
}

async fn eventually_no_runs(scene: &Scene) -> Result<()> {
    let none = || scene.kubectl(&["get", "hookruns", "-o", "name"]).is_ok_and(|all| all.trim().is_empty());
    eventually("no HookRuns are left", none).await
}

async fn an_aborted_scale_in_spares_its_pods_and_asks_anew(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 4, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let all = names(&game.pods().await?);
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=2"])?;
    let asked = game.until_waiting("preDeleteHookCondition", 2).await?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=4"])?;
    game.until_rest("Complete").await?;
    eventually_no_runs(&scene).await?;
    ensure!(!game.pods().await?.iter().any(is_marked), "a mark is left");
    // Too late: nobody wants to know any more.
    asked.iter().for_each(|name| sessions.end(name));
    ensure!(names(&game.pods().await?) == all, "a pod went that is wanted");
    let before = sessions.asked();
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=3"])?;
    game.until("three pods", |status| status["replicas"] == 3).await?;
    let again = sessions.asked();
    ensure!(again != before, "the old agreement was taken");
    Ok(())
}

async fn an_agreement_that_was_not_used_is_void(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let spec = json!({ "replicas": 3, "updateStrategy": { "maxUnavailable": 1 }, "preDeleteUpdateStrategy": sessions_hook() });
    let game = Game::apply(&scene, "door", &spec)?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    let asked = game.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("nobody waits")?;
    // Another one fails: there is no room for the one that agrees.
    let all = names(&game.pods().await?);
    let other = all.iter().find(|name| **name != asked).context("no other pod")?;
    scene.kubectl(&["annotate", "pod", other, "localkube/never-ready=*"])?;
    game.until_waiting("preDeleteHookCondition", 2).await?;
    sessions.end(&asked);
    let left = game.until_waiting("preDeleteHookCondition", 1).await?;
    ensure!(!left.contains(&asked), "{left:?}");
    let agreed = runs(&scene).await?.iter().filter(|run| run.data["status"]["phase"] == "Successful").count();
    ensure!(agreed == 1 && names(&game.pods().await?) == all, "{agreed} agreed");
    game.patch(json!({ "spec": { "updateStrategy": { "paused": true } } })).await?;
    eventually_no_runs(&scene).await?;
    eventually("the marks go", || scene.kubectl(&["get", "pods", "-o", "yaml"]).is_ok_and(|pods| !pods.contains("game-pod-deleting")))
        .await?;
    // Somebody plays there again, and there is room: what was agreed to is worth nothing.
    sessions.start(&asked);
    scene.kubectl(&["annotate", "pod", other, "localkube/never-ready-"])?;
    game.until("three available", |status| status["availableReplicas"] == 3).await?;
    game.patch(json!({ "spec": { "updateStrategy": { "paused": false } } })).await?;
    game.until_waiting("preDeleteHookCondition", 1).await?;
    ensure!(names(&game.pods().await?) == all, "the old agreement was taken");
    sessions.end_all();
    game.until_rest("Complete").await?;
    Ok(())
}

async fn a_rolling_update_asks_pod_by_pod(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let spec = json!({ "replicas": 4, "updateStrategy": { "maxUnavailable": 2 }, "preDeleteUpdateStrategy": sessions_hook() });
    let game = Game::apply(&scene, "door", &spec)?;
    game.until_rest("Complete").await?;
    let first = names(&game.pods().await?);
    game.set_image("game:2").await?;
    let asked = game.until_waiting("preDeleteHookCondition", 2).await?;
    game.until_condition("Progressing", "True", "WaitingForHook").await?;
    ensure!(names(&game.pods().await?) == first, "a pod went before it agreed");
    // One at a time, and the place of one that went is taken by the next.
    let one = asked.first().context("nobody is asked")?;
    sessions.end(one);
    until_gone(&scene.pods(), one).await?;
    eventually("a third is asked", || sessions.asked().len() == 3).await?;
    ensure!(game.images().await?.get("game:1") == Some(&3), "{:?}", game.images().await?);
    sessions.end_all();
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == BTreeMap::from([("game:2".to_owned(), 4)]), "{:?}", game.images().await?);
    ensure!(sessions.asked().into_keys().collect::<BTreeSet<_>>() == first, "{:?}", sessions.asked());
    Ok(())
}

async fn an_update_in_place_asks_pod_by_pod(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let spec = json!({
        "replicas": 4, "preInplaceUpdateStrategy": sessions_hook(),
        "updateStrategy": { "type": "InplaceUpdate", "maxUnavailable": 2, "inPlaceUpdateStrategy": { "gracePeriodSeconds": 1 } },
    });
    let game = Game::apply(&scene, "door", &spec)?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    let asked = game.until_waiting("preInplaceHookCondition", 2).await?;
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(0, 4)]), "{:?}", restarts(&game.pods().await?));
    ensure!(!game.pods().await?.iter().any(is_marked), "who stays is not marked as going");
    let run = runs(&scene).await?.into_iter().next().context("no HookRun")?;
    ensure!(run.name_any().starts_with("preinplace-door-"), "{}", run.name_any());
    let argument = |name: &str| {
        let all = run.data["spec"]["args"].as_array().into_iter().flatten();
        all.filter(|one| one["name"] == name).find_map(|one| one["value"].as_str().map(str::to_owned))
    };
    ensure!(argument("ModifiedContainer[0]").as_deref() == Some("game"), "{}", run.data["spec"]["args"]);
    ensure!(
        argument("PodIP").is_some_and(|ip| !ip.is_empty()) && argument("HostIP").is_some_and(|ip| !ip.is_empty()),
        "{}",
        run.data["spec"]["args"]
    );
    let one = asked.first().context("nobody is asked")?.clone();
    sessions.end(&one);
    until(&scene.pods(), &one, "restarted", |pod| pod.is_some_and(|pod| restarts(std::slice::from_ref(pod)).contains_key(&1))).await?;
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(0, 3), (1, 1)]), "{:?}", restarts(&game.pods().await?));
    sessions.end_all();
    game.until_rest("Complete").await?;
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(1, 4)]), "{:?}", restarts(&game.pods().await?));
    eventually_no_runs(&scene).await
}

async fn a_hook_is_asked_after_an_update_in_place(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let spec = json!({
        "replicas": 2, "postInplaceUpdateStrategy": sessions_hook(),
        "updateStrategy": { "type": "InplaceUpdate", "inPlaceUpdateStrategy": { "gracePeriodSeconds": 0 } },
    });
    let game = Game::apply(&scene, "door", &spec)?;
    game.until_rest("Complete").await?;
    ensure!(sessions.asked().is_empty(), "nobody was updated yet");
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    let asked = game.until_waiting("postInplaceHookCondition", 2).await?;
    ensure!(asked == names(&game.pods().await?), "{asked:?}");
    eventually("both are asked", || sessions.asked().len() == 2).await?;
    sessions.end_all();
    game.until("nobody waits", |status| status["postInplaceHookCondition"].is_null()).await?;
    Ok(())
}

async fn who_says_no_is_asked_again(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, false).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    let other = Game::apply(&scene, "other", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    other.until_rest("Complete").await?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    let asked = game.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("nobody waits")?;
    game.until("it said no", |status| status["preDeleteHookCondition"][0]["phase"] == "Failed").await?;
    let told = game.until_condition("Progressing", "True", "WaitingForHook").await?;
    ensure!(told.contains("last denied"), "{told}");
    let attempt = |number: &'static str| {
        let scene = Arc::clone(&scene);
        async move {
            let label = format!("attempt={number}");
            let find = || scene.kubectl(&["get", "hookruns", "-l", &label, "-o", "jsonpath={.items[*].status.finishedAt}"]);
            eventually(&label, || find().is_ok_and(|time| !time.is_empty())).await?;
            Ok::<jiff::Timestamp, anyhow::Error>(find()?.parse()?)
        }
    };
    // By itself after 10 seconds; the next time after 20, unless somebody wants it.
    let (first, second) = (attempt("1").await?, attempt("2").await?);
    ensure!(second.duration_since(first).as_secs() >= 9, "{first}, {second}");
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "retry": true } } })).await?;
    let third = attempt("3").await?;
    ensure!(third.duration_since(second).as_secs() < 20, "{second}, {third}");
    until(&game.api(), "door", "the flag is reset", |game| {
        game.is_some_and(|game| game.data["spec"]["preDeleteUpdateStrategy"]["retry"] == false)
    })
    .await?;
    // The trouble of one is not the other's.
    scene.kubectl(&["scale", "gamedeployment", "other", "--replicas=1"])?;
    let theirs = other.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("nobody waits")?;
    sessions.end(&theirs);
    sessions.end(&asked);
    // By itself, after a pause.
    until_gone(&scene.pods(), &asked).await?;
    until_gone(&scene.pods(), &theirs).await?;
    game.until_rest("Complete").await?;
    other.until_rest("Complete").await?;
    Ok(())
}

async fn a_hook_server_may_be_down_for_a_while(scene: Arc<Scene>) -> Result<()> {
    let (server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let port = server.port();
    drop(server);
    sessions.end_all();
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    let waiting = game.until_waiting("preDeleteHookCondition", 1).await?;
    // Nobody answers, and somebody who cannot be asked has not agreed.
    let words = ["said no", "1 pods wait for spec.preDeleteUpdateStrategy.hook"];
    game.until("the failure is told", |status| words.iter().all(|words| says(status, "Progressing", words))).await?;
    ensure!(game.pods().await?.len() == 2, "a pod went although nobody agreed");
    let _server = HookServer::start_at(Manner::Counts(sessions.clone()), port).await?;
    for name in &waiting {
        until_gone(&scene.pods(), name).await?;
    }
    game.until_rest("Complete").await.map(drop)
}

async fn a_hook_template_may_come_late(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "door", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    let told = game.until_condition("Degraded", "True", "HookNotPossible").await?;
    ensure!(told.contains("HookTemplate drained does not exist"), "{told}");
    // Growing goes on.
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=4"])?;
    game.until("four pods", |status| status["availableReplicas"] == 4).await?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=3"])?;
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let asked = game.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("nobody waits")?;
    game.until_condition("Degraded", "False", "AsExpected").await?;
    // Who was asked needs the template no more.
    scene.kubectl(&["delete", "hooktemplate", "drained"])?;
    sessions.end(&asked);
    until_gone(&scene.pods(), &asked).await?;
    game.until_rest("Complete").await?;
    Ok(())
}

async fn pods_that_cannot_be_asked_go_without(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let spec = json!({
        "replicas": 2, "preDeleteUpdateStrategy": sessions_hook(),
        "template": { "metadata": { "annotations": { "localkube/crash-loop": "*" } } },
    });
    let game = Game::apply(&scene, "door", &spec)?;
    let crashes = |pod: &Pod| waits_for(pod, "game") == Some("CrashLoopBackOff");
    e2e::until_some_pod(&scene.pods(), "crashing", crashes).await?;
    game.until("two pods", |status| status["replicas"] == 2).await?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=0"])?;
    game.until("no pods", |status| status["replicas"] == 0).await?;
    ensure!(sessions.asked().is_empty(), "{:?}", sessions.asked());
    eventually("an event for each", || {
        let told =
            scene.kubectl(&["get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}"]).unwrap_or_default();
        told.lines().filter(|line| line.starts_with("HookSkipped") && line.contains("crashes again and again")).count() >= 2
    })
    .await
}

async fn without_the_hook_everybody_goes_on(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 3, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let all = names(&game.pods().await?);
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    let asked = game.until_waiting("preDeleteHookCondition", 2).await?;
    eventually("both are asked", || sessions.asked().len() == 2).await?;
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": null } })).await?;
    game.until_rest("Complete").await?;
    ensure!(names(&game.pods().await?) == all.difference(&asked).cloned().collect(), "others went than were asked");
    eventually_no_runs(&scene).await
}

async fn a_deletion_cost_of_a_node_comes_before_one_of_a_pod(scene: Arc<Scene>) -> Result<()> {
    let spread = json!({ "topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "door" } },
    }] });
    let game = Game::apply(&scene, "door", &json!({ "replicas": 3, "template": { "spec": spread } }))?;
    game.until_rest("Complete").await?;
    let pods = game.pods().await?;
    let [cheap, dear, third] = pods.as_slice() else { anyhow::bail!("{} pods", pods.len()) };
    // The pods say one thing, a node another.
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    scene.kubectl(&["annotate", "pod", &cheap.name_any(), &format!("{cost}=5")])?;
    scene.kubectl(&["annotate", "pod", &dear.name_any(), &format!("{cost}=-5")])?;
    scene.kubectl(&["annotate", "pod", &third.name_any(), &format!("{cost}=-3")])?;
    scene.kubectl(&["annotate", "node", &node_of(cheap)?, "io.tencent.bcs.dev/node-deletion-cost=-10"])?;
    let scaled = scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=2"]);
    let gone = until_gone(&scene.pods(), &cheap.name_any()).await;
    scene.kubectl(&["annotate", "node", &node_of(cheap)?, "io.tencent.bcs.dev/node-deletion-cost-"])?;
    scaled?;
    gone?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    until_gone(&scene.pods(), &dear.name_any()).await?;
    game.until_rest("Complete").await?;
    Ok(())
}

/// Thirty pods that wait: one mark, one question and one verdict each, and nothing while nothing happens.
async fn questions_are_counted_exactly(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, false).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 30, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    sessions.end_all();
    let count = |resource: &str, verb: &str| audited(&scene, resource, "", verb);
    let marks = count("pods", "patch");
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=0"])?;
    game.until_rest("Complete").await?;
    eventually_no_runs(&scene).await?;
    eventually("30 deletions", || count("pods", "delete") >= 30).await?;
    ensure!(count("pods", "patch") - marks == 30, "{} marks", count("pods", "patch") - marks);
    ensure!(count("hookruns", "create") == 30, "{} questions", count("hookruns", "create"));
    ensure!(count("pods", "delete") == 30 && count("hookruns", "delete") == 30, "{} runs deleted", count("hookruns", "delete"));
    ensure!(audited(&scene, "hookruns", "status", "") == 30, "{} verdicts", audited(&scene, "hookruns", "status", ""));
    ensure!(sessions.asked().values().all(|count| *count == 1), "{:?}", sessions.asked());
    Ok(())
}

async fn five_hundred_wait_and_cost_nothing(scene: Arc<Scene>) -> Result<()> {
    let (server, sessions) = serve_sessions(&scene, true).await?;
    // One question, and then a long time nothing.
    let mut seldom = sessions_template(&server, true);
    seldom["spec"]["metrics"][0]["interval"] = json!("1h");
    scene.apply(&seldom)?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 500, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let count = |resource: &str, subresource: &str, verb: &str| audited(&scene, resource, subresource, verb);
    let before = count("pods", "", "patch");
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=0"])?;
    game.until_waiting("preDeleteHookCondition", 500).await?;
    eventually("all are asked", || sessions.asked().len() == 500).await?;
    eventually("every answer is written", || count("hookruns", "status", "") >= 500).await?;
    let told = game.until("all run", |status| {
        let all = status["preDeleteHookCondition"].as_array().map_or(&[][..], Vec::as_slice);
        all.len() == 500 && all.iter().all(|one| one["phase"] == "Running")
    });
    told.await?;
    let writes = || (count("pods", "", "patch") - before, count("hookruns", "", "create"), count("hookruns", "status", ""));
    ensure!(writes() == (500, 500, 500), "marks, questions and answers: {:?}", writes());
    ensure!(count("pods", "", "delete") == 0, "somebody went");
    // Looked at again, there is nothing to write.
    scene.kubectl(&["annotate", "gamedeployment", "door", "looked=at"])?;
    let version = game.api().get("door").await?.resource_version();
    scene.kubectl(&["annotate", "pod", &game.pods().await?.first().context("no pod")?.name_any(), "looked=at"])?;
    let other = Game::apply(&scene, "other", &json!({ "replicas": 1 }))?;
    other.until_rest("Complete").await?;
    ensure!(writes() == (500, 500, 500), "marks, questions and answers: {:?}", writes());
    ensure!(game.api().get("door").await?.resource_version() == version, "its status was written for nothing");
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": null } })).await?;
    game.until("no pods", |status| status["replicas"] == 0).await?;
    Ok(())
}

async fn an_autoscaler_waits_for_sessions_too(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let metrics = Metrics::start(&scene).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    metrics.set(40);
    scene.apply(&autoscaler("door"))?;
    game.until("four pods", |status| status["availableReplicas"] == 4).await?;
    metrics.set(10);
    let asked = game.until_waiting("preDeleteHookCondition", 3).await?;
    ensure!(game.pods().await?.len() == 4, "somebody went before it agreed");
    asked.iter().for_each(|name| sessions.end(name));
    game.until("one pod", |status| status["replicas"] == 1 && status["availableReplicas"] == 1).await?;
    Ok(())
}

fn numbers(pods: &[Pod]) -> BTreeSet<String> {
    let key = "tkex.bkbcs.tencent.com/gamedeployment-index-id";
    pods.iter().map(|pod| pod.annotations().get(key).cloned().unwrap_or_default()).collect()
}

fn up_to(start: u32, end: u32) -> BTreeSet<String> {
    (start..end).map(|number| number.to_string()).collect()
}

async fn pods_get_numbers_and_keep_them(scene: Arc<Scene>) -> Result<()> {
    let spec = json!({ "replicas": 4, "updateStrategy": { "maxUnavailable": 2 }, "podIndex": { "start": 1, "end": 5 } });
    let game = Game::apply(&scene, "numbered", &spec)?;
    game.until_rest("Complete").await?;
    ensure!(numbers(&game.pods().await?) == up_to(1, 5), "{:?}", numbers(&game.pods().await?));
    let pod = game.pods().await?.pop().context("no pod")?;
    let variable = pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|container| container.env.iter().flatten()).next();
    let path = variable.and_then(|one| Some(one.value_from.as_ref()?.field_ref.as_ref()?.field_path.clone()));
    ensure!(path.as_deref() == Some("metadata.annotations['tkex.bkbcs.tencent.com/gamedeployment-index-id']"), "{path:?}");
    // There are as many numbers as pods: every successor waits for its predecessor's.
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    ensure!(numbers(&game.pods().await?) == up_to(1, 5), "{:?}", numbers(&game.pods().await?));
    scene.kubectl(&["scale", "gamedeployment", "numbered", "--replicas=6"])?;
    let told = game.until_condition("Degraded", "True", "NoPodIndex").await?;
    ensure!(told.contains("2 pods wait for a number") && told.contains("widen spec.podIndex"), "{told}");
    game.patch(json!({ "spec": { "podIndex": { "end": 9 } } })).await?;
    game.until_rest("Complete").await?;
    ensure!(numbers(&game.pods().await?) == up_to(1, 7), "{:?}", numbers(&game.pods().await?));
    let refused = game.patch(json!({ "spec": { "podIndex": { "end": 1 } } })).await;
    ensure!(refused.is_err_and(|error| error.to_string().contains("end must be above start")), "a range without numbers was accepted");
    // As the original is told.
    let mut legacy = e2e::manifest("legacy", &json!({ "replicas": 2 }));
    legacy["metadata"]["annotations"] = json!({
        "tkex.bkbcs.tencent.com/gamedeployment-index-on": "true",
        "tkex.bkbcs.tencent.com/gamedeployment-index-range": r#"{"podStartIndex":7,"podEndIndex":9}"#,
    });
    scene.apply(&legacy)?;
    let legacy = Game::named(&scene, "legacy");
    legacy.until_rest("Complete").await?;
    ensure!(numbers(&legacy.pods().await?) == up_to(7, 9), "{:?}", numbers(&legacy.pods().await?));
    Ok(())
}

async fn what_is_labelled_is_not_deleted_by_mistake(scene: Arc<Scene>) -> Result<()> {
    let policy = chart("deletion-protection.yaml", "deletionProtection.enabled=true")?;
    e2e::run(scene.kubectl_command().args(["apply", "-f", "-"]), &policy)?;
    let verdict = protected(&scene).await;
    e2e::run(scene.kubectl_command().args(["delete", "-f", "-"]), &policy)?;
    verdict
}

async fn protected(scene: &Arc<Scene>) -> Result<()> {
    let label = |value: &str| format!("io.tencent.bcs.dev/deletion-allow={value}");
    let game = Game::apply(scene, "kept", &json!({ "replicas": 2 }))?;
    game.until_rest("Complete").await?;
    scene.kubectl(&["label", "gamedeployment", "kept", &label("Cascading")])?;
    let (_server, _) = serve_sessions(scene, true).await?;
    scene.kubectl(&["label", "hooktemplate", "drained", &label("Cascading")])?;
    // A policy counts a moment after it was made.
    let refused = |what: &str, why: &str| {
        let words = ["delete", "--dry-run=server", what];
        let tried = scene.kubectl(&words);
        tried.is_err_and(|error| error.to_string().contains(why) && error.to_string().contains("deletion-allow to Always"))
    };
    eventually("the policy counts", || refused("gamedeployment/kept", "it has 2 pods")).await?;
    ensure!(refused("hooktemplate/drained", "other objects may need it"), "a labelled HookTemplate can be deleted");
    scene.kubectl(&["label", "crd", "hookruns.tkex.tencent.com", &label("Cascading")])?;
    let crd = refused("crd/hookruns.tkex.tencent.com", "other objects may need it");
    scene.kubectl(&["label", "crd", "hookruns.tkex.tencent.com", "io.tencent.bcs.dev/deletion-allow-"])?;
    ensure!(crd, "a labelled CRD can be deleted");
    // Without the label, without pods, or with the other label it goes.
    let free = Game::apply(scene, "free", &json!({ "replicas": 1 }))?;
    free.until_rest("Complete").await?;
    scene.kubectl(&["delete", "gamedeployment", "free"])?;
    scene.kubectl(&["scale", "gamedeployment", "kept", "--replicas=0"])?;
    game.until("no pods", |status| status["replicas"] == 0).await?;
    scene.kubectl(&["delete", "gamedeployment", "kept"])?;
    scene.kubectl(&["label", "hooktemplate", "drained", &label("Always"), "--overwrite"])?;
    scene.kubectl(&["delete", "hooktemplate", "drained"])?;
    // A namespace takes everything with it.
    let name = format!("{}-gone", scene.namespace());
    scene.kubectl(&["create", "namespace", &name])?;
    let mut game = e2e::manifest("kept", &json!({ "replicas": 1 }));
    game["metadata"]["namespace"] = json!(name);
    game["metadata"]["labels"] = json!({ "io.tencent.bcs.dev/deletion-allow": "Cascading" });
    let mut apply = scene.cluster().kubectl();
    e2e::run(apply.args(["apply", "-f", "-"]), &game.to_string())?;
    let mut wait = scene.cluster().kubectl();
    e2e::run(wait.args(["wait", "--namespace", &name, "gd/kept", "--for=condition=Progressing=False", "--timeout=120s"]), "")?;
    let mut remove = scene.cluster().kubectl();
    e2e::run(remove.args(["delete", "namespace", &name, "--wait=false"]), "")?;
    // The namespace itself may wait for others, for an API that is away for one.
    let mut gone = scene.cluster().kubectl();
    e2e::run(gone.args(["wait", "--namespace", &name, "gd/kept", "--for=delete", "--timeout=180s"]), "")?;
    Ok(())
}
