//! What is seen of one workload, put in order: which pods it has, on which revision each is, and which of them are available.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::names::PAUSED_FOR_ANNOTATION;
use api::template::PodTemplate;
use api::tkex::{HookRun, HotPatchExecutor, PodIndex, UpdateType};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::adopt::adopt;
use super::canary::{self, CanaryState, Rollout};
use super::gate::{self, Gates};
use super::inplace::{self, Progress};
use super::limits::Limits;
use super::revision::{self, Resolved};
use super::templates::Templates;
use super::{Now, Seen, Workload, approval, index, protect};
use crate::facts::node::Nodes;
use crate::facts::pod::PodFacts;
use crate::facts::revision::RevisionFacts;
use crate::hold::{Feature, Hold};
use crate::plan::{Action, NewPod};
use crate::refusal::{Refusals, Wanted};

/// A pod that ended sooner after its creation is replaced only then: a pod that cannot live must not be replaced in a hot loop.
const SHORTEST_LIFE: SignedDuration = SignedDuration::from_secs(10);

/// A revision that pods can be made from.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// Its template.
    pub template: PodTemplate,
    /// Whether its revision is being deleted: no pod is made from it.
    pub is_leaving: bool,
}

/// The group of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// On the revision of the template.
    Update,
    /// On the stable revision, which is another one.
    Current,
    /// On neither.
    Stray,
}

/// What is seen of one workload, put in order.
#[derive(Debug)]
pub struct View<'a> {
    /// The object.
    pub workload: Workload<'a>,
    /// What is seen around it.
    pub seen: &'a Seen,
    /// The time of the decision.
    pub now: Now,
    /// How many pods are wanted.
    pub replicas: usize,
    /// How many pods may be kept, unavailable, or too many.
    pub limits: Limits,
    /// The revision that pods get.
    pub update: Target,
    /// The stable revision.
    pub current: Target,
    /// The name of the template's revision. Pods get another one only while a canary rolls back.
    pub revision: String,
    /// The progress of the canary.
    pub canary: CanaryState,
    pub(super) collisions: i32,
    pub(super) adoptions: Vec<Action>,
    pub(super) revision_actions: Vec<Action>,
    /// HookRuns that were made for this object and no other.
    pub(super) runs: Vec<Arc<HookRun>>,
    /// Every pod of the object, deleted and ended ones included.
    pub ours: Vec<Arc<PodFacts>>,
    /// Pods that fill a place, in the order of the kind: active ones, and ended ones that are not replaced yet.
    pub placed: Vec<Arc<PodFacts>>,
    /// Pods that ended and are to be replaced.
    pub(super) ended: Vec<Arc<PodFacts>>,
    /// Names of pods that the user wants deleted.
    pub(super) named: BTreeSet<&'a str>,
    /// Why the rollout stands still although its type is one that moves pods.
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

/// Sorts pods; what the arguments are says [`super::Kind::order`].
pub(super) type Order = fn(&mut [Arc<PodFacts>], &[Arc<PodFacts>], &Nodes, Now);

impl<'a> View<'a> {
    pub(super) fn of(workload: Workload<'a>, seen: &'a Seen, now: Now, order: Order) -> Self {
        let replicas = usize::try_from(workload.replicas).unwrap_or_default();
        let (limits, invalid) = limits(&workload, replicas);
        let index = index::range(workload.index, workload.metadata.annotations.as_ref());
        // Surge pods need numbers too.
        let numbers = index.as_ref().ok().and_then(|range| Some(index::size(range.as_ref()?)));
        let limits = numbers.map_or(limits, |numbers| limits.with_surge_of(numbers.saturating_sub(replicas)));
        let (ours, mut adoptions) = adopt(workload.uid(), workload.selector, workload.protects(), &seen.pods);
        let orphans = seen.revisions.iter().filter(|revision| revision.controller.is_none() && !revision.deleting);
        adoptions.extend(orphans.map(|revision| Action::AdoptRevision { name: revision.name.clone(), uid: revision.uid.clone() }));
        let Resolved { name, template, is_leaving, collisions, actions: revision_actions } = resolve(&workload, seen);
        let update = Target { name, template, is_leaving };
        let current = current(workload.memory.current_revision, &update, &seen.revisions, &ours);
        let (placed, ended) = places(&ours, &seen.nodes, now, order);
        let owner = approval::Owner { group: workload.group, kind: workload.kind, name: workload.name(), uid: workload.uid() };
        let runs = approval::runs_of(&owner, &seen.hook_runs);
        let updated = ours.iter().filter(|pod| is_updated_and_available(pod, &update.name, workload.min_ready, now)).count();
        let canary = canary::state(&rollout(&workload, seen, &runs, (&update, &current), (replicas, updated), now));
        let revision = update.name.clone();
        let update = if canary.rolls_back { current.clone() } else { update };
        let partition = if current.name == update.name { 0 } else { canary.partition.unwrap_or(limits.partition) };
        let leaving = update.is_leaving.then(|| Hold::RevisionLeaving { name: update.name.clone() });
        let stopped = canary.stop.clone().filter(|_| !canary.rolls_back);
        let stop = invalid.clone().or(leaving).or(stopped).or_else(|| not_supported(&workload));
        Self {
            now,
            replicas,
            limits: Limits { partition, ..limits },
            update,
            current,
            revision,
            canary,
            collisions,
            adoptions,
            revision_actions,
            runs,
            ours,
            placed,
            ended,
            named: workload.pods_to_delete.iter().map(String::as_str).collect(),
            stop,
            invalid,
            refusals: seen.refusals.refreshed(&seen.pods, &seen.hook_runs, workload.metadata.generation, now),
            index,
            templates: Templates::of(&seen.revisions),
            seen,
            workload,
        }
    }

    /// The group of a pod.
    #[must_use]
    pub fn group(&self, pod: &PodFacts) -> Group {
        match pod.revision() {
            Some(name) if name == self.update.name => Group::Update,
            Some(name) if name == self.current.name => Group::Current,
            Some(_) | None => Group::Stray,
        }
    }

    /// Whether a pod counts for the stable revision: not if the user wants it deleted, nor if its change back to that
    /// revision is refused, because then it gets the label of the revision back that it has.
    pub(super) fn is_kept(&self, pod: &PodFacts) -> bool {
        let is_draining = || pod.update.as_deref().is_some_and(|update| matches!(update.progress(pod), Progress::Draining(_)));
        let is_refused = || self.refusals.hold_back(&pod.uid, Wanted::Rest(&self.current.name));
        let goes_back = || is_draining() && is_refused() && inplace::take_back(pod, self.now).is_some();
        self.group(pod) == Group::Current && !self.is_named_for_deletion(pod) && !goes_back()
    }

    /// Whether a pod is on the revision of the template, or on its way there.
    pub(super) fn is_updated(&self, pod: &PodFacts) -> bool {
        pod.revision() == Some(&self.revision) && !pod.is_half_changed()
    }

    /// Whether a pod is available.
    #[must_use]
    pub fn is_available(&self, pod: &PodFacts) -> bool {
        let answers = || pod.node.as_deref().is_none_or(|node| self.seen.nodes.answers(node));
        !pod.deleting && pod.is_available(self.workload.min_ready, self.now) && answers()
    }

    /// Whether a pod is on a node that does not answer and does not count as lost: it may still serve.
    pub(super) fn is_silent(&self, pod: &PodFacts) -> bool {
        pod.node.as_deref().is_some_and(|node| self.seen.nodes.silent_since(node, self.now).is_some())
    }

    /// Whether the operator itself moves pods to the update revision now.
    pub(super) fn rolls(&self) -> bool {
        self.stop.is_none() && self.workload.strategy.kind != UpdateType::OnDelete
    }

    /// How many revisions are kept that nothing needs, as the user says.
    pub(super) fn history_limit(&self) -> usize {
        usize::try_from(self.workload.history_limit).unwrap_or_default()
    }

    /// How many steps the rollout has.
    pub(super) fn steps(&self) -> usize {
        self.workload.strategy.canary.as_ref().map_or(0, |canary| canary.steps.len())
    }

    /// The template of a revision, if it is known.
    pub(super) fn template(&self, name: &str) -> Option<Arc<Value>> {
        let target = [&self.update, &self.current].into_iter().find(|target| target.name == name);
        self.templates.read(name, target.map(|target| &target.template))
    }

    /// Whether pods stay when they are updated.
    pub(super) fn stays(&self) -> bool {
        matches!(self.workload.strategy.kind, UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate)
    }

    /// A new pod with this name, of which `id` is the end.
    #[must_use]
    pub fn new_pod(&self, target: &Target, name: String, id: String) -> NewPod {
        NewPod {
            name,
            id,
            revision: target.name.clone(),
            template: target.template.clone(),
            gated: self.stays() && !self.workload.ungated,
            index: None,
            protected: self.protects(),
            successor: false,
        }
    }

    /// The hooks about pods.
    pub(super) fn gates(&self) -> Gates<'_> {
        Gates::new(gate::Facts {
            hooks: self.workload.hooks,
            runs: &self.runs,
            taken: &self.seen.taken_revision_names,
            templates: &self.seen.hook_templates,
            nodes: &self.seen.nodes,
            version: self.workload.version(),
            refusals: &self.refusals,
            now: self.now,
        })
    }

    /// Whether only the operator may delete pods, when their hook has approved.
    #[must_use]
    pub fn protects(&self) -> bool {
        self.workload.protects()
    }

    /// What protection is decided from.
    pub(super) fn protection(&self) -> protect::Facts<'_> {
        protect::Facts {
            uid: self.workload.uid(),
            finalizers: self.workload.finalizers(),
            version: self.workload.version(),
            pods: &self.ours,
            budgets: &self.seen.budgets,
        }
    }

    /// Whether a pod is to be deleted, whatever else happens: the user named it or drains its node (then its hook says when), or its node is gone.
    pub(super) fn is_named_for_deletion(&self, pod: &PodFacts) -> bool {
        let is_abandoned = || self.abandoned_at(pod).is_some_and(|at| at <= self.now);
        self.named.contains(pod.name.as_str()) || self.is_on_cordoned_node(pod) || is_abandoned()
    }

    /// When a protected pod on a node that does not answer is given up: no one but the operator may delete it.
    fn abandoned_at(&self, pod: &PodFacts) -> Option<Timestamp> {
        self.seen.nodes.lost_at(pod.node.as_deref()?).filter(|_| self.protects())
    }

    pub(super) fn is_on_cordoned_node(&self, pod: &PodFacts) -> bool {
        self.protects() && pod.node.as_deref().is_some_and(|node| self.seen.nodes.is_cordoned(node))
    }

    /// When something becomes due without an event.
    pub(super) fn wake(&self) -> Option<Timestamp> {
        let ripening = self.placed.iter().filter(|pod| pod.is_ready() && !self.is_available(pod));
        let ripe = ripening.filter_map(|pod| pod.available_at(self.workload.min_ready)).filter(|at| *at > self.now);
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

fn limits(workload: &Workload, replicas: usize) -> (Limits, Option<Hold>) {
    let template = workload.template;
    let invalid = |field: &str, problem: String| Hold::Invalid { field: field.to_owned(), problem };
    let too_large = template.too_large().map(|why| invalid("spec.template", format!("{why}; pods stay on the revision that they have")));
    let no_match = || invalid("spec.template.metadata.labels", "the selector does not match them, so no pod is created".to_owned());
    let mismatch = too_large.or_else(|| (!workload.selector.matches(&template.labels())).then(no_match));
    match Limits::of(&workload.strategy, replicas) {
        Ok(limits) => (limits, mismatch),
        Err(invalid) => (Limits { partition: replicas, max_unavailable: 1, max_surge: 0 }, Some(mismatch.unwrap_or(invalid))),
    }
}

/// Pods that fill a place, in the order of the kind, and pods that ended and are to be replaced.
fn places(ours: &[Arc<PodFacts>], nodes: &Nodes, now: Now, order: Order) -> (Vec<Arc<PodFacts>>, Vec<Arc<PodFacts>>) {
    let (mut placed, mut ended) = (Vec::new(), Vec::new());
    for pod in ours.iter().filter(|pod| !pod.deleting) {
        let fills = if pod.has_ended() { replaceable_at(pod) > now } else { true };
        if fills { placed.push(Arc::clone(pod)) } else { ended.push(Arc::clone(pod)) }
    }
    order(&mut placed, ours, nodes, now);
    ended.sort_by(|left, right| left.name.cmp(&right.name));
    (placed, ended)
}

fn is_updated_and_available(pod: &PodFacts, update: &str, min_ready: SignedDuration, now: Now) -> bool {
    pod.revision() == Some(update) && !pod.deleting && !pod.is_half_changed() && pod.is_available(min_ready, now)
}

/// The revision of the template. One that is too large counts as no change.
fn resolve(workload: &Workload, seen: &Seen) -> Resolved {
    let (template, collisions) = (workload.template, workload.memory.collisions);
    if template.too_large().is_some() {
        return revision::stay(workload.memory.current_revision, template, &seen.revisions, collisions);
    }
    revision::resolve(workload.name(), template, &seen.revisions, &seen.taken_revision_names, collisions)
}

/// What canary steps are decided from. `numbers` are the wanted pods, and those that are updated and available.
fn rollout<'a>(
    workload: &'a Workload,
    seen: &'a Seen,
    runs: &'a [Arc<HookRun>],
    (update, current): (&'a Target, &Target),
    numbers: (usize, usize),
    now: Now,
) -> Rollout<'a> {
    let strategy = &workload.strategy;
    Rollout {
        steps: strategy.canary.as_ref().map_or(&[], |canary| &canary.steps),
        replicas: numbers.0,
        updated: numbers.1,
        paused: strategy.paused,
        paused_for: workload.metadata.annotations.as_ref().and_then(|all| all.get(PAUSED_FOR_ANNOTATION)).map(String::as_str),
        version: workload.version(),
        update: &update.name,
        is_due: update.name != current.name,
        memory: workload.memory.rollout.clone(),
        runs,
        taken: &seen.taken_revision_names,
        templates: &seen.hook_templates,
        now,
    }
}

/// What this version cannot do.
fn not_supported(workload: &Workload) -> Option<Hold> {
    let executor = workload.strategy.hot_patch.as_ref().and_then(|hot_patch| hot_patch.executor);
    let cannot = workload.strategy.kind == UpdateType::HotPatchUpdate && executor != Some(HotPatchExecutor::Kubelet);
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

pub(super) fn replaceable_at(pod: &PodFacts) -> Timestamp {
    pod.created.checked_add(SHORTEST_LIFE).unwrap_or(Timestamp::MAX)
}
