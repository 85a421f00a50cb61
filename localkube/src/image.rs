//! Small container images made from files, without docker: one layer, one config, one manifest (OCI image format).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::build::go_architecture;
use crate::error::{Doing, Error, Result};

/// An image that is being built.
#[derive(Debug, Clone, Default)]
pub struct Image {
    files: Vec<File>,
    command: Vec<String>,
    entrypoint: Vec<String>,
    environment: Vec<String>,
}

#[derive(Debug, Clone)]
struct File {
    path: String,
    mode: u32,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Bytes(Vec<u8>),
    Folder,
    Link(PathBuf),
}

/// A blob of a finished image, addressed by its digest.
#[derive(Debug)]
pub(crate) struct Blob {
    pub(crate) digest: String,
    pub(crate) content: Vec<u8>,
}

/// A finished image.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) manifest: Blob,
    pub(crate) parts: [Blob; 2],
}

const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

impl Image {
    /// An empty image.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file that is not executable.
    #[must_use]
    pub fn text(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push(File { path: path.to_owned(), mode: 0o644, content: Content::Bytes(content.into()) });
        self
    }

    /// Adds an executable from this machine.
    pub fn program(mut self, path: &str, from: &Path) -> Result<Self> {
        let content = std::fs::read(from).doing(|| format!("cannot read {}", from.display()))?;
        self.files.push(File { path: path.to_owned(), mode: 0o755, content: Content::Bytes(content) });
        Ok(self)
    }

    /// Adds everything below a folder of this machine: files, folders and links, with their modes.
    pub fn folder(mut self, from: &Path) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let mut folders = vec![from.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).doing(|| format!("cannot read {}", folder.display()))? {
                let path = entry.doing(|| format!("cannot read {}", folder.display()))?.path();
                let failed = || format!("cannot read {}", path.display());
                let meta = std::fs::symlink_metadata(&path).doing(failed)?;
                let content = if meta.is_symlink() {
                    Content::Link(std::fs::read_link(&path).doing(failed)?)
                } else if meta.is_dir() {
                    folders.push(path.clone());
                    Content::Folder
                } else if meta.is_file() {
                    Content::Bytes(std::fs::read(&path).doing(failed)?)
                } else {
                    return Err(Error::Invalid(format!("{} is no file, folder or link: an image cannot hold it", path.display())));
                };
                let name = format!("/{}", path.strip_prefix(from).unwrap_or(&path).display());
                self.files.push(File { path: name, mode: meta.permissions().mode() & 0o7777, content });
            }
        }
        Ok(self)
    }

    /// What runs if the pod has no command.
    #[must_use]
    pub fn command(mut self, words: &[&str]) -> Self {
        self.command = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// What runs with the pod's arguments.
    #[must_use]
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.entrypoint = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// Builds the image. The same files give the same digests.
    pub(crate) fn pack(&self) -> Result<Packed> {
        let layer = Blob::new(self.layer().doing(|| "cannot pack an image".to_owned())?);
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
        let environment: Vec<_> = std::iter::once(path).chain(self.environment.iter().cloned()).collect();
        let config = Blob::new_json(&json!({
            "architecture": go_architecture(),
            "os": "linux",
            "config": { "Entrypoint": self.entrypoint, "Cmd": self.command, "Env": environment, "WorkingDir": "/" },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
        }));
        let manifest = Blob::new_json(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": { "mediaType": CONFIG_TYPE, "digest": config.digest, "size": config.content.len() },
            "layers": [{ "mediaType": LAYER_TYPE, "digest": layer.digest, "size": layer.content.len() }],
        }));
        Ok(Packed { manifest, parts: [layer, config] })
    }

    fn layer(&self) -> std::io::Result<Vec<u8>> {
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let mut archive = tar::Builder::new(Vec::new());
        let tmp = File { path: "/tmp".to_owned(), mode: 0o1777, content: Content::Folder };
        for file in std::iter::once(&tmp).chain(files) {
            let path = file.path.trim_start_matches('/');
            let mut header = tar::Header::new_gnu();
            header.set_mode(file.mode);
            header.set_size(0);
            match &file.content {
                Content::Bytes(bytes) => {
                    header.set_size(bytes.len() as u64);
                    archive.append_data(&mut header, path, bytes.as_slice())?;
                }
                Content::Folder => {
                    header.set_entry_type(tar::EntryType::Directory);
                    archive.append_data(&mut header, format!("{path}/"), std::io::empty())?;
                }
                Content::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    archive.append_link(&mut header, path, target)?;
                }
            }
        }
        archive.into_inner()
    }
}

impl Blob {
    fn new(content: Vec<u8>) -> Self {
        let hash: String = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { digest: format!("sha256:{hash}"), content }
    }

    fn new_json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }
}

/// The repository and tag of an image name; the name's registry is ignored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) repository: String,
    pub(crate) tag: String,
}

impl std::str::FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || Error::Invalid(format!("{text:?} is not an image name such as game:v1 or registry.example/team/game:v1"));
        let (host, rest) = match text.split_once('/') {
            Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => (Some(host), rest),
            _ => (None, text),
        };
        if host.is_some_and(|host| !is_host(host)) {
            return Err(invalid());
        }
        let (name, tag) = rest.rsplit_once(':').unwrap_or((rest, "latest"));
        let fits = |part: &str| {
            let legal = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "._-".contains(letter);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(legal)
        };
        let legal_tag = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
        if !name.split('/').all(fits) || tag.is_empty() || tag.starts_with(['.', '-']) || !tag.chars().all(legal_tag) {
            return Err(invalid());
        }
        let in_library = !name.contains('/') && matches!(host, None | Some("docker.io"));
        let repository = if in_library { format!("library/{name}") } else { name.to_owned() };
        Ok(Self { repository, tag: tag.to_owned() })
    }
}

fn is_host(text: &str) -> bool {
    let (name, port) = text.split_once(':').unwrap_or((text, "0"));
    let legal = |letter: char| letter.is_ascii_alphanumeric() || ".-".contains(letter);
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric()) && name.chars().all(legal) && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(text: &str) -> (String, String) {
        let reference: Reference = text.parse().unwrap();
        (reference.repository, reference.tag)
    }

    #[test]
    fn names_are_read_as_a_container_runtime_reads_them() {
        let pair = |name: &str, tag: &str| (name.to_owned(), tag.to_owned());
        assert_eq!(reference("python:3.5"), pair("library/python", "3.5"));
        assert_eq!(reference("python"), pair("library/python", "latest"));
        assert_eq!(reference("docker.io/python:3.5"), pair("library/python", "3.5"));
        assert_eq!(reference("team/game:v1"), pair("team/game", "v1"));
        assert_eq!(reference("registry.example:5000/team/game"), pair("team/game", "latest"));
        assert_eq!(reference("localhost/game:v1"), pair("game", "v1"));
    }

    #[test]
    fn names_that_would_leave_the_registry_are_refused() {
        for bad in ["", "..:x", "a/../b:x", "Game:v1", "game:", "game:../x", "a//b"] {
            assert!(bad.parse::<Reference>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_folder_keeps_its_links_and_empty_folders_and_refuses_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("empty")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let layer = Image::new().folder(folder.path()).unwrap().layer().unwrap();
        let mut archive = tar::Archive::new(layer.as_slice());
        let entries = archive.entries().unwrap().map(Result::unwrap);
        let kinds: Vec<_> = entries.map(|entry| (entry.path().unwrap().display().to_string(), entry.header().entry_type())).collect();
        assert!(kinds.contains(&("empty/".to_owned(), tar::EntryType::Directory)), "{kinds:?}");
        assert!(kinds.contains(&("link".to_owned(), tar::EntryType::Symlink)), "{kinds:?}");
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        assert!(Image::new().folder(folder.path()).unwrap_err().to_string().contains("an image cannot hold it"));
    }

    #[test]
    fn the_same_files_give_the_same_image() {
        let one = Image::new().text("/a", "1").text("/b", "2").pack().unwrap();
        let two = Image::new().text("/b", "2").text("/a", "1").pack().unwrap();
        let other = Image::new().text("/a", "2").pack().unwrap();
        assert_eq!(one.manifest.digest, two.manifest.digest);
        assert_ne!(one.manifest.digest, other.manifest.digest);
    }
}
