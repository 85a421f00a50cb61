//! Hostile servers, hostile hooks and crashes, which neither harm the operator nor change a verdict.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::hook::{HookServer, Manner, NameServer, hook_run, impatient, verdict, webtest};
use e2e::operator::{self, peak_memory, single};
use e2e::{Place, Scene, Suite, merge};
use localkube::OperatorOptions;
use serde_json::json;

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, a_hostile_server_does_no_harm);
    suite.sharing(fake, conditions_within_conditions_are_refused);
    suite.sharing(fake, the_machine_itself_is_out_of_reach);
    suite.sharing(fake, a_secret_goes_where_it_should_and_nowhere_else);
    suite.alone(names_are_resolved_once_and_checked);
    suite.alone(limits_hold_and_old_runs_go);
    suite.alone(kill_9_changes_no_verdict);
}

async fn a_hostile_server_does_no_harm(scene: Arc<Scene>) -> Result<()> {
    let json_head = "200 OK\r\nContent-Type: application/json";
    let bomb = bomb()?;
    let gzip = Manner::Says("200 OK\r\nContent-Encoding: gzip", bomb.clone());
    let deep = Manner::Says(json_head, [b"[".repeat(40_000), b"]".repeat(40_000)].concat());
    let cases = [
        ("hangs", Manner::Hangs, json!({}), "no answer within 2 s"),
        ("drips", Manner::Drips, json!({}), "no answer within 2 s"),
        ("floods", Manner::Floods, json!({}), "more than 1048576 bytes"),
        ("gzip", gzip, json!({}), "encoded as \"gzip\""),
        ("unsaid", Manner::Says(json_head, bomb), json!({}), "the answer is no JSON"),
        ("deep", deep, json!({}), "the answer is no JSON: recursion limit"),
        ("values", Manner::Says(json_head, b"[".repeat(100_000)), json!({}), "the answer has 100001 values, at most 50000 are read"),
        ("utf8", Manner::Says(json_head, b"{\"age\":\"\xff\xfe\"}".to_vec()), json!({ "jsonPath": "{.age}" }), "the answer is no JSON"),
        (
            "huge",
            Manner::Says(json_head, b"{\"age\":1e999}".to_vec()),
            json!({ "jsonPath": "{.age}" }),
            "the answer is no JSON: number out of range",
        ),
        ("text", Manner::Says(json_head, b"hello".to_vec()), json!({}), "the answer is no JSON"),
        ("missing", Manner::Says(json_head, b"{}".to_vec()), json!({ "jsonPath": "{.age}" }), "jsonPath: age is not found"),
        ("error", Manner::Says("503 Service Unavailable", Vec::new()), json!({}), "received non 2xx response code: 503"),
        ("noise", Manner::Says("banana", Vec::new()), json!({}), "the connection broke: the answer is no HTTP"),
        (
            "metadata",
            Manner::Says("302 Found\r\nLocation: http://169.254.169.254/latest", Vec::new()),
            json!({ "followRedirects": true }),
            "169.254.169.254 is refused: it is a link-local address",
        ),
        (
            "home",
            Manner::Says("302 Found\r\nLocation: http://127.0.0.1:10251/", Vec::new()),
            json!({ "followRedirects": true }),
            "127.0.0.1 is refused: it is a loopback address",
        ),
        ("redirect", Manner::Says("302 Found\r\nLocation: http://127.0.0.1/", Vec::new()), json!({}), "followRedirects is not set"),
    ];
    let mut servers = Vec::new();
    for (name, manner, extra, words) in cases {
        let server = HookServer::start(manner).await?;
        let mut web = json!({ "url": server.url() });
        merge(&mut web, &extra);
        scene.apply(&hook_run(name, &impatient(web)))?;
        servers.push((name, server, words));
    }
    // A healthy server among them is not held up.
    let healthy = HookServer::json(&json!({ "age": 32 })).await?;
    scene.apply(&hook_run("healthy", &impatient(json!({ "url": healthy.url(), "jsonPath": "{.age}" }))))?;
    ensure!(verdict(&scene, "healthy").await?["phase"] == "Successful", "the healthy server was held up");
    for (name, server, words) in servers {
        let status = verdict(&scene, name).await?;
        let message = status["metricResults"][0]["measurements"][0]["message"].as_str().unwrap_or_default();
        ensure!(status["phase"] == "Error" && message.contains(words), "{name}: {message:?} should contain {words:?}");
        ensure!(server.requests() == 1, "{name}: {} requests", server.requests());
    }
    let peak = peak_memory(&operator::pid(scene.cluster())?)?;
    ensure!(peak < 128 << 10, "the operator needed {peak} KiB");
    Ok(())
}

/// A hundred million zero bytes, compressed.
fn bomb() -> Result<Vec<u8>> {
    let bomb = std::process::Command::new("sh").args(["-c", "head -c 100000000 /dev/zero | gzip"]).output()?.stdout;
    ensure!((50_000..500_000).contains(&bomb.len()), "a bomb of {} bytes", bomb.len());
    Ok(bomb)
}

async fn conditions_within_conditions_are_refused(scene: Arc<Scene>) -> Result<()> {
    let healthy = HookServer::json(&json!({ "age": 32 })).await?;
    let nested = |depth: usize| webtest(&healthy.url(), &format!("{}true{}", "(".repeat(depth), ")".repeat(depth)), "1s");
    let refused = scene.apply(&hook_run("deepest", &nested(5000))).err().map(|error| format!("{error:#}"));
    ensure!(refused.as_deref().is_some_and(|said| said.contains("successCondition: Too long")), "{refused:?}");
    for (name, depth, words) in [("long", 500, "more than 256 words and signs"), ("nested", 100, "in one another")] {
        scene.apply(&hook_run(name, &nested(depth)))?;
        let status = verdict(&scene, name).await?;
        ensure!(status["phase"] == "Error" && status["message"].as_str().is_some_and(|said| said.contains(words)), "{status}");
    }
    Ok(())
}

async fn the_machine_itself_is_out_of_reach(scene: Arc<Scene>) -> Result<()> {
    let api = scene.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?;
    for (name, url, words) in [
        ("loopback", "http://127.0.0.1:10251/metrics", "it is a loopback address"),
        ("decimal", "http://2130706433/", "it is a loopback address"),
        ("mapped", "http://[::ffff:127.0.0.1]/", "is refused"),
        ("metadata", "http://169.254.169.254/latest/meta-data", "it is a link-local address"),
        ("api", api.as_str(), "is refused"),
        ("file", "file:///etc/passwd", "not http or https"),
        ("user", "http://a:b@1.1.1.1/", "a user name or a password"),
    ] {
        scene.apply(&hook_run(name, &impatient(json!({ "url": url }))))?;
        let status = verdict(&scene, name).await?;
        let message = status["message"].as_str().unwrap_or_default();
        ensure!(status["phase"] == "Error" && message.contains(words), "{name}: {message}");
    }
    Ok(())
}

async fn a_secret_goes_where_it_should_and_nowhere_else(scene: Arc<Scene>) -> Result<()> {
    const WORD: &str = "correct-horse-battery";
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    scene.kubectl(&["create", "secret", "generic", "door", &format!("--from-literal=token={WORD}")])?;
    let header = json!({ "key": "X-Token", "valueFrom": { "secretKeyRef": { "name": "door", "key": "token" } } });
    let metric = impatient(json!({ "url": server.url(), "headers": [header], "jsonPath": "{.age}" }));
    scene.apply(&hook_run("shut", &metric))?;
    let status = verdict(&scene, "shut").await?;
    let said = status["message"].as_str().unwrap_or_default();
    ensure!(said.contains("the Secret door cannot be read") && said.contains("a Role of this namespace must allow"), "{said}");
    ensure!(server.requests() == 0, "a request was sent without the header");
    scene.kubectl(&["create", "role", "hooks", "--verb=get", "--resource=secrets", "--resource-name=door"])?;
    scene.kubectl(&["create", "rolebinding", "hooks", "--role=hooks", "--serviceaccount=bcs-system:gameplane"])?;
    // The API server's view of Roles lags a little.
    scene.until_allowed(&["get", "secrets/door", "--as=system:serviceaccount:bcs-system:gameplane"]).await?;
    scene.apply(&hook_run("open", &metric))?;
    let status = verdict(&scene, "open").await?;
    ensure!(status["phase"] == "Successful", "{status}");
    ensure!(server.last_request().to_lowercase().contains(&format!("x-token: {WORD}")), "{}", server.last_request());
    // The Secret's annotation lists the hosts that it may be sent to.
    scene.kubectl(&["annotate", "secret", "door", "gameplane.dev/hook-hosts=elsewhere.example.com"])?;
    let asked = server.requests();
    scene.apply(&hook_run("astray", &metric))?;
    let status = verdict(&scene, "astray").await?;
    let said = status["message"].as_str().unwrap_or_default();
    ensure!(said.contains("the Secret door is not for") && said.contains("gameplane.dev/hook-hosts"), "{said}");
    ensure!(server.requests() == asked, "it was sent to another host");
    let hosts = format!("gameplane.dev/hook-hosts=elsewhere.example.com,{}", server.url().trim_start_matches("http://"));
    scene.kubectl(&["annotate", "secret", "door", &hosts, "--overwrite"])?;
    scene.apply(&hook_run("meant", &metric))?;
    ensure!(verdict(&scene, "meant").await?["phase"] == "Successful", "it was not sent to a host of the annotation");
    let objects = scene.kubectl(&["get", "hookruns,events", "-o", "yaml"])?;
    let log = std::fs::read_to_string(scene.cluster().folder().join("logs/operator-1.log"))?;
    let metrics = operator::ask(scene.cluster(), "/metrics").await?;
    ensure!(metrics.contains("hook_measurements"), "{metrics}");
    for (place, text) in [("objects", &objects), ("log", &log), ("metrics", &metrics)] {
        ensure!(!text.contains(WORD), "the secret is in the {place}");
    }
    Ok(())
}

async fn names_are_resolved_once_and_checked(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let names = NameServer::start().await?;
    let mut options = single();
    options.args.push(format!("--hook-name-server={}", names.address()).into());
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "names").await?);
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    let ask =
        |name: &str, host: &str| scene.apply(&hook_run(name, &impatient(json!({ "url": format!("http://{host}:{}/", server.port()) }))));
    ask("good", "good.test")?;
    ensure!(verdict(&scene, "good").await?["phase"] == "Successful", "a name is not resolved");
    ask("home", "home.test")?;
    let status = verdict(&scene, "home").await?;
    ensure!(status["message"].as_str().is_some_and(|said| said.contains("127.0.0.1 is refused")), "{status}");
    ask("nobody", "nobody.test")?;
    let status = verdict(&scene, "nobody").await?;
    ensure!(status["message"].as_str().is_some_and(|said| said.contains("the host nobody.test is not known")), "{status}");
    // The first answer is allowed and all later ones are loopback: the address that was checked is used.
    ask("fickle", "fickle.test")?;
    ensure!(verdict(&scene, "fickle").await?["phase"] == "Successful", "another address was used than the one that was checked");
    Ok(())
}

/// 200 HookRuns with different verdicts, and an operator that is killed again and again.
async fn kill_9_changes_no_verdict(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let options = OperatorOptions { longest_pause: Duration::from_millis(200), ..single() };
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "kill").await?);
    let young = HookServer::json(&json!({ "age": 20 })).await?;
    let old = HookServer::json(&json!({ "age": 45 })).await?;
    let gone = HookServer::start(Manner::Says("500 Internal Server Error", Vec::new())).await?;
    let verdicts = [("Successful", &young), ("Failed", &old), ("Error", &gone)];
    let mut all = Vec::new();
    for number in 0..200 {
        let (_, server) = verdicts[number % 3];
        let mut metric = webtest(&server.url(), "asInt(result) < 30", "1s");
        metric["count"] = json!(1 + number % 3);
        metric["consecutiveErrorLimit"] = json!(1);
        all.push(hook_run(&format!("run-{number}"), &metric));
    }
    scene.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": all }))?;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(rand::random_range(50..900))).await;
        let pid = operator::pid(&cluster)?;
        // Until it is restarted there is no process to kill.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid.trim().parse()?).context("a pid")?,
            rustix::process::Signal::KILL,
        );
    }
    for number in 0..200 {
        let status = verdict(&scene, &format!("run-{number}")).await?;
        let (phase, _) = verdicts[number % 3];
        ensure!(status["phase"] == phase, "run-{number} should be {phase}: {status}");
        let count = status["metricResults"][0]["count"].as_u64().unwrap_or_default();
        let expected = match phase {
            "Successful" => 1 + u64::try_from(number % 3)?,
            "Failed" => 1,
            _ => 0,
        };
        ensure!(count == expected, "run-{number} was measured {count} times, not {expected}");
    }
    Ok(())
}

/// A server that hangs gets few requests at once and holds up no other hook; a HookRun that has ended is deleted after its
/// TTL, unless it has an owner.
async fn limits_hold_and_old_runs_go(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let flags = ["--leader-elect=false", "--hook-concurrency-per-host=2", "--hook-concurrency-per-namespace=3", "--hook-run-ttl=4s"];
    let args = flags.iter().map(Into::into).collect();
    let _operators = cluster.start_operators(&OperatorOptions { args, ..OperatorOptions::default() }).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "crowded").await?);
    let (hanging, other) = (HookServer::start(Manner::Hangs).await?, HookServer::start(Manner::Hangs).await?);
    let patient = |server: &HookServer| json!({ "provider": { "web": { "url": server.url(), "timeoutSeconds": 300 } } });
    for number in 0..4 {
        scene.apply(&hook_run(&format!("hanging-{number}"), &patient(&hanging)))?;
    }
    e2e::eventually("the hanging server does not get two requests", || hanging.requests() == 2).await?;
    for number in 0..2 {
        scene.apply(&hook_run(&format!("other-{number}"), &patient(&other)))?;
    }
    e2e::eventually("the other server does not get a request", || other.requests() == 1).await?;
    // This namespace has reached its limit, another has not.
    let healthy = HookServer::json(&json!({ "age": 32 })).await?;
    let quiet = Scene::open(Arc::clone(&cluster), "quiet").await?;
    scene.apply(&hook_run("crowded-out", &impatient(json!({ "url": healthy.url() }))))?;
    quiet.apply(&hook_run("free", &impatient(json!({ "url": healthy.url() }))))?;
    ensure!(verdict(&quiet, "free").await?["phase"] == "Successful", "another namespace has to wait");
    ensure!((hanging.requests(), other.requests(), healthy.requests()) == (2, 1, 1), "more at once than allowed");
    scene.kubectl(&["delete", "hookrun", "other-0", "other-1"])?;
    ensure!(verdict(&scene, "crowded-out").await?["phase"] == "Successful", "a place that is free is not taken");
    // Old HookRuns are deleted, except one with an owner.
    quiet.kubectl(&["create", "configmap", "owner"])?;
    let uid = quiet.kubectl(&["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"])?;
    let mut owned = hook_run("owned", &impatient(json!({ "url": healthy.url() })));
    owned["metadata"]["ownerReferences"] = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid }]);
    quiet.apply(&owned)?;
    verdict(&quiet, "owned").await?;
    quiet.apply(&hook_run("later", &impatient(json!({ "url": healthy.url() }))))?;
    for name in ["free", "later"] {
        e2e::until(&quiet.custom("HookRun"), name, "gone", |run| run.is_none()).await?;
    }
    // It ended before the last HookRun that was deleted.
    quiet.kubectl(&["get", "hookrun", "owned"])?;
    Ok(())
}
