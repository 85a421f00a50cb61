//! Side by side on one API server: a plain client, Gameplane, and what people use today. Durations are printed, never asserted.

mod audit;
mod pods;
mod process;
mod raw;
mod reconcile;
mod workload;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use localkube::{Cluster, KubeVersion, OperatorOptions, Options, Progress};
use workload::{Contender, Costs};

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
    /// Requests of the plain client under way at once
    #[arg(long, default_value_t = 32)]
    workers: usize,
    /// Measure only what one look at one object costs, without a cluster
    #[arg(long)]
    reconcile_only: bool,
    /// Write the table to this file too
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The Kubernetes version
    #[arg(long = "kube", env = "KUBE", default_value = KubeVersion::default().minor())]
    kube: KubeVersion,
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let cost = reconcile::table()?;
    cost.iter().for_each(|line| println!("{line}"));
    if cli.reconcile_only {
        return Ok(());
    }
    println!();
    let started = Instant::now();
    let options = Options { fake_nodes: cli.nodes, kube: cli.kube, audit: true, progress: Progress::to_stderr(), ..Options::default() };
    let cluster = Cluster::start(&options).await?;
    cluster.install_operator()?;
    let _operators = cluster.start_operators(&OperatorOptions::default()).await?;
    eprintln!("control plane, {} fake nodes and the operator ready in {:.1} s", cli.nodes, started.elapsed().as_secs_f64());
    let mut lines = vec![
        "| who | pods | create: exist s | ready s | rate / raw | pod writes | other writes | CPU s | roll: ready s | pod writes | other writes | CPU s | most pods | peak MiB |".to_owned(),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    lines.iter().for_each(|line| println!("{line}"));
    for count in &cli.pods {
        let raw = raw::measure(&cluster, *count, cli.workers).await?;
        let yardstick = raw.seen.ready.as_secs_f64();
        say(
            &mut lines,
            format!(
                "| plain client | {count} | {:.1} | {yardstick:.1} | 1.00 | 1.00 | | (kwok {:.1}) | | | | | | |",
                raw.seen.exist.as_secs_f64(),
                raw.kwok_cpu.as_secs_f64()
            ),
        );
        for contender in [Contender::ours(), Contender::deployment()] {
            let result = contender.measure(&cluster, *count).await?;
            say(&mut lines, row(&contender, *count, yardstick, &result));
        }
    }
    if let Some(file) = &cli.save {
        std::fs::write(file, document(&lines, &cost))?;
    }
    Ok(())
}

fn say(lines: &mut Vec<String>, line: String) {
    println!("{line}");
    lines.push(line);
}

fn row(contender: &Contender, count: usize, yardstick: f64, result: &Costs) -> String {
    let Costs { create, roll, peak_memory } = result;
    format!(
        "| {} | {count} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {:.2} | {:.2} | {:.1} | {} | {} |",
        contender.label,
        create.seen.exist.as_secs_f64(),
        create.seen.ready.as_secs_f64(),
        yardstick / create.seen.ready.as_secs_f64(),
        create.pod_writes,
        create.other_writes,
        create.cpu,
        roll.seen.ready.as_secs_f64(),
        roll.pod_writes,
        roll.other_writes,
        roll.cpu,
        roll.seen.most,
        peak_memory / (1024 * 1024),
    )
}

fn document(lines: &[String], cost: &[String]) -> String {
    format!(
        "# Benchmarks\n\nWritten by `make bench SAVE=1`: one run, one API server, fake nodes, everything on one machine. Compare ratios, not seconds.\n\n{}\n\nOne look at one object (observe and decide), without a cluster:\n\n{}\n",
        lines.join("\n"),
        cost.join("\n")
    )
}
