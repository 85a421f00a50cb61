//! What the operator did, according to the API server's audit log.

use anyhow::Result;
use localkube::Cluster;
use serde_json::Value;

use crate::scene::Scene;

/// The operator, as the API server knows it.
const OPERATOR: &str = "system:serviceaccount:bcs-system:gameplane";

/// The operator's requests that were answered.
pub fn audit(cluster: &Cluster) -> Result<Vec<Value>> {
    let log = std::fs::read_to_string(cluster.audit_log())?;
    let entries = log.lines().filter(|line| line.contains(OPERATOR)).filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(entries.filter(|entry| entry["user"]["username"] == OPERATOR && entry["stage"] == "ResponseComplete").collect())
}

/// How often the operator used this verb on a resource in the test's namespace; an empty verb counts all verbs.
#[must_use]
pub fn audited(scene: &Scene, resource: &str, subresource: &str, verb: &str) -> usize {
    let text = |entry: &Value, key: &str| entry["objectRef"][key].as_str().unwrap_or_default().to_owned();
    let is_it = |entry: &Value| {
        let of = (text(entry, "namespace"), text(entry, "resource"), text(entry, "subresource"));
        of == (scene.namespace().to_owned(), resource.to_owned(), subresource.to_owned()) && (verb.is_empty() || entry["verb"] == verb)
    };
    audit(scene.cluster()).unwrap_or_default().into_iter().filter(is_it).count()
}
