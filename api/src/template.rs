//! The pod template: opaque JSON that reaches the pod untouched.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A pod template as the user wrote it. It is never turned into typed structures and back, so fields that are newer than this program survive.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub Value);

impl PodTemplate {
    /// The labels that pods get from the template.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        let labels = self.0.pointer("/metadata/labels").and_then(Value::as_object);
        let pairs = labels.into_iter().flatten();
        pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// Open, but declaring what rules read.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "metadata": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {
                        "labels": { "type": "object", "maxProperties": 128, "additionalProperties": { "type": "string", "maxLength": 63 } },
                    },
                },
                "spec": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "properties": { "restartPolicy": { "type": "string", "enum": ["Always"] } },
                },
            },
        })
    }
}
