//! The images that real nodes pull: a read-only registry (Debian's docker-registry) over a folder that localkube fills.
//!
//! containerd on real nodes pulls every image from it, whatever registry the image's name contains. Images can be
//! pushed at any time.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Doing, Error, Result};
use crate::image::{Blob, Image, Reference};
use crate::process::{Daemon, bound_command};
use crate::rundir::RunDir;

/// The image of the process that holds a pod's namespaces.
pub(crate) const PAUSE_IMAGE: &str = "localkube/pause:1";

/// The folder below a run's folder that holds the registry's content.
const CONTENT: &str = "registry";

/// The images of one cluster.
#[derive(Debug, Clone)]
pub struct Registry {
    root: PathBuf,
}

impl Registry {
    /// The registry of the run in the folder `run` (LOCALKUBE_DIR).
    pub fn of_run(run: &Path) -> Result<Self> {
        let root = run.join(CONTENT);
        if !root.is_dir() {
            return Err(Error::Invalid(format!("{} has no registry: images are for clusters with real nodes", run.display())));
        }
        Ok(Self { root })
    }

    pub(crate) fn create(run: &RunDir) -> Result<Self> {
        Ok(Self { root: run.folder(CONTENT)? })
    }

    pub(crate) fn serve(&self, run: &RunDir, address: SocketAddr) -> Result<Daemon> {
        let config = format!(
            "version: 0.1\n\
             log: {{level: warn, accesslog: {{disabled: true}}}}\n\
             storage:\n  filesystem: {{rootdirectory: {}}}\n  maintenance: {{readonly: {{enabled: true}}, uploadpurging: {{enabled: false}}}}\n\
             http: {{addr: \"{address}\"}}\n",
            self.root.display()
        );
        let config = run.file("registry.yaml", config)?;
        let mut command = bound_command("docker-registry");
        command.arg("serve").arg(config);
        Daemon::start("registry", run.path(), command)
    }

    /// Makes an image available under a name such as `game:v1`, replacing an image of that name. Returns its digest.
    pub fn push(&self, name: &str, image: &Image) -> Result<String> {
        let reference: Reference = name.parse()?;
        let packed = image.pack()?;
        let repository = self.root.join("docker/registry/v2/repositories").join(&reference.repository);
        for part in &packed.parts {
            self.store(part)?;
            link(&repository.join("_layers"), &part.digest)?;
        }
        let manifest = &packed.manifest;
        self.store(manifest)?;
        link(&repository.join("_manifests/revisions"), &manifest.digest)?;
        let tag = repository.join("_manifests/tags").join(&reference.tag);
        link(&tag.join("index"), &manifest.digest)?;
        write(&tag.join("current/link"), manifest.digest.as_bytes())?;
        Ok(manifest.digest.clone())
    }

    /// The names of all images, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let repositories = self.root.join("docker/registry/v2/repositories");
        let mut folders = vec![repositories.clone()];
        let mut names = Vec::new();
        while let Some(folder) = folders.pop() {
            let tags = folder.join("_manifests/tags");
            let name = folder.strip_prefix(&repositories).unwrap_or(&folder).display().to_string();
            names.extend(subfolders(&tags).iter().map(|tag| format!("{name}:{}", file_name(tag))));
            folders.extend(subfolders(&folder).into_iter().filter(|child| !file_name(child).starts_with('_')));
        }
        names.sort();
        names
    }

    fn store(&self, blob: &Blob) -> Result<()> {
        let hash = blob.digest.trim_start_matches("sha256:");
        let folder = self.root.join("docker/registry/v2/blobs/sha256").join(hash.get(..2).unwrap_or_default()).join(hash);
        write(&folder.join("data"), &blob.content)
    }
}

fn link(folder: &Path, digest: &str) -> Result<()> {
    write(&folder.join(digest.replacen(':', "/", 1)).join("link"), digest.as_bytes())
}

/// Writes a temporary file and renames it, so that a pull never sees a partial file.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).doing(|| format!("cannot create {}", folder.display()))?;
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let unfinished = path.with_added_extension(format!("{}-{number}", std::process::id()));
    fs::write(&unfinished, content).doing(|| format!("cannot write {}", unfinished.display()))?;
    fs::rename(&unfinished, path).doing(|| format!("cannot write {}", path.display()))
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// containerd's hosts file that directs every pull to this registry.
pub(crate) fn hosts_file(address: IpAddr, port: u16) -> String {
    let url = format!("http://{}", SocketAddr::new(address, port));
    format!("server = \"{url}\"\n\n[host.\"{url}\"]\n  capabilities = [\"pull\", \"resolve\"]\n")
}

/// Folders that may hold the statically linked programs of this workspace, the likeliest first.
fn static_folders() -> Vec<PathBuf> {
    let target = format!("{}-unknown-linux-gnu/release", std::env::consts::ARCH);
    let program = std::env::current_exe().unwrap_or_default();
    program.ancestors().skip(1).map(|folder| folder.join(&target)).collect()
}

/// A statically linked program of this workspace, built by `make build`.
pub fn static_program(name: &str) -> Result<PathBuf> {
    let found = static_folders().into_iter().map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| Error::Missing { what: format!("the statically linked {name}"), remedy: "run `make build`".to_owned() })
}

/// The image of the stand-in game server, as the examples use it.
pub fn game_image(version: &str) -> Result<Image> {
    let server = static_program("game-server")?;
    Ok(Image::new()
        .program("/main", &server)?
        .program("/usr/local/bin/python", &server)?
        .text("/srv/version", version.to_owned())
        .command(&["/main"]))
}

/// The operator's image, as the Containerfile builds it.
pub fn operator_image() -> Result<Image> {
    Ok(Image::new().program("/gameplane-operator", &static_program("gameplane-operator")?)?.entrypoint(&["/gameplane-operator"]))
}

/// The images that every cluster with real nodes starts with.
pub const EXAMPLE_IMAGES: [(&str, &str); 4] = [("python:3.5", "3.5"), ("python:latest", "latest"), ("main:v1", "v1"), ("main:v2", "v2")];

impl Registry {
    pub(crate) fn fill(&self) -> Result<()> {
        let pause = Image::new().program("/pause", &static_program("pause")?)?.command(&["/pause"]);
        self.push(PAUSE_IMAGE, &pause)?;
        for (name, version) in EXAMPLE_IMAGES {
            self.push(name, &game_image(version)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pushed_image_is_listed_and_a_second_push_moves_the_tag() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry { root: folder.path().to_owned() };
        let one = registry.push("game:v1", &Image::new().text("/v", "1")).unwrap();
        registry.push("team/game:v1", &Image::new()).unwrap();
        let two = registry.push("game:v1", &Image::new().text("/v", "2")).unwrap();
        assert_ne!(one, two);
        assert_eq!(registry.names(), ["library/game:v1", "team/game:v1"]);
        let tag = folder.path().join("docker/registry/v2/repositories/library/game/_manifests/tags/v1/current/link");
        assert_eq!(fs::read_to_string(tag).unwrap(), two);
    }

    #[test]
    fn a_run_without_real_nodes_has_no_registry() {
        let folder = tempfile::tempdir().unwrap();
        let error = Registry::of_run(folder.path()).unwrap_err().to_string();
        assert!(error.contains("real nodes"), "{error}");
    }
}
