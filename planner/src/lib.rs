//! What should happen next. Pure functions: no async, no client, no clock, no randomness. The same input, in any order, gives the same plan.

pub mod approval;
pub mod budget;
pub mod canary;
pub mod claim;
pub mod condition;
pub mod gamedeployment;
pub mod gate;
mod hash;
pub mod hold;
pub mod hookrun;
pub mod hooktemplate;
pub mod index;
pub mod inplace;
pub mod jsonpath;
pub mod manifest;
pub mod naming;
pub mod node;
pub mod order;
pub mod plan;
pub mod pod;
pub mod protect;
pub mod quantity;
pub mod refusal;
pub mod request;
pub mod revision;
pub mod templates;
