//! ControllerRevisions of GameDeployments.

use std::sync::Arc;

use api::template::PodTemplate;
use planner::facts::object::{Metadata, OwnerReference};
use planner::facts::revision::RevisionFacts;
use planner::facts::text::Texts;

use super::is_ours;
use crate::allowance::weight_of;
use crate::store::{Cached, Index};

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
    pub labels: Texts,
    /// Why its template is not kept.
    pub too_large: Option<String>,
    namespace: String,
    version: u64,
    size: usize,
}

impl Cached for Revision {
    const KIND: &'static str = "ControllerRevision";
    const PATH: &'static str = "/apis/apps/v1/controllerrevisions";
    const IS_CORE: bool = true;

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let (meta, facts) = RevisionFacts::read(json)?;
        let size = PER_REVISION + facts.template.text().len().saturating_add(weight_of(&meta.labels));
        let Metadata { namespace, version, labels, controller, .. } = meta;
        Ok(Self { facts: Arc::new(facts), controller, labels, too_large: None, namespace, version, size })
    }

    fn name(&self) -> &str {
        &self.facts.name
    }

    fn namespace(&self) -> &str {
        &self.namespace
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
        self.controller.as_ref().map_or(self.too_large.is_none(), is_ours)
    }

    fn size(&self) -> usize {
        self.size
    }

    fn too_large(&self) -> Option<&str> {
        self.too_large.as_deref()
    }

    fn cut(&mut self, why: String) {
        self.labels = Texts::default();
        Arc::make_mut(&mut self.facts).template = PodTemplate::default();
        self.size = 0;
        self.too_large = Some(why);
    }
}
