//! The `localkube` command.

mod guard;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use localkube::{Cache, Cluster, EXAMPLE_IMAGES, Image, KubeVersion, OperatorOptions, Operators, Options, Progress, Registry, Tool};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A real Kubernetes on this machine: stock binaries as child processes, removed without a trace when it ends.
#[derive(Debug, Parser)]
#[command(name = "localkube", version)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a cluster and run it until Ctrl-C
    Up {
        #[command(flatten)]
        cluster: ClusterFlags,
        #[command(flatten)]
        operator: OperatorFlags,
    },
    /// Start a cluster, run a command against it, stop the cluster
    ///
    /// The command gets KUBECONFIG, kubectl on its PATH and LOCALKUBE_DIR, the run's folder. localkube exits with the
    /// command's exit code; with 125 if the cluster could not start or died, 126 if the command cannot be run, 127 if
    /// it does not exist.
    Run {
        #[command(flatten)]
        cluster: ClusterFlags,
        #[command(flatten)]
        operator: OperatorFlags,
        /// The command and its arguments, after --
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Run a command and clean up if localkube dies (started by `run`)
    #[command(hide = true)]
    Guard {
        folder: PathBuf,
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Build the Kubernetes binaries into the cache
    Build {
        #[command(flatten)]
        version: Version,
        /// Only these binaries (etcd, kube-apiserver, …); all by default
        #[arg(value_name = "TOOL", value_parser = parse_tool)]
        tools: Vec<Tool>,
        /// Build again even if the binary is in the cache
        #[arg(long)]
        again: bool,
    },
    /// List the images of a running cluster, or push one
    Images {
        #[command(subcommand)]
        command: Option<ImagesVerb>,
        /// The folder of the run
        #[arg(long, env = "LOCALKUBE_DIR", value_name = "FOLDER", global = true)]
        dir: Option<PathBuf>,
    },
    /// Print a kubeconfig for a ServiceAccount of a running cluster
    Kubeconfig {
        /// The ServiceAccount
        #[arg(value_name = "NAMESPACE/NAME")]
        account: String,
        /// The administrator's kubeconfig
        #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
        kubeconfig: PathBuf,
    },
    /// Print what is missing on this machine and how to get it
    Doctor {
        #[command(flatten)]
        version: Version,
        /// Print only the Debian packages that real nodes need and that are missing
        #[arg(long)]
        missing_packages: bool,
    },
}

#[derive(Debug, Subcommand)]
enum ImagesVerb {
    /// Push a folder's files as an image, or the stand-in game server if no folder is given
    Push {
        /// The image's name, for example game:v3
        name: String,
        /// The folder that becomes the image's root
        #[arg(long, value_name = "FOLDER")]
        from: Option<PathBuf>,
        /// What the image runs, for example /main
        #[arg(long = "cmd", value_name = "WORD", requires = "from")]
        command: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct Version {
    /// The Kubernetes version
    #[arg(long = "kube", env = "KUBE", default_value = KubeVersion::default().minor(), value_name = "MINOR")]
    kube: KubeVersion,
}

#[derive(Debug, Args)]
struct OperatorFlags {
    /// Install the chart's CRDs, roles and ServiceAccount, and keep this many operators running under it
    #[arg(long, value_name = "REPLICAS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u32).range(1..=9))]
    operator: Option<u32>,
    /// Further arguments for the operator, separated by spaces
    #[arg(long, value_name = "ARGS", requires = "operator", allow_hyphen_values = true)]
    operator_args: Option<String>,
}

impl OperatorFlags {
    /// Installs and starts the requested operators.
    async fn start(&self, cluster: &Cluster) -> Result<Option<Operators>> {
        let Some(replicas) = self.operator else { return Ok(None) };
        cluster.install_operator()?;
        let args = self.operator_args.iter().flat_map(|args| args.split_whitespace()).map(OsString::from).collect();
        Ok(Some(cluster.start_operators(&OperatorOptions { replicas, args, ..OperatorOptions::default() }).await?))
    }
}

#[derive(Debug, Args)]
struct ClusterFlags {
    /// Nodes simulated through the API [default: 3, or 0 with --real-nodes]
    #[arg(long, value_name = "N")]
    fake_nodes: Option<u32>,
    /// Nodes with a kubelet and containerd (root only)
    #[arg(long, value_name = "N", default_value_t = 0)]
    real_nodes: u32,
    #[command(flatten)]
    version: Version,
    /// The API server's port; a free one by default
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Write the administrator's kubeconfig to this file too; it must not exist, and is removed at exit
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Write the API server's audit log (metadata level) to logs/audit.log in the run's folder
    #[arg(long)]
    audit: bool,
    /// Seconds without a heartbeat after which a node is Unknown, at least 15 (nodes report every 10 s) [default:
    /// Kubernetes' own]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(15..))]
    node_grace: Option<u64>,
}

impl ClusterFlags {
    fn options(&self) -> Options {
        Options {
            fake_nodes: self.fake_nodes.unwrap_or(if self.real_nodes > 0 { 0 } else { 3 }),
            real_nodes: self.real_nodes,
            kube: self.version.kube,
            port: self.port,
            kubeconfig: self.kubeconfig.clone(),
            audit: self.audit,
            node_grace: self.node_grace.map(Duration::from_secs),
            progress: Progress::to_stderr(),
        }
    }
}

fn parse_tool(name: &str) -> Result<Tool, String> {
    let names: Vec<_> = Tool::all().map(Tool::name).collect();
    Tool::all().find(|tool| tool.name() == name).ok_or_else(|| format!("choose from {}", names.join(", ")))
}

/// The exit code of `run` when localkube itself fails.
const OWN_FAILURE: u8 = 125;

/// The exit codes for Ctrl-C and SIGTERM.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let failure = if matches!(cli.command, Verb::Run { .. }) { OWN_FAILURE } else { 1 };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("localkube: cannot start: {error}");
            return ExitCode::from(failure);
        }
    };
    let code = runtime.block_on(dispatch(cli.command)).unwrap_or_else(|error| {
        eprintln!("localkube: {error:#}");
        ExitCode::from(failure)
    });
    // Does not wait for a running build, which is killed with this process.
    runtime.shutdown_background();
    code
}

async fn dispatch(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Up { cluster, operator } => up(&cluster.options(), &operator).await,
        Verb::Run { cluster, operator, command } => run(&cluster.options(), &operator, &command).await,
        Verb::Guard { folder, command } => guard::guard(&folder, &command).await.map(exit_code),
        Verb::Build { version, tools, again } => build(version.kube, tools, again),
        Verb::Images { command, dir } => images(command, dir),
        Verb::Kubeconfig { account, kubeconfig } => print_kubeconfig(&account, &kubeconfig).await,
        Verb::Doctor { version, missing_packages } => doctor(version.kube, missing_packages),
    }
}

/// The signals that stop localkube: SIGINT, SIGTERM and SIGHUP.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stop {
    fn listen() -> Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup: signal(SignalKind::hangup())? })
    }

    /// Waits for a signal and returns its exit code.
    async fn asked(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => INTERRUPTED,
            _ = self.terminate.recv() => TERMINATED,
            _ = self.hangup.recv() => TERMINATED,
        }
    }
}

/// Starts a cluster unless a signal comes first; an aborted start cleans up.
async fn start(options: &Options, stop: &mut Stop) -> Result<Result<Cluster, ExitCode>> {
    tokio::select! {
        cluster = Cluster::start(options) => Ok(Ok(cluster?)),
        code = stop.asked() => {
            localkube::build::abort_builds();
            Ok(Err(ExitCode::from(code)))
        }
    }
}

async fn up(options: &Options, operator: &OperatorFlags) -> Result<ExitCode> {
    let mut stop = Stop::listen()?;
    let cluster = match start(options, &mut stop).await? {
        Ok(cluster) => cluster,
        Err(code) => return Ok(code),
    };
    let _operators = operator.start(&cluster).await?;
    let kubeconfig = std::path::absolute(options.kubeconfig.as_deref().unwrap_or(cluster.kubeconfig()))?;
    let paste = format!(
        "\nKubernetes is ready. In another terminal:\n\n  export KUBECONFIG={}\n  export PATH={}:$PATH LOCALKUBE_DIR={}\n  kubectl get nodes\n\nCtrl-C stops it and removes everything.\n",
        kubeconfig.display(),
        cluster.programs().display(),
        cluster.folder().display()
    );
    std::io::stdout().write_all(paste.as_bytes())?;
    tokio::select! {
        _ = stop.asked() => Ok(ExitCode::SUCCESS),
        death = cluster.death() => Err(death.into()),
    }
}

async fn run(options: &Options, operator: &OperatorFlags, command: &[OsString]) -> Result<ExitCode> {
    let mut stop = Stop::listen()?;
    let program = command.first().context("no command after --")?;
    // Checks the command before a cluster is started for it. kubectl comes with the cluster.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let name = program.to_string_lossy();
    if name != "kubectl" && localkube::process::find_program(&name, &path).is_none() {
        let there = name.contains('/') && Path::new(program).exists();
        eprintln!("localkube: {name}: {}", if there { "cannot be executed" } else { "command not found" });
        return Ok(ExitCode::from(if there { 126 } else { 127 }));
    }
    let cluster = match start(options, &mut stop).await? {
        Ok(cluster) => cluster,
        Err(code) => return Ok(code),
    };
    let _operators = operator.start(&cluster).await?;
    let mut guarded = guard::guarded(cluster.folder(), command)?;
    let mut child = guarded.envs(cluster.environment()).kill_on_drop(true).spawn().with_context(|| format!("cannot run {name}"))?;
    let mut asked_before = false;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(exit_code(status?)),
            death = cluster.death() => return Err(death.into()),
            // The second signal does not wait for the command.
            code = stop.asked() => if asked_before {
                return Ok(ExitCode::from(code));
            } else if code == TERMINATED {
                // Ctrl-C reaches the command through the terminal; SIGTERM has to be forwarded.
                guard::terminate_child(&child);
            },
        }
        asked_before = true;
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn build(kube: KubeVersion, tools: Vec<Tool>, again: bool) -> Result<ExitCode> {
    let cache = Cache::new(kube, Progress::to_stderr());
    let tools = if tools.is_empty() { Tool::all().collect() } else { tools };
    if again {
        tools.iter().try_for_each(|tool| cache.discard(*tool))?;
    }
    cache.ensure(tools.iter().copied())?;
    for tool in tools {
        println!("{}", cache.binary(tool)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn images(command: Option<ImagesVerb>, dir: Option<PathBuf>) -> Result<ExitCode> {
    let Some(dir) = dir else {
        if command.is_some() {
            bail!("which cluster? Set LOCALKUBE_DIR as `localkube up` prints it, or use --dir");
        }
        println!("Every cluster with real nodes starts with:");
        EXAMPLE_IMAGES.iter().for_each(|(name, _)| println!("  {name}"));
        println!("Set LOCALKUBE_DIR as `localkube up` prints it to see and push those of a running cluster.");
        return Ok(ExitCode::SUCCESS);
    };
    let registry = Registry::of_run(&dir)?;
    match command {
        None => registry.names().iter().for_each(|name| println!("{name}")),
        Some(ImagesVerb::Push { name, from, command }) => {
            let image = match from {
                None => localkube::game_image(name.rsplit(':').next().unwrap_or_default())?,
                Some(folder) => Image::new().folder(&folder)?.command(&command.iter().map(String::as_str).collect::<Vec<_>>()),
            };
            println!("{name}@{}", registry.push(&name, &image)?);
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn print_kubeconfig(account: &str, admin: &Path) -> Result<ExitCode> {
    let (namespace, name) = account.split_once('/').context("write the ServiceAccount as NAMESPACE/NAME")?;
    print!("{}", localkube::service_account_kubeconfig(admin, namespace, name).await?);
    Ok(ExitCode::SUCCESS)
}

fn doctor(kube: KubeVersion, missing_packages: bool) -> Result<ExitCode> {
    if missing_packages {
        println!("{}", localkube::doctor::missing_packages().join(" "));
        return Ok(ExitCode::SUCCESS);
    }
    let mut broken = false;
    for finding in localkube::doctor::examine(&Cache::new(kube, Progress::quiet())) {
        let scope = if finding.only_real_nodes { " (real nodes)" } else { "" };
        match finding.problem {
            None => println!("ok       {}{scope}", finding.subject),
            Some(problem) => {
                broken = true;
                println!("missing  {}{scope}: {problem}", finding.subject);
            }
        }
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
