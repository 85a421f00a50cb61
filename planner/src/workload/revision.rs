//! The history of templates: which revision a template is, and the name of a new one.

use std::sync::Arc;

use api::template::{Meaning, PodTemplate};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::facts::revision::RevisionFacts;
use crate::hash::fnv_1_32;
use crate::plan::{Action, NewRevision};
use crate::quantity;

/// The revision of a template.
#[derive(Debug)]
pub struct Resolved {
    /// The revision's name.
    pub name: String,
    /// Its template.
    pub template: PodTemplate,
    /// Whether its name is that of a revision that is being deleted: no pod is created from it before that one is gone.
    pub is_leaving: bool,
    /// How often a name was taken by another template.
    pub collisions: i32,
    /// Writes after which the revision exists and is the newest.
    pub actions: Vec<Action>,
}

/// The revision of `template`, or a new one. `all` are revisions that the owner controls or may adopt; `taken` are
/// names that others use.
#[must_use]
pub fn resolve(owner_name: &str, template: &PodTemplate, all: &[Arc<RevisionFacts>], taken: &[String], collisions: i32) -> Resolved {
    let live = || all.iter().filter(|revision| !revision.deleting);
    let newest = live().map(|revision| revision.number).max().unwrap_or(0);
    let is_equal =
        |revision: &&Arc<RevisionFacts>| revision.template.too_large().is_none() && meaning(&revision.template) == meaning(template);
    let found = |name: &str, collisions, is_leaving, actions| {
        let (name, template) = (name.to_owned(), template.clone());
        Resolved { name, template, is_leaving, collisions, actions }
    };
    if let Some(revision) = live().filter(is_equal).max_by_key(|revision| (revision.number, &revision.name)) {
        let bump = Action::BumpRevision { name: revision.name.clone(), uid: revision.uid.clone(), number: newest.saturating_add(1) };
        let actions = if revision.number < newest { vec![bump] } else { Vec::new() };
        return found(&revision.name, collisions, false, actions);
    }
    // Under another name its pods would be outdated.
    let leaving = || all.iter().filter(|revision| revision.deleting);
    if let Some(revision) = leaving().filter(is_equal).max_by_key(|revision| (revision.number, &revision.name)) {
        return found(&revision.name, collisions, true, Vec::new());
    }
    let bytes = canonical(&template.value()).to_string();
    let mut collisions = collisions;
    loop {
        let hash = hash(&bytes, collisions);
        let name = format!("{owner_name}-{hash}");
        if leaving().any(|revision| revision.name == name) {
            return found(&name, collisions, true, Vec::new());
        }
        let used = taken.contains(&name) || live().any(|revision| revision.name == name);
        if !used {
            let new = NewRevision { name: name.clone(), hash, number: newest.saturating_add(1), template: template.clone() };
            return found(&name, collisions, false, vec![Action::CreateRevision(new)]);
        }
        collisions = collisions.saturating_add(1);
    }
}

/// The revision that pods keep while the template is invalid.
#[must_use]
pub fn stay(remembered: &str, template: &PodTemplate, all: &[Arc<RevisionFacts>], collisions: i32) -> Resolved {
    let known = all.iter().find(|revision| revision.name == remembered && !revision.deleting && revision.template.too_large().is_none());
    let template = known.map_or(template, |revision| &revision.template).clone();
    Resolved { name: remembered.to_owned(), template, is_leaving: false, collisions, actions: Vec::new() }
}

/// The meaning of a template, computed once: templates with the same meaning are the same revision.
fn meaning(template: &PodTemplate) -> &Meaning {
    template.meaning(|value| Sha256::digest(canonical(value).to_string()).into())
}

/// Revisions to delete: the oldest ones beyond `limit` among those that are not used.
#[must_use]
pub fn superfluous(ours: &[Arc<RevisionFacts>], limit: usize, is_needed: impl Fn(&str) -> bool) -> Vec<Action> {
    let mut idle: Vec<_> = ours.iter().filter(|revision| !revision.deleting && !is_needed(&revision.name)).collect();
    idle.sort_by_key(|revision| (revision.number, &revision.name));
    let excess = idle.len().saturating_sub(limit);
    let oldest = idle.into_iter().take(excess);
    oldest.map(|revision| Action::DeleteRevision { name: revision.name.clone(), uid: revision.uid.clone() }).collect()
}

/// What a ControllerRevision stores for a template.
#[must_use]
pub fn data(mut template: Value) -> Value {
    if let Value::Object(fields) = &mut template {
        fields.insert(REPLACES.to_owned(), json!("replace"));
    }
    json!({ "spec": { "template": template } })
}

/// A key of the template that only a ControllerRevision stores.
pub(crate) const REPLACES: &str = "$patch";

/// The hash of the text and the number of collisions, its decimal digits replaced by characters that form no words.
fn hash(bytes: &str, collisions: i32) -> String {
    let text = bytes.bytes().chain(collisions.to_string().into_bytes());
    fnv_1_32(text).to_string().chars().map(safe_digit).collect()
}

fn safe_digit(digit: char) -> char {
    match digit {
        '0' => '4',
        '1' => '5',
        '2' => '6',
        '3' => '7',
        '4' => '8',
        '5' => '9',
        '6' => 'b',
        '7' => 'c',
        '8' => 'd',
        _ => 'f',
    }
}

/// The meaning of a template: sorted keys, without nulls and without defaults of the API server.
#[must_use]
pub fn canonical(template: &Value) -> Value {
    let mut meaning = without_nulls(template);
    if let Some(metadata) = meaning.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("creationTimestamp");
        drop_if(metadata, "labels", &json!({}));
        drop_if(metadata, "annotations", &json!({}));
    }
    if let Some(fields) = meaning.as_object_mut() {
        fields.remove(REPLACES);
        drop_if(fields, "metadata", &json!({}));
    }
    if let Some(spec) = meaning.get_mut("spec").and_then(Value::as_object_mut) {
        POD_DEFAULTS.iter().for_each(|(key, value)| drop_if(spec, key, &parsed(value)));
        spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten().for_each(forget_volume_defaults);
        for list in ["containers", "initContainers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            containers.filter_map(Value::as_object_mut).for_each(forget_container_defaults);
        }
    }
    meaning
}

const POD_DEFAULTS: &[(&str, &str)] = &[
    ("restartPolicy", "\"Always\""),
    ("dnsPolicy", "\"ClusterFirst\""),
    ("schedulerName", "\"default-scheduler\""),
    ("terminationGracePeriodSeconds", "30"),
    ("securityContext", "{}"),
    ("enableServiceLinks", "true"),
    ("initContainers", "[]"),
    ("volumes", "[]"),
    ("tolerations", "[]"),
    ("imagePullSecrets", "[]"),
    ("nodeSelector", "{}"),
];

const CONTAINER_DEFAULTS: &[(&str, &str)] = &[
    ("terminationMessagePath", "\"/dev/termination-log\""),
    ("terminationMessagePolicy", "\"File\""),
    ("resources", "{}"),
    ("env", "[]"),
    ("envFrom", "[]"),
    ("ports", "[]"),
    ("volumeMounts", "[]"),
    ("args", "[]"),
    ("command", "[]"),
];

const PROBE_DEFAULTS: &[(&str, &str)] =
    &[("timeoutSeconds", "1"), ("periodSeconds", "10"), ("successThreshold", "1"), ("failureThreshold", "3"), ("initialDelaySeconds", "0")];

const VOLUME_DEFAULTS: &[(&str, &str, &str)] = &[
    ("/configMap", "defaultMode", "420"),
    ("/secret", "defaultMode", "420"),
    ("/projected", "defaultMode", "420"),
    ("/downwardAPI", "defaultMode", "420"),
    ("/hostPath", "type", "\"\""),
];

fn forget_volume_defaults(volume: &mut Value) {
    for (place, key, value) in VOLUME_DEFAULTS {
        if let Some(source) = volume.pointer_mut(place).and_then(Value::as_object_mut) {
            drop_if(source, key, &parsed(value));
        }
    }
    if let Some(limit) = volume.pointer_mut("/emptyDir/sizeLimit") {
        same_quantity(limit);
    }
}

/// Normalizes a quantity, so that 1, "1" and "1000m" are the same. A text that is not a quantity stays as it is.
fn same_quantity(value: &mut Value) {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(nanos) = quantity::nanos(&text) {
        *value = json!(format!("{nanos}n"));
    }
}

fn forget_container_defaults(container: &mut Map<String, Value>) {
    for kind in ["/limits", "/requests"] {
        let amounts = container.get_mut("resources").and_then(|resources| resources.pointer_mut(kind));
        amounts.and_then(Value::as_object_mut).into_iter().flatten().for_each(|(_, amount)| same_quantity(amount));
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef").and_then(Value::as_object_mut) {
            drop_if(field, "apiVersion", &json!("v1"));
        }
    }
    CONTAINER_DEFAULTS.iter().for_each(|(key, value)| drop_if(container, key, &parsed(value)));
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map_or("latest", |(_, tag)| tag);
    let policy = if tag == "latest" && !image.contains('@') { "Always" } else { "IfNotPresent" };
    drop_if(container, "imagePullPolicy", &json!(policy));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
        drop_if(port, "protocol", &json!("TCP"));
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            PROBE_DEFAULTS.iter().for_each(|(key, value)| drop_if(probe, key, &parsed(value)));
            if let Some(get) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
                drop_if(get, "scheme", &json!("HTTP"));
            }
        }
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

fn drop_if(fields: &mut Map<String, Value>, key: &str, default: &Value) {
    if fields.get(key) == Some(default) {
        fields.remove(key);
    }
}

/// Sorted keys, no nulls.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().filter(|(_, value)| !value.is_null()).collect();
            sorted.sort_by_key(|(key, _)| *key);
            Value::Object(sorted.into_iter().map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str, number: i64, template: &Value) -> Arc<RevisionFacts> {
        let (name, uid) = (name.to_owned(), format!("uid-{name}"));
        Arc::new(RevisionFacts { name, uid, controller: Some("owner".to_owned()), number, template: template.into(), deleting: false })
    }

    fn image(image: &str) -> Value {
        json!({ "metadata": { "labels": { "app": "game" } }, "spec": { "containers": [{ "name": "game", "image": image }] } })
    }

    #[test]
    fn digits_become_letters_as_in_existing_names() {
        assert_eq!("583488186".chars().map(safe_digit).collect::<String>(), "9d78dd5db");
    }

    #[test]
    fn a_template_survives_its_revision() {
        let template = image("game:1");
        let stored = PodTemplate::from(&data(template.clone())["spec"]["template"]);
        assert_eq!(meaning(&stored), meaning(&template.clone().into()));
        assert_eq!(data(template).pointer("/spec/template/$patch"), Some(&json!("replace")));
    }

    #[test]
    fn what_the_api_server_would_fill_in_is_no_difference() {
        let written = json!({
            "metadata": { "creationTimestamp": null, "labels": { "app": "game" }, "annotations": {} },
            "spec": {
                "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
                "securityContext": {},
                "containers": [{
                    "image": "game:1", "name": "game", "imagePullPolicy": "IfNotPresent", "resources": {}, "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File", "env": null,
                }],
            },
        });
        assert_eq!(canonical(&written), canonical(&image("game:1")));
    }

    #[test]
    fn quantities_are_compared_by_their_amount() {
        for (one, other) in [
            (json!(1), json!("1000m")),
            (json!("1"), json!("1.0")),
            (json!(0.5), json!("500m")),
            (json!("1Gi"), json!("1024Mi")),
            (json!("2k"), json!("2000")),
            (json!("1k"), json!("1e3")),
        ] {
            let with = |amount: &Value| json!({ "spec": { "containers": [{ "name": "game", "image": "game:1", "resources": { "limits": { "cpu": amount } } }] } });
            assert_eq!(canonical(&with(&one)), canonical(&with(&other)), "{one} and {other}");
            assert_ne!(canonical(&with(&one)), canonical(&with(&json!("3"))), "{one} and 3");
        }
    }

    #[test]
    fn every_real_difference_counts() {
        let base = image("game:1");
        for (path, value) in [
            ("/spec/containers/0/image", json!("game:2")),
            ("/spec/containers/0/imagePullPolicy", json!("Always")),
            ("/spec/volumes", json!([{ "name": "scratch", "emptyDir": {} }])),
            ("/metadata/labels/tier", json!("gold")),
            ("/spec/fieldOfTomorrow", json!(true)),
        ] {
            let mut changed = base.clone();
            let (parent, key) = path.rsplit_once('/').unwrap();
            changed.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value);
            assert_ne!(canonical(&changed), canonical(&base), "{path}");
        }
    }

    #[test]
    fn the_default_pull_policy_follows_the_tag() {
        for (name, policy) in
            [("game", "Always"), ("game:latest", "Always"), ("host:5000/game:1", "IfNotPresent"), ("game@sha256:0", "IfNotPresent")]
        {
            let mut explicit = image(name);
            explicit
                .pointer_mut("/spec/containers/0")
                .unwrap()
                .as_object_mut()
                .unwrap()
                .insert("imagePullPolicy".to_owned(), json!(policy));
            assert_eq!(canonical(&explicit), canonical(&image(name)), "{name}");
        }
    }

    #[test]
    fn a_known_template_keeps_its_revision_and_its_name() {
        let ours = [facts("game-a", 1, &image("game:1")), facts("game-b", 2, &image("game:2"))];
        let resolved = resolve("game", &image("game:2").into(), &ours, &[], 0);
        assert_eq!((resolved.name.as_str(), resolved.actions.len()), ("game-b", 0));
    }

    #[test]
    fn going_back_makes_the_old_revision_the_newest() {
        let ours = [facts("game-a", 1, &image("game:1")), facts("game-b", 2, &image("game:2"))];
        let resolved = resolve("game", &image("game:1").into(), &ours, &[], 0);
        assert_eq!(resolved.name, "game-a");
        assert_eq!(resolved.actions, [Action::BumpRevision { name: "game-a".to_owned(), uid: "uid-game-a".to_owned(), number: 3 }]);
    }

    #[test]
    fn a_revision_that_is_being_deleted_does_not_count_and_keeps_its_name() {
        let leaving = |name: &str, number: i64, template: &Value| {
            Arc::new(RevisionFacts { deleting: true, ..RevisionFacts::clone(&facts(name, number, template)) })
        };
        let template = image("game:1");
        let own = resolve("game", &template.clone().into(), &[], &[], 0);
        assert!(!own.is_leaving && own.actions.len() == 1);
        // The same template, and another one under the same name.
        for other in [&template, &image("game:2")] {
            let waits = resolve("game", &template.clone().into(), &[leaving(&own.name, 9, other)], &[], 0);
            assert_eq!((waits.name.as_str(), waits.is_leaving, waits.actions.len(), waits.collisions), (own.name.as_str(), true, 0, 0));
        }
        // The original operator's name for the same template.
        let waits = resolve("game", &template.clone().into(), &[leaving("game-b7f", 1, &template)], &[], 0);
        assert_eq!((waits.name.as_str(), waits.is_leaving), ("game-b7f", true));
        let ours = [facts("game-a", 1, &template), leaving("game-z", 9, &image("game:2"))];
        let stays = resolve("game", &template.into(), &ours, &[], 0);
        assert_eq!((stays.name.as_str(), stays.actions.len()), ("game-a", 0), "a higher number that is going is not newer");
        assert!(superfluous(&ours[1..], 0, |_| false).is_empty(), "it is going already");
    }

    #[test]
    fn a_name_that_another_template_uses_is_passed_by() {
        let free = resolve("game", &image("game:1").into(), &[], &[], 0);
        let other = resolve("game", &image("game:1").into(), &[], std::slice::from_ref(&free.name), 0);
        assert_ne!(free.name, other.name);
        assert_eq!((free.collisions, other.collisions), (0, 1));
    }

    #[test]
    fn only_the_oldest_unneeded_revisions_are_forgotten() {
        let ours: Vec<_> = (1..=5).map(|number| facts(&format!("game-{number}"), number, &image(&format!("game:{number}")))).collect();
        let gone = superfluous(&ours, 1, |name| name == "game-1");
        let names: Vec<_> = gone
            .iter()
            .filter_map(|action| if let Action::DeleteRevision { name, .. } = action { Some(name.as_str()) } else { None })
            .collect();
        assert_eq!(names, ["game-2", "game-3", "game-4"]);
    }
}
