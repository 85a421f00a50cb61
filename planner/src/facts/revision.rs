//! What decisions know of a ControllerRevision.

use api::template::PodTemplate;
use serde::{Deserialize, Serialize};

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
