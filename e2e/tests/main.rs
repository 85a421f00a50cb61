//! All end-to-end tests. `cargo test -p e2e -- NAME` runs those whose name contains NAME and starts only the clusters they need.

#![expect(clippy::indexing_slicing, reason = "what is indexed here is JSON, which answers null")]

mod documents;
mod gamedeployment;
mod hookrun;
mod localkube;
mod operator;

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
    gamedeployment::add(&suite);
    hookrun::add(&suite);
    localkube::add(&suite);
    // The test that installs the operator first removes it from the shared real nodes, so it comes after the tests that use
    // it there.
    operator::add(&suite);
    documents::add(&suite);
    suite.run()
}
