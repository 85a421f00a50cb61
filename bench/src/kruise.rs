//! OpenKruise: its manifests without their pods, and its manager as a child process.

use std::ffi::OsString;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use localkube::process::Daemon;
use localkube::{Cache, Cluster, GoProgram, Module, Pace};

static MODULE: Module =
    Module { name: "kruise", go_mod: include_str!("../peers/kruise/go.mod"), go_sum: include_str!("../peers/kruise/go.sum") };
const SOURCE: &str = "github.com/openkruise/kruise";
const NAMESPACE: &str = "kruise-system";
const READY_WITHIN: Duration = Duration::from_secs(120);

/// The name of the process in the run's folder.
pub(crate) const PROCESS: &str = "kruise-manager";

/// The path of the manager, built if needed.
pub(crate) fn build(cache: &Cache) -> Result<PathBuf> {
    Ok(cache.program(&GoProgram { name: PROCESS, package: SOURCE.to_owned(), module: &MODULE })?)
}

/// Installs OpenKruise and runs its manager until the result is dropped, unlimited or with its default rate limit. Its
/// webhooks then intercept every pod, so other contenders cannot be measured on this cluster afterwards.
pub(crate) async fn start(cluster: &Cluster, pace: Pace) -> Result<Daemon> {
    let binary = build(cluster.cache())?;
    // A manager that ran before has changed the installed objects: they are not applied again.
    if !cluster.kubectl().args(["get", "crd", "clonesets.apps.kruise.io"]).output()?.status.success() {
        let manifests = render(cluster, &sources(&binary)?)?;
        let apply = pipe(cluster.kubectl().args(["apply", "--server-side", "-f", "-"]), &manifests)?;
        ensure!(apply.status.success(), "OpenKruise cannot be installed: {}", String::from_utf8_lossy(&apply.stderr));
    }
    let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, PROCESS).await?;
    let certificates = cluster.folder().join("kruise-certificates");
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let mut arguments = vec![OsString::from("--kubeconfig"), kubeconfig.into()];
    let flags = ["--enable-leader-election=false", "--enable-pprof=false", "--metrics-addr=127.0.0.1:0", "--health-probe-addr=127.0.0.1:0"];
    arguments.extend(flags.map(OsString::from));
    if pace == Pace::Unlimited {
        arguments.extend(["--rest-config-qps=5000", "--rest-config-burst=10000"].map(OsString::from));
    }
    let environment = [
        ("POD_NAMESPACE", NAMESPACE.into()),
        ("WEBHOOK_HOST", "127.0.0.1".into()),
        ("WEBHOOK_PORT", port.to_string().into()),
        ("WEBHOOK_CERT_DIR", certificates.into()),
    ];
    let manager = cluster.run_beside(PROCESS, &binary, &arguments, &environment)?;
    wait_answering(cluster).await?;
    Ok(manager)
}

/// The directory of the module's sources.
fn sources(binary: &Path) -> Result<PathBuf> {
    let folder = binary.ancestors().nth(2).context("the manager is in no folder")?;
    let list = Command::new("go").args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", SOURCE]).current_dir(folder).output()?;
    let text = String::from_utf8(list.stdout)?;
    ensure!(list.status.success() && !text.trim().is_empty(), "go does not say where {SOURCE} is");
    Ok(text.trim().into())
}

/// Its manifests without the manager and the node daemon.
fn render(cluster: &Cluster, sources: &Path) -> Result<String> {
    let output = cluster.kubectl().arg("kustomize").arg(sources.join("config/default")).output()?;
    ensure!(output.status.success(), "OpenKruise's manifests cannot be rendered: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let runs = |manifest: &&str| manifest.lines().any(|line| ["kind: Deployment", "kind: DaemonSet"].contains(&line));
    Ok(text.split("\n---\n").filter(|manifest| !runs(manifest)).collect::<Vec<_>>().join("\n---\n"))
}

/// Waits until its webhooks answer for a CloneSet and for a pod.
async fn wait_answering(cluster: &Cluster) -> Result<()> {
    const PROBE: &str = concat!(
        r#"{"apiVersion":"apps.kruise.io/v1alpha1","kind":"CloneSet","metadata":{"name":"probe","namespace":"default"},"spec":{"replicas":0,"#,
        r#""selector":{"matchLabels":{"app":"probe"}},"template":{"metadata":{"labels":{"app":"probe"}},"spec":{"containers":[{"name":"a","image":"a"}]}}}}"#,
        "\n---\n",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"probe","namespace":"default"},"spec":{"containers":[{"name":"a","image":"a"}]}}"#,
    );
    let mut last = String::new();
    let answering = async {
        loop {
            let create = pipe(cluster.kubectl().args(["create", "--dry-run=server", "-f", "-"]), PROBE)?;
            // Nothing announces that a webhook listens: retry until a dry run succeeds.
            if create.status.success() {
                return Ok(());
            }
            last = String::from_utf8_lossy(&create.stderr).trim().to_owned();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    match tokio::time::timeout(READY_WITHIN, answering).await {
        Ok(answer) => answer,
        Err(_) => bail!("OpenKruise does not answer: {last}"),
    }
}

fn pipe(command: &mut Command, input: &str) -> Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no input")?;
    // Input larger than the pipe's buffer must be written while output is read.
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output();
        let written = writer.join();
        let output = output?;
        ensure!(written.is_ok_and(|written| written.is_ok()) || !output.status.success(), "kubectl did not read its input");
        Ok(output)
    })
}
