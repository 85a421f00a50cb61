//! What decisions know of one object of a built-in kind of Kubernetes, and how it is read from the API server's JSON.

pub mod node;
pub mod object;
pub mod pdb;
pub mod pod;
pub mod revision;
pub mod text;
