//! Hooks that must approve before a pod is deleted or changed.
//!
//! Every deletion and change of a pod passes here. A pod that is to be deleted is marked before its hook is asked, so that every operator makes the same choice. An
//! approval is a HookRun that carries the pod's uid and what it is asked for ([`crate::workload::approval`] says which runs count). It counts as long as that is wanted: a
//! run whose question is no longer asked is deleted before anything else is written about the pod.

mod answer;
mod place;
mod question;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::names::{ASKED_ANNOTATION, DELETING_ANNOTATION, RUN_POD_UID_LABEL};
use api::tkex::{HookRun, HookRunSpec, HookTemplate, Phase};
use jiff::Timestamp;
use serde_json::json;

pub use self::answer::Answer;
pub use self::place::{Hook, Intent, Place};
pub(crate) use self::question::run_name;
use self::question::{base, labels, question};
use self::run::{Asked, asked_again_at, label, phase};
use crate::facts::node::Nodes;
use crate::facts::pod::PodFacts;
use crate::hold::Hold;
use crate::plan::{Action, DeleteReason, NewHookRun, PatchReason, PodPart, PodPatch};
use crate::refusal::Refusals;
use crate::workload::approval;
use crate::workload::ledger::MAX_MOVES;

/// The most questions that one plan asks.
const MAX_QUESTIONS: usize = 500;

/// Whether a pod that is to be deleted may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Its hook has approved, or there is none to ask.
    Now,
    /// Its hook is asked with this plan, or would be.
    Asked,
    /// Its hook has not approved yet.
    Later,
}

/// What gates are decided from.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The hooks.
    pub hooks: [Option<Hook<'a>>; 3],
    /// HookRuns of the workload.
    pub runs: &'a [Arc<HookRun>],
    /// Names of HookRuns that other objects have.
    pub taken: &'a [String],
    /// HookTemplates that the hooks name.
    pub templates: &'a [Arc<HookTemplate>],
    /// Nodes.
    pub nodes: &'a Nodes,
    /// The version of the workload.
    pub version: &'a str,
    /// What the API server has refused.
    pub refusals: &'a Refusals,
    /// The time of the decision.
    pub now: Timestamp,
}

/// A pod that waits for its hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The hook.
    pub place: Place,
    /// The pod.
    pub pod: String,
    /// The phase of its HookRun.
    pub phase: Phase,
    /// Since when it was asked.
    pub since: Timestamp,
    /// Its HookRun.
    pub run: String,
    /// What the hook said last, if it has denied.
    pub said: Option<String>,
}

/// The hooks of one workload, and what one decision wants of them.
#[derive(Debug)]
pub struct Gates<'a> {
    facts: Facts<'a>,
    /// Runs of pods, by the uid of the pod.
    runs: BTreeMap<&'a str, Vec<Asked<'a>>>,
    /// Names of runs that exist or are asked for in this plan, once a hook is asked.
    names: Option<BTreeSet<String>>,
    /// Names of runs whose question is still asked.
    kept: BTreeSet<&'a str>,
    /// Uids of pods that are to be deleted.
    leaving: BTreeSet<String>,
    /// Whether some pods are not decided about in this plan: their runs and marks stay.
    is_cut: bool,
    skips: Vec<Action>,
    marks: Vec<Action>,
    questions: Vec<Action>,
    /// Pods that wait for a hook.
    pub waiting: Vec<Waiting>,
    /// Why a hook cannot be asked.
    pub holds: Vec<Hold>,
    /// When a hook is asked again.
    pub wake: Option<Timestamp>,
}

/// What to write for gates, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Writes {
    /// Runs whose question is no longer asked are deleted.
    pub voids: Vec<Action>,
    /// Those whose pod is gone or being deleted: they mean nothing any more.
    pub leftovers: Vec<Action>,
    /// Pods that stay after all lose their mark.
    pub unmarks: Vec<Action>,
    /// Events about skipped hooks.
    pub skips: Vec<Action>,
    /// Pods that are chosen to be deleted are marked.
    pub marks: Vec<Action>,
    /// Hooks are asked.
    pub questions: Vec<Action>,
    /// `retry` is reset.
    pub resets: Vec<Action>,
}

impl<'a> Gates<'a> {
    /// Groups the runs by pod.
    #[must_use]
    pub fn new(facts: Facts<'a>) -> Self {
        let mut runs: BTreeMap<&str, Vec<Asked>> = BTreeMap::new();
        for asked in facts.runs.iter().filter(|run| run.metadata.deletion_timestamp.is_none()).filter_map(Asked::of) {
            runs.entry(label(asked.run, RUN_POD_UID_LABEL).unwrap_or_default()).or_default().push(asked);
        }
        Self {
            facts,
            runs,
            names: None,
            kept: BTreeSet::new(),
            leaving: BTreeSet::new(),
            is_cut: false,
            skips: Vec::new(),
            marks: Vec::new(),
            questions: Vec::new(),
            waiting: Vec::new(),
            holds: Vec::new(),
            wake: None,
        }
    }

    /// Whether there are any hooks.
    #[must_use]
    pub fn are_any(&self) -> bool {
        self.facts.hooks.iter().any(Option::is_some)
    }

    /// Whether a hook is asked after an in-place update.
    #[must_use]
    pub fn asks_after(&self) -> bool {
        self.at(Place::PostInplace).is_some()
    }

    fn at(&self, place: Place) -> Option<Hook<'a>> {
        self.facts.hooks.iter().flatten().find(|hook| hook.place == place).copied()
    }

    /// Some pods are not decided about in this plan.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// A pod is deleted: its mark stays.
    pub fn leave(&mut self, pod: &PodFacts) {
        self.leaving.insert(pod.uid.clone());
    }

    /// Deletes a pod. One whose hook is skipped is deleted only at the version that was seen: it may serve since.
    #[must_use]
    pub fn delete(&self, pod: &PodFacts, why: DeleteReason) -> Action {
        let version = matches!(self.answer(pod, Intent::Delete), Answer::Skipped(_)).then_some(pod.resource_version);
        Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone(), why, version }
    }

    /// Reports that the hook of a pod is skipped.
    pub fn skip(&mut self, pod: &PodFacts, why: &'static str) {
        self.skips.push(Action::SkipHook { name: pod.name.clone(), uid: pod.uid.clone(), why: why.to_owned() });
    }

    /// The intent stands: the run that asks about it is kept.
    pub fn keep(&mut self, pod: &PodFacts, intent: Intent) {
        let Some(hook) = self.hook(intent) else { return };
        if let Some(run) = self.run(pod, &hook, intent) {
            self.keep_run(pod, run);
        }
    }

    fn keep_run(&mut self, pod: &PodFacts, asked: Asked<'a>) {
        let (run, name, place) = (asked.run, asked.name(), asked.place);
        self.kept.insert(name);
        if place == Place::PreDelete && asked.target.is_none() {
            self.leaving.insert(pod.uid.clone());
        }
        if asked.is_approval(pod) {
            return;
        }
        let phase = phase(run);
        if phase.is_final() {
            self.wake_at(asked_again_at(&asked));
        }
        let status = run.status.as_ref();
        let since = run.metadata.creation_timestamp.as_ref().map_or(self.facts.now, |time| time.0);
        let told = || status.and_then(|status| status.message.clone());
        let said = if phase == Phase::Successful { Some(approval::OTHER_QUESTION.to_owned()) } else { told() };
        self.waiting.push(Waiting { place, pod: pod.name.clone(), phase, since, run: name.to_owned(), said });
    }

    /// A pod is to be deleted: says whether it may be, and asks its hook if that is due.
    pub fn let_leave(&mut self, pod: &PodFacts) -> Leaving {
        let (answer, run) = self.answer_and_run(pod, Intent::Delete);
        match answer {
            Answer::Free => return Leaving::Now,
            Answer::Skipped(why) => {
                self.skip(pod, why);
                return Leaving::Now;
            }
            Answer::Approved => {
                self.keep(pod, Intent::Delete);
                return Leaving::Now;
            }
            Answer::Asking | Answer::Denied(_) | Answer::Open | Answer::Again => {}
        }
        let is_due = matches!(answer, Answer::Open | Answer::Again);
        let asked = is_due && self.ask(pod, Intent::Delete, &[]);
        if let Some(run) = run.filter(|_| !asked) {
            self.keep_run(pod, run);
        }
        if is_due { Leaving::Asked } else { Leaving::Later }
    }

    /// Marks a pod that is to be deleted with what its hook is asked.
    fn choose(&mut self, pod: &PodFacts, question: &HookRunSpec) {
        self.leaving.insert(pod.uid.clone());
        if !is_marked(pod) || !approval::is_on_mark(pod, question) {
            self.marks.push(mark(pod, Some(question)));
        }
    }

    fn wake_at(&mut self, at: Timestamp) {
        if at > self.facts.now {
            self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
        }
    }

    /// Asks the hook. Says whether that is possible.
    pub fn ask(&mut self, pod: &PodFacts, intent: Intent, changed: &[String]) -> bool {
        let Some(hook) = self.hook(intent) else { return false };
        if self.questions.len() >= MAX_QUESTIONS {
            self.is_cut = true;
            return false;
        }
        let spec = match question(self.facts.templates, &hook, pod, changed) {
            Ok(spec) => spec,
            Err(problem) => {
                let hold = Hold::GateNotPossible { field: hook.place.field(), problem };
                if !self.holds.contains(&hold) {
                    self.holds.push(hold);
                }
                return false;
            }
        };
        if intent == Intent::Delete {
            self.choose(pod, &spec);
        }
        let attempt = self.run(pod, &hook, intent).map_or(0, |asked| asked.attempt).saturating_add(1);
        let base = base(pod, &hook);
        let facts = self.facts;
        let names = self.names.get_or_insert_with(|| {
            facts.runs.iter().filter_map(|run| run.metadata.name.clone()).chain(facts.taken.iter().cloned()).collect()
        });
        let mut free = std::iter::once(base.clone()).chain((1..).map(|number| format!("{base}.{number}")));
        let Some(name) = free.find(|name| names.insert(name.clone())) else { return false };
        let labels = labels(pod, &hook, intent, attempt);
        let waiting = Waiting {
            place: hook.place,
            pod: pod.name.clone(),
            phase: Phase::Pending,
            since: self.facts.now,
            run: name.clone(),
            said: None,
        };
        self.waiting.push(waiting);
        self.questions.push(Action::CreateHookRun(NewHookRun { name, labels, spec }));
        true
    }

    /// What to write, once everything has been decided. `pods` are all that the workload has, `seen` also those that it releases.
    #[must_use]
    pub fn writes(&mut self, pods: &[Arc<PodFacts>], seen: &[Arc<PodFacts>]) -> Writes {
        let is_cut = self.is_cut;
        let is_void = |asked: &&Asked| !is_cut && !self.kept.contains(asked.name());
        let void = |asked: &Asked| Action::DeleteHookRun {
            name: asked.name().to_owned(),
            uid: asked.run.metadata.uid.clone().unwrap_or_default(),
            pod: label(asked.run, RUN_POD_UID_LABEL).map(str::to_owned),
        };
        let asked_about = |pod: &Arc<PodFacts>| self.runs.get_key_value(pod.uid.as_str()).map(|(uid, _)| *uid);
        let there: BTreeSet<&str> = seen.iter().filter(|pod| !pod.deleting).filter_map(asked_about).collect();
        let (of_pods, others): (Vec<_>, Vec<_>) = self.runs.iter().partition(|(uid, _)| there.contains(**uid));
        let [mut voids, mut leftovers]: [Vec<Action>; 2] =
            [of_pods, others].map(|runs| runs.into_iter().flat_map(|(_, runs)| runs).filter(is_void).map(void).collect());
        // However busy the workload is, they do not pile up.
        voids.extend(leftovers.split_off(leftovers.len().min(MAX_MOVES)));
        let marks = std::mem::take(&mut self.marks);
        let is_spared = |pod: &&Arc<PodFacts>| !is_cut && is_marked(pod) && pod.is_active() && !self.leaving.contains(&pod.uid);
        let unmarks = pods.iter().filter(is_spared).map(|pod| mark(pod, None)).collect();
        let version = self.facts.version;
        let reset = |hook: &Hook| Action::ResetRetry { field: hook.place.field().to_owned(), version: version.to_owned() };
        let resets = self.facts.hooks.iter().flatten().filter(|hook| hook.retry).map(reset).take(1).collect();
        let (skips, questions) = (std::mem::take(&mut self.skips), std::mem::take(&mut self.questions));
        Writes { voids, leftovers, unmarks, skips, marks, questions, resets }
    }

    /// Holds about pods that wait, one for each hook.
    #[must_use]
    pub fn waits(&self) -> Vec<Hold> {
        let mut holds = self.holds.clone();
        for place in Place::ALL {
            let all: Vec<&Waiting> = self.waiting.iter().filter(|waiting| waiting.place == place).collect();
            if let Some(first) = all.iter().min_by_key(|waiting| (waiting.since, &waiting.pod)) {
                let said = first.said.clone().filter(|_| first.phase.is_final());
                let (pod, run, since) = (first.pod.clone(), first.run.clone(), first.since);
                holds.push(Hold::WaitingForHook { field: place.field(), pods: all.len(), pod, since, run, said });
            }
        }
        holds
    }
}

/// Whether a pod is marked for deletion.
#[must_use]
pub fn is_marked(pod: &PodFacts) -> bool {
    pod.annotations.get(DELETING_ANNOTATION).is_some_and(|value| value == "true")
}

/// Marks a pod that is to be deleted when its hook approves this question, or removes the mark.
fn mark(pod: &PodFacts, question: Option<&HookRunSpec>) -> Action {
    let (is_to_go, asked) = (question.map(|_| "true"), question.map(approval::fingerprint));
    let body = json!({ "metadata": { "uid": pod.uid, "annotations": { DELETING_ANNOTATION: is_to_go, ASKED_ANNOTATION: asked } } });
    let why = if question.is_some() { PatchReason::Mark } else { PatchReason::Unmark };
    Action::PatchPod(PodPatch { name: pod.name.clone(), uid: pod.uid.clone(), why, part: PodPart::Main, revision: None, body })
}
