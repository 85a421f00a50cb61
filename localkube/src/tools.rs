//! The binaries of a cluster, and the pinned Go module that each is built from.

use crate::error::{Error, Result};

/// A supported Kubernetes version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KubeVersion {
    /// The oldest supported minor.
    V1_33,
    /// The default.
    #[default]
    V1_35,
}

impl KubeVersion {
    /// All of them, oldest first.
    pub const ALL: [Self; 2] = [Self::V1_33, Self::V1_35];

    /// The minor version, for example `1.35`.
    #[must_use]
    pub fn minor(self) -> &'static str {
        match self {
            Self::V1_33 => "1.33",
            Self::V1_35 => "1.35",
        }
    }

    fn module(self) -> &'static Module {
        match self {
            Self::V1_33 => &KUBE_1_33,
            Self::V1_35 => &KUBE_1_35,
        }
    }
}

impl std::str::FromStr for KubeVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known: Vec<_> = Self::ALL.iter().map(|version| version.minor()).collect();
        Self::ALL
            .into_iter()
            .find(|version| version.minor() == text)
            .ok_or_else(|| Error::Invalid(format!("Kubernetes {text} is not pinned here: choose one of {}", known.join(", "))))
    }
}

/// A binary that a cluster runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The database of the API server.
    Etcd,
    /// The API server.
    Apiserver,
    /// The built-in controllers.
    ControllerManager,
    /// The scheduler.
    Scheduler,
    /// The command-line client.
    Kubectl,
    /// The node agent of real nodes.
    Kubelet,
    /// Services on real nodes.
    Proxy,
    /// Cluster DNS on real nodes.
    Coredns,
}

impl Tool {
    /// What the control plane and its user need.
    pub const CONTROL_PLANE: [Self; 5] = [Self::Etcd, Self::Apiserver, Self::ControllerManager, Self::Scheduler, Self::Kubectl];
    /// What real nodes need in addition.
    pub const REAL_NODES: [Self; 3] = [Self::Kubelet, Self::Proxy, Self::Coredns];

    /// Every tool.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::CONTROL_PLANE.into_iter().chain(Self::REAL_NODES)
    }

    /// The name of the binary.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kubelet => "kubelet",
            Self::Proxy => "kube-proxy",
            Self::Coredns => "coredns",
        }
    }

    fn module(self, kube: KubeVersion) -> &'static Module {
        match self {
            Self::Etcd => &ETCD,
            Self::Coredns => &COREDNS,
            Self::Apiserver | Self::ControllerManager | Self::Scheduler | Self::Kubectl | Self::Kubelet | Self::Proxy => kube.module(),
        }
    }

    /// How it is built for clusters of a Kubernetes version.
    pub(crate) fn program(self, kube: KubeVersion) -> GoProgram {
        GoProgram { name: self.name(), package: self.package(), module: self.module(kube) }
    }

    fn package(self) -> String {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".to_owned(),
            Self::Coredns => "github.com/coredns/coredns".to_owned(),
            Self::Apiserver | Self::ControllerManager | Self::Scheduler | Self::Kubectl | Self::Kubelet | Self::Proxy => {
                format!("k8s.io/kubernetes/cmd/{}", self.name())
            }
        }
    }
}

/// A program and the pinned module that it is built from.
#[derive(Debug, Clone)]
pub struct GoProgram {
    /// The name of the binary.
    pub name: &'static str,
    /// Its main package.
    pub package: String,
    /// The module that pins its versions.
    pub module: &'static Module,
}

/// A go.mod and its go.sum.
#[derive(Debug)]
pub struct Module {
    /// The prefix of its cache folders.
    pub name: &'static str,
    /// The content of go.mod.
    pub go_mod: &'static str,
    /// The content of go.sum.
    pub go_sum: &'static str,
}

static KUBE_1_35: Module = Module { name: "kube", go_mod: include_str!("../kube/go.mod"), go_sum: include_str!("../kube/go.sum") };
static KUBE_1_33: Module =
    Module { name: "kube-1.33", go_mod: include_str!("../kube-1.33/go.mod"), go_sum: include_str!("../kube-1.33/go.sum") };
static ETCD: Module = Module { name: "etcd", go_mod: include_str!("../etcd/go.mod"), go_sum: include_str!("../etcd/go.sum") };
static COREDNS: Module = Module { name: "coredns", go_mod: include_str!("../coredns/go.mod"), go_sum: include_str!("../coredns/go.sum") };

impl Module {
    /// The `go` line: the oldest Go that builds this module.
    pub(crate) fn needed_go(&self) -> &'static str {
        self.go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.24")
    }

    /// The required Kubernetes version, if the module has one.
    fn kubernetes(&self) -> Option<&'static str> {
        let line = self.go_mod.lines().find(|line| line.contains("k8s.io/kubernetes v"))?;
        line.split_whitespace().find(|word| word.starts_with("v1."))
    }

    pub(crate) fn linker_flags(&self) -> String {
        let mut flags = "-s -w".to_owned();
        if let Some(version) = self.kubernetes() {
            let minor = version.split('.').nth(1).unwrap_or_default();
            for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
                flags += &format!(" -X {package}.gitVersion={version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor}");
            }
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_binaries_carry_their_version() {
        assert!(KUBE_1_35.linker_flags().contains("version.gitVersion=v1.35."));
        assert!(KUBE_1_33.linker_flags().contains("version.gitMinor=33"));
        assert_eq!(ETCD.linker_flags(), "-s -w");
    }

    #[test]
    fn every_tool_is_pinned_in_its_module() {
        for tool in Tool::all() {
            for kube in KubeVersion::ALL {
                let pinned = tool.module(kube).go_mod;
                assert!(pinned.contains(&tool.package()), "{} is not a tool of its go.mod", tool.name());
            }
        }
    }

    #[test]
    fn an_unknown_version_names_the_known_ones() {
        let error = "1.12".parse::<KubeVersion>().unwrap_err().to_string();
        assert!(error.contains("1.33, 1.35"), "{error}");
    }
}
