//! In-place updates: the pod stays, and its containers restart with other images.
//!
//! A pod with the operator's readiness gate takes three writes. The first removes it from its endpoints and announces
//! the change; after the grace period the second changes it; once every changed container runs what it should, the
//! third returns it to its endpoints. The progress is in the annotations of the pod, so that any operator can continue.

pub(super) mod changes;
mod diff;
mod patch;

use api::tkex::ContainerOrder;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::facts::pod::{Container, Gate, PodFacts};
use crate::facts::text::{Few, Strings, Text, Texts};
use crate::quantity;

pub use diff::{Difference, difference, lowers_memory, obstacles, unlike};
pub use patch::{Terms, follow, gate, hot_patch, resize, restart, start, take_back};

/// An in-place update, as the annotations of a pod record it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// What is changed, and what ran before.
    pub state: Option<State>,
    /// A change that is not made yet.
    pub pending: Option<Pending>,
}

/// What is changed, and what ran before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// The revision that the pod gets.
    pub revision: Text,
    /// The revision that it had before.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub last_revision: Text,
    /// Images that were asked for, by container, as long as other containers wait: an admission webhook may replace
    /// them.
    #[serde(skip_serializing_if = "Few::is_empty")]
    pub asked_images: Texts,
    /// When the change was made or announced.
    pub update_timestamp: Option<Timestamp>,
    /// Containers that are changed, by name.
    pub last_container_statuses: Few<LastStatus>,
    /// Whether requests or limits are changed too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resized: bool,
    /// Whether a hook is asked once the pod serves again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ask_after: bool,
}

/// A container before its change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LastStatus {
    /// The digest of the image that ran; empty if it cannot tell whether the container has restarted.
    #[serde(rename = "imageID", skip_serializing_if = "str::is_empty")]
    pub image_id: Text,
    /// How often it had been restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<i32>,
}

/// A change that is not made yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pending {
    /// The revision that the pod gets.
    pub revision: Text,
    /// Images to come, by container.
    pub container_images: Texts,
    /// How long the pod is out of its endpoints before the change, in seconds.
    pub grace_seconds: i64,
}

/// The progress of an in-place update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is under way.
    Resting,
    /// A change waits, and the pod is in its endpoints: it has to be drained first.
    Exposed,
    /// The pod is drained, and the change waits until this time.
    Draining(Timestamp),
    /// Containers have not come back yet.
    Restarting,
    /// Every changed container runs what it should.
    Done,
}

impl Update {
    /// Parses the annotations of a pod. An invalid one counts as absent.
    #[must_use]
    pub fn read(state: Option<&str>, pending: Option<&str>) -> Option<Box<Self>> {
        let update = Self {
            state: state.and_then(|text| serde_json::from_str(text).ok()),
            pending: pending.and_then(|text| serde_json::from_str(text).ok()),
        };
        (update != Self::default()).then(|| Box::new(update))
    }

    /// Replaces strings by those that other pods have.
    pub fn share(&mut self, strings: &mut Strings) {
        if let Some(state) = &mut self.state {
            [&mut state.revision, &mut state.last_revision].into_iter().for_each(|text| strings.share(text));
            strings.share_all(&mut state.asked_images);
            strings.share_keys(&mut state.last_container_statuses);
            state.last_container_statuses.values_mut().for_each(|last| strings.share(&mut last.image_id));
        }
        if let Some(pending) = &mut self.pending {
            strings.share(&mut pending.revision);
            strings.share_all(&mut pending.container_images);
        }
    }

    /// The progress of the pod's update.
    #[must_use]
    pub fn progress(&self, pod: &PodFacts) -> Progress {
        let is_of_pod = |revision: &str| pod.revision() == Some(revision);
        if let Some(pending) = self.pending.as_ref().filter(|pending| is_of_pod(&pending.revision)) {
            let since = match pod.gate {
                Gate::Up | Gate::Unset => return Progress::Exposed,
                Gate::Down(since) => since,
                Gate::Absent => self.state.as_ref().and_then(|state| state.update_timestamp).unwrap_or(pod.created),
            };
            let grace = SignedDuration::from_secs(pending.grace_seconds.clamp(0, 86_400));
            // Timestamps of Kubernetes are whole seconds: the truncated part must not shorten the grace period.
            let truncated = if grace.is_zero() { SignedDuration::ZERO } else { SignedDuration::from_millis(999) };
            return Progress::Draining(since.checked_add(grace + truncated).unwrap_or(Timestamp::MAX));
        }
        match self.state.as_ref().filter(|state| is_of_pod(&state.revision)) {
            Some(_) if pod.gate == Gate::Up => Progress::Resting,
            Some(state) if state.is_done(pod) => Progress::Done,
            Some(_) => Progress::Restarting,
            None => Progress::Resting,
        }
    }

    /// Whether a change is announced, and no container has it yet.
    #[must_use]
    pub fn is_only_announced(&self, pod: &PodFacts) -> bool {
        let image = |name: &str| pod.containers.iter().find(|container| container.name == name).map(|container| &container.image);
        let is_asked = |name: &str| self.state.as_ref().is_some_and(|state| state.asked_images.contains_key(name));
        let waits = |(name, wanted): (&Text, &Text)| image(name) != Some(wanted) && !is_asked(name);
        self.pending.as_ref().is_some_and(|pending| pending.container_images.iter().all(waits))
    }

    /// The revision that a hook is asked about once the pod serves again.
    #[must_use]
    pub fn asked_about(&self, pod: &PodFacts) -> Option<&str> {
        let state = self.state.as_ref().filter(|state| state.ask_after && pod.revision() == Some(&state.revision));
        state.map(|state| &*state.revision)
    }

    /// Whether containers are about to restart, or have not come back yet.
    #[must_use]
    pub fn is_under_way(&self, pod: &PodFacts) -> bool {
        match self.progress(pod) {
            Progress::Resting | Progress::Done => self.state.as_ref().is_some_and(|state| state.is_resizing(pod)),
            Progress::Exposed | Progress::Draining(_) | Progress::Restarting => true,
        }
    }
}

/// The revision whose template a pod follows; none if a part of a change is made.
#[must_use]
pub fn followed(pod: &PodFacts) -> Option<&str> {
    let Some(update) = pod.update.as_deref().filter(|update| update.pending.is_some()) else { return pod.revision() };
    let state = update.state.as_ref().filter(|state| !state.last_revision.is_empty())?;
    update.is_only_announced(pod).then_some(&*state.last_revision)
}

impl State {
    /// Whether every changed container runs what it should.
    fn is_done(&self, pod: &PodFacts) -> bool {
        self.last_container_statuses.keys().all(|name| self.is_container_done(pod, name))
    }

    /// Whether a container runs what it should, or is none of those that were changed.
    fn is_container_done(&self, pod: &PodFacts, name: &str) -> bool {
        let Some(container) = pod.containers.iter().find(|container| container.name == name) else { return true };
        !self.last_container_statuses.contains_key(name) || container.running && self.has_taken_effect(pod, container)
    }

    /// Whether the change of a container has taken effect, or it was not changed. It may have ended since.
    fn has_taken_effect(&self, pod: &PodFacts, container: &Container) -> bool {
        let Some(last) = self.last_container_statuses.get(&container.name) else { return true };
        let other_image = !last.image_id.is_empty() && container.image_id != last.image_id;
        let restarted = last.restart_count.is_some_and(|count| container.restarts > count);
        let started = self.update_timestamp.is_some_and(|changed| container.started.is_some_and(|started| started > changed));
        // The name alone does not tell: another tag of the same content looks the same until the container has
        // restarted.
        let named = last.image_id.is_empty() && container.runs_its_image();
        pod.is_seen_by_node && (other_image || restarted || started || named)
    }

    /// Whether a container was changed again before it came back from an earlier change, and still has not.
    fn is_awaited(&self, container: &Container) -> bool {
        let last = self.last_container_statuses.get(&container.name);
        last.is_some_and(|last| last.image_id.is_empty() && last.restart_count.is_some_and(|count| container.restarts < count))
    }

    /// Whether requests or limits are not applied yet.
    fn is_resizing(&self, pod: &PodFacts) -> bool {
        self.resized && pod.revision() == Some(&self.revision) && (pod.is_resizing || pod.containers.iter().any(is_unlike_its_spec))
    }
}

fn is_unlike_its_spec(container: &Container) -> bool {
    let Some(actual) = &container.actual_resources else { return false };
    container.resources.iter().any(|(key, wanted)| actual.get(key).is_some_and(|found| !quantity::same(found, wanted)))
}

impl Container {
    /// Whether its node reports the image that it should run.
    fn runs_its_image(&self) -> bool {
        let found = self.image_id.rsplit_once('@').map_or(&*self.image_id, |(_, digest)| digest);
        let pinned = self.image.rsplit_once('@').is_some_and(|(_, wanted)| wanted == found);
        pinned || is_same_image(&self.actual_image, &self.image)
    }
}

/// Whether two names mean the same image, in whichever notation.
fn is_same_image(one: &str, other: &str) -> bool {
    !one.is_empty() && whole_name(one) == whole_name(other)
}

fn whole_name(image: &str) -> String {
    let image = image.strip_prefix("docker.io/").unwrap_or(image);
    let image = image.strip_prefix("library/").unwrap_or(image);
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// Containers to change now, of several that wait: all, or the next one once those before it are far enough.
#[must_use]
pub fn next_containers(pod: &PodFacts, order: ContainerOrder, waiting: &[(String, String)]) -> Vec<(String, String)> {
    let changed = pod.update.as_deref().and_then(|update| update.state.as_ref());
    let is_far_enough = |container: &Container| {
        let Some(state) = changed.filter(|state| state.last_container_statuses.contains_key(&container.name)) else { return true };
        match order {
            ContainerOrder::DisOrdered => true,
            ContainerOrder::OrderedUpdated => state.is_container_done(pod, &container.name),
            ContainerOrder::OrderedReady => state.is_container_done(pod, &container.name) && container.ready,
        }
    };
    match (order, waiting.first()) {
        (ContainerOrder::DisOrdered, _) => waiting.to_vec(),
        (_, Some(first)) if pod.containers.iter().take_while(|container| container.name != first.0).all(is_far_enough) => {
            vec![first.clone()]
        }
        (_, _) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_the_same_however_they_are_spelled() {
        for (one, other) in
            [("python:3.5", "docker.io/library/python:3.5"), ("game", "game:latest"), ("a.b/c:1", "a.b/c:1"), ("docker.io/o/g:1", "o/g:1")]
        {
            assert!(is_same_image(one, other), "{one} {other}");
        }
        for (one, other) in [("python:3.5", "python:3.6"), ("host:5000/game", "host:5000/game:1"), ("", "")] {
            assert!(!is_same_image(one, other), "{one} {other}");
        }
    }

    fn pod(container: Container, gate: Gate) -> PodFacts {
        let mut pod: PodFacts = serde_json::from_value(serde_json::json!({
            "name": "p", "namespace": "n", "uid": "u", "resource_version": 1, "labels": { "controller-revision-hash": "game-2" }, "controller": null,
            "created": "2026-11-15T10:00:00Z", "deleting": false, "phase": "Running", "ready_since": null, "node": null, "restarts": 0, "deletion_cost": 0,
            "trouble": null, "annotations": {}, "gate": "Absent", "containers": [], "update": null, "is_resizing": false, "is_seen_by_node": true,
        }))
        .unwrap();
        (pod.containers, pod.gate) = (vec![container], gate);
        pod
    }

    fn state(last: LastStatus) -> State {
        let update_timestamp = Some("2026-11-15T10:00:00Z".parse().unwrap());
        let last_container_statuses = [("game", last)].into();
        State { revision: "game-2".into(), update_timestamp, last_container_statuses, ..State::default() }
    }

    fn runs(image: &str, actual: &str, image_id: &str, restarts: i32) -> Container {
        let text = Text::from;
        Container {
            name: text("game"),
            image: text(image),
            actual_image: text(actual),
            image_id: text(image_id),
            running: true,
            restarts,
            ..Container::default()
        }
    }

    fn was(image_id: &str, restarts: i32) -> LastStatus {
        LastStatus { image_id: image_id.into(), restart_count: Some(restarts) }
    }

    #[test]
    fn a_container_is_back_when_it_has_restarted_and_not_before() {
        for (container, last, expected) in [
            (runs("game:2", "game:1", "a", 0), was("a", 0), false),
            (runs("game:2", "game:2", "b", 1), was("a", 0), true),
            // The same content under another name: only the restart tells.
            (runs("game:1-again", "game:1-again", "a", 0), was("a", 0), false),
            (runs("game:1-again", "game:1", "a", 1), was("a", 0), true),
            // It never ran before.
            (runs("game:2", "game:2", "b", 0), was("", 0), true),
            (runs("game@sha256:b", "sha256:c", "repo/game@sha256:b", 0), was("", 0), true),
            // Back to the image that still runs.
            (runs("game:1", "game:1", "a", 0), was("", 1), true),
        ] {
            let pod = pod(container, Gate::Up);
            assert_eq!(state(last).is_done(&pod), expected, "{:?}", pod.containers);
        }
    }

    #[test]
    fn a_crash_in_the_grace_is_no_restart_of_ours() {
        let mut pod = pod(runs("game:1", "game:1", "a", 1), Gate::Down("2026-11-15T10:00:00Z".parse().unwrap()));
        pod.update = Some(Box::new(Update { state: Some(state(was("a", 0))), pending: None }));
        let images = vec![("game".to_owned(), "game:2".to_owned())];
        let difference = Difference { images: images.clone(), ..Difference::default() };
        let patch = restart(&pod, &difference, &images, "2026-11-15T10:01:00Z".parse().unwrap());
        assert_eq!(written(&patch).last_container_statuses["game"], was("a", 1));
    }

    fn written(patch: &crate::plan::PodPatch) -> State {
        let text = patch.body.pointer("/metadata/annotations/inplace-update-state").and_then(|text| text.as_str()).unwrap();
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_container_that_goes_back_before_its_node_has_looked_is_back_without_a_restart() {
        let now = "2026-11-15T10:01:00Z".parse().unwrap();
        let mut pod = pod(runs("game:2", "game:1", "a", 0), Gate::Down(now));
        pod.update = Some(Box::new(Update { state: Some(state(was("a", 0))), pending: None }));
        let images = vec![("game".to_owned(), "game:1".to_owned())];
        let difference = Difference { images: images.clone(), ..Difference::default() };
        let announced = start(&pod, "game-1", &difference, Terms { grace: 60, ask_after: false, in_turn: false }, now);
        pod.labels.insert("controller-revision-hash".to_owned(), "game-1".to_owned());
        pod.update = Some(Box::new(Update { state: Some(written(&announced)), pending: None }));
        let made = written(&restart(&pod, &difference, &images, now));
        pod.containers = vec![runs("game:1", "game:1", "a", 0)];
        assert!(made.is_done(&pod), "{made:?}");
    }

    fn named(name: &str, container: Container) -> Container {
        Container { name: name.into(), ..container }
    }

    /// A pod with two containers, of which the first gets another image and the second waits for it.
    fn half_way(first: Container) -> PodFacts {
        let mut pod = pod(Container::default(), Gate::Down("2026-11-15T10:01:00Z".parse().unwrap()));
        pod.containers = vec![named("first", first), named("second", runs("side:1", "side:1", "b", 0))];
        let last = [("first", was("a", 0)), ("second", was("b", 0))].into();
        let container_images = ["first", "second"].map(|name| (name, "game:2")).into();
        let pending = Pending { revision: "game-2".into(), container_images, grace_seconds: 0 };
        let before = State { last_container_statuses: last, ..state(LastStatus::default()) };
        pod.update = Some(Box::new(Update { state: Some(before), pending: Some(pending) }));
        pod
    }

    /// Announces another revision, one container after the other.
    fn announce(pod: &mut PodFacts, revision: &str, images: &[(&str, &str)]) -> Vec<(String, String)> {
        let images: Vec<_> = images.iter().map(|(name, image)| ((*name).to_owned(), (*image).to_owned())).collect();
        let difference = Difference { images: images.clone(), ..Difference::default() };
        let terms = Terms { grace: 0, ask_after: false, in_turn: true };
        let announced = start(pod, revision, &difference, terms, "2026-11-15T10:01:00Z".parse().unwrap());
        let pending = announced.body.pointer("/metadata/annotations/inplace-update-grace").and_then(|text| text.as_str());
        let pending = pending.map(|text| serde_json::from_str(text).unwrap());
        pod.labels.insert("controller-revision-hash".to_owned(), revision.to_owned());
        pod.update = Some(Box::new(Update { state: Some(written(&announced)), pending }));
        images
    }

    #[test]
    fn a_new_template_on_the_way_waits_for_the_container_that_has_not_come_back() {
        let mut pod = half_way(runs("game:2", "game:1", "a", 0));
        for (revision, image) in [("game-3", "side:3"), ("game-4", "side:4")] {
            let images = announce(&mut pod, revision, &[("second", image)]);
            assert!(next_containers(&pod, ContainerOrder::OrderedUpdated, &images).is_empty(), "the first is not back");
        }
        let mut back = pod.clone();
        back.containers[0] = named("first", runs("game:2", "game:2", "c", 1));
        let images = vec![("second".to_owned(), "side:4".to_owned())];
        assert_eq!(next_containers(&back, ContainerOrder::OrderedUpdated, &images), images);
        // It is remembered even when everything goes back: its node may never have seen the other image.
        let images = announce(&mut pod, "game-1", &[("first", "game:1")]);
        let difference = Difference { images: images.clone(), ..Difference::default() };
        let made = written(&restart(&pod, &difference, &images, "2026-11-15T10:02:00Z".parse().unwrap()));
        pod.containers[0].image = "game:1".into();
        assert!(made.is_done(&pod), "{made:?}");
    }

    #[test]
    fn a_container_that_crashes_after_its_change_does_not_keep_its_neighbour_from_being_mended() {
        let mut pod = half_way(Container { running: false, ..runs("game:2", "game:2", "c", 3) });
        for order in [ContainerOrder::OrderedUpdated, ContainerOrder::OrderedReady] {
            let images = announce(&mut pod, "game-3", &[("second", "side:3")]);
            assert_eq!(next_containers(&pod, order, &images), images);
        }
    }

    #[test]
    fn a_change_that_is_only_announced_leaves_the_pod_what_it_was() {
        let state = r#"{"revision":"game-2","lastRevision":"game-1","lastContainerStatuses":{"game":{"imageID":"a","restartCount":0}}}"#;
        let grace = r#"{"revision":"game-2","containerImages":{"game":"game:2"},"graceSeconds":0}"#;
        // A webhook has put the mirror's name before the image.
        let mut pod = pod(runs("mirror/game:1", "mirror/game:1", "a", 0), Gate::Down("2026-11-15T10:00:00Z".parse().unwrap()));
        pod.update = Update::read(Some(state), Some(grace));
        assert_eq!(followed(&pod), Some("game-1"));
        let back = take_back(&pod, "2026-11-15T10:01:00Z".parse().unwrap()).unwrap().body;
        assert_eq!(back.pointer("/metadata/labels/controller-revision-hash"), Some(&serde_json::json!("game-1")));
        assert_eq!(back.pointer("/status/conditions/0/status"), Some(&serde_json::json!("True")));
        assert_eq!(back.pointer("/metadata/annotations/inplace-update-state"), Some(&serde_json::Value::Null));
        // A part of the change was asked for: one write cannot take it back.
        pod.update =
            Update::read(Some(&state.replace("\"lastRevision\"", "\"askedImages\":{\"game\":\"game:2\"},\"lastRevision\"")), Some(grace));
        assert_eq!((followed(&pod), take_back(&pod, Timestamp::UNIX_EPOCH)), (None, None));
    }

    #[test]
    fn containers_of_a_pod_without_the_gate_wait_for_each_other_and_for_no_grace() {
        let images = ["game", "side"].map(|name| (name.to_owned(), format!("{name}:2"))).to_vec();
        let difference = Difference { images, ..Difference::default() };
        let pod = pod(runs("game:1", "game:1", "a", 0), Gate::Absent);
        let now = "2026-11-15T10:01:00Z".parse().unwrap();
        let started = |in_turn| start(&pod, "game-3", &difference, Terms { grace: 60, ask_after: false, in_turn }, now).body;
        let (at_once, announced) = (started(false), started(true));
        assert!(at_once.pointer("/spec/containers/1").is_some(), "{at_once}");
        assert!(announced.pointer("/spec").is_none() && announced.pointer("/status").is_none(), "{announced}");
        let pending = announced.pointer("/metadata/annotations/inplace-update-grace").and_then(|text| text.as_str()).unwrap();
        let pending: Pending = serde_json::from_str(pending).unwrap();
        assert_eq!((pending.grace_seconds, pending.container_images.iter().count()), (0, 2));
    }

    #[test]
    fn annotations_of_the_original_are_understood() {
        let state =
            r#"{"revision":"game-1","updateTimestamp":"2020-11-10T08:41:06Z","lastContainerStatuses":{"game":{"imageID":"sha256:a"}}}"#;
        let grace = r#"{"revision":"game-1","containerImages":{"game":"game:2"},"metaDataPatch":"e30=","graceSeconds":30}"#;
        let update = Update::read(Some(state), Some(grace)).unwrap();
        assert_eq!(update.pending.as_ref().unwrap().grace_seconds, 30);
        assert_eq!(update.state.as_ref().unwrap().last_container_statuses["game"].image_id, "sha256:a");
        assert_eq!(Update::read(Some("{"), None), None);
    }
}
