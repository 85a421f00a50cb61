//! How a workload's pods are updated.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hook::HookStep;

/// How pods are updated to a new template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(string(self.maxUnavailable) in ['0', '0%'] && string(self.maxSurge) in ['0', '0%'])")
        .message("maxUnavailable and maxSurge may not both be zero: no pod could ever be updated"))]
pub struct UpdateStrategy {
    /// RollingUpdate replaces pods; InplaceUpdate restarts containers and keeps the pod; HotPatchUpdate swaps files and
    /// keeps the container; OnDelete replaces a pod when it is deleted.
    #[serde(rename = "type", default)]
    pub kind: UpdateType,
    /// How many pods stay on the current revision (a number or a percentage of `replicas`, rounded up). Ignored while
    /// `canary` has steps.
    #[serde(default = "zero")]
    #[schemars(schema_with = "crate::schema::count_or_share")]
    pub partition: IntOrString,
    /// How many pods may be unavailable during an update (a number or a percentage of `replicas`, rounded down, but at
    /// least 1 unless `maxSurge` is above 0).
    #[serde(default = "quarter")]
    #[schemars(schema_with = "crate::schema::count_or_share")]
    pub max_unavailable: IntOrString,
    /// How many pods may exist beyond `replicas` during a RollingUpdate (a number or a percentage of `replicas`,
    /// rounded up).
    #[serde(default = "zero")]
    #[schemars(schema_with = "crate::schema::count_or_any_share")]
    pub max_surge: IntOrString,
    /// Stops the rollout while true. Scaling continues.
    #[serde(default)]
    pub paused: bool,
    /// How InplaceUpdate works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place_update_strategy: Option<InPlace>,
    /// How HotPatchUpdate works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_patch: Option<HotPatch>,
    /// A stepwise rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

impl Default for UpdateStrategy {
    fn default() -> Self {
        Self {
            kind: UpdateType::default(),
            partition: zero(),
            max_unavailable: quarter(),
            max_surge: zero(),
            paused: false,
            in_place_update_strategy: None,
            hot_patch: None,
            canary: None,
        }
    }
}

fn zero() -> IntOrString {
    IntOrString::Int(0)
}

fn quarter() -> IntOrString {
    IntOrString::String("25%".to_owned())
}

/// How a pod gets the new template.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateType {
    /// The pod is deleted and a new one created.
    #[default]
    RollingUpdate,
    /// Containers restart on the new image; the pod stays.
    InplaceUpdate,
    /// Files change under the running container; the container stays.
    HotPatchUpdate,
    /// A pod gets the new template when it is deleted.
    OnDelete,
}

/// How InplaceUpdate works.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct InPlace {
    /// How long the pod is removed from endpoints before its containers restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub grace_period_seconds: Option<i32>,
    /// In which order several changed containers of one pod are updated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<ContainerOrder>,
    /// What to do if the template changed more than an in-place update can apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_not_possible: Option<WhenNotPossible>,
}

/// In which order several changed containers of one pod are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerOrder {
    /// All at once.
    DisOrdered,
    /// The next one when the previous one is ready.
    OrderedReady,
    /// The next one when the previous one runs its new image.
    OrderedUpdated,
}

/// What to do where an in-place update is not possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenNotPossible {
    /// Leave the pod as it is; a condition says why.
    Hold,
    /// Replace the pod.
    Recreate,
}

/// How HotPatchUpdate works.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HotPatch {
    /// What applies patches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<HotPatchExecutor>,
    /// What is patched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<HotPatchMode>,
    /// Directories to patch; if empty, every directory of the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 4096)))]
    pub paths: Vec<String>,
    /// Whether files that the new image lacks are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune: Option<bool>,
    /// How the running process is told to reload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload: Option<Reload>,
    /// How long one patch may take, the pull included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_seconds: Option<i32>,
    /// How often a failed patch is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub attempts: Option<i32>,
    /// What happens when a patched container restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_restart: Option<OnRestart>,
    /// What happens to a file that the process itself changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<OnConflict>,
    /// How much one patch may write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<HotPatchLimits>,
}

/// What applies patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HotPatchExecutor {
    /// An ephemeral container of the pod.
    Pod,
    /// A kubelet that supports it.
    Kubelet,
}

/// What is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HotPatchMode {
    /// The container's own file system.
    Rootfs,
    /// A volume that survives restarts of the container.
    Volume,
}

/// What happens when a patched container restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnRestart {
    /// The pod gets the new image.
    UpdateImage,
    /// The patch is applied again.
    Reapply,
}

/// What happens to a file that the process itself changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnConflict {
    /// The new image's file replaces it.
    Overwrite,
    /// The patch fails.
    Fail,
}

/// How the running process is told to reload; one of the fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Reload {
    /// A signal, for example HUP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub signal: Option<String>,
    /// An HTTP request to the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpReload>,
    /// A command in the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub command: Vec<String>,
}

/// A request that makes the process reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct HttpReload {
    /// The port in the pod.
    #[schemars(range(min = 1, max = 65_535))]
    pub port: i32,
    /// The path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
}

/// How much one patch may write.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HotPatchLimits {
    /// Bytes, as a quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub max_bytes: Option<String>,
    /// Files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_files: Option<i32>,
}

/// A stepwise rollout.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct Canary {
    /// The steps, in order. After the last one every pod is updated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub steps: Vec<Step>,
}

/// A canary step: exactly one of `partition`, `pause` and `hook`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.partition), has(self.pause), has(self.hook)].filter(given, given).size() == 1")
        .message("a step has exactly one of partition, pause and hook"))]
pub struct Step {
    /// Updates pods until this many are left on the current revision (a number or a percentage of `replicas`, rounded
    /// up).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::count_or_share")]
    pub partition: Option<IntOrString>,
    /// Pauses the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// Asks a hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<HookStep>,
    /// What happens when the hook fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
}

/// A pause of a rollout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Pause {
    /// Length in seconds; if absent, until `paused` is set to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub duration: Option<i32>,
}

/// What happens when the hook of a step fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// The rollout pauses.
    Pause,
    /// Updated pods return to the current revision.
    Rollback,
}
