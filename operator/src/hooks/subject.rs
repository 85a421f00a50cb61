//! The pod that the operator created a HookRun for. Such a run may use a ServiceAccount (for a command or a patch) on this pod only,
//! whatever its template and arguments say. Runs that users create name their pod or object themselves.

use api::names::RUN_POD_UID_LABEL;
use api::tkex::HookRun;

use super::http::NoAnswer;
use super::names::{checked, is_subdomain};
use super::{Asker, Measurement};
use crate::client::Written;
use crate::kinds::custom::controller;

/// The uid of the pod that the operator created a run for.
pub(crate) fn of(run: &HookRun) -> Option<String> {
    controller(&run.metadata)?;
    run.metadata.labels.as_ref()?.get(RUN_POD_UID_LABEL).cloned()
}

/// The name of the pod that a measurement is about.
pub(crate) fn pod_name(measurement: &Measurement) -> Result<&str, NoAnswer> {
    let name = measurement.arguments.get("PodName").ok_or_else(|| NoAnswer::because("args.PodName has no value"))?;
    checked("args.PodName", name, "a pod", is_subdomain)
}

/// The name belongs to another pod than the one that the run was created for.
pub(crate) fn is_another(pod: &str) -> NoAnswer {
    NoAnswer::because(format!(
        "pod {pod} is not the pod that this HookRun was created for: that pod is gone, and nothing is done to this one"
    ))
}

/// Checks that a pod is still the one that the run was created for. Other runs may act on any pod.
pub(crate) async fn check(asker: &Asker, measurement: &Measurement, pod: &str) -> Result<(), NoAnswer> {
    let Some(uid) = &measurement.pod else { return Ok(()) };
    let found = asker.server.get::<Written>(&format!("/api/v1/namespaces/{}/pods/{pod}", measurement.namespace)).await;
    match found {
        Ok(found) if found.metadata.uid == *uid => Ok(()),
        Ok(_) => Err(is_another(pod)),
        Err(error) if error.is_not_found() => Err(NoAnswer::because(format!("there is no pod {pod}"))),
        Err(error) => Err(NoAnswer::because(format!("whether pod {pod} is still the same cannot be found out: {}", error.message))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(labels: &serde_json::Value, owners: &serde_json::Value) -> HookRun {
        serde_json::from_value(json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": { "name": "run", "labels": labels, "ownerReferences": owners },
            "spec": { "metrics": [] },
        }))
        .unwrap()
    }

    #[test]
    fn only_a_run_that_the_operator_made_has_a_pod_of_its_own() {
        let owner = |group: &str, controller: bool| json!([{ "apiVersion": format!("{group}/v1alpha1"), "kind": "GameDeployment", "name": "a", "uid": "b", "controller": controller }]);
        let labels = json!({ "pod-uid": "u1" });
        assert_eq!(of(&run(&labels, &owner("tkex.tencent.com", true))).as_deref(), Some("u1"));
        assert_eq!(of(&run(&labels, &owner("tkex.tencent.com", false))), None);
        assert_eq!(of(&run(&labels, &owner("tkex.tencent.com.evil", true))), None);
        assert_eq!(of(&run(&labels, &json!(null))), None);
        assert_eq!(of(&run(&json!(null), &owner("tkex.tencent.com", true))), None);
    }
}
