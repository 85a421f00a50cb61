//! Many hooks at once, some of which ask a server that never answers.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use localkube::{Cluster, OperatorOptions};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::process::{CpuTime, peak_memory};
use crate::{audit, pods};

const RUNS: usize = 1000;
/// One in this many asks a server that hangs.
const HANGING: usize = 10;
const ROUNDS: usize = 3;
const USERS: [&str; 1] = ["system:serviceaccount:bcs-system:gameplane"];

type Arrivals = Arc<Mutex<HashMap<usize, Instant>>>;

/// The results of one round.
struct Round {
    median: Duration,
    slow: Duration,
    writes: f64,
    cpu: f64,
}

/// One row: how long it took until the healthy hooks were asked, and what it cost. The median of the rounds.
pub(crate) async fn table(cluster: &Cluster, workers: usize) -> Result<Vec<String>> {
    // All servers are on loopback, which hooks may not reach by default.
    let options = OperatorOptions { args: vec!["--hook-allow-cidr=127.0.0.0/8".into()], ..OperatorOptions::default() };
    let operators = crate::process::serving(cluster, &options).await?;
    let pid: u32 = std::fs::read_to_string(cluster.folder().join("operator-1.pid"))?.trim().parse()?;
    let mut rounds = Vec::new();
    for number in 0..ROUNDS {
        let namespace = format!("hooks-{number}");
        pods::namespace(&cluster.client(), &namespace).await?;
        rounds.push(round(cluster, &namespace, pid, workers).await?);
        pods::remove_namespace(&cluster.client(), &namespace).await?;
    }
    let Round { median, slow, writes, cpu } = crate::median(rounds, |round| round.slow)?;
    let row = format!(
        "| {RUNS} | {} | {:.2} s | {:.2} s | {writes:.2} | {cpu:.1} | {} |",
        RUNS / HANGING,
        median.as_secs_f64(),
        slow.as_secs_f64(),
        peak_memory(pid)? / (1024 * 1024),
    );
    operators.stop().await;
    let head =
        "| HookRuns at once | of these hanging | healthy ones asked after, median | 99 % | status writes per run | CPU s | peak MiB |";
    Ok(vec![head.to_owned(), "|---|---|---|---|---|---|---|".to_owned(), row])
}

async fn round(cluster: &Cluster, namespace: &str, pid: u32, workers: usize) -> Result<Round> {
    let arrivals = Arrivals::default();
    let healthy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let healthy_port = healthy.local_addr()?.port();
    let serving = tokio::spawn(serve(healthy, Arc::clone(&arrivals)));
    // Listeners that never accept: clients connect and get no answer.
    let mut silent = Vec::new();
    for _ in 0..RUNS / HANGING {
        silent.push(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    }
    let api = hook_runs(&cluster.client(), namespace);
    let cpu = CpuTime::of(pid)?;
    let create = |number: usize| {
        let hangs = silent.get(number / HANGING).filter(|_| number.is_multiple_of(HANGING));
        let port = hangs.map_or(Ok(healthy_port), |silent| silent.local_addr().map(|address| address.port()));
        create(api.clone(), number, port)
    };
    let created: HashMap<usize, Instant> =
        futures::stream::iter((0..RUNS).map(create)).buffer_unordered(workers).try_collect::<Vec<_>>().await?.into_iter().collect();
    until_done(&api).await?;
    serving.abort();
    let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut delays: Vec<Duration> =
        arrivals.iter().filter_map(|(number, arrived)| Some(arrived.saturating_duration_since(*created.get(number)?))).collect();
    delays.sort();
    let at =
        |share: usize| delays.get((delays.len() * share / 100).min(delays.len().saturating_sub(1))).copied().context("no hook was asked");
    let writes = audit::writes(cluster, namespace, &USERS)?.hook_runs as f64 / RUNS as f64;
    Ok(Round { median: at(50)?, slow: at(99)?, writes, cpu: CpuTime::of(pid)?.since(cpu).as_secs_f64() })
}

pub(crate) fn hook_runs(client: &kube::Client, namespace: &str) -> Api<DynamicObject> {
    ours(client, namespace, "HookRun", "hookruns")
}

/// The objects of one of Gameplane's kinds.
pub(crate) fn ours(client: &kube::Client, namespace: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "tkex.tencent.com".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "tkex.tencent.com/v1alpha1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Creates one HookRun and returns when the API server answered.
async fn create(api: Api<DynamicObject>, number: usize, port: std::io::Result<u16>) -> Result<(usize, Instant)> {
    let metric = json!({
        "name": "age", "consecutiveErrorLimit": 0, "successCondition": "asInt(result) > 30",
        "provider": { "web": { "url": format!("http://127.0.0.1:{}/{number}", port?), "jsonPath": "{.age}" } },
    });
    let run = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
        "metadata": { "name": format!("run-{number}") }, "spec": { "metrics": [metric] },
    });
    api.create(&PostParams::default(), &serde_json::from_value(run)?).await?;
    Ok((number, Instant::now()))
}

async fn until_done(api: &Api<DynamicObject>) -> Result<()> {
    loop {
        let runs = api.list(&ListParams::default()).await?;
        let is_done = |run: &DynamicObject| run.data.pointer("/status/finishedAt").is_some();
        if runs.items.iter().all(is_done) {
            return Ok(());
        }
        // Seldom, so that the lists add little load.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

async fn serve(listener: TcpListener, arrivals: Arrivals) {
    while let Ok((stream, _)) = listener.accept().await {
        let arrivals = Arc::clone(&arrivals);
        tokio::spawn(async move {
            // Clients that disconnect are not counted.
            let _ = answer(stream, &arrivals).await;
        });
    }
}

async fn answer(mut stream: TcpStream, arrivals: &Arrivals) -> Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        anyhow::ensure!(stream.read_buf(&mut request).await? > 0, "the client left");
    }
    let text = String::from_utf8_lossy(&request);
    let number = text.split_whitespace().nth(1).and_then(|path| path.trim_start_matches('/').parse().ok()).context("no number")?;
    arrivals.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Instant::now());
    let body = r#"{"name":"bryan","male":"yes","age":45}"#;
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).as_bytes()).await?;
    Ok(())
}
