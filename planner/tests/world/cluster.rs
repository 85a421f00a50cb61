//! A small cluster in memory: applies writes as the API server would, refuses those that a rule names, and ages pods. It knows no kind.

use std::collections::{BTreeMap, BTreeSet};

use api::names::PROTECTED_LABEL;
use api::tkex::{HookRun, HookTemplate, Phase as Verdict};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use planner::facts::node::{NodeFacts, Nodes};
use planner::facts::pdb::PdbFacts;
use planner::facts::pod::PodFacts;
use planner::facts::revision::RevisionFacts;
use planner::plan::Action;
use planner::workload::manifest::{self, Owner};
use planner::workload::{Unlisted, protect};
use serde_json::json;

use super::pods::{make_ready, patch, pod};

/// A cluster.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    pub(crate) pods: BTreeMap<String, PodFacts>,
    pub(crate) revisions: BTreeMap<String, RevisionFacts>,
    pub(crate) hook_runs: BTreeMap<String, HookRun>,
    pub(crate) hook_templates: Vec<HookTemplate>,
    /// The HookTemplate that hooks about pods name, unless a user has deleted it.
    pub(crate) pod_hook: Option<HookTemplate>,
    /// Nodes that do not answer: their pods stay as they are.
    pub(crate) lost: BTreeMap<String, Timestamp>,
    /// Nodes that were deleted, or are out of service.
    pub(crate) gone: BTreeSet<String>,
    /// How many nodes there are.
    pub(crate) nodes: usize,
    pub(crate) cordoned: BTreeSet<String>,
    pub(crate) budgets: BTreeMap<String, PdbFacts>,
    /// Kinds that have not been listed.
    pub(crate) unlisted: Vec<Unlisted>,
    pub(crate) now: Timestamp,
    /// Writes that the API server refuses.
    pub(crate) rules: Vec<Rule>,
    pub(super) version: u64,
}

/// Writes that the API server refuses: with this word, or any; of this pod, or of any.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) word: Option<&'static str>,
    pub(crate) pod: Option<String>,
    pub(crate) how: How,
    /// How many are refused; none means that there is no limit.
    pub(crate) left: Option<u32>,
    /// Dry runs pass although the writes themselves are refused.
    pub(crate) lies: bool,
}

/// How a write is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Quota,
    Policy,
    Conflict,
    Overload,
    Broken,
    /// It is carried out, and answered with an error.
    Done,
}

impl How {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Quota => "Forbidden",
            Self::Policy => "Invalid",
            Self::Conflict => "Conflict",
            Self::Overload => "TooManyRequests",
            Self::Broken | Self::Done => "InternalError",
        }
    }
}

/// A HookTemplate with one metric.
pub(crate) fn hook_template(name: &str) -> HookTemplate {
    let metric = json!({ "name": "webtest", "provider": { "web": { "url": "http://1.1.1.1", "jsonPath": "{.age}" } } });
    let template = json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": { "name": name }, "spec": { "metrics": [metric] } });
    serde_json::from_value(template).unwrap()
}

impl Cluster {
    /// Whether the containers of a pod should run the images of a revision, whatever its label says.
    pub(crate) fn has_images_of(&self, pod: &PodFacts, revision: &str) -> bool {
        let template = self.revisions.get(revision).map(|revision| revision.template.value()).unwrap_or_default();
        let wanted = template["spec"]["containers"].as_array();
        wanted.is_some_and(|wanted| wanted.iter().zip(&pod.containers).all(|(one, other)| one["image"] == other.image.as_str()))
    }

    pub(super) fn new() -> Self {
        Self {
            pods: BTreeMap::new(),
            revisions: BTreeMap::new(),
            hook_runs: BTreeMap::new(),
            hook_templates: Vec::new(),
            pod_hook: None,
            lost: BTreeMap::new(),
            gone: BTreeSet::new(),
            nodes: 3,
            cordoned: BTreeSet::new(),
            budgets: BTreeMap::new(),
            unlisted: Vec::new(),
            now: "2026-11-15T10:00:00Z".parse().unwrap(),
            rules: Vec::new(),
            version: 100,
        }
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    fn node(&self, name: &str) -> NodeFacts {
        let gone = self.gone.contains(name);
        NodeFacts { silent: self.lost.get(name).copied(), gone, cordoned: self.cordoned.contains(name), deletion_cost: 0 }
    }

    pub(super) fn observed_nodes(&self) -> Nodes {
        let known = self.lost.keys().chain(&self.cordoned).chain(&self.gone).map(|name| (name.clone(), self.node(name))).collect();
        Nodes { known, braked: self.is_braked(), ..Nodes::default() }
    }

    /// Whether so many nodes are silent that none counts as lost.
    fn is_braked(&self) -> bool {
        self.lost.len() * 100 > self.nodes * 55
    }

    /// Whether the node of a pod counts as lost.
    pub(crate) fn is_lost(&self, pod: &PodFacts) -> bool {
        let Some(node) = &pod.node else { return false };
        let is_over = |since: &Timestamp| self.now.duration_since(*since).as_secs() >= 300 && !self.is_braked();
        self.gone.contains(&**node) || self.lost.get(&**node).is_some_and(is_over)
    }

    /// Whether the node of a pod answers.
    pub(crate) fn answers(&self, pod: &PodFacts) -> bool {
        !pod.node.as_ref().is_some_and(|node| self.lost.contains_key(&**node) || self.gone.contains(&**node))
    }

    /// A node does not answer any more: its pods are not ready, and stay as they are until it is back.
    pub(crate) fn lose(&mut self, node: &str) {
        self.lost.entry(node.to_owned()).or_insert(self.now);
        for pod in self.pods.values_mut().filter(|pod| pod.node.as_deref() == Some(node)) {
            pod.ready_since = None;
        }
    }

    /// A node is deleted, or gets the out-of-service taint.
    pub(crate) fn take_out(&mut self, node: &str) {
        self.lose(node);
        self.gone.insert(node.to_owned());
    }

    /// Every node is back.
    pub(crate) fn find_nodes(&mut self) {
        self.lost.clear();
        self.gone.clear();
    }

    /// Every hook that is asked answers.
    pub(crate) fn answer(&mut self, phase: Verdict) {
        let now = self.now;
        self.hook_runs.values_mut().for_each(|run| answer(run, phase, now));
    }

    /// One hook that is asked answers.
    pub(crate) fn answer_one(&mut self, index: usize, phase: Verdict) {
        let (now, asked) = (self.now, self.hook_runs.values_mut().filter(|run| run.status.is_none()));
        let mut asked: Vec<_> = asked.collect();
        let count = asked.len().max(1);
        if let Some(run) = asked.get_mut(index % count) {
            answer(run, phase, now);
        }
    }

    /// The rule that refuses an action, which counts it.
    pub(super) fn refusal(&mut self, action: &Action) -> Option<How> {
        let inner = if let Action::Probe(inner) = action { inner } else { action };
        let of_uid = |uid: Option<&String>| self.pods.values().find(|pod| uid == Some(&pod.uid)).map(|pod| pod.name.clone());
        let name = match inner {
            Action::DeletePod { name, .. } | Action::AdoptPod { name, .. } | Action::ReleasePod { name, .. } => Some(name.clone()),
            Action::PatchPod(change) => Some(change.name.clone()),
            Action::CreateHookRun(new) => of_uid(new.labels.get("pod-uid")),
            Action::DeleteHookRun { pod, .. } => of_uid(pod.as_ref()),
            Action::SkipHook { .. } => return None,
            _ => None,
        };
        let is_meant = |rule: &&mut Rule| {
            let of_pod = rule.pod.is_none() || rule.pod == name;
            let is_told = !(rule.lies && matches!(action, Action::Probe(_)));
            of_pod && rule.word.is_none_or(|word| word == inner.word()) && rule.left != Some(0) && is_told
        };
        let rule = self.rules.iter_mut().find(is_meant)?;
        rule.left = rule.left.map(|left| left - 1);
        Some(rule.how)
    }

    /// Applies a write of a dependent object as the API server would: a name can be used once, a uid must match.
    pub(super) fn apply(&mut self, owner: &Owner, action: &Action) {
        self.version += 1;
        let (version, now) = (self.version, self.now);
        let uid_of = |name: &str| format!("uid-{name}-{version}");
        match action {
            Action::PatchPod(change) => self.named(&change.name, &change.uid).into_iter().for_each(|pod| patch(pod, change)),
            Action::CreatePod(new) => {
                let body = manifest::pod(owner, new);
                self.pods.entry(new.name.clone()).or_insert_with(|| pod(&new.name, version, &body, now));
            }
            Action::DeletePod { name, uid, .. } => self.named(name, uid).into_iter().for_each(|pod| pod.deleting = true),
            Action::AdoptPod { name, uid } => self.named(name, uid).into_iter().for_each(|pod| pod.controller = Some(owner.uid.clone())),
            Action::ReleasePod { name, uid } => {
                if let Some(pod) = self.named(name, uid) {
                    pod.controller = None;
                    pod.labels.remove(PROTECTED_LABEL);
                }
            }
            Action::CreateBudget { name } => {
                let (uid, controller) = (uid_of(name), Some(owner.uid.clone()));
                let selector = Some(protect::selector(&owner.uid));
                self.budgets.entry(name.clone()).or_insert_with(|| PdbFacts {
                    name: name.clone(),
                    uid,
                    controller,
                    selector,
                    is_closed: true,
                });
            }
            Action::DeleteBudget { name, uid } => self.budgets.retain(|key, budget| key != name || budget.uid != *uid),
            Action::CreateHookRun(new) => {
                let mut run: HookRun = serde_json::from_value(manifest::hook_run(owner, new)).unwrap();
                run.metadata.uid = Some(uid_of(&new.name));
                run.metadata.creation_timestamp = Some(Time(now));
                self.hook_runs.entry(new.name.clone()).or_insert(run);
            }
            Action::DeleteHookRun { name, uid, .. } => {
                self.hook_runs.retain(|key, run| key != name || run.metadata.uid.as_ref() != Some(uid));
            }
            Action::CreateRevision(new) => {
                let (name, uid, controller) = (new.name.clone(), uid_of(&new.name), Some(owner.uid.clone()));
                let (number, template, deleting) = (new.number, new.template.clone(), false);
                self.revisions.entry(name.clone()).or_insert(RevisionFacts { name, uid, controller, number, template, deleting });
            }
            Action::BumpRevision { name, number, .. } => {
                self.revisions.get_mut(name).into_iter().for_each(|revision| revision.number = *number);
            }
            Action::AdoptRevision { name, .. } => {
                self.revisions.get_mut(name).into_iter().for_each(|revision| revision.controller = Some(owner.uid.clone()));
            }
            Action::DeleteRevision { name, .. } => drop(self.revisions.remove(name)),
            Action::Measure(_) => panic!("a workload measures nothing"),
            Action::SkipHook { .. } | Action::Probe(_) => {}
            Action::Pause { .. } | Action::ResetRetry { .. } | Action::SetFinalizers { .. } => {
                panic!("the object is not a dependent: {action:?}")
            }
        }
    }

    fn named(&mut self, name: &str, uid: &str) -> Option<&mut PodFacts> {
        self.pods.get_mut(name).filter(|pod| pod.uid == uid)
    }

    /// Every pod comes to serve, and deleted ones disappear.
    pub(crate) fn calm(&mut self) {
        let now = self.now;
        self.answer(Verdict::Successful);
        self.find_nodes();
        self.cordoned.clear();
        self.pods.retain(|_, pod| !pod.deleting);
        for pod in self.pods.values_mut().filter(|pod| pod.is_active()) {
            make_ready(pod, now);
        }
    }
}

fn answer(run: &mut HookRun, phase: Verdict, now: Timestamp) {
    if run.status.is_none() {
        run.status = serde_json::from_value(json!({ "phase": phase, "message": "so it is", "finishedAt": now })).unwrap();
    }
}
