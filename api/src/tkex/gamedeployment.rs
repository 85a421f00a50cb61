//! GameDeployment: interchangeable game servers.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::hook::{PodHook, PreDeleteHook};
use super::strategy::UpdateStrategy;
use crate::selector::LabelSelector;
use crate::template::PodTemplate;

/// The desired state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "tkex.tencent.com",
    version = "v1alpha1",
    kind = "GameDeployment",
    namespaced,
    status = "GameDeploymentStatus",
    shortname = "gd",
    category = "game",
    doc = "A number of interchangeable game servers that are updated without losing a player.",
    derive = "PartialEq",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas", label_selector_path = ".status.labelSelector"),
    printcolumn(name = "DESIRED", type_ = "integer", json_path = ".spec.replicas", description = "Desired pods"),
    printcolumn(name = "UPDATED", type_ = "integer", json_path = ".status.updatedReplicas", description = "Pods on the update revision"),
    printcolumn(name = "UPDATED_READY", type_ = "integer", json_path = ".status.updatedReadyReplicas", description = "Pods on the update revision that are ready"),
    printcolumn(name = "READY", type_ = "integer", json_path = ".status.readyReplicas", description = "Pods that are ready"),
    printcolumn(name = "TOTAL", type_ = "integer", json_path = ".status.replicas", description = "Pods that exist"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "STATE", type_ = "string", json_path = ".status.conditions[?(@.type==\"Progressing\")].reason", priority = 1, description = "What the operator is doing"),
    printcolumn(name = "CURRENT", type_ = "string", json_path = ".status.currentRevision", priority = 1, description = "The stable revision"),
    printcolumn(name = "UPDATE", type_ = "string", json_path = ".status.updateRevision", priority = 1, description = "The revision of the template"),
    validation = Rule::new("oldSelf.hasValue() || self.metadata.name.size() <= 52")
        .message("the name may have at most 52 characters: with a revision's hash it becomes a label of pods")
        .optional_old_self(true),
)]
#[x_kube(
    validation = Rule::new("!has(self.selector.matchLabels) || self.selector.matchLabels.all(key, has(self.template.metadata) && has(self.template.metadata.labels) && key in self.template.metadata.labels && self.template.metadata.labels[key] == self.selector.matchLabels[key])")
        .message("selector.matchLabels must be among template.metadata.labels")
        .field_path(".template.metadata.labels"),
    validation = Rule::new("!has(self.selector.matchExpressions) || self.selector.matchExpressions.all(e, has(self.template.metadata) && has(self.template.metadata.labels) && e.key in self.template.metadata.labels ? (e.operator == 'Exists' || e.operator == 'In' && has(e.values) && self.template.metadata.labels[e.key] in e.values || e.operator == 'NotIn' && (!has(e.values) || !(self.template.metadata.labels[e.key] in e.values))) : (e.operator == 'DoesNotExist' || e.operator == 'NotIn'))")
        .message("template.metadata.labels must satisfy selector.matchExpressions")
        .field_path(".template.metadata.labels"),
)]
pub struct GameDeploymentSpec {
    /// How many pods are desired.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Which pods belong to this GameDeployment. It must match the template's labels and cannot be changed.
    #[x_kube(
        validation = Rule::new("self == oldSelf").message("the selector cannot be changed: pods that no longer match would be left behind"),
        validation = Rule::new("has(self.matchLabels) && self.matchLabels.size() > 0 || has(self.matchExpressions) && self.matchExpressions.size() > 0").message("an empty selector would match every pod"),
    )]
    pub selector: LabelSelector,
    /// The pod template, passed on to pods as it is written here.
    pub template: PodTemplate,
    /// Which pods are deleted first when scaling in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<ScaleStrategy>,
    /// How pods are updated to a new template.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// A hook that must approve before a pod is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_delete_update_strategy: Option<PreDeleteHook>,
    /// A hook that must approve before the in-place update of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_inplace_update_strategy: Option<PodHook>,
    /// A hook that is asked after the in-place update of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_inplace_update_strategy: Option<PodHook>,
    /// How many revisions are kept besides those that pods use.
    #[serde(default = "ten")]
    #[schemars(range(min = 0))]
    pub revision_history_limit: i32,
    /// How long a pod must be ready before it counts as available.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: i32,
    /// Gives every pod a unique number, in the annotation `tkex.bkbcs.tencent.com/gamedeployment-index-id` and the
    /// variable `POD_INDEX`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_index: Option<PodIndex>,
    /// Creates pods without the readiness gate `InPlaceUpdateReady`: in-place updates then do not remove them from
    /// endpoints first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_readiness_gate: Option<bool>,
    /// Has no effect; accepted for existing manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_name: Option<String>,
}

fn one() -> i32 {
    1
}

fn ten() -> i32 {
    10
}

/// Which pods are deleted first when scaling in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleStrategy {
    /// Names of pods to delete. They are replaced unless `replicas` is lowered too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10_000), inner(length(max = 253)))]
    pub pods_to_delete: Vec<String>,
}

/// Numbers for pods: each gets the lowest free one, from `start` up to but not including `end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self.start < self.end").message("end must be above start").field_path(".end"))]
pub struct PodIndex {
    /// The first number.
    #[schemars(range(min = 0))]
    pub start: i32,
    /// The number after the last.
    #[schemars(range(min = 1))]
    pub end: i32,
}

/// The observed state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GameDeploymentStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods that exist and are not being deleted.
    #[serde(default)]
    pub replicas: i32,
    /// Of `replicas`, those that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Of `replicas`, those that are ready for at least `minReadySeconds`.
    #[serde(default)]
    pub available_replicas: i32,
    /// Pods on the update revision.
    #[serde(default)]
    pub updated_replicas: i32,
    /// Of `updatedReplicas`, those that are ready.
    #[serde(default)]
    pub updated_ready_replicas: i32,
    /// The revision of the template.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub update_revision: String,
    /// The stable revision: the last one that every pod had.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// How many hash collisions of revision names have occurred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// The selector as text, for the HorizontalPodAutoscaler.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// Progressing, Available, Paused and Degraded; Protected with `preDeleteUpdateStrategy.protect`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
    /// Why and since when the operator pauses the rollout.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pause_conditions: Vec<PauseCondition>,
    /// The canary step that the rollout is at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step_index: Option<i32>,
    /// The hash of the steps that `currentStepIndex` refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step_hash: Option<String>,
    /// The state of the canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryStatus>,
    /// Pods that wait for a hook before they are deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre_delete_hook_condition: Vec<PodHookCondition>,
    /// Pods that wait for a hook before their in-place update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre_inplace_hook_condition: Vec<PodHookCondition>,
    /// Pods whose hook after an in-place update is running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post_inplace_hook_condition: Vec<PodHookCondition>,
}

/// Why the operator pauses the rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PauseCondition {
    /// PausedByCanaryPauseStep or PausedByStepBasedHook.
    pub reason: String,
    /// Since when.
    pub start_time: Time,
}

/// The state of the canary.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStatus {
    /// The stable revision: the last one that every pod had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Since when the current step pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_start_time: Option<Time>,
    /// The HookRun of the current step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step_hook_run: Option<String>,
}

/// A pod that waits for a hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodHookCondition {
    /// The pod.
    pub pod_name: String,
    /// Since when.
    pub start_time: Time,
    /// The phase of its HookRun.
    pub phase: String,
}
