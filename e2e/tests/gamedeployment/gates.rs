//! Hooks that must approve before a pod is deleted or updated, on fake nodes.

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
    suite.sharing(fake, an_approval_that_was_not_used_is_void);
    suite.sharing(fake, a_rolling_update_asks_pod_by_pod);
    suite.sharing(fake, an_in_place_update_asks_pod_by_pod);
    suite.sharing(fake, a_hook_is_asked_after_an_in_place_update);
    suite.sharing(fake, a_hook_that_denied_is_asked_again);
    suite.sharing(fake, a_hook_template_may_come_late);
    suite.sharing(fake, a_hook_server_may_be_down_for_a_while);
    suite.sharing(fake, pods_that_cannot_be_asked_are_deleted_without_their_hook);
    suite.sharing(fake, removing_the_hook_releases_waiting_pods);
    suite.disturbing(fake, a_deletion_cost_of_a_node_comes_before_one_of_a_pod);
    suite.sharing(fake, questions_are_counted_exactly);
    suite.sharing(fake, five_hundred_waiting_pods_cost_no_writes);
    suite.sharing(fake, pods_get_numbers_and_keep_them);
    suite.disturbing(fake, labelled_objects_are_not_deleted_by_mistake);
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
    let message = game.until_condition("Progressing", "True", "WaitingForHook").await?;
    ensure!(
        message.contains("5 pods wait for spec.preDeleteUpdateStrategy.hook")
            && message.contains("kubectl describe hookrun predelete-door-"),
        "{message}"
    );
    eventually("the hook is not asked for all five", || sessions.asked().len() == 5).await?;
    let pods = game.pods().await?;
    ensure!(names(&pods) == all, "a pod was deleted before its hook approved");
    ensure!(names(&pods.iter().filter(|pod| is_marked(pod)).cloned().collect::<Vec<_>>()) == asked, "other pods are marked");
    ensure!(sessions.asked().into_keys().collect::<BTreeSet<_>>() == asked, "the hook is asked for other pods: {:?}", sessions.asked());
    ensure!(server.last_request().contains("GET /door-"), "{}", server.last_request());
    // In reverse order.
    for (gone, name) in asked.iter().rev().enumerate() {
        sessions.end(name);
        until_gone(&scene.pods(), name).await?;
        ensure!(game.pods().await?.len() == 8 - gone - 1, "another pod was deleted together with {name}");
    }
    game.until_rest("Complete").await?;
    ensure!(names(&game.pods().await?) == all.difference(&asked).cloned().collect(), "other pods were deleted than the hook was asked for");
    let status = game.until("no pod waits", |status| status["preDeleteHookCondition"].is_null()).await?;
    Game::expect_counts(&status, 3, 3, 3)?;
    eventually_no_runs(&scene).await
}

async fn eventually_no_runs(scene: &Scene) -> Result<()> {
    let none = || scene.kubectl(&["get", "hookruns", "-o", "name"]).is_ok_and(|all| all.trim().is_empty());
    eventually("HookRuns are left", none).await
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
    // Sessions that end after that delete no pod.
    asked.iter().for_each(|name| sessions.end(name));
    ensure!(names(&game.pods().await?) == all, "a pod was deleted that is wanted");
    let before = sessions.asked();
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=3"])?;
    game.until("three pods", |status| status["replicas"] == 3).await?;
    let again = sessions.asked();
    ensure!(again != before, "the old approval was used");
    Ok(())
}

async fn an_approval_that_was_not_used_is_void(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let spec = json!({ "replicas": 3, "updateStrategy": { "maxUnavailable": 1 }, "preDeleteUpdateStrategy": sessions_hook() });
    let game = Game::apply(&scene, "door", &spec)?;
    game.until_rest("Complete").await?;
    game.set_image("game:2").await?;
    let asked = game.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("no pod waits")?;
    // Another pod becomes unavailable, so maxUnavailable leaves no room for the approved one.
    let all = names(&game.pods().await?);
    let other = all.iter().find(|name| **name != asked).context("no other pod")?;
    scene.kubectl(&["annotate", "pod", other, "localkube/never-ready=*"])?;
    game.until_waiting("preDeleteHookCondition", 2).await?;
    sessions.end(&asked);
    let left = game.until_waiting("preDeleteHookCondition", 1).await?;
    ensure!(!left.contains(&asked), "{left:?}");
    let approved = runs(&scene).await?.iter().filter(|run| run.data["status"]["phase"] == "Successful").count();
    ensure!(approved == 1 && names(&game.pods().await?) == all, "{approved} approved");
    game.patch(json!({ "spec": { "updateStrategy": { "paused": true } } })).await?;
    eventually_no_runs(&scene).await?;
    eventually("marks are left", || scene.kubectl(&["get", "pods", "-o", "yaml"]).is_ok_and(|pods| !pods.contains("game-pod-deleting")))
        .await?;
    // The pod has a session again, and there is room: the earlier approval is void.
    sessions.start(&asked);
    scene.kubectl(&["annotate", "pod", other, "localkube/never-ready-"])?;
    game.until("three available", |status| status["availableReplicas"] == 3).await?;
    game.patch(json!({ "spec": { "updateStrategy": { "paused": false } } })).await?;
    game.until_waiting("preDeleteHookCondition", 1).await?;
    ensure!(names(&game.pods().await?) == all, "the old approval was used");
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
    ensure!(names(&game.pods().await?) == first, "a pod was deleted before its hook approved");
    // When one pod has been replaced, the hook is asked for the next.
    let one = asked.first().context("the hook is asked for no pod")?;
    sessions.end(one);
    until_gone(&scene.pods(), one).await?;
    eventually("the hook is not asked for a third pod", || sessions.asked().len() == 3).await?;
    ensure!(game.images().await?.get("game:1") == Some(&3), "{:?}", game.images().await?);
    sessions.end_all();
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == BTreeMap::from([("game:2".to_owned(), 4)]), "{:?}", game.images().await?);
    ensure!(sessions.asked().into_keys().collect::<BTreeSet<_>>() == first, "{:?}", sessions.asked());
    Ok(())
}

async fn an_in_place_update_asks_pod_by_pod(scene: Arc<Scene>) -> Result<()> {
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
    ensure!(!game.pods().await?.iter().any(is_marked), "a pod that stays is marked as deleting");
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
    let one = asked.first().context("the hook is asked for no pod")?.clone();
    sessions.end(&one);
    until(&scene.pods(), &one, "restarted", |pod| pod.is_some_and(|pod| restarts(std::slice::from_ref(pod)).contains_key(&1))).await?;
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(0, 3), (1, 1)]), "{:?}", restarts(&game.pods().await?));
    sessions.end_all();
    game.until_rest("Complete").await?;
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(1, 4)]), "{:?}", restarts(&game.pods().await?));
    eventually_no_runs(&scene).await
}

async fn a_hook_is_asked_after_an_in_place_update(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let spec = json!({
        "replicas": 2, "postInplaceUpdateStrategy": sessions_hook(),
        "updateStrategy": { "type": "InplaceUpdate", "inPlaceUpdateStrategy": { "gracePeriodSeconds": 0 } },
    });
    let game = Game::apply(&scene, "door", &spec)?;
    game.until_rest("Complete").await?;
    ensure!(sessions.asked().is_empty(), "the hook was asked although no pod was updated yet");
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    let asked = game.until_waiting("postInplaceHookCondition", 2).await?;
    ensure!(asked == names(&game.pods().await?), "{asked:?}");
    eventually("the hook is not asked for both", || sessions.asked().len() == 2).await?;
    sessions.end_all();
    game.until("no pod waits", |status| status["postInplaceHookCondition"].is_null()).await?;
    Ok(())
}

async fn a_hook_that_denied_is_asked_again(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, false).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    let other = Game::apply(&scene, "other", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    other.until_rest("Complete").await?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    let asked = game.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("no pod waits")?;
    game.until("the hook has denied", |status| status["preDeleteHookCondition"][0]["phase"] == "Failed").await?;
    let message = game.until_condition("Progressing", "True", "WaitingForHook").await?;
    ensure!(message.contains("last denied"), "{message}");
    let attempt = |number: &'static str| {
        let scene = Arc::clone(&scene);
        async move {
            let label = format!("attempt={number}");
            let find = || scene.kubectl(&["get", "hookruns", "-l", &label, "-o", "jsonpath={.items[*].status.finishedAt}"]);
            eventually(&format!("no finished HookRun with {label}"), || find().is_ok_and(|time| !time.is_empty())).await?;
            Ok::<jiff::Timestamp, anyhow::Error>(find()?.parse()?)
        }
    };
    // The hook is asked again after 10 seconds, then after 20, or at once with `retry`.
    let (first, second) = (attempt("1").await?, attempt("2").await?);
    ensure!(second.duration_since(first).as_secs() >= 9, "{first}, {second}");
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "retry": true } } })).await?;
    let third = attempt("3").await?;
    ensure!(third.duration_since(second).as_secs() < 20, "{second}, {third}");
    until(&game.api(), "door", "the flag is reset", |game| {
        game.is_some_and(|game| game.data["spec"]["preDeleteUpdateStrategy"]["retry"] == false)
    })
    .await?;
    // The other GameDeployment is not affected.
    scene.kubectl(&["scale", "gamedeployment", "other", "--replicas=1"])?;
    let others = other.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("no pod waits")?;
    sessions.end(&others);
    sessions.end(&asked);
    // After its backoff the hook is asked again without any change.
    until_gone(&scene.pods(), &asked).await?;
    until_gone(&scene.pods(), &others).await?;
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
    // Nothing answers, and a hook that cannot be asked has not approved.
    let words = ["last denied", "1 pods wait for spec.preDeleteUpdateStrategy.hook"];
    game.until("the failure is reported", |status| words.iter().all(|words| says(status, "Progressing", words))).await?;
    ensure!(game.pods().await?.len() == 2, "a pod was deleted without an approval");
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
    let message = game.until_condition("Degraded", "True", "HookNotPossible").await?;
    ensure!(message.contains("HookTemplate drained does not exist"), "{message}");
    // Scaling out continues.
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=4"])?;
    game.until("four pods", |status| status["availableReplicas"] == 4).await?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=3"])?;
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let asked = game.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("no pod waits")?;
    game.until_condition("Degraded", "False", "AsExpected").await?;
    // An existing HookRun does not need its HookTemplate any more.
    scene.kubectl(&["delete", "hooktemplate", "drained"])?;
    sessions.end(&asked);
    until_gone(&scene.pods(), &asked).await?;
    game.until_rest("Complete").await?;
    Ok(())
}

async fn pods_that_cannot_be_asked_are_deleted_without_their_hook(scene: Arc<Scene>) -> Result<()> {
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
    eventually("not every pod has an event", || {
        let events =
            scene.kubectl(&["get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{\"\\n\"}{end}"]).unwrap_or_default();
        events.lines().filter(|line| line.starts_with("HookSkipped") && line.contains("crashes again and again")).count() >= 2
    })
    .await
}

async fn removing_the_hook_releases_waiting_pods(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 3, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let all = names(&game.pods().await?);
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    let asked = game.until_waiting("preDeleteHookCondition", 2).await?;
    eventually("the hook is not asked for both", || sessions.asked().len() == 2).await?;
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": null } })).await?;
    game.until_rest("Complete").await?;
    ensure!(names(&game.pods().await?) == all.difference(&asked).cloned().collect(), "other pods were deleted than the hook was asked for");
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
    let [cheap, expensive, third] = pods.as_slice() else { anyhow::bail!("{} pods", pods.len()) };
    // The costs of the pods contradict the cost of the node.
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    scene.kubectl(&["annotate", "pod", &cheap.name_any(), &format!("{cost}=5")])?;
    scene.kubectl(&["annotate", "pod", &expensive.name_any(), &format!("{cost}=-5")])?;
    scene.kubectl(&["annotate", "pod", &third.name_any(), &format!("{cost}=-3")])?;
    scene.kubectl(&["annotate", "node", &node_of(cheap)?, "io.tencent.bcs.dev/node-deletion-cost=-10"])?;
    let scaled = scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=2"]);
    let gone = until_gone(&scene.pods(), &cheap.name_any()).await;
    scene.kubectl(&["annotate", "node", &node_of(cheap)?, "io.tencent.bcs.dev/node-deletion-cost-"])?;
    scaled?;
    gone?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    until_gone(&scene.pods(), &expensive.name_any()).await?;
    game.until_rest("Complete").await?;
    Ok(())
}

/// Thirty pods whose hook is asked: each costs exactly one mark, one HookRun and one verdict.
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
    eventually("fewer than 30 deletions", || count("pods", "delete") >= 30).await?;
    ensure!(count("pods", "patch") - marks == 30, "{} marks", count("pods", "patch") - marks);
    ensure!(count("hookruns", "create") == 30, "{} HookRuns created", count("hookruns", "create"));
    ensure!(count("pods", "delete") == 30 && count("hookruns", "delete") == 30, "{} HookRuns deleted", count("hookruns", "delete"));
    ensure!(audited(&scene, "hookruns", "status", "") == 30, "{} verdicts", audited(&scene, "hookruns", "status", ""));
    ensure!(sessions.asked().values().all(|count| *count == 1), "{:?}", sessions.asked());
    Ok(())
}

async fn five_hundred_waiting_pods_cost_no_writes(scene: Arc<Scene>) -> Result<()> {
    let (server, sessions) = serve_sessions(&scene, true).await?;
    // One measurement, and the next only after an hour.
    let mut hourly = sessions_template(&server, true);
    hourly["spec"]["metrics"][0]["interval"] = json!("1h");
    scene.apply(&hourly)?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 500, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let count = |resource: &str, subresource: &str, verb: &str| audited(&scene, resource, subresource, verb);
    let before = count("pods", "", "patch");
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=0"])?;
    game.until_waiting("preDeleteHookCondition", 500).await?;
    eventually("the hook is not asked for all pods", || sessions.asked().len() == 500).await?;
    eventually("not every measurement is written", || count("hookruns", "status", "") >= 500).await?;
    let running = game.until("all run", |status| {
        let all = status["preDeleteHookCondition"].as_array().map_or(&[][..], Vec::as_slice);
        all.len() == 500 && all.iter().all(|one| one["phase"] == "Running")
    });
    running.await?;
    let writes = || (count("pods", "", "patch") - before, count("hookruns", "", "create"), count("hookruns", "status", ""));
    ensure!(writes() == (500, 500, 500), "marks, HookRuns and their statuses: {:?}", writes());
    ensure!(count("pods", "", "delete") == 0, "a pod was deleted");
    // A further pass has nothing to write.
    scene.kubectl(&["annotate", "gamedeployment", "door", "touched=yes"])?;
    let version = game.api().get("door").await?.resource_version();
    scene.kubectl(&["annotate", "pod", &game.pods().await?.first().context("no pod")?.name_any(), "touched=yes"])?;
    let other = Game::apply(&scene, "other", &json!({ "replicas": 1 }))?;
    other.until_rest("Complete").await?;
    ensure!(writes() == (500, 500, 500), "marks, HookRuns and their statuses: {:?}", writes());
    ensure!(game.api().get("door").await?.resource_version() == version, "its status was written without a change");
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
    ensure!(game.pods().await?.len() == 4, "a pod was deleted before its hook approved");
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
    // There are as many numbers as pods: every replacement waits for the number of the pod that it replaces.
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    ensure!(numbers(&game.pods().await?) == up_to(1, 5), "{:?}", numbers(&game.pods().await?));
    scene.kubectl(&["scale", "gamedeployment", "numbered", "--replicas=6"])?;
    let message = game.until_condition("Degraded", "True", "NoPodIndex").await?;
    ensure!(message.contains("2 pods wait for a number") && message.contains("widen spec.podIndex"), "{message}");
    game.patch(json!({ "spec": { "podIndex": { "end": 9 } } })).await?;
    game.until_rest("Complete").await?;
    ensure!(numbers(&game.pods().await?) == up_to(1, 7), "{:?}", numbers(&game.pods().await?));
    let refused = game.patch(json!({ "spec": { "podIndex": { "end": 1 } } })).await;
    ensure!(refused.is_err_and(|error| error.to_string().contains("end must be above start")), "a range without numbers was accepted");
    // With the annotations of the original operator.
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

async fn labelled_objects_are_not_deleted_by_mistake(scene: Arc<Scene>) -> Result<()> {
    let policy = chart("deletion-protection.yaml", "deletionProtection.enabled=true")?;
    e2e::run(scene.kubectl_command().args(["apply", "-f", "-"]), &policy)?;
    let result = protected(&scene).await;
    e2e::run(scene.kubectl_command().args(["delete", "-f", "-"]), &policy)?;
    result
}

async fn protected(scene: &Arc<Scene>) -> Result<()> {
    let label = |value: &str| format!("io.tencent.bcs.dev/deletion-allow={value}");
    let game = Game::apply(scene, "kept", &json!({ "replicas": 2 }))?;
    game.until_rest("Complete").await?;
    scene.kubectl(&["label", "gamedeployment", "kept", &label("Cascading")])?;
    let (_server, _) = serve_sessions(scene, true).await?;
    scene.kubectl(&["label", "hooktemplate", "drained", &label("Cascading")])?;
    // A policy takes effect a moment after its creation.
    let refused = |what: &str, why: &str| {
        let words = ["delete", "--dry-run=server", what];
        let tried = scene.kubectl(&words);
        tried.is_err_and(|error| error.to_string().contains(why) && error.to_string().contains("deletion-allow to Always"))
    };
    eventually("the policy has no effect", || refused("gamedeployment/kept", "it has 2 pods")).await?;
    ensure!(refused("hooktemplate/drained", "other objects may need it"), "a labelled HookTemplate can be deleted");
    scene.kubectl(&["label", "crd", "hookruns.tkex.tencent.com", &label("Cascading")])?;
    let crd = refused("crd/hookruns.tkex.tencent.com", "other objects may need it");
    scene.kubectl(&["label", "crd", "hookruns.tkex.tencent.com", "io.tencent.bcs.dev/deletion-allow-"])?;
    ensure!(crd, "a labelled CRD can be deleted");
    // Without the label, without pods, or with `Always` the deletion passes.
    let free = Game::apply(scene, "free", &json!({ "replicas": 1 }))?;
    free.until_rest("Complete").await?;
    scene.kubectl(&["delete", "gamedeployment", "free"])?;
    scene.kubectl(&["scale", "gamedeployment", "kept", "--replicas=0"])?;
    game.until("no pods", |status| status["replicas"] == 0).await?;
    scene.kubectl(&["delete", "gamedeployment", "kept"])?;
    scene.kubectl(&["label", "hooktemplate", "drained", &label("Always"), "--overwrite"])?;
    scene.kubectl(&["delete", "hooktemplate", "drained"])?;
    // The deletion of a namespace is not held up.
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
    // Only the GameDeployment is waited for: the namespace itself may wait for something else, such as an API that does not
    // answer.
    let mut gone = scene.cluster().kubectl();
    e2e::run(gone.args(["wait", "--namespace", &name, "gd/kept", "--for=delete", "--timeout=180s"]), "")?;
    Ok(())
}
