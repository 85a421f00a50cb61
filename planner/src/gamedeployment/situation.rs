//! What is seen, put in order.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::names::PAUSED_FOR_ANNOTATION;
use api::template::PodTemplate;
use api::tkex::{GameDeploymentSpec, GameDeploymentStatus, HookRun, HookStep, HotPatchExecutor, PodHook, PodIndex, UpdateType};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::{Now, Observed};
use crate::approval;
use crate::budget::Limits;
use crate::canary::{self, CanaryState, Memory, Rollout};
use crate::claim::claim;
use crate::gate::{self, Gates, Hook, Place};
use crate::hold::{Feature, Hold};
use crate::index;
use crate::inplace::Progress;
use crate::order::least_missed_first;
use crate::plan::Action;
use crate::pod::PodFacts;
use crate::protect;
use crate::refusal::Refusals;
use crate::revision::{self, RevisionFacts};
use crate::templates::Templates;

/// A pod that ended sooner after its creation is replaced only then: a pod that cannot live must not be replaced in a hot loop.
const SHORTEST_LIFE: SignedDuration = SignedDuration::from_secs(10);

/// How owner references name objects of this kind.
const GROUP: &str = "tkex.tencent.com";
const KIND: &str = "GameDeployment";

/// A revision that pods can be made from.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) template: PodTemplate,
    /// Whether its revision is being deleted: no pod is made from it.
    pub(super) is_leaving: bool,
}

/// The group of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// On the revision of the template.
    Update,
    /// On the stable revision, which is another one.
    Current,
    /// On neither.
    Stray,
}

#[derive(Debug)]
pub(super) struct Situation<'a> {
    pub(super) spec: &'a GameDeploymentSpec,
    pub(super) seen: &'a Observed,
    pub(super) now: Now,
    pub(super) replicas: usize,
    pub(super) limits: Limits,
    /// Where pods go.
    pub(super) update: Target,
    pub(super) current: Target,
    /// The name of the template's revision. Pods go elsewhere only when a hook said no.
    pub(super) revision: String,
    /// Where a rollout in steps stands.
    pub(super) canary: CanaryState,
    pub(super) collisions: i32,
    pub(super) claims: Vec<Action>,
    pub(super) revision_actions: Vec<Action>,
    /// HookRuns that were made for this object and no other.
    pub(super) runs: Vec<Arc<HookRun>>,
    /// Every pod of ours.
    pub(super) ours: Vec<Arc<PodFacts>>,
    /// Pods that fill a place, least missed first: active ones, and ended ones whose successor has to wait.
    pub(super) placed: Vec<Arc<PodFacts>>,
    /// Pods that ended and are to be replaced.
    pub(super) ended: Vec<Arc<PodFacts>>,
    /// Names that the user wants deleted.
    pub(super) named: BTreeSet<&'a str>,
    /// Why the rollout stands still although the strategy is one that moves pods.
    pub(super) stop: Option<Hold>,
    /// A field that cannot be followed.
    pub(super) invalid: Option<Hold>,
    /// What the API server has refused.
    pub(super) refusals: Refusals,
    /// Which numbers pods get, if any.
    pub(super) index: Result<Option<PodIndex>, Hold>,
    /// Templates of revisions, read for this decision.
    pub(super) templates: Templates<'a>,
}

impl<'a> Situation<'a> {
    pub(super) fn of(seen: &'a Observed, now: Now) -> Self {
        let (spec, status) = (&seen.object.spec, seen.object.status.clone().unwrap_or_default());
        let uid = seen.object.metadata.uid.clone().unwrap_or_default();
        let replicas = usize::try_from(spec.replicas).unwrap_or_default();
        let (limits, invalid) = limits(spec, replicas);
        let index = index::range(spec.pod_index.as_ref(), seen.object.metadata.annotations.as_ref());
        // Surge pods need numbers too.
        let numbers = index.as_ref().ok().and_then(|range| Some(index::size(range.as_ref()?)));
        let limits = numbers.map_or(limits, |numbers| limits.with_surge_of(numbers.saturating_sub(replicas)));
        let claim = claim(&uid, &spec.selector, protects(spec), &seen.pods);
        let collisions = status.collision_count.unwrap_or_default();
        let remembered = remembered(&status);
        let resolved = resolve(seen, remembered, collisions);
        let update = Target { name: resolved.name, template: resolved.template, is_leaving: resolved.is_leaving };
        let current = current(remembered, &update, &seen.revisions, &claim.ours);
        let mut claims = claim.actions;
        let orphans = seen.revisions.iter().filter(|revision| revision.controller.is_none() && !revision.deleting);
        claims.extend(orphans.map(|revision| Action::AdoptRevision { name: revision.name.clone(), uid: revision.uid.clone() }));
        let (mut placed, mut ended) = (Vec::new(), Vec::new());
        for pod in claim.ours.iter().filter(|pod| !pod.deleting) {
            let fills = if pod.has_ended() { replaceable_at(pod) > now } else { true };
            if fills { placed.push(Arc::clone(pod)) } else { ended.push(Arc::clone(pod)) }
        }
        least_missed_first(&mut placed, &claim.ours, &seen.nodes, now);
        ended.sort_by(|left, right| left.name.cmp(&right.name));
        let min_ready = min_ready(spec);
        let is_updated = |pod: &&Arc<PodFacts>| {
            pod.revision() == Some(&update.name) && !pod.deleting && !pod.is_half_changed() && pod.is_available(min_ready, now)
        };
        let updated = claim.ours.iter().filter(is_updated).count();
        let name = seen.object.metadata.name.as_deref().unwrap_or_default();
        let runs = approval::runs_of(&approval::Owner { group: GROUP, kind: KIND, name, uid: &uid }, &seen.hook_runs);
        let canary = canary::state(&rollout(seen, &status, &runs, (&update, &current), (replicas, updated), now));
        let revision = update.name.clone();
        let update = if canary.rolls_back { current.clone() } else { update };
        let partition = if current.name == update.name { 0 } else { canary.partition.unwrap_or(limits.partition) };
        let leaving = update.is_leaving.then(|| Hold::RevisionLeaving { name: update.name.clone() });
        let stop = invalid.clone().or(leaving).or_else(|| canary.stop.clone().filter(|_| !canary.rolls_back)).or_else(|| stop(spec));
        Self {
            spec,
            seen,
            now,
            replicas,
            limits: Limits { partition, ..limits },
            update,
            current,
            revision,
            canary,
            collisions: resolved.collisions,
            claims,
            revision_actions: resolved.actions,
            runs,
            ours: claim.ours,
            placed,
            ended,
            named: spec.scale_strategy.iter().flat_map(|strategy| &strategy.pods_to_delete).map(String::as_str).collect(),
            stop,
            invalid,
            refusals: seen.refusals.refreshed(&seen.pods, &seen.hook_runs, seen.object.metadata.generation, now),
            index,
            templates: Templates::of(&seen.revisions),
        }
    }

    pub(super) fn group(&self, pod: &PodFacts) -> Group {
        match pod.revision() {
            Some(name) if name == self.update.name => Group::Update,
            Some(name) if name == self.current.name => Group::Current,
            Some(_) | None => Group::Stray,
        }
    }

    /// Whether a pod is on the revision of the template, or on its way there.
    pub(super) fn is_updated(&self, pod: &PodFacts) -> bool {
        pod.revision() == Some(&self.revision) && !pod.is_half_changed()
    }

    pub(super) fn min_ready(&self) -> SignedDuration {
        min_ready(self.spec)
    }

    pub(super) fn is_available(&self, pod: &PodFacts) -> bool {
        let answers = || pod.node.as_deref().is_none_or(|node| self.seen.nodes.answers(node));
        !pod.deleting && pod.is_available(self.min_ready(), self.now) && answers()
    }

    /// Whether a pod is on a node that does not answer and does not count as lost: it may serve, and nobody can tell.
    pub(super) fn is_silent(&self, pod: &PodFacts) -> bool {
        pod.node.as_deref().is_some_and(|node| self.seen.nodes.silent_since(node, self.now).is_some())
    }

    /// Pods that are spared because nobody can tell whether they serve.
    pub(super) fn silent(&self) -> Option<Hold> {
        let nodes = &self.seen.nodes;
        let silent: Vec<&str> =
            self.placed.iter().filter_map(|pod| pod.node.as_deref()).filter(|node| nodes.silent_since(node, self.now).is_some()).collect();
        let node = silent.iter().min()?;
        Some(Hold::NodesSilent { pods: silent.len(), node: (*node).to_owned(), until: nodes.lost_at(node), braked: nodes.braked })
    }

    /// Whether the operator itself moves pods to the update revision now.
    pub(super) fn rolls(&self) -> bool {
        self.stop.is_none() && self.spec.update_strategy.kind != UpdateType::OnDelete
    }

    /// How many steps the rollout has.
    pub(super) fn steps(&self) -> usize {
        self.spec.update_strategy.canary.as_ref().map_or(0, |canary| canary.steps.len())
    }

    /// The template of a revision, if it is known.
    pub(super) fn template(&self, name: &str) -> Option<Arc<Value>> {
        let target = [&self.update, &self.current].into_iter().find(|target| target.name == name);
        self.templates.read(name, target.map(|target| &target.template))
    }

    /// Whether pods stay when they are updated.
    pub(super) fn stays(&self) -> bool {
        matches!(self.spec.update_strategy.kind, UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate)
    }

    /// The hooks about pods.
    pub(super) fn gates(&self) -> Gates<'_> {
        let spec = self.spec;
        let pre_delete = spec.pre_delete_update_strategy.as_ref().map(|strategy| (&strategy.hook, strategy.retry));
        let pod_hook = |strategy: &'a Option<PodHook>| strategy.as_ref().map(|strategy| (&strategy.hook, strategy.retry));
        let hook = |place, strategy: Option<(&'a Option<HookStep>, Option<bool>)>| {
            let (step, retry) = strategy?;
            step.as_ref().map(|step| Hook { place, step, retry: retry == Some(true) })
        };
        Gates::new(gate::Facts {
            hooks: [
                hook(Place::PreDelete, pre_delete),
                hook(Place::PreInplace, pod_hook(&spec.pre_inplace_update_strategy)),
                hook(Place::PostInplace, pod_hook(&spec.post_inplace_update_strategy)),
            ],
            runs: &self.runs,
            taken: &self.seen.taken_revision_names,
            templates: &self.seen.hook_templates,
            nodes: &self.seen.nodes,
            version: self.seen.object.metadata.resource_version.as_deref().unwrap_or_default(),
            refusals: &self.refusals,
            now: self.now,
        })
    }

    /// Whether nobody may delete pods before their hook agrees.
    pub(super) fn protects(&self) -> bool {
        protects(self.spec)
    }

    /// What protection is decided from.
    pub(super) fn protection(&self) -> protect::Facts<'_> {
        let metadata = &self.seen.object.metadata;
        protect::Facts {
            uid: metadata.uid.as_deref().unwrap_or_default(),
            finalizers: metadata.finalizers.as_deref().unwrap_or_default(),
            version: metadata.resource_version.as_deref().unwrap_or_default(),
            pods: &self.ours,
            budgets: &self.seen.budgets,
        }
    }

    /// Whether a pod is to go, whatever else happens: the user named it, or wants to empty its node and it is for its hook to say when, or its node is gone.
    pub(super) fn is_named_for_deletion(&self, pod: &PodFacts) -> bool {
        let is_abandoned = || self.abandoned_at(pod).is_some_and(|at| at <= self.now);
        self.named.contains(pod.name.as_str()) || self.is_on_cordoned_node(pod) || is_abandoned()
    }

    /// When a protected pod on a node that does not answer is given up: nobody else may delete it.
    fn abandoned_at(&self, pod: &PodFacts) -> Option<Timestamp> {
        self.seen.nodes.lost_at(pod.node.as_deref()?).filter(|_| self.protects())
    }

    fn is_on_cordoned_node(&self, pod: &PodFacts) -> bool {
        self.protects() && pod.node.as_deref().is_some_and(|node| self.seen.nodes.is_cordoned(node))
    }

    /// What protection has to say.
    pub(super) fn guarded(&self) -> Vec<Hold> {
        if !self.protects() {
            return Vec::new();
        }
        let cordoned: Vec<_> = self.placed.iter().filter(|pod| self.is_on_cordoned_node(pod)).collect();
        let node = cordoned.iter().filter_map(|pod| pod.node.clone()).min();
        let cordoned = node.map(|node| Hold::Cordoned { pods: cordoned.len(), node });
        let rival = self.protection().rival(&self.spec.template.labels());
        cordoned.into_iter().chain(rival.map(|name| Hold::OtherBudget { name: name.to_owned() })).collect()
    }

    /// Pods whose successor has to wait, and until when.
    pub(super) fn ended_too_soon(&self) -> Option<Hold> {
        let soon: Vec<_> = self.placed.iter().filter(|pod| pod.has_ended()).map(|pod| replaceable_at(pod)).collect();
        let until = soon.iter().min().copied()?;
        Some(Hold::EndedTooSoon { pods: soon.len(), until })
    }

    /// Fields that have no effect here, although the user gave them a value.
    pub(super) fn ignored(&self) -> Vec<Hold> {
        let strategy = &self.spec.update_strategy;
        let is_zero = |value: &IntOrString| matches!(value, IntOrString::Int(0)) || *value == IntOrString::String("0%".to_owned());
        let mut ignored = Vec::new();
        if self.stays() && !is_zero(&strategy.max_surge) {
            let why = "pods stay when they are updated";
            ignored.push(Hold::Ignored { field: "spec.updateStrategy.maxSurge", why });
        }
        if !self.stays() && !is_zero(&strategy.max_surge) && self.limits.max_surge == 0 && matches!(self.index, Ok(Some(_))) {
            let why = "spec.podIndex has no more numbers than replicas";
            ignored.push(Hold::Ignored { field: "spec.updateStrategy.maxSurge", why });
        }
        if self.spec.pre_delete_update_strategy.as_ref().is_some_and(|hook| hook.protect == Some(true) && hook.hook.is_none()) {
            let why = "there is no spec.preDeleteUpdateStrategy.hook to ask";
            ignored.push(Hold::Ignored { field: "spec.preDeleteUpdateStrategy.protect", why });
        }
        if strategy.canary.as_ref().is_some_and(|canary| !canary.steps.is_empty()) && !is_zero(&strategy.partition) {
            ignored.push(Hold::Ignored { field: "spec.updateStrategy.partition", why: "the canary steps say how many pods stay" });
        }
        if history_limit(self.spec) > MOST_REVISIONS {
            ignored.push(Hold::Clamped { field: "spec.revisionHistoryLimit", most: MOST_REVISIONS });
        }
        ignored
    }

    /// When something becomes due by itself.
    pub(super) fn wake(&self) -> Option<Timestamp> {
        let ripening = self.placed.iter().filter(|pod| pod.is_ready() && !self.is_available(pod));
        let ripe = ripening.filter_map(|pod| pod.available_at(self.min_ready())).filter(|at| *at > self.now);
        let replaceable = self.placed.iter().filter(|pod| pod.has_ended()).map(|pod| replaceable_at(pod));
        let drained = self.placed.iter().filter_map(|pod| match pod.update.as_deref()?.progress(pod) {
            Progress::Draining(until) => Some(until).filter(|until| *until > self.now),
            Progress::Resting | Progress::Exposed | Progress::Restarting | Progress::Done => None,
        });
        let lost = self.placed.iter().filter_map(|pod| self.seen.nodes.lost_at(pod.node.as_deref()?)).filter(|at| *at > self.now);
        ripe.chain(replaceable).chain(drained).chain(lost).chain(self.canary.wake).min()
    }
}

/// The most revisions that are kept besides those that are needed.
pub(super) const MOST_REVISIONS: usize = 100;

pub(super) fn history_limit(spec: &GameDeploymentSpec) -> usize {
    usize::try_from(spec.revision_history_limit).unwrap_or_default()
}

fn protects(spec: &GameDeploymentSpec) -> bool {
    spec.pre_delete_update_strategy.as_ref().is_some_and(|strategy| strategy.protect == Some(true) && strategy.hook.is_some())
}

fn limits(spec: &GameDeploymentSpec, replicas: usize) -> (Limits, Option<Hold>) {
    let invalid = |field: &str, problem: String| Hold::Invalid { field: field.to_owned(), problem };
    let too_large =
        spec.template.too_large().map(|why| invalid("spec.template", format!("{why}; pods stay on the revision that they have")));
    let no_match = || invalid("spec.template.metadata.labels", "the selector does not match them, so no pod is created".to_owned());
    let mismatch = too_large.or_else(|| (!spec.selector.matches(&spec.template.labels())).then(no_match));
    match Limits::of(&spec.update_strategy, replicas) {
        Ok(limits) => (limits, mismatch),
        Err(invalid) => (Limits { partition: replicas, max_unavailable: 1, max_surge: 0 }, Some(mismatch.unwrap_or(invalid))),
    }
}

/// The name of the stable revision, as far as the status tells.
fn remembered(status: &GameDeploymentStatus) -> &str {
    let current = Some(&status.current_revision).filter(|name| !name.is_empty());
    current.or_else(|| status.canary.as_ref()?.revision.as_ref()).map_or("", String::as_str)
}

/// The revision of the template. One that is too large counts as no change.
fn resolve(seen: &Observed, remembered: &str, collisions: i32) -> revision::Resolved {
    let (template, owner) = (&seen.object.spec.template, seen.object.metadata.name.as_deref().unwrap_or_default());
    if template.too_large().is_some() {
        return revision::stay(remembered, template, &seen.revisions, collisions);
    }
    revision::resolve(owner, template, &seen.revisions, &seen.taken_revision_names, collisions)
}

fn min_ready(spec: &GameDeploymentSpec) -> SignedDuration {
    SignedDuration::from_secs(i64::from(spec.min_ready_seconds.max(0)))
}

/// What steps are decided from. `numbers` are the wanted pods, and those that are updated and available.
fn rollout<'a>(
    seen: &'a Observed,
    status: &GameDeploymentStatus,
    runs: &'a [Arc<HookRun>],
    (update, current): (&'a Target, &Target),
    numbers: (usize, usize),
    now: Now,
) -> Rollout<'a> {
    let strategy = &seen.object.spec.update_strategy;
    let memory = Memory {
        revision: status.update_revision.clone(),
        index: status.current_step_index.and_then(|index| usize::try_from(index).ok()),
        hash: status.current_step_hash.clone(),
        pauses: status.pause_conditions.clone(),
        hook_run: status.canary.as_ref().and_then(|canary| canary.current_step_hook_run.clone()),
    };
    Rollout {
        steps: strategy.canary.as_ref().map_or(&[], |canary| &canary.steps),
        replicas: numbers.0,
        updated: numbers.1,
        paused: strategy.paused,
        paused_for: seen.object.metadata.annotations.as_ref().and_then(|all| all.get(PAUSED_FOR_ANNOTATION)).map(String::as_str),
        version: seen.object.metadata.resource_version.as_deref().unwrap_or_default(),
        update: &update.name,
        is_due: update.name != current.name,
        memory,
        runs,
        taken: &seen.taken_revision_names,
        templates: &seen.hook_templates,
        now,
    }
}

fn stop(spec: &GameDeploymentSpec) -> Option<Hold> {
    let strategy = &spec.update_strategy;
    let executor = strategy.hot_patch.as_ref().and_then(|hot_patch| hot_patch.executor);
    let cannot = strategy.kind == UpdateType::HotPatchUpdate && executor != Some(HotPatchExecutor::Kubelet);
    cannot.then_some(Hold::NotInThisVersion(Feature::HotPatchUpdate))
}

/// The stable revision: the remembered one; for an object that never had one, the oldest that a pod carries.
fn current(remembered: &str, update: &Target, revisions: &[Arc<RevisionFacts>], pods: &[Arc<PodFacts>]) -> Target {
    if remembered == update.name {
        return update.clone();
    }
    let carried = |revision: &&Arc<RevisionFacts>| pods.iter().any(|pod| pod.revision() == Some(&revision.name));
    let mut live = revisions.iter().filter(|revision| !revision.deleting && revision.template.too_large().is_none());
    let known = live.clone().find(|revision| revision.name == remembered);
    let found = known.or_else(|| live.by_ref().filter(carried).min_by_key(|revision| (revision.number, &revision.name)));
    let target =
        |revision: &Arc<RevisionFacts>| Target { name: revision.name.clone(), template: revision.template.clone(), is_leaving: false };
    found.map_or_else(|| update.clone(), target)
}

fn replaceable_at(pod: &PodFacts) -> Timestamp {
    pod.created.checked_add(SHORTEST_LIFE).unwrap_or(Timestamp::MAX)
}
