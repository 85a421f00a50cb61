//! One real node: its namespaces and the daemons inside.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cache::Cache;
use crate::controlplane::ControlPlane;
use crate::error::{Doing, Error, Result};
use crate::process::{Daemon, bound_command, kill_and_wait, open_pidfd, run};
use crate::real::network::Network;
use crate::real::{containerd, kubelet, wait_for_file};
use crate::registry::static_program;
use crate::rundir::RunDir;

/// Namespaces, held by a process of localkube.
#[derive(Debug)]
pub(crate) struct Namespaces {
    _holder: Daemon,
    pid: u32,
    pidfd: OwnedFd,
}

impl Namespaces {
    /// Creates the namespaces of `kinds` (flags of `unshare`) and runs `script` in them with the arguments `init` and
    /// `folder`; it ends with `exec` of `init`.
    pub(crate) fn hold(run_dir: &RunDir, name: &str, kinds: &[&str], script: &str, init: &Path, folder: &Path) -> Result<Self> {
        let mut command = bound_command("unshare");
        command.args(["--fork", "--kill-child=KILL"]).args(kinds).args(["--", "sh", "-ec", script, name]).arg(init).arg(folder);
        let holder = Daemon::start(name, run_dir.path(), command)?;
        let pid = wait_for_init(holder.pid(), init, run_dir.path(), name)?;
        let pidfd = open_pidfd(pid).doing(|| format!("cannot watch {name}"))?;
        Ok(Self { _holder: holder, pid, pidfd })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// `command`, run in the network namespace only.
    pub(crate) fn enter_network(&self, command: &Command) -> Command {
        let mut entered = Command::new("nsenter");
        entered.arg(format!("--target={}", self.pid)).args(["--net", "--"]).arg(command.get_program()).args(command.get_args());
        entered
    }

    /// `program`, run as if on the node. It dies with the node, and `nsenter` with this process.
    pub(crate) fn enter_all(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = bound_command("nsenter");
        command.arg(format!("--target={}", self.pid)).args(["--mount", "--net", "--pid", "--"]).arg(program);
        command
    }

    pub(crate) fn ip(&self, words: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(words.split(' '));
        run(&mut self.enter_network(&command)).map(drop)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // It would also die with the holder, but possibly after this returns.
        kill_and_wait(&self.pidfd);
    }
}

/// Waits until the child of `unshare` runs `init`, which only /proc shows, and returns its pid.
fn wait_for_init(holder: u32, init: &Path, run_dir: &Path, name: &str) -> Result<u32> {
    let init = fs::canonicalize(init).doing(|| format!("cannot find {}", init.display()))?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let children = fs::read_to_string(format!("/proc/{holder}/task/{holder}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
        if let Some(pid) = child.filter(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == init)) {
            return Ok(pid);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = fs::read_to_string(run_dir.join("logs").join(format!("{name}.log"))).unwrap_or_default();
    Err(Error::NotReady { what: format!("the namespaces of {name}"), after: Duration::from_secs(10), last: crate::process::one_line(&log) })
}

/// What starting a node needs.
pub(crate) struct Setup<'a> {
    pub(crate) run: &'a RunDir,
    pub(crate) cache: &'a Cache,
    pub(crate) plane: &'a ControlPlane,
    pub(crate) network: &'a Network,
    pub(crate) registry_port: u16,
}

/// A node with a kubelet.
#[derive(Debug)]
pub struct RealNode {
    number: u32,
    daemons: Vec<Daemon>,
    namespaces: Namespaces,
    folder: PathBuf,
}

/// Mounts of a node: it sees the host's files, but its /var/lib and /var/log are in the run's folder, and its /run is a
/// tmpfs. The kubelet requires some kernel settings: files with these values are mounted over /proc/sys, and the host
/// keeps its own.
const MOUNTS: &str = r#"
mount --bind "$2/lib" /var/lib
mount --bind "$2/log" /var/log
while read -r setting value; do
  if [ -e "/proc/sys/$setting" ]; then
    shown="$2/settings/$(echo "$setting" | tr / .)"
    echo "$value" > "$shown"
    mount --bind "$shown" "/proc/sys/$setting"
  fi
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
mount -t tmpfs tmpfs /run
exec "$1"
"#;

impl RealNode {
    pub(crate) fn create(run_dir: &RunDir, network: &Network, number: u32) -> Result<Self> {
        let name = name_of(number);
        let folder = run_dir.folder(&name)?;
        for part in ["lib", "log", "cni", "settings"] {
            run_dir.folder(Path::new(&name).join(part))?;
        }
        let kinds = ["--net", "--pid", "--mount", "--mount-proc"];
        let namespaces = Namespaces::hold(run_dir, &name, &kinds, MOUNTS, &static_program("pause")?, &folder)?;
        network.connect(number, &namespaces)?;
        Ok(Self { number, daemons: Vec::new(), namespaces, folder })
    }

    /// The name of the Node object.
    #[must_use]
    pub fn name(&self) -> String {
        name_of(self.number)
    }

    /// `command`, run in the node's network namespace.
    #[must_use]
    pub fn in_network(&self, command: &Command) -> Command {
        self.namespaces.enter_network(command)
    }

    /// The process that holds the node's namespaces.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.namespaces.pid()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    pub(crate) fn daemons(&self) -> &[Daemon] {
        &self.daemons
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn daemon(&mut self, setup: &Setup<'_>, part: &str, command: Command) -> Result<()> {
        let daemon = Daemon::start(&format!("{}-{part}", self.name()), setup.run.path(), command)?;
        self.daemons.push(daemon);
        Ok(())
    }

    pub(crate) fn start_containerd(&mut self, setup: &Setup<'_>) -> Result<()> {
        let config = containerd::configure(self, setup)?;
        let mut command = self.namespaces.enter_all("containerd");
        command.arg("--config").arg(config);
        self.daemon(setup, "containerd", command)
    }

    pub(crate) async fn wait_containerd(&self) -> Result<()> {
        let socket = PathBuf::from(format!("/proc/{}/root{}", self.pid(), containerd::SOCKET));
        match self.daemons.first() {
            Some(containerd) => wait_for_file(&socket, "containerd", containerd).await,
            None => Ok(()),
        }
    }

    pub(crate) fn start_kubelet(&mut self, setup: &Setup<'_>) -> Result<()> {
        let command = kubelet::kubelet(self, setup)?;
        self.daemon(setup, "kubelet", command)
    }

    pub(crate) fn start_proxy(&mut self, setup: &Setup<'_>) -> Result<()> {
        let command = kubelet::proxy(self, setup)?;
        self.daemon(setup, "kube-proxy", command)
    }
}

fn name_of(number: u32) -> String {
    format!("real-{number}")
}
