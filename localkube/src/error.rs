//! Errors, each in one line that says what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// All errors of localkube.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something has to be installed first.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// The program or file.
        what: String,
        /// What the user should run.
        remedy: String,
    },
    /// An installed program is too old.
    #[error("{what} is too old: found {found}, need {need} or newer")]
    TooOld {
        /// The program.
        what: String,
        /// Its version.
        found: String,
        /// The oldest that works.
        need: String,
    },
    /// Real nodes need root for namespaces, mounts and cgroups.
    #[error("real nodes need root: run this as root (sudo), or use --fake-nodes")]
    NeedsRoot,
    /// Another process listens on the requested port.
    #[error("port {port} on {address} is taken: choose another with --port, or leave --port out")]
    PortTaken {
        /// The address to bind.
        address: String,
        /// The requested port.
        port: u16,
    },
    /// Not enough disk space.
    #[error("{path} has {free_mib} MiB free and {need_mib} MiB are needed: free some space, or set {variable} to a folder on another disk")]
    NoSpace {
        /// The folder without space.
        path: PathBuf,
        /// The free space.
        free_mib: u64,
        /// The needed space.
        need_mib: u64,
        /// The environment variable that moves the folder.
        variable: &'static str,
    },
    /// A Go build failed.
    #[error("cannot build {tool}: {reason}")]
    Build {
        /// The binary.
        tool: String,
        /// The last lines of the Go command's output.
        reason: String,
    },
    /// The checksum of a binary in the cache does not match.
    #[error("{tool} in the cache is damaged: run `localkube build --again {tool}`")]
    Damaged {
        /// The binary.
        tool: String,
    },
    /// A part of the cluster stopped.
    #[error("{name} stopped ({status}); its log {log} ends with: {tail}")]
    Died {
        /// The daemon.
        name: String,
        /// How it ended.
        status: String,
        /// Its log.
        log: PathBuf,
        /// The last line of the log.
        tail: String,
    },
    /// Something did not become ready.
    #[error("{what} is not ready after {} s: {last}", after.as_secs())]
    NotReady {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// The last state that was observed.
        last: String,
    },
    /// A helper command (`ip`, `mount`, …) failed.
    #[error("`{command}` failed: {reason}")]
    Command {
        /// The command line.
        command: String,
        /// Its error output.
        reason: String,
    },
    /// An invalid argument, or a failure with its own message.
    #[error("{0}")]
    Invalid(String),
    /// An operation on a file or a socket failed.
    #[error("{doing}: {reason}")]
    Io {
        /// What was attempted.
        doing: String,
        /// Why it failed.
        reason: io::Error,
    },
    /// A call to the cluster failed.
    #[error("{doing}: {reason}")]
    Api {
        /// What was attempted.
        doing: String,
        /// Why it failed.
        reason: Box<kube::Error>,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(rcgen::Error),
}

/// The usual result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds to an I/O error what was attempted.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { doing: what(), reason: error.into() })
    }
}

/// Adds to an API error what was attempted.
pub(crate) trait Asking<T> {
    fn asking(self, what: &str) -> Result<T>;
}

impl<T> Asking<T> for kube::Result<T> {
    fn asking(self, what: &str) -> Result<T> {
        self.map_err(|reason| Error::Api { doing: what.to_owned(), reason: Box::new(reason) })
    }
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Self {
        Self::Certificate(error)
    }
}
