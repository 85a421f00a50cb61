//! Hooks that must agree before a pod goes or changes.
//!
//! Whoever wants to delete or change a pod looks here first. A pod that is to go is marked before its hook is asked, so that every operator makes the same choice. An
//! approval is a HookRun that carries the pod's uid and what it is asked for ([`crate::workload::approval`] says which runs count). It holds as long as that is wanted: runs whose
//! question nobody repeats are deleted before anything else is said about the pod.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::names::{
    ASKED_ANNOTATION, DELETING_ANNOTATION, INSTANCE_ID_LABEL, RUN_ATTEMPT_LABEL, RUN_INSTANCE_LABEL, RUN_POD_UID_LABEL, RUN_REVISION_LABEL,
    RUN_TARGET_LABEL, RUN_TEMPLATE_LABEL, RUN_TYPE_LABEL, RUN_TYPE_POST_INPLACE, RUN_TYPE_PRE_DELETE, RUN_TYPE_PRE_INPLACE,
};
use api::tkex::{HookArgument, HookRun, HookRunSpec, HookStep, HookTemplate, Phase};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::facts::node::Nodes;
use crate::facts::pod::{self, PodFacts};
use crate::hash::fnv;
use crate::hold::Hold;
use crate::hookrun;
use crate::plan::{Action, DeleteReason, NewHookRun, PatchReason, PodPart, PodPatch};
use crate::refusal::Refusals;
use crate::workload::approval;

/// How long a pod is left alone after its hook said no for the first time; twice as long after each further no.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// The longest time between two questions.
const MAX_PAUSE: SignedDuration = SignedDuration::from_mins(5);
/// How long an approval holds when the deletion that it was for was refused: then the hook is asked again.
const MAX_APPROVAL_AGE: SignedDuration = SignedDuration::from_secs(30);
/// The most questions that one plan asks.
const MAX_QUESTIONS: usize = 500;
/// The most arguments that a HookRun can have.
const MAX_ARGUMENTS: usize = 64;
/// The longest value of a label.
const MAX_LABEL_LENGTH: usize = 63;
/// The longest name of a run, leaving room for a number.
const MAX_NAME_LENGTH: usize = 240;

/// The place of a hook in a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Before a pod is deleted.
    PreDelete,
    /// Before a pod is updated in place.
    PreInplace,
    /// After a pod was updated in place.
    PostInplace,
}

impl Place {
    /// All places.
    pub const ALL: [Self; 3] = [Self::PreDelete, Self::PreInplace, Self::PostInplace];

    /// Its field.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::PreDelete => "preDeleteUpdateStrategy",
            Self::PreInplace => "preInplaceUpdateStrategy",
            Self::PostInplace => "postInplaceUpdateStrategy",
        }
    }

    /// A word for metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::PreDelete => "preDelete",
            Self::PreInplace => "preInplace",
            Self::PostInplace => "postInplace",
        }
    }

    /// The place of the hook that a HookRun is of, if it is about a pod.
    #[must_use]
    pub fn of(run: &HookRun) -> Option<Self> {
        let kind = label(run, RUN_TYPE_LABEL);
        Self::ALL.into_iter().find(|place| kind == Some(place.label()))
    }

    fn label(self) -> &'static str {
        match self {
            Self::PreDelete => RUN_TYPE_PRE_DELETE,
            Self::PreInplace => RUN_TYPE_PRE_INPLACE,
            Self::PostInplace => RUN_TYPE_POST_INPLACE,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::PreDelete => "predelete",
            Self::PreInplace => "preinplace",
            Self::PostInplace => "postinplace",
        }
    }
}

/// A hook of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Hook<'a> {
    /// Where it is.
    pub place: Place,
    /// What it asks.
    pub step: &'a HookStep,
    /// Whether pods whose hook said no are asked again at once.
    pub retry: bool,
}

/// What is wanted of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intent<'a> {
    /// That it goes.
    Delete,
    /// That it gets this revision and stays.
    Update(&'a str),
    /// That it serves on this revision, which it got in place.
    Updated(&'a str),
}

/// What the hook says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nobody has to be asked.
    Free,
    /// Nobody can be asked: why.
    Skipped(&'static str),
    /// Yes.
    Yes,
    /// Nothing yet.
    Asking,
    /// It has not been asked.
    Open,
    /// No, and it is asked again then.
    No(Timestamp),
    /// No, and it is to be asked again.
    Again,
}

/// Whether a pod that is to go may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Its hook has agreed, or need not.
    Now,
    /// Its hook is asked with this plan, or would be.
    Asked,
    /// Its hook has not agreed yet.
    Later,
}

/// What gates are decided from.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The hooks.
    pub hooks: [Option<Hook<'a>>; 3],
    /// HookRuns of the workload.
    pub runs: &'a [Arc<HookRun>],
    /// Names of HookRuns that others use.
    pub taken: &'a [String],
    /// HookTemplates that the hooks name.
    pub templates: &'a [Arc<HookTemplate>],
    /// Nodes.
    pub nodes: &'a Nodes,
    /// The version of the workload.
    pub version: &'a str,
    /// What the API server has refused.
    pub refusals: &'a Refusals,
    /// The moment.
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
    /// What the hook said last.
    pub said: Option<String>,
}

/// What a run was asked, read from its labels once.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    run: &'a Arc<HookRun>,
    place: Place,
    template: Option<&'a str>,
    target: Option<&'a str>,
    attempt: u32,
}

impl<'a> Asked<'a> {
    fn of(run: &'a Arc<HookRun>) -> Option<Self> {
        let (template, target) = (label(run, RUN_TEMPLATE_LABEL), label(run, RUN_TARGET_LABEL));
        Some(Self { run, place: Place::of(run)?, template, target, attempt: attempt(run) })
    }

    fn name(&self) -> &'a str {
        self.run.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether it approves, and was asked what the mark on the pod says.
    fn is_approval(&self, pod: &PodFacts) -> bool {
        let is_of_mark = self.place == Place::PreDelete && self.target.is_none();
        phase(self.run) == Phase::Successful && (!is_of_mark || approval::answers_mark(pod, &self.run.spec))
    }
}

/// The hooks of one workload, and what one decision wants of them.
#[derive(Debug)]
pub struct Gates<'a> {
    facts: Facts<'a>,
    /// Runs of pods, by the uid of the pod.
    runs: BTreeMap<&'a str, Vec<Asked<'a>>>,
    /// Names of runs that exist or are asked for in this plan, once a hook is asked.
    names: Option<BTreeSet<String>>,
    /// Names of runs whose question stands.
    kept: BTreeSet<&'a str>,
    /// Uids of pods that are to go.
    leaving: BTreeSet<String>,
    /// Whether some pods were not looked at: nothing can be said about what they were asked.
    is_cut: bool,
    skips: Vec<Action>,
    marks: Vec<Action>,
    questions: Vec<Action>,
    /// Pods that wait.
    pub waiting: Vec<Waiting>,
    /// Why nobody can be asked.
    pub holds: Vec<Hold>,
    /// When somebody is to be asked again.
    pub wake: Option<Timestamp>,
}

/// What to write for gates, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Writes {
    /// Runs whose question nobody repeats.
    pub voids: Vec<Action>,
    /// Pods that stay after all.
    pub unmarks: Vec<Action>,
    /// What is told before anything is done.
    pub skips: Vec<Action>,
    /// Pods that are chosen to go.
    pub marks: Vec<Action>,
    /// Questions.
    pub questions: Vec<Action>,
    /// Flags that have done their work.
    pub resets: Vec<Action>,
}

impl<'a> Gates<'a> {
    /// Puts the runs in order.
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

    /// Whether a hook is asked after an update in place.
    #[must_use]
    pub fn asks_after(&self) -> bool {
        self.at(Place::PostInplace).is_some()
    }

    fn at(&self, place: Place) -> Option<Hook<'a>> {
        self.facts.hooks.iter().flatten().find(|hook| hook.place == place).copied()
    }

    /// The hook that has to agree.
    fn hook(&self, intent: Intent) -> Option<Hook<'a>> {
        match intent {
            Intent::Delete => self.at(Place::PreDelete),
            Intent::Update(_) => self.at(Place::PreInplace).or_else(|| self.at(Place::PreDelete)),
            Intent::Updated(_) => self.at(Place::PostInplace),
        }
    }

    /// The newest run that asks this. A pod is marked before its hook is asked whether it may go: one that is not marked was not asked.
    fn run(&self, pod: &PodFacts, hook: &Hook, intent: Intent) -> Option<Asked<'a>> {
        let runs = self.runs.get(pod.uid.as_str()).filter(|_| intent != Intent::Delete || is_marked(pod))?;
        let (target, template) = (target(intent), text(&hook.step.template_name));
        let is_it = |asked: &&Asked| asked.place == hook.place && asked.template == Some(&*template) && asked.target == target;
        runs.iter().filter(is_it).max_by_key(|asked| (asked.attempt, asked.name())).copied()
    }

    /// What the hook says to an intent.
    #[must_use]
    pub fn look(&self, pod: &PodFacts, intent: Intent) -> Answer {
        self.look_at(pod, intent).0
    }

    /// What the hook says to an intent, and the run that says it.
    fn look_at(&self, pod: &PodFacts, intent: Intent) -> (Answer, Option<Asked<'a>>) {
        let Some(hook) = self.hook(intent) else { return (Answer::Free, None) };
        if let Some(why) = self.skipped(pod) {
            return (Answer::Skipped(why), None);
        }
        let run = self.run(pod, &hook, intent);
        (run.map_or(Answer::Open, |asked| self.read(pod, &hook, intent, &asked)), run)
    }

    /// What a run says.
    fn read(&self, pod: &PodFacts, hook: &Hook, intent: Intent, asked: &Asked) -> Answer {
        let run = asked.run;
        if is_of_another_life(run, pod) {
            return Answer::Again;
        }
        if !phase(run).is_final() {
            return Answer::Asking;
        }
        if asked.is_approval(pod) {
            let is_old = || ended(run).and_then(|ended| ended.checked_add(MAX_APPROVAL_AGE).ok()).is_none_or(|end| end <= self.facts.now);
            let is_retried = intent == Intent::Delete && self.facts.refusals.is_deletion_refused(&pod.uid);
            return if is_retried && is_old() { Answer::Again } else { Answer::Yes };
        }
        let again = asked_again_at(asked);
        // As long as the flag cannot be taken back it says nothing.
        let is_retried = hook.retry && !self.facts.refusals.has("reset_retry");
        if is_retried || again <= self.facts.now { Answer::Again } else { Answer::No(again) }
    }

    /// Why a pod need not agree: it has nothing to lose, or nobody could ask it.
    fn skipped(&self, pod: &PodFacts) -> Option<&'static str> {
        let is_lost = || pod.node.as_deref().is_some_and(|node| self.facts.nodes.is_lost(node, self.facts.now));
        match pod.phase {
            pod::Phase::Running if pod.is_crash_looping() => Some("it crashes again and again"),
            pod::Phase::Running if is_lost() => Some("its node is lost"),
            pod::Phase::Running => None,
            pod::Phase::Pending | pod::Phase::Unknown | pod::Phase::Succeeded | pod::Phase::Failed => Some("it does not run"),
        }
    }

    /// Some pods are not looked at in this plan.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// A pod goes, and takes its mark with it.
    pub fn leave(&mut self, pod: &PodFacts) {
        self.leaving.insert(pod.uid.clone());
    }

    /// Deletes a pod. One that could not be asked must be what was seen: it may have come to serve since.
    #[must_use]
    pub fn delete(&self, pod: &PodFacts, why: DeleteReason) -> Action {
        let version = matches!(self.look(pod, Intent::Delete), Answer::Skipped(_)).then_some(pod.resource_version);
        Action::DeletePod { name: pod.name.clone(), uid: pod.uid.clone(), why, version }
    }

    /// Tells that a pod goes on without its hook.
    pub fn skip(&mut self, pod: &PodFacts, why: &'static str) {
        self.skips.push(Action::SkipHook { name: pod.name.clone(), uid: pod.uid.clone(), why: why.to_owned() });
    }

    /// The intent stands: what was asked and answered stays.
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

    /// A pod is to go: says whether it may, and sees to it that its hook is asked.
    pub fn let_leave(&mut self, pod: &PodFacts) -> Leaving {
        let (answer, run) = self.look_at(pod, Intent::Delete);
        match answer {
            Answer::Free => return Leaving::Now,
            Answer::Skipped(why) => {
                self.skip(pod, why);
                return Leaving::Now;
            }
            Answer::Yes => {
                self.keep(pod, Intent::Delete);
                return Leaving::Now;
            }
            Answer::Asking | Answer::No(_) | Answer::Open | Answer::Again => {}
        }
        let is_due = matches!(answer, Answer::Open | Answer::Again);
        let asked = is_due && self.ask(pod, Intent::Delete, &[]);
        if let Some(run) = run.filter(|_| !asked) {
            self.keep_run(pod, run);
        }
        if is_due { Leaving::Asked } else { Leaving::Later }
    }

    /// Writes down that a pod is to go, and what its hook is asked.
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

    /// Asks the hook. Says whether it could be asked.
    pub fn ask(&mut self, pod: &PodFacts, intent: Intent, changed: &[String]) -> bool {
        let Some(hook) = self.hook(intent) else { return false };
        if self.questions.len() >= MAX_QUESTIONS {
            self.is_cut = true;
            return false;
        }
        let spec = match self.question(pod, &hook, changed) {
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

    /// What the hook is asked. `changed` are the containers that change.
    fn question(&self, pod: &PodFacts, hook: &Hook, changed: &[String]) -> Result<HookRunSpec, String> {
        let name = &hook.step.template_name;
        let template = self.facts.templates.iter().find(|template| template.metadata.name.as_ref() == Some(name));
        let template = template.ok_or_else(|| format!("HookTemplate {name} does not exist; create it, and it is asked"))?;
        let spec = hookrun::question(template, &hook.step.args, &given(pod, changed));
        let spec = spec.map_err(|problem| format!("HookTemplate {name}: {problem}"))?;
        if spec.args.len() > MAX_ARGUMENTS {
            let own = spec.args.len() - given(pod, changed).len();
            return Err(format!(
                "HookTemplate {name}: with those that every hook about a pod gets, its {own} arguments are more than {MAX_ARGUMENTS}"
            ));
        }
        Ok(spec)
    }

    /// What to write, once everybody has said what they want. `pods` are all that the workload has.
    #[must_use]
    pub fn writes(&mut self, pods: &[Arc<PodFacts>]) -> Writes {
        let is_cut = self.is_cut;
        let is_void = |asked: &&Asked| !is_cut && !self.kept.contains(asked.name());
        let void = |asked: &Asked| Action::DeleteHookRun {
            name: asked.name().to_owned(),
            uid: asked.run.metadata.uid.clone().unwrap_or_default(),
            pod: label(asked.run, RUN_POD_UID_LABEL).map(str::to_owned),
        };
        let voids = self.runs.values().flatten().filter(is_void).map(void).collect();
        let marks = std::mem::take(&mut self.marks);
        let is_spared = |pod: &&Arc<PodFacts>| !is_cut && is_marked(pod) && pod.is_active() && !self.leaving.contains(&pod.uid);
        let unmarks = pods.iter().filter(is_spared).map(|pod| mark(pod, None)).collect();
        let version = self.facts.version;
        let reset = |hook: &Hook| Action::ResetRetry { field: hook.place.field().to_owned(), version: version.to_owned() };
        let resets = self.facts.hooks.iter().flatten().filter(|hook| hook.retry).map(reset).take(1).collect();
        let (skips, questions) = (std::mem::take(&mut self.skips), std::mem::take(&mut self.questions));
        Writes { voids, unmarks, skips, marks, questions, resets }
    }

    /// Pods that wait, hook by hook.
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

/// Whether a pod is to be deleted.
#[must_use]
pub fn is_marked(pod: &PodFacts) -> bool {
    pod.annotations.get(DELETING_ANNOTATION).is_some_and(|value| value == "true")
}

/// Marks a pod as one that is to go when its hook agrees to this question, or takes the mark away.
fn mark(pod: &PodFacts, question: Option<&HookRunSpec>) -> Action {
    let (is_to_go, asked) = (question.map(|_| "true"), question.map(approval::fingerprint));
    let body = json!({ "metadata": { "uid": pod.uid, "annotations": { DELETING_ANNOTATION: is_to_go, ASKED_ANNOTATION: asked } } });
    let why = if question.is_some() { PatchReason::Mark } else { PatchReason::Unmark };
    Action::PatchPod(PodPatch { name: pod.name.clone(), uid: pod.uid.clone(), why, part: PodPart::Main, revision: None, body })
}

fn label<'r>(run: &'r HookRun, key: &str) -> Option<&'r str> {
    run.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn phase(run: &HookRun) -> Phase {
    run.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending)
}

fn attempt(run: &Arc<HookRun>) -> u32 {
    label(run, RUN_ATTEMPT_LABEL).and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// When a pod whose hook said no is asked again.
fn asked_again_at(asked: &Asked) -> Timestamp {
    let doubled = FIRST_PAUSE.checked_mul(1 << asked.attempt.saturating_sub(1).min(10)).unwrap_or(MAX_PAUSE);
    ended(asked.run).map_or(Timestamp::MIN, |ended| ended.checked_add(doubled.min(MAX_PAUSE)).unwrap_or(Timestamp::MAX))
}

/// When a hook gave its answer.
fn ended(run: &Arc<HookRun>) -> Option<Timestamp> {
    let ended = run.status.as_ref().and_then(|status| status.finished_at.as_ref()).or(run.metadata.creation_timestamp.as_ref());
    ended.map(|time| time.0)
}

fn target(intent: Intent<'_>) -> Option<&str> {
    match intent {
        Intent::Delete => None,
        Intent::Update(revision) | Intent::Updated(revision) => Some(revision),
    }
}

fn instance(pod: &PodFacts) -> &str {
    pod.labels.get(INSTANCE_ID_LABEL).map_or(pod.name.as_str(), String::as_str)
}

fn labels(pod: &PodFacts, hook: &Hook, intent: Intent, attempt: u32) -> BTreeMap<String, String> {
    let all = [
        (RUN_TYPE_LABEL, Some(hook.place.label().to_owned())),
        (RUN_TEMPLATE_LABEL, Some(text(&hook.step.template_name).into_owned())),
        (RUN_REVISION_LABEL, pod.revision().map(str::to_owned)),
        (RUN_INSTANCE_LABEL, Some(text(instance(pod)).into_owned())),
        (RUN_POD_UID_LABEL, Some(pod.uid.clone())),
        (RUN_ATTEMPT_LABEL, Some(attempt.to_string())),
        (RUN_TARGET_LABEL, target(intent).map(str::to_owned)),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// A text that fits into a label: itself, or a short one that stands for it.
fn text(whole: &str) -> Cow<'_, str> {
    if whole.len() <= MAX_LABEL_LENGTH { Cow::Borrowed(whole) } else { Cow::Owned(short(whole)) }
}

fn short(whole: &str) -> String {
    format!("{:016x}", fnv(whole.bytes()))
}

/// What names of runs begin with.
fn base(pod: &PodFacts, hook: &Hook) -> String {
    let revision = pod.revision().unwrap_or_default();
    run_name(hook.place.prefix(), format!("{}-{revision}-{}-{}", hook.place.prefix(), instance(pod), hook.step.template_name))
}

/// The name that a run should have, or, if no object can have it, a short one that stands for it.
pub(crate) fn run_name(prefix: &str, whole: String) -> String {
    // Labels of pods that others made may be what no name can be.
    let is_fit = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-' || letter == '.';
    if whole.len() <= MAX_NAME_LENGTH
        && whole.chars().all(is_fit)
        && !whole.contains("..")
        && !whole.contains(".-")
        && !whole.contains("-.")
    {
        return whole;
    }
    format!("{prefix}-{}", short(&whole))
}

/// Whether a question was about a pod that has begun anew since, at another address: somebody else may live where it was.
fn is_of_another_life(run: &HookRun, pod: &PodFacts) -> bool {
    let asked = run.spec.args.iter().find(|argument| argument.name == "PodIP").and_then(|argument| argument.value.as_deref());
    asked.is_some_and(|asked| asked != pod.ip)
}

/// Arguments that every hook about a pod gets.
fn given(pod: &PodFacts, changed: &[String]) -> Vec<HookArgument> {
    let argument = |name: String, value: &str| HookArgument { name, value: Some(value.to_owned()) };
    let plain = [("PodName", &pod.name), ("PodNamespace", &pod.namespace), ("PodIP", &pod.ip), ("HostIP", &pod.host_ip)];
    let containers =
        pod.containers.iter().enumerate().map(|(place, container)| argument(format!("PodContainer[{place}]"), &container.name));
    let changed = changed.iter().enumerate().map(|(place, name)| argument(format!("ModifiedContainer[{place}]"), name));
    plain.map(|(name, value)| argument(name.to_owned(), value)).into_iter().chain(containers).chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_name_of_the_original_where_an_object_can_have_it() {
        let fits = "test-gamedeployment-77b8d5c4b4-4-test";
        assert_eq!(run_name("canary", fits.to_owned()), fits);
        let long = format!("{}-2-{}", "g".repeat(200), "h".repeat(200));
        let name = run_name("canary", long.clone());
        assert!(name.starts_with("canary-") && name.len() <= MAX_LABEL_LENGTH, "{name}");
        assert_eq!(name, run_name("canary", long.clone()), "the same run every time");
        assert_ne!(name, run_name("canary", format!("{long}x")));
        assert!(run_name("predelete", "Some.-thing".to_owned()).starts_with("predelete-"));
    }
}
