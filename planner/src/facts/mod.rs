//! What decisions know of one object of Kubernetes' own kinds, and how that is read from its JSON.

pub mod node;
pub mod pdb;
pub mod pod;
pub mod revision;
