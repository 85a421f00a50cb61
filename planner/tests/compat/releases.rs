//! Objects as releases stored them (compat/<version>.yaml, from record.sh): there is nothing to do for them, and what
//! is missing is written as it was stored.

use std::sync::Arc;

use super::objects;
use api::names::{
    INDEX_ANNOTATION, INPLACE_GRACE_ANNOTATION, INPLACE_STATE_ANNOTATION, INSTANCE_ID_LABEL, PAUSED_FOR_ANNOTATION, PROTECTED_LABEL,
};
use api::tkex::{GameDeployment, HookRun, HookTemplate, Phase};
use jiff::{SignedDuration, Timestamp};
use planner::facts::node::Nodes;
use planner::facts::pdb::PdbFacts;
use planner::facts::pod::{Gate, PodFacts};
use planner::facts::revision::RevisionFacts;
use planner::plan::{Action, NewPod};
use planner::refusal::Refusals;
use planner::request::{Verb, verb};
use planner::workload::manifest::{self, Owner};
use planner::workload::{Observed, Seen, decide};
use planner::{hookrun, hooktemplate};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The objects that one release stored.
struct Release {
    file: String,
    objects: Vec<Value>,
}

fn releases() -> Vec<Release> {
    let folder = format!("{}/tests/compat", env!("CARGO_MANIFEST_DIR"));
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files = names.filter(|name| name.ends_with(".yaml") && name.starts_with(|first: char| first.is_ascii_digit()));
    let read = |file: String| {
        let lists = objects(&file);
        Release { objects: lists.iter().flat_map(|list| list["items"].as_array().unwrap()).cloned().collect(), file }
    };
    files.map(read).collect()
}

fn typed<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).unwrap()
}

impl Release {
    fn of(&self, kind: &str) -> Vec<&Value> {
        let found: Vec<_> = self.objects.iter().filter(|object| object["kind"] == kind).collect();
        assert!(!found.is_empty(), "{} has no {kind}", self.file);
        found
    }

    fn named(&self, kind: &str, name: &str) -> &Value {
        self.of(kind).into_iter().find(|object| object["metadata"]["name"] == name).unwrap_or_else(|| panic!("no {kind} {name}"))
    }

    /// What is observed of a workload, and when: nothing has happened for a minute.
    fn observed(&self, workload: &Value) -> (Observed<GameDeployment>, Timestamp) {
        let uid = workload["metadata"]["uid"].as_str();
        let controls = |controller: Option<&String>| controller.map(String::as_str) == uid;
        let of = |kind: &str| self.of(kind).into_iter().map(Value::to_string).collect::<Vec<_>>();
        let pods = of("Pod").into_iter().map(|json| PodFacts::read(&json).unwrap().0);
        let revisions = of("ControllerRevision").into_iter().map(|json| RevisionFacts::read(&json).unwrap().1);
        let runs = self.of("HookRun").into_iter().filter(|run| run["metadata"]["ownerReferences"][0]["uid"].as_str() == uid);
        let budgets = of("PodDisruptionBudget").into_iter().map(|json| Arc::new(PdbFacts::read(&json).unwrap().1));
        let hook_runs: Vec<Arc<HookRun>> = runs.map(|run| Arc::new(typed(run))).collect();
        let pods: Vec<_> = pods.filter(|pod| controls(pod.controller.as_ref())).map(Arc::new).collect();
        let object: Arc<GameDeployment> = Arc::new(typed(workload));
        let conditions = object.status.iter().flat_map(|status| &status.conditions).map(|condition| condition.last_transition_time.0);
        let now = conditions.max().unwrap() + SignedDuration::from_mins(1);
        let seen = Seen {
            pods,
            revisions: revisions.filter(|one| controls(one.controller.as_ref())).map(Arc::new).collect(),
            hook_runs,
            hook_templates: self.of("HookTemplate").into_iter().map(|template| Arc::new(typed(template))).collect(),
            nodes: Nodes::default(),
            budgets: budgets.collect(),
            taken_revision_names: Vec::new(),
            taken_pod_names: Vec::new(),
            refusals: Refusals::default(),
            lowers_memory: true,
            too_large: None,
            unlisted: Vec::new(),
        };
        (Observed { object, seen }, now)
    }

    /// The object that is created is one that is stored.
    fn assert_stored(&self, body: &Value) {
        let stored = self.named(body["kind"].as_str().unwrap(), body["metadata"]["name"].as_str().unwrap());
        assert!(is_part(body, stored), "{}: {body:#} is not what is stored: {stored:#}", self.file);
    }
}

/// Whether each value of an object is in the stored one, which has what the API server added.
fn is_part(written: &Value, stored: &Value) -> bool {
    match (written, stored) {
        (Value::Object(written), Value::Object(stored)) => {
            written.iter().all(|(key, value)| stored.get(key).is_some_and(|stored| is_part(value, stored)))
        }
        (Value::Array(written), Value::Array(stored)) => {
            written.len() <= stored.len() && written.iter().zip(stored).all(|(written, stored)| is_part(written, stored))
        }
        (written, stored) => written == stored,
    }
}

fn owner(workload: &GameDeployment) -> Owner {
    let text = |text: &Option<String>| text.clone().unwrap();
    let metadata = &workload.metadata;
    let (api_version, kind) = ("tkex.tencent.com/v1alpha1".to_owned(), "GameDeployment".to_owned());
    Owner { api_version, kind, name: text(&metadata.name), namespace: text(&metadata.namespace), uid: text(&metadata.uid) }
}

/// The bodies of what is created next.
fn created(observed: &Observed<GameDeployment>, now: Timestamp) -> Vec<Value> {
    let plan = decide(observed, now);
    let owner = owner(&observed.object);
    let body = |action: &Action| if let Some(Verb::Create(body)) = verb(&owner, action) { Some(body) } else { None };
    plan.actions().filter_map(body).collect()
}

#[test]
fn this_release_has_its_objects_here() {
    let own = concat!(env!("CARGO_PKG_VERSION"), ".yaml");
    assert!(releases().iter().any(|release| release.file == own), "record them: planner/tests/compat/record.sh");
}

#[test]
fn there_is_nothing_to_do_for_the_workloads_of_a_release() {
    for release in releases() {
        for workload in release.of("GameDeployment") {
            let (observed, now) = release.observed(workload);
            let plan = decide(&observed, now);
            let place = format!("{}: {}", release.file, workload["metadata"]["name"]);
            assert_eq!(plan.steps, Vec::<Vec<Action>>::new(), "{place}");
            assert_eq!(Some(&plan.status), observed.object.status.as_ref(), "{place}");
        }
    }
}

#[test]
fn hooks_of_a_release_keep_their_verdicts() {
    for release in releases() {
        for stored in release.of("HookTemplate") {
            let template: HookTemplate = typed(stored);
            let plan = hooktemplate::decide(&template, None, Timestamp::UNIX_EPOCH);
            assert_eq!((Some(&plan.status), plan.notes.len()), (template.status.as_ref(), 0), "{}", release.file);
        }
        let mut phases = Vec::new();
        for stored in release.of("HookRun") {
            let run: HookRun = typed(stored);
            let status = run.status.clone().unwrap();
            let now = status.started_at.clone().unwrap().0 + SignedDuration::from_mins(1);
            let keep = SignedDuration::from_hours(24);
            let object = Arc::new(run);
            let plan = hookrun::decide(
                &hookrun::Observed { object, flying: [].into(), results: Vec::new(), keep, too_large: None, has_no_room: false },
                now,
            );
            assert_eq!(plan.status, status, "{}", release.file);
            assert!(plan.actions().all(|action| matches!(action, Action::Measure(_)) && status.phase == Some(Phase::Running)), "{plan:?}");
            phases.extend(status.phase);
        }
        assert_eq!(phases, [Phase::Error, Phase::Running], "{}", release.file);
    }
}

#[test]
fn pods_of_a_release_are_what_their_revisions_say() {
    for release in releases() {
        let mut updates = 0;
        for workload in release.of("GameDeployment") {
            let (observed, _) = release.observed(workload);
            let owner = owner(&observed.object);
            for pod in &observed.seen.pods {
                let stored = release.named("Pod", &pod.name);
                let annotations = &stored["metadata"]["annotations"];
                let text = |name: &str| annotations[name].as_str().map(|text| serde_json::from_str::<Value>(text).unwrap());
                let update = pod.update.as_deref().cloned().unwrap_or_default();
                let again = |value: Value| Some(value).filter(|value| !value.is_null());
                assert_eq!(again(serde_json::to_value(&update.state).unwrap()), text(INPLACE_STATE_ANNOTATION), "{}", pod.name);
                assert_eq!(again(serde_json::to_value(&update.pending).unwrap()), text(INPLACE_GRACE_ANNOTATION), "{}", pod.name);
                updates += usize::from(update.state.is_some()) + usize::from(update.pending.is_some());
                if update.pending.is_some() {
                    continue;
                }
                let revision = observed.seen.revisions.iter().find(|revision| Some(&*revision.name) == pod.revision()).unwrap();
                let new = NewPod {
                    name: pod.name.clone(),
                    id: pod.labels[INSTANCE_ID_LABEL].to_string(),
                    revision: revision.name.clone(),
                    template: revision.template.clone(),
                    gated: pod.gate != Gate::Absent,
                    index: annotations[INDEX_ANNOTATION].as_str().map(|index| index.parse().unwrap()),
                    protected: pod.labels.contains_key(PROTECTED_LABEL),
                    successor: false,
                };
                release.assert_stored(&manifest::pod(&owner, &new));
            }
        }
        assert_eq!(updates, 3, "{}: one pod was updated in place, one is drained", release.file);
    }
}

#[test]
fn what_is_missing_is_written_as_this_release_stored_it() {
    let own = concat!(env!("CARGO_PKG_VERSION"), ".yaml");
    let release = releases().into_iter().find(|release| release.file == own).unwrap();
    let mut kinds = Vec::new();
    for workload in release.of("GameDeployment") {
        let (observed, now) = release.observed(workload);
        let mut write = |change: &dyn Fn(&mut Observed<GameDeployment>)| {
            let mut observed = observed.clone();
            change(&mut observed);
            for body in created(&observed, now) {
                release.assert_stored(&body);
                kinds.push(body["kind"].as_str().unwrap().to_owned());
            }
        };
        write(&|one| one.seen.budgets.clear());
        write(&|one| {
            let newest = one.seen.revisions.iter().map(|revision| revision.number).max();
            one.seen.revisions.retain(|revision| Some(revision.number) != newest);
        });
        write(&|one| {
            let workload = Arc::make_mut(&mut one.object);
            if let Some(annotations) = &mut workload.metadata.annotations {
                annotations.remove(PAUSED_FOR_ANNOTATION);
            }
            workload.spec.update_strategy.paused = false;
            workload.status.as_mut().unwrap().pause_conditions.clear();
            one.seen.hook_runs.clear();
        });
    }
    kinds.sort_unstable();
    let expected = ["ControllerRevision", "ControllerRevision", "ControllerRevision", "HookRun", "HookRun", "PodDisruptionBudget"];
    assert_eq!(kinds, expected);
}
