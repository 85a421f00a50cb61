//! What can go wrong, each in one line that says what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Everything localkube can fail with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something has to be installed first.
    #[error("{what} is missing: {remedy}")]
    Missing {
        /// The program or file.
        what: String,
        /// What the person should run.
        remedy: String,
    },
    /// A program is there but cannot be used.
    #[error("{what} is too old: found {found}, need {need} or newer")]
    TooOld {
        /// The program.
        what: String,
        /// Its version.
        found: String,
        /// The oldest that works.
        need: String,
    },
    /// Real nodes make namespaces, mounts and cgroups.
    #[error("real nodes need root: run this as root (sudo), or use --fake-nodes")]
    NeedsRoot,
    /// The wanted port belongs to somebody else.
    #[error("port {port} on {address} is taken: choose another with --port, or leave --port out")]
    PortTaken {
        /// The address that was to be bound.
        address: String,
        /// The port that was asked for.
        port: u16,
    },
    /// Not enough room to go on.
    #[error("{path} has {free_mib} MiB free and {need_mib} MiB are needed: free some space, or set {variable} to a folder on another disk")]
    NoSpace {
        /// Where there is no room.
        path: PathBuf,
        /// What is left.
        free_mib: u64,
        /// What is needed.
        need_mib: u64,
        /// The environment variable that moves the folder.
        variable: &'static str,
    },
    /// A Go build failed.
    #[error("cannot build {tool}: {reason}")]
    Build {
        /// The binary.
        tool: String,
        /// The last words of the Go command.
        reason: String,
    },
    /// A binary in the cache is not what was built.
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
        /// What was seen last.
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
    /// A request or an argument that makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// An operation on a file or a socket failed.
    #[error("{doing}: {reason}")]
    Io {
        /// What was being done.
        doing: String,
        /// Why it failed.
        reason: io::Error,
    },
    /// A call to the cluster failed.
    #[error("{doing}: {reason}")]
    Api {
        /// What was being done.
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

/// Says what was being done when an error came.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { doing: what(), reason: error.into() })
    }
}

/// Says which call to the cluster failed.
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
