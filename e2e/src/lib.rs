//! The harness of the end-to-end tests: shared clusters, a namespace per test, waiting on watches, and for each failed
//! test a folder with everything that is needed to understand it.
//!
//! A cluster is started by the first test that needs it and stopped when all tests have ended. Tests on one cluster run
//! side by side; a test that disturbs the whole cluster (a drained node, a cut cable) is added as such and has it to
//! itself.

#![expect(clippy::indexing_slicing, reason = "what is indexed here is JSON, which answers null")]

mod audit;
pub mod command;
mod game;
pub mod game_server;
pub mod hook;
mod metrics;
pub mod operator;
pub mod pod;
pub mod policy;
mod proxy;
mod scene;
mod service;
mod suite;
mod wait;
pub mod walkthrough;
pub mod webhook;

pub use audit::{audit, audited};
pub use game::{Game, PROTECTED_BY, PodCount, counts, in_place, manifest, row, says, watch_pods};
pub use metrics::{Metrics, autoscaler};
pub use proxy::Proxy;
pub use scene::{Scene, merge, root, run};
pub use service::{Outage, Services};
pub use suite::{Place, Suite, node_silence};
pub use wait::{eventually, eventually_says, until, until_answer, until_gone, until_pod_ready, until_some_pod};
