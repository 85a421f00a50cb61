//! HookRuns and HookTemplates: what is asked and where, how it is judged, and who may forge nothing.

mod accounts;
mod approvals;
mod egress;
mod hooks;
mod hostile;
mod jsonpath;

use std::sync::Arc;

use e2e::Suite;

/// Adds the tests of this folder.
pub(crate) fn add(suite: &Arc<Suite>) {
    approvals::add(suite);
    hooks::add(suite);
    accounts::add(suite);
    egress::add(suite);
    hostile::add(suite);
    jsonpath::add(suite);
}
