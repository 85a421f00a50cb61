//! Decides what happens next, in pure functions: no async, no client, no clock, no randomness. The same input, in any
//! order, gives the same plan.

pub mod condition;
pub mod facts;
pub mod gamedeployment;
mod hash;
pub mod hold;
pub mod hookrun;
pub mod hooktemplate;
pub mod jsonpath;
pub mod plan;
pub mod quantity;
pub mod refusal;
pub mod request;
pub mod workload;
