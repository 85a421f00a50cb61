//! Kubernetes binaries, built from pinned Go modules into a cache outside the checkout.
//!
//! A module is a go.mod and a go.sum in this crate (`kube/`, `etcd/`, …), compiled into the program, so that it works
//! from anywhere. The cache folder of a module is named by a hash of both files, the flags and the Go version, so a
//! change creates a new folder. A build holds a file lock, writes to a temporary folder and renames its programs; the recorded size
//! and checksum tell a complete binary from a damaged one.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::build::{GoBuild, go_version};
use crate::error::{Doing, Result};
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

    /// Builds the tools that are not in the cache, those of one module together: they share most of their packages.
    /// Returns at the first module that cannot be built.
    pub fn ensure(&self, tools: impl IntoIterator<Item = Tool>) -> Result<()> {
        let mut modules: Vec<Vec<GoProgram>> = Vec::new();
        for program in tools.into_iter().map(|tool| tool.program(self.kube)) {
            match modules.iter_mut().find(|known| known.iter().any(|one| std::ptr::eq(one.module, program.module))) {
                Some(module) if module.iter().any(|one| one.name == program.name) => {}
                Some(module) => module.push(program),
                None => modules.push(vec![program]),
            }
        }
        modules.iter().try_for_each(|programs| self.ensure_all(programs))
    }

    /// The path of one tool, built if it is not in the cache.
    pub fn binary(&self, tool: Tool) -> Result<PathBuf> {
        self.program(&tool.program(self.kube))
    }

    /// The path of any program with a pinned module, built if it is not in the cache. The module's files are in the
    /// folder above `bin`.
    pub fn program(&self, tool: &GoProgram) -> Result<PathBuf> {
        self.ensure_all(std::slice::from_ref(tool))?;
        Ok(binary_of(&self.folder(tool.module)?, tool))
    }

    /// Builds those of a module's programs that are not in the cache.
    fn ensure_all(&self, programs: &[GoProgram]) -> Result<()> {
        let Some(module) = programs.first().map(|program| program.module) else { return Ok(()) };
        let folder = self.folder(module)?;
        let missing = || programs.iter().filter(|program| !is_whole(&binary_of(&folder, program))).collect::<Vec<_>>();
        if missing().is_empty() {
            return Ok(());
        }
        let lock = self.lock(&folder, module)?;
        let missing = missing();
        for binary in missing.iter().map(|program| binary_of(&folder, program)).filter(|binary| binary.exists()) {
            self.progress.say(&format!("{} is damaged: building it again", binary.display()));
        }
        if !missing.is_empty() {
            self.build(&folder, module, &missing)?;
        }
        drop(lock);
        Ok(())
    }

    /// Whether the tool's checksum still matches; none if it is not built.
    pub fn inspect(&self, tool: Tool) -> Result<Option<bool>> {
        let binary = self.path(tool)?;
        if !binary.exists() {
            return Ok(None);
        }
        let whole = read_receipt(&binary).is_some_and(|receipt| checksum(&binary).is_ok_and(|sum| sum == receipt.sha256));
        Ok(Some(whole))
    }

    /// Removes a tool's binary, so that the next use builds it.
    pub fn discard(&self, tool: Tool) -> Result<()> {
        let binary = self.path(tool)?;
        match fs::remove_file(&binary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).doing(|| format!("cannot remove {}", binary.display()))
            }
            _ => Ok(()),
        }
    }

    fn path(&self, tool: Tool) -> Result<PathBuf> {
        let program = tool.program(self.kube);
        Ok(binary_of(&self.folder(program.module)?, &program))
    }

    fn folder(&self, module: &Module) -> Result<PathBuf> {
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
    fn lock(&self, folder: &Path, module: &Module) -> Result<File> {
        fs::create_dir_all(folder.join("bin")).doing(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join("lock");
        let lock =
            OpenOptions::new().create(true).write(true).truncate(false).open(&path).doing(|| format!("cannot open {}", path.display()))?;
        if lock.try_lock().is_err() {
            self.progress.say(&format!("waiting for another build of {} to finish", module.name));
            lock.lock().doing(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(lock)
    }

    fn build(&self, folder: &Path, module: &Module, programs: &[&GoProgram]) -> Result<()> {
        check_space(folder, NEEDED_MIB * programs.len() as u64, CACHE_VARIABLE)?;
        for (name, content) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
            fs::write(folder.join(name), content).doing(|| format!("cannot write {name} in {}", folder.display()))?;
        }
        // May hold the remains of a build that was killed.
        let scratch = folder.join("tmp");
        let unfinished = scratch.join("bin");
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&unfinished).doing(|| format!("cannot create {}", unfinished.display()))?;
        let build = GoBuild { folder, module, programs, progress: self.progress };
        let built =
            build.run(&unfinished, &scratch).and_then(|()| programs.iter().try_for_each(|program| finish(folder, &unfinished, program)));
        let _ = fs::remove_dir_all(&scratch);
        built
    }
}

/// The path of a program in its module's folder.
fn binary_of(folder: &Path, program: &GoProgram) -> PathBuf {
    folder.join("bin").join(program.name)
}

/// Moves a program that was built to its place. Go names it like the last part of its package, without a major version.
fn finish(folder: &Path, unfinished: &Path, program: &GoProgram) -> Result<()> {
    let binary = binary_of(folder, program);
    let is_version = |part: &&str| part.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
    let built = unfinished.join(program.package.rsplit('/').find(|part| !is_version(part)).unwrap_or_default());
    File::open(&built).and_then(|file| file.sync_all()).doing(|| format!("cannot write {}", built.display()))?;
    let receipt = Receipt {
        size: fs::metadata(&built).doing(|| format!("cannot read {}", built.display()))?.len(),
        sha256: checksum(&built).doing(|| format!("cannot read {}", built.display()))?,
    };
    let note = serde_json::to_vec(&receipt).doing(|| "cannot describe the build".to_owned())?;
    fs::write(receipt_of(&binary), note).doing(|| format!("cannot write {}", receipt_of(&binary).display()))?;
    fs::rename(&built, &binary).doing(|| format!("cannot rename {}", built.display()))
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

#[cfg(test)]
mod tests {
    use super::*;

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
