//! ControllerRevisions of GameDeployments.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::template::PodTemplate;
use planner::facts::revision::RevisionFacts;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::OwnerReference;
use crate::allowance::weight_of;
use crate::store::{Cached, Index, Key};

/// The bytes that every revision needs, however short it is.
const PER_REVISION: usize = 1024;

/// A ControllerRevision of a GameDeployment, or without a controller.
#[derive(Debug)]
pub struct Revision {
    /// What decisions see.
    pub facts: Arc<RevisionFacts>,
    /// Its controller.
    pub controller: Option<OwnerReference>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Why its template is not kept.
    pub too_large: Option<String>,
    namespace: String,
    version: u64,
    size: usize,
}

#[derive(Deserialize)]
struct Wire<'a> {
    metadata: Meta,
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    deletion_timestamp: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

impl Cached for Revision {
    const KIND: &'static str = "ControllerRevision";
    const PATH: &'static str = "/apis/apps/v1/controllerrevisions";
    const IS_CORE: bool = true;

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let Wire { metadata: meta, data, revision } = serde_json::from_str(json)?;
        let controller = OwnerReference::controller(meta.owner_references);
        // Other controllers store other data.
        let data: Data = data.and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or_default();
        let facts = RevisionFacts {
            name: meta.name,
            uid: meta.uid,
            controller: controller.as_ref().map(|owner| owner.uid.clone()),
            number: revision,
            template: data.spec.template,
            deleting: meta.deletion_timestamp.is_some(),
        };
        let version = meta.resource_version.parse().unwrap_or_default();
        let size = PER_REVISION + facts.template.text().len().saturating_add(weight_of(&meta.labels));
        let (facts, namespace) = (Arc::new(facts), meta.namespace);
        Ok(Self { facts, controller, labels: meta.labels, too_large: None, namespace, version, size })
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
        Some(super::index(self.controller.as_ref(), &self.namespace))
    }

    fn matters(&self) -> bool {
        // Without its labels it is not known whether an orphan is to be adopted, so one that is cut is not kept.
        self.controller.as_ref().map_or(self.too_large.is_none(), OwnerReference::is_ours)
    }

    fn size(&self) -> usize {
        self.size
    }

    fn too_large(&self) -> Option<&str> {
        self.too_large.as_deref()
    }

    fn cut(&mut self, why: String) {
        self.labels = BTreeMap::new();
        Arc::make_mut(&mut self.facts).template = PodTemplate::default();
        self.size = 0;
        self.too_large = Some(why);
    }
}
