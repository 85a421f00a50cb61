//! Measures Gameplane beside a plain client, Deployment and OpenKruise on one API server. Durations are printed, never
//! asserted.

mod audit;
mod chart;
mod gates;
mod hooks;
mod inplace;
mod kruise;
mod many;
mod neighbours;
mod pods;
mod process;
#[cfg(test)]
mod quotes;
mod raw;
mod reconcile;
mod report;
mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use localkube::{Cache, Cluster, KubeVersion, OperatorOptions, Options, Pace, Progress};
use pods::Seen;
use raw::Pods;
use report::Report;
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
    /// Concurrent requests of the plain client
    #[arg(long, default_value_t = 32)]
    workers: usize,
    /// Measure only the cost of one reconcile pass, without a cluster
    #[arg(long)]
    reconcile_only: bool,
    /// Measure only many hooks at once
    #[arg(long)]
    hooks_only: bool,
    /// Measure only pods that are created and replaced
    #[arg(long)]
    pods_only: bool,
    /// Numbers of pods whose creation shows how the time grows
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 10000])]
    growth: Vec<usize>,
    /// Measure only how the time grows, and ten thousand pods
    #[arg(long)]
    many_only: bool,
    /// Measure only in-place updates
    #[arg(long)]
    in_place_only: bool,
    /// Leave out the slow peers: Deployments with the default rate limit, and OpenKruise, which is built first
    #[arg(long)]
    no_peers: bool,
    /// Replace the measured tables in this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The Kubernetes version
    #[arg(long = "kube", env = "KUBE", default_value = KubeVersion::default().minor())]
    kube: KubeVersion,
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let report = Report::new(cli.save.clone());
    let cost = reconcile::table()?;
    say(&report, "One reconcile pass", &cost)?;
    if cli.reconcile_only {
        return Ok(());
    }
    if !cli.no_peers && !cli.hooks_only && !cli.many_only {
        // Built before anything is measured.
        kruise::build(&Cache::new(cli.kube, Progress::to_stderr()))?;
    }
    let options = Options { fake_nodes: cli.nodes, kube: cli.kube, audit: true, progress: Progress::to_stderr(), ..Options::default() };
    let is_all = !cli.hooks_only && !cli.in_place_only && !cli.pods_only && !cli.many_only;
    if is_all || cli.pods_only || cli.many_only {
        let mut cluster = start(&options).await?;
        if is_all || cli.many_only {
            say(&report, "Growth", &many::growth(&cluster, &cli.growth, cli.workers).await?)?;
            say(&report, "Ten thousand pods", &many::at_work(&cluster).await?)?;
        }
        if is_all || cli.pods_only {
            report.part("Pods", &pods_table(&mut cluster, &cli).await?)?;
        }
    }
    // A new cluster each time, because OpenKruise's webhooks intercept every pod of the old one.
    if is_all || cli.in_place_only {
        let table = inplace::table(&start(&options).await?, &cli.pods, cli.workers, !cli.no_peers).await?;
        report.chart(&chart::svg(&table))?;
        report.part("In place", &table)?;
    }
    if is_all || cli.hooks_only {
        let cluster = start(&options).await?;
        say(&report, "Hooks", &hooks::table(&cluster, cli.workers).await?)?;
        say(&report, "Pods that wait", &gates::table(&cluster).await?)?;
        say(&report, "Hostile neighbours", &neighbours::table(&cluster).await?)?;
    }
    Ok(())
}

/// A cluster on which the operator is installed.
async fn start(options: &Options) -> Result<Cluster> {
    let cluster = Cluster::start(options).await?;
    cluster.install_operator()?;
    Ok(cluster)
}

/// Prints a table and saves it.
fn say(report: &Report, title: &str, table: &[String]) -> Result<()> {
    table.iter().for_each(|line| println!("{line}"));
    println!();
    report.part(title, table)
}

/// Pods that are created and replaced.
async fn pods_table(cluster: &mut Cluster, cli: &Cli) -> Result<Vec<String>> {
    let operators = process::serving(cluster, &OperatorOptions::default()).await?;
    let mut table = Table::new();
    for count in &cli.pods {
        let (ours, deployment) = (Contender::ours(), Contender::deployment());
        let (mut bare, mut same, mut our_costs, mut deployment_costs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // In turns, so that a slow minute of the machine affects every contender.
        for _ in 0..rounds(*count) {
            bare.push(raw::measure(cluster, Pods::Bare, *count, cli.workers).await?);
            same.push(raw::measure(cluster, Pods::Owned, *count, cli.workers).await?);
            our_costs.push(ours.measure(cluster, *count).await?);
            deployment_costs.push(deployment.measure(cluster, *count).await?);
        }
        table.plain_client(Pods::Owned, *count, &median(same, |seen| seen.ready)?);
        table.plain_client(Pods::Bare, *count, &median(bare, |seen| seen.ready)?);
        table.contender(&ours, *count, &Costs::median(&our_costs)?);
        table.contender(&deployment, *count, &Costs::median(&deployment_costs)?);
    }
    operators.stop().await;
    // The slow ones are measured with the fewest pods only: more pods take half an hour and give the same ratio.
    if let Some(count) = cli.pods.iter().min().copied().filter(|_| !cli.no_peers) {
        cluster.restart_controllers(Pace::Shipped)?;
        let shipped = Contender::deployment_as_shipped();
        table.contender(&shipped, count, &shipped.measure(cluster, count).await?);
        cluster.restart_controllers(Pace::Unlimited)?;
        // Last, because its webhooks intercept every pod.
        let _manager = kruise::start(cluster, Pace::Unlimited).await?;
        let clone_set = Contender::clone_set();
        table.contender(&clone_set, count, &clone_set.median(cluster, count, PEER_ROUNDS).await?);
    }
    Ok(table.lines)
}

/// How many rounds each size is measured, of which the median counts. A round with few pods takes seconds, in which the machine is
/// often a fifth faster or slower: it takes more of them.
pub(crate) fn rounds(count: usize) -> usize {
    if count <= 1_000 { 5 } else { 3 }
}

/// The same for peers that take longer.
pub(crate) const PEER_ROUNDS: usize = 3;

/// The median by `key`.
fn median<T, K: Ord>(mut all: Vec<T>, key: impl Fn(&T) -> K) -> Result<T> {
    all.sort_by_key(key);
    let middle = all.len() / 2;
    all.into_iter().nth(middle).context("nothing was measured")
}

/// The table, printed line by line.
struct Table {
    lines: Vec<String>,
    /// How long the same pods took to be ready when the plain client created them, by the number of pods.
    plain: BTreeMap<usize, f64>,
    /// How long Gameplane's rolling update took, by the number of pods.
    ours: BTreeMap<usize, f64>,
}

impl Table {
    fn new() -> Self {
        let mut table = Self { lines: Vec::new(), plain: BTreeMap::new(), ours: BTreeMap::new() };
        table.say("| contender | pods | create: exist s | ready s | rate / plain | pod writes | other writes | CPU s | roll: ready s | / ours | pod writes | other writes | CPU s | most pods | peak MiB |".to_owned());
        table.say(format!("|{}", "---|".repeat(15)));
        table
    }

    fn say(&mut self, line: String) {
        println!("{line}");
        self.lines.push(line);
    }

    /// The same pods come first: the others are compared with them.
    fn plain_client(&mut self, kind: Pods, count: usize, seen: &Seen) {
        let (exist, ready) = (seen.exist.as_secs_f64(), seen.ready.as_secs_f64());
        let rate = *self.plain.entry(count).or_insert(ready) / ready;
        self.say(format!("| {} | {count} | {exist:.1} | {ready:.1} | {rate:.2} | 1.00 | | | | | | | | | |", kind.label()));
    }

    fn contender(&mut self, contender: &Contender, count: usize, costs: &Costs) {
        let Costs { create, roll, peak_memory } = costs;
        let (created, rolled) = (create.seen.ready.as_secs_f64(), roll.seen.ready.as_secs_f64());
        let plain = self.plain.get(&count).copied().unwrap_or(f64::NAN);
        let ours = *self.ours.entry(count).or_insert(rolled);
        self.say(format!(
            "| {} | {count} | {:.1} | {created:.1} | {:.2} | {:.2} | {:.2} | {:.1} | {rolled:.1} | {:.2} | {:.2} | {:.2} | {:.1} | {} | {} |",
            contender.label,
            create.seen.exist.as_secs_f64(),
            plain / created,
            create.pod_writes,
            create.other_writes,
            create.cpu,
            rolled / ours,
            roll.pod_writes,
            roll.other_writes,
            roll.cpu,
            roll.seen.most,
            peak_memory / (1024 * 1024),
        ));
    }
}
