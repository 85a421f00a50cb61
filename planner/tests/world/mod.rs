//! A small cluster in memory: applies plans as the API server would, ages pods, and keeps score of what plans do to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::tkex::{GameDeployment, GameDeploymentSpec};
use jiff::{SignedDuration, Timestamp};
use planner::budget::Limits;
use planner::gamedeployment::{Observed, decide};
use planner::manifest::{self, Owner};
use planner::plan::{Action, Plan};
use planner::pod::{Phase, PodFacts};
use planner::revision::RevisionFacts;
use serde_json::{Value, json};

type Status = api::tkex::GameDeploymentStatus;

/// A template, told from others by a number.
pub(crate) fn template(number: u8) -> Value {
    json!({ "metadata": { "labels": { "app": "game" } }, "spec": { "containers": [{ "name": "game", "image": format!("game:{number}") }] } })
}

/// A GameDeployment with this `spec`, over the defaults of the CRD.
pub(crate) fn game(spec: &Value) -> GameDeployment {
    let mut whole = json!({ "selector": { "matchLabels": { "app": "game" } }, "template": template(0) });
    for (key, value) in spec.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    let spec: GameDeploymentSpec = serde_json::from_value(whole).unwrap();
    let mut game = GameDeployment::new("game", spec);
    game.metadata.namespace = Some("play".to_owned());
    game.metadata.uid = Some("uid-game".to_owned());
    game.metadata.generation = Some(1);
    game
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) game: GameDeployment,
    pub(crate) pods: BTreeMap<String, PodFacts>,
    pub(crate) revisions: BTreeMap<String, RevisionFacts>,
    pub(crate) now: Timestamp,
    version: u64,
}

impl World {
    pub(crate) fn new(spec: &Value) -> Self {
        let now = "2026-11-15T10:00:00Z".parse().unwrap();
        Self { game: game(spec), pods: BTreeMap::new(), revisions: BTreeMap::new(), now, version: 100 }
    }

    pub(crate) fn observed(&self) -> Observed {
        Observed {
            object: Arc::new(self.game.clone()),
            pods: self.pods.values().cloned().map(Arc::new).collect(),
            revisions: self.revisions.values().cloned().map(Arc::new).collect(),
            taken_revision_names: Vec::new(),
            taken_pod_names: Vec::new(),
        }
    }

    pub(crate) fn decide(&self) -> Plan<Status> {
        decide(&self.observed(), self.now)
    }

    pub(crate) fn replicas(&self) -> usize {
        usize::try_from(self.game.spec.replicas).unwrap()
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits::of(&self.game.spec.update_strategy, self.replicas()).unwrap()
    }

    pub(crate) fn is_available(&self, pod: &PodFacts) -> bool {
        !pod.deleting && pod.is_available(SignedDuration::from_secs(self.game.spec.min_ready_seconds.into()), self.now)
    }

    pub(crate) fn available(&self) -> usize {
        self.pods.values().filter(|pod| self.is_available(pod)).count()
    }

    /// Pods that the owner has or would adopt.
    pub(crate) fn ours(&self) -> impl Iterator<Item = &PodFacts> {
        self.pods.values().filter(|pod| pod.labels["app"] == "game" && (pod.controller.is_some() || pod.is_active()))
    }

    /// Pods that are not being deleted.
    pub(crate) fn present(&self) -> usize {
        self.pods.values().filter(|pod| !pod.deleting).count()
    }

    /// Whether the pod fills a place: it serves or may come to serve, or ended so soon that its successor has to wait.
    pub(crate) fn fills(&self, pod: &PodFacts) -> bool {
        !(pod.deleting || pod.has_ended() && self.now.duration_since(pod.created).as_secs() >= 10)
    }

    /// Pods on a revision that are there to stay.
    pub(crate) fn on_revision(&self, revision: &str) -> usize {
        let named =
            |pod: &PodFacts| self.game.spec.scale_strategy.as_ref().is_some_and(|strategy| strategy.pods_to_delete.contains(&pod.name));
        self.ours().filter(|pod| self.fills(pod) && !named(pod) && pod.revision() == Some(revision)).count()
    }

    /// Changes the spec as a user would.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut GameDeploymentSpec)) {
        change(&mut self.game.spec);
        self.game.metadata.generation = self.game.metadata.generation.map(|generation| generation + 1);
    }

    /// Applies one action as the API server would: a name can be used once, a uid must match.
    pub(crate) fn apply(&mut self, action: &Action) {
        self.version += 1;
        let version = self.version;
        match action {
            Action::Measure(_) | Action::DeleteHookRun { .. } => panic!("no game server is measured"),
            Action::CreatePod(new) => {
                let owner = Owner {
                    api_version: "tkex.tencent.com/v1alpha1".to_owned(),
                    kind: "GameDeployment".to_owned(),
                    name: "game".to_owned(),
                    namespace: "play".to_owned(),
                    uid: "uid-game".to_owned(),
                };
                let body = manifest::pod(&owner, new);
                let labels = serde_json::from_value(body["metadata"]["labels"].clone()).unwrap();
                self.pods.entry(new.name.clone()).or_insert_with(|| pod(&new.name, version, labels, self.now));
            }
            Action::DeletePod { name, uid, .. } => {
                if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == *uid) {
                    pod.deleting = true;
                }
            }
            Action::AdoptPod { name, uid } => {
                if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == *uid) {
                    pod.controller = Some("uid-game".to_owned());
                }
            }
            Action::ReleasePod { name, uid } => {
                if let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.uid == *uid) {
                    pod.controller = None;
                }
            }
            Action::CreateRevision(new) => {
                self.revisions.entry(new.name.clone()).or_insert_with(|| RevisionFacts {
                    name: new.name.clone(),
                    uid: format!("uid-{version}"),
                    controller: Some("uid-game".to_owned()),
                    number: new.number,
                    template: Arc::clone(&new.template),
                });
            }
            Action::BumpRevision { name, number, .. } => {
                if let Some(revision) = self.revisions.get_mut(name) {
                    revision.number = *number;
                }
            }
            Action::AdoptRevision { name, .. } => {
                if let Some(revision) = self.revisions.get_mut(name) {
                    revision.controller = Some("uid-game".to_owned());
                }
            }
            Action::DeleteRevision { name, .. } => drop(self.revisions.remove(name)),
        }
    }

    /// Records a plan's status.
    pub(crate) fn record(&mut self, plan: &Plan<Status>) {
        self.game.status = Some(plan.status.clone());
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    /// Every pod comes to serve, and deleted ones disappear.
    pub(crate) fn calm(&mut self) {
        let now = self.now;
        self.pods.retain(|_, pod| !pod.deleting);
        for pod in self.pods.values_mut().filter(|pod| pod.is_active() && !pod.is_ready()) {
            make_ready(pod, now);
        }
    }

    /// Lets the operator work on a calm cluster until nothing is left to do; how many rounds that took.
    pub(crate) fn settle(&mut self) -> Option<usize> {
        for round in 0..400 {
            let plan = self.decide();
            let unchanged = self.game.status.as_ref() == Some(&plan.status);
            if plan.steps.is_empty() && plan.wake.is_none() && unchanged && self.ours().all(|pod| pod.is_ready() && !pod.deleting) {
                return Some(round);
            }
            plan.actions().for_each(|action| self.apply(action));
            self.record(&plan);
            self.calm();
            self.pass(60);
        }
        None
    }
}

fn pod(name: &str, version: u64, labels: BTreeMap<String, String>, now: Timestamp) -> PodFacts {
    PodFacts {
        name: name.to_owned(),
        namespace: "play".to_owned(),
        uid: format!("uid-{version}"),
        resource_version: version,
        labels,
        controller: Some("uid-game".to_owned()),
        created: now,
        deleting: false,
        phase: Phase::Pending,
        ready_since: None,
        node: None,
        restarts: 0,
        deletion_cost: 0,
        trouble: None,
    }
}

/// The pod runs and is ready.
pub(crate) fn make_ready(pod: &mut PodFacts, now: Timestamp) {
    let node = pod.name.bytes().map(u64::from).sum::<u64>() % 3;
    pod.node = Some(format!("node-{node}"));
    pod.phase = Phase::Running;
    pod.ready_since = Some(now);
}
