//! Many pods that wait for their hook at once: what waiting costs, and how soon each is deleted when its hook approves.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use localkube::{Cluster, OperatorOptions};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::process::{CpuTime, serving};
use crate::{hooks, pods};

const PODS: usize = 500;
const NAMESPACE: &str = "gates";
/// How long the cost of waiting is measured.
const MEASURED: Duration = Duration::from_secs(10);

/// When each pod's hook approved, or each pod's deletion was seen.
type Moments = Arc<Mutex<HashMap<String, Instant>>>;

/// One row.
pub(crate) async fn table(cluster: &Cluster) -> Result<Vec<String>> {
    // All servers are on loopback, which hooks may not reach by default.
    let options = OperatorOptions { args: vec!["--hook-allow-cidr=127.0.0.0/8".into()], ..OperatorOptions::default() };
    let operators = serving(cluster, &options).await?;
    let pid: u32 = std::fs::read_to_string(cluster.folder().join("operator-1.pid"))?.trim().parse()?;
    pods::namespace(&cluster.client(), NAMESPACE).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/{{{{ args.PodName }}}}", listener.local_addr()?);
    let (open, approved, deleted) = (Arc::new(AtomicBool::new(false)), Moments::default(), Moments::default());
    let serving = tokio::spawn(serve(listener, Arc::clone(&open), Arc::clone(&approved)));
    let (games, api) = (prepare(cluster, &url).await?, Api::<Pod>::namespaced(cluster.client(), NAMESPACE));
    let watching = tokio::spawn(watch(api.clone(), Arc::clone(&deleted)));
    pods::until_ready(&api, "game:1", PODS, Instant::now()).await?;
    games.patch("door", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "replicas": 0 } }))).await?;
    let asked = Instant::now();
    until(|| async { Ok(hooks::hook_runs(&cluster.client(), NAMESPACE).list_metadata(&ListParams::default()).await?.items.len() >= PODS) })
        .await?;
    let asked = asked.elapsed();
    let cpu = CpuTime::of(pid)?;
    tokio::time::sleep(MEASURED).await;
    let waiting = CpuTime::of(pid)?.since(cpu).as_secs_f64() / MEASURED.as_secs_f64();
    open.store(true, Ordering::Relaxed);
    until(|| async { Ok(deleted.lock().unwrap_or_else(PoisonError::into_inner).len() >= PODS) }).await?;
    serving.abort();
    watching.abort();
    operators.stop().await;
    let (approved, deleted) =
        (approved.lock().unwrap_or_else(PoisonError::into_inner), deleted.lock().unwrap_or_else(PoisonError::into_inner));
    let mut delays: Vec<Duration> =
        deleted.iter().filter_map(|(name, deleted)| Some(deleted.saturating_duration_since(*approved.get(name)?))).collect();
    delays.sort();
    let at = |share: usize| delays.get(delays.len() * share / 100).copied().context("no pod was deleted");
    let row = format!(
        "| {PODS} | {:.1} s | {:.0} % | {:.2} s | {:.2} s |",
        asked.as_secs_f64(),
        waiting * 100.0,
        at(50)?.as_secs_f64(),
        at(99)?.as_secs_f64()
    );
    let head = "| pods that wait at once | all asked after | of a core while they are asked every 2 s | from the approval to the deletion, median | 99 % |";
    Ok(vec![head.to_owned(), "|---|---|---|---|---|".to_owned(), row])
}

/// A HookTemplate that queries `url`, and a GameDeployment whose deletions wait for it.
async fn prepare(cluster: &Cluster, url: &str) -> Result<Api<kube::api::DynamicObject>> {
    let metric = json!({
        "name": "sessions", "interval": "2s", "failureLimit": 1_000_000, "successfulLimit": 1, "successCondition": "asInt(result) == 0",
        "provider": { "web": { "url": url } },
    });
    let template = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": { "name": "drained" },
        "spec": { "args": [{ "name": "PodName" }], "metrics": [metric] },
    });
    let game = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "metadata": { "name": "door" },
        "spec": {
            "replicas": PODS, "selector": { "matchLabels": { "app": "bench" } },
            "preDeleteUpdateStrategy": { "hook": { "templateName": "drained" } },
            "template": {
                "metadata": { "labels": { "app": "bench" } },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "game", "image": "game:1" }] },
            },
        },
    });
    let templates = hooks::ours(&cluster.client(), NAMESPACE, "HookTemplate", "hooktemplates");
    templates.create(&PostParams::default(), &serde_json::from_value(template)?).await?;
    let games = hooks::ours(&cluster.client(), NAMESPACE, "GameDeployment", "gamedeployments");
    games.create(&PostParams::default(), &serde_json::from_value(game)?).await?;
    Ok(games)
}

async fn until<Fut: Future<Output = Result<bool>>>(mut holds: impl FnMut() -> Fut) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(600);
    while !holds().await? {
        anyhow::ensure!(Instant::now() < end, "not seen within 600 s");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

/// Records when the deletion of each pod is seen.
async fn watch(api: Api<Pod>, deleted: Moments) {
    let mut changes = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff().touched_objects());
    while let Some(change) = changes.next().await {
        let Ok(pod) = change else { continue };
        if pod.metadata.deletion_timestamp.is_some() {
            deleted.lock().unwrap_or_else(PoisonError::into_inner).entry(pod.name_any()).or_insert_with(Instant::now);
        }
    }
}

async fn serve(listener: TcpListener, open: Arc<AtomicBool>, approved: Moments) {
    while let Ok((stream, _)) = listener.accept().await {
        let (open, approved) = (Arc::clone(&open), Arc::clone(&approved));
        tokio::spawn(async move {
            // Clients that disconnect are not counted.
            let _ = answer(stream, open.load(Ordering::Relaxed), &approved).await;
        });
    }
}

async fn answer(mut stream: TcpStream, approve: bool, approved: &Moments) -> Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        anyhow::ensure!(stream.read_buf(&mut request).await? > 0, "the client left");
    }
    let text = String::from_utf8_lossy(&request);
    let name = text.split_whitespace().nth(1).context("no path")?.trim_start_matches('/').to_owned();
    let body = if approve { "0" } else { "1" };
    if approve {
        approved.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_insert_with(Instant::now);
    }
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n{body}").as_bytes()).await?;
    Ok(())
}
