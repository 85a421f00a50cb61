//! The world of one object: a small cluster in memory, the object, and what the operator remembers. Applies plans as the operator would, and keeps score of what they do.

mod approvals;
mod cluster;
mod pods;
mod subject;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::names::{PAUSED_FOR_ANNOTATION, PROTECTED_LABEL};
use api::tkex::{GameDeployment, Phase as Verdict};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use planner::facts::node::Nodes;
use planner::facts::pod::{Container, PodFacts};
use planner::plan::{Action, PatchReason, Plan, PodPatch};
use planner::refusal::{Fallout, Outcome, Refusals};
use planner::workload::gate::{self, Place};
use planner::workload::limits::{Limits, kept};
use planner::workload::manifest::Owner;
use planner::workload::{Needed, Observed, Seen, decide};
use serde_json::{Value, json};

pub(crate) use self::approvals::{FORGERIES, Forgery};
pub(crate) use self::cluster::{Cluster, How, Rule, hook_template};
pub(crate) use self::pods::{make_ready, pod};
pub(crate) use self::subject::{Hooks, Rollout, Spec, Subject};

/// A world with a GameDeployment.
pub(crate) type GameWorld = World<GameDeployment>;

/// A template with a number that distinguishes it. From 4 on it also has an environment, which cannot be updated in place.
pub(crate) fn template(number: u8) -> Value {
    let mut container = json!({ "name": "game", "image": format!("game:{number}") });
    if number >= 4 {
        container["env"] = json!([{ "name": "NUMBER", "value": number.to_string() }]);
    }
    json!({ "metadata": { "labels": { "app": "game" } }, "spec": { "containers": [container] } })
}

/// A cluster with one object of a kind.
#[derive(Debug, Clone)]
pub(crate) struct World<S> {
    pub(crate) object: S,
    pub(crate) cluster: Cluster,
    /// What the operator remembers of refused writes.
    pub(crate) refusals: Refusals,
    /// When writes were refused, by the word of the action.
    pub(crate) refused: BTreeMap<String, Vec<Timestamp>>,
    /// Whether a user paused the rollout and has not resumed it.
    pub(crate) paused_by_user: bool,
    /// How many writes were done.
    pub(crate) done: usize,
    /// How often pods were drained, by uid and revision.
    pub(crate) drained: BTreeMap<(String, String), u32>,
}

impl<S: Subject> World<S> {
    pub(crate) fn new(spec: &Value) -> Self {
        Self {
            object: S::new(spec),
            cluster: Cluster::new(),
            refusals: Refusals::default(),
            refused: BTreeMap::new(),
            paused_by_user: false,
            done: 0,
            drained: BTreeMap::new(),
        }
    }

    pub(crate) fn owner(&self) -> Owner {
        let workload = self.object.workload();
        Owner {
            api_version: format!("{}/v1alpha1", workload.group),
            kind: workload.kind.to_owned(),
            name: workload.name().to_owned(),
            namespace: "play".to_owned(),
            uid: workload.uid().to_owned(),
        }
    }

    pub(crate) fn observed(&self) -> Observed<S> {
        let cluster = &self.cluster;
        let seen = Seen {
            pods: self.listed(Needed::Pod, cluster.pods.values()),
            revisions: self.listed(Needed::ControllerRevision, cluster.revisions.values()),
            hook_runs: self.listed(Needed::HookRun, cluster.hook_runs.values()),
            hook_templates: self.listed(Needed::HookTemplate, cluster.hook_templates.iter().chain(&cluster.pod_hook)),
            nodes: if self.is_listed(Needed::Node) { cluster.observed_nodes() } else { Nodes::default() },
            budgets: self.listed(Needed::PodDisruptionBudget, cluster.budgets.values()),
            taken_revision_names: Vec::new(),
            taken_pod_names: Vec::new(),
            refusals: self.refusals.clone(),
            lowers_memory: true,
            too_large: None,
            unlisted: cluster.unlisted.clone(),
        };
        Observed { object: Arc::new(self.object.clone()), seen }
    }

    fn is_listed(&self, kind: Needed) -> bool {
        !self.cluster.unlisted.iter().any(|unlisted| unlisted.kind == kind)
    }

    /// What the cache of a kind holds: nothing if the kind is not listed.
    fn listed<'a, T: Clone + 'a>(&'a self, kind: Needed, all: impl Iterator<Item = &'a T>) -> Vec<Arc<T>> {
        if self.is_listed(kind) { all.cloned().map(Arc::new).collect() } else { Vec::new() }
    }

    pub(crate) fn decide(&self) -> Plan<S::Status> {
        decide(&self.observed(), self.cluster.now)
    }

    /// Changes the spec as a user would.
    pub(crate) fn edit(&mut self, change: impl FnOnce(Spec)) {
        change(self.object.spec());
        self.touch();
        let generation = &mut self.object.metadata().generation;
        *generation = generation.map(|generation| generation + 1);
    }

    /// The object has another version from now on.
    fn touch(&mut self) {
        self.cluster.version += 1;
        self.object.metadata().resource_version = Some(self.cluster.version.to_string());
    }

    /// A user deletes the object.
    pub(crate) fn delete(&mut self) {
        self.object.metadata().deletion_timestamp = Some(Time(self.cluster.now));
        self.touch();
    }

    /// The version of the object.
    pub(crate) fn version(&self) -> String {
        self.object.workload().version().to_owned()
    }

    /// The finalizers of the object.
    pub(crate) fn finalizers(&self) -> Vec<String> {
        self.object.workload().metadata.finalizers.clone().unwrap_or_default()
    }

    /// Whether pods may be deleted only when their hook has approved.
    pub(crate) fn protects(&self) -> bool {
        let workload = self.object.workload();
        workload.protect && workload.hooks.iter().flatten().any(|hook| hook.place == Place::PreDelete)
    }

    pub(crate) fn paused(&self) -> bool {
        self.object.workload().strategy.paused
    }

    pub(crate) fn replicas(&self) -> usize {
        usize::try_from(self.object.workload().replicas).unwrap()
    }

    pub(crate) fn limits(&self) -> Limits {
        let workload = self.object.workload();
        let limits = Limits::of(&workload.strategy, self.replicas()).unwrap();
        let numbers = workload.index.map(|range| usize::try_from(range.end - range.start).unwrap());
        numbers.map_or(limits, |numbers| limits.with_surge_of(numbers.saturating_sub(self.replicas())))
    }

    /// How many pods stay on the stable revision: the partition, or what the steps say.
    pub(crate) fn partition(&self, status: &S::Status) -> usize {
        let workload = self.object.workload();
        let steps = workload.strategy.canary.as_ref().map_or(&[][..], |canary| &canary.steps);
        let index = usize::try_from(S::rollout(status).step.unwrap_or_default()).unwrap();
        if steps.is_empty() {
            return self.limits().partition;
        }
        if index >= steps.len() {
            return 0;
        }
        let of_step = steps[..=index].iter().rev().find_map(|step| step.partition.as_ref());
        of_step.map_or(self.replicas(), |of_step| kept("", of_step, self.replicas()).unwrap())
    }

    pub(crate) fn is_available(&self, pod: &PodFacts) -> bool {
        !pod.deleting && self.cluster.answers(pod) && pod.is_available(self.object.workload().min_ready, self.cluster.now)
    }

    pub(crate) fn available(&self) -> usize {
        self.cluster.pods.values().filter(|pod| self.is_available(pod)).count()
    }

    /// Pods that the owner has or would adopt.
    pub(crate) fn ours(&self) -> impl Iterator<Item = &PodFacts> {
        let keeps = self.protects();
        let is_kept = move |pod: &PodFacts| keeps && pod.controller.is_some() && pod.labels.contains_key(PROTECTED_LABEL);
        let is_ours = move |pod: &PodFacts| pod.labels["app"] == "game" || is_kept(pod);
        self.cluster.pods.values().filter(move |pod| is_ours(pod) && (pod.controller.is_some() || pod.is_active()))
    }

    /// Pods that are not being deleted.
    pub(crate) fn present(&self) -> usize {
        self.cluster.pods.values().filter(|pod| !pod.deleting).count()
    }

    /// Whether the pod fills a place: it serves or may come to serve, or ended so soon that its successor has to wait.
    pub(crate) fn fills(&self, pod: &PodFacts) -> bool {
        !(pod.deleting || pod.has_ended() && self.cluster.now.duration_since(pod.created).as_secs() >= 10)
    }

    /// Pods that are deleted as soon as their hook approves, if a plan is carried out, by uid.
    pub(crate) fn leaving(&self, plan: &Plan<S::Status>) -> BTreeSet<String> {
        let marked = self.cluster.pods.values().filter(|pod| gate::is_marked(pod));
        let mut leaving: BTreeSet<String> = marked.map(|pod| pod.uid.clone()).collect();
        for action in plan.actions() {
            match action {
                Action::PatchPod(PodPatch { why: PatchReason::Mark, uid, .. }) => drop(leaving.insert(uid.clone())),
                Action::PatchPod(PodPatch { why: PatchReason::Unmark, uid, .. }) => drop(leaving.remove(uid)),
                _ => {}
            }
        }
        leaving
    }

    /// Pods on a revision that are there to stay.
    pub(crate) fn on_revision(&self, revision: &str, leaving: &BTreeSet<String>) -> usize {
        let workload = self.object.workload();
        let is_cordoned = |pod: &PodFacts| pod.node.as_ref().is_some_and(|node| self.cluster.cordoned.contains(&**node));
        let named = |pod: &PodFacts| {
            workload.pods_to_delete.contains(&pod.name) || self.protects() && (is_cordoned(pod) || self.cluster.is_lost(pod))
        };
        self.ours().filter(|pod| self.fills(pod) && !named(pod) && !leaving.contains(&pod.uid) && pod.revision() == Some(revision)).count()
    }

    /// Whether an action names a version of the object that is not the newest.
    fn is_outdated(&self, action: &Action) -> bool {
        match action {
            Action::Pause { version, .. } | Action::ResetRetry { version, .. } | Action::SetFinalizers { version, .. } => {
                self.version() != *version
            }
            _ => false,
        }
    }

    /// The API server gets an action: does it, or refuses it.
    pub(crate) fn attempt(&mut self, action: &Action, fallout: &mut Fallout) {
        let refused = self.cluster.refusal(action).or_else(|| self.is_outdated(action).then_some(How::Conflict));
        let outcome = match refused {
            Some(how) => Outcome::Refused { reason: how.reason().to_owned(), message: "so it is".to_owned() },
            None => Outcome::Done,
        };
        if refused.is_none_or(|how| how == How::Done) && !matches!(action, Action::Probe(_)) {
            self.apply(action);
        }
        if refused.is_some() {
            fallout.refuse(action);
            let inner = if let Action::Probe(inner) = action { inner } else { action };
            self.refused.entry(inner.word().to_owned()).or_default().push(self.cluster.now);
        } else {
            fallout.done(action);
            self.done += usize::from(!matches!(action, Action::Probe(_)));
        }
        self.refusals.note(action, &outcome, self.cluster.now);
    }

    /// Carries out a plan as the operator would, and records its status.
    pub(crate) fn carry_out(&mut self, plan: &Plan<S::Status>) {
        let mut fallout = Fallout::default();
        self.refusals = plan.refusals.clone();
        let version = self.version();
        for action in plan.actions() {
            if fallout.stands(action) {
                self.attempt(action, &mut fallout);
            }
        }
        self.record_if(&version, plan);
    }

    /// Records a plan's status, unless the object is another one than was decided on.
    pub(crate) fn record_if(&mut self, version: &str, plan: &Plan<S::Status>) {
        if self.version() == version && plan.status_delay.is_none() {
            self.touch();
            self.object.set_status(plan.status.clone());
        }
    }

    /// Records a plan's status, unless the plan changes the object itself: then the API server refuses a status of the older version.
    pub(crate) fn record(&mut self, plan: &Plan<S::Status>) {
        if !plan.actions().any(is_of_object) && plan.status_delay.is_none() {
            self.touch();
            self.object.set_status(plan.status.clone());
        }
    }

    /// Applies one action as the API server would.
    pub(crate) fn apply(&mut self, action: &Action) {
        if is_of_object(action) {
            if !self.is_outdated(action) {
                self.apply_to_object(action);
            }
            return;
        }
        let owner = self.owner();
        self.cluster.apply(&owner, action);
        if let Action::PatchPod(PodPatch { why: PatchReason::Drain, name, uid, .. }) = action
            && let Some(pod) = self.cluster.pods.get(name).filter(|pod| pod.uid == *uid)
        {
            let revision = pod.revision().unwrap_or_default().to_owned();
            *self.drained.entry((uid.clone(), revision)).or_default() += 1;
        }
    }

    fn apply_to_object(&mut self, action: &Action) {
        match action {
            Action::Pause { paused, mark, .. } => {
                self.edit(|spec| spec.strategy.paused = *paused);
                let annotations = self.object.metadata().annotations.get_or_insert_default();
                match mark {
                    Some(mark) => drop(annotations.insert(PAUSED_FOR_ANNOTATION.to_owned(), mark.clone())),
                    None => drop(annotations.remove(PAUSED_FOR_ANNOTATION)),
                }
            }
            Action::ResetRetry { field, .. } => self.edit(|spec| {
                let Hooks { pre_delete, pre_inplace, post_inplace } = spec.hooks.unwrap();
                match field.as_str() {
                    "preDeleteUpdateStrategy" => pre_delete.retry = Some(false),
                    "preInplaceUpdateStrategy" => pre_inplace.retry = Some(false),
                    "postInplaceUpdateStrategy" => post_inplace.retry = Some(false),
                    other => panic!("{other} has no retry"),
                }
            }),
            Action::SetFinalizers { finalizers, .. } => {
                self.object.metadata().finalizers = Some(finalizers.clone());
                self.touch();
            }
            other => panic!("{other:?} does not change the object"),
        }
    }

    /// Lets the operator work on a calm cluster until nothing is left to do; how many rounds that took.
    pub(crate) fn settle(&mut self) -> Option<usize> {
        if let Some(Some(range)) = self.object.spec().index {
            range.end += 40;
        }
        self.cluster.rules.clear();
        self.cluster.unlisted.clear();
        // With silent nodes, or pods that wait for an answer, nothing may be left to do although the cluster is not calm.
        self.cluster.find_nodes();
        self.cluster.pod_hook = Some(hook_template("pod"));
        self.cluster.answer(Verdict::Successful);
        let is_at_rest = |pod: &PodFacts| {
            let runs = |container: &Container| container.running && container.actual_image == container.image;
            pod.is_ready() && !pod.deleting && pod.containers.iter().all(runs)
        };
        for round in 0..400 {
            let plan = self.decide();
            let unchanged = self.object.status() == Some(&plan.status);
            if plan.steps.is_empty() && plan.wake.is_none() && unchanged && self.ours().all(is_at_rest) {
                return Some(round);
            }
            self.carry_out(&plan);
            self.cluster.calm();
            self.cluster.pass(60);
        }
        None
    }
}

/// Whether an action writes the object itself.
pub(crate) fn is_of_object(action: &Action) -> bool {
    matches!(action, Action::Pause { .. } | Action::ResetRetry { .. } | Action::SetFinalizers { .. })
}
