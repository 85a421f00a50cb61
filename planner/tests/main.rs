//! Everything that can be proven without a cluster.

mod laws;
mod scenarios;
mod world;
