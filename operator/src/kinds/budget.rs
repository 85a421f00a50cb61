//! PodDisruptionBudgets: those of the operator, and others that select the same pods.

use std::sync::Arc;

use api::selector::LabelSelector;
use planner::facts::pdb::PdbFacts;
use planner::workload::protect;
use serde::Deserialize;
use serde_json::Value;

use super::OwnerReference;
use crate::allowance::weight;
use crate::store::{Cached, Index, Key};

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

#[derive(Deserialize)]
struct Wire {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
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
    owner_references: Vec<OwnerReference>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    selector: LabelSelector,
    min_available: Option<Value>,
    unhealthy_pod_eviction_policy: Option<String>,
}

impl Cached for Budget {
    const KIND: &'static str = "PodDisruptionBudget";
    const PATH: &'static str = "/apis/policy/v1/poddisruptionbudgets";

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let Wire { metadata: meta, spec } = serde_json::from_str(json)?;
        let facts = PdbFacts {
            name: meta.name,
            uid: meta.uid,
            controller: OwnerReference::controller(meta.owner_references).map(|owner| owner.uid),
            selector: spec.selector,
            is_closed: spec.min_available == Some(Value::from(protect::EVERYBODY))
                && spec.unhealthy_pod_eviction_policy.is_none_or(|policy| policy != "AlwaysAllow"),
        };
        let version = meta.resource_version.parse().unwrap_or_default();
        let size = serde_json::to_string(&facts.selector).map_or(0, |selector| weight(&selector)).saturating_sub(FREE);
        Ok(Self { facts: Arc::new(facts), namespace: meta.namespace, version, size })
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
        Some(Index::Namespace(self.namespace.clone()))
    }

    fn size(&self) -> usize {
        self.size
    }

    /// A PodDisruptionBudget without its selector counts as selecting no pod. The operator's own are short and never cut.
    fn cut(&mut self, _: String) {
        let facts = Arc::make_mut(&mut self.facts);
        facts.selector = LabelSelector::default();
        facts.is_closed = false;
        self.size = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_closed_when_nobody_can_be_spared() {
        let cases = [
            ("{\"minAvailable\":2147483647}", true),
            ("{\"minAvailable\":2147483647,\"unhealthyPodEvictionPolicy\":\"AlwaysAllow\"}", false),
            ("{\"maxUnavailable\":0}", false),
            ("{\"minAvailable\":\"100%\"}", false),
        ];
        for (spec, closed) in cases {
            let json = format!(r#"{{"metadata":{{"name":"b","namespace":"play","uid":"u","resourceVersion":"7"}},"spec":{spec}}}"#);
            let budget = Budget::decode(&json).unwrap();
            assert_eq!((budget.facts.is_closed, budget.version()), (closed, 7), "{spec}");
            assert!(budget.facts.selector.is_empty());
        }
    }
}
