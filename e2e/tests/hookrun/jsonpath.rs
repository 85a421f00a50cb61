//! JSONPaths of hooks, compared with kubectl.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::{HookServer, hook_run, verdict};
use e2e::{Place, Scene, Suite};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, json_paths_say_what_kubectl_says);
}

/// A HookTemplate with lists, numbers, strings, and dots in keys.
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
    let kubectl =
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
        let expected = kubectl(path)?;
        ensure!(value.trim() == expected.trim(), "{path}: {value:?}, but kubectl prints {expected:?}");
    }
    for (number, path) in BROKEN.iter().enumerate() {
        let name = format!("broken-{number}");
        ensure!(kubectl(path).is_err(), "kubectl accepts {path}");
        ask(&name, &[path])?;
        ensure!(verdict(&scene, &name).await?["phase"] == "Error", "{path} is accepted");
    }
    Ok(())
}
