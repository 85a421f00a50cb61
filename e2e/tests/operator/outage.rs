//! Leaders that die, watches that break, servers that stall: the operator recovers by itself.

use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::operator::{self, log, single};
use e2e::{Game, Proxy, Scene, Suite, manifest, run, watch_pods};
use kube::ResourceExt;
use localkube::{Cluster, OperatorOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(the_other_replica_finishes_when_the_leader_dies);
    suite.alone(sigterm_hands_the_lease_over_at_once);
    suite.alone(a_broken_watch_or_an_overloaded_server_is_got_over);
    suite.alone(a_stalled_database_is_got_over);
    suite.alone(a_restarted_api_server_is_got_over);
    suite.alone(a_history_that_was_compacted_is_got_over);
    suite.alone(lists_that_take_long_are_not_asked_for_again);
    suite.alone(a_dead_server_and_a_bad_token_are_told_and_waited_for);
    suite.alone(an_operator_without_rights_or_crds_says_so_and_waits);
}

const QUICK: [&str; 3] = ["--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s"];

fn quick(replicas: u32) -> OperatorOptions {
    OperatorOptions { replicas, args: QUICK.iter().map(Into::into).collect(), ..OperatorOptions::default() }
}

fn signal(cluster: &Cluster, file: &str, signal: Signal) -> Result<()> {
    let pid: i32 = std::fs::read_to_string(cluster.folder().join(file))?.trim().parse()?;
    Ok(kill_process(Pid::from_raw(pid).context("a pid")?, signal)?)
}

/// The number of the operator that leads.
async fn leader(cluster: &Cluster) -> Result<u32> {
    let mut found = None;
    e2e::eventually("no operator leads", || {
        found = (1..=2).find(|number| log(cluster, &format!("operator-{number}.log")).lines().any(|line| line.ends_with(": leading")));
        found.is_some()
    })
    .await?;
    found.context("no operator leads")
}

/// A rollout that takes a while: 24 pods, three at a time.
async fn slow_game(scene: &Arc<Scene>) -> Result<Game> {
    let template = json!({ "metadata": { "annotations": { "localkube/start-after": "1s" } } });
    let game = Game::apply(scene, "game", &json!({ "replicas": 24, "updateStrategy": { "maxUnavailable": 3 }, "template": template }))?;
    game.until_rest("Complete").await?;
    Ok(game)
}

async fn the_other_replica_finishes_when_the_leader_dies(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = cluster.start_operators(&quick(2)).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "leader").await?);
    let game = slow_game(&scene).await?;
    let first = leader(&cluster).await?;
    let seen = watch_pods(&scene.pods(), "app=game").await?;
    game.set_image("game:2").await?;
    game.until("under way", |status| status["updatedReadyReplicas"].as_i64() >= Some(3)).await?;
    // Stopped, not killed: it cannot notice that it loses the lease, and when it resumes while the other leads it must not
    // act on the old lease.
    signal(&cluster, &format!("operator-{first}.pid"), Signal::STOP)?;
    let half = game.until("half-way", |status| status["updatedReadyReplicas"].as_i64() >= Some(12)).await;
    signal(&cluster, &format!("operator-{first}.pid"), Signal::CONT)?;
    half?;
    let stands_by = || log(&cluster, &format!("operator-{first}.log")).contains("another process leads; standing by");
    e2e::eventually("the old leader did not notice", stands_by).await?;
    Game::expect_counts(&game.until_rest("Complete").await?, 24, 24, 24)?;
    let seen = seen();
    ensure!(seen.most == 24 && seen.fewest_ready >= 21, "{} pods at once, {} ready", seen.most, seen.fewest_ready);
    let other = format!("operator-{}.log", 3 - first);
    ensure!(log(&cluster, &other).lines().any(|line| line.ends_with(": leading")), "the other operator never led");
    Ok(())
}

async fn sigterm_hands_the_lease_over_at_once(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    // The other replica would have to wait ten minutes for a lease that was not released.
    let args = ["--leader-elect-lease-duration=10m", "--leader-elect-renew-deadline=9m"].iter().map(Into::into).collect();
    let _operators = cluster.start_operators(&OperatorOptions { replicas: 2, args, ..OperatorOptions::default() }).await?;
    let first = leader(&cluster).await?;
    signal(&cluster, &format!("operator-{first}.pid"), Signal::TERM)?;
    let previous = format!("operator-{first}.previous.log");
    e2e::eventually("it did not end", || log(&cluster, &previous).contains("gave the lease up")).await?;
    leader(&cluster).await.map(drop)
}

async fn a_broken_watch_or_an_overloaded_server_is_got_over(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let proxy = Proxy::start(&cluster).await?;
    let options = OperatorOptions { kubeconfig: Some(proxy.kubeconfig()), ..quick(1) };
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "watch").await?);
    let game = slow_game(&scene).await?;
    let seen = watch_pods(&scene.pods(), "app=game").await?;
    game.set_image("game:2").await?;
    for updated in [2, 6, 10] {
        game.until("under way", |status| status["updatedReadyReplicas"].as_i64() >= Some(updated)).await?;
        proxy.cut_watches();
    }
    proxy.refuse(20);
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 24, 24, 24)?;
    ensure!(proxy.refused() == 20, "only {} calls were refused", proxy.refused());
    let seen = seen();
    ensure!(seen.most == 24 && seen.fewest_ready >= 21, "{} pods at once, {} ready", seen.most, seen.fewest_ready);
    // A field that the operator does not know is sent to the API server unchanged.
    scene.apply(&manifest("tomorrow", &json!({ "template": { "spec": { "fieldOfTomorrow": { "deep": [1, { "a": "b" }] } } } })))?;
    Game::named(&scene, "tomorrow").until_rest("Complete").await?;
    ensure!(proxy.last_pod().contains(r#""fieldOfTomorrow":{"deep":[1,{"a":"b"}]}"#), "{}", proxy.last_pod());
    Ok(())
}

async fn a_stalled_database_is_got_over(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = cluster.start_operators(&quick(2)).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "stall").await?);
    let game = slow_game(&scene).await?;
    game.set_image("game:2").await?;
    game.until("under way", |status| status["updatedReadyReplicas"].as_i64() >= Some(3)).await?;
    let seen = watch_pods(&scene.pods(), "app=game").await?;
    signal(&cluster, "etcd.pid", Signal::STOP)?;
    tokio::time::sleep(Duration::from_secs(20)).await;
    signal(&cluster, "etcd.pid", Signal::CONT)?;
    let status = game.until_rest("Complete").await?;
    let seen = seen();
    ensure!(seen.most == 24 && seen.fewest_ready >= 21, "{} pods at once, {} ready", seen.most, seen.fewest_ready);
    Game::expect_counts(&status, 24, 24, 24)
}

/// Kills the API server, waits for `meanwhile`, and starts it again with the same command line.
async fn restart_api_server(cluster: &Cluster, meanwhile: impl Future<Output = Result<()>>) -> Result<()> {
    let pid = std::fs::read_to_string(cluster.folder().join("kube-apiserver.pid"))?;
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.trim()))?;
    let words: Vec<&std::ffi::OsStr> = line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(OsStrExt::from_bytes).collect();
    let (program, arguments) = words.split_first().context("an empty command line")?;
    signal(cluster, "kube-apiserver.pid", Signal::KILL)?;
    meanwhile.await?;
    let mut command = tokio::process::Command::new(program);
    let log = std::fs::File::create(cluster.folder().join("logs/kube-apiserver-again.log"))?;
    command.args(arguments).env(localkube::process::MARK, cluster.folder()).stdout(Stdio::null()).stderr(log);
    let child = command.kill_on_drop(true).spawn()?;
    std::fs::write(cluster.folder().join("kube-apiserver.pid"), child.id().context("it died")?.to_string())?;
    Suite::keep(child)
}

async fn a_restarted_api_server_is_got_over(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = cluster.start_operators(&quick(2)).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "restart").await?);
    let game = slow_game(&scene).await?;
    game.set_image("game:2").await?;
    game.until("under way", |status| status["updatedReadyReplicas"].as_i64() >= Some(3)).await?;
    // Long enough for calls to fail and be tried again.
    let outage = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(())
    };
    restart_api_server(&cluster, outage).await?;
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 24, 24, 24)?;
    ensure!(game.pods().await?.len() == 24, "{} pods", game.pods().await?.len());
    Ok(())
}

/// Sends a request to etcd directly.
async fn ask_etcd(cluster: &Cluster, path: &str, body: &Value) -> Result<Value> {
    let mut socket = tokio::net::UnixStream::connect(cluster.folder().join("etcd.sock")).await?;
    let body = body.to_string();
    let request = format!("POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.contains(" 200 "), "{answer}");
    Ok(serde_json::from_str(body)?)
}

/// Compacts etcd's history up to the current revision.
async fn compact(cluster: &Cluster) -> Result<()> {
    let now = ask_etcd(cluster, "/v3/kv/range", &json!({ "key": "AA==" })).await?["header"]["revision"].clone();
    ask_etcd(cluster, "/v3/kv/compaction", &json!({ "revision": now, "physical": true })).await.map(drop)
}

async fn a_history_that_was_compacted_is_got_over(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = cluster.start_operators(&single()).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "compact").await?);
    let game = slow_game(&scene).await?;
    // The operator is stopped while the resource version moves past the last that it has seen, and the events in between
    // are compacted.
    signal(&cluster, "operator-1.pid", Signal::STOP)?;
    scene.kubectl(&["create", "configmap", "later"])?;
    restart_api_server(&cluster, compact(&cluster)).await?;
    e2e::eventually("the API server is not back", || scene.kubectl(&["get", "pods"]).is_ok()).await?;
    let lost: Vec<String> = game.pods().await?.iter().take(5).map(ResourceExt::name_any).collect();
    let words: Vec<&str> = ["delete", "pod", "--now"].into_iter().chain(lost.iter().map(String::as_str)).collect();
    scene.kubectl(&words)?;
    signal(&cluster, "operator-1.pid", Signal::CONT)?;
    let pods = || scene.kubectl(&["get", "pods", "-o", "name"]).map_or(0, |names| names.lines().count());
    e2e::eventually("the lost pods are not replaced", || pods() == 24).await?;
    // The scheduler has missed the same events: it takes a new pod with an old name for the old pod, finds it on another
    // node, and gives up for good.
    let names: Vec<String> = game.pods().await?.iter().map(ResourceExt::name_any).collect();
    ensure!(!names.iter().any(|name| lost.contains(name)), "names of lost pods are used again: {lost:?}");
    game.set_image("game:2").await?;
    Game::expect_counts(&game.until_rest("Complete").await?, 24, 24, 24)?;
    let log = log(&cluster, "operator-1.log");
    ensure!(log.lines().any(|line| line.contains("listing afresh") && line.contains("\"Pod\"")), "pods were not listed afresh");
    Ok(())
}

async fn lists_that_take_long_are_not_asked_for_again(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let proxy = Proxy::start(&cluster).await?;
    proxy.slow_lists(Duration::from_secs(8));
    let options = OperatorOptions { kubeconfig: Some(proxy.kubeconfig()), ..single() };
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "slow").await?);
    let game = Game::apply(&scene, "game", &json!({ "replicas": 3 }))?;
    game.until_rest("Complete").await?;
    let lists = proxy.lists();
    // A pod is created, and the request is never answered: the operator gets this one pod instead of listing all.
    proxy.refuse_all(axum::http::Method::POST, "/pods", 0);
    game.patch(json!({ "spec": { "replicas": 4 } })).await?;
    e2e::eventually("nothing was left unanswered", || proxy.refused() > 0).await?;
    proxy.allow();
    Game::expect_counts(&game.until_rest("Complete").await?, 4, 4, 4)?;
    // A watch that is open and delivers no events.
    proxy.stall_watches();
    game.patch(json!({ "spec": { "updateStrategy": { "maxUnavailable": 2 } } })).await?;
    game.set_image("game:2").await?;
    Game::expect_counts(&game.until_rest("Complete").await?, 4, 4, 4)?;
    ensure!(proxy.lists() == lists, "{} lists, {lists} at first", proxy.lists());
    Ok(())
}

async fn a_dead_server_and_a_bad_token_are_told_and_waited_for(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let good = std::fs::read_to_string(cluster.service_account_kubeconfig("bcs-system", "gameplane").await?)?;
    let good: Value = serde_json::from_str(&good)?;
    let (mut bad_token, mut dead) = (good.clone(), good);
    bad_token["users"][0]["user"]["token"] = json!("expired");
    dead["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    for (name, content, words) in [("bad-token", bad_token, "the token is not valid"), ("dead", dead, "Connection refused")] {
        let file = cluster.folder().join(format!("{name}.kubeconfig"));
        std::fs::write(&file, content.to_string())?;
        let options = OperatorOptions { kubeconfig: Some(file), ..single() };
        let operators = cluster.start_operators(&options).await?;
        e2e::eventually("it is not logged", || log(&cluster, "operator-1.log").contains(words)).await.with_context(|| name.to_owned())?;
        // It is still the same process after several tries.
        e2e::eventually("it is not tried again", || log(&cluster, "operator-1.log").matches(words).count() >= 6).await?;
        ensure!(!cluster.folder().join("logs/operator-1.previous.log").exists(), "it died: {name}");
        operators.stop().await;
    }
    Ok(())
}

async fn an_operator_without_rights_or_crds_says_so_and_waits(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "rights").await?);
    let kubectl = |words: &[&str]| run(cluster.kubectl().args(words), "").map(drop);
    kubectl(&["delete", "clusterrolebinding", "gameplane"])?;
    kubectl(&["delete", "crd", "gamedeployments.tkex.tencent.com"])?;
    let _operators = cluster.start_operators(&single()).await?;
    let says = |words: &str| log(&cluster, "operator-1.log").contains(words);
    e2e::eventually("missing permissions are not logged", || says("the ServiceAccount lacks rights")).await?;
    operator::deploy(&cluster, "03-rbac.yaml")?;
    e2e::eventually("the missing CRD is not logged", || says("the CustomResourceDefinition is missing")).await?;
    operator::deploy(&cluster, "01-resources.yaml")?;
    kubectl(&["wait", "--for=condition=Established", "crd/gamedeployments.tkex.tencent.com", "--timeout=60s"])?;
    let game = Game::apply(&scene, "late", &json!({ "replicas": 2 }))?;
    game.until_rest("Complete").await?;
    let pid = operator::pid(&cluster)?;
    ensure!(!cluster.folder().join("logs/operator-1.previous.log").exists(), "it died on the way (now {pid})");
    Ok(())
}
