//! The operator on a localkube cluster: installed from the chart's CRDs, roles and ServiceAccount, run as child
//! processes and restarted when they die, as by a kubelet.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::error::{Doing, Error, Result};
use crate::process::{Daemon, bound_command};

/// What `kubectl create -f deploy/` installs, except the Deployment.
const MANIFESTS: [&str; 5] = [
    include_str!("../../deploy/01-resources.yaml"),
    include_str!("../../deploy/02-namespace.yaml"),
    include_str!("../../deploy/03-rbac.yaml"),
    include_str!("../../deploy/05-pod-protection.yaml"),
    include_str!("../../deploy/06-hook-approvals.yaml"),
];

/// The namespace of the operator.
pub const NAMESPACE: &str = "bcs-system";
/// The ServiceAccount of the operator.
pub const SERVICE_ACCOUNT: &str = "gameplane";

/// Delay of the first restart; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// How the operator runs.
#[derive(Debug, Clone)]
pub struct OperatorOptions {
    /// How many processes. They elect a leader.
    pub replicas: u32,
    /// Further arguments.
    pub args: Vec<OsString>,
    /// A kubeconfig instead of the ServiceAccount's.
    pub kubeconfig: Option<PathBuf>,
    /// The longest delay of a restart.
    pub longest_pause: Duration,
}

impl Default for OperatorOptions {
    fn default() -> Self {
        Self { replicas: 1, args: Vec::new(), kubeconfig: None, longest_pause: Duration::from_secs(10) }
    }
}

/// Running operators. Dropping them stops them.
#[derive(Debug)]
pub struct Operators {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Operators {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Operators {
    /// Stops the operators and returns when they have ended.
    pub async fn stop(mut self) {
        for task in std::mem::take(&mut self.tasks) {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Cluster {
    /// Installs CRDs, namespace, roles and ServiceAccount, as the chart does.
    pub fn install_operator(&self) -> Result<()> {
        let mut apply = self
            .kubectl()
            .args(["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .doing(|| "cannot run kubectl".to_owned())?;
        if let Some(mut stdin) = apply.stdin.take() {
            std::io::Write::write_all(&mut stdin, MANIFESTS.join("\n---\n").as_bytes()).doing(|| "cannot talk to kubectl".to_owned())?;
        }
        let output = apply.wait_with_output().doing(|| "cannot run kubectl".to_owned())?;
        if !output.status.success() {
            return Err(Error::Invalid(format!("the operator cannot be installed: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        let wait = self.kubectl().args(["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).output();
        let wait = wait.doing(|| "cannot run kubectl".to_owned())?;
        if !wait.status.success() {
            return Err(Error::Invalid(format!("the CRDs are not served: {}", String::from_utf8_lossy(&wait.stderr).trim())));
        }
        Ok(())
    }

    /// Starts operators under their ServiceAccount. Their pids are in `operator-<i>.pid` of the run's folder, their
    /// logs in `logs/operator-<i>.log`.
    pub async fn start_operators(&self, options: &OperatorOptions) -> Result<Operators> {
        let program = program()?;
        let kubeconfig = match &options.kubeconfig {
            Some(kubeconfig) => kubeconfig.clone(),
            None => self.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT).await?,
        };
        let mut tasks = Vec::new();
        for number in 1..=options.replicas {
            let name = format!("operator-{number}");
            let (program, kubeconfig, args) = (program.clone(), kubeconfig.clone(), options.args.clone());
            let folder = self.folder().to_owned();
            let command = move || {
                let mut command = bound_command(&program);
                command.arg("--kubeconfig").arg(&kubeconfig).args(["--listen", "127.0.0.1:0", "--log-format", "text"]);
                command.args(["--leader-elect-namespace", NAMESPACE]).args(&args);
                command
            };
            // An error of the first start is returned; later ones are retried.
            let first = Daemon::start(&name, &folder, command())?;
            tasks.push(tokio::spawn(supervise(name, folder, first, options.longest_pause, command)));
        }
        Ok(Operators { tasks })
    }
}

/// Keeps one operator running.
async fn supervise(name: String, folder: PathBuf, first: Daemon, longest: Duration, command: impl Fn() -> Command + Send + 'static) {
    let folder: Arc<Path> = folder.into();
    let (mut daemon, mut pause) = (first, Duration::ZERO);
    loop {
        let started = Instant::now();
        daemon.ended().await;
        // A process that ran for a while is restarted at once.
        pause = if started.elapsed() > longest { Duration::ZERO } else { (pause * 2).max(FIRST_PAUSE).min(longest) };
        tokio::time::sleep(pause).await;
        let log = |end: &str| folder.join(format!("logs/{name}{end}"));
        let _ = std::fs::rename(log(".log"), log(".previous.log"));
        match Daemon::start(&name, &folder, command()) {
            Ok(next) => daemon = next,
            Err(error) => {
                let _ = std::fs::write(log(".log"), format!("cannot be started again: {error}\n"));
            }
        }
    }
}

/// Which operator is started instead of the one that was built with this program.
const PROGRAM_VARIABLE: &str = "OPERATOR_PROGRAM";

/// The built operator: beside this program, or beside the folder that this program is in.
fn program() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from) {
        let missing = || Error::Invalid(format!("{PROGRAM_VARIABLE} names {}, which is not a file", named.display()));
        return if named.is_file() { Ok(named) } else { Err(missing()) };
    }
    let own = std::env::current_exe().doing(|| "cannot find this program".to_owned())?;
    let beside = own.ancestors().skip(1).take(3).map(|folder| folder.join("gameplane-operator")).find(|path| path.is_file());
    beside.ok_or_else(|| Error::Invalid("the operator is not built: run `make build`".to_owned()))
}
