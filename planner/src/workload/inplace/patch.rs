//! The patches of an in-place update. Each contains only what it changes.

use std::collections::BTreeMap;

use api::names::{
    GATE_REASON, HOTPATCH_ANNOTATION, HOTPATCH_STATE_ANNOTATION, INPLACE_GRACE_ANNOTATION, INPLACE_STATE_ANNOTATION, READINESS_GATE,
    REVISION_LABEL,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Difference, LastStatus, Pending, State};
use crate::facts::pod::{Container, Gate, PodFacts, Resources};
use crate::facts::text::{Few, Text, Texts};
use crate::plan::{PatchReason, PodPart, PodPatch};

/// Timestamps as Kubernetes writes them: whole seconds.
fn written(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn patch(
    pod: &PodFacts,
    (why, part, revision): (PatchReason, PodPart, Option<&str>),
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    rest: Value,
) -> PodPatch {
    let mut metadata = json!({ "uid": pod.uid });
    for (key, entries) in [("labels", labels), ("annotations", annotations)] {
        if let Some(metadata) = metadata.as_object_mut().filter(|_| !entries.is_empty()) {
            metadata.insert(key.to_owned(), Value::Object(entries));
        }
    }
    let mut body = json!({ "metadata": metadata });
    if let (Some(body), Value::Object(rest)) = (body.as_object_mut(), rest) {
        body.extend(rest);
    }
    PodPatch { name: pod.name.clone(), uid: pod.uid.clone(), why, part, revision: revision.map(str::to_owned), body }
}

fn entries(changes: &BTreeMap<String, Option<String>>) -> Map<String, Value> {
    changes.iter().map(|(key, value)| (key.clone(), json!(value))).collect()
}

fn text(value: &impl serde::Serialize) -> Value {
    json!(serde_json::to_string(value).unwrap_or_default())
}

fn condition(up: bool, now: Timestamp) -> Value {
    let mut condition = json!({ "type": READINESS_GATE, "status": if up { "True" } else { "False" }, "lastTransitionTime": written(now) });
    if let Some(fields) = condition.as_object_mut() {
        fields.insert("reason".to_owned(), if up { Value::Null } else { json!(GATE_REASON) });
    }
    json!({ "conditions": [condition] })
}

/// The state of a change: its containers as they are now, and those of an earlier change that have not come back.
fn state(pod: &PodFacts, revision: &str, difference: &Difference, now: Timestamp) -> State {
    let before = pod.update.as_deref().and_then(|update| update.state.as_ref()).filter(|state| pod.revision() == Some(&state.revision));
    let pending = pod.update.as_deref().and_then(|update| update.pending.as_ref());
    // An announced change is not made yet; but where containers change one after the other, some are changed already,
    // and some still wait for an earlier change.
    let is_made = |state: &State, container: &Container| {
        pending.is_none_or(|pending| match pending.container_images.get(&container.name) {
            Some(image) => *image == container.image || state.is_awaited(container),
            None => !state.resized,
        })
    };
    let mut last = Few::default();
    for container in &pod.containers {
        let changed = difference.images.iter().any(|(name, _)| *name == container.name) || restarts_by_resize(difference, &container.name);
        let still = before.is_some_and(|state| is_made(state, container) && !state.has_taken_effect(pod, container))
            || before.is_none() && is_patched_unseen(pod, container);
        let status = match (changed, still) {
            // It has to restart once more than the earlier change already requires.
            (true, true) => LastStatus { image_id: Text::default(), restart_count: Some(container.restarts.saturating_add(1)) },
            (true, false) => LastStatus { image_id: container.image_id.clone(), restart_count: Some(container.restarts) },
            (false, true) => before.and_then(|state| state.last_container_statuses.get(&container.name)).cloned().unwrap_or_default(),
            (false, false) => continue,
        };
        last.insert(container.name.clone(), status);
    }
    let resized = !difference.resources.is_empty();
    State {
        revision: revision.into(),
        last_revision: previous_revision(pod),
        asked_images: Texts::default(),
        update_timestamp: Some(written(now)),
        last_container_statuses: last,
        resized,
        ask_after: false,
    }
}

/// The revision that a pod has before a change. A pod whose earlier change was only announced still has the one before
/// that; a pod with a part of a change follows none.
fn previous_revision(pod: &PodFacts) -> Text {
    let label = || pod.revision().unwrap_or_default().into();
    let Some(update) = pod.update.as_deref().filter(|update| update.pending.is_some()) else { return label() };
    if !update.is_only_announced(pod) {
        return Text::default();
    }
    update.state.as_ref().map_or_else(label, |state| state.last_revision.clone())
}

fn restarts_by_resize(difference: &Difference, name: &str) -> bool {
    difference.resize_restarts.iter().any(|restarting| restarting == name)
}

/// How an update starts.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// How long the pod is out of its endpoints before anything changes, in seconds.
    pub grace: i64,
    /// Whether a hook is asked once it serves again.
    pub ask_after: bool,
    /// Whether its containers change one after the other.
    pub in_turn: bool,
}

/// Starts an update to `revision`: one write that removes the pod from its endpoints and announces the change; or the
/// whole change, if nothing restarts or nothing holds the pod back. A pod without the gate keeps serving, so it has no
/// grace period.
#[must_use]
pub fn start(pod: &PodFacts, revision: &str, difference: &Difference, terms: Terms, now: Timestamp) -> PodPatch {
    let state = State { ask_after: terms.ask_after, ..state(pod, revision, difference, now) };
    let restarts = difference.restarts();
    let mut labels = Map::from_iter([(REVISION_LABEL.to_owned(), json!(revision))]);
    let mut annotations = Map::new();
    if restarts && (pod.gate != Gate::Absent || terms.in_turn) {
        let container_images = difference.images.iter().cloned().collect();
        let grace_seconds = if pod.gate == Gate::Absent { 0 } else { terms.grace };
        let pending = Pending { revision: revision.into(), container_images, grace_seconds };
        annotations.insert(INPLACE_STATE_ANNOTATION.to_owned(), text(&state));
        annotations.insert(INPLACE_GRACE_ANNOTATION.to_owned(), text(&pending));
        // A pod that is out of its endpoints already continues its grace period.
        let rest = match pod.gate {
            Gate::Down(_) | Gate::Absent => json!({}),
            Gate::Unset | Gate::Up => json!({ "status": condition(false, now) }),
        };
        return patch(pod, (PatchReason::Drain, PodPart::Status, Some(revision)), labels, annotations, rest);
    }
    labels.extend(entries(&difference.labels));
    annotations.extend(entries(&difference.annotations));
    let is_needed = !state.last_container_statuses.is_empty() || state.resized;
    let had = pod.update.is_some();
    if is_needed || had {
        annotations.insert(INPLACE_STATE_ANNOTATION.to_owned(), if is_needed { text(&state) } else { Value::Null });
    }
    if had {
        annotations.insert(INPLACE_GRACE_ANNOTATION.to_owned(), Value::Null);
    }
    let nothing_restarts = state.last_container_statuses.is_empty();
    match pod.gate {
        // The change is taken back before anything restarted: the pod returns to its endpoints.
        Gate::Down(_) if nothing_restarts => patch(
            pod,
            (PatchReason::InPlace, PodPart::Status, Some(revision)),
            labels,
            annotations,
            json!({ "status": condition(true, now) }),
        ),
        Gate::Absent | Gate::Unset | Gate::Down(_) | Gate::Up => {
            patch(pod, (PatchReason::InPlace, PodPart::Main, Some(revision)), labels, annotations, images(&difference.images))
        }
    }
}

fn images(images: &[(String, String)]) -> Value {
    let containers: Vec<Value> = images.iter().map(|(name, image)| json!({ "name": name, "image": image })).collect();
    if containers.is_empty() { json!({}) } else { json!({ "spec": { "containers": containers } }) }
}

/// Whether a hot patch gave a container an image that its node does not run, and may never run.
fn is_patched_unseen(pod: &PodFacts, container: &Container) -> bool {
    pod.annotations.contains_key(HOTPATCH_STATE_ANNOTATION) && container.running && !container.runs_its_image()
}

/// Makes the announced change: of these containers now, and everything else if they are the last.
#[must_use]
pub fn restart(pod: &PodFacts, difference: &Difference, now_due: &[(String, String)], now: Timestamp) -> PodPatch {
    let is_last = now_due.len() == difference.images.len();
    let mut annotations = entries(&difference.annotations);
    if let Some(state) = pod.update.as_deref().and_then(|update| update.state.as_ref()) {
        let mut state = State { update_timestamp: Some(written(now)), ..state.clone() };
        for container in pod.containers.iter().filter(|container| now_due.iter().any(|(name, _)| *name == container.name)) {
            // It may return to the image that still runs, and never restart.
            if state.is_awaited(container) {
                continue;
            }
            // A container may have restarted by itself during the grace period: only restarts from now on count.
            let last = LastStatus { image_id: container.image_id.clone(), restart_count: Some(container.restarts) };
            state.last_container_statuses.insert(container.name.clone(), last);
        }
        for (name, image) in now_due.iter().filter(|_| !is_last) {
            state.asked_images.insert(&**name, &**image);
        }
        if is_last {
            state.asked_images = Texts::default();
        }
        annotations.insert(INPLACE_STATE_ANNOTATION.to_owned(), text(&state));
    }
    if is_last {
        annotations.insert(INPLACE_GRACE_ANNOTATION.to_owned(), Value::Null);
    }
    patch(pod, (PatchReason::InPlace, PodPart::Main, pod.revision()), entries(&difference.labels), annotations, images(now_due))
}

/// Makes a change right after it was announced, in the same plan.
#[must_use]
pub fn follow(pod: &PodFacts, revision: &str, difference: &Difference) -> PodPatch {
    let mut annotations = entries(&difference.annotations);
    annotations.insert(INPLACE_GRACE_ANNOTATION.to_owned(), Value::Null);
    patch(pod, (PatchReason::InPlace, PodPart::Main, Some(revision)), entries(&difference.labels), annotations, images(&difference.images))
}

/// Returns a pod to its endpoints, or removes it from them.
#[must_use]
pub fn gate(pod: &PodFacts, up: bool, now: Timestamp) -> PodPatch {
    let (why, revision) = if up { (PatchReason::Restore, None) } else { (PatchReason::Drain, pod.revision()) };
    patch(pod, (why, PodPart::Status, revision), Map::new(), Map::new(), json!({ "status": condition(up, now) }))
}

/// Takes back a change that was announced and cannot be made: one write that restores the revision that the pod
/// actually has, and returns it to its endpoints unless containers have not come back from an earlier change. None if a
/// part of the change is made already, or if the pod's earlier revision is not known.
#[must_use]
pub fn take_back(pod: &PodFacts, now: Timestamp) -> Option<PodPatch> {
    let update = pod.update.as_deref().filter(|update| update.is_only_announced(pod))?;
    let state = update.state.as_ref().filter(|state| !state.last_revision.is_empty())?;
    let announced = |name: &str| update.pending.as_ref().is_some_and(|pending| pending.container_images.contains_key(name));
    let earlier = |(name, last): (&Text, &LastStatus)| {
        let container = pod.containers.iter().find(|container| container.name == *name)?;
        let still = match (announced(name), state.is_awaited(container)) {
            // It waited for two restarts, of which one will not happen.
            (true, true) => LastStatus { restart_count: last.restart_count.map(|count| count.saturating_sub(1)), ..last.clone() },
            (true, false) => return None,
            (false, _) => last.clone(),
        };
        Some((name.clone(), still))
    };
    let before = State {
        revision: state.last_revision.clone(),
        last_revision: Text::default(),
        last_container_statuses: state.last_container_statuses.iter().filter_map(earlier).collect(),
        resized: false,
        ..state.clone()
    };
    let is_back = before.is_done(pod);
    let labels = Map::from_iter([(REVISION_LABEL.to_owned(), json!(before.revision))]);
    let annotations = Map::from_iter([
        (INPLACE_STATE_ANNOTATION.to_owned(), if is_back { Value::Null } else { text(&before) }),
        (INPLACE_GRACE_ANNOTATION.to_owned(), Value::Null),
    ]);
    let rest = if is_back && pod.gate != Gate::Absent { json!({ "status": condition(true, now) }) } else { json!({}) };
    Some(patch(pod, (PatchReason::Restore, PodPart::Status, None), labels, annotations, rest))
}

/// Changes requests and limits.
#[must_use]
pub fn resize(pod: &PodFacts, revision: &str, difference: &Difference) -> PodPatch {
    let containers: Vec<Value> =
        difference.resources.iter().map(|(name, resources)| json!({ "name": name, "resources": nested(resources) })).collect();
    let spec = json!({ "spec": { "containers": containers } });
    patch(pod, (PatchReason::Resize, PodPart::Resize, Some(revision)), Map::new(), Map::new(), spec)
}

fn nested(resources: &Resources) -> Value {
    let mut all: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for (kind, name, amount) in resources.iter().filter_map(|(key, amount)| key.split_once('.').map(|(kind, name)| (kind, name, amount))) {
        all.entry(kind).or_default().insert(name, amount);
    }
    json!(all)
}

/// Changes images of running containers without a restart, where the kubelet supports it: with the annotations and the
/// patch of the original operator.
#[must_use]
pub fn hot_patch(pod: &PodFacts, revision: &str, difference: &Difference, now: Timestamp) -> PodPatch {
    let mut state = state(pod, revision, difference, now);
    state.last_container_statuses.values_mut().for_each(|last| last.restart_count = None);
    let mut labels = entries(&difference.labels);
    labels.insert(REVISION_LABEL.to_owned(), json!(revision));
    let mut annotations = entries(&difference.annotations);
    annotations.insert(HOTPATCH_STATE_ANNOTATION.to_owned(), text(&state));
    annotations.insert(HOTPATCH_ANNOTATION.to_owned(), json!("true"));
    // The pod may return to a revision that was announced for it before.
    if pod.update.is_some() {
        annotations.extend([INPLACE_STATE_ANNOTATION, INPLACE_GRACE_ANNOTATION].map(|key| (key.to_owned(), Value::Null)));
    }
    patch(pod, (PatchReason::HotPatch, PodPart::Main, Some(revision)), labels, annotations, images(&difference.images))
}
