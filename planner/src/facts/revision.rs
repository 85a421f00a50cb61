//! What decisions know of a ControllerRevision.

use api::template::PodTemplate;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::object::Metadata;

/// A ControllerRevision as decisions see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RevisionFacts {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The uid of its controller.
    pub controller: Option<String>,
    /// Its place in history.
    pub number: i64,
    /// The template it records.
    pub template: PodTemplate,
    /// Whether it is being deleted: then only its name is used.
    #[serde(default)]
    pub deleting: bool,
}

#[derive(Deserialize)]
struct Wire<'a> {
    metadata: Metadata,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    revision: i64,
}

#[derive(Default, Deserialize)]
struct Data {
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    template: PodTemplate,
}

impl RevisionFacts {
    /// Reads a ControllerRevision from the API server's JSON; also its metadata.
    pub fn read(json: &str) -> Result<(Metadata, Self), serde_json::Error> {
        let Wire { metadata, data, revision } = serde_json::from_str(json)?;
        // Other controllers store other data.
        let data: Data = data.and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or_default();
        let facts = Self {
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            controller: metadata.controller.as_ref().map(|owner| owner.uid.to_string()),
            number: revision,
            template: data.spec.template,
            deleting: metadata.deleting,
        };
        Ok((metadata, facts))
    }
}
