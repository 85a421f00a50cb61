//! The process between `localkube run` and its command.
//!
//! When localkube dies, also by `kill -9`, the kernel sends it SIGUSR2; it then kills the command with all its child
//! processes and removes the run. SIGTERM is forwarded to the command.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

/// The process that `localkube run` starts: a guard that runs `command`.
pub(crate) fn guarded(folder: &Path, command: &[OsString]) -> Result<tokio::process::Command> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut guarded = tokio::process::Command::new("setpriv");
    guarded.args(["--pdeathsig", "USR2", "--"]).arg(own).arg("guard").arg(folder).arg("--").args(command);
    Ok(guarded)
}

/// `localkube guard`: runs the command and returns its exit status.
pub(crate) async fn guard(folder: &Path, command: &[OsString]) -> Result<ExitStatus> {
    let mut orphaned = signal(SignalKind::user_defined2())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Ctrl-C reaches the command as well, which handles it.
    let mut interrupt = signal(SignalKind::interrupt())?;
    localkube::process::write_pid(&folder.join("guard.pid"), std::process::id())?;
    let mut bound = Command::new("setpriv");
    bound.args(["--pdeathsig", "KILL", "--"]).args(command).env(localkube::process::MARK, folder);
    let mut child = tokio::process::Command::from(bound).spawn().context("cannot start the command")?;
    loop {
        tokio::select! {
            status = child.wait() => return Ok(status?),
            _ = terminate.recv() => terminate_child(&child),
            _ = interrupt.recv() => {}
            _ = orphaned.recv() => {
                child.kill().await?;
                localkube::reclaim_run(folder);
                return Ok(child.wait().await?);
            }
        }
    }
}

/// Sends SIGTERM to a child.
pub(crate) fn terminate_child(child: &tokio::process::Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM);
    }
}
