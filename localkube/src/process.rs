//! Child processes that never outlive this one.
//!
//! Every daemon is started through `setpriv --pdeathsig KILL`, so the kernel kills it when this process dies, also by
//! `kill -9`. The signal is sent when the *thread* that started the child ends, hence one permanent thread starts them
//! all. Each daemon has its own process group: Ctrl-C reaches only this process.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use crate::error::{Doing, Error, Result};

/// The environment variable that identifies all processes of a run, descendants included, when the run ends.
pub const MARK: &str = "LOCALKUBE_STARTED_FOR";

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts `command` on a thread that lives as long as this process.
pub(crate) fn spawn_on_permanent_thread(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (send, receive) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in receive {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(send)
    });
    let (reply, answer) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    spawner.lock().unwrap_or_else(PoisonError::into_inner).send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

/// A command that is killed when this process dies.
pub(crate) fn bound_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A long-running part of a cluster.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    pid: u32,
    pidfd: OwnedFd,
    status: watch::Receiver<Option<String>>,
    waiter: Option<JoinHandle<()>>,
    log: PathBuf,
}

/// Writes a pid file so that a reader sees all of it or nothing.
pub fn write_pid(file: &Path, pid: u32) -> std::io::Result<()> {
    let new = file.with_extension("pid.new");
    fs::write(&new, pid.to_string())?;
    fs::rename(&new, file)
}

impl Daemon {
    /// Starts `command` (made by [`bound_command`]) with its output in `<run>/logs/<name>.log` and its pid in
    /// `<run>/<name>.pid`.
    pub(crate) fn start(name: &str, run: &Path, mut command: Command) -> Result<Self> {
        let log = run.join("logs").join(format!("{name}.log"));
        let out = File::create(&log).doing(|| format!("cannot create {}", log.display()))?;
        let err = out.try_clone().doing(|| format!("cannot open {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).current_dir(run);
        command.env(MARK, run).env("PATH", system_path());
        let mut child = spawn_on_permanent_thread(command).doing(|| format!("cannot start {name}"))?;
        let pid = child.id();
        let pidfd = match open_pidfd(pid) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(error).doing(|| format!("cannot watch {name}"));
            }
        };
        let (ended, status) = watch::channel(None);
        let waiter = std::thread::spawn(move || {
            let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let _ = ended.send(Some(how));
        });
        let daemon = Self { name: name.to_owned(), pid, pidfd, status, waiter: Some(waiter), log };
        let pid_file = run.join(format!("{name}.pid"));
        write_pid(&pid_file, pid).doing(|| format!("cannot write {}", pid_file.display()))?;
        Ok(daemon)
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The daemon's name in messages and log files.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the process has ended; the error says how.
    pub(crate) async fn ended(&self) -> Error {
        let mut status = self.status.clone();
        let how = status.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        let status = how.unwrap_or_else(|| "unknown".to_owned());
        Error::Died { name: self.name.clone(), status, log: self.log.clone(), tail: last_line(&self.log) }
    }
}

impl Drop for Daemon {
    /// Kills the process and waits for its end.
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

/// A handle on any process that stays valid when the pid is reused.
pub(crate) fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("not a pid"))?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Kills the process and waits up to two seconds for its end.
pub(crate) fn kill_and_wait(pidfd: &OwnedFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
    let limit = Timespec { tv_sec: 2, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit));
}

/// Kills every process with the value `value` of [`MARK`]: descendants of a command, and daemons whose parent died
/// before `setpriv` took effect.
pub(crate) fn kill_marked(value: &OsStr) {
    let mark = [MARK.as_bytes(), b"=", value.as_encoded_bytes()].concat();
    // A process may start another one during the search: repeat until none is found.
    for _ in 0..10 {
        if kill_with(&mark) == 0 {
            return;
        }
    }
}

/// Kills every process with this entry in its environment and returns how many there were.
fn kill_with(mark: &[u8]) -> usize {
    let mut killed = 0;
    for pid in fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        // The pidfd is opened before the check, so that a reused pid is never killed.
        let Ok(pidfd) = open_pidfd(pid) else { continue };
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|entry| entry == mark) {
            kill_and_wait(&pidfd);
            killed += 1;
        }
    }
    killed
}

/// Runs a short helper command to its end.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let line = || {
        let mut words = vec![command_word(command.get_program())];
        words.extend(command.get_args().map(command_word));
        words.join(" ")
    };
    let line = line();
    let output = command.stdin(Stdio::null()).env("PATH", system_path()).output().doing(|| format!("cannot run `{line}`"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Command { command: line, reason: one_line(&String::from_utf8_lossy(&output.stderr)) })
}

fn command_word(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

/// The last lines of a text, joined, for a one-line message.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let tail: Vec<_> = lines.iter().rev().take(3).rev().copied().collect();
    if tail.is_empty() { "no output".to_owned() } else { tail.join("; ") }
}

/// The last line of a log.
pub(crate) fn last_line(log: &Path) -> String {
    fs::read_to_string(log).map_or_else(|_| "nothing".to_owned(), |text| one_line(text.lines().last().unwrap_or_default()))
}

/// PATH with the folders of system programs, which a user's PATH may lack.
pub(crate) fn system_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

/// Where a program is on `path` (as in the PATH variable).
#[must_use]
pub fn find_program(name: &str, path: &OsStr) -> Option<PathBuf> {
    if name.contains('/') {
        return is_executable(Path::new(name)).then(|| PathBuf::from(name));
    }
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
