//! In-place updates of pods in one plan.

use std::collections::BTreeMap;

use api::names::event;
use api::tkex::{ContainerOrder, InPlace, UpdateType, WhenNotPossible};

use super::{Difference, Progress, Terms};
use crate::facts::pod::{Gate, PodFacts};
use crate::plan::{Action, Note, PodPatch};
use crate::refusal::Wanted;
use crate::workload::view::{Target, View};
use crate::workload::{Now, inplace};

/// Writes to pods that are updated in-place.
#[derive(Debug, Default)]
pub(in crate::workload) struct Changes {
    /// Pods that return to their endpoints, or are removed from them.
    pub(in crate::workload) upkeep: Vec<Action>,
    /// Writes that are due for changes that started before.
    due: Vec<Writes>,
    /// Changes that start in this plan.
    started: Vec<Writes>,
    /// Events.
    pub(in crate::workload) notes: Vec<Note>,
    /// Paths that differ too much for an in-place update, by the revision of the pod and the one that it should get.
    obstacles: BTreeMap<(String, String), Vec<String>>,
}

/// How many pods start to change together: the last of them is drained a moment before the first restarts.
const MAX_TOGETHER: usize = 64;

/// Writes to one pod, in order.
#[derive(Debug, Default)]
struct Writes {
    /// It is removed from its endpoints.
    drain: Option<Action>,
    /// It gets other requests and limits.
    resize: Option<Action>,
    /// It gets other images, labels or annotations.
    restart: Option<Action>,
}

impl Writes {
    fn steps(all: impl IntoIterator<Item = Self>) -> [Vec<Action>; 3] {
        let [mut drains, mut resizes, mut restarts] = [const { Vec::new() }; 3];
        for Self { drain, resize, restart } in all {
            drains.extend(drain);
            resizes.extend(resize);
            restarts.extend(restart);
        }
        [drains, resizes, restarts]
    }
}

/// How a pod gets to another revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::workload) enum Manner {
    /// It is deleted, and another pod takes its place.
    Recreate,
    /// It is updated in-place.
    Stay,
    /// It keeps its revision.
    Hold,
}

/// What is left to do for a pod after its upkeep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::workload) enum Upkeep<'p> {
    /// Nothing.
    Done,
    /// A change to this revision is announced, and its hook has approved.
    Waits(&'p str),
    /// The rest of a change is refused.
    Refused,
    /// A part of a change is made, and the pod is in its endpoints.
    Exposed,
}

impl Changes {
    /// Whether there is nothing to write.
    pub(in crate::workload) fn is_empty(&self) -> bool {
        self.upkeep.is_empty() && self.due.is_empty() && self.started.is_empty()
    }

    /// Changes that are under way end before others start, so that pods are out of their endpoints as briefly as
    /// possible. Returns the writes that end changes, and those that start them.
    ///
    /// `proven` pods have the new revision already. The first pods of a rollout start with few others, so that a change
    /// that the API server refuses for all of them is noticed before many pods are drained.
    pub(in crate::workload) fn into_steps(self, proven: usize) -> (Vec<Vec<Action>>, Vec<Vec<Action>>) {
        let mut ending = vec![self.upkeep];
        ending.extend(Writes::steps(self.due));
        let mut starting = Vec::new();
        let mut together = proven.clamp(1, MAX_TOGETHER);
        let mut started = self.started.into_iter().peekable();
        while started.peek().is_some() {
            starting.extend(Writes::steps(started.by_ref().take(together)));
            together = (together * 2).min(MAX_TOGETHER);
        }
        (ending, starting)
    }

    /// How a pod gets to another revision.
    pub(in crate::workload) fn manner(&mut self, view: &View, pod: &PodFacts, target: &Target) -> Manner {
        if !view.stays() {
            return Manner::Recreate;
        }
        if self.obstacles(view, pod, target).is_empty() {
            return Manner::Stay;
        }
        match settings(view).when_not_possible.unwrap_or(WhenNotPossible::Hold) {
            WhenNotPossible::Hold => Manner::Hold,
            WhenNotPossible::Recreate => Manner::Recreate,
        }
    }

    /// Paths that prevent an in-place update; none if it is possible.
    pub(in crate::workload) fn obstacles(&mut self, view: &View, pod: &PodFacts, target: &Target) -> &[String] {
        // Pods without a known revision are compared one by one.
        let revision = pod.revision().unwrap_or(&pod.uid);
        self.obstacles.entry((revision.to_owned(), target.name.clone())).or_insert_with(|| {
            match (view.template(revision), &pod.spec, view.template(&target.name)) {
                (Some(template), _, Some(wanted)) => inplace::obstacles(&template, &wanted, view.seen.lowers_memory),
                (None, Some(spec), Some(wanted)) => inplace::unlike(spec, &wanted, view.seen.lowers_memory),
                (_, _, None) => vec!["the template is not known".to_owned()],
                (None, None, _) => vec!["the template that the pod was made from is not known".to_owned()],
            }
        })
    }

    /// Starts to change a pod.
    pub(in crate::workload) fn start(&mut self, view: &View, pod: &PodFacts, revision: &str, ask_after: bool) {
        let difference = difference(view, pod, revision);
        let now = view.now;
        if view.workload.strategy.kind == UpdateType::HotPatchUpdate {
            let restart = Some(Action::PatchPod(inplace::hot_patch(pod, revision, &difference, now)));
            self.started.push(Writes { restart, ..Writes::default() });
            return;
        }
        let restarts = difference.restarts();
        if restarts && pod.gate == Gate::Absent {
            let message =
                format!("pod {} has no readiness gate {}: its containers restart while it serves", pod.name, api::names::READINESS_GATE);
            self.notes.push(Note { warning: true, reason: event::WITHOUT_GATE, message });
        }
        let settings = settings(view);
        let grace: i64 = settings.grace_period_seconds.unwrap_or_default().into();
        let in_order = settings.policy.unwrap_or(ContainerOrder::DisOrdered) != ContainerOrder::DisOrdered;
        let is_under_way = pod.update.as_deref().is_some_and(|update| update.is_under_way(pod));
        let in_turn = in_order && (difference.images.len() > 1 || is_under_way);
        let first = Action::PatchPod(inplace::start(pod, revision, &difference, Terms { grace, ask_after, in_turn }, now));
        if !restarts || (pod.gate == Gate::Absent && !in_turn) {
            self.started.push(Writes { drain: None, resize: resize(pod, revision, &difference), restart: Some(first) });
            return;
        }
        let mut writes = Writes { drain: Some(first), ..Writes::default() };
        // Without a grace period the next writes follow in the same plan.
        if grace == 0 && !in_order {
            writes.resize = resize(pod, revision, &difference);
            writes.restart = Some(Action::PatchPod(inplace::follow(pod, revision, &difference)));
        }
        self.started.push(writes);
    }

    /// Continues a change that is under way: ends its grace period, or returns the pod to its endpoints.
    pub(in crate::workload) fn upkeep<'p>(&mut self, view: &View, pod: &'p PodFacts) -> Upkeep<'p> {
        let now = view.now;
        let revision = pod.revision().unwrap_or_default();
        let is_refused = || view.refusals.hold_back(&pod.uid, Wanted::Rest(revision));
        match pod.update.as_deref().map_or(Progress::Resting, |update| update.progress(pod)) {
            // A pod does not stay drained for a change that is refused.
            Progress::Draining(_) if is_refused() => {
                self.upkeep.extend(give_up(pod, now).map(Action::PatchPod));
                return Upkeep::Refused;
            }
            Progress::Exposed if is_refused() => return Upkeep::Refused,
            Progress::Exposed => return Upkeep::Exposed,
            Progress::Draining(until) => {
                if until <= now {
                    self.restart(view, pod);
                }
                return Upkeep::Waits(revision);
            }
            Progress::Restarting => {}
            Progress::Resting | Progress::Done => match pod.gate {
                Gate::Unset | Gate::Down(_) => self.upkeep.push(Action::PatchPod(inplace::gate(pod, true, now))),
                Gate::Absent | Gate::Up => {}
            },
        }
        Upkeep::Done
    }

    /// Removes a pod from its endpoints for the rest of its change.
    pub(in crate::workload) fn drain(&mut self, pod: &PodFacts, now: Now) {
        self.upkeep.push(Action::PatchPod(inplace::gate(pod, false, now)));
    }

    fn restart(&mut self, view: &View, pod: &PodFacts) {
        let difference = difference(view, pod, pod.revision().unwrap_or_default());
        let order = settings(view).policy.unwrap_or(ContainerOrder::DisOrdered);
        let due = inplace::next_containers(pod, order, &difference.images);
        if due.is_empty() && !difference.images.is_empty() {
            return;
        }
        let restart = Some(Action::PatchPod(inplace::restart(pod, &difference, &due, view.now)));
        self.due.push(Writes { drain: None, resize: resize(pod, pod.revision().unwrap_or_default(), &difference), restart });
    }
}

fn resize(pod: &PodFacts, revision: &str, difference: &Difference) -> Option<Action> {
    (!difference.resources.is_empty()).then(|| Action::PatchPod(inplace::resize(pod, revision, difference)))
}

/// Returns a pod to its endpoints whose change is refused: with its earlier revision, or, if a part of the change is
/// made, with that part.
fn give_up(pod: &PodFacts, now: Now) -> Option<PodPatch> {
    let runs = pod.containers.iter().all(|container| container.running);
    let halfway = || (pod.gate != Gate::Absent && runs).then(|| inplace::gate(pod, true, now));
    inplace::take_back(pod, now).or_else(halfway)
}

/// Containers that get another image when a pod follows a revision.
pub(in crate::workload) fn changed_containers(view: &View, pod: &PodFacts, revision: &str) -> Vec<String> {
    difference(view, pod, revision).images.into_iter().map(|(name, _)| name).collect()
}

/// Whether following a revision only takes back a change that was announced and not made.
pub(in crate::workload) fn is_return(view: &View, pod: &PodFacts, revision: &str) -> bool {
    let announced = pod.update.as_deref().is_some_and(|update| update.pending.is_some());
    announced && !difference(view, pod, revision).restarts()
}

fn settings(view: &View) -> InPlace {
    view.workload.strategy.in_place_update_strategy.clone().unwrap_or_default()
}

/// What has to change for a pod to follow a revision.
fn difference(view: &View, pod: &PodFacts, revision: &str) -> Difference {
    let Some(template) = view.template(revision) else { return Difference::default() };
    let base = inplace::followed(pod).and_then(|revision| view.template(revision));
    let mut difference = inplace::difference(pod, &template, base.as_deref(), view.templates.metadata_of_others(revision));
    // Only announced images change.
    let pending = pod.update.as_deref().and_then(|update| update.pending.as_ref());
    if let Some(pending) = pending.filter(|pending| pending.revision == revision && !pending.container_images.is_empty()) {
        difference.images.retain(|(name, _)| pending.container_images.contains_key(name));
    }
    difference
}
