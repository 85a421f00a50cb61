//! Progress messages.

use std::time::Instant;

/// Whether progress is printed.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    started: Instant,
    loud: bool,
}

impl Progress {
    /// Prints to standard error, each line with the seconds since the start.
    #[must_use]
    pub fn to_stderr() -> Self {
        Self { started: Instant::now(), loud: true }
    }

    /// Prints nothing.
    #[must_use]
    pub fn quiet() -> Self {
        Self { started: Instant::now(), loud: false }
    }

    /// Prints one line.
    pub fn say(&self, line: &str) {
        if self.loud {
            eprintln!("localkube {:6.1} s  {line}", self.started.elapsed().as_secs_f64());
        }
    }
}
