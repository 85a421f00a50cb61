//! The options of a cluster.

use std::path::PathBuf;
use std::time::Duration;

use crate::progress::Progress;
use crate::tools::KubeVersion;

/// How a cluster is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Nodes simulated through the API: they run nothing and cost almost nothing.
    pub fake_nodes: u32,
    /// Nodes with a kubelet and containerd. Root only.
    pub real_nodes: u32,
    /// The Kubernetes version.
    pub kube: KubeVersion,
    /// The API server's port; a free one by default.
    pub port: Option<u16>,
    /// A copy of the administrator's kubeconfig; the file must not exist, and is removed with the cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Write the API server's audit log (metadata level).
    pub audit: bool,
    /// How long a node may not report before it is Unknown; Kubernetes' own default if not set.
    pub node_grace: Option<Duration>,
    /// Whether progress is printed.
    pub progress: Progress,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fake_nodes: 0,
            real_nodes: 0,
            kube: KubeVersion::default(),
            port: None,
            kubeconfig: None,
            audit: false,
            node_grace: None,
            progress: Progress::quiet(),
        }
    }
}

/// The client-side rate limit of the built-in controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The default of Kubernetes.
    Shipped,
    /// More requests than an API server can answer.
    Unlimited,
}
