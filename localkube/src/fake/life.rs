//! What a fake node reports of a pod next. No clock, no I/O.
//!
//! A container's fate follows from its image and the pod's annotations, whose value is `*` or a list of images
//! `a:1,b:2`:
//! - `localkube/pull-failure`: the image cannot be pulled (ErrImagePull); a container that ran reports its old image,
//!   as with a kubelet
//! - `localkube/crash-loop`: the container has crashed and waits (CrashLoopBackOff); the restart count does not grow by
//!   itself
//! - `localkube/never-ready`: the container runs and is never ready
//!
//! and durations, for example `5s` or `1m30s`:
//! - `localkube/start-after`: from the scheduling to the start of the containers
//! - `localkube/ready-after`: from the start of a container to its readiness
//! - `localkube/terminate-after`: how long the containers take to stop; at most the grace period of the deletion.
//!   Without it they stop at once.
//!
//! The fate is evaluated again whenever the pod changes: correcting the annotation or the image repairs the pod. With
//! the annotation `io.kubernetes.hotpatch.container: "true"` the images of running containers change, as with a kubelet
//! that supports it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodSpec,
    PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

/// The address of every fake node.
pub(super) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 127, 0, 1);

const PULL_FAILURE: &str = "ErrImagePull";
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// A restarted container is ready after this long.
const READY_AFTER: SignedDuration = SignedDuration::from_secs(1);
/// How long a node takes to notice that a gate became false: a change right after it, such as a new image, is in the
/// same report.
const NOTICE_LOSS: Duration = Duration::from_millis(500);
/// How long a node takes to notice that a gate became true.
const NOTICE_READY: Duration = Duration::from_millis(100);

/// What a node does with a pod.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing until the pod changes.
    Rest,
    /// Nothing before this time.
    At(Timestamp),
    /// Report these parts of its status, after the delay `hesitate`.
    Report { status: Value, hesitate: Duration },
    /// Its containers have stopped.
    Remove,
}

/// The pod's annotations.
struct Script<'a>(Option<&'a BTreeMap<String, String>>);

impl Script<'_> {
    fn note(&self, name: &str) -> Option<&str> {
        self.0?.get(name).map(String::as_str)
    }

    fn names(&self, note: &str, image: &str) -> bool {
        self.note(note).is_some_and(|list| list == "*" || list.split(',').any(|one| one == image))
    }

    fn time(&self, name: &str) -> Option<SignedDuration> {
        self.note(name)?.parse().ok()
    }

    fn never_ready(&self, image: &str) -> bool {
        self.names("localkube/never-ready", image)
    }

    fn fate(&self, image: &str) -> Fate {
        if self.names("localkube/pull-failure", image) {
            Fate::CannotPull
        } else if self.names("localkube/crash-loop", image) {
            Fate::Crashes
        } else {
            Fate::Runs
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    CannotPull,
    Crashes,
    Runs,
}

/// The next step of a pod on a working node. `address` allocates an address and is called when the pod starts.
pub(super) fn next(pod: &Pod, now: Timestamp, address: impl FnOnce() -> Ipv4Addr) -> Step {
    let script = Script(pod.metadata.annotations.as_ref());
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        return terminate(pod, deleted.0, &script, now);
    }
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else { return Step::Rest };
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Step::Rest;
    }
    if status.pod_ip.as_deref().is_some_and(|address| !address.is_empty()) {
        return continue_running(spec, status, &script, now);
    }
    let scheduled =
        status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled").and_then(|one| one.last_transition_time.as_ref());
    let due = script
        .time("localkube/start-after")
        .zip(scheduled.or(pod.metadata.creation_timestamp.as_ref()))
        .map(|(after, from)| later(from.0, after));
    match due {
        Some(due) if now < due => Step::At(due),
        Some(_) | None => start(spec, status, &script, now, address),
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Removes the pod when its containers have stopped or the grace period has ended, whichever is earlier.
fn terminate(pod: &Pod, deleted: Timestamp, script: &Script<'_>, now: Timestamp) -> Step {
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(30));
    if grace.is_zero() {
        // The pod has been removed; only a finalizer keeps the object.
        return Step::Rest;
    }
    let due = script.time("localkube/terminate-after").map(|after| later(later(deleted, -grace), after.min(grace)));
    due.filter(|due| now < *due).map_or(Step::Remove, Step::At)
}

fn start(spec: &PodSpec, status: &PodStatus, script: &Script<'_>, now: Timestamp, address: impl FnOnce() -> Ipv4Addr) -> Step {
    let late = script.time("localkube/ready-after").is_some();
    let containers: Vec<_> = spec.containers.iter().map(|container| start_container(container, None, script, !late, now)).collect();
    let address = if spec.host_network == Some(true) { NODE_ADDRESS } else { address() };
    let mut report = report(spec, status, &containers, now);
    if let Some(conditions) = report.entry("conditions").or_insert_with(|| json!([])).as_array_mut() {
        conditions.extend(["PodReadyToStartContainers", "Initialized"].map(|kind| condition(kind, None, now)));
    }
    let init: Vec<_> = spec.init_containers.iter().flatten().map(|container| init_container(container, now)).collect();
    report.insert("initContainerStatuses".to_owned(), json!(init));
    report.insert("containerStatuses".to_owned(), json!(containers));
    report.insert("hostIP".to_owned(), json!(NODE_ADDRESS));
    report.insert("podIP".to_owned(), json!(address));
    report.insert("startTime".to_owned(), json!(Time(now)));
    Step::Report { status: Value::Object(report), hesitate: Duration::ZERO }
}

fn continue_running(spec: &PodSpec, status: &PodStatus, script: &Script<'_>, now: Timestamp) -> Step {
    let mut due = None;
    let gates_up = gates_are_up(spec, status);
    let now_are: Vec<_> = spec
        .containers
        .iter()
        .map(|container| {
            let old = status.container_statuses.iter().flatten().find(|one| one.name == container.name);
            let (is, ready_at) = keep_or_restart(container, old, script, gates_up, now);
            due = due.into_iter().chain(ready_at).min();
            is
        })
        .collect();
    let mut report = report(spec, status, &now_are, now);
    let same = status.container_statuses.as_ref() == Some(&now_are);
    if !same {
        report.insert("containerStatuses".to_owned(), json!(now_are));
    }
    if report.is_empty() {
        return due.map_or(Step::Rest, Step::At);
    }
    let hesitate = match (same, is_up(status, "Ready")) {
        (false, _) => Duration::ZERO,
        (true, true) => NOTICE_LOSS,
        (true, false) => NOTICE_READY,
    };
    Step::Report { status: Value::Object(report), hesitate }
}

/// The conditions and the phase that have changed.
fn report(spec: &PodSpec, status: &PodStatus, containers: &[ContainerStatus], now: Timestamp) -> Map<String, Value> {
    let mut fields = Map::new();
    let all_ready = containers.iter().all(|container| container.ready);
    let ready = if !all_ready {
        Some("ContainersNotReady")
    } else if !gates_are_up(spec, status) {
        Some("ReadinessGatesNotReady")
    } else {
        None
    };
    let known = |kind: &str| status.conditions.iter().flatten().any(|one| one.type_ == kind);
    let conditions: Vec<_> = [("ContainersReady", (!all_ready).then_some("ContainersNotReady")), ("Ready", ready)]
        .into_iter()
        .filter(|(kind, why_not)| !known(kind) || is_up(status, kind) != why_not.is_none())
        .map(|(kind, why_not)| condition(kind, why_not, now))
        .collect();
    if !conditions.is_empty() {
        fields.insert("conditions".to_owned(), json!(conditions));
    }
    let pulls = containers.iter().any(|one| waits_for(one) == Some(PULL_FAILURE) && !has_run(one));
    let phase = if pulls { "Pending" } else { "Running" };
    if status.phase.as_deref() != Some(phase) {
        fields.insert("phase".to_owned(), json!(phase));
    }
    fields
}

fn condition(kind: &str, why_not: Option<&str>, now: Timestamp) -> Value {
    let status = if why_not.is_none() { "True" } else { "False" };
    json!({ "type": kind, "status": status, "reason": why_not, "lastTransitionTime": Time(now) })
}

fn is_up(status: &PodStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|one| one.type_ == kind && one.status == "True")
}

fn gates_are_up(spec: &PodSpec, status: &PodStatus) -> bool {
    spec.readiness_gates.iter().flatten().all(|gate| is_up(status, &gate.condition_type))
}

fn waits_for(container: &ContainerStatus) -> Option<&str> {
    container.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

fn running(container: &ContainerStatus) -> Option<&ContainerStateRunning> {
    container.state.as_ref()?.running.as_ref()
}

fn has_run(container: &ContainerStatus) -> bool {
    running(container).is_some() || container.last_state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// The new status of a container in a running pod, and when it becomes ready. A container whose image or fate has
/// changed is started again; others continue.
fn keep_or_restart(
    wanted: &Container,
    old: Option<&ContainerStatus>,
    script: &Script<'_>,
    gates_up: bool,
    now: Timestamp,
) -> (ContainerStatus, Option<Timestamp>) {
    let image = wanted.image.as_deref().unwrap_or_default();
    let hot = script.note("io.kubernetes.hotpatch.container");
    let Some(old) = old else { return (start_container(wanted, None, script, false, now), None) };
    let as_before = hot.is_some()
        || match script.fate(image) {
            Fate::CannotPull => waits_for(old) == Some(PULL_FAILURE),
            Fate::Crashes => waits_for(old) == Some(CRASH_LOOP) && old.image == image,
            Fate::Runs => waits_for(old).is_none() && old.image == image,
        };
    if !as_before {
        // A gate that is false keeps the pod not ready anyway, so one report is enough.
        let at_once = !gates_up && script.time("localkube/ready-after").is_none();
        return (start_container(wanted, Some(old), script, at_once, now), None);
    }
    let mut is = old.clone();
    if hot == Some("true") && old.image != image {
        (is.image, is.image_id) = (image.to_owned(), image_id(image));
    }
    let started = running(old).and_then(|state| state.started_at.as_ref());
    match started {
        Some(_) if script.never_ready(image) => is.ready = false,
        Some(started) if !old.ready => {
            let due = later(started.0, script.time("localkube/ready-after").unwrap_or(READY_AFTER));
            is.ready = now >= due;
            return (is, (now < due).then_some(due));
        }
        Some(_) | None => {}
    }
    (is, None)
}

/// The status of a container that starts, or fails to.
fn start_container(
    wanted: &Container,
    old: Option<&ContainerStatus>,
    script: &Script<'_>,
    ready_at_once: bool,
    now: Timestamp,
) -> ContainerStatus {
    let image = wanted.image.as_deref().unwrap_or_default();
    let fate = script.fate(image);
    let ran = old.is_some_and(has_run);
    let stopped = old.and_then(running).map(|before| terminated(fate, before.started_at.clone(), now));
    let mut is = ContainerStatus {
        name: wanted.name.clone(),
        image: image.to_owned(),
        image_id: image_id(image),
        last_state: stopped.or_else(|| old.and_then(|old| old.last_state.clone())),
        restart_count: old.map_or(0, |old| old.restart_count),
        started: Some(false),
        ..ContainerStatus::default()
    };
    match fate {
        Fate::CannotPull => {
            is.state = Some(waiting(PULL_FAILURE, &format!("scripted: {image} cannot be pulled")));
            is.image_id = old.map(|old| old.image_id.clone()).unwrap_or_default();
            if let Some(old) = old.filter(|_| ran) {
                is.image.clone_from(&old.image);
            }
        }
        Fate::Crashes => {
            is.state = Some(waiting(CRASH_LOOP, "scripted"));
            is.last_state.get_or_insert_with(|| terminated(fate, Some(Time(now)), now));
            is.restart_count += i32::from(old.is_some());
        }
        Fate::Runs => {
            is.state =
                Some(ContainerState { running: Some(ContainerStateRunning { started_at: Some(Time(now)) }), ..ContainerState::default() });
            is.restart_count += i32::from(ran);
            is.started = Some(true);
            is.ready = ready_at_once && !script.never_ready(image);
        }
    }
    is
}

fn init_container(wanted: &Container, now: Timestamp) -> ContainerStatus {
    let image = wanted.image.as_deref().unwrap_or_default();
    let sidecar = wanted.restart_policy.as_deref() == Some("Always");
    let runs = || ContainerState { running: Some(ContainerStateRunning { started_at: Some(Time(now)) }), ..ContainerState::default() };
    ContainerStatus {
        name: wanted.name.clone(),
        image: image.to_owned(),
        image_id: image_id(image),
        ready: true,
        started: Some(sidecar),
        state: Some(if sidecar { runs() } else { terminated(Fate::Runs, Some(Time(now)), now) }),
        ..ContainerStatus::default()
    }
}

fn image_id(image: &str) -> String {
    format!("sha256:{image}")
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message: Some(message.to_owned()) };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

/// The state of a container that ended, given the fate of the next one.
fn terminated(fate: Fate, started_at: Option<Time>, now: Timestamp) -> ContainerState {
    let (exit_code, reason) = if fate == Fate::Crashes { (1, "Error") } else { (0, "Completed") };
    let terminated = ContainerStateTerminated {
        exit_code,
        reason: Some(reason.to_owned()),
        started_at,
        finished_at: Some(Time(now)),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    /// A pod on a node that reports without delay.
    struct Life(Value);

    impl Life {
        fn new(pod: Value) -> Self {
            let mut life =
                Self(json!({ "metadata": { "name": "pod", "creationTimestamp": at(0).to_string() }, "status": { "phase": "Pending" } }));
            life.change(pod);
            life
        }

        /// Applies a merge patch; conditions are merged by their type.
        fn change(&mut self, change: Value) {
            let Value::Object(change) = change else { return };
            for (part, fields) in change {
                for (name, value) in fields.as_object().cloned().unwrap_or_default() {
                    let old = &mut self.0[&part][&name];
                    let new = value.as_array().filter(|_| name == "conditions");
                    let kept = old
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter(|one| new.into_iter().flatten().all(|other| other["type"] != one["type"]));
                    *old = new.map_or_else(|| value.clone(), |new| kept.chain(new).cloned().collect());
                }
            }
        }

        fn next(&self, second: i64) -> Step {
            next(&serde_json::from_value(self.0.clone()).unwrap(), at(second), || Ipv4Addr::new(10, 128, 0, 1))
        }

        /// Applies reports until there is none, and returns their number.
        fn settle(&mut self, second: i64) -> usize {
            (0..10)
                .find(|_| match self.next(second) {
                    Step::Report { status, .. } => {
                        self.change(json!({ "status": status }));
                        false
                    }
                    Step::Rest | Step::At(_) | Step::Remove => true,
                })
                .expect("reports without end")
        }

        fn is(&self, kind: &str) -> bool {
            self.0["status"]["conditions"].as_array().unwrap().iter().any(|one| one["type"] == kind && one["status"] == "True")
        }

        fn gate(&mut self, up: bool) {
            self.change(json!({ "status": { "conditions": [{ "type": "gate", "status": if up { "True" } else { "False" } }] } }));
        }
    }

    fn image(image: &str) -> Value {
        json!({ "spec": { "containers": [{ "name": "game", "image": image }] } })
    }

    #[test]
    fn a_pod_without_script_is_ready_with_one_report() {
        let mut life = Life::new(image("game:1"));
        assert_eq!(life.settle(0), 1);
        assert!(life.is("Ready") && life.is("Initialized"));
        assert_eq!(life.0["status"]["podIP"], "10.128.0.1");
        assert_eq!(life.next(9), Step::Rest);
    }

    #[test]
    fn a_restart_is_ready_a_second_later() {
        let mut life = Life::new(image("game:1"));
        life.settle(0);
        life.change(image("game:2"));
        assert_eq!(life.settle(5), 1);
        assert!(!life.is("Ready"));
        assert_eq!(life.next(5), Step::At(at(6)));
        assert_eq!(life.settle(6), 1);
        assert!(life.is("Ready"));
        assert_eq!(life.0["status"]["containerStatuses"][0]["restartCount"], 1);
    }

    #[test]
    fn under_a_gate_that_is_down_a_restart_is_one_report() {
        let mut life = Life::new(image("game:1"));
        life.change(json!({ "spec": { "readinessGates": [{ "conditionType": "gate" }] } }));
        life.settle(0);
        life.gate(true);
        life.settle(1);
        assert!(life.is("Ready"));
        life.gate(false);
        assert!(matches!(life.next(2), Step::Report { hesitate: NOTICE_LOSS, .. }));
        life.change(image("game:2"));
        assert_eq!(life.settle(2), 1);
        assert!(life.is("ContainersReady") && !life.is("Ready"));
        life.gate(true);
        assert_eq!(life.settle(3), 1);
        assert!(life.is("Ready"));
    }

    #[test]
    fn a_pull_that_fails_keeps_the_old_image_until_the_annotation_is_removed() {
        let mut life = Life::new(image("game:1"));
        life.change(json!({ "metadata": { "annotations": { "localkube/pull-failure": "game:8,game:9" } } }));
        life.settle(0);
        life.change(image("game:9"));
        life.settle(1);
        let status = &life.0["status"];
        assert_eq!((&status["phase"], &status["containerStatuses"][0]["image"]), (&json!("Running"), &json!("game:1")));
        assert_eq!(life.next(9), Step::Rest);
        life.change(json!({ "metadata": { "annotations": {} } }));
        life.settle(9);
        life.settle(10);
        assert!(life.is("Ready"));
        assert_eq!(life.0["status"]["containerStatuses"][0]["restartCount"], 1);
    }

    #[test]
    fn a_hot_patch_restarts_nothing() {
        let mut life = Life::new(image("game:1"));
        life.settle(0);
        life.change(image("game:2"));
        life.change(json!({ "metadata": { "annotations": { "io.kubernetes.hotpatch.container": "true" } } }));
        assert_eq!(life.settle(1), 1);
        let game = &life.0["status"]["containerStatuses"][0];
        assert_eq!((&game["imageID"], &game["restartCount"]), (&json!("sha256:game:2"), &json!(0)));
        assert!(life.is("Ready"));
    }

    #[test]
    fn stopping_takes_its_time_and_never_more_than_the_grace_period() {
        let mut life = Life::new(image("game:1"));
        life.settle(0);
        life.change(json!({ "metadata": { "deletionTimestamp": at(40).to_string(), "deletionGracePeriodSeconds": 30 } }));
        assert_eq!(life.next(10), Step::Remove);
        life.change(json!({ "metadata": { "annotations": { "localkube/terminate-after": "5s" } } }));
        assert_eq!(life.next(10), Step::At(at(15)));
        life.change(json!({ "metadata": { "annotations": { "localkube/terminate-after": "1h" } } }));
        assert_eq!(life.next(10), Step::At(at(40)));
        assert_eq!(life.next(40), Step::Remove);
        life.change(json!({ "metadata": { "deletionGracePeriodSeconds": 0 } }));
        assert_eq!(life.next(40), Step::Rest);
    }

    #[test]
    fn times_beyond_the_calendar_are_never_reached() {
        let mut life = Life::new(image("game:1"));
        life.change(json!({ "metadata": { "annotations": { "localkube/start-after": "99999999h" } } }));
        assert_eq!(life.next(0), Step::At(Timestamp::MAX));
    }
}
