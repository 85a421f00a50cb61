//! PodDisruptionBudgets: those of the operator, and others that select the same pods.

use std::sync::Arc;

use planner::facts::object::Metadata;
use planner::facts::pdb::PdbFacts;

use crate::allowance::weight;
use crate::store::{Cached, Index};

/// The first bytes of a selector, which do not count against the namespace's memory, so that the operator's own are never cut.
const FREE: usize = 1024;

/// A PodDisruptionBudget.
#[derive(Debug)]
pub struct Budget {
    /// What decisions see.
    pub facts: Arc<PdbFacts>,
    namespace: String,
    version: u64,
    size: usize,
}

impl Cached for Budget {
    const KIND: &'static str = "PodDisruptionBudget";
    const PATH: &'static str = "/apis/policy/v1/poddisruptionbudgets";

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let (Metadata { namespace, version, .. }, facts) = PdbFacts::read(json)?;
        let size = serde_json::to_string(&facts.selector).map_or(0, |selector| weight(&selector)).saturating_sub(FREE);
        Ok(Self { facts: Arc::new(facts), namespace, version, size })
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
        Some(Index::Namespace(self.namespace.clone()))
    }

    fn size(&self) -> usize {
        self.size
    }

    /// A PodDisruptionBudget without its selector counts as selecting no pod. The operator's own are short and never cut.
    fn cut(&mut self, _: String) {
        let facts = Arc::make_mut(&mut self.facts);
        facts.selector = None;
        facts.is_closed = false;
        self.size = 0;
    }
}
