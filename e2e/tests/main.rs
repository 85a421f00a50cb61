//! All end-to-end tests. `cargo test -p e2e -- NAME` runs those whose name contains NAME and starts only the clusters they need.

#![expect(clippy::indexing_slicing, reason = "what is indexed here is JSON, which answers null")]

mod approvals;
mod canary;
mod cleanup;
mod cli;
mod crash;
mod documents;
mod fake;
mod gamedeployment;
mod gamedeployment_input;
mod gates;
mod gates_real;
mod gates_storm;
mod hooks;
mod hooks_accounts;
mod hooks_egress;
mod hooks_hostile;
mod hooks_jsonpath;
mod inplace;
mod inplace_real;
mod input;
mod install;
mod outage;
mod protect;
mod protect_real;
mod real;
mod real_disturbed;
mod refused;
mod silence;
mod storm;
mod strangers;
mod takeover;
mod unlisted;
mod webhook;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let suite = match e2e::Suite::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("failures")) {
        Ok(suite) => suite,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    fake::add(&suite);
    gamedeployment::add(&suite);
    gamedeployment_input::add(&suite);
    inplace::add(&suite);
    gates::add(&suite);
    refused::add(&suite);
    silence::add(&suite);
    webhook::add(&suite);
    protect::add(&suite);
    strangers::add(&suite);
    approvals::add(&suite);
    canary::add(&suite);
    hooks::add(&suite);
    hooks_accounts::add(&suite);
    hooks_egress::add(&suite);
    hooks_hostile::add(&suite);
    hooks_jsonpath::add(&suite);
    real::add(&suite);
    real_disturbed::add(&suite);
    inplace_real::add(&suite);
    gates_real::add(&suite);
    protect_real::add(&suite);
    install::add(&suite);
    crash::add(&suite);
    storm::add(&suite);
    gates_storm::add(&suite);
    takeover::add(&suite);
    outage::add(&suite);
    unlisted::add(&suite);
    cli::add(&suite);
    input::add(&suite);
    cleanup::add(&suite);
    documents::add(&suite);
    suite.run()
}
