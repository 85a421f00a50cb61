//! Writes that the API server refuses, and keeps refusing: only the objects that they are about are affected, the refusal
//! is reported, and work resumes when the obstacle is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::http::Method;
use e2e::hook::{serve_sessions, sessions_hook};
use e2e::operator::single;
use e2e::pod::{container, gate, is_leaving};
use e2e::policy::{forbid, lift};
use e2e::{Game, Place, Proxy, Scene, Suite, audited, counts, eventually, until, until_pod_ready, watch_pods};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use localkube::OperatorOptions;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, a_quota_holds_back_only_the_pods_beyond_it);
    suite.sharing(fake, one_pod_that_may_not_be_deleted);
    suite.sharing(fake, one_pod_that_may_not_be_changed);
    suite.sharing(Place::Real, a_pod_that_may_not_grow_serves_as_it_was);
    suite.sharing(fake, a_retried_deletion_is_asked_about_again);
    suite.alone(one_pod_whose_writes_fail_does_not_stop_the_others);
}

/// Work resumes within this time after an obstacle is gone, with some time for a slow machine to do it.
const RESUMED: Duration = Duration::from_secs(20);
/// The longest time between two tries of a refused write: a pod that is out of service for longer than its own restart
/// plus this time has waited for the refused write of another pod.
const RETRY: Duration = Duration::from_secs(4);

/// Annotates one of the pods as the one that the policies of these tests are about, and returns its name.
async fn marked(scene: &Scene, game: &Game) -> Result<String> {
    let name = game.pods().await?.first().context("no pod")?.name_any();
    scene.kubectl(&["annotate", "pod", &name, "keep=true"])?;
    Ok(name)
}

/// Waits until Degraded is True with this reason and a message that contains these words.
async fn until_degraded(game: &Game, reason: &str, words: &str) -> Result<()> {
    let is_said = |status: &Value| {
        let all = status["conditions"].as_array().into_iter().flatten();
        let degraded = all.filter(|one| one["type"] == "Degraded" && one["status"] == "True" && one["reason"] == reason);
        degraded.filter_map(|one| one["message"].as_str()).any(|message| message.contains(words))
    };
    game.until(&format!("Degraded: {reason}, {words}"), is_said).await.map(drop)
}

/// How many writes of the operator with this verb were refused in the test's namespace.
fn refused(scene: &Scene, verb: &str) -> usize {
    let log = std::fs::read_to_string(scene.cluster().audit_log()).unwrap_or_default();
    let is_it =
        |line: &&str| line.contains(&format!("\"verb\":\"{verb}\"")) && line.contains(&format!("\"namespace\":\"{}\"", scene.namespace()));
    log.lines().filter(is_it).filter(|line| line.contains("serviceaccount:bcs-system") && line.contains("\"code\":4")).count()
}

async fn a_quota_holds_back_only_the_pods_beyond_it(scene: Arc<Scene>) -> Result<()> {
    scene.kubectl(&["create", "quota", "few", "--hard=pods=6"])?;
    eventually("the quota has no effect", || {
        scene.kubectl(&["get", "quota", "few", "-o", "jsonpath={.status.hard.pods}"]).is_ok_and(|hard| hard == "6")
    })
    .await?;
    let started = Instant::now();
    let game = Game::apply(&scene, "game", &json!({ "replicas": 8, "updateStrategy": { "type": "InplaceUpdate", "maxUnavailable": 4 } }))?;
    let status = game.until("6 of 8 are ready", |status| status["readyReplicas"] == 6).await?;
    Game::expect_counts(&status, 6, 6, 6)?;
    until_degraded(&game, "FailedCreate", "exceeded quota: few").await?;
    // What is refused is tried again, and not too often.
    eventually("it is not tried again", || refused(&scene, "create") >= 4).await?;
    let minutes = usize::try_from(started.elapsed().as_secs() / 60)? + 1;
    ensure!(refused(&scene, "create") <= 20 * minutes, "{} creations were refused in {minutes} min", refused(&scene, "create"));
    // The update of the existing pods continues.
    game.set_image("game:2").await?;
    game.until("6 are updated", |status| status["updatedReadyReplicas"] == 6).await?;
    let lifted = Instant::now();
    scene.kubectl(&["delete", "quota", "few"])?;
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 8, 8, 8)?;
    ensure!(lifted.elapsed() < RESUMED, "it took {:?} to resume", lifted.elapsed());
    game.until_condition("Degraded", "False", "AsExpected").await.map(drop)
}

/// The message of the policies of these tests.
const REFUSAL: &str = "this pod is kept as it is";
/// Whether a pod is the one that they are about.
const IS_KEPT: &str = "has(oldObject.metadata.annotations) && 'keep' in oldObject.metadata.annotations";

async fn one_pod_that_may_not_be_deleted(scene: Arc<Scene>) -> Result<()> {
    let game = Game::apply(&scene, "game", &json!({ "replicas": 40 }))?;
    game.until_rest("Complete").await?;
    let kept = marked(&scene, &game).await?;
    forbid(&scene, "DELETE", &format!("!({IS_KEPT})"), REFUSAL, &["delete", "pod", &kept, "--dry-run=server"]).await?;
    let seen = watch_pods(&scene.pods(), "app=game").await?;
    game.set_image("game:2").await?;
    let status = game.until_rest("Refused").await?;
    Game::expect_counts(&status, 40, 40, 39)?;
    ensure!(game.images().await? == counts(&[("game:1", 1), ("game:2", 39)]), "{:?}", game.images().await?);
    until_degraded(&game, "FailedUpdatePodReCreate", REFUSAL).await?;
    let count = seen();
    ensure!(count.most == 40 && count.fewest_ready >= 30, "{} pods at once, {} ready", count.most, count.fewest_ready);
    ensure!(refused(&scene, "delete") <= 20, "{} deletions were refused", refused(&scene, "delete"));
    // A scale-in takes another pod instead.
    scene.kubectl(&["scale", "gamedeployment", "game", "--replicas=38"])?;
    Game::expect_counts(&game.until_rest("Refused").await?, 38, 38, 37)?;
    // A change of the pod is enough for a retry.
    let lifted = Instant::now();
    scene.kubectl(&["annotate", "pod", &kept, "keep-"])?;
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 38, 38, 38)?;
    ensure!(lifted.elapsed() < RESUMED, "it took {:?} to resume", lifted.elapsed());
    lift(&scene)
}

async fn one_pod_that_may_not_be_changed(scene: Arc<Scene>) -> Result<()> {
    let strategy = json!({ "type": "InplaceUpdate", "maxUnavailable": 4 });
    let game = Game::apply(&scene, "game", &json!({ "replicas": 20, "updateStrategy": strategy }))?;
    game.until_rest("Complete").await?;
    let kept = marked(&scene, &game).await?;
    let image = "oldObject.spec.containers[0].image == object.spec.containers[0].image";
    let probe = ["set", "image", &format!("pod/{kept}"), "game=game:9", "--dry-run=server"];
    forbid(&scene, "UPDATE", &format!("!({IS_KEPT}) || {image}"), REFUSAL, &probe).await?;
    let seen = watch_pods(&scene.pods(), "app=game").await?;
    game.set_image("game:2").await?;
    let status = game.until_rest("Refused").await?;
    Game::expect_counts(&status, 20, 20, 19)?;
    until_degraded(&game, "FailedUpdatePodInPlace", REFUSAL).await?;
    let pod = until_pod_ready(&scene.pods(), &kept).await?;
    let serves = |pod: &Pod| gate(pod).is_some_and(|gate| gate.status == "True");
    ensure!(serves(&pod), "it is drained");
    ensure!(!pod.annotations().keys().any(|key| key.starts_with("inplace-update")), "{:?}", pod.annotations());
    let revision = |status: &Value| status["currentRevision"].as_str().unwrap_or_default().to_owned();
    ensure!(pod.labels().get("controller-revision-hash") == Some(&revision(&status)), "{:?}", pod.labels());
    let count = seen();
    ensure!(count.fewest_ready >= 16, "more than four were out of service");
    let outages = count.services.outages();
    for (name, outages) in outages.iter().filter(|(name, _)| **name != kept) {
        let [outage] = outages else { bail!("{name} was out of service {} times", outages.len()) };
        let waited = outage.whole.saturating_sub(outage.restart);
        ensure!(outage.restart > Duration::ZERO && waited < RETRY, "{name} was out of service for {outage:?}");
    }
    ensure!(outages.len() == 20, "{} pods were watched", outages.len());
    // It is not drained again as long as its dry run is refused.
    let mut drained = false;
    let pods = scene.pods();
    let quiet = until(&pods, &kept, "drained", |pod| {
        drained |= pod.is_some_and(|pod| !serves(pod));
        drained
    });
    ensure!(tokio::time::timeout(Duration::from_secs(6), quiet).await.is_err(), "it was drained again");
    ensure!(refused(&scene, "patch") <= 20, "{} changes were refused", refused(&scene, "patch"));
    let lifted = Instant::now();
    lift(&scene)?;
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 20, 20, 20)?;
    ensure!(lifted.elapsed() < RESUMED, "it took {:?} to resume", lifted.elapsed());
    Ok(())
}

/// Image and resources change together: a pod whose resize a quota refuses does not restart either.
async fn a_pod_that_may_not_grow_serves_as_it_was(scene: Arc<Scene>) -> Result<()> {
    let template = |image: &str, cpu: &str| {
        let container = json!({ "name": "game", "image": image, "resources": { "requests": { "cpu": cpu } } });
        json!({ "template": { "spec": { "containers": [container] } } })
    };
    let mut spec = template("main:v1", "50m");
    e2e::merge(&mut spec, &json!({ "replicas": 2, "updateStrategy": { "type": "InplaceUpdate", "maxUnavailable": 1 } }));
    let game = Game::apply(&scene, "game", &spec)?;
    game.until_rest("Complete").await?;
    scene.kubectl(&["create", "quota", "tight", "--hard=requests.cpu=110m"])?;
    eventually("the quota has no effect", || {
        scene.kubectl(&["get", "quota", "tight", "-o", "jsonpath={.status.used.requests\\.cpu}"]).is_ok_and(|used| used == "100m")
    })
    .await?;
    game.patch(json!({ "spec": template("main:v2", "75m") })).await?;
    until_degraded(&game, "FailedUpdatePodInPlace", "exceeded quota: tight").await?;
    let status = game.until("both serve unchanged", |status| status["readyReplicas"] == 2 && status["updatedReplicas"] == 0).await?;
    ensure!(status["availableReplicas"] == 2, "{status}");
    let restarts = async || -> Result<Vec<i32>> {
        let pods = game.pods().await?;
        Ok(pods.iter().filter_map(|pod| container(pod, "game")).map(|game| game.restart_count).collect())
    };
    ensure!(restarts().await? == [0, 0], "restarted although it may not grow: {:?}", restarts().await?);
    scene.kubectl(&["delete", "quota", "tight"])?;
    Game::expect_counts(&game.until_rest("Complete").await?, 2, 2, 2)?;
    ensure!(restarts().await? == [1, 1], "not exactly one restart: {:?}", restarts().await?);
    game.until_condition("Degraded", "False", "AsExpected").await.map(drop)
}

async fn a_retried_deletion_is_asked_about_again(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, false).await?;
    let game = Game::apply(&scene, "door", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    let kept = marked(&scene, &game).await?;
    forbid(&scene, "DELETE", &format!("!({IS_KEPT})"), REFUSAL, &["delete", "pod", &kept, "--dry-run=server"]).await?;
    sessions.end(&kept);
    game.patch(json!({ "spec": { "replicas": 1, "scaleStrategy": { "podsToDelete": [kept] } } })).await?;
    until_degraded(&game, "FailedDelete", REFUSAL).await?;
    let created_runs = || audited(&scene, "hookruns", "", "create");
    eventually("the hook was not asked", || created_runs() > 0).await?;
    let before = created_runs();
    lift(&scene)?;
    until(&scene.pods(), &kept, "gone", is_leaving).await?;
    eventually("it was deleted with an approval that was withdrawn", || created_runs() > before).await?;
    Game::expect_counts(&game.until_rest("Complete").await?, 1, 1, 1)
}

async fn one_pod_whose_writes_fail_does_not_stop_the_others(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let proxy = Proxy::start(&cluster).await?;
    let options = OperatorOptions { kubeconfig: Some(proxy.kubeconfig()), ..single() };
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "failing").await?);
    for (name, method, code, kind) in [
        ("conflict", Method::DELETE, 409, "RollingUpdate"),
        ("overload", Method::DELETE, 429, "RollingUpdate"),
        ("broken", Method::PATCH, 500, "InplaceUpdate"),
        ("late", Method::PATCH, 0, "InplaceUpdate"),
    ] {
        let game = Game::apply(&scene, name, &json!({ "replicas": 8, "updateStrategy": { "type": kind, "maxUnavailable": 2 } }))?;
        game.until_rest("Complete").await.with_context(|| name.to_owned())?;
        let odd = game.pods().await?.first().context("no pod")?.name_any();
        proxy.refuse_all(method, &format!("/pods/{odd}"), code);
        game.set_image("game:2").await?;
        let others = game.until("the others are updated", |status| status["updatedReadyReplicas"].as_i64() >= Some(7));
        others.await.with_context(|| name.to_owned())?;
        let refused = proxy.refused();
        proxy.allow();
        Game::expect_counts(&game.until_rest("Complete").await.with_context(|| name.to_owned())?, 8, 8, 8)?;
        ensure!(code == 0 || refused > 0, "{name}: nothing was refused");
    }
    Ok(())
}
