//! A small cluster in memory: applies plans as the API server would, ages pods, and keeps score of what plans do to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::names::{
    ASKED_ANNOTATION, INPLACE_GRACE_ANNOTATION, INPLACE_STATE_ANNOTATION, PAUSED_FOR_ANNOTATION, PROTECTED_LABEL, READINESS_GATE,
};
use api::tkex::{GameDeployment, GameDeploymentSpec, HookRun, HookTemplate};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use planner::facts::node::{NodeFacts, Nodes};
use planner::facts::pdb::PdbFacts;
use planner::facts::pod::{Container, Gate, Phase, PodFacts};
use planner::facts::revision::RevisionFacts;
use planner::plan::{Action, PatchReason, Plan, PodPatch};
use planner::refusal::{Fallout, Outcome, Refusals};
use planner::workload::approval;
use planner::workload::gate;
use planner::workload::inplace::Update;
use planner::workload::limits::Limits;
use planner::workload::manifest::{self, Owner};
use planner::workload::protect;
use planner::workload::{Observed, Seen, Unlisted, decide};
use serde_json::{Value, json};

type Status = api::tkex::GameDeploymentStatus;

/// A template, told from others by a number. From 4 on it has an environment too, which no pod can be given in place.
pub(crate) fn template(number: u8) -> Value {
    let mut container = json!({ "name": "game", "image": format!("game:{number}") });
    if number >= 4 {
        container["env"] = json!([{ "name": "NUMBER", "value": number.to_string() }]);
    }
    json!({ "metadata": { "labels": { "app": "game" } }, "spec": { "containers": [container] } })
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
    game.metadata.resource_version = Some("1".to_owned());
    game
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) game: GameDeployment,
    pub(crate) pods: BTreeMap<String, PodFacts>,
    pub(crate) revisions: BTreeMap<String, RevisionFacts>,
    pub(crate) hook_runs: BTreeMap<String, HookRun>,
    pub(crate) hook_templates: Vec<HookTemplate>,
    /// The HookTemplate that hooks about pods name, unless somebody has deleted it.
    pub(crate) pod_hook: Option<HookTemplate>,
    /// Nodes that do not answer: their pods stay as they are.
    pub(crate) lost: BTreeMap<String, Timestamp>,
    /// Nodes that were deleted, or are out of service.
    pub(crate) gone: BTreeSet<String>,
    /// How many nodes there are.
    pub(crate) nodes: usize,
    /// Nodes that somebody wants to empty.
    pub(crate) cordoned: BTreeSet<String>,
    pub(crate) budgets: BTreeMap<String, PdbFacts>,
    /// Kinds that have not been listed.
    pub(crate) unlisted: Vec<Unlisted>,
    pub(crate) now: Timestamp,
    /// Writes that the API server refuses.
    pub(crate) rules: Vec<Rule>,
    /// What the operator remembers of refused writes.
    pub(crate) refusals: Refusals,
    /// When writes were refused, by what was written and for which revision.
    pub(crate) refused: BTreeMap<String, Vec<Timestamp>>,
    /// Whether a person paused the rollout and has not resumed it.
    pub(crate) paused_by_person: bool,
    /// How many writes were done.
    pub(crate) done: usize,
    /// How often pods were taken out of their services, by uid and revision.
    pub(crate) drained: BTreeMap<(String, String), u32>,
    version: u64,
}

/// Writes that the API server refuses: those with this word, or all; of this pod, or of all.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) word: Option<&'static str>,
    pub(crate) pod: Option<String>,
    pub(crate) how: How,
    /// How many are refused; for ever if none.
    pub(crate) left: Option<u32>,
    /// Dry runs pass all the same.
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
    /// It is done, and answered with an error.
    Done,
}

impl How {
    fn reason(self) -> &'static str {
        match self {
            Self::Quota => "Forbidden",
            Self::Policy => "Invalid",
            Self::Conflict => "Conflict",
            Self::Overload => "TooManyRequests",
            Self::Broken | Self::Done => "InternalError",
        }
    }
}

/// How somebody makes a HookRun that looks like an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// It names another controller.
    Controller,
    /// It names nobody.
    NoController,
    /// It is about another pod.
    Pod,
    /// It is asked for something else.
    Intent,
    /// It asks something else.
    Question,
}

pub(crate) const FORGERIES: &[Forgery] = &[Forgery::Controller, Forgery::NoController, Forgery::Pod, Forgery::Intent, Forgery::Question];

impl World {
    pub(crate) fn new(spec: &Value) -> Self {
        let now = "2026-11-15T10:00:00Z".parse().unwrap();
        let (pods, revisions, hook_runs) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (hook_templates, pod_hook, lost) = (Vec::new(), None, BTreeMap::new());
        let (cordoned, budgets) = (BTreeSet::new(), BTreeMap::new());
        let (rules, refusals, refused) = (Vec::new(), Refusals::default(), BTreeMap::new());
        Self {
            game: game(spec),
            pods,
            revisions,
            hook_runs,
            hook_templates,
            pod_hook,
            lost,
            gone: BTreeSet::new(),
            nodes: 3,
            cordoned,
            budgets,
            unlisted: Vec::new(),
            now,
            rules,
            refusals,
            refused,
            paused_by_person: false,
            done: 0,
            drained: BTreeMap::new(),
            version: 100,
        }
    }

    pub(crate) fn observed(&self) -> Observed<GameDeployment> {
        let seen = Seen {
            pods: self.pods.values().cloned().map(Arc::new).collect(),
            revisions: self.revisions.values().cloned().map(Arc::new).collect(),
            hook_runs: self.hook_runs.values().cloned().map(Arc::new).collect(),
            hook_templates: self.hook_templates.iter().chain(&self.pod_hook).cloned().map(Arc::new).collect(),
            nodes: self.observed_nodes(),
            budgets: self.budgets.values().cloned().map(Arc::new).collect(),
            taken_revision_names: Vec::new(),
            taken_pod_names: Vec::new(),
            refusals: self.refusals.clone(),
            lowers_memory: true,
            too_large: None,
            unlisted: self.unlisted.clone(),
        };
        Observed { object: Arc::new(self.game.clone()), seen }
    }

    fn node(&self, name: &str) -> NodeFacts {
        let gone = self.gone.contains(name);
        NodeFacts { silent: self.lost.get(name).copied(), gone, cordoned: self.cordoned.contains(name), deletion_cost: 0 }
    }

    fn observed_nodes(&self) -> Nodes {
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
        self.gone.contains(node) || self.lost.get(node).is_some_and(is_over)
    }

    /// Whether nobody may delete pods before their hook agrees.
    pub(crate) fn protects(&self) -> bool {
        let strategy = self.game.spec.pre_delete_update_strategy.as_ref();
        strategy.is_some_and(|strategy| strategy.protect == Some(true) && strategy.hook.is_some())
    }

    /// Somebody deletes the object.
    pub(crate) fn delete(&mut self) {
        self.game.metadata.deletion_timestamp = Some(Time(self.now));
        self.touch();
    }

    pub(crate) fn decide(&self) -> Plan<Status> {
        decide(&self.observed(), self.now)
    }

    pub(crate) fn replicas(&self) -> usize {
        usize::try_from(self.game.spec.replicas).unwrap()
    }

    pub(crate) fn limits(&self) -> Limits {
        let limits = Limits::of(&self.game.spec.update_strategy, self.replicas()).unwrap();
        let numbers = self.game.spec.pod_index.as_ref().map(|range| usize::try_from(range.end - range.start).unwrap());
        numbers.map_or(limits, |numbers| limits.with_surge_of(numbers.saturating_sub(self.replicas())))
    }

    /// How many pods stay on the stable revision: the partition, or what the steps say.
    pub(crate) fn partition(&self, status: &Status) -> usize {
        let steps = self.game.spec.update_strategy.canary.as_ref().map_or(&[][..], |canary| &canary.steps);
        let index = usize::try_from(status.current_step_index.unwrap_or_default()).unwrap();
        if steps.is_empty() {
            return self.limits().partition;
        }
        if index >= steps.len() {
            return 0;
        }
        let kept = steps[..=index].iter().rev().find_map(|step| step.partition.as_ref());
        kept.map_or(self.replicas(), |kept| planner::workload::limits::kept("", kept, self.replicas()).unwrap())
    }

    /// Every hook that is asked answers.
    pub(crate) fn answer(&mut self, phase: api::tkex::Phase) {
        let now = self.now;
        self.hook_runs.values_mut().for_each(|run| answer(run, phase, now));
    }

    /// One hook that is asked answers.
    pub(crate) fn answer_one(&mut self, index: usize, phase: api::tkex::Phase) {
        let (now, asked) = (self.now, self.hook_runs.values_mut().filter(|run| run.status.is_none()));
        let mut asked: Vec<_> = asked.collect();
        let count = asked.len().max(1);
        if let Some(run) = asked.get_mut(index % count) {
            answer(run, phase, now);
        }
    }

    /// Somebody writes an approval of the deletion of a pod that nobody gave: all of it is right but one thing.
    pub(crate) fn forge(&mut self, pod: &str, forgery: Forgery) {
        let mut labels =
            json!({ "hookrun-type": "pre-delete-step", "hook-template": "pod", "pod-uid": self.pods[pod].uid, "attempt": "9" });
        let (mut owner, mut template) = (owner(), crate::laws::hook_template("pod"));
        match forgery {
            Forgery::Controller => owner.name = "another".to_owned(),
            Forgery::Pod => labels["pod-uid"] = json!("another"),
            Forgery::Intent => labels["target-revision"] = json!("another"),
            Forgery::Question => template.spec.metrics[0].name = "always".to_owned(),
            Forgery::NoController => {}
        }
        let owners = if forgery == Forgery::NoController { json!(null) } else { json!([owner.reference()]) };
        let (name, now) = (format!("forged-{pod}-{forgery:?}"), self.now);
        let run = json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": { "name": name, "uid": name, "labels": labels, "creationTimestamp": now, "ownerReferences": owners },
            "spec": { "metrics": template.spec.metrics },
            "status": { "phase": "Successful", "finishedAt": now },
        });
        self.hook_runs.insert(name, serde_json::from_value(run).unwrap());
    }

    /// Whether a hook has agreed to what an action does to a pod, or need not.
    pub(crate) fn is_agreed(&self, action: &Action) -> bool {
        let spec = &self.game.spec;
        let pre_delete = spec.pre_delete_update_strategy.as_ref().is_some_and(|strategy| strategy.hook.is_some());
        let pre_inplace = spec.pre_inplace_update_strategy.as_ref().is_some_and(|strategy| strategy.hook.is_some());
        let (uid, kind, target) = match action {
            Action::DeletePod { uid, .. } if pre_delete => (uid, "pre-delete-step", None),
            Action::PatchPod(PodPatch { uid, why: why @ (PatchReason::Drain | PatchReason::InPlace), body, .. })
                if pre_delete || pre_inplace =>
            {
                let serves = |pod: &&PodFacts| *why == PatchReason::Drain && pod.uid == *uid && pod.gate == Gate::Up;
                let half_changed = || self.pods.values().find(serves).and_then(PodFacts::revision);
                let target = body["metadata"]["labels"]["controller-revision-hash"].as_str().or_else(half_changed);
                // Otherwise it ends what was begun before.
                if target.is_none() {
                    return true;
                }
                (uid, if pre_inplace { "pre-inplace-step" } else { "pre-delete-step" }, target)
            }
            _ => return true,
        };
        let Some(pod) = self.pods.values().find(|pod| pod.uid == *uid) else { return true };
        let announced = pod.update.as_ref().is_some_and(|update| update.pending.is_some());
        let runs_target = |target: &str| {
            let template = self.revisions.get(target).map(|revision| revision.template.value()).unwrap_or_default();
            let wanted = template["spec"]["containers"].as_array();
            wanted.is_some_and(|wanted| wanted.iter().zip(&pod.containers).all(|(one, other)| one["image"] == other.image.as_str()))
        };
        // It is on that revision already, and nothing of it restarts.
        let is_there = |body: &Value| body.get("spec").is_none() && target.is_some() && pod.revision() == target;
        if matches!(action, Action::PatchPod(PodPatch { why: PatchReason::InPlace, body, .. }) if is_there(body)) {
            return true;
        }
        if pod.phase != Phase::Running || pod.is_crash_looping() || self.is_lost(pod) || announced && target.is_some_and(runs_target) {
            return true;
        }
        let is_marked_for = |run: &HookRun| pod.annotations[ASKED_ANNOTATION] == approval::fingerprint(&run.spec);
        self.hook_runs.values().any(|run| {
            let labels = run.metadata.labels.as_ref().unwrap();
            let is_it = labels.get("pod-uid") == Some(uid) && labels["hookrun-type"] == kind;
            let yes = run.status.as_ref().is_some_and(|status| status.phase == Some(api::tkex::Phase::Successful));
            let is_ours = json!(run.metadata.owner_references) == json!([owner().reference()]);
            let is_of_mark = !matches!(action, Action::DeletePod { .. }) || is_marked_for(run);
            is_it && yes && is_ours && is_of_mark && labels.get("target-revision").map(String::as_str) == target
        })
    }

    pub(crate) fn is_available(&self, pod: &PodFacts) -> bool {
        !pod.deleting && self.answers(pod) && pod.is_available(SignedDuration::from_secs(self.game.spec.min_ready_seconds.into()), self.now)
    }

    pub(crate) fn available(&self) -> usize {
        self.pods.values().filter(|pod| self.is_available(pod)).count()
    }

    /// Pods that the owner has or would adopt.
    pub(crate) fn ours(&self) -> impl Iterator<Item = &PodFacts> {
        let keeps = self.protects();
        let is_kept = move |pod: &PodFacts| keeps && pod.controller.is_some() && pod.labels.contains_key(PROTECTED_LABEL);
        let is_ours = move |pod: &PodFacts| pod.labels["app"] == "game" || is_kept(pod);
        self.pods.values().filter(move |pod| is_ours(pod) && (pod.controller.is_some() || pod.is_active()))
    }

    /// Pods that are not being deleted.
    pub(crate) fn present(&self) -> usize {
        self.pods.values().filter(|pod| !pod.deleting).count()
    }

    /// Whether the pod fills a place: it serves or may come to serve, or ended so soon that its successor has to wait.
    pub(crate) fn fills(&self, pod: &PodFacts) -> bool {
        !(pod.deleting || pod.has_ended() && self.now.duration_since(pod.created).as_secs() >= 10)
    }

    /// Pods that leave as soon as their hook agrees, if a plan is carried out, by uid.
    pub(crate) fn leaving(&self, plan: &Plan<Status>) -> BTreeSet<String> {
        let mut leaving: BTreeSet<String> = self.pods.values().filter(|pod| gate::is_marked(pod)).map(|pod| pod.uid.clone()).collect();
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
        let listed =
            |pod: &PodFacts| self.game.spec.scale_strategy.as_ref().is_some_and(|strategy| strategy.pods_to_delete.contains(&pod.name));
        let is_cordoned = |pod: &PodFacts| pod.node.as_ref().is_some_and(|node| self.cordoned.contains(node));
        let named = |pod: &PodFacts| listed(pod) || self.protects() && (is_cordoned(pod) || self.is_lost(pod));
        self.ours().filter(|pod| self.fills(pod) && !named(pod) && !leaving.contains(&pod.uid) && pod.revision() == Some(revision)).count()
    }

    /// The object has another version from now on.
    fn touch(&mut self) {
        self.version += 1;
        self.game.metadata.resource_version = Some(self.version.to_string());
    }

    /// Changes the spec as a user would.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut GameDeploymentSpec)) {
        change(&mut self.game.spec);
        self.touch();
        self.game.metadata.generation = self.game.metadata.generation.map(|generation| generation + 1);
    }

    /// The rule that refuses an action, which counts it.
    fn refusal(&mut self, action: &Action) -> Option<How> {
        let inner = if let Action::Probe(inner) = action { inner } else { action };
        let name = match inner {
            Action::DeletePod { name, .. } | Action::AdoptPod { name, .. } | Action::ReleasePod { name, .. } => Some(name.clone()),
            Action::PatchPod(change) => Some(change.name.clone()),
            Action::CreateHookRun(new) => {
                self.pods.values().find(|pod| new.labels.get("pod-uid") == Some(&pod.uid)).map(|pod| pod.name.clone())
            }
            Action::DeleteHookRun { pod, .. } => self.pods.values().find(|one| pod.as_ref() == Some(&one.uid)).map(|one| one.name.clone()),
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

    /// Whether an action names a version of the object that is not the newest.
    fn is_outdated(&self, action: &Action) -> bool {
        match action {
            Action::Pause { version, .. } | Action::ResetRetry { version, .. } | Action::SetFinalizers { version, .. } => {
                self.game.metadata.resource_version.as_ref() != Some(version)
            }
            _ => false,
        }
    }

    /// The API server gets an action: does it, or refuses it.
    pub(crate) fn attempt(&mut self, action: &Action, fallout: &mut Fallout) {
        let refused = self.refusal(action).or_else(|| self.is_outdated(action).then_some(How::Conflict));
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
            self.refused.entry(inner.word().to_owned()).or_default().push(self.now);
        } else {
            fallout.done(action);
            self.done += usize::from(!matches!(action, Action::Probe(_)));
        }
        self.refusals.note(action, &outcome, self.now);
    }

    /// Carries out a plan as the operator would, and records its status.
    pub(crate) fn carry_out(&mut self, plan: &Plan<Status>) {
        let mut fallout = Fallout::default();
        self.refusals = plan.refusals.clone();
        let version = self.game.metadata.resource_version.clone();
        for action in plan.actions() {
            if fallout.stands(action) {
                self.attempt(action, &mut fallout);
            }
        }
        self.record_if(&version, plan);
    }

    /// Records a plan's status, unless the object is another one than was decided on.
    pub(crate) fn record_if(&mut self, version: &Option<String>, plan: &Plan<Status>) {
        if self.game.metadata.resource_version == *version {
            self.touch();
            self.game.status = Some(plan.status.clone());
        }
    }

    /// Applies one action as the API server would: a name can be used once, a uid must match.
    pub(crate) fn apply(&mut self, action: &Action) {
        self.version += 1;
        let version = self.version;
        match action {
            Action::Measure(_) => panic!("no game server is measured"),
            Action::SkipHook { .. } | Action::Probe(_) => {}
            Action::PatchPod(change) => {
                if let Some(pod) = self.pods.get_mut(&change.name).filter(|pod| pod.uid == change.uid) {
                    patch(pod, change);
                    if change.why == PatchReason::Drain {
                        let revision = pod.revision().unwrap_or_default().to_owned();
                        *self.drained.entry((pod.uid.clone(), revision)).or_default() += 1;
                    }
                }
            }
            Action::Pause { .. }
            | Action::ResetRetry { .. }
            | Action::SetFinalizers { .. }
            | Action::CreateHookRun(_)
            | Action::DeleteHookRun { .. } => self.apply_to_rollout(action),
            Action::CreateBudget { name } => {
                self.budgets.entry(name.clone()).or_insert_with(|| budget(name, version));
            }
            Action::DeleteBudget { name, uid } => self.budgets.retain(|key, budget| key != name || budget.uid != *uid),
            Action::CreatePod(new) => {
                let body = manifest::pod(&owner(), new);
                self.pods.entry(new.name.clone()).or_insert_with(|| pod(&new.name, version, &body, self.now));
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
                    pod.labels.remove(PROTECTED_LABEL);
                }
            }
            Action::CreateRevision(_) | Action::BumpRevision { .. } | Action::AdoptRevision { .. } | Action::DeleteRevision { .. } => {
                self.apply_to_history(action);
            }
        }
    }

    fn apply_to_history(&mut self, action: &Action) {
        let version = self.version;
        match action {
            Action::CreateRevision(new) => {
                self.revisions.entry(new.name.clone()).or_insert_with(|| RevisionFacts {
                    name: new.name.clone(),
                    uid: format!("uid-{version}"),
                    controller: Some("uid-game".to_owned()),
                    number: new.number,
                    template: new.template.clone(),
                    deleting: false,
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
            _ => {}
        }
    }

    fn apply_to_rollout(&mut self, action: &Action) {
        match action {
            Action::Pause { paused, mark, version } if self.game.metadata.resource_version.as_ref() == Some(version) => {
                self.edit(|spec| spec.update_strategy.paused = *paused);
                let annotations = self.game.metadata.annotations.get_or_insert_default();
                match mark {
                    Some(mark) => drop(annotations.insert(PAUSED_FOR_ANNOTATION.to_owned(), mark.clone())),
                    None => drop(annotations.remove(PAUSED_FOR_ANNOTATION)),
                }
            }
            Action::ResetRetry { field, version } if self.game.metadata.resource_version.as_ref() == Some(version) => {
                let mut spec = json!(self.game.spec);
                spec[field]["retry"] = json!(false);
                self.edit(|known| *known = serde_json::from_value(spec).unwrap());
            }
            Action::SetFinalizers { finalizers, version } if self.game.metadata.resource_version.as_ref() == Some(version) => {
                self.game.metadata.finalizers = Some(finalizers.clone());
                self.touch();
            }
            Action::CreateHookRun(new) => {
                let mut run: HookRun = serde_json::from_value(manifest::hook_run(&owner(), new)).unwrap();
                run.metadata.uid = Some(format!("uid-{}", self.version));
                run.metadata.creation_timestamp = Some(Time(self.now));
                self.hook_runs.entry(new.name.clone()).or_insert(run);
            }
            Action::DeleteHookRun { name, uid, .. } => {
                self.hook_runs.retain(|key, run| key != name || run.metadata.uid.as_ref() != Some(uid));
            }
            _ => {}
        }
    }

    /// Records a plan's status.
    pub(crate) fn record(&mut self, plan: &Plan<Status>) {
        // A status that was decided on an older object is refused.
        let changes_object =
            |action: &Action| matches!(action, Action::Pause { .. } | Action::ResetRetry { .. } | Action::SetFinalizers { .. });
        if plan.actions().any(changes_object) {
            return;
        }
        self.touch();
        self.game.status = Some(plan.status.clone());
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    /// Every pod comes to serve, and deleted ones disappear.
    pub(crate) fn calm(&mut self) {
        let now = self.now;
        self.answer(api::tkex::Phase::Successful);
        self.lost.clear();
        self.gone.clear();
        self.cordoned.clear();
        self.pods.retain(|_, pod| !pod.deleting);
        for pod in self.pods.values_mut().filter(|pod| pod.is_active()) {
            make_ready(pod, now);
        }
    }

    /// A node is deleted, or somebody says that it is out of service.
    pub(crate) fn take_out(&mut self, node: &str) {
        self.lose(node);
        self.gone.insert(node.to_owned());
    }

    /// A node does not answer any more: its pods are not ready, and stay as they are until it is back.
    pub(crate) fn lose(&mut self, node: &str) {
        self.lost.entry(node.to_owned()).or_insert(self.now);
        for pod in self.pods.values_mut().filter(|pod| pod.node.as_deref() == Some(node)) {
            pod.ready_since = None;
        }
    }

    /// Whether the node of a pod answers.
    pub(crate) fn answers(&self, pod: &PodFacts) -> bool {
        !pod.node.as_ref().is_some_and(|node| self.lost.contains_key(node) || self.gone.contains(node))
    }

    /// Lets the operator work on a calm cluster until nothing is left to do; how many rounds that took.
    pub(crate) fn settle(&mut self) -> Option<usize> {
        if let Some(range) = &mut self.game.spec.pod_index {
            range.end += 40;
        }
        self.rules.clear();
        // Whoever waits for an answer is not at rest.
        self.pod_hook = Some(crate::laws::hook_template("pod"));
        self.answer(api::tkex::Phase::Successful);
        let is_at_rest = |pod: &PodFacts| {
            let runs = |container: &Container| container.running && container.actual_image == container.image;
            pod.is_ready() && !pod.deleting && pod.containers.iter().all(runs)
        };
        for round in 0..400 {
            let plan = self.decide();
            let unchanged = self.game.status.as_ref() == Some(&plan.status);
            if plan.steps.is_empty() && plan.wake.is_none() && unchanged && self.ours().all(is_at_rest) {
                return Some(round);
            }
            self.carry_out(&plan);
            self.calm();
            self.pass(60);
        }
        None
    }
}

fn answer(run: &mut HookRun, phase: api::tkex::Phase, now: Timestamp) {
    if run.status.is_none() {
        run.status = serde_json::from_value(json!({ "phase": phase, "message": "so it is", "finishedAt": now })).unwrap();
    }
}

fn budget(name: &str, version: u64) -> PdbFacts {
    let (name, uid, controller) = (name.to_owned(), format!("uid-{version}"), Some("uid-game".to_owned()));
    PdbFacts { name, uid, controller, selector: protect::selector("uid-game"), is_closed: true }
}

pub(crate) fn owner() -> Owner {
    Owner {
        api_version: "tkex.tencent.com/v1alpha1".to_owned(),
        kind: "GameDeployment".to_owned(),
        name: "game".to_owned(),
        namespace: "play".to_owned(),
        uid: "uid-game".to_owned(),
    }
}

/// A pod as the API server would make it.
pub(crate) fn pod(name: &str, version: u64, body: &Value, now: Timestamp) -> PodFacts {
    let texts = |part: &str| serde_json::from_value(body["metadata"][part].clone()).unwrap_or_default();
    let container = |one: &Value| Container {
        name: one["name"].as_str().unwrap_or_default().to_owned(),
        image: one["image"].as_str().unwrap_or_default().to_owned(),
        ..Container::default()
    };
    let gated = body["spec"]["readinessGates"].as_array().is_some_and(|gates| gates.contains(&json!({ "conditionType": READINESS_GATE })));
    PodFacts {
        name: name.to_owned(),
        namespace: "play".to_owned(),
        uid: format!("uid-{version}"),
        resource_version: version,
        labels: texts("labels"),
        controller: Some("uid-game".to_owned()),
        created: now,
        deleting: false,
        phase: Phase::Pending,
        ready_since: None,
        node: None,
        ip: String::new(),
        host_ip: String::new(),
        restarts: 0,
        deletion_cost: 0,
        trouble: None,
        annotations: texts("annotations"),
        gate: if gated { Gate::Unset } else { Gate::Absent },
        containers: body["spec"]["containers"].as_array().into_iter().flatten().map(container).collect(),
        update: None,
        is_resizing: false,
        spec: None,
        is_seen_by_node: true,
    }
}

/// Changes a pod as the API server would.
fn patch(pod: &mut PodFacts, change: &PodPatch) {
    let body = &change.body;
    let mut update = pod.update.take().unwrap_or_default();
    for (key, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
        set(&mut pod.labels, key, value);
    }
    for (key, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
        match key.as_str() {
            INPLACE_STATE_ANNOTATION => update.state = Update::read(value.as_str(), None).and_then(|read| read.state),
            INPLACE_GRACE_ANNOTATION => update.pending = Update::read(None, value.as_str()).and_then(|read| read.pending),
            _ => set(&mut pod.annotations, key, value),
        }
    }
    pod.update = (*update != Update::default()).then_some(update);
    for condition in body["status"]["conditions"].as_array().into_iter().flatten() {
        let since: Timestamp = condition["lastTransitionTime"].as_str().unwrap().parse().unwrap();
        pod.gate = if condition["status"] == "True" { Gate::Up } else { Gate::Down(since) };
    }
    for wanted in body["spec"]["containers"].as_array().into_iter().flatten() {
        let container = pod.containers.iter_mut().find(|container| wanted["name"] == container.name.as_str()).unwrap();
        if let Some(image) = wanted["image"].as_str() {
            image.clone_into(&mut container.image);
        }
    }
}

fn set(texts: &mut BTreeMap<String, String>, key: &str, value: &Value) {
    match value.as_str() {
        Some(text) => drop(texts.insert(key.to_owned(), text.to_owned())),
        None => drop(texts.remove(key)),
    }
}

/// The node has its way: containers run the image that they should, and the pod is ready if its gate allows.
pub(crate) fn make_ready(pod: &mut PodFacts, now: Timestamp) {
    let node = pod.name.bytes().map(u64::from).sum::<u64>() % 3;
    pod.node = Some(format!("node-{node}"));
    pod.phase = Phase::Running;
    pod.trouble = None;
    for container in &mut pod.containers {
        if container.running && container.actual_image != container.image {
            container.restarts += 1;
            // Readiness was lost in between.
            pod.ready_since = None;
            container.running = false;
        }
        // One that runs what it should is left alone.
        if !container.running {
            container.started = Some(now);
        }
        container.actual_image.clone_from(&container.image);
        container.image_id = format!("sha256:{}", container.image);
        container.running = true;
        container.ready = true;
    }
    match pod.gate {
        Gate::Up | Gate::Absent => drop(pod.ready_since.get_or_insert(now)),
        Gate::Unset | Gate::Down(_) => pod.ready_since = None,
    }
}
