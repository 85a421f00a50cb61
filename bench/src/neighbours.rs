//! What a hostile tenant costs its neighbours: the rollout of a small workload alone, and beside a namespace with
//! hostile objects and a flood of changes.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use localkube::{Cluster, OperatorOptions};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::process::peak_memory;
use crate::{hooks, pods};

const VICTIM: &str = "victim";
const EVIL: &str = "evil";
/// Pods of the victim.
const PODS: usize = 20;
/// Rollouts, of which the median counts.
const ROUNDS: usize = 5;
/// How many workloads whose pods are refused, and how many hanging hooks, the hostile tenant has.
const HOSTILE: usize = 300;
/// The interval at which the hostile tenant changes a workload or creates a HookRun.
const FLOOD: Duration = Duration::from_millis(20);

/// One row.
pub(crate) async fn table(cluster: &Cluster) -> Result<Vec<String>> {
    // All servers are on loopback, which hooks may not reach by default.
    let options = OperatorOptions { args: vec!["--hook-allow-cidr=127.0.0.0/8".into()], ..OperatorOptions::default() };
    let operators = crate::process::serving(cluster, &options).await?;
    let pid: u32 = std::fs::read_to_string(cluster.folder().join("operator-1.pid"))?.trim().parse()?;
    for name in [VICTIM, EVIL] {
        pods::namespace(&cluster.client(), name).await?;
    }
    let games = hooks::ours(&cluster.client(), VICTIM, "GameDeployment", "gamedeployments");
    let api: Api<Pod> = Api::namespaced(cluster.client(), VICTIM);
    games.create(&PostParams::default(), &serde_json::from_value(game("game", PODS, &json!({})))?).await?;
    pods::until_ready(&api, "game:0", PODS, Instant::now()).await?;
    let mut number = 0;
    let alone = rollouts(&games, &api, &mut number).await?;
    let hanging = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    harm(cluster, &format!("http://{}/", hanging.local_addr()?)).await?;
    let flood = tokio::spawn(flood(cluster.client()));
    let beside = rollouts(&games, &api, &mut number).await?;
    anyhow::ensure!(!flood.is_finished(), "the flood has ended");
    flood.abort();
    let peak = peak_memory(pid)? / (1024 * 1024);
    operators.stop().await;
    for name in [VICTIM, EVIL] {
        pods::remove_namespace(&cluster.client(), name).await?;
    }
    let (alone, beside) = (alone.as_secs_f64(), beside.as_secs_f64());
    let row = format!("| {PODS} | {alone:.2} s | {beside:.2} s | {:.2} | {peak} |", beside / alone);
    let head = "| pods updated in place | alone | beside a hostile namespace | ratio | peak MiB |";
    Ok(vec![head.to_owned(), "|---|---|---|---|---|".to_owned(), row])
}

fn game(name: &str, replicas: usize, junk: &Value) -> Value {
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "metadata": { "name": name },
        "spec": {
            "replicas": replicas, "selector": { "matchLabels": { "app": name } }, "updateStrategy": { "type": "InplaceUpdate" },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "game", "image": "game:0" }], "junk": junk },
            },
        },
    })
}

/// How long a rollout takes: the median of the rounds.
async fn rollouts(games: &Api<kube::api::DynamicObject>, api: &Api<Pod>, number: &mut usize) -> Result<Duration> {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        *number += 1;
        let image = format!("game:{number}");
        let template = json!({ "spec": { "containers": [{ "name": "game", "image": image }] } });
        let started = Instant::now();
        games.patch("game", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "template": template } }))).await?;
        took.push(pods::until_ready(api, &image, PODS, started).await?.ready);
    }
    crate::median(took, |took| *took)
}

/// Fills the hostile namespace: workloads whose pods a quota refuses, large templates and junk, and hooks that hang.
async fn harm(cluster: &Cluster, hanging: &str) -> Result<()> {
    let client = cluster.client();
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), EVIL);
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    let games = hooks::ours(&client, EVIL, "GameDeployment", "gamedeployments");
    let runs = hooks::ours(&client, EVIL, "HookRun", "hookruns");
    for number in 0..HOSTILE {
        let junk = match number % 30 {
            0 => json!("x".repeat(600 << 10)),
            1 => json!((0..60_000).map(|_| json!({ "a": 0 })).collect::<Vec<_>>()),
            _ => json!({}),
        };
        games.create(&PostParams::default(), &serde_json::from_value(game(&format!("hostile-{number}"), 10, &junk))?).await?;
        runs.create(&PostParams::default(), &serde_json::from_value(run(&format!("hangs-{number}"), hanging))?).await?;
    }
    Ok(())
}

fn run(name: &str, url: &str) -> Value {
    let metric = json!({ "name": "web", "consecutiveErrorLimit": 100, "provider": { "web": { "url": url, "timeoutSeconds": 60 } } });
    json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": { "name": name }, "spec": { "metrics": [metric] } })
}

/// Changes the hostile workloads one after another, and creates HookRuns that fail at once, until it is aborted.
async fn flood(client: kube::Client) -> Result<()> {
    let games = hooks::ours(&client, EVIL, "GameDeployment", "gamedeployments");
    let runs = hooks::ours(&client, EVIL, "HookRun", "hookruns");
    let mut ticks = tokio::time::interval(FLOOD);
    for number in 0_usize.. {
        ticks.tick().await;
        // Failed requests do not matter here.
        if number.is_multiple_of(2) {
            let new = run(&format!("flood-{number}"), "http://127.0.0.1:1/");
            let _ = runs.create(&PostParams::default(), &serde_json::from_value(new)?).await;
        } else {
            // Only small objects: the operator is measured, not how the API server copies megabytes.
            let name = format!("hostile-{}", 2 + number / 2 % 28);
            let change = Patch::Merge(json!({ "spec": { "replicas": 10 + number % 7 } }));
            let _ = games.patch(&name, &PatchParams::default(), &change).await;
        }
    }
    Ok(())
}
