//! HookRuns and HookTemplates: providers, verdicts, where hooks may connect to, and attempts to forge an approval.

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
