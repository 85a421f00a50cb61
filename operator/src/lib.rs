//! Makes it happen: observe, settle, decide, execute, record.
//!
//! One term of leadership is one [`engine`]: fresh informers, a queue, workers. Nothing of one term reaches the next. Only [`execute`] and [`record`] write.

pub mod allowance;
mod backoff;
pub mod client;
pub mod controller;
pub mod engine;
pub mod events;
pub mod execute;
pub mod fair;
pub mod health;
pub mod hooks;
pub mod informer;
pub mod kinds;
pub mod leader;
pub mod metrics;
pub mod queue;
pub mod record;
pub mod server;
pub mod settle;
pub mod store;
