//! What decisions know of one object of a built-in kind of Kubernetes.

pub mod node;
pub mod pdb;
pub mod pod;
pub mod revision;
