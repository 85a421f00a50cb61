//! HookRuns: measurements, limits and verdicts.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::command::tool;
use e2e::hook::{HookServer, Manner, hook_run, impatient, own_address, verdict, webtest};
use e2e::{Place, Scene, Suite, audit};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, the_hook_of_the_walk_through_fails);
    suite.sharing(fake, the_opposite_condition_is_successful_after_two_measurements);
    suite.sharing(fake, a_template_is_accepted_or_says_where_it_is_wrong);
    suite.sharing(fake, hooks_that_make_no_sense_are_refused_at_once);
    suite.sharing(fake, a_run_is_cancelled_and_never_approves);
    suite.sharing(fake, prometheus_answers_are_numbers);
    suite.sharing(fake, a_real_prometheus_is_asked);
    suite.sharing(fake, a_run_costs_two_writes_at_most);
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

async fn the_opposite_condition_is_successful_after_two_measurements(scene: Arc<Scene>) -> Result<()> {
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
    scene.apply_file("examples/tkex/hooktemplate.yaml")?;
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
    // Corrected, it is accepted.
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

async fn a_run_is_cancelled_and_never_approves(scene: Arc<Scene>) -> Result<()> {
    let server = HookServer::json(&json!({ "age": 32 })).await?;
    let metric = json!({ "name": "webtest", "interval": "1s", "provider": { "web": { "url": server.url() } } });
    scene.apply(&hook_run("run", &metric))?;
    let counted = |run: &kube::api::DynamicObject| run.data["status"]["metricResults"][0]["successful"].as_i64() >= Some(2);
    e2e::until(&scene.custom("HookRun"), "run", "two successes", |run| run.is_some_and(counted)).await?;
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

async fn a_run_costs_two_writes_at_most(scene: Arc<Scene>) -> Result<()> {
    let (quick, slow) = (HookServer::json(&json!({ "age": 32 })).await?, HookServer::start(Manner::Hangs).await?);
    scene.apply(&hook_run("quick", &impatient(json!({ "url": quick.url(), "jsonPath": "{.age}" }))))?;
    scene.apply(&hook_run("slow", &impatient(json!({ "url": slow.url() }))))?;
    for name in ["quick", "slow"] {
        verdict(&scene, name).await?;
    }
    let audit = audit(scene.cluster())?;
    let writes = |name: &str| {
        let is_write = |entry: &&Value| {
            let about = &entry["objectRef"];
            let place = (&about["resource"], &about["namespace"], &about["name"], &entry["verb"]);
            place == (&json!("hookruns"), &json!(scene.namespace()), &json!(name), &json!("patch"))
        };
        audit.iter().filter(is_write).count()
    };
    // An answer that comes at once is written together with the start, unless the machine stalls.
    ensure!((1..=2).contains(&writes("quick")), "{} writes for the quick one", writes("quick"));
    ensure!(writes("slow") == 2, "{} writes for the slow one", writes("slow"));
    Ok(())
}

async fn a_real_prometheus_is_asked(scene: Arc<Scene>) -> Result<()> {
    let program = tool("prometheus")?;
    let folder = tempfile::tempdir()?;
    let address = own_address()?;
    let port = std::net::TcpListener::bind((address, 0))?.local_addr()?.port();
    let config = json!({
        "global": { "scrape_interval": "1s" },
        "scrape_configs": [{ "job_name": "itself", "static_configs": [{ "targets": [format!("{address}:{port}")] }] }],
    });
    let file = folder.path().join("prometheus.yaml");
    std::fs::write(&file, config.to_string())?;
    let log = std::fs::File::create(folder.path().join("log"))?;
    let mut command = tokio::process::Command::new(program);
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
    // Prometheus takes a while to start and to scrape itself: the limits tolerate errors and empty results until then.
    ask("vector", "up{job=\"{{ args.job }}\"}", "len(result) == 1 and result[0] == 1")?;
    ask("scalar", "scalar(sum(up))", "result == 1.0")?;
    for name in ["vector", "scalar"] {
        let status = verdict(&scene, name).await?;
        ensure!(status["phase"] == "Successful", "{name}: {status}");
    }
    Ok(())
}
