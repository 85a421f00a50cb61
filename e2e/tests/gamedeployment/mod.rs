//! GameDeployments: rollouts, hooks, protected pods, refused writes and silent nodes.

mod canary;
mod gates;
mod gates_real;
mod gates_storm;
mod inplace;
mod inplace_real;
mod input;
mod many;
mod protect;
mod protect_real;
mod refused;
mod rolling;
mod silence;
mod storm;
mod takeover;
mod webhook;

use std::sync::Arc;

use e2e::Suite;

/// Adds the tests of this folder.
pub(crate) fn add(suite: &Arc<Suite>) {
    rolling::add(suite);
    input::add(suite);
    inplace::add(suite);
    gates::add(suite);
    refused::add(suite);
    silence::add(suite);
    webhook::add(suite);
    protect::add(suite);
    canary::add(suite);
    inplace_real::add(suite);
    gates_real::add(suite);
    protect_real::add(suite);
    storm::add(suite);
    many::add(suite);
    gates_storm::add(suite);
    takeover::add(suite);
}
