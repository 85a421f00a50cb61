//! Differences between a pod and a template, and whether an in-place update can apply them.

use std::collections::{BTreeMap, BTreeSet};

use api::template::TemplateMetadata;
use serde_json::{Map, Value, json};

use crate::facts::pod::{PodFacts, Resources};
use crate::facts::text::{Text, Texts};
use crate::quantity;
use crate::workload::revision::canonical;

/// The most paths that are named.
const MAX_PATHS: usize = 5;

/// What has to change for a pod to follow a template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// Containers and their new images, in the order of the template.
    pub images: Vec<(String, String)>,
    /// Containers and their new requests and limits.
    pub resources: Vec<(String, Resources)>,
    /// Containers that restart for them.
    pub resize_restarts: Vec<String>,
    /// Labels to set, or to remove.
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations to set, or to remove.
    pub annotations: BTreeMap<String, Option<String>>,
}

impl Difference {
    /// Whether a container has to restart.
    #[must_use]
    pub fn restarts(&self) -> bool {
        !self.images.is_empty() || !self.resize_restarts.is_empty()
    }
}

/// Whether this minor version of Kubernetes can lower memory limits without a restart.
#[must_use]
pub fn lowers_memory(minor: u32) -> bool {
    minor >= 34
}

/// Paths where two templates differ in a way that a running pod cannot follow; none if it can follow.
#[must_use]
pub fn obstacles(old: &Value, new: &Value, lowers_memory: bool) -> Vec<String> {
    let (mut old, mut new) = (canonical(&with_one_image(old)), canonical(&with_one_image(new)));
    let mut paths = quality_of_service(&old, &new);
    if !lowers_memory {
        paths.extend(lowered_memory(&old, &new));
    }
    [&mut old, &mut new].into_iter().for_each(forget_all_changeable);
    compare("template", &old, &new, &mut paths);
    paths.truncate(MAX_PATHS);
    paths
}

/// Paths where a pod differs from a template in a way that it cannot follow. The API server and admission webhooks add
/// to a pod: what the template does not mention may be anything, except for what every pod has.
#[must_use]
pub fn unlike(spec: &str, template: &Value, lowers_memory: bool) -> Vec<String> {
    let Ok(spec) = serde_json::from_str::<Value>(spec) else { return vec!["template.spec".to_owned()] };
    let (mut found, mut wanted) = (canonical(&with_one_image(&json!({ "spec": spec }))), canonical(&with_one_image(template)));
    let mut paths = quality_of_service(&found, &wanted);
    if !lowers_memory {
        paths.extend(lowered_memory(&found, &wanted));
    }
    [&mut found, &mut wanted].into_iter().for_each(forget_all_changeable);
    contain("template", &found, &wanted, &mut paths);
    let of = |value: &Value, key: &str| value.pointer("/spec").and_then(|spec| spec.get(key)).cloned();
    let odd = EVERY_POD.iter().filter(|key| of(&wanted, key).is_none() && of(&found, key).is_some());
    paths.extend(odd.map(|key| format!("template.spec.{key}")));
    let count = |value: &Value| value.pointer("/spec/containers").and_then(Value::as_array).map_or(0, Vec::len);
    if count(&found) != count(&wanted) {
        paths.push("template.spec.containers".to_owned());
    }
    paths.truncate(MAX_PATHS);
    paths
}

/// Fields that every pod has, if only by default, and that admission does not add.
const EVERY_POD: &[&str] =
    &["restartPolicy", "dnsPolicy", "terminationGracePeriodSeconds", "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"];

/// Adds the paths of what is wanted and not found. Objects in lists are matched by their key.
fn contain(path: &str, found: &Value, wanted: &Value, paths: &mut Vec<String>) {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            for (key, wanted) in wanted {
                contain(&format!("{path}.{key}"), found.get(key).unwrap_or(&Value::Null), wanted, paths);
            }
        }
        (Value::Array(found), Value::Array(wanted)) if wanted.iter().all(Value::is_object) => {
            for (index, wanted) in wanted.iter().enumerate() {
                let key = ["mountPath", "containerPort", "name"].into_iter().find(|key| wanted.get(key).is_some());
                let same = key.and_then(|key| found.iter().find(|one| one.get(key) == wanted.get(key)));
                let other = || found.get(index).filter(|_| key.is_none());
                contain(&format!("{path}[{index}]"), same.or_else(other).unwrap_or(&Value::Null), wanted, paths);
            }
        }
        (found, wanted) if found == wanted => {}
        (_, _) => paths.push(path.to_owned()),
    }
}

/// Memory limits that are lowered although their container does not restart for it.
fn lowered_memory(old: &Value, new: &Value) -> Vec<String> {
    let limit = |container: &Value| flat(container.get("resources")).get("limits.memory").and_then(|amount| quantity::nanos(amount));
    let containers = new.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten().enumerate();
    let is_lowered = |container: &Value| {
        let before = container.get("name").and_then(Value::as_str).and_then(|name| container_of(old, name)).and_then(limit);
        before.zip(limit(container)).is_some_and(|(before, after)| after < before)
    };
    let lowered = containers.filter(|(_, container)| is_lowered(container) && !restarts(container, "limits.memory"));
    let why = "is lowered; Kubernetes can do that since 1.34, or with resizePolicy RestartContainer";
    lowered.map(|(index, _)| format!("template.spec.containers[{index}].resources.limits.memory ({why})")).collect()
}

/// The template with the same image in every container: defaults of the API server depend on the image.
fn with_one_image(template: &Value) -> Value {
    let mut template = template.clone();
    let containers = template.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
        container.insert("image".to_owned(), Value::String("image:1".to_owned()));
    }
    template
}

/// Removes what may change of a template.
fn forget_all_changeable(template: &mut Value) {
    if let Some(fields) = template.as_object_mut() {
        fields.remove("metadata");
    }
    let containers = template.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    containers.into_iter().flatten().filter_map(Value::as_object_mut).for_each(forget_changeable);
}

/// Removes what may change of a container: the image, and amounts that are requested or limited already.
fn forget_changeable(container: &mut Map<String, Value>) {
    container.remove("image");
    for kind in ["requests", "limits"] {
        let amounts = container.get_mut("resources").and_then(|resources| resources.get_mut(kind)).and_then(Value::as_object_mut);
        for (_, amount) in amounts.into_iter().flatten().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")) {
            *amount = Value::Null;
        }
    }
}

/// The path of the resources, if the quality of service class would change: a pod keeps it for life.
fn quality_of_service(old: &Value, new: &Value) -> Vec<String> {
    let guaranteed = |template: &Value| {
        let containers = template.pointer("/spec/containers").and_then(Value::as_array);
        containers.into_iter().flatten().all(|container| {
            let resources = flat(container.get("resources"));
            ["cpu", "memory"].iter().all(|name| {
                let limit = resources.get(&format!("limits.{name}"));
                let request = resources.get(&format!("requests.{name}")).or(limit);
                limit.is_some_and(|limit| request.is_some_and(|request| quantity::same(limit, request)))
            })
        })
    };
    if guaranteed(old) == guaranteed(new) {
        Vec::new()
    } else {
        vec!["template.spec.containers[*].resources (another quality of service)".to_owned()]
    }
}

fn compare(path: &str, old: &Value, new: &Value, paths: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(one), Value::Object(other)) => {
            for key in one.keys().chain(other.keys()).collect::<BTreeSet<_>>() {
                let null = Value::Null;
                compare(&format!("{path}.{key}"), one.get(key).unwrap_or(&null), other.get(key).unwrap_or(&null), paths);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&format!("{path}[{index}]"), one, other, paths);
            }
        }
        (one, other) if one == other => {}
        (_, _) => paths.push(path.to_owned()),
    }
}

/// What has to change for a pod to follow a template. `known` are the templates of other revisions: labels and
/// annotations that only those have are removed.
///
/// `base` is the template that the pod follows already, unless a change is under way. What is the same in it and in the
/// new one does not change, so that an image or a request that an admission webhook replaced neither restarts a
/// container nor is undone.
pub fn difference<'t>(
    pod: &PodFacts,
    template: &Value,
    base: Option<&Value>,
    known: impl Iterator<Item = &'t TemplateMetadata> + Clone,
) -> Difference {
    let mut difference = Difference {
        labels: metadata(&pod.labels, &texts(template, "labels"), known.clone().flat_map(|other| &other.labels)),
        annotations: metadata(&pod.annotations, &texts(template, "annotations"), known.flat_map(|other| &other.annotations)),
        ..Difference::default()
    };
    let containers = template.pointer("/spec/containers").and_then(Value::as_array);
    for wanted in containers.into_iter().flatten() {
        let name = wanted.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(container) = pod.containers.iter().find(|container| container.name == name) else { continue };
        let before = base.and_then(|base| container_of(base, name));
        let asked = pod.update.as_deref().and_then(|update| update.state.as_ref()?.asked_images.get(name));
        let is_new = |image: &&str| {
            before.and_then(|before| before.get("image")).is_none_or(|before| before != *image) && asked.is_none_or(|asked| asked != *image)
        };
        if let Some(image) = wanted.get("image").and_then(Value::as_str).filter(|image| container.image != *image).filter(is_new) {
            difference.images.push((name.to_owned(), image.to_owned()));
        }
        let (resources, before) = (whole(wanted.get("resources")), whole(before.and_then(|before| before.get("resources"))));
        let differs = |amount: &str, found: Option<&Text>| found.is_none_or(|found| !quantity::same(found, amount));
        let changed: Vec<&Text> = resources
            .iter()
            .filter(|(key, amount)| differs(amount, container.resources.get(key)) && differs(amount, before.get(key)))
            .map(|(key, _)| key)
            .collect();
        if !changed.is_empty() {
            difference.resize_restarts.extend(changed.iter().any(|key| restarts(wanted, key)).then(|| name.to_owned()));
            difference.resources.push((name.to_owned(), resources));
        }
    }
    difference
}

/// A container of a template.
fn container_of<'v>(template: &'v Value, name: &str) -> Option<&'v Value> {
    let containers = template.pointer("/spec/containers")?.as_array()?;
    containers.iter().find(|container| container.get("name").is_some_and(|found| found == name))
}

/// Whether a container has to restart when this amount changes.
fn restarts(container: &Value, key: &str) -> bool {
    let resource = key.rsplit('.').next().unwrap_or_default();
    let policies = container.get("resizePolicy").and_then(Value::as_array);
    let is_it = |policy: &&Value| policy.get("resourceName").is_some_and(|name| name == resource);
    policies.into_iter().flatten().filter(is_it).any(|policy| policy.get("restartPolicy").is_some_and(|word| word == "RestartContainer"))
}

/// Requests and limits as the API server completes them: a limit without a request is requested too.
fn whole(resources: Option<&Value>) -> Resources {
    let mut all = flat(resources);
    for name in ["cpu", "memory"] {
        if let Some(limit) = all.get(&format!("limits.{name}")).cloned() {
            let request = format!("requests.{name}");
            if !all.contains_key(&request) {
                all.insert(request, limit);
            }
        }
    }
    all
}

/// Requests and limits in one map.
fn flat(resources: Option<&Value>) -> Resources {
    let amounts = |kind: &'static str| {
        let amounts = resources.and_then(|resources| resources.get(kind)).and_then(Value::as_object);
        let text = |amount: &Value| amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
        amounts.into_iter().flatten().map(move |(name, amount)| (format!("{kind}.{name}"), text(amount)))
    };
    // Sorted once: there may be thousands.
    ["requests", "limits"].into_iter().flat_map(amounts).collect()
}

fn metadata<'t>(
    found: &Texts,
    wanted: &BTreeMap<&str, &str>,
    known: impl Iterator<Item = (&'t String, &'t String)>,
) -> BTreeMap<String, Option<String>> {
    let mut changes: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (key, value) in known {
        // A value that others set stays.
        if !wanted.contains_key(key.as_str()) && found.get(key).is_some_and(|found| found == value) {
            changes.insert(key.clone(), None);
        }
    }
    for (key, value) in wanted.iter().filter(|(key, value)| found.get(key).is_none_or(|found| found != *value)) {
        changes.insert((*key).to_owned(), Some((*value).to_owned()));
    }
    changes
}

fn texts<'v>(template: &'v Value, part: &str) -> BTreeMap<&'v str, &'v str> {
    let all = template.get("metadata").and_then(|metadata| metadata.get(part)).and_then(Value::as_object);
    all.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(change: impl FnOnce(&mut Value)) -> Value {
        let mut template = json!({
            "metadata": { "labels": { "app": "game" } },
            "spec": {
                "initContainers": [{ "name": "setup", "image": "setup:1" }],
                "containers": [{ "name": "game", "image": "game:1", "env": [{ "name": "A", "value": "1" }], "resources": { "requests": { "cpu": "1" } } }],
            },
        });
        change(&mut template);
        template
    }

    fn seen(change: impl FnOnce(&mut Value)) -> Vec<String> {
        obstacles(&template(|_| {}), &template(change), true)
    }

    #[test]
    fn what_a_running_pod_cannot_follow_is_named() {
        assert!(seen(|new| new["spec"]["containers"][0]["image"] = json!("game:2")).is_empty());
        assert!(seen(|new| new["metadata"]["annotations"] = json!({ "a": "b" })).is_empty());
        assert!(seen(|new| new["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2")).is_empty());
        let latest = |policy: &str| {
            template(|new| {
                let game = &mut new["spec"]["containers"][0];
                (game["image"], game["imagePullPolicy"]) = (json!("game:latest"), json!(policy));
            })
        };
        assert!(
            obstacles(
                &template(|new| new["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent")),
                &latest("IfNotPresent"),
                true
            )
            .is_empty()
        );
        assert_eq!(obstacles(&template(|_| {}), &latest("Always"), true), ["template.spec.containers[0].imagePullPolicy"]);
        assert!(seen(|new| new["spec"]["restartPolicy"] = json!("Always")).is_empty(), "a default says nothing");
        for (path, expected) in [
            ("/spec/containers/0/env/0/value", "template.spec.containers[0].env[0].value"),
            ("/spec/initContainers/0/image", "template.spec.initContainers[0].image"),
            ("/spec/containers/0/name", "template.spec.containers[0].name"),
        ] {
            assert_eq!(seen(|new| *new.pointer_mut(path).unwrap() = json!("other")), [expected]);
        }
        assert_eq!(
            seen(|new| new["spec"]["containers"][0]["resources"]["limits"] = json!({ "memory": "1Gi" })),
            ["template.spec.containers[0].resources.limits"]
        );
        assert_eq!(
            seen(|new| new["spec"]["containers"].as_array_mut().unwrap().push(json!({ "name": "side" }))),
            ["template.spec.containers"]
        );
    }

    #[test]
    fn what_a_webhook_made_of_a_pod_is_left_alone() {
        let of = |game: &str, cpu: &str| {
            json!({ "spec": { "containers": [
                { "name": "game", "image": game, "resources": { "requests": { "cpu": cpu } } }, { "name": "side", "image": "side:1" },
            ] } })
        };
        let container =
            |name: &str, image: &str| crate::facts::pod::Container { name: name.into(), image: image.into(), ..Default::default() };
        let mut pod: PodFacts = serde_json::from_value(json!({
            "name": "p", "namespace": "n", "uid": "u", "resource_version": 1, "labels": {}, "controller": null, "created": "2026-11-15T10:00:00Z",
            "deleting": false, "phase": "Running", "ready_since": null, "node": null, "restarts": 0, "deletion_cost": 0, "trouble": null,
            "annotations": {}, "gate": "Absent", "containers": [], "update": null, "is_resizing": false, "is_seen_by_node": true,
        }))
        .unwrap();
        pod.containers = vec![container("game", "mirror/game:1"), container("side", "mirror/side:1")];
        pod.containers[0].resources.insert("requests.cpu".to_owned(), "2".to_owned());
        let (old, new) = (of("game:1", "1"), of("game:2", "1"));
        let seen = difference(&pod, &new, Some(&old), std::iter::empty());
        assert_eq!(seen.images, [("game".to_owned(), "game:2".to_owned())]);
        assert!(seen.resources.is_empty(), "{:?}", seen.resources);
        assert_eq!(difference(&pod, &of("game:1", "3"), Some(&old), std::iter::empty()).resources.len(), 1);
        // For a pod whose change is under way, only its own spec counts, and what was asked for.
        assert_eq!(difference(&pod, &new, None, std::iter::empty()).images.len(), 2);
        let asked = r#"{"revision":"game-2","askedImages":{"game":"game:2"}}"#;
        pod.update = crate::workload::inplace::Update::read(Some(asked), None);
        let seen = difference(&pod, &new, None, std::iter::empty());
        assert_eq!(seen.images, [("side".to_owned(), "side:1".to_owned())]);
    }

    #[test]
    fn quality_of_service_is_for_life() {
        let of = |cpu: &str| {
            template(|new| {
                new["spec"]["containers"][0]["resources"] =
                    json!({ "requests": { "cpu": cpu, "memory": "1Gi" }, "limits": { "cpu": "2", "memory": "1Gi" } });
            })
        };
        assert!(obstacles(&of("1"), &of("1500m"), true).is_empty());
        assert_eq!(obstacles(&of("1"), &of("2"), true).len(), 1);
    }

    #[test]
    fn where_kubernetes_cannot_lower_a_memory_limit_a_pod_does_not_follow() {
        let of = |memory: &str, policy: &str| {
            template(|new| {
                new["spec"]["containers"][0]["resources"] =
                    json!({ "limits": { "cpu": "2", "memory": memory }, "requests": { "cpu": "1" } });
                new["spec"]["containers"][0]["resizePolicy"] = json!([{ "resourceName": "memory", "restartPolicy": policy }]);
            })
        };
        let lowered = |policy, lowers_memory| obstacles(&of("1Gi", policy), &of("1023Mi", policy), lowers_memory);
        assert!(lowered("NotRequired", true).is_empty() && lowered("RestartContainer", false).is_empty());
        let told = lowered("NotRequired", false);
        assert!(told.len() == 1 && told[0].starts_with("template.spec.containers[0].resources.limits.memory (is lowered"), "{told:?}");
        assert!(obstacles(&of("1Gi", "NotRequired"), &of("2Gi", "NotRequired"), false).is_empty());
    }

    #[test]
    fn a_pod_that_was_made_by_others_is_compared_with_what_the_template_asks_for() {
        let wanted = template(|_| {});
        // What the API server and admission added, another image, other amounts.
        let mut found = json!({
            "nodeName": "node-1", "serviceAccountName": "default", "tolerations": [{ "key": "a" }], "restartPolicy": "Always",
            "volumes": [{ "name": "token" }],
            "initContainers": [{ "name": "setup", "image": "image:1", "terminationMessagePolicy": "File" }],
            "containers": [{
                "name": "game", "image": "game:0", "env": [{ "name": "MESH", "value": "on" }, { "name": "A", "value": "1" }],
                "resources": { "requests": { "cpu": "2" } }, "volumeMounts": [{ "name": "token" }],
            }],
        });
        found["initContainers"][0]["image"] = json!("setup:1");
        let unlike = |found: &Value| unlike(&found.to_string(), &wanted, true);
        assert_eq!(unlike(&found), Vec::<String>::new());
        found["containers"][0]["env"][1]["value"] = json!("2");
        assert_eq!(unlike(&found), ["template.spec.containers[0].env[0].value"]);
        found["containers"][0]["env"][1]["value"] = json!("1");
        found["containers"].as_array_mut().unwrap().push(json!({ "name": "mesh", "image": "mesh:1" }));
        assert_eq!(unlike(&found), ["template.spec.containers"]);
        found["containers"].as_array_mut().unwrap().pop();
        found["restartPolicy"] = json!("Never");
        assert_eq!(unlike(&found), ["template.spec.restartPolicy"]);
    }
}
