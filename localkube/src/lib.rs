//! A real Kubernetes on one machine, as child processes: for tests, benchmarks and trying things out.
//!
//! ```no_run
//! # async fn example() -> localkube::Result<()> {
//! let cluster = localkube::Cluster::start(&localkube::Options { fake_nodes: 3, ..Default::default() }).await?;
//! let client = cluster.client();
//! # drop(client);
//! # Ok(())
//! # }
//! ```
//!
//! The control plane is stock etcd, kube-apiserver, kube-controller-manager and kube-scheduler, built from pinned
//! sources ([`cache`]). Nodes are fake ([`fake`]: cheap, thousands of pods) or real ([`real`]: kubelet and containerd,
//! root only). Several clusters can run side by side. However the process ends, nothing is left behind.

pub mod build;
pub mod cache;
mod cluster;
mod controlplane;
pub mod doctor;
mod error;
pub mod fake;
mod image;
pub mod nodes;
pub mod operator;
mod options;
mod pki;
pub mod process;
mod progress;
pub mod real;
mod registry;
mod rundir;
mod tools;
mod volumes;

pub use cache::Cache;
pub use cluster::{Cluster, service_account_kubeconfig};
pub use error::{Error, Result};
pub use image::Image;
pub use operator::{OperatorOptions, Operators};
pub use options::{Options, Pace};
pub use progress::Progress;
pub use registry::{EXAMPLE_IMAGES, Registry, game_image, operator_image, static_program};
pub use rundir::{reclaim_run, runs_root};
pub use tools::{GoProgram, KubeVersion, Module, Tool};
