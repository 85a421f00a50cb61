//! The operator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{ArgAction, Parser, ValueEnum};
use ipnet::IpNet;
use kube::config::{KubeConfigOptions, Kubeconfig};
use operator::client::Server;
use operator::engine::{Engine, HookOptions, Limits};
use operator::health::Health;
use operator::hooks::egress::{Egress, Policy, Reach};
use operator::leader::{Candidate, Election, Leadership, Times};
use operator::metrics::Metrics;
use operator::server::{Condition, serve};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

/// Runs game servers on Kubernetes and updates them without losing a player.
#[derive(Debug, Clone, Parser)]
#[command(name = "gameplane-operator", version)]
struct Cli {
    /// A kubeconfig file; the pod's ServiceAccount by default
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Work only while holding a lease, so that several replicas can stand by
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    leader_elect: bool,
    /// The lease's namespace
    #[arg(long, env = "POD_NAMESPACE", default_value = "bcs-system", value_name = "NAMESPACE")]
    leader_elect_namespace: String,
    /// The lease's name
    #[arg(long, default_value = "gameplane-operator", value_name = "NAME")]
    leader_elect_name: String,
    /// This process's name in the lease; the host's name and a random number by default
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    leader_elect_identity: Option<String>,
    /// How long a silent leader keeps the lease
    #[arg(long, default_value = "15s", value_parser = parse_duration, value_name = "DURATION")]
    leader_elect_lease_duration: Duration,
    /// A leader that could not renew the lease for this long stops; less than the lease's duration
    #[arg(long, default_value = "10s", value_parser = parse_duration, value_name = "DURATION")]
    leader_elect_renew_deadline: Duration,
    /// How often the lease is renewed or tried
    #[arg(long, default_value = "2s", value_parser = parse_duration, value_name = "DURATION")]
    leader_elect_retry_period: Duration,
    /// Where /healthz, /readyz and /metrics are served
    #[arg(long, default_value = "0.0.0.0:10251", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Objects that are reconciled at the same time
    #[arg(long, default_value_t = 16, value_parser = at_least_one, value_name = "N")]
    workers: usize,
    /// Writes in flight at the same time for one object
    #[arg(long, default_value_t = 32, value_parser = at_least_one, value_name = "N")]
    writes_per_object: usize,
    /// Writes in flight at the same time for all objects
    #[arg(long, default_value_t = 64, value_parser = at_least_one, value_name = "N")]
    writes: usize,
    /// Memory for the objects of one namespace, for example 64Mi: what does not fit is left alone, and its condition says so
    #[arg(long, default_value = "64Mi", value_parser = parse_memory, value_name = "BYTES")]
    namespace_memory: usize,
    /// Measurements of hooks in flight at the same time
    #[arg(long, default_value_t = 512, value_parser = at_least_one, value_name = "N")]
    hook_concurrency: usize,
    /// The same, for HookRuns of one namespace
    #[arg(long, default_value_t = 256, value_parser = at_least_one, value_name = "N")]
    hook_concurrency_per_namespace: usize,
    /// The same, to one address and port
    #[arg(long, default_value_t = 16, value_parser = at_least_one, value_name = "N")]
    hook_concurrency_per_host: usize,
    /// How far hooks may reach, apart from what is refused to all of them
    #[arg(long, value_enum, default_value_t, value_name = "POLICY")]
    hook_policy: Reach,
    /// A network that hooks may reach although it would be refused: loopback, link-local, multicast and metadata addresses, nodes and the API server are, and what the policy leaves out
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    hook_allow_cidr: Vec<IpNet>,
    /// A network that hooks may not reach
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    hook_deny_cidr: Vec<IpNet>,
    /// The only hosts that hooks may reach; *.example.com stands for everything below it
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    hook_allow_host: Vec<String>,
    /// A host that hooks may not reach
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    hook_deny_host: Vec<String>,
    /// The name server for hooks, as ADDRESS:PORT; the machine's by default
    #[arg(long, value_name = "ADDRESS")]
    hook_name_server: Option<SocketAddr>,
    /// How long a HookRun without an owner is kept after it has finished
    #[arg(long, default_value = "24h", value_parser = parse_duration, value_name = "DURATION")]
    hook_run_ttl: Duration,
    /// How long a node may not answer before it counts as lost: until then its pods are neither replaced nor deleted without their hook
    #[arg(long, default_value = "300s", value_parser = parse_duration, value_name = "DURATION")]
    node_silence: Duration,
    /// What is logged: error, warn, info, debug or trace, also by module
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    log_level: String,
    /// How it is logged
    #[arg(long, env = "LOG_FORMAT", default_value = "json", value_name = "FORMAT")]
    log_format: LogFormat,
}

/// Bounds how many objects are decoded at the same time, and so the memory for that.
const MOST_THREADS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Json,
    Text,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let span: jiff::SignedDuration = text.parse().map_err(|error| format!("{error}; write for example 15s"))?;
    Duration::try_from(span).ok().filter(|duration| !duration.is_zero()).ok_or_else(|| "must be above zero".to_owned())
}

fn parse_memory(text: &str) -> Result<usize, String> {
    let bytes = planner::quantity::nanos(text).and_then(|nanos| usize::try_from(nanos / 1_000_000_000).ok());
    bytes.filter(|bytes| *bytes >= 1024 * 1024).ok_or_else(|| "must be at least 1Mi".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "must be a number above zero".to_owned())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let run = || -> Result<()> {
        log(&cli)?;
        check(&cli)?;
        // Conditions of hooks are parsed recursively, so the stacks are large.
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST_THREADS);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.enable_all().worker_threads(threads).thread_stack_size(8 << 20).build()?.block_on(run(&cli))
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gameplane-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn log(cli: &Cli) -> Result<()> {
    // A plain level applies to the operator, not to its libraries.
    let plain = cli.log_level.parse::<tracing::Level>().is_ok();
    let directives = if plain { format!("warn,operator={0},gameplane_operator={0}", cli.log_level) } else { cli.log_level.clone() };
    let filter = EnvFilter::try_new(&directives).with_context(|| format!("--log-level {:?} cannot be read", cli.log_level))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match cli.log_format {
        LogFormat::Json => builder.json().flatten_event(true).init(),
        LogFormat::Text => builder.with_ansi(false).init(),
    }
    Ok(())
}

fn check(cli: &Cli) -> Result<()> {
    if cli.leader_elect_renew_deadline >= cli.leader_elect_lease_duration {
        bail!(
            "--leader-elect-renew-deadline must be less than --leader-elect-lease-duration: the old leader must stop before a new one starts"
        );
    }
    if cli.leader_elect_retry_period >= cli.leader_elect_renew_deadline {
        bail!("--leader-elect-retry-period must be less than --leader-elect-renew-deadline");
    }
    Ok(())
}

async fn run(cli: &Cli) -> Result<()> {
    rustls::crypto::aws_lc_rs::default_provider().install_default().map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let metrics = Arc::new(Metrics::default());
    let (leading, is_leading) = watch::channel(false);
    let health = Arc::new(Health::new(Arc::clone(&metrics)));
    let condition = Condition { metrics: Arc::clone(&metrics), leading: is_leading, health: Arc::clone(&health) };
    let config = config(cli).await?;
    let hooks = hooks(cli, &config)?;
    let server = Server::new(kube::Client::try_from(config)?, Arc::clone(&metrics));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "starting");
    tokio::select! {
        served = serve(cli.listen, condition) => served.with_context(|| format!("cannot serve on {}", cli.listen)),
        () = lead(cli, &server, &hooks, &metrics, &leading, &health, async {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        }) => Ok(()),
    }
}

async fn config(cli: &Cli) -> Result<kube::Config> {
    let mut config = match &cli.kubeconfig {
        Some(file) => {
            let kubeconfig = Kubeconfig::read_from(file).with_context(|| format!("cannot read {}", file.display()))?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?
        }
        None => kube::Config::incluster().context("no --kubeconfig, and not in a pod")?,
    };
    // The operator retries itself: a retry inside the client could outlive the lease.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(config)
}

fn hooks(cli: &Cli, config: &kube::Config) -> Result<HookOptions> {
    let policy = Policy {
        reach: cli.hook_policy,
        allow: cli.hook_allow_cidr.clone(),
        deny: cli.hook_deny_cidr.clone(),
        allow_hosts: cli.hook_allow_host.clone(),
        deny_hosts: cli.hook_deny_host.clone(),
    };
    let egress = Egress::new(policy, cli.hook_name_server).map_err(anyhow::Error::msg)?;
    let limits = operator::hooks::Limits {
        total: cli.hook_concurrency,
        per_namespace: cli.hook_concurrency_per_namespace,
        per_host: cli.hook_concurrency_per_host,
    };
    Ok(HookOptions {
        config: config.clone(),
        egress: Arc::new(egress),
        limits,
        keep: cli.hook_run_ttl.try_into().context("--hook-run-ttl")?,
    })
}

/// Runs one term of leadership after another until `stop`.
async fn lead(
    cli: &Cli,
    server: &Server,
    hooks: &HookOptions,
    metrics: &Arc<Metrics>,
    leading: &watch::Sender<bool>,
    health: &Arc<Health>,
    stop: impl Future<Output = ()>,
) {
    let mut stop = std::pin::pin!(stop);
    let identity = cli.leader_elect_identity.clone().unwrap_or_else(|| format!("{}_{:08x}", host_name(), rand::random::<u32>()));
    let times =
        Times { lease: cli.leader_elect_lease_duration, renew: cli.leader_elect_renew_deadline, retry: cli.leader_elect_retry_period };
    let (namespace, name) = (cli.leader_elect_namespace.clone(), cli.leader_elect_name.clone());
    let mut election = Election::new(server, Candidate { namespace, name, identity, times });
    let leadership = if cli.leader_elect { election.leadership() } else { Arc::new(Leadership::unquestioned()) };
    loop {
        if cli.leader_elect {
            tokio::select! { () = election.won() => {}, () = &mut stop => return }
        }
        tracing::info!("leading");
        leading.send_replace(true);
        metrics.set_leading(true);
        let term = term(cli, server, hooks, metrics, &leadership, health);
        let lost = async { if cli.leader_elect { election.lost().await } else { std::future::pending().await } };
        let term = async {
            term.await;
            // A term that ends by itself has failed: wait, so that terms do not follow in a hot loop.
            tokio::time::sleep(Duration::from_secs(5)).await;
        };
        let stopped = tokio::select! {
            () = term => false,
            () = lost => false,
            () = &mut stop => true,
        };
        leading.send_replace(false);
        health.reset();
        metrics.end_term();
        if stopped {
            tracing::info!("stopping");
            if cli.leader_elect {
                election.release().await;
            }
            return;
        }
    }
}

async fn term(cli: &Cli, server: &Server, hooks: &HookOptions, metrics: &Arc<Metrics>, leadership: &Arc<Leadership>, health: &Arc<Health>) {
    let engine = Engine {
        server: server.clone(),
        leadership: Arc::clone(leadership),
        metrics: Arc::clone(metrics),
        health: Arc::clone(health),
        limits: Limits {
            workers: cli.workers,
            writes_per_object: cli.writes_per_object,
            writes: cli.writes,
            namespace_memory: cli.namespace_memory,
        },
        streaming: true,
        node_silence: cli.node_silence.try_into().unwrap_or(planner::facts::node::DEFAULT_SILENCE),
        hooks: hooks.clone(),
    };
    engine.run().await;
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "host".to_owned(), |name| name.trim().to_owned())
}
