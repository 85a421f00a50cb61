//! The operator of a cluster as a process: its log, its HTTP server, its memory, and killing it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use localkube::{Cluster, OperatorOptions};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::scene::{root, run};

/// A single operator without leader election.
#[must_use]
pub fn single() -> OperatorOptions {
    OperatorOptions { args: vec!["--leader-elect=false".into()], ..OperatorOptions::default() }
}

/// The process id of the first operator.
pub fn pid(cluster: &Cluster) -> Result<String> {
    Ok(std::fs::read_to_string(cluster.folder().join("operator-1.pid"))?)
}

/// A log of the cluster, `operator-1.log` for one; empty if there is none.
#[must_use]
pub fn log(cluster: &Cluster, name: &str) -> String {
    std::fs::read_to_string(cluster.folder().join("logs").join(name)).unwrap_or_default()
}

/// The most memory that the process with this id has needed, in KiB; an error if it has ended.
pub fn peak_memory(pid: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// Applies a file of `deploy/`.
pub fn deploy(cluster: &Cluster, file: &str) -> Result<()> {
    run(cluster.kubectl().args(["apply", "-f"]).arg(root().join("deploy").join(file)), "").map(drop)
}

/// The operator's response at a path: `/metrics`, `/healthz` or `/readyz`.
pub async fn ask(cluster: &Cluster, path: &str) -> Result<String> {
    let log = std::fs::read_to_string(cluster.folder().join("logs/operator-1.log"))?;
    let address = log.lines().filter(|line| line.contains("serving /healthz")).find_map(|line| line.split("address=").nth(1));
    let mut stream = TcpStream::connect(address.context("the operator does not say where it serves")?.trim()).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Kills the first operator at random moments until it is dropped.
#[derive(Debug)]
pub struct Killer {
    kills: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Killer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Killer {
    /// Starts killing.
    #[must_use]
    pub fn start(cluster: &Cluster) -> Self {
        Self::of(cluster, None)
    }

    /// Starts killing, each time only once the operator is ready: with thousands of pods it would otherwise die before that.
    #[must_use]
    pub fn of_ready(cluster: &Arc<Cluster>) -> Self {
        Self::of(cluster, Some(Arc::clone(cluster)))
    }

    fn of(cluster: &Cluster, ready_on: Option<Arc<Cluster>>) -> Self {
        let kills = Arc::new(AtomicUsize::new(0));
        let (count, file) = (Arc::clone(&kills), cluster.folder().join("operator-1.pid"));
        let task = tokio::spawn(async move {
            let mut last = None;
            loop {
                while let Some(cluster) = &ready_on
                    && !ask(cluster, "/readyz").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                tokio::time::sleep(Duration::from_millis(rand::random_range(100..1200))).await;
                let pid = std::fs::read_to_string(&file).ok().and_then(|pid| Pid::from_raw(pid.trim().parse().ok()?));
                // Until it is restarted there is no process to kill.
                let Some(pid) = pid.filter(|pid| Some(*pid) != last) else { continue };
                if kill_process(pid, Signal::KILL).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                    last = Some(pid);
                }
            }
        });
        Self { kills, task }
    }

    /// How often it was killed so far.
    #[must_use]
    pub fn kills(&self) -> usize {
        self.kills.load(Ordering::Relaxed)
    }
}
