//! Lines for the person who waits.

use std::time::Instant;

/// Whether and how progress is told.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    started: Instant,
    loud: bool,
}

impl Progress {
    /// On standard error, each line with the seconds since the start.
    #[must_use]
    pub fn to_stderr() -> Self {
        Self { started: Instant::now(), loud: true }
    }

    /// Not at all.
    #[must_use]
    pub fn quiet() -> Self {
        Self { started: Instant::now(), loud: false }
    }

    /// Says one line.
    pub fn say(&self, line: &str) {
        if self.loud {
            eprintln!("localkube {:6.1} s  {line}", self.started.elapsed().as_secs_f64());
        }
    }
}
