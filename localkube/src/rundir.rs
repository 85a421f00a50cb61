//! The folder of one run: logs, certificates, kubeconfigs, data.
//!
//! The owner holds a lock on it. A folder whose lock is free belongs to a dead run; the next start removes it, together
//! with the cgroups and processes of that run. Namespaces, mounts and interfaces are removed by the kernel with the
//! last process of the run.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Doing, Error, Result};
use crate::pki::write_private;
use crate::process;

/// Environment variable that overrides the folder of all runs.
pub(crate) const RUNS_VARIABLE: &str = "LOCALKUBE_RUNS";
/// The longest path of the folder of all runs: a socket's path has at most 107 bytes.
const LONGEST_ROOT: usize = 75;
const LOCK: &str = "lock";
/// The file with the path of a copy of the administrator's kubeconfig outside of the folder.
const COPY: &str = "copy-of-kubeconfig";
/// The administrator's kubeconfig.
pub(crate) const ADMIN: &str = "admin.kubeconfig";
/// Disk space that a run needs to start.
const NEEDED_MIB: u64 = 300;

/// A run's folder, removed when dropped.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Removes what dead runs left behind and creates a new folder.
    pub(crate) fn create() -> Result<Self> {
        let root = runs_root();
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&root);
        created.doing(|| format!("cannot create {}", root.display()))?;
        check_root(&root)?;
        reclaim_dead_runs(&root);
        check_space(&root, NEEDED_MIB, RUNS_VARIABLE)?;
        // A concurrent start may remove the folder between its creation and its lock: then another name is tried.
        for attempt in 0..100_u32 {
            let path = root.join(format!("{}-{attempt}", std::process::id()));
            if fs::DirBuilder::new().mode(0o700).create(&path).is_err() {
                continue;
            }
            let Ok(lock) = create_lock(&path) else { continue };
            if lock.try_lock().is_ok() && path.join(LOCK).exists() {
                let run = Self { path, _lock: lock };
                for folder in ["logs", "pki", "bin"] {
                    run.folder(folder)?;
                }
                return Ok(run);
            }
        }
        Err(Error::Invalid(format!("cannot create a folder for this run in {}", root.display())))
    }

    /// Its path.
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

    /// Writes a file inside.
    pub(crate) fn file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, content).doing(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Creates an empty file for a copy of the administrator's kubeconfig; it is removed with the run, however that
    /// ends.
    pub(crate) fn prepare_copy(&self, copy: &Path) -> Result<()> {
        let copy = std::path::absolute(copy).doing(|| format!("cannot resolve {}", copy.display()))?;
        match write_private(&copy, "") {
            Err(Error::Io { reason, .. }) if reason.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(Error::Invalid(format!("{} exists and is not overwritten: choose another --kubeconfig", copy.display())))
            }
            // Recorded only after the file was created: the recorded file is removed later.
            created => created.and_then(|()| self.file(COPY, copy.as_os_str().as_encoded_bytes()).map(drop)),
        }
    }

    /// Fills the copy that was prepared.
    pub(crate) fn write_copy(&self, copy: &Path) -> Result<()> {
        fs::copy(self.path.join(ADMIN), copy).map(drop).doing(|| format!("cannot write {}", copy.display()))
    }

    /// Keeps the logs of a failed run, replacing those of the previous one. Returns their folder.
    pub(crate) fn keep_logs(&self) -> PathBuf {
        let kept = runs_root().join("localkube-last-failure");
        let _ = fs::remove_dir_all(&kept);
        let _ = fs::rename(self.path.join("logs"), &kept);
        kept
    }

    /// The name of the run's cgroups.
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

/// Checks the folder: its path must be short, because of sockets, and it must be owned by this user, because it holds
/// keys.
fn check_root(root: &Path) -> Result<()> {
    let meta = fs::symlink_metadata(root).doing(|| format!("cannot read {}", root.display()))?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::Invalid(format!("{} is not a folder of yours: set {RUNS_VARIABLE} to one that is", root.display())));
    }
    if root.as_os_str().len() > LONGEST_ROOT {
        let length = root.as_os_str().len();
        return Err(Error::Invalid(format!(
            "{} is too long ({length} bytes, at most {LONGEST_ROOT}): set {RUNS_VARIABLE}",
            root.display()
        )));
    }
    Ok(())
}

fn mark(run: &Path) -> String {
    format!("localkube-{}", run.file_name().unwrap_or_default().to_string_lossy())
}

fn create_lock(run: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).write(true).truncate(false).open(run.join(LOCK))
}

/// Waits until the owner of a run, which is dying, has ended and its lock is free, and removes what is left of the run.
pub fn reclaim_run(run: &Path) {
    if let Ok(lock) = OpenOptions::new().write(true).open(run.join(LOCK))
        && lock.lock().is_ok()
    {
        reclaim(run);
    }
}

/// Removes dead runs. Only a folder with the name and the lock file of a run is one: the root may hold other folders of
/// the user.
fn reclaim_dead_runs(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let run = entry.path();
        let Ok(lock) = OpenOptions::new().write(true).open(run.join(LOCK)) else { continue };
        if is_run_name(&entry.file_name().to_string_lossy()) && lock.try_lock().is_ok() {
            reclaim(&run);
        }
        // Held until here, so that a start that has just created this folder does not use it.
        drop(lock);
    }
}

fn is_run_name(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-').is_some_and(|(pid, attempt)| number(pid) && number(attempt))
}

fn reclaim(run: &Path) {
    process::kill_marked(run.as_os_str());
    remove_copy(run);
    remove_cgroups(Path::new("/sys/fs/cgroup"), &mark(run));
    let _ = fs::remove_dir_all(run);
}

/// Removes the cgroups of a run: in each hierarchy of v1, or in the one of v2, a folder per node named after the run.
fn remove_cgroups(mount: &Path, mark: &str) {
    let mut hierarchies = vec![mount.to_owned()];
    hierarchies.extend(fs::read_dir(mount).into_iter().flatten().flatten().map(|entry| entry.path()));
    for entry in hierarchies.iter().filter_map(|hierarchy| fs::read_dir(hierarchy).ok()).flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&format!("{mark}-")) {
            remove_cgroup_with_retries(&entry.path());
        }
    }
}

/// Removes the copy of the administrator's kubeconfig, unless its content was replaced.
fn remove_copy(run: &Path) {
    let Ok(copy) = fs::read_to_string(run.join(COPY)).map(PathBuf::from) else { return };
    let ours = fs::read(run.join(ADMIN)).unwrap_or_default();
    if fs::read(&copy).is_ok_and(|content| content.is_empty() || content == ours) {
        let _ = fs::remove_file(copy);
    }
}

/// A cgroup stays busy for a moment after its last process died, without notification: retries for two seconds.
fn remove_cgroup_with_retries(group: &Path) {
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

/// Fails if less than `need_mib` is free on the folder's disk.
pub(crate) fn check_space(folder: &Path, need_mib: u64, variable: &'static str) -> Result<()> {
    let stat = rustix::fs::statvfs(folder).doing(|| format!("cannot read {}", folder.display()))?;
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
    fn a_folder_of_another_user_is_refused() {
        if rustix::process::geteuid().is_root() {
            let folder = tempfile::tempdir().unwrap();
            std::os::unix::fs::chown(folder.path(), Some(65534), None).unwrap();
            assert!(check_root(folder.path()).unwrap_err().to_string().contains("not a folder of yours"));
        } else {
            assert!(check_root(Path::new("/")).unwrap_err().to_string().contains("not a folder of yours"));
        }
    }

    #[test]
    fn a_free_lock_means_a_dead_run() {
        let root = tempfile::tempdir().unwrap();
        let folders: Vec<_> = ["1-0", "2-0", "3-0", "photos", "12-x"].iter().map(|name| root.path().join(name)).collect();
        let [dead, alive, unlocked, photos, other] = folders.as_slice() else { panic!() };
        folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
        let locks: Vec<_> = [dead, alive, other].map(|folder| create_lock(folder).unwrap()).into();
        locks[1].lock().unwrap();
        reclaim_dead_runs(root.path());
        assert!(!dead.exists());
        assert!(alive.exists());
        assert!(unlocked.exists(), "a run that has just been created");
        assert!(photos.exists() && other.exists(), "folders that are no runs");
    }

    #[test]
    fn a_copy_goes_with_the_run_unless_it_was_replaced() {
        let root = tempfile::tempdir().unwrap();
        let copy = root.path().join("config");
        fs::write(root.path().join(COPY), copy.as_os_str().as_encoded_bytes()).unwrap();
        fs::write(root.path().join(ADMIN), "ours").unwrap();
        fs::write(&copy, "theirs").unwrap();
        remove_copy(root.path());
        assert!(copy.exists());
        fs::write(&copy, "ours").unwrap();
        remove_copy(root.path());
        assert!(!copy.exists());
    }
}
