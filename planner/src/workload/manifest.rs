//! Request bodies of actions.

use api::names::{
    INDEX_ANNOTATION, INDEX_VARIABLE, INSTANCE_ID_LABEL, PROTECTED_LABEL, READINESS_GATE, REVISION_HASH_LABEL, REVISION_LABEL,
};
use serde_json::{Map, Value, json};

use super::{protect, revision};
use crate::plan::{NewHookRun, NewPod, NewRevision};

/// The object that owns what is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// For example `tkex.tencent.com/v1alpha1`.
    pub api_version: String,
    /// For example `GameDeployment`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
}

impl Owner {
    /// The owner's entry in `metadata.ownerReferences`.
    #[must_use]
    pub fn reference(&self) -> Value {
        json!({
            "apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid, "controller": true, "blockOwnerDeletion": true,
        })
    }
}

/// A pod: the template with the owner, the name and the operator's labels.
#[must_use]
pub fn pod(owner: &Owner, new: &NewPod) -> Value {
    let Value::Object(mut pod) = new.template.value() else { return Value::Null };
    pod.remove(revision::REPLACES);
    let mut metadata = taken_object(&mut pod, "metadata");
    ["creationTimestamp", "generateName", "resourceVersion", "uid"].iter().for_each(|field| drop(metadata.remove(*field)));
    let mut labels = taken_object(&mut metadata, "labels");
    labels.insert(REVISION_LABEL.to_owned(), json!(new.revision));
    labels.insert(INSTANCE_ID_LABEL.to_owned(), json!(new.id));
    // Only the operator sets this label: in a template it would protect pods for another workload.
    labels.remove(PROTECTED_LABEL);
    if new.protected {
        labels.insert(PROTECTED_LABEL.to_owned(), json!(owner.uid));
    }
    metadata.insert("labels".to_owned(), Value::Object(labels));
    if let Some(index) = new.index {
        let mut annotations = taken_object(&mut metadata, "annotations");
        annotations.insert(INDEX_ANNOTATION.to_owned(), json!(index.to_string()));
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    metadata.insert("name".to_owned(), json!(new.name));
    metadata.insert("namespace".to_owned(), json!(owner.namespace));
    metadata.insert("ownerReferences".to_owned(), json!([owner.reference()]));
    pod.insert("metadata".to_owned(), Value::Object(metadata));
    if new.gated || new.index.is_some() {
        let mut spec = taken_object(&mut pod, "spec");
        if new.gated {
            add_gate(&mut spec);
        }
        if new.index.is_some() {
            add_index(&mut spec);
        }
        pod.insert("spec".to_owned(), Value::Object(spec));
    }
    pod.insert("apiVersion".to_owned(), json!("v1"));
    pod.insert("kind".to_owned(), json!("Pod"));
    Value::Object(pod)
}

/// Adds the number of the pod to the environment of every container.
fn add_index(spec: &mut Map<String, Value>) {
    let path = format!("metadata.annotations['{INDEX_ANNOTATION}']");
    let variable = json!({ "name": INDEX_VARIABLE, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } } });
    for container in spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
        match container.get_mut("env").and_then(Value::as_array_mut) {
            // Of two variables of the same name the last one counts, and the API server warns.
            Some(variables) => {
                variables.retain(|known| known.get("name") != Some(&json!(INDEX_VARIABLE)));
                variables.push(variable.clone());
            }
            None => drop(container.insert("env".to_owned(), json!([variable]))),
        }
    }
}

/// Adds the operator's readiness gate, unless the template has it.
fn add_gate(spec: &mut Map<String, Value>) {
    let gate = json!({ "conditionType": READINESS_GATE });
    match spec.get_mut("readinessGates").and_then(Value::as_array_mut) {
        Some(gates) if gates.contains(&gate) => {}
        Some(gates) => gates.push(gate),
        None => drop(spec.insert("readinessGates".to_owned(), json!([gate]))),
    }
}

/// A HookRun.
#[must_use]
pub fn hook_run(owner: &Owner, new: &NewHookRun) -> Value {
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1",
        "kind": "HookRun",
        "metadata": { "name": new.name, "namespace": owner.namespace, "labels": new.labels, "ownerReferences": [owner.reference()] },
        "spec": new.spec,
    })
}

/// A PodDisruptionBudget that allows no eviction of a protected pod of `owner`.
#[must_use]
pub fn budget(owner: &Owner, name: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": name, "namespace": owner.namespace, "labels": { PROTECTED_LABEL: owner.uid }, "ownerReferences": [owner.reference()],
        },
        "spec": { "minAvailable": protect::EVERY_POD, "selector": protect::selector(&owner.uid) },
    })
}

/// A ControllerRevision that records a template.
#[must_use]
pub fn controller_revision(owner: &Owner, new: &NewRevision) -> Value {
    let template = new.template.value();
    let mut labels = template.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    labels.insert(REVISION_HASH_LABEL.to_owned(), json!(new.hash));
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": { "name": new.name, "namespace": owner.namespace, "labels": labels, "ownerReferences": [owner.reference()] },
        "data": revision::data(template),
        "revision": new.number,
    })
}

/// A merge patch that makes `owner` the controller of an object that has none.
#[must_use]
pub fn adoption(owner: &Owner, uid: &str) -> Value {
    json!({ "metadata": { "uid": uid, "ownerReferences": [owner.reference()] } })
}

/// A strategic merge patch that removes the owner of a pod, and its protection.
#[must_use]
pub fn release(owner: &Owner, uid: &str) -> Value {
    json!({ "metadata": { "uid": uid, "ownerReferences": [{ "$patch": "delete", "uid": owner.uid }], "labels": { PROTECTED_LABEL: null } } })
}

fn taken_object(from: &mut Map<String, Value>, key: &str) -> Map<String, Value> {
    let found = from.remove(key);
    found.and_then(|value| if let Value::Object(fields) = value { Some(fields) } else { None }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        let (api_version, kind) = ("tkex.tencent.com/v1alpha1".to_owned(), "GameDeployment".to_owned());
        Owner { api_version, kind, name: "game".to_owned(), namespace: "play".to_owned(), uid: "u1".to_owned() }
    }

    #[test]
    fn a_template_reaches_the_pod_untouched() {
        let template = json!({
            "metadata": { "labels": { "app": "game" }, "annotations": { "a": "b" }, "finalizers": ["f"] },
            "spec": { "containers": [{ "name": "game", "image": "game:1", "fieldOfTomorrow": { "deep": [1, null] } }], "anotherOne": 7 },
        });
        let new = NewPod {
            name: "game-x".to_owned(),
            id: "x".to_owned(),
            revision: "game-1".to_owned(),
            template: (&template).into(),
            gated: false,
            index: None,
            protected: false,
            successor: false,
        };
        let pod = pod(&owner(), &new);
        assert_eq!(pod.get("spec"), template.get("spec"));
        assert_eq!(pod.pointer("/metadata/annotations"), template.pointer("/metadata/annotations"));
        assert_eq!(pod.pointer("/metadata/finalizers"), template.pointer("/metadata/finalizers"));
        assert_eq!(pod.pointer("/metadata/labels/app"), Some(&json!("game")));
        assert_eq!(pod.pointer("/metadata/labels/controller-revision-hash"), Some(&json!("game-1")));
        assert_eq!(pod.pointer("/metadata/labels/tkex.bkbcs.tencent.com~1gamedeployment-instance-id"), Some(&json!("x")));
        assert_eq!(pod.pointer("/metadata/ownerReferences/0/controller"), Some(&json!(true)));
    }

    #[test]
    fn a_template_without_metadata_becomes_a_pod_all_the_same() {
        let new = NewPod {
            name: "game-x".to_owned(),
            id: "x".to_owned(),
            revision: "game-1".to_owned(),
            template: json!({ "metadata": null, "spec": {} }).into(),
            gated: true,
            index: None,
            protected: false,
            successor: false,
        };
        let pod = pod(&owner(), &new);
        assert_eq!(pod.pointer("/metadata/name"), Some(&json!("game-x")));
        assert_eq!(pod.pointer("/spec/readinessGates"), Some(&json!([{ "conditionType": "InPlaceUpdateReady" }])));
    }
}
