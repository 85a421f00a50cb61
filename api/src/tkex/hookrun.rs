//! HookRun: one execution of a hook, and its verdict.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hook::HookArgument;
use super::metric::{Metric, Policy};

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "tkex.tencent.com",
    version = "v1alpha1",
    kind = "HookRun",
    namespaced,
    status = "HookRunStatus",
    shortname = "hr",
    category = "game",
    doc = "One execution of a hook: what was measured, and the verdict.",
    derive = "PartialEq",
    printcolumn(name = "PHASE", type_ = "string", json_path = ".status.phase", description = "The verdict, or Running"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new("self.metrics == oldSelf.metrics && has(self.args) == has(oldSelf.args) && (!has(self.args) || self.args == oldSelf.args) && has(self.policy) == has(oldSelf.policy) && (!has(self.policy) || self.policy == oldSelf.policy)")
        .message("a HookRun is immutable: only terminate can be changed"),
)]
pub struct HookRunSpec {
    /// What to measure.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub metrics: Vec<Metric>,
    /// Arguments and their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub args: Vec<HookArgument>,
    /// Whether metrics are measured in parallel or one after another; Parallel if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Ends the run as Cancelled, which is never an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminate: Option<bool>,
}

/// What was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookRunStatus {
    /// Running, or the verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why, if it is not Successful.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// What was measured, by metric.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metric_results: Vec<MetricResult>,
    /// `Complete`: whether there is a verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}

/// Pending, Running, or a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Not started.
    Pending,
    /// Running.
    Running,
    /// A success; as the phase of a HookRun, an approval.
    Successful,
    /// A failure.
    Failed,
    /// It could not be measured.
    Error,
    /// Neither a success nor a failure.
    Inconclusive,
    /// Ended by `terminate`; never an approval.
    Cancelled,
    /// Not measured, because the run ended first.
    Skipped,
}

impl Phase {
    /// Whether the phase is final.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// What was measured for one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricResult {
    /// The metric.
    pub name: String,
    /// Running, or its verdict.
    pub phase: Phase,
    /// Why, if it is not Successful.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Measurements that had an answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: i32,
    /// Of `count`, the successful ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub successful: i32,
    /// Of `count`, the failed ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: i32,
    /// Of `count`, the inconclusive ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inconclusive: i32,
    /// Measurements without an answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub error: i32,
    /// Measurements without an answer since the last one with an answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub consecutive_error: i32,
    /// Successful measurements since the last one that was not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub consecutive_successful: i32,
    /// The last ten measurements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measurements: Vec<Measurement>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the serializer passes references")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Measurement {
    /// How it ended.
    pub phase: Phase,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it started.
    pub started_at: Time,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// What was measured; at most 1 KiB of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}
