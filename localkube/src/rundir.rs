//! The folder of one run: logs, certificates, kubeconfigs, data.
//!
//! The owner holds a lock on it as long as it lives; a folder whose lock is free belongs to a dead run and is reclaimed by the next start, together with the cgroups and
//! stray processes that carry its name. Namespaces, mounts and interfaces need no reclaiming: the kernel drops them with the last process of the run.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Doing, Error, Result};
use crate::process;

/// Overrides where runs are kept.
pub(crate) const RUNS_VARIABLE: &str = "LOCALKUBE_RUNS";
/// A socket's path has at most 107 letters, of which the run and the socket take some.
const LONGEST_ROOT: usize = 75;
/// Room that a run needs to start.
const NEEDED_MIB: u64 = 300;

/// A run's folder, removed when dropped.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Reclaims what dead runs left and makes a new folder.
    pub(crate) fn create() -> Result<Self> {
        let root = runs_root();
        fs::create_dir_all(&root).doing(|| format!("cannot create {}", root.display()))?;
        check_root(&root)?;
        reclaim_dead_runs(&root);
        check_space(&root, NEEDED_MIB, RUNS_VARIABLE)?;
        // A concurrent start may reclaim the folder between its creation and its lock: then take another name.
        for attempt in 0..100_u32 {
            let path = root.join(format!("{}-{attempt}", std::process::id()));
            if fs::DirBuilder::new().mode(0o700).create(&path).is_err() {
                continue;
            }
            let Ok(lock) = open_lock(&path) else { continue };
            if lock.try_lock().is_ok() && path.join("lock").exists() {
                let run = Self { path, _lock: lock };
                for folder in ["logs", "pki", "bin"] {
                    run.folder(folder)?;
                }
                return Ok(run);
            }
        }
        Err(Error::Invalid(format!("cannot make a folder for this run in {}", root.display())))
    }

    /// Where it is.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A folder inside, created if needed.
    pub(crate) fn folder(&self, name: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).doing(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    }

    /// A file inside, written whole.
    pub(crate) fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, content).doing(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// The name that marks what the run owns outside of its folder.
    #[must_use]
    pub(crate) fn id(&self) -> String {
        mark(&self.path)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        reclaim(&self.path);
    }
}

/// The folder of all runs of this user.
#[must_use]
pub fn runs_root() -> PathBuf {
    std::env::var_os(RUNS_VARIABLE)
        .map_or_else(|| std::env::temp_dir().join(format!("localkube-{}", rustix::process::getuid().as_raw())), PathBuf::from)
}

/// The names of sockets are short, and keys are kept here: the folder must be near the root and nobody else's.
fn check_root(root: &Path) -> Result<()> {
    let owner = fs::metadata(root).doing(|| format!("cannot look at {}", root.display()))?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(Error::Invalid(format!("{} belongs to another user: set {RUNS_VARIABLE} to a folder of yours", root.display())));
    }
    if root.as_os_str().len() > LONGEST_ROOT {
        let length = root.as_os_str().len();
        return Err(Error::Invalid(format!(
            "{} is too long ({length} letters, at most {LONGEST_ROOT}): set {RUNS_VARIABLE}",
            root.display()
        )));
    }
    Ok(())
}

fn mark(run: &Path) -> String {
    format!("localkube-{}", run.file_name().unwrap_or_default().to_string_lossy())
}

fn open_lock(run: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).write(true).truncate(false).open(run.join("lock"))
}

fn reclaim_dead_runs(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for run in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if open_lock(&run).is_ok_and(|lock| lock.try_lock().is_ok()) {
            process::kill_daemons_of(&run);
            reclaim(&run);
        }
    }
}

fn reclaim(run: &Path) {
    remove_cgroups(Path::new("/sys/fs/cgroup"), &mark(run));
    let _ = fs::remove_dir_all(run);
}

/// Removes the cgroups of a run: in each hierarchy of v1, or in the one of v2, a folder per node named after the run.
fn remove_cgroups(mount: &Path, mark: &str) {
    let mut hierarchies = vec![mount.to_owned()];
    hierarchies.extend(fs::read_dir(mount).into_iter().flatten().flatten().map(|entry| entry.path()));
    for entry in hierarchies.iter().filter_map(|hierarchy| fs::read_dir(hierarchy).ok()).flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("{mark}-")) {
            remove_cgroup_patiently(&entry.path());
        }
    }
}

/// A cgroup is busy for a moment after its last process died, and nothing tells when it no longer is: try for two seconds.
fn remove_cgroup_patiently(group: &Path) {
    for _ in 0..40 {
        remove_cgroup(group);
        if !group.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn remove_cgroup(group: &Path) {
    for child in fs::read_dir(group).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        remove_cgroup(&child.path());
    }
    let _ = fs::remove_dir(group);
}

/// Fails in one line when a folder's disk is nearly full.
pub(crate) fn check_space(folder: &Path, need_mib: u64, variable: &'static str) -> Result<()> {
    let stat = rustix::fs::statvfs(folder).doing(|| format!("cannot look at {}", folder.display()))?;
    let free_mib = stat.f_bavail.saturating_mul(stat.f_frsize) / (1024 * 1024);
    if free_mib < need_mib {
        return Err(Error::NoSpace { path: folder.to_owned(), free_mib, need_mib, variable });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_tree_is_removed_from_the_leaves_up() {
        let mount = tempfile::tempdir().unwrap();
        let ours = mount.path().join("memory/localkube-7-0-real-1/kubepods/pod1");
        let theirs = mount.path().join("memory/localkube-70-0-real-1");
        fs::create_dir_all(&ours).unwrap();
        fs::create_dir_all(&theirs).unwrap();
        remove_cgroups(mount.path(), "localkube-7-0");
        assert!(!mount.path().join("memory/localkube-7-0-real-1").exists());
        assert!(theirs.exists(), "another run's cgroups stay");
    }

    #[test]
    fn a_full_disk_is_named_with_the_variable_that_moves_the_folder() {
        let error = check_space(Path::new("/"), u64::MAX, RUNS_VARIABLE).unwrap_err().to_string();
        assert!(error.contains("LOCALKUBE_RUNS") && error.contains("MiB free"), "{error}");
    }

    #[test]
    fn a_folder_too_deep_for_sockets_is_refused() {
        let root = tempfile::tempdir().unwrap();
        check_root(root.path()).unwrap();
        let deep = root.path().join("deep".repeat(30));
        fs::create_dir(&deep).unwrap();
        let error = check_root(&deep).unwrap_err().to_string();
        assert!(error.contains("too long") && error.contains("LOCALKUBE_RUNS"), "{error}");
    }

    #[test]
    fn somebody_elses_folder_is_refused() {
        if rustix::process::geteuid().is_root() {
            let folder = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
            assert!(check_root(folder.path()).unwrap_err().to_string().contains("another user"));
        } else {
            assert!(check_root(Path::new("/")).unwrap_err().to_string().contains("another user"));
        }
    }

    #[test]
    fn a_free_lock_means_a_dead_run() {
        let root = tempfile::tempdir().unwrap();
        let dead = root.path().join("1-0");
        let alive = root.path().join("2-0");
        fs::create_dir(&dead).unwrap();
        fs::create_dir(&alive).unwrap();
        let lock = open_lock(&alive).unwrap();
        lock.lock().unwrap();
        reclaim_dead_runs(root.path());
        assert!(!dead.exists());
        assert!(alive.exists());
    }
}
