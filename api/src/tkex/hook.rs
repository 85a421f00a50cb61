//! References from workloads to hooks.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// A hook to ask: a HookTemplate and its arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookStep {
    /// The HookTemplate, in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub template_name: String,
    /// Values of the HookTemplate's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub args: Vec<HookArgument>,
}

/// An argument of a hook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct HookArgument {
    /// The name of the argument.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its value; the HookTemplate's own value if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub value: Option<String>,
}

/// A hook that is asked about one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct PodHook {
    /// The hook. Without it none is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<HookStep>,
    /// Asks the hook again at once for pods that it denied. The operator resets it to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
}

/// A hook that must approve before a pod is deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct PreDeleteHook {
    /// The hook. Without it none is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<HookStep>,
    /// Asks the hook again at once for pods that it denied. The operator resets it to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<bool>,
    /// Guards deletions by others too: `kubectl delete pod`, evictions, deletion of the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protect: Option<bool>,
}
