//! The `kubernetes` provider: reads one object of the run's namespace, or sets its annotations.

use api::tkex::{Function, Kubernetes};
use planner::hookrun::arguments::{Place, fill};
use planner::jsonpath::JsonPath;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::account::Account;
use super::evaluate::{Reading, json};
use super::http::NoAnswer;
use super::names::{checked, is_kind, is_label, is_object, is_subdomain};
use super::{Answer, Asker, Measurement, subject};
use crate::client::Patch;

#[derive(Deserialize)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    kind: String,
    namespaced: bool,
}

pub(crate) async fn measure(asker: &Asker, measurement: &Measurement, spec: &Kubernetes) -> Result<Reading, NoAnswer> {
    let account = Account::of(asker, measurement, spec.service_account_name.as_ref())?;
    let path = path(asker, measurement).await?;
    let mut fields = Vec::new();
    for field in &spec.fields {
        let key = field.path.strip_prefix("metadata.annotations.").unwrap_or_default();
        let value = fill(&field.value, &measurement.arguments, Place::Plain).map_err(|problem| NoAnswer::because(problem.0))?;
        fields.push((key.to_owned(), value));
    }
    match spec.function.unwrap_or_default() {
        Function::Patch => {
            let annotations: Map<String, Value> = fields.into_iter().map(|(key, value)| (key, Value::String(value))).collect();
            let mut patch = serde_json::json!({ "metadata": { "annotations": annotations } });
            if let (Some(uid), Some(metadata)) = (&measurement.pod, patch.pointer_mut("/metadata").and_then(Value::as_object_mut)) {
                // The API server refuses it if the name belongs to another pod by now.
                metadata.insert("uid".to_owned(), Value::String(uid.clone()));
            }
            let patched = account.server().patch(&path, Patch::Merge, &patch).await;
            patched.map_err(|error| if error.is_other_uid() { another(measurement) } else { account.refused(&error) })?;
            Ok(Box::new(|| Ok(Answer::Success)))
        }
        Function::Get => {
            let object: Box<RawValue> = account.server().get(&path).await.map_err(|error| account.refused(&error))?;
            let (uid, another, json_path) = (measurement.pod.clone(), another(measurement), spec.json_path.clone());
            Ok(Box::new(move || {
                let object = json(object.get().as_bytes())?;
                if uid.is_some_and(|uid| object.pointer("/metadata/uid").and_then(Value::as_str) != Some(&uid)) {
                    return Err(another);
                }
                answer_of(&object, &fields, json_path.as_deref())
            }))
        }
    }
}

fn another(measurement: &Measurement) -> NoAnswer {
    subject::is_another(measurement.arguments.get("PodName").map_or("", String::as_str))
}

fn answer_of(object: &Value, fields: &[(String, String)], json_path: Option<&str>) -> Result<Answer, NoAnswer> {
    for (key, wanted) in fields {
        let found = object.pointer("/metadata/annotations").and_then(|all| all.get(key)).and_then(Value::as_str);
        if found != Some(wanted) {
            let found = found.map_or_else(|| "absent".to_owned(), |found| format!("{found:?}"));
            return Ok(Answer::Refused { value: None, message: format!("annotation {key} is {found}, not {wanted:?}") });
        }
    }
    let Some(path) = json_path.filter(|path| !path.is_empty()) else { return Ok(Answer::Success) };
    let problem = |problem| NoAnswer::because(format!("jsonPath: {problem}"));
    JsonPath::parse(path).and_then(|path| path.find(object)).map(Answer::Value).map_err(problem)
}

/// The object's path: a pod, or an object of the kind in the arguments Group, Version and Kind. Runs about a pod only get that pod.
async fn path(asker: &Asker, measurement: &Measurement) -> Result<String, NoAnswer> {
    let argument = |name: &str| measurement.arguments.get(name).map_or("", String::as_str);
    let (group, version, kind) = (argument("Group"), argument("Version"), argument("Kind"));
    let namespace = &measurement.namespace;
    if !argument("PodNamespace").is_empty() && argument("PodNamespace") != namespace {
        return Err(NoAnswer::because(format!(
            "args.PodNamespace is {}: only objects of {namespace} can be read",
            argument("PodNamespace")
        )));
    }
    if matches!((group, version, kind), ("", "", "") | ("", "v1", "Pod")) {
        return Ok(format!("/api/v1/namespaces/{namespace}/pods/{}", subject::pod_name(measurement)?));
    }
    if measurement.pod.is_some() {
        return Err(NoAnswer::because(format!(
            "this HookRun was made for pod {}: args.Group, args.Version and args.Kind cannot lead elsewhere; leave them out",
            argument("PodName")
        )));
    }
    let name = checked("args.PodName", argument("PodName"), "an object", is_object)?;
    let version = checked("args.Version", version, "a version of an API", is_label)?;
    let kind = checked("args.Kind", kind, "a kind", is_kind)?;
    let base = match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{}/{version}", checked("args.Group", group, "an API group", is_subdomain)?),
    };
    let known: Resources =
        asker.server.get(&base).await.map_err(|error| NoAnswer::because(format!("{base} is not served: {}", error.message)))?;
    let found = known.resources.into_iter().find(|one| one.kind == kind && one.namespaced && !one.name.contains('/'));
    let plural = found.ok_or_else(|| NoAnswer::because(format!("{base} has no namespaced kind {kind:?}")))?.name;
    Ok(format!("{base}/namespaces/{namespace}/{plural}/{name}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_compared_and_values_found() {
        let object = json!({ "metadata": { "annotations": { "game.io/state": "idle" } }, "status": { "players": 3, "hosts": ["a", "b"] } });
        let field = |value: &str| vec![("game.io/state".to_owned(), value.to_owned())];
        assert!(matches!(answer_of(&object, &field("idle"), None), Ok(Answer::Success)));
        let Ok(Answer::Refused { message, .. }) = answer_of(&object, &field("busy"), None) else { panic!("it succeeded") };
        assert_eq!(message, "annotation game.io/state is \"idle\", not \"busy\"");
        assert!(matches!(answer_of(&object, &[], Some("{.status.players}")), Ok(Answer::Value(value)) if value == json!(3)));
        assert!(matches!(answer_of(&object, &[], Some("{.status.hosts[*]}")), Ok(Answer::Value(value)) if value == json!(["a", "b"])));
        assert!(answer_of(&object, &[], Some("{.status.nothing}")).is_err());
    }
}
