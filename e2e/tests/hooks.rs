//! Hooks: what is asked, how it is judged, and what a hostile server cannot do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::hook::{self, HookServer, Manner, NameServer, hook_run, verdict};
use e2e::{Place, Scene, Suite};
use localkube::OperatorOptions;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, "hooks::the_hook_of_the_walk_through_fails_after_one_measurement", the_hook_of_the_walk_through_fails);
    suite.sharing(fake, "hooks::turned_round_it_is_successful_after_two", turned_round_it_is_successful_after_two);
    suite.sharing(fake, "hooks::a_template_is_accepted_or_says_where_it_is_wrong", a_template_is_accepted_or_says_where_it_is_wrong);
    suite.sharing(fake, "hooks::hooks_that_make_no_sense_are_refused_at_once", hooks_that_make_no_sense_are_refused_at_once);
    suite.sharing(fake, "hooks::a_hostile_server_harms_nobody", a_hostile_server_harms_nobody);
    suite.sharing(fake, "hooks::the_machine_itself_is_out_of_reach", the_machine_itself_is_out_of_reach);
    suite.sharing(fake, "hooks::a_secret_goes_where_it_should_and_nowhere_else", a_secret_goes_where_it_should_and_nowhere_else);
    suite.sharing(fake, "hooks::a_run_is_cancelled_and_never_approves", a_run_is_cancelled_and_never_approves);
    suite.sharing(fake, "hooks::prometheus_answers_are_numbers", prometheus_answers_are_numbers);
    suite.sharing(fake, "hooks::a_real_prometheus_is_asked", a_real_prometheus_is_asked);
    suite.sharing(fake, "hooks::a_run_costs_two_writes", a_run_costs_two_writes);
    suite.sharing(fake, "hooks::json_paths_say_what_kubectl_says", json_paths_say_what_kubectl_says);
    suite.sharing(fake, "hooks::an_object_is_looked_at_in_the_name_of_an_account", an_object_is_looked_at_in_the_name_of_an_account);
    suite.disturbing(Place::Real, "hooks::a_command_is_run_in_the_pod", a_command_is_run_in_the_pod);
    suite.alone("hooks::names_are_resolved_once_and_checked", names_are_resolved_once_and_checked);
    suite.alone("hooks::kill_9_changes_no_verdict", kill_9_changes_no_verdict);
}

/// The walk-through's metric.
fn webtest(url: &str, condition: &str, interval: &str) -> Value {
    json!({
        "name": "webtest", "count": 2, "interval": interval, "successCondition": condition,
        "provider": { "web": { "jsonPath": "{$.age}", "url": url } },
    })
}

async fn the_hook_of_the_walk_through_fails(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "name": "bryan", "male": "yes", "age": 32 })).await?;
    scene.apply(&hook_run("test-gamedeployment-9d78dd5db-4-test", &webtest(&server.url(), "asInt(result) < 30", "60s")))?;
    let status = verdict(&scene, "test-gamedeployment-9d78dd5db-4-test").await?;
    let result = &status["metricResults"][0];
    ensure!(status["phase"] == "Failed" && result["phase"] == "Failed" && result["name"] == "webtest", "{status}");
    ensure!(result["count"] == 1 && result["failed"] == 1 && result["successful"].is_null(), "{status}");
    let measurements = result["measurements"].as_array().context("no measurements")?;
    ensure!(measurements.len() == 1 && measurements[0]["value"] == "32" && measurements[0]["phase"] == "Failed", "{status}");
    ensure!(server.requests() == 1, "{} requests", server.requests());
    let table = scene.kubectl(&["get", "hookrun"])?;
    let columns: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    ensure!(columns == ["NAME", "PHASE", "AGE"], "{table}");
    let events =
        scene.kubectl(&["get", "events", "-o", "jsonpath={range .items[*]}{.reportingComponent} {.type} {.reason}: {.message}\n{end}"])?;
    ensure!(events.contains("bcs-hook-operator Warning HookRunFailed: the run ended Failed: metric webtest"), "{events}");
    Ok(())
}

async fn turned_round_it_is_successful_after_two(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    scene.apply(&hook_run("run", &webtest(&server.url(), "asInt(result) > 30", "2s")))?;
    let status = verdict(&scene, "run").await?;
    let result = &status["metricResults"][0];
    ensure!(status["phase"] == "Successful" && result["count"] == 2 && result["successful"] == 2, "{status}");
    ensure!(server.requests() == 2, "{} requests", server.requests());
    scene.kubectl(&["wait", "--for=condition=Complete", "hookrun/run", "--timeout=10s"])?;
    Ok(())
}

fn template(name: &str, metric: &Value, args: &Value) -> Value {
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": { "name": name },
        "spec": { "metrics": [metric], "args": args },
    })
}

async fn a_template_is_accepted_or_says_where_it_is_wrong(scene: Arc<Scene>) -> Result<()> {
    scene.kubectl(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tkex/hooktemplate.yaml")])?;
    scene.kubectl(&["wait", "--for=condition=Accepted", "hooktemplate/test", "--timeout=60s"])?;
    let metric = webtest("http://{{ args.PodIP }}:{{ args.port }}/", "age < 30", "1m");
    scene.apply(&template("bad", &metric, &json!([])))?;
    scene.kubectl(&["wait", "--for=condition=Accepted=False", "hooktemplate/bad", "--timeout=60s"])?;
    let said = scene.kubectl(&["get", "ht", "bad", "-o", "jsonpath={.status.conditions[0].message}"])?;
    for words in
        ["spec.metrics[0].successCondition: at character 1: age is not known", "provider.web.url: args.port is not among spec.args"]
    {
        ensure!(said.contains(words), "{said}");
    }
    // Mended, it is accepted.
    scene.apply(&template(
        "bad",
        &webtest("http://{{ args.PodIP }}:{{ args.port }}/", "asInt(result) < 30", "1m"),
        &json!([{ "name": "port" }]),
    ))?;
    scene.kubectl(&["wait", "--for=condition=Accepted", "hooktemplate/bad", "--timeout=60s"])?;
    Ok(())
}

async fn hooks_that_make_no_sense_are_refused_at_once(scene: Arc<Scene>) -> Result<()> {
    let web = || json!({ "web": { "url": "http://1.1.1.1" } });
    let cases = [
        (json!({ "provider": {} }), "exactly one of web, prometheus, kubernetes and exec"),
        (json!({ "provider": { "web": { "url": "http://a" }, "exec": { "command": ["ls"] } } }), "exactly one of web"),
        (json!({ "provider": web(), "count": 2 }), "a count above 1 needs an interval"),
        (json!({ "provider": web(), "count": -1 }), "spec.metrics[0].count"),
        (json!({ "provider": web(), "interval": "0s" }), "the interval must be at least 1s"),
        (json!({ "provider": web(), "interval": "soon" }), "spec.metrics[0].interval"),
        (json!({ "provider": web(), "count": 2, "interval": "5s", "failureLimit": 3 }), "may be at most count"),
        (json!({ "provider": web(), "consecutiveSuccessfulLimit": 0 }), "consecutiveSuccessfulLimit"),
        (json!({ "provider": { "web": { "url": "http://a", "method": "DELETE" } } }), "provider.web.method"),
        (json!({ "provider": web(), "successCondition": "x".repeat(2000) }), "successCondition"),
    ];
    for (metric, words) in cases {
        let said = scene.apply(&hook_run("refused", &metric)).err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(said.contains(words), "{metric} should be refused with {words:?}, not {said:?}");
    }
    let server = HookServer::json(&json!({ "age": 1 })).await?;
    scene.apply(&hook_run("fixed", &webtest(&server.url(), "true", "60s")))?;
    let changed = scene.apply(&hook_run("fixed", &webtest(&server.url(), "false", "60s"))).err().map(|error| format!("{error:#}"));
    ensure!(changed.as_deref().is_some_and(|said| said.contains("only terminate can be changed")), "{changed:?}");
    Ok(())
}

/// One try, one second.
fn impatient(web: Value) -> Value {
    let mut web = web;
    web["timeoutSeconds"] = json!(2);
    json!({ "name": "webtest", "consecutiveErrorLimit": 0, "provider": { "web": web } })
}

async fn a_hostile_server_harms_nobody(scene: Arc<Scene>) -> Result<()> {
    let json_head = "200 OK\r\nContent-Type: application/json";
    let gzip = Manner::Says("200 OK\r\nContent-Encoding: gzip", vec![0x1f, 0x8b, 8, 0]);
    let deep = Manner::Says(json_head, [b"[".repeat(100_000), b"]".repeat(100_000)].concat());
    let cases = [
        ("hangs", Manner::Hangs, json!({}), "no answer within 2 s"),
        ("drips", Manner::Drips, json!({}), "no answer within 2 s"),
        ("floods", Manner::Floods, json!({}), "more than 1048576 bytes"),
        ("gzip", gzip, json!({}), "encoded as \"gzip\""),
        ("deep", deep, json!({}), "the answer is no JSON: recursion limit"),
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
        ("noise", Manner::Says("banana", Vec::new()), json!({}), "the connection broke"),
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
        if let (Some(web), Some(extra)) = (web.as_object_mut(), extra.as_object()) {
            web.extend(extra.clone());
        }
        scene.apply(&hook_run(name, &impatient(web)))?;
        servers.push((name, server, words));
    }
    // A healthy one among them is not held up.
    let healthy = HookServer::json(&json!({ "age": 32 })).await?;
    scene.apply(&hook_run("healthy", &impatient(json!({ "url": healthy.url(), "jsonPath": "{.age}" }))))?;
    ensure!(verdict(&scene, "healthy").await?["phase"] == "Successful", "the healthy one");
    for (name, server, words) in servers {
        let status = verdict(&scene, name).await?;
        let message = status["metricResults"][0]["measurements"][0]["message"].as_str().unwrap_or_default();
        ensure!(status["phase"] == "Error" && message.contains(words), "{name}: {message:?} should contain {words:?}");
        ensure!(server.requests() == 1, "{name}: {} requests", server.requests());
    }
    let bomb = format!("{}true{}", "(".repeat(100), ")".repeat(100));
    scene.apply(&hook_run("bomb", &webtest(&healthy.url(), &bomb, "1s")))?;
    let status = verdict(&scene, "bomb").await?;
    ensure!(status["phase"] == "Error" && status["message"].as_str().is_some_and(|said| said.contains("in one another")), "{status}");
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
    ensure!(server.requests() == 0, "asked without the header");
    scene.kubectl(&["create", "role", "hooks", "--verb=get", "--resource=secrets", "--resource-name=door"])?;
    scene.kubectl(&["create", "rolebinding", "hooks", "--role=hooks", "--serviceaccount=bcs-system:gameplane"])?;
    // The API server's own view of roles lags a little: the second asking is made when the first would be allowed.
    let allowed = || {
        let can = ["auth", "can-i", "get", "secrets/door", "--as=system:serviceaccount:bcs-system:gameplane"];
        scene.kubectl(&can).is_ok_and(|answer| answer.trim() == "yes")
    };
    crate::cleanup::eventually("the Role does not hold", allowed).await?;
    scene.apply(&hook_run("open", &metric))?;
    let status = verdict(&scene, "open").await?;
    ensure!(status["phase"] == "Successful", "{status}");
    ensure!(server.last_request().to_lowercase().contains(&format!("x-token: {WORD}")), "{}", server.last_request());
    let objects = scene.kubectl(&["get", "hookruns,events", "-o", "yaml"])?;
    let log = std::fs::read_to_string(scene.cluster().folder().join("logs/operator-1.log"))?;
    for (place, text) in [("objects", &objects), ("log", &log)] {
        ensure!(!text.contains(WORD), "the secret is in the {place}");
    }
    Ok(())
}

async fn a_run_is_cancelled_and_never_approves(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    let metric = json!({ "name": "webtest", "interval": "1s", "provider": { "web": { "url": server.url() } } });
    scene.apply(&hook_run("run", &metric))?;
    let counted = |run: &kube::api::DynamicObject| run.data["status"]["metricResults"][0]["successful"].as_i64() >= Some(2);
    e2e::until(&hook::api(&scene, "HookRun"), "run", "two successes", |run| run.is_some_and(counted)).await?;
    scene.kubectl(&["patch", "hookrun", "run", "--type=merge", "-p", r#"{"spec":{"terminate":true}}"#])?;
    let status = verdict(&scene, "run").await?;
    ensure!(status["phase"] == "Cancelled" && status["metricResults"][0]["phase"] == "Cancelled", "{status}");
    Ok(())
}

async fn prometheus_answers_are_numbers(scene: Arc<Scene>) -> Result<()> {
    let answer = |kind: &str, result: Value| json!({ "status": "success", "data": { "resultType": kind, "result": result } });
    let vector =
        HookServer::json(&answer("vector", json!([{ "metric": {}, "value": [1, "0.02"] }, { "metric": {}, "value": [1, "0.04"] }])))
            .await?;
    let nan = HookServer::json(&answer("scalar", json!([1, "NaN"]))).await?;
    let metric = |server: &HookServer, condition: &str| {
        json!({ "name": "errors", "successCondition": condition, "provider": { "prometheus": {
            "address": server.url(), "query": "rate(errors{pod=\"{{ args.PodName }}\"}[5m])",
        } } })
    };
    let run = |name: &str, metric: Value| {
        let mut run = hook_run(name, &metric);
        run["spec"]["args"] = json!([{ "name": "PodName", "value": "a\"b" }]);
        run
    };
    scene.apply(&run("vector", metric(&vector, "all(result, {# < 0.05}) and len(result) == 2")))?;
    scene.apply(&run("nan", metric(&nan, "result < 1")))?;
    let status = verdict(&scene, "vector").await?;
    ensure!(status["phase"] == "Successful" && status["metricResults"][0]["measurements"][0]["value"] == "[0.02,0.04]", "{status}");
    ensure!(
        vector.last_request().starts_with("GET /api/v1/query?query=rate%28errors%7Bpod%3D%22a%5C%22b%22%7D%5B5m%5D%29"),
        "{}",
        vector.last_request()
    );
    let status = verdict(&scene, "nan").await?;
    ensure!(status["phase"] == "Inconclusive" && status["metricResults"][0]["measurements"][0]["value"] == "NaN", "{status}");
    Ok(())
}

async fn a_run_costs_two_writes(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    scene.apply(&hook_run("run", &impatient(json!({ "url": server.url(), "jsonPath": "{.age}" }))))?;
    verdict(&scene, "run").await?;
    let audit = std::fs::read_to_string(scene.cluster().audit_log())?;
    let ours = |line: &&str| line.contains("system:serviceaccount:bcs-system:gameplane") && line.contains("\"stage\":\"ResponseComplete\"");
    let writes = audit.lines().filter(ours).filter(|line| {
        let entry: Value = serde_json::from_str(line).unwrap_or_default();
        entry["objectRef"]["resource"] == "hookruns" && entry["objectRef"]["namespace"] == scene.namespace() && entry["verb"] == "patch"
    });
    let count = writes.count();
    ensure!(count == 2, "{count} writes");
    Ok(())
}

async fn names_are_resolved_once_and_checked(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let names = NameServer::start().await?;
    let args = vec!["--leader-elect=false".into(), format!("--hook-name-server={}", names.address()).into()];
    let _operators = cluster.start_operators(&OperatorOptions { args, ..OperatorOptions::default() }).await?;
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
    // The first answer is fine and every later one leads home: the checked one is used.
    ask("fickle", "fickle.test")?;
    ensure!(verdict(&scene, "fickle").await?["phase"] == "Successful", "another address was used than the one that was checked");
    Ok(())
}

/// 200 runs of different fates, and an operator that dies again and again.
async fn kill_9_changes_no_verdict(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let options = OperatorOptions {
        args: vec!["--leader-elect=false".into()],
        longest_pause: Duration::from_millis(200),
        ..OperatorOptions::default()
    };
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "kill").await?);
    let young = HookServer::json(&json!({ "age": 20 })).await?;
    let old = HookServer::json(&json!({ "age": 45 })).await?;
    let gone = HookServer::start(Manner::Says("500 Internal Server Error", Vec::new())).await?;
    let fates = [("Successful", &young), ("Failed", &old), ("Error", &gone)];
    let mut all = Vec::new();
    for number in 0..200 {
        let (_, server) = fates[number % 3];
        let mut metric = webtest(&server.url(), "asInt(result) < 30", "1s");
        metric["count"] = json!(1 + number % 3);
        metric["consecutiveErrorLimit"] = json!(1);
        all.push(hook_run(&format!("run-{number}"), &metric));
    }
    scene.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": all }))?;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(rand::random_range(50..900))).await;
        let pid = std::fs::read_to_string(cluster.folder().join("operator-1.pid"))?;
        // Between death and restart there is nobody to kill.
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid.trim().parse()?).context("a pid")?,
            rustix::process::Signal::KILL,
        );
    }
    for number in 0..200 {
        let status = verdict(&scene, &format!("run-{number}")).await?;
        let (phase, _) = fates[number % 3];
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

/// An object with lists, numbers, dots in keys and texts.
fn table() -> Value {
    let web = |number: i32, headers: Value| json!({ "web": { "url": format!("http://1.1.1.1/{number}"), "jsonPath": "{.a}", "timeoutSeconds": 5, "headers": headers } });
    let two = json!([{ "key": "x", "value": "1" }, { "key": "y", "value": "2" }]);
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": { "name": "table", "labels": { "app": "table", "game.io/team": "red" } },
        "spec": {
            "args": [{ "name": "a", "value": "1" }, { "name": "b", "value": "two" }, { "name": "c", "value": "x y" }],
            "metrics": [
                { "name": "m0", "count": 1, "provider": web(0, two.clone()) },
                { "name": "m1", "count": 3, "interval": "5s", "failureLimit": 2, "provider": web(1, two) },
                { "name": "m2", "count": 2, "interval": "1m", "provider": { "prometheus": { "address": "http://1.1.1.1", "query": "up{a=\"b\"}" } } },
                { "name": "m3", "count": 1, "provider": web(3, json!([{ "key": "z", "value": "3" }])) },
            ],
        },
    })
}

const PATHS: &[&str] = &[
    "{.metadata.name}",
    "{$.metadata.name}",
    "{@.metadata.name}",
    "{.kind}",
    "{ .kind }",
    "{.apiVersion}",
    "{.metadata.generation}",
    "a{.kind}b",
    "{.spec.metrics[0].name}",
    "{.spec.metrics[-1].name}",
    "{.spec.metrics[*].name}",
    "{.spec.metrics[0:2].name}",
    "{.spec.metrics[1:].name}",
    "{.spec.metrics[:2].name}",
    "{.spec.metrics[:-1].name}",
    "{.spec.metrics[::2].name}",
    "{.spec.metrics[0:4:3].name}",
    "{.spec.metrics[-2:].name}",
    "{.spec.metrics[0,2].name}",
    "{.spec.metrics[0,1,3].name}",
    "{.spec.metrics[0]['name','count']}",
    "{.spec.metrics[*]['name']}",
    "{.spec['metrics'][0]['name']}",
    "{.spec.metrics[?(@.name==\"m1\")].interval}",
    "{.spec.metrics[?(@.name=='m1')].interval}",
    "{.spec.metrics[?(@.name!=\"m1\")].name}",
    "{.spec.metrics[?(@.interval)].name}",
    "{.spec.metrics[?(@.count>1)].name}",
    "{.spec.metrics[?(@.count>=2)].name}",
    "{.spec.metrics[?(@.count<2)].name}",
    "{.spec.metrics[?(@.count<=1)].name}",
    "{.spec.metrics[?(@.count==3)].name}",
    "{.spec.metrics[*].count}",
    "{.spec.metrics[1].failureLimit}",
    "{.metadata.labels.app}",
    "{.metadata.labels['app']}",
    "{.metadata.labels['game\\.io/team']}",
    "{.metadata.labels.game\\.io/team}",
    "{.metadata.labels}",
    "{.spec.metrics[0].provider.web.headers[*].key}",
    "{.spec.metrics[0].provider.web.headers[1].value}",
    "{.spec.metrics[0].provider.web.timeoutSeconds}",
    "{.spec.metrics[0].provider.web.headers}",
    "{.spec.metrics[0].provider.web.headers[0]}",
    "{.spec.metrics[0].provider.web.jsonPath}",
    "{.spec.metrics[*].provider.web.url}",
    "{.spec.metrics[*].provider.web.headers[*].key}",
    "{.spec.metrics[2].provider.prometheus.query}",
    "{.spec.metrics[1].interval}{.spec.metrics[1].count}",
    "{.spec.args}",
    "{.spec.args[0].name}-{.spec.args[1].name}",
    "{.spec.args[?(@.name==\"b\")].value}",
    "{.spec.args[?(@.value>\"a\")].name}",
    "{.spec.args..value}",
    "{.spec.metrics[0].provider..key}",
    "{range .spec.args[*]}{.name}={.value};{end}",
    "{range .spec.metrics[*]}{.name}{\"\\n\"}{end}",
    "{range .spec.metrics[*]}{.name}{\"\\t\"}{.count}{\"\\n\"}{end}",
    "{range .spec.metrics[0:2]}[{.name}]{end}",
    "{.metadata.name}{\" \"}{.kind}",
    "name: {.metadata.name}, kind: {.kind}",
    "{.spec.metrics[?(@.name==\"none\")].name}",
    "{\"quoted\"}",
    "{'single'}",
];
const BROKEN: &[&str] = &[
    "{.missing}",
    "{.spec.metrics[9]}",
    "{.kind[0]}",
    "{range .spec.args[*]}{.nothing}{end}",
    "{.spec.metrics[2:1].name}",
    "{.spec.metrics[x]}",
    "{.spec.metrics[?(@.name=~\"m\")]}",
    "{.kind",
    "{kind}",
    "{end}",
    "{....name}",
];

async fn json_paths_say_what_kubectl_says(scene: Arc<Scene>) -> Result<()> {
    scene.apply(&table())?;
    scene.kubectl(&["wait", "--for=condition=Accepted", "hooktemplate/table", "--timeout=60s"])?;
    let object: Value = serde_json::from_str(&scene.kubectl(&["get", "ht", "table", "-o", "json"])?)?;
    let server = HookServer::json(&object).await?;
    let says =
        |path: &str| scene.kubectl(&["get", "ht", "table", "--allow-missing-template-keys=false", "-o", &format!("jsonpath={path}")]);
    let ask = |name: &str, paths: &[&str]| {
        let metric = |(number, path): (usize, &&str)| {
            json!({
                "name": format!("p{number}"), "consecutiveErrorLimit": 0, "provider": { "web": { "url": server.url(), "jsonPath": path } },
            })
        };
        let metrics: Vec<Value> = paths.iter().enumerate().map(metric).collect();
        let mut run = hook_run(name, &json!({}));
        run["spec"]["metrics"] = json!(metrics);
        scene.apply(&run)
    };
    ensure!(PATHS.len() >= 60, "only {} paths", PATHS.len());
    ask("good", PATHS)?;
    let status = verdict(&scene, "good").await?;
    for (number, path) in PATHS.iter().enumerate() {
        let result = status["metricResults"].as_array().into_iter().flatten().find(|one| one["name"] == format!("p{number}"));
        let value = result.and_then(|result| result["measurements"][0]["value"].as_str()).with_context(|| format!("{path}: {status}"))?;
        let expected = says(path)?;
        ensure!(value.trim() == expected.trim(), "{path}: {value:?}, and kubectl says {expected:?}");
    }
    for (number, path) in BROKEN.iter().enumerate() {
        let name = format!("broken-{number}");
        ensure!(says(path).is_err(), "kubectl follows {path}");
        ask(&name, &[path])?;
        ensure!(verdict(&scene, &name).await?["phase"] == "Error", "{path} is followed");
    }
    Ok(())
}

/// A run about a pod.
fn about(name: &str, pod: &str, metric: &Value) -> Value {
    let mut run = hook_run(name, metric);
    run["spec"]["args"] = json!([{ "name": "PodName", "value": pod }]);
    run
}

/// Lets the operator speak for the ServiceAccount `default` of the namespace.
async fn lend(scene: &Scene) -> Result<()> {
    scene.kubectl(&["create", "role", "speak", "--verb=impersonate", "--resource=serviceaccounts", "--resource-name=default"])?;
    scene.kubectl(&["create", "rolebinding", "speak", "--role=speak", "--serviceaccount=bcs-system:gameplane"])?;
    holds(scene, &["impersonate", "serviceaccounts/default", "--as=system:serviceaccount:bcs-system:gameplane"]).await
}

/// Waits until a new Role counts.
async fn holds(scene: &Scene, words: &[&str]) -> Result<()> {
    let question: Vec<&str> = ["auth", "can-i"].into_iter().chain(words.iter().copied()).collect();
    crate::cleanup::eventually("the Role does not count", || scene.kubectl(&question).is_ok_and(|answer| answer.trim() == "yes")).await
}

/// The message of a run that ended in an error.
async fn error(scene: &Scene, name: &str) -> Result<String> {
    let status = verdict(scene, name).await?;
    ensure!(status["phase"] == "Error", "{status}");
    Ok(status["message"].as_str().unwrap_or_default().to_owned())
}

async fn an_object_is_looked_at_in_the_name_of_an_account(scene: Arc<Scene>) -> Result<()> {
    let account = format!("system:serviceaccount:{}:default", scene.namespace());
    scene.pod("game", "game:1", &json!({ "metadata": { "annotations": { "game.io/state": "idle" } } }))?;
    let once = |kubernetes: Value| json!({ "name": "state", "consecutiveErrorLimit": 0, "provider": { "kubernetes": kubernetes } });
    let fields = |value: &str| json!([{ "path": "metadata.annotations.game.io/state", "value": value }]);
    let get = |value: &str| once(json!({ "function": "get", "fields": fields(value) }));
    scene.apply(&about("alone", "game", &get("idle")))?;
    let said = error(&scene, "alone").await?;
    ensure!(
        said.contains("cannot impersonate") && said.contains("a Role of this namespace must allow the operator to impersonate"),
        "{said}"
    );
    lend(&scene).await?;
    scene.apply(&about("powerless", "game", &get("idle")))?;
    let said = error(&scene, "powerless").await?;
    ensure!(said.contains("cannot get resource \"pods\"") && said.contains("must allow it to the ServiceAccount default"), "{said}");
    scene.kubectl(&["create", "role", "look", "--verb=get,patch", "--resource=pods"])?;
    scene.kubectl(&["create", "rolebinding", "look", "--role=look", &format!("--serviceaccount={}:default", scene.namespace())])?;
    holds(&scene, &["patch", "pods", &format!("--as={account}")]).await?;
    scene.apply(&about("idle", "game", &get("idle")))?;
    ensure!(verdict(&scene, "idle").await?["phase"] == "Successful", "the annotation is not seen");
    scene.apply(&about("busy", "game", &get("busy")))?;
    let status = verdict(&scene, "busy").await?;
    ensure!(
        status["phase"] == "Failed" && status["message"].as_str().is_some_and(|said| said.contains("is \"idle\", not \"busy\"")),
        "{status}"
    );
    scene.apply(&about("set", "game", &once(json!({ "function": "patch", "fields": fields("a \"b\" ~/c") }))))?;
    ensure!(verdict(&scene, "set").await?["phase"] == "Successful", "the annotation is not set");
    let now = scene.kubectl(&["get", "pod", "game", "-o", "jsonpath={.metadata.annotations.game\\.io/state}"])?;
    ensure!(now == "a \"b\" ~/c", "{now:?}");
    let mut value = once(json!({ "jsonPath": "{.spec.containers[*].image}" }));
    value["successCondition"] = json!("result == 'game:1'");
    scene.apply(&about("value", "game", &value))?;
    ensure!(verdict(&scene, "value").await?["phase"] == "Successful", "the value is not found");
    Ok(())
}

async fn a_command_is_run_in_the_pod(scene: Arc<Scene>) -> Result<()> {
    let cluster = scene.cluster();
    cluster.install_operator()?;
    let options = OperatorOptions { args: vec!["--leader-elect=false".into()], ..OperatorOptions::default() };
    let operators = cluster.start_operators(&options).await?;
    let result = commands(&scene).await;
    operators.stop().await;
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
    for file in ["03-rbac.yaml", "02-namespace.yaml", "01-resources.yaml"] {
        e2e::run(cluster.kubectl().args(["delete", "--wait", "-f", &format!("{deploy}/{file}")]), "")?;
    }
    result
}

async fn commands(scene: &Arc<Scene>) -> Result<()> {
    scene.pod("game", "main:v1", &json!({}))?;
    e2e::until_pod_ready(&scene.pods(), "game").await?;
    lend(scene).await?;
    scene.kubectl(&["create", "role", "run", "--verb=get,create", "--resource=pods,pods/exec"])?;
    scene.kubectl(&["create", "rolebinding", "run", "--role=run", &format!("--serviceaccount={}:default", scene.namespace())])?;
    holds(scene, &["create", "pods/exec", &format!("--as=system:serviceaccount:{}:default", scene.namespace())]).await?;
    let exec = |command: &[&str], condition: Option<&str>| json!({ "name": "command", "consecutiveErrorLimit": 0, "successCondition": condition, "provider": { "exec": { "command": command } } });
    scene.apply(&about("good", "game", &exec(&["/main", "--help"], Some("result contains 'stand-in game server'"))))?;
    let status = verdict(scene, "good").await?;
    ensure!(status["phase"] == "Successful", "{status}");
    scene.apply(&about("bad", "game", &exec(&["/main", "--nonsense"], None)))?;
    let status = verdict(scene, "bad").await?;
    ensure!(status["phase"] == "Failed" && status["message"].as_str().is_some_and(|said| said.contains("exit code")), "{status}");
    scene.apply(&about("missing", "game", &exec(&["/no/such/program"], None)))?;
    let status = verdict(scene, "missing").await?;
    ensure!(status["phase"] == "Failed" || status["phase"] == "Error", "{status}");
    scene.apply(&about("nobody", "nobody", &exec(&["/main"], None)))?;
    let said = error(scene, "nobody").await?;
    ensure!(said.contains("nobody"), "{said}");
    Ok(())
}

async fn a_real_prometheus_is_asked(scene: Arc<Scene>) -> Result<()> {
    let program = e2e::run(std::process::Command::new(crate::cli::program()?.with_file_name("xtask")).arg("prometheus"), "")?;
    let folder = tempfile::tempdir()?;
    let address = hook::own_address()?;
    let port = std::net::TcpListener::bind((address, 0))?.local_addr()?.port();
    let config = json!({
        "global": { "scrape_interval": "1s" },
        "scrape_configs": [{ "job_name": "itself", "static_configs": [{ "targets": [format!("{address}:{port}")] }] }],
    });
    let file = folder.path().join("prometheus.yaml");
    std::fs::write(&file, config.to_string())?;
    let log = std::fs::File::create(folder.path().join("log"))?;
    let mut command = tokio::process::Command::new(program.trim());
    command.arg(format!("--config.file={}", file.display())).arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
    command.arg(format!("--web.listen-address={address}:{port}")).stdout(std::process::Stdio::null()).stderr(log).kill_on_drop(true);
    let _prometheus = command.spawn()?;
    let ask = |name: &str, query: &str, condition: &str| {
        let mut run = hook_run(
            name,
            &json!({
                "name": "up", "interval": "1s", "successfulLimit": 1, "failureLimit": 1000, "inconclusiveLimit": 1000, "consecutiveErrorLimit": 1000,
                "successCondition": condition, "provider": { "prometheus": { "address": format!("http://{address}:{port}"), "query": query } },
            }),
        );
        run["spec"]["args"] = json!([{ "name": "job", "value": "itself" }]);
        scene.apply(&run)
    };
    // It takes a while to start and to scrape itself: errors and empty answers are put up with.
    ask("vector", "up{job=\"{{ args.job }}\"}", "len(result) == 1 and result[0] == 1")?;
    ask("scalar", "scalar(sum(up))", "result == 1.0")?;
    for name in ["vector", "scalar"] {
        let status = verdict(&scene, name).await?;
        ensure!(status["phase"] == "Successful", "{name}: {status}");
    }
    Ok(())
}
