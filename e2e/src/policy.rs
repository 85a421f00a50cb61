//! Admission policies that refuse writes to pods.

use anyhow::Result;
use serde_json::json;

use crate::scene::{Scene, run};
use crate::wait::eventually;

/// Refuses an operation on pods of the test's namespace with this message, unless `expression` holds. Returns when
/// `probe`, a dry run by kubectl, is refused. The policy stays until [`lift`].
pub async fn forbid(scene: &Scene, operation: &str, expression: &str, message: &str, probe: &[&str]) -> Result<()> {
    let name = scene.namespace();
    let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["pods"] });
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": name },
        "spec": { "matchConstraints": { "resourceRules": [rule] }, "validations": [{ "expression": expression, "message": message }] },
    });
    let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": name } });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"], "matchResources": { "namespaceSelector": selector } },
    });
    for object in [policy, binding] {
        run(scene.cluster().kubectl().args(["apply", "-f", "-"]), &object.to_string())?;
    }
    eventually("the policy is not in force", || scene.kubectl(probe).is_err_and(|error| format!("{error:#}").contains(message))).await
}

/// Removes the policy of [`forbid`].
pub fn lift(scene: &Scene) -> Result<()> {
    let kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy";
    run(scene.cluster().kubectl().args(["delete", kinds, scene.namespace()]), "").map(drop)
}
