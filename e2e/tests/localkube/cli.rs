//! The `localkube` command as users run it.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::Suite;
use e2e::command::{finish, localkube, processes_of, program, signal, wait_for_line};
use rustix::process::Signal;

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(run_passes_the_exit_code_on_and_leaves_nothing);
    suite.alone(up_prints_what_to_paste_and_ends_with_ctrl_c);
    suite.alone(two_clusters_run_side_by_side);
    suite.alone(a_kubeconfig_for_a_service_account_is_printed);
    suite.alone(a_build_can_be_given_up);
    suite.alone(help_tells_every_flag);
}

async fn run_passes_the_exit_code_on_and_leaves_nothing(suite: Arc<Suite>) -> Result<()> {
    let mut command = localkube(&suite)?;
    let script = "kubectl get nodes -o name && echo dir=$LOCALKUBE_DIR && ls $LOCALKUBE_DIR/logs && exit 7";
    command.args(["run", "--fake-nodes", "2", "--", "sh", "-c", script]);
    let ended = finish(command).await?;
    ensure!(ended.code == Some(7), "exit code {:?}: {}", ended.code, ended.stderr);
    ensure!(ended.stdout.contains("node/fake-2") && ended.stdout.contains("kube-apiserver.log"), "{}", ended.stdout);
    let folder = ended.stdout.lines().find_map(|line| line.strip_prefix("dir=")).context("no folder")?;
    ensure!(!PathBuf::from(folder).exists(), "{folder} is still there");
    let left = processes_of(folder);
    ensure!(left.is_empty(), "processes {left:?} are left");
    Ok(())
}

async fn up_prints_what_to_paste_and_ends_with_ctrl_c(suite: Arc<Suite>) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let kubeconfig = scratch.path().join("config");
    let mut command = localkube(&suite)?;
    command.args(["up", "--fake-nodes", "1", "--kubeconfig"]).arg(&kubeconfig).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let pasted = wait_for_line(&mut child, "export PATH=").await?;
    let folder = pasted.rsplit("LOCALKUBE_DIR=").next().context("no folder")?.to_owned();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("export KUBECONFIG={}; {pasted}; kubectl get nodes -o name", kubeconfig.display())]);
    let nodes = finish(shell).await?;
    ensure!(nodes.stdout.contains("node/fake-1"), "{}{}", nodes.stdout, nodes.stderr);
    signal(&child, Signal::INT)?;
    let status = tokio::task::spawn_blocking(move || child.wait()).await??;
    ensure!(status.success(), "it ended with {status}");
    ensure!(!kubeconfig.exists() && !PathBuf::from(&folder).exists(), "files are left");
    ensure!(processes_of(&folder).is_empty(), "processes are left");
    Ok(())
}

async fn two_clusters_run_side_by_side(suite: Arc<Suite>) -> Result<()> {
    let meeting = tempfile::tempdir()?;
    let place = meeting.path().display().to_string();
    let start = |name: &'static str, other: &'static str| {
        let suite = Arc::clone(&suite);
        let place = place.clone();
        async move {
            let mut command = localkube(&suite)?;
            // Neither continues before the other has its cluster.
            let script = format!(
                "kubectl create namespace {name} && touch {place}/{name} && timeout 120 sh -c 'until [ -e {place}/{other} ]; do sleep 0.1; done' \
                 && kubectl get namespaces -o name"
            );
            command.args(["run", "--fake-nodes", "1", "--", "sh", "-c", &script]);
            finish(command).await
        }
    };
    let (one, two) = tokio::try_join!(start("only-in-one", "only-in-two"), start("only-in-two", "only-in-one"))?;
    for (ended, own, other) in [(&one, "only-in-one", "only-in-two"), (&two, "only-in-two", "only-in-one")] {
        ensure!(ended.code == Some(0), "{}", ended.stderr);
        ensure!(ended.stdout.contains(&format!("namespace/{own}")) && !ended.stdout.contains(other), "{}", ended.stdout);
    }
    Ok(())
}

async fn a_kubeconfig_for_a_service_account_is_printed(suite: Arc<Suite>) -> Result<()> {
    let mut command = localkube(&suite)?;
    let script = format!(
        "{program} kubeconfig default/default > $LOCALKUBE_DIR/account && KUBECONFIG=$LOCALKUBE_DIR/account kubectl auth whoami; \
         {program} kubeconfig default/nobody",
        program = program()?.display()
    );
    command.args(["run", "--fake-nodes", "0", "--", "sh", "-c", &script]);
    let ended = finish(command).await?;
    ensure!(ended.stdout.contains("system:serviceaccount:default:default"), "{}{}", ended.stdout, ended.stderr);
    ended.check(1, "ServiceAccount default/nobody")
}

async fn a_build_can_be_given_up(suite: Arc<Suite>) -> Result<()> {
    let cache = tempfile::tempdir()?;
    let mut command = localkube(&suite)?;
    command.env("LOCALKUBE_CACHE", cache.path()).args(["run", "--", "true"]).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // Progress is on standard error.
    let errors = child.stderr.take().context("no output")?;
    let said = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
        let building = lines.any(|line| line.contains("building etcd"));
        (building, lines)
    });
    let (building, lines) = said.await?;
    ensure!(building, "it did not start to build");
    let mark = format!("LOCALKUBE_STARTED_FOR=build-{}", child.id());
    e2e::eventually("no build was seen", || !processes_of(&mark).is_empty()).await?;
    signal(&child, Signal::TERM)?;
    let status = tokio::task::spawn_blocking(move || child.wait()).await??;
    drop(lines);
    ensure!(status.code() == Some(143), "it ended with {status}");
    ensure!(processes_of(&mark).is_empty(), "a build is still running");
    // The next build uses or removes what the cancelled build left in the cache.
    let (_, said) = super::input::build_etcd(&suite, cache.path()).await?;
    ensure!(said.contains("built etcd"), "{said}");
    let scratch = std::fs::read_dir(cache.path())?.flatten().any(|module| module.path().join("tmp").exists());
    ensure!(!scratch, "scratch files are left");
    Ok(())
}

async fn help_tells_every_flag(suite: Arc<Suite>) -> Result<()> {
    let mut command = localkube(&suite)?;
    command.args(["run", "--help"]);
    let help = finish(command).await?;
    ensure!(help.code == Some(0), "{}", help.stderr);
    for flag in ["--fake-nodes", "--real-nodes", "--kube", "--port", "--audit", "--node-grace", "125"] {
        ensure!(help.stdout.contains(flag), "{flag} is not in {}", help.stdout);
    }
    Ok(())
}
