//! However localkube ends, nothing is left: no process, mount, interface, firewall rule, port, cgroup or folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::command::{finish, localkube, processes_of, signal, wait_for_line};
use e2e::{Suite, eventually};
use rustix::process::Signal;

pub(crate) fn add(suite: &Arc<Suite>) {
    // Recorded before any test has started a cluster.
    let before = Arc::new(traces("no-folder", "no-interface"));
    let untouched = Arc::clone(&before);
    suite.named("localkube::cleanup::kill_9_with_fake_nodes_leaves_nothing", move |suite| killed(suite, "--fake-nodes", untouched));
    suite.alone(killed_with_its_guard);
    if rustix::process::geteuid().is_root() {
        suite.named("localkube::cleanup::kill_9_with_real_nodes_leaves_nothing", move |suite| killed(suite, "--real-nodes", before));
    } else {
        suite.skip("localkube::cleanup::kill_9_with_real_nodes_leaves_nothing");
    }
}

/// What a cluster changes on the host, apart from its processes.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    mounts: BTreeSet<String>,
    interfaces: BTreeSet<String>,
    rules: String,
    settings: Vec<String>,
    plugin_folder: bool,
}

fn output(program: &str, words: &[&str]) -> String {
    // A program that is not installed has left nothing.
    Command::new(program).args(words).output().map_or_else(|_| String::new(), |out| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Kernel settings that a kubelet changes if it can.
const SETTINGS: [&str; 4] =
    ["/proc/sys/vm/overcommit_memory", "/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops"];

/// Whether a process sees a mounted replacement for each of these settings. Their values alone would prove nothing on a
/// machine that had them before.
fn sees_stand_ins(pid: u32) -> bool {
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    SETTINGS.iter().all(|setting| mounts.lines().any(|line| line.split(' ').any(|word| word == *setting)))
}

fn traces(folder: &str, interface: &str) -> Traces {
    let of_run = |text: &str| text.lines().filter(|line| line.contains(folder)).map(str::to_owned).collect();
    let setting = |name: &&str| std::fs::read_to_string(name).unwrap_or_default();
    Traces {
        mounts: of_run(&std::fs::read_to_string("/proc/mounts").unwrap_or_else(|error| format!("{folder}: {error}"))),
        interfaces: output("ip", &["-brief", "link"]).lines().filter(|line| line.contains(interface)).map(str::to_owned).collect(),
        rules: output("nft", &["--stateless", "list", "ruleset"]),
        settings: SETTINGS.iter().chain(&["/proc/sys/net/ipv4/ip_forward"]).map(setting).collect(),
        plugin_folder: Path::new("/usr/libexec/kubernetes").exists(),
    }
}

fn cgroups(mark: &str) -> Vec<PathBuf> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let groups = hierarchies.filter_map(|hierarchy| std::fs::read_dir(hierarchy).ok()).flatten().flatten().map(|entry| entry.path());
    groups.filter(|path| path.to_string_lossy().contains(mark)).collect()
}

/// How many processes there are in containers of the run: they can be recognised only by their cgroup.
fn contained(mark: &str) -> usize {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter(|entry| std::fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|groups| groups.contains(mark))).count()
}

/// The network, mount and pid namespaces of a process.
fn namespaces_of(pid: &str) -> BTreeSet<PathBuf> {
    ["net", "mnt", "pid"].iter().filter_map(|kind| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()).collect()
}

/// The namespaces that any process is in, or that a mount keeps.
fn namespaces_in_use() -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mounted = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let kept = mounted.lines().filter_map(|line| line.split(' ').find(|word| word.starts_with("net:[")).map(PathBuf::from));
    pids.flat_map(|pid| namespaces_of(&pid.to_string())).chain(kept).collect()
}

fn is_kubelet(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("kubelet"))
}

fn mark_of(folder: &str) -> Result<String> {
    Ok(format!("localkube-{}-", Path::new(folder).file_name().context("no name")?.to_string_lossy()))
}

async fn killed(suite: Arc<Suite>, nodes: &str, before: Arc<Traces>) -> Result<()> {
    // A folder of its own for its runs: the start of another test must not clean up what this test checks.
    let runs = tempfile::tempdir()?;
    let mut command = localkube(&suite)?;
    let script = "sleep 600 & kubectl create deployment game --image=main:v1 --replicas=2 >&2 \
        && kubectl rollout status deployment/game --timeout=120s >&2 \
        && echo ready $LOCALKUBE_DIR $(kubectl config view -o jsonpath={.clusters[0].cluster.server}) ; wait";
    command.env("LOCALKUBE_RUNS", runs.path()).args(["run", nodes, "1", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let line = wait_for_line(&mut child, "ready ").await?;
    let words: Vec<&str> = line.split(' ').collect();
    let [_, folder, server] = words.as_slice() else { anyhow::bail!("unexpected {line:?}") };
    let server = server.to_owned();
    let address = server.trim_start_matches("https://").to_owned();
    let subnet = address.split('.').nth(1).unwrap_or_default();
    let interface = if nodes == "--real-nodes" { format!("localkube{subnet}") } else { "no-interface".to_owned() };
    ensure!(processes_of(folder).len() >= 6, "no daemons were found: the check below would prove nothing");
    ensure!(traces(folder, &interface).interfaces.is_empty() == (nodes == "--fake-nodes"), "the cable was not found");
    let mark = mark_of(folder)?;
    ensure!((contained(&mark) == 0) == (nodes == "--fake-nodes"), "no container was found: the check below would prove nothing");
    let own = namespaces_of("self");
    let namespaces: BTreeSet<_> =
        processes_of(folder).iter().flat_map(|pid| namespaces_of(&pid.to_string())).filter(|id| !own.contains(id)).collect();
    ensure!(namespaces.is_empty() == (nodes == "--fake-nodes"), "no namespace was found: the check below would prove nothing");
    let kubelets = processes_of(folder).into_iter().filter(|pid| is_kubelet(*pid)).collect::<Vec<_>>();
    ensure!(kubelets.is_empty() == (nodes == "--fake-nodes"), "no kubelet was found: the check below would prove nothing");
    ensure!(kubelets.iter().all(|pid| sees_stand_ins(*pid)), "a kubelet sees the host's settings");
    signal(&child, Signal::KILL)?;
    tokio::task::spawn_blocking(move || child.wait()).await??;
    eventually("processes are left", || processes_of(folder).is_empty()).await?;
    eventually("processes in containers are left", || contained(&mark) == 0).await?;
    eventually("mounts or interfaces are left", || {
        let left = traces(folder, &interface);
        left.mounts.is_empty() && left.interfaces.is_empty()
    })
    .await?;
    eventually("namespaces are left, and with them mounts", || namespaces_in_use().is_disjoint(&namespaces)).await?;
    let after = traces(folder, &interface);
    let same = after.rules == before.rules && after.settings == before.settings && after.plugin_folder == before.plugin_folder;
    ensure!(same, "the host was changed: {before:?} {after:?}");
    let socket: std::net::SocketAddr = address.parse()?;
    eventually("the port is still taken", || std::net::TcpStream::connect_timeout(&socket, Duration::from_millis(200)).is_err()).await?;
    eventually("the folder is left", || !Path::new(folder).exists()).await?;
    eventually("cgroups are left", || cgroups(&mark).is_empty()).await
}

/// If the guard is killed as well, the command's background processes and the folder are cleaned up by the next start.
async fn killed_with_its_guard(suite: Arc<Suite>) -> Result<()> {
    let runs = tempfile::tempdir()?;
    let mut command = localkube(&suite)?;
    command.env("LOCALKUBE_RUNS", runs.path());
    command.args(["run", "--fake-nodes", "0", "--", "sh", "-c", "sleep 600 & echo ready $LOCALKUBE_DIR; wait"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let line = wait_for_line(&mut child, "ready ").await?;
    let folder = line.trim_start_matches("ready ");
    let guard: i32 = std::fs::read_to_string(Path::new(folder).join("guard.pid"))?.parse()?;
    let guard = rustix::process::Pid::from_raw(guard).context("no pid")?;
    // Stopped first: if it were killed first, localkube would notice the end of its command and clean up.
    rustix::process::kill_process(guard, Signal::STOP)?;
    signal(&child, Signal::KILL)?;
    rustix::process::kill_process(guard, Signal::KILL)?;
    tokio::task::spawn_blocking(move || child.wait()).await??;
    reclaimed_by_next_start(&suite, runs.path(), folder).await
}

async fn reclaimed_by_next_start(suite: &Suite, runs: &Path, folder: &str) -> Result<()> {
    ensure!(Path::new(folder).exists(), "the folder of the killed run was expected to be left for the next start");
    ensure!(!processes_of(folder).is_empty(), "nothing was left: the check below would prove nothing");
    let mut command = localkube(suite)?;
    command.env("LOCALKUBE_RUNS", runs).args(["run", "--fake-nodes", "0", "--", "true"]);
    let ended = finish(command).await?;
    ensure!(ended.code == Some(0), "{}", ended.stderr);
    ensure!(!Path::new(folder).exists(), "{folder} is still there");
    ensure!(processes_of(folder).is_empty(), "processes are left");
    Ok(())
}
