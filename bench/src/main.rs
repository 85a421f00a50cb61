//! How fast the ground is: pods on fake nodes, created by a plain client. Durations are printed, never asserted.

mod cpu;
mod raw;

use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use localkube::{Cluster, KubeVersion, Options, Progress};

/// Measure how fast pods become Ready on fake nodes, and what that costs.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Cli {
    /// Numbers of pods, one measurement each
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 5000])]
    pods: Vec<usize>,
    /// Fake nodes
    #[arg(long, default_value_t = 10)]
    nodes: u32,
    /// Requests under way at once
    #[arg(long, default_value_t = 32)]
    workers: usize,
    /// The Kubernetes version
    #[arg(long = "kube", env = "KUBE", default_value = KubeVersion::default().minor())]
    kube: KubeVersion,
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let started = Instant::now();
    let options = Options { fake_nodes: cli.nodes, kube: cli.kube, progress: Progress::to_stderr(), ..Options::default() };
    let cluster = Cluster::start(&options).await?;
    println!("control plane and {} fake nodes ready in {:.1} s", cli.nodes, started.elapsed().as_secs_f64());
    println!("{:>6}  {:>10}  {:>10}  {:>9}  {:>10}  {:>10}", "pods", "created s", "ready s", "pods/s", "kwok cpu s", "gone s");
    for count in &cli.pods {
        let raw = raw::measure(&cluster, *count, cli.workers).await?;
        let rate = *count as f64 / raw.ready.as_secs_f64();
        println!(
            "{count:>6}  {:>10.1}  {:>10.1}  {rate:>9.0}  {:>10.1}  {:>10.1}",
            raw.created.as_secs_f64(),
            raw.ready.as_secs_f64(),
            raw.kwok_cpu.as_secs_f64(),
            raw.gone.as_secs_f64(),
        );
    }
    Ok(())
}
