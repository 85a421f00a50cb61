//! Canary steps: which step a rollout has reached, and whether it may continue.
//!
//! The progress is in status; a pause is in `spec.updateStrategy.paused`, which users see and can change. To pause, the
//! operator writes `paused` first, and records the pause in `pauseConditions` only once it has seen that write; the
//! pause ends when `paused` is seen to be false. An annotation that is written together with `paused` distinguishes the
//! operator's pauses from a user's, so that a crash at any moment neither loses a pause nor mistakes it for a user's,
//! and what a user paused stays paused.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::{PAUSED_BY_HOOK, PAUSED_BY_STEP, RUN_REVISION_LABEL, RUN_STEP_LABEL, RUN_TYPE_CANARY, RUN_TYPE_LABEL, event};
use api::tkex::{HookRun, HookRunSpec, HookStep, HookTemplate, OnFailure, PauseCondition, Phase, Step};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::hash::fnv_1a_32;
use crate::hold::Hold;
use crate::plan::{Action, NewHookRun, Note};
use crate::workload::gate::run_name;
use crate::workload::limits;

/// What the status records of a rollout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// The revision that was rolled out.
    pub revision: String,
    /// The index of the step that was under way.
    pub index: Option<usize>,
    /// The hash of the steps that the index refers to.
    pub hash: Option<String>,
    /// Pauses that the operator made.
    pub pauses: Vec<PauseCondition>,
    /// The HookRun of the step.
    pub hook_run: Option<String>,
}

/// What is known of a rollout.
#[derive(Debug)]
pub struct Rollout<'a> {
    /// The steps.
    pub steps: &'a [Step],
    /// How many pods are wanted.
    pub replicas: usize,
    /// How many pods are updated and available.
    pub updated: usize,
    /// `spec.updateStrategy.paused`.
    pub paused: bool,
    /// The annotation that records what the operator last paused it for.
    pub paused_for: Option<&'a str>,
    /// The version of the object.
    pub version: &'a str,
    /// The revision of the template.
    pub update: &'a str,
    /// Whether there is anything to roll out: the template is not that of the stable revision.
    pub is_due: bool,
    /// What the status recorded.
    pub memory: Memory,
    /// HookRuns of the object.
    pub runs: &'a [Arc<HookRun>],
    /// Names that others use.
    pub taken: &'a [String],
    /// HookTemplates of the namespace that steps name.
    pub templates: &'a [Arc<HookTemplate>],
    /// The time of the decision.
    pub now: Timestamp,
}

/// The progress of a rollout.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CanaryState {
    /// How many pods stay on the stable revision; none if the steps do not say.
    pub partition: Option<usize>,
    /// What the status records next.
    pub memory: Memory,
    /// Pauses, resumes, and HookRuns to create.
    pub actions: Vec<Action>,
    /// HookRuns that are not needed any more.
    pub leftovers: Vec<Action>,
    /// Why the rollout does not continue.
    pub stop: Option<Hold>,
    /// Whether updated pods go back to the stable revision.
    pub rolls_back: bool,
    /// What else it waits for.
    pub holds: Vec<Hold>,
    /// Events.
    pub notes: Vec<Note>,
    /// When a pause ends by itself.
    pub wake: Option<Timestamp>,
    /// The step that the status already records. A pause starts only at this step.
    recorded: Option<usize>,
}

/// Whether a step is done.
enum Passed {
    Yes,
    No,
}

/// Decides how far a rollout goes.
#[must_use]
pub fn state(rollout: &Rollout) -> CanaryState {
    let hash = (!rollout.steps.is_empty()).then(|| hash(rollout.steps));
    let memory = &rollout.memory;
    let is_same_rollout = memory.revision == rollout.update && is_same(memory.hash.as_deref(), hash.as_deref());
    let continues = rollout.is_due && is_same_rollout;
    let mut canary = CanaryState { memory: memory.clone(), ..CanaryState::default() };
    if !continues && rollout.paused && !memory.pauses.is_empty() && !rollout.is_resumed() {
        // The operator made the pause, and its step is gone. Nothing is forgotten before the pause is ended.
        canary.actions.push(rollout.pause(None));
        canary.stop = Some(Hold::PausedByUser);
        return canary;
    }
    // The annotation that says that the operator's pause has ended stays as long as the status records a pause.
    let is_needed = rollout.is_resumed() && !memory.pauses.is_empty();
    if !continues && rollout.paused_for.is_some() && !is_needed {
        // The annotation of an earlier pause must not be taken for the reason of a later one. If it names the step that
        // is remembered, the pause itself is the operator's too.
        let remembered = memory.hash.as_ref().zip(memory.index).map(|(hash, index)| format!("{}/{hash}/{index}", memory.revision));
        let paused = rollout.paused && remembered.as_deref() != rollout.paused_for;
        canary.actions.push(Action::Pause { paused, mark: None, version: rollout.version.to_owned() });
    }
    let index = match (rollout.is_due, continues) {
        (false, _) => rollout.steps.len(),
        (true, true) => memory.index.unwrap_or_default().min(rollout.steps.len()),
        (true, false) => 0,
    };
    canary.recorded = memory.index.filter(|_| continues);
    canary.memory = Memory {
        revision: rollout.update.to_owned(),
        index: hash.as_ref().map(|_| index),
        hash,
        pauses: if continues { memory.pauses.clone() } else { Vec::new() },
        hook_run: memory.hook_run.clone().filter(|_| continues),
    };
    if rollout.paused && (canary.memory.pauses.is_empty() || rollout.is_resumed()) {
        canary.stop = Some(Hold::PausedByUser);
    }
    rollout.walk(index, &mut canary);
    canary.partition = rollout.partition(&mut canary);
    canary.leftovers = rollout.leftovers(canary.memory.hook_run.as_deref());
    canary
}

/// Whether steps are the same, by their hashes. A hash that this operator did not write counts as the same.
fn is_same(remembered: Option<&str>, ours: Option<&str>) -> bool {
    match (remembered, ours) {
        (None, None) => true,
        (Some(remembered), Some(ours)) => remembered == ours || !remembered.starts_with(HASH_MARK),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// The annotation's value after the operator has ended its pause.
const RESUMED: &str = "resumed";

/// The prefix of hashes. Those of the original operator never start with it.
const HASH_MARK: &str = "s";

/// The hash of steps.
fn hash(steps: &[Step]) -> String {
    let text = serde_json::to_string(steps).unwrap_or_default();
    format!("{HASH_MARK}{:08x}", fnv_1a_32(text.bytes()))
}

impl Rollout<'_> {
    /// Pauses for a step, or resumes.
    fn pause(&self, step: Option<usize>) -> Action {
        let mark = step.map_or_else(|| RESUMED.to_owned(), |index| self.mark(index));
        Action::Pause { paused: step.is_some(), mark: Some(mark), version: self.version.to_owned() }
    }

    /// Whether the operator has ended its own pause: the status may still record it, but a pause now is a user's.
    fn is_resumed(&self) -> bool {
        self.paused_for == Some(RESUMED)
    }

    /// The annotation's value for a pause at a step.
    fn mark(&self, index: usize) -> String {
        format!("{}/{}/{index}", self.update, hash(self.steps))
    }

    /// Whether the operator paused the rollout for this step. Otherwise a user did, and only a user ends the pause.
    fn is_paused_for(&self, index: usize) -> bool {
        self.paused && self.paused_for.is_some_and(|mark| mark == self.mark(index))
    }

    /// Advances as far as the steps allow.
    fn walk(&self, from: usize, canary: &mut CanaryState) {
        let mut index = from;
        while let Some(step) = self.steps.get(index) {
            let passed = match (&step.partition, &step.pause, &step.hook) {
                (Some(_), _, _) => self.partition_step(index, canary),
                (None, Some(pause), _) => self.pause_step(index, pause.duration, canary),
                (None, None, Some(hook)) => self.hook_step(index, step, hook, canary),
                (None, None, None) => Passed::Yes,
            };
            match passed {
                Passed::No => break,
                Passed::Yes => {
                    index += 1;
                    canary.memory.pauses.clear();
                    canary.memory.hook_run = None;
                    canary.memory.index = Some(index);
                    let message = format!("Set Step Index to {index}");
                    canary.notes.push(Note { warning: false, reason: event::SET_STEP_INDEX, message });
                }
            }
        }
    }

    /// How many pods a partition keeps.
    fn kept(&self, index: usize) -> Result<Option<usize>, Hold> {
        let Some(partition) = self.steps.get(index).and_then(|step| step.partition.as_ref()) else { return Ok(None) };
        let field = format!("canary.steps[{index}].partition");
        limits::kept(&field, partition, self.replicas).map(Some)
    }

    fn partition_step(&self, index: usize, canary: &mut CanaryState) -> Passed {
        let kept = match self.kept(index) {
            Ok(kept) => kept.unwrap_or_default(),
            Err(invalid) => {
                canary.stop = Some(invalid);
                return Passed::No;
            }
        };
        let wanted = self.replicas.saturating_sub(kept);
        if self.updated >= wanted && canary.stop.is_none() {
            return Passed::Yes;
        }
        canary.holds.push(Hold::Step { step: index, of: self.steps.len(), wanted });
        Passed::No
    }

    fn pause_step(&self, index: usize, duration: Option<i32>, canary: &mut CanaryState) -> Passed {
        if duration == Some(0) {
            return Passed::Yes;
        }
        let started = canary.memory.pauses.iter().find(|pause| pause.reason == PAUSED_BY_STEP).map(|pause| pause.start_time.0);
        let end = |started: Timestamp| {
            let seconds = duration.map(|seconds| SignedDuration::from_secs(seconds.into()));
            seconds.map(|seconds| started.checked_add(seconds).unwrap_or(Timestamp::MAX))
        };
        match started {
            Some(_) if !self.paused || self.is_resumed() => return Passed::Yes,
            Some(started) => {
                let until = end(started);
                if until.is_some_and(|until| until <= self.now) {
                    canary.actions.push(self.pause(None));
                }
                canary.wake = until.filter(|until| *until > self.now);
                canary.stop = Some(Hold::PausedByStep { step: index, until });
            }
            None if self.is_paused_for(index) => {
                canary.memory.pauses = vec![PauseCondition { reason: PAUSED_BY_STEP.to_owned(), start_time: Time(self.now) }];
                canary.wake = end(self.now);
                canary.stop = Some(Hold::PausedByStep { step: index, until: canary.wake });
            }
            // The step starts when the user resumes.
            None if self.paused => {}
            None => {
                canary.actions.extend((canary.recorded == Some(index)).then(|| self.pause(Some(index))));
                canary.stop = Some(Hold::PausedByStep { step: index, until: None });
            }
        }
        Passed::No
    }

    fn hook_step(&self, index: usize, step: &Step, hook: &HookStep, canary: &mut CanaryState) -> Passed {
        let is_paused_by_it = canary.memory.pauses.iter().any(|pause| pause.reason == PAUSED_BY_HOOK);
        if is_paused_by_it && !self.paused {
            return Passed::Yes;
        }
        let rolls_back = step.on_failure == Some(OnFailure::Rollback);
        let is_gone = |name: &String| !self.runs.iter().any(|run| run.metadata.name.as_ref() == Some(name));
        if let Some(run) = canary.memory.hook_run.clone().filter(|name| is_paused_by_it && is_gone(name)) {
            // The hook has denied; that its HookRun was deleted changes nothing.
            let message = "its HookRun is gone".to_owned();
            canary.stop = Some(Hold::HookFailed { step: index, run, message, rolls_back });
            canary.rolls_back = rolls_back;
            return Passed::No;
        }
        let Some(run) = self.run(index, hook, canary) else { return Passed::No };
        let name = run.metadata.name.clone().unwrap_or_default();
        let (phase, message) = run.status.as_ref().map_or((None, None), |status| (status.phase, status.message.clone()));
        match phase.filter(|phase| phase.is_final()) {
            None if is_paused_by_it => {}
            None => {
                canary.holds.push(Hold::HookRunning { step: index, run: name });
                return Passed::No;
            }
            // A user's pause holds the steps too.
            Some(Phase::Successful) if canary.stop.is_some() => return Passed::No,
            Some(Phase::Successful) => return Passed::Yes,
            Some(_) => {}
        }
        if self.paused && !is_paused_by_it && !self.is_paused_for(index) {
            // The step pauses once the user resumes.
            return Passed::No;
        }
        if !self.paused {
            canary.actions.extend((canary.recorded == Some(index)).then(|| self.pause(Some(index))));
        } else if !is_paused_by_it {
            canary.memory.pauses = vec![PauseCondition { reason: PAUSED_BY_HOOK.to_owned(), start_time: Time(self.now) }];
        }
        let message = message.unwrap_or_else(|| phase.map_or_else(String::new, |phase| crate::hookrun::word(phase).to_owned()));
        let hold = Hold::HookFailed { step: index, run: name, message, rolls_back };
        // The user configured the rollback, so the pause stops only updates, not the way back.
        canary.rolls_back = rolls_back && self.paused;
        canary.stop = Some(hold);
        Passed::No
    }

    /// The HookRun of a step; creates it if it is missing.
    fn run(&self, index: usize, hook: &HookStep, canary: &mut CanaryState) -> Option<&Arc<HookRun>> {
        let named = |name: &str| self.runs.iter().find(|run| run.metadata.name.as_deref() == Some(name));
        let base = run_name("canary", format!("{}-{index}-{}", self.update, hook.template_name));
        // A run of another step or revision does not count for this one.
        if let Some(run) = canary.memory.hook_run.as_deref().and_then(named).filter(|run| self.is_of_step(run, index)) {
            return Some(run);
        }
        let spec = match self.question(hook) {
            Ok(spec) => spec,
            Err(problem) => {
                canary.holds.push(Hold::HookNotPossible { step: index, problem });
                return None;
            }
        };
        // A run that an operator created just before it crashed.
        let is_it = |run: &&Arc<HookRun>| self.is_of_step(run, index) && !is_final(run) && run.spec == spec;
        if let Some(run) = self.runs.iter().find(is_it) {
            canary.memory.hook_run.clone_from(&run.metadata.name);
            return Some(run);
        }
        let mut names = std::iter::once(base.clone()).chain((1..).map(|number| format!("{base}.{number}")));
        let name = names.find(|name| named(name).is_none() && !self.taken.contains(name))?;
        let labels = BTreeMap::from([
            (RUN_REVISION_LABEL.to_owned(), self.update.to_owned()),
            (RUN_TYPE_LABEL.to_owned(), RUN_TYPE_CANARY.to_owned()),
            (RUN_STEP_LABEL.to_owned(), index.to_string()),
        ]);
        canary.memory.hook_run = Some(name.clone());
        canary.holds.push(Hold::HookRunning { step: index, run: name.clone() });
        canary.actions.push(Action::CreateHookRun(NewHookRun { name, labels, spec }));
        None
    }

    /// The spec of the HookRun of a step.
    fn question(&self, hook: &HookStep) -> Result<HookRunSpec, String> {
        let name = &hook.template_name;
        let template = self.templates.iter().find(|template| template.metadata.name.as_ref() == Some(name));
        let template = template.ok_or_else(|| format!("HookTemplate {name} does not exist; create it to resume the rollout"))?;
        crate::hookrun::question(template, &hook.args, &[]).map_err(|problem| format!("HookTemplate {name}: {problem}"))
    }

    fn is_of_step(&self, run: &HookRun, index: usize) -> bool {
        label(run, RUN_REVISION_LABEL) == Some(self.update) && label(run, RUN_STEP_LABEL) == Some(&index.to_string()) && is_of_canary(run)
    }

    /// HookRuns of steps that are not needed any more: those of other revisions, and unfinished ones of earlier steps.
    fn leftovers(&self, current: Option<&str>) -> Vec<Action> {
        let is_left = |run: &&Arc<HookRun>| {
            is_of_canary(run)
                && run.metadata.name.as_deref() != current
                && run.metadata.deletion_timestamp.is_none()
                && (label(run, RUN_REVISION_LABEL) != Some(self.update) || !is_final(run))
        };
        let identity = |run: &Arc<HookRun>| (run.metadata.name.clone().unwrap_or_default(), run.metadata.uid.clone().unwrap_or_default());
        self.runs.iter().filter(is_left).map(identity).map(|(name, uid)| Action::DeleteHookRun { name, uid, pod: None }).collect()
    }

    /// How many pods the steps keep on the stable revision.
    fn partition(&self, canary: &mut CanaryState) -> Option<usize> {
        let index = canary.memory.index?;
        if index >= self.steps.len() {
            return Some(0);
        }
        for step in (0..=index).rev() {
            match self.kept(step) {
                Ok(Some(kept)) => return Some(kept),
                Ok(None) => {}
                Err(invalid) => canary.stop = Some(invalid),
            }
        }
        Some(self.replicas)
    }
}

fn label<'r>(run: &'r HookRun, key: &str) -> Option<&'r str> {
    run.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn is_of_canary(run: &HookRun) -> bool {
    label(run, RUN_TYPE_LABEL) == Some(RUN_TYPE_CANARY)
}

fn is_final(run: &HookRun) -> bool {
    run.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_final)
}
