//! What decisions know of a PodDisruptionBudget.

use std::collections::BTreeMap;

use api::selector::LabelSelector;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::object::Metadata;
use crate::workload::protect;

/// A PodDisruptionBudget as decisions see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PdbFacts {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The uid of its controller.
    pub controller: Option<String>,
    /// The pods that it selects: none without a selector, every pod if it is empty.
    pub selector: Option<LabelSelector>,
    /// Whether it refuses every eviction, however many pods there are.
    pub is_closed: bool,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    selector: Option<LabelSelector>,
    min_available: Option<Value>,
    unhealthy_pod_eviction_policy: Option<String>,
}

impl PdbFacts {
    /// Reads a PodDisruptionBudget from the API server's JSON; also its metadata.
    pub fn read(json: &str) -> Result<(Metadata, Self), serde_json::Error> {
        let Wire { metadata, spec } = serde_json::from_str(json)?;
        let facts = Self {
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            controller: metadata.controller.as_ref().map(|owner| owner.uid.to_string()),
            selector: spec.selector,
            is_closed: spec.min_available == Some(Value::from(protect::EVERY_POD))
                && spec.unhealthy_pod_eviction_policy.is_none_or(|policy| policy != "AlwaysAllow"),
        };
        Ok((metadata, facts))
    }

    /// Whether it selects pods with these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.selector.as_ref().is_some_and(|selector| selector.is_empty() || selector.matches(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_closed_if_it_allows_no_eviction_whatever_the_number_of_pods() {
        let cases = [
            ("{\"minAvailable\":2147483647}", true),
            ("{\"minAvailable\":2147483647,\"unhealthyPodEvictionPolicy\":\"AlwaysAllow\"}", false),
            ("{\"maxUnavailable\":0}", false),
            ("{\"minAvailable\":\"100%\"}", false),
        ];
        for (spec, closed) in cases {
            let json = format!(r#"{{"metadata":{{"name":"b","namespace":"play","uid":"u","resourceVersion":"7"}},"spec":{spec}}}"#);
            let (metadata, facts) = PdbFacts::read(&json).unwrap();
            assert_eq!((facts.is_closed, metadata.version), (closed, 7), "{spec}");
            assert!(!facts.selects(&BTreeMap::new()), "without a selector it selects no pod");
        }
    }

    #[test]
    fn an_empty_selector_selects_every_pod() {
        let json = r#"{"metadata":{"name":"b","namespace":"play","uid":"u","resourceVersion":"7"},"spec":{"selector":{}}}"#;
        assert!(PdbFacts::read(json).unwrap().1.selects(&BTreeMap::new()));
    }
}
