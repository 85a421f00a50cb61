//! Everything that can be proven without a cluster.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    clippy::disallowed_methods,
    reason = "a test may fail, and ask how many cases are wanted"
)]

mod approvals;
mod compat;
mod hookruns;
mod hostile;
mod laws;
mod scenarios;
mod squad;
mod world;
