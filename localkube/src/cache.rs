//! Kubernetes binaries, built from pinned Go modules into a cache outside the checkout.
//!
//! A module is a go.mod and a go.sum in this crate (`kube/`, `etcd/`, …), compiled into the program, so that it works
//! from anywhere. The cache folder of a module is named by a hash of both files, the flags and the Go version, so a
//! change creates a new folder. A build holds a file lock, writes to a temporary name and renames it; the recorded size
//! and checksum tell a complete binary from a damaged one.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Doing, Error, Result};
use crate::process::{MARK, bound_command, kill_marked, one_line};
use crate::progress::Progress;
use crate::rundir::check_space;
use crate::tools::{GoProgram, KubeVersion, Module, Tool};

/// Environment variable that overrides the folder of the binaries.
pub const CACHE_VARIABLE: &str = "LOCALKUBE_CACHE";
/// Disk space that building and keeping one binary needs.
const NEEDED_MIB: u64 = 500;

/// What a finished build records about its binary.
#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    size: u64,
    sha256: String,
}

/// Binaries of one Kubernetes version.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    kube: KubeVersion,
    progress: Progress,
}

impl Cache {
    /// The cache of this user for `kube`.
    #[must_use]
    pub fn new(kube: KubeVersion, progress: Progress) -> Self {
        Self { root: cache_root(), kube, progress }
    }

    /// Builds the tools that are not in the cache. Returns at the first that cannot be built.
    pub fn ensure(&self, tools: impl IntoIterator<Item = Tool>) -> Result<()> {
        tools.into_iter().try_for_each(|tool| self.binary(tool).map(drop))
    }

    /// The path of one tool, built if it is not in the cache.
    pub fn binary(&self, tool: Tool) -> Result<PathBuf> {
        self.program(&tool.program(self.kube))
    }

    /// The path of any program with a pinned module, built if it is not in the cache. The module's files are in the
    /// folder above `bin`.
    pub fn program(&self, tool: &GoProgram) -> Result<PathBuf> {
        let folder = self.folder(tool)?;
        let binary = folder.join("bin").join(tool.name);
        if is_whole(&binary) {
            return Ok(binary);
        }
        let lock = self.lock(&folder, tool)?;
        if !is_whole(&binary) {
            if binary.exists() {
                self.progress.say(&format!("{} is damaged: building it again", binary.display()));
            }
            self.build(tool, &folder, &binary)?;
        }
        drop(lock);
        Ok(binary)
    }

    /// Whether the tool's checksum still matches; none if it is not built.
    pub fn inspect(&self, tool: Tool) -> Result<Option<bool>> {
        let binary = self.folder(&tool.program(self.kube))?.join("bin").join(tool.name());
        if !binary.exists() {
            return Ok(None);
        }
        let whole = read_receipt(&binary).is_some_and(|receipt| checksum(&binary).is_ok_and(|sum| sum == receipt.sha256));
        Ok(Some(whole))
    }

    /// Removes a tool's binary, so that the next use builds it.
    pub fn discard(&self, tool: Tool) -> Result<()> {
        let binary = self.folder(&tool.program(self.kube))?.join("bin").join(tool.name());
        match fs::remove_file(&binary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).doing(|| format!("cannot remove {}", binary.display()))
            }
            _ => Ok(()),
        }
    }

    fn folder(&self, tool: &GoProgram) -> Result<PathBuf> {
        let module = tool.module;
        let version = go_version(module)?;
        let mut hash = Sha256::new();
        for part in [module.go_mod, module.go_sum, &module.linker_flags(), &version, std::env::consts::ARCH] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let key: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(self.root.join(format!("{}-{key}", module.name)))
    }

    /// Locks a module, so that one process builds it at a time. The kernel releases the lock when the process dies.
    fn lock(&self, folder: &Path, tool: &GoProgram) -> Result<File> {
        fs::create_dir_all(folder.join("bin")).doing(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join("lock");
        let lock =
            OpenOptions::new().create(true).write(true).truncate(false).open(&path).doing(|| format!("cannot open {}", path.display()))?;
        if lock.try_lock().is_err() {
            self.progress.say(&format!("waiting for another build of {} to finish", tool.name));
            lock.lock().doing(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(lock)
    }

    fn build(&self, tool: &GoProgram, folder: &Path, binary: &Path) -> Result<()> {
        let module = tool.module;
        check_space(folder, NEEDED_MIB, CACHE_VARIABLE)?;
        for (name, content) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
            fs::write(folder.join(name), content).doing(|| format!("cannot write {name} in {}", folder.display()))?;
        }
        // May hold the remains of a build that was killed.
        let scratch = folder.join("tmp");
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).doing(|| format!("cannot create {}", scratch.display()))?;
        let unfinished = folder.join("bin").join(format!(".{}.unfinished", tool.name));
        let mut command = bound_command("go");
        command
            .args(["build", "-mod=readonly", "-trimpath", "-ldflags", &module.linker_flags(), "-o"])
            .arg(&unfinished)
            .arg(&tool.package)
            .current_dir(folder)
            .env(MARK, build_mark())
            .envs([("CGO_ENABLED", "0"), ("GOFLAGS", ""), ("GOWORK", "off"), ("GOOS", "linux"), ("GOARCH", go_architecture())])
            .env("GOTMPDIR", &scratch);
        let built = self.run_with_progress(tool, command);
        let _ = fs::remove_dir_all(&scratch);
        built?;
        File::open(&unfinished).and_then(|file| file.sync_all()).doing(|| format!("cannot write {}", unfinished.display()))?;
        let receipt = Receipt {
            size: fs::metadata(&unfinished).doing(|| format!("cannot read {}", unfinished.display()))?.len(),
            sha256: checksum(&unfinished).doing(|| format!("cannot read {}", unfinished.display()))?,
        };
        let note = serde_json::to_vec(&receipt).doing(|| "cannot describe the build".to_owned())?;
        fs::write(receipt_of(binary), note).doing(|| format!("cannot write {}", receipt_of(binary).display()))?;
        fs::rename(&unfinished, binary).doing(|| format!("cannot rename {}", unfinished.display()))
    }

    fn run_with_progress(&self, tool: &GoProgram, mut command: Command) -> Result<()> {
        let failed = |reason: String| Error::Build { tool: tool.name.to_owned(), reason };
        let started = Instant::now();
        self.progress.say(&format!("building {} (once; minutes on a small machine)", tool.name));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("cannot run go: {error}")))?;
        let mut errors = child.stderr.take();
        let (done, ended) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(errors) = errors.as_mut() {
                let _ = errors.read_to_string(&mut text);
            }
            let _ = done.send(());
            text
        });
        while ended.recv_timeout(Duration::from_secs(20)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            self.progress.say(&format!("still building {}: {} s", tool.name, started.elapsed().as_secs()));
        }
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        let text = reader.join().unwrap_or_default();
        if !status.success() {
            return Err(failed(one_line(&text)));
        }
        self.progress.say(&format!("built {} in {} s", tool.name, started.elapsed().as_secs()));
        Ok(())
    }
}

/// The folder of all binaries of this user.
#[must_use]
pub fn cache_root() -> PathBuf {
    if let Some(folder) = std::env::var_os(CACHE_VARIABLE) {
        return PathBuf::from(folder);
    }
    let caches = std::env::var_os("XDG_CACHE_HOME")
        .map_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache"), PathBuf::from);
    caches.join("gameplane").join("localkube")
}

fn receipt_of(binary: &Path) -> PathBuf {
    binary.with_added_extension("receipt")
}

fn read_receipt(binary: &Path) -> Option<Receipt> {
    serde_json::from_slice(&fs::read(receipt_of(binary)).ok()?).ok()
}

/// A cheap check at every start: a binary without a receipt, or of another size, is not used.
fn is_whole(binary: &Path) -> bool {
    let size = fs::metadata(binary).map(|meta| meta.len()).ok();
    size.is_some() && read_receipt(binary).map(|receipt| receipt.size) == size
}

fn checksum(file: &Path) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut reader = File::open(file)?;
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        let read = reader.read(&mut buffer)?;
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
        hash.update(chunk);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

const GET_GO: &str = "install Go from https://go.dev/dl and put it on PATH";

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

/// The version of the Go that builds a module, looked up once per process.
fn go_version(module: &Module) -> Result<String> {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};
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
    fn a_binary_without_receipt_or_of_another_size_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("etcd");
        fs::write(&binary, b"whole").unwrap();
        assert!(!is_whole(&binary), "half-built: no receipt");
        let receipt = Receipt { size: 5, sha256: checksum(&binary).unwrap() };
        fs::write(receipt_of(&binary), serde_json::to_vec(&receipt).unwrap()).unwrap();
        assert!(is_whole(&binary));
        fs::write(&binary, b"who").unwrap();
        assert!(!is_whole(&binary), "truncated");
    }
}
