//! Builds programs from a pinned Go module, and says how far it is.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Doing, Error, Result};
use crate::process::{MARK, bound_command, kill_marked, one_line};
use crate::progress::Progress;
use crate::tools::{GoProgram, Module};

/// How often it says how far it is.
const EVERY: Duration = Duration::from_secs(10);
/// How long a core compiles a package, on average: for the estimate before anything is compiled.
const PER_PACKAGE: Duration = Duration::from_millis(120);
/// How much of the time is linking, which cannot be counted.
const LINKING: f64 = 0.15;

/// No debug information, which the linker would drop.
const COMPILER_FLAGS: &str = "-gcflags=all=-dwarf=false";
/// Compilers end soon: most need not collect garbage at all.
const MEMORY_OF_COMPILERS: [(&str, &str); 2] = [("GOGC", "off"), ("GOMEMLIMIT", "1GiB")];

/// One `go build` of several programs of a module.
pub(crate) struct GoBuild<'a> {
    /// The folder with go.mod and go.sum, which may be written to.
    pub(crate) folder: &'a Path,
    pub(crate) module: &'a Module,
    pub(crate) programs: &'a [&'a GoProgram],
    pub(crate) progress: Progress,
}

impl GoBuild<'_> {
    /// Builds the programs into the folder `into`, each under its name.
    pub(crate) fn run(&self, into: &Path, scratch: &Path) -> Result<()> {
        let names = self.names();
        self.progress.say(&format!("building {names} (once)"));
        let (started, mut told) = (Instant::now(), Instant::now());
        let (mut modules, mut packages) = (0_usize, 0_usize);
        self.go(&["list", "-deps"], scratch, |line| {
            match line {
                Some(line) if line.starts_with("go: downloading ") => modules += 1,
                Some(_) => packages += 1,
                None => {}
            }
            if told.elapsed() >= EVERY {
                told = Instant::now();
                self.progress.say(&format!("{names}: downloading its sources, {modules} modules so far"));
            }
        })?;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let estimate = PER_PACKAGE.mul_f64(packages as f64 / cores as f64);
        let sources = format!("{modules} modules downloaded in {} s", started.elapsed().as_secs());
        self.progress.say(&format!("{names}: {sources}; {packages} packages to compile, {} on {cores} cores", minutes(estimate)));
        let (started, mut done, mut told) = (Instant::now(), 0_usize, Instant::now());
        let flags = self.module.linker_flags();
        let target = into.to_string_lossy();
        self.go(&["build", "-v", "-mod=readonly", "-trimpath", COMPILER_FLAGS, "-ldflags", &flags, "-o", &target], scratch, |line| {
            done += usize::from(line.is_some_and(|line| !line.contains(' ')));
            if told.elapsed() >= EVERY {
                told = Instant::now();
                self.progress.say(&format!("{names}: {}", how_far(done, packages, started.elapsed())));
            }
        })?;
        self.progress.say(&format!("built {names} in {} s", started.elapsed().as_secs()));
        Ok(())
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.programs.iter().map(|program| program.name).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
            None => String::new(),
        }
    }

    /// Runs go with the programs' packages, and reports each line of its output; also, once a second, that there is none.
    fn go(&self, arguments: &[&str], scratch: &Path, mut report: impl FnMut(Option<&str>)) -> Result<()> {
        let failed = |reason: String| Error::Build { tool: self.names(), reason };
        let (mine, theirs) = std::io::pipe().map_err(|error| failed(error.to_string()))?;
        let both = theirs.try_clone().map_err(|error| failed(error.to_string()))?;
        let mut command = bound_command("go");
        command
            .args(arguments)
            .args(self.programs.iter().map(|program| &program.package))
            .current_dir(self.folder)
            .env(MARK, build_mark())
            .envs([("CGO_ENABLED", "0"), ("GOFLAGS", ""), ("GOWORK", "off"), ("GOOS", "linux"), ("GOARCH", go_architecture())])
            .envs(MEMORY_OF_COMPILERS)
            .env("GOTMPDIR", scratch)
            .stdin(Stdio::null())
            .stdout(both)
            .stderr(theirs);
        let mut child = command.spawn().map_err(|error| failed(format!("cannot run go: {error}")))?;
        // The pipe ends when no process holds its other end any more.
        drop(command);
        let (send, lines) = channel();
        let reader = std::thread::spawn(move || {
            BufReader::new(mine).lines().map_while(std::result::Result::ok).try_for_each(|line| send.send(line)).is_ok()
        });
        let mut words = Vec::new();
        loop {
            match lines.recv_timeout(Duration::from_secs(1)) {
                Ok(line) => {
                    report(Some(&line));
                    // Other lines name packages.
                    words.extend(line.contains(' ').then_some(line));
                }
                Err(RecvTimeoutError::Timeout) => report(None),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let _ = reader.join();
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        if status.success() { Ok(()) } else { Err(failed(one_line(&words.join("\n")))) }
    }
}

/// How many packages are compiled, and how long the rest takes at this pace.
fn how_far(done: usize, all: usize, elapsed: Duration) -> String {
    let share = done as f64 / all.max(1) as f64 * (1.0 - LINKING);
    // The first packages say little.
    if done >= all {
        return "linking".to_owned();
    }
    if share < 0.05 {
        return format!("{done} of {all} packages");
    }
    format!("{done} of {all} packages, {} left", minutes(elapsed.mul_f64((1.0 - share) / share)))
}

fn minutes(time: Duration) -> String {
    match time.as_secs() {
        0..50 => "less than a minute".to_owned(),
        50..90 => "about a minute".to_owned(),
        seconds => format!("about {} minutes", (seconds + 30) / 60),
    }
}

/// Marks the builds of this process, so that they can be aborted.
fn build_mark() -> String {
    format!("build-{}", std::process::id())
}

/// Kills the builds of this process with all their child processes.
pub fn abort_builds() {
    kill_marked(build_mark().as_ref());
}

/// This machine's architecture, as named by Go and by image formats.
pub(crate) fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

const GET_GO: &str = "install Go from https://go.dev/dl and put it on PATH";

/// The version of the Go that builds a module, looked up once per process.
pub(crate) fn go_version(module: &Module) -> Result<String> {
    static KNOWN: Mutex<BTreeMap<&'static str, String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let needed = module.needed_go();
    if let Some(version) = known.get(needed) {
        return Ok(version.clone());
    }
    let version = ask_go_version(needed)?;
    known.insert(needed, version.clone());
    Ok(version)
}

fn ask_go_version(needed: &str) -> Result<String> {
    let output = Command::new("go").args(["env", "GOVERSION"]).current_dir("/").output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Missing { what: "Go".to_owned(), remedy: format!("{GET_GO}; {needed} or newer") });
        }
        other => other.doing(|| "cannot run go".to_owned())?,
    };
    let found = String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("go").to_owned();
    if version_numbers(&found) < version_numbers(needed) {
        return Err(Error::TooOld { what: "Go".to_owned(), found, need: format!("{needed} ({GET_GO})") });
    }
    Ok(found)
}

fn version_numbers(version: &str) -> Vec<u32> {
    version.split(['.', 'r', '-', '+', ' ']).map_while(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(version_numbers("1.9.4") < version_numbers("1.26.0"));
        assert!(version_numbers("1.26.8") >= version_numbers("1.26.0"));
        assert!(version_numbers("1.27rc1") >= version_numbers("1.26.0"));
        assert!(version_numbers("") < version_numbers("1.26.0"));
    }

    #[test]
    fn how_long_a_build_takes_is_told_once_it_can_be_told() {
        let seconds = Duration::from_secs;
        assert_eq!(how_far(20, 2_000, seconds(5)), "20 of 2000 packages");
        assert_eq!(how_far(1_000, 2_000, seconds(85)), "1000 of 2000 packages, about 2 minutes left");
        assert_eq!(how_far(1_900, 2_000, seconds(161)), "1900 of 2000 packages, less than a minute left");
        assert_eq!(how_far(2_000, 2_000, seconds(170)), "linking");
    }
}
