//! Label selectors.

use std::collections::BTreeMap;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// A label selector: pods that carry all `matchLabels` and satisfy all `matchExpressions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that a pod must carry with exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32), schema_with = "crate::schema::labels")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement on a label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Requirement {
    /// The label.
    #[schemars(length(max = 317))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    pub operator: Operator,
    /// Values; none with Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// What a requirement compares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or is missing.
    NotIn,
    /// The pod has the label.
    #[default]
    Exists,
    /// The label is missing.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether a pod with these labels is selected. An empty selector selects no pod.
    #[must_use]
    pub fn matches(&self, labels: &impl Labels) -> bool {
        let named = self.match_labels.iter().all(|(key, value)| labels.value(key) == Some(value));
        !self.is_empty() && named && self.match_expressions.iter().all(|requirement| requirement.holds(labels.value(&requirement.key)))
    }

    /// Whether the selector has no requirement.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

/// Labels of an object.
pub trait Labels {
    /// The value of a label.
    fn value(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_listed = |value: &str| self.values.iter().any(|listed| listed == value);
        match self.operator {
            Operator::In => value.is_some_and(is_listed),
            Operator::NotIn => !value.is_some_and(is_listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// The selector as text, as `kubectl get -l` and the HorizontalPodAutoscaler take it.
impl std::fmt::Display for LabelSelector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts: Vec<String> = self.match_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        parts.extend(self.match_expressions.iter().map(|Requirement { key, operator, values }| match operator {
            Operator::In => format!("{key} in ({})", values.join(",")),
            Operator::NotIn => format!("{key} notin ({})", values.join(",")),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        }));
        out.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn requirement(operator: Operator, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        LabelSelector { match_labels: BTreeMap::new(), match_expressions: vec![Requirement { key: "tier".to_owned(), operator, values }] }
    }

    #[test]
    fn every_operator_matches_as_kubernetes_does() {
        let (game, none) = (labels(&[("tier", "game")]), labels(&[]));
        assert!(requirement(Operator::In, &["game", "web"]).matches(&game));
        assert!(!requirement(Operator::In, &["game"]).matches(&none));
        assert!(!requirement(Operator::NotIn, &["game"]).matches(&game));
        assert!(requirement(Operator::NotIn, &["game"]).matches(&none));
        assert!(requirement(Operator::Exists, &[]).matches(&game));
        assert!(!requirement(Operator::Exists, &[]).matches(&none));
        assert!(requirement(Operator::DoesNotExist, &[]).matches(&none));
        assert!(!requirement(Operator::DoesNotExist, &[]).matches(&game));
    }

    #[test]
    fn an_empty_selector_means_no_pod() {
        assert!(!LabelSelector::default().matches(&labels(&[("app", "game")])));
    }

    #[test]
    fn the_text_is_what_kubectl_takes() {
        let mut selector = requirement(Operator::NotIn, &["a", "b"]);
        selector.match_labels = labels(&[("app", "game")]);
        assert_eq!(selector.to_string(), "app=game,tier notin (a,b)");
    }
}
