//! What a hook measures, and how the result is evaluated.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::duration;

/// A metric: what is measured, how often, and when it is a success.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.count) || self.count <= 1 || has(self.interval)")
        .message("a count above 1 needs an interval").field_path(".interval"),
    validation = Rule::new("!has(self.count) || self.count == 0 || ((!has(self.failureLimit) || self.failureLimit <= self.count) && (!has(self.successfulLimit) || self.successfulLimit <= self.count) && (!has(self.inconclusiveLimit) || self.inconclusiveLimit <= self.count))")
        .message("failureLimit, successfulLimit and inconclusiveLimit may be at most count").field_path(".count"),
)]
pub struct Metric {
    /// Its name, unique among the metrics.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The time between two measurements, for example `30s` or `5m`. If absent there is one measurement, and an error
    /// is retried every 10 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    #[x_kube(validation = Rule::new("self == '' || duration(self) >= duration('1s')").message("the interval must be at least 1s"))]
    pub interval: Option<String>,
    /// Delay of the first measurement, from the start of the run; with policy Ordered, from the end of the previous
    /// metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "duration")]
    pub initial_delay: Option<String>,
    /// How many measurements are made. If 0 or absent: one without an interval, otherwise unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub count: Option<i32>,
    /// When a measurement is a success: an expression over `result`, for example `asInt(result) < 30`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub success_condition: Option<String>,
    /// When a measurement is a failure. It is evaluated before `successCondition`; if neither holds, the measurement is
    /// inconclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub failure_condition: Option<String>,
    /// The metric is Failed when more measurements than this are failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failure_limit: Option<i32>,
    /// The metric is Successful when this many measurements are successes; 0 disables the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub successful_limit: Option<i32>,
    /// The metric is Inconclusive when more measurements than this are inconclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub inconclusive_limit: Option<i32>,
    /// The metric ends as Error when more consecutive measurements than this are errors; 4 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub consecutive_error_limit: Option<i32>,
    /// The metric is Successful when this many consecutive measurements are successes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub consecutive_successful_limit: Option<i32>,
    /// What is queried.
    pub provider: Provider,
}

/// What is queried: exactly one of the fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.web), has(self.prometheus), has(self.kubernetes), has(self.exec)].filter(one, one).size() == 1")
        .message("exactly one of web, prometheus, kubernetes and exec"),
)]
pub struct Provider {
    /// A web server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web: Option<Web>,
    /// A Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<Prometheus>,
    /// The Kubernetes API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Kubernetes>,
    /// A command in the pod that the hook is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
}

/// A request to a web server. The answer must have a 2xx status and a JSON body.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Web {
    /// The url, http or https. `{{ args.NAME }}` stands for an argument.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// The method; GET if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Headers of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub headers: Vec<Header>,
    /// The body of a POST or PUT, sent as JSON. `{{ args.NAME }}` stands for an argument.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16_384))]
    pub body: Option<String>,
    /// The value in the answer, in the JSONPath of Kubernetes: `{$.age}`. The whole body if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub json_path: Option<String>,
    /// Timeout of the request; 10 if absent, and 60 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 300))]
    pub timeout_seconds: Option<i32>,
    /// CA certificates (PEM) for https, instead of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub ca_bundle: Option<String>,
    /// Follows redirects, at most five. Every target is checked like the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_redirects: Option<bool>,
}

/// The method of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// Without a body.
    #[default]
    Get,
    /// With a body.
    Post,
    /// With a body.
    Put,
}

/// A header of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.value) && has(self.valueFrom))").message("either value or valueFrom"),
)]
pub struct Header {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// Its value. `{{ args.NAME }}` stands for an argument.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub value: Option<String>,
    /// The source of its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<HeaderSource>,
}

/// The source of a header's value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeaderSource {
    /// A Secret of the HookRun's namespace. A Role there must allow the operator's ServiceAccount to `get` it.
    pub secret_key_ref: SecretKey,
}

/// A key of a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct SecretKey {
    /// The Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// The key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A query to a Prometheus. The result is a number, or a list of numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prometheus {
    /// The server, for example `http://prometheus.monitoring:9090`.
    #[schemars(length(min = 1, max = 2048))]
    pub address: String,
    /// The query. `{{ args.NAME }}` stands for an argument.
    #[schemars(length(min = 1, max = 4096))]
    pub query: String,
    /// Headers of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub headers: Vec<Header>,
    /// Timeout of the request; 30 if absent, and 60 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 300))]
    pub timeout_seconds: Option<i32>,
    /// CA certificates (PEM) for https, instead of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub ca_bundle: Option<String>,
}

/// Reads or patches one object of the run's namespace, impersonating a ServiceAccount there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Kubernetes {
    /// `get` or `patch`; get if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// The fields that are compared or set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub fields: Vec<Field>,
    /// The value for the conditions, in the JSONPath of Kubernetes. Only with `get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub json_path: Option<String>,
    /// The ServiceAccount that the operator impersonates; `default` if absent. A Role must allow the operator to
    /// impersonate it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,
}

/// What to do with an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// Compare fields, or read a value.
    #[default]
    Get,
    /// Set fields.
    Patch,
}

/// A field of an object and its value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Field {
    /// `metadata.annotations.<key>`.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^metadata\.annotations\..+$"))]
    pub path: String,
    /// The value. `{{ args.NAME }}` stands for an argument.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// A command in a container of the pod that the hook is about (argument `PodName`). Exit code 0 is a success; the
/// result is what the command prints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Exec {
    /// The container; the pod's first if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub container: Option<String>,
    /// The command and its arguments. `{{ args.NAME }}` stands for an argument.
    #[schemars(length(min = 1, max = 64), inner(length(max = 4096)))]
    pub command: Vec<String>,
    /// Timeout of the command; 10 if absent, and 60 at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 300))]
    pub timeout_seconds: Option<i32>,
    /// The ServiceAccount that the operator impersonates; `default` if absent. A Role must allow the operator to
    /// impersonate it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,
}

/// Whether metrics are measured in parallel or one after another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Policy {
    /// All metrics at the same time.
    #[default]
    Parallel,
    /// Each metric after the previous one was successful.
    Ordered,
}
