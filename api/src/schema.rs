//! From Rust types to CustomResourceDefinitions that a plain `kubectl apply` accepts.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use crate::tkex::{GameDeployment, HookRun, HookTemplate};

/// Every CustomResourceDefinition, with the name of its file.
#[must_use]
pub fn crds() -> Vec<(String, Value)> {
    [GameDeployment::crd(), HookRun::crd(), HookTemplate::crd()].iter().map(finish).collect()
}

fn finish(crd: &CustomResourceDefinition) -> (String, Value) {
    let mut crd = serde_json::to_value(crd).unwrap_or_default();
    tidy(&mut crd);
    if let Some(status) = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status") {
        forget_defaults(status);
    }
    let name = crd.pointer("/spec/names/plural").and_then(Value::as_str).unwrap_or_default();
    (format!("{name}.yaml"), crd)
}

/// Removes what only Rust needs. Without `nullable` the API server treats a null as absent, so that defaults apply to
/// it.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("nullable") == Some(&Value::Bool(true)) {
                fields.remove("nullable");
            }
            // An empty default would only fill objects with empty fields.
            if fields.get("default").is_some_and(is_blank) {
                fields.remove("default");
            }
            // An enum of an optional field lists null as well.
            if let Some(Value::Array(allowed)) = fields.get_mut("enum") {
                allowed.retain(|value| !value.is_null());
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A status holds only what was observed: it gets no defaults.
fn forget_defaults(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("default");
            fields.values_mut().for_each(forget_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_defaults),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The YAML of a CustomResourceDefinition.
pub fn to_yaml(crd: &Value) -> Result<String, serde_saphyr::ser::Error> {
    serde_saphyr::to_string(crd)
}

pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "type": "string", "maxLength": 63 } })
}

/// A number of pods, or a percentage of `replicas` up to 100 %.
pub(crate) fn count_or_share(_: &mut SchemaGenerator) -> Schema {
    int_or_percent("^([0-9]|[1-9][0-9]|100)%$")
}

/// A number of pods, or a percentage of `replicas` that may exceed 100 %.
pub(crate) fn count_or_any_share(_: &mut SchemaGenerator) -> Schema {
    int_or_percent("^(0|[1-9][0-9]{0,3})%$")
}

/// A duration in Go's notation.
pub(crate) fn duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "maxLength": 32, "pattern": r"^(([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+|0)?$" })
}

fn int_or_percent(pattern: &str) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "minimum": 0,
        "maximum": i32::MAX,
        "maxLength": 5,
        "pattern": pattern,
    })
}
