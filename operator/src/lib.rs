//! The operator: settles, observes, decides, executes and records, for each object.
//!
//! One term of leadership is one [`engine`]: new informers, queues and workers. No state of a term reaches the next one.
//! [`execute`] writes objects, [`record`] writes their status.

pub mod allowance;
mod backoff;
pub mod caches;
pub mod client;
pub mod controller;
pub mod engine;
pub mod events;
pub mod execute;
pub mod fair;
pub mod gone;
pub mod health;
pub mod hooks;
pub mod informer;
pub mod kinds;
pub mod leader;
pub mod metrics;
pub mod nodes;
pub mod queue;
pub mod record;
mod send;
pub mod server;
pub mod settle;
pub mod store;
#[cfg(test)]
mod testing;
mod wire;
