//! The pod template: opaque JSON that is passed to the pod unchanged.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// The largest template, in bytes of JSON.
pub const MAX_BYTES: usize = 512 * 1024;
/// The most values in a template: each parsed value needs far more memory than its text.
pub const MOST_VALUES: usize = 20_000;

/// The hash of a template's semantics: equal for templates that mean the same.
pub type Meaning = [u8; 32];

/// A pod template as the user wrote it, kept as text and parsed when needed. It is never converted to typed structures
/// and back, so fields that are newer than this program are preserved. Of a template that is too large only the size is
/// kept.
#[derive(Debug, Clone, Default)]
pub struct PodTemplate(Arc<Stored>);

#[derive(Debug)]
struct Stored {
    text: Result<Box<str>, TooLarge>,
    meaning: OnceLock<Meaning>,
}

/// Why a template is too large to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLarge {
    /// Its size in bytes.
    Bytes(usize),
    /// How many values it has.
    Values(usize),
}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(out, "has {bytes} bytes of JSON, at most {MAX_BYTES} are allowed"),
            Self::Values(values) => write!(out, "has {values} values, at most {MOST_VALUES} are allowed"),
        }
    }
}

impl Default for Stored {
    fn default() -> Self {
        Self { text: Ok("null".into()), meaning: OnceLock::new() }
    }
}

impl PodTemplate {
    fn new(text: Box<str>) -> Self {
        let text = if text.len() > MAX_BYTES {
            Err(TooLarge::Bytes(text.len()))
        } else {
            match values(&*text) {
                count if count > MOST_VALUES => Err(TooLarge::Values(count)),
                _ => Ok(text),
            }
        };
        Self(Arc::new(Stored { text, meaning: OnceLock::new() }))
    }

    /// Its JSON; null if it is too large.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.text.as_deref().unwrap_or("null")
    }

    /// Why it is too large, if it is.
    #[must_use]
    pub fn too_large(&self) -> Option<TooLarge> {
        self.0.text.as_ref().err().copied()
    }

    /// All of it, parsed on each call.
    #[must_use]
    pub fn value(&self) -> Value {
        self.read().unwrap_or_default()
    }

    /// The labels that pods get from the template.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.metadata().labels
    }

    /// The labels and annotations that pods get from the template. The rest is not parsed.
    #[must_use]
    pub fn metadata(&self) -> TemplateMetadata {
        self.read::<Described>().unwrap_or_default().metadata.unwrap_or_default()
    }

    /// The hash of its semantics, computed once.
    pub fn meaning(&self, work_out: impl FnOnce(&Value) -> Meaning) -> &Meaning {
        self.0.meaning.get_or_init(|| work_out(&self.value()))
    }

    fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.text()).ok()
    }
}

/// The metadata that pods get from a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, deserialize_with = "texts")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, deserialize_with = "texts")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct Described {
    #[serde(default)]
    metadata: Option<TemplateMetadata>,
}

/// A map of strings. Values that are not strings are left out: the API server refuses such a pod.
fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let all = Option::<BTreeMap<String, Value>>::deserialize(from)?.unwrap_or_default();
    Ok(all.into_iter().filter_map(|(key, value)| if let Value::String(text) = value { Some((key, text)) } else { None }).collect())
}

/// An upper bound of the number of values in a JSON text, counted without parsing it.
#[must_use]
pub fn values(text: impl AsRef<[u8]>) -> usize {
    let (mut count, mut is_string, mut is_escaped) = (1, false, false);
    for &byte in text.as_ref() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b',' | b'[' | b'{' if !is_string => count += 1,
            _ => {}
        }
    }
    count
}

impl From<&Value> for PodTemplate {
    fn from(value: &Value) -> Self {
        Self::new(value.to_string().into())
    }
}

impl From<Value> for PodTemplate {
    fn from(value: Value) -> Self {
        Self::from(&value)
    }
}

impl PartialEq for PodTemplate {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.text == other.0.text
    }
}

impl Eq for PodTemplate {}

impl Serialize for PodTemplate {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(self.text()).map_err(serde::ser::Error::custom)?.serialize(to)
    }
}

impl<'de> Deserialize<'de> for PodTemplate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text: Box<RawValue> = Deserialize::deserialize(from).map_err(D::Error::custom)?;
        Ok(Self::new(text.into()))
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// Preserves unknown fields and declares those that validation rules read.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_kept_as_it_was_written() {
        let text = r#"{"z":1.50,"a":{"deep":[1,null,"\u00e9"]},"metadata":{"labels":{"app":"game","odd":1},"annotations":null}}"#;
        let template: PodTemplate = serde_json::from_str(text).unwrap();
        assert_eq!(template.text(), text);
        assert_eq!(serde_json::to_string(&template).unwrap(), text);
        assert_eq!(template.labels(), BTreeMap::from([("app".to_owned(), "game".to_owned())]));
        let again: PodTemplate = serde_json::from_value(template.value()).unwrap();
        assert_eq!(again.value(), template.value());
    }

    #[test]
    fn of_a_template_that_is_too_large_only_the_size_is_kept() {
        let of = |text: &str| serde_json::from_str::<PodTemplate>(text).unwrap();
        let long = of(&format!(r#"{{"a":"{}"}}"#, "x".repeat(MAX_BYTES)));
        assert_eq!(long.too_large(), Some(TooLarge::Bytes(MAX_BYTES + 8)));
        let junk = of(&format!("[{}0]", r#"{"a":0},"#.repeat(MOST_VALUES)));
        assert!(matches!(junk.too_large(), Some(TooLarge::Values(_))), "{junk:?}");
        assert_eq!((junk.text(), junk.value()), ("null", Value::Null));
        assert_eq!(of(&format!(r#""{}""#, r#",[{\""#.repeat(MOST_VALUES))).too_large(), None, "text is no structure");
    }
}
