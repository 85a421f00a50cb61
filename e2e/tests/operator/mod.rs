//! The operator as a process: tenants that attack it, installation, crashes, outages and missing permissions.

mod crash;
mod install;
mod outage;
mod strangers;
mod unlisted;

use std::sync::Arc;

use e2e::Suite;

/// Adds the tests of this folder.
pub(crate) fn add(suite: &Arc<Suite>) {
    strangers::add(suite);
    install::add(suite);
    crash::add(suite);
    outage::add(suite);
    unlisted::add(suite);
}
