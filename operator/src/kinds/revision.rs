//! ControllerRevisions of our kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use planner::revision::{RevisionFacts, template_of};
use serde::Deserialize;
use serde_json::Value;

use super::OwnerReference;
use crate::store::{Index, Kept, Key};

/// A ControllerRevision that we own or that nobody owns.
#[derive(Debug)]
pub struct Revision {
    /// What decisions see.
    pub facts: Arc<RevisionFacts>,
    /// Who controls it.
    pub controller: Option<OwnerReference>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    namespace: String,
    version: u64,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Meta,
    #[serde(default)]
    data: Value,
    #[serde(default)]
    revision: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

impl Kept for Revision {
    const KIND: &'static str = "ControllerRevision";
    const PATH: &'static str = "/apis/apps/v1/controllerrevisions";

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let Wire { metadata: meta, data, revision } = serde_json::from_str(json)?;
        let controller = OwnerReference::controller(meta.owner_references);
        let facts = RevisionFacts {
            name: meta.name,
            uid: meta.uid,
            controller: controller.as_ref().map(|owner| owner.uid.clone()),
            number: revision,
            template: Arc::new(template_of(&data)),
        };
        let version = meta.resource_version.parse().unwrap_or_default();
        Ok(Self { facts: Arc::new(facts), controller, labels: meta.labels, namespace: meta.namespace, version })
    }

    fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.facts.name.clone() }
    }

    fn uid(&self) -> &str {
        &self.facts.uid
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn index(&self) -> Option<Index> {
        let orphan = || Index::Orphan(self.namespace.clone());
        Some(self.controller.as_ref().map_or_else(orphan, |owner| Index::Owner(owner.uid.clone())))
    }

    fn matters(&self) -> bool {
        self.controller.as_ref().is_none_or(OwnerReference::is_ours)
    }
}
