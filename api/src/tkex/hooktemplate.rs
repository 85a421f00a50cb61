//! HookTemplate: a hook from which HookRuns are created.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::hook::HookArgument;
use super::metric::{Metric, Policy};

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "tkex.tencent.com",
    version = "v1alpha1",
    kind = "HookTemplate",
    namespaced,
    status = "HookTemplateStatus",
    shortname = "ht",
    category = "game",
    doc = "Checks that decide whether a rollout or a deletion continues. HookRuns are created from it.",
    derive = "PartialEq",
    printcolumn(
        name = "ACCEPTED",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].status",
        description = "Whether it is valid"
    ),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct HookTemplateSpec {
    /// What to measure.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub metrics: Vec<Metric>,
    /// Arguments, with their values unless the workload provides them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub args: Vec<HookArgument>,
    /// Whether metrics are measured in parallel or one after another; Parallel if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// Whether the template is valid.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookTemplateStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Accepted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".to_owned()]))]
    pub conditions: Vec<Condition>,
}
