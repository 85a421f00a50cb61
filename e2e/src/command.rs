//! The programs of this repository, run as a user runs them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::scene::{root, run};
use crate::suite::Suite;

/// The built `localkube`, beside the folder of this test.
pub fn program() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let found = here.ancestors().skip(1).map(|folder| folder.join("localkube")).find(|file| file.is_file());
    found.context("localkube is not built in this profile: use `make test`, or build it with the same flags first")
}

/// `localkube` with the version under test.
pub fn localkube(suite: &Suite) -> Result<Command> {
    let mut command = Command::new(program()?);
    command.env("KUBE", suite.kube().minor()).env_remove("LOCALKUBE_DIR").env_remove("KUBECONFIG").stdin(Stdio::null());
    Ok(command)
}

/// The path of a tool that `xtask` provides, by its name.
pub fn tool(name: &str) -> Result<String> {
    Ok(run(Command::new(program()?.with_file_name("xtask")).arg(name), "")?.trim().to_owned())
}

/// One template of the chart, with a value set.
pub fn chart(template: &str, value: &str) -> Result<String> {
    let mut helm = Command::new(tool("helm")?);
    helm.args(["template", "gameplane"]).arg(root().join("chart")).args(["--namespace=bcs-system", "--kube-version=1.35.0"]);
    run(helm.arg(format!("--set={value}")).arg(format!("--show-only=templates/{template}")), "")
}

/// A finished command.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }
}

impl Ended {
    /// Fails unless it ended with this exit code and exactly one error line, which contains these words.
    pub fn check(&self, code: i32, words: &str) -> Result<()> {
        ensure!(self.code == Some(code), "exit code {:?} instead of {code}: {}", self.code, self.stderr);
        // localkube's own errors, without its progress.
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("localkube: ")).collect();
        ensure!(errors.len() == 1, "expected one error line: {}", self.stderr);
        ensure!(errors.iter().any(|line| line.contains(words)), "{words:?} is not in {errors:?}");
        Ok(())
    }
}

/// Runs a command to its end without blocking the other tests.
pub async fn finish(mut command: Command) -> Result<Ended> {
    Ok(tokio::task::spawn_blocking(move || command.output()).await??.into())
}

/// Sends a signal to a running command.
pub fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("no pid")?;
    Ok(kill_process(pid, signal)?)
}

/// The first line of a running command's output that contains `words`.
pub async fn wait_for_line(child: &mut Child, words: &'static str) -> Result<String> {
    let output = child.stdout.take().context("no output")?;
    tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.find(|line| line.contains(words)).with_context(|| format!("it ended without printing {words:?}"))
    })
    .await?
}

/// Processes that belong to the run in `folder`, whatever their name.
#[must_use]
pub fn processes_of(folder: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(folder)
    })
    .collect()
}
