//! localkube itself: fake and real nodes, the command line, bad input and cleanup.

mod cleanup;
mod cli;
mod fake;
mod input;
mod real;
mod real_disturbed;

use std::sync::Arc;

use e2e::Suite;

/// Adds the tests of this folder.
pub(crate) fn add(suite: &Arc<Suite>) {
    fake::add(suite);
    real::add(suite);
    real_disturbed::add(suite);
    cli::add(suite);
    input::add(suite);
    cleanup::add(suite);
}
