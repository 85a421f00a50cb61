//! What a HookRun about a pod was asked, and what it answered.

use std::sync::Arc;

use api::names::{RUN_ATTEMPT_LABEL, RUN_TARGET_LABEL, RUN_TEMPLATE_LABEL};
use api::tkex::{HookRun, Phase};
use jiff::{SignedDuration, Timestamp};

use super::place::Place;
use crate::facts::pod::PodFacts;
use crate::workload::approval;

/// How long a pod is left alone after its hook has denied for the first time; twice as long after each further denial.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// The longest time between two questions about a pod.
const MAX_PAUSE: SignedDuration = SignedDuration::from_mins(5);

/// What a run was asked, read from its labels once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) run: &'a Arc<HookRun>,
    pub(super) place: Place,
    pub(super) template: Option<&'a str>,
    pub(super) target: Option<&'a str>,
    pub(super) attempt: u32,
}

impl<'a> Asked<'a> {
    pub(super) fn of(run: &'a Arc<HookRun>) -> Option<Self> {
        let (template, target) = (label(run, RUN_TEMPLATE_LABEL), label(run, RUN_TARGET_LABEL));
        Some(Self { run, place: Place::of(run)?, template, target, attempt: attempt(run) })
    }

    /// The name of the run.
    pub(super) fn name(&self) -> &'a str {
        self.run.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether it approves, and asks what the mark on the pod says.
    pub(super) fn is_approval(&self, pod: &PodFacts) -> bool {
        let is_of_mark = self.place == Place::PreDelete && self.target.is_none();
        phase(self.run) == Phase::Successful && (!is_of_mark || approval::answers_mark(pod, &self.run.spec))
    }
}

pub(super) fn label<'r>(run: &'r HookRun, key: &str) -> Option<&'r str> {
    run.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn phase(run: &HookRun) -> Phase {
    run.status.as_ref().and_then(|status| status.phase).unwrap_or(Phase::Pending)
}

fn attempt(run: &Arc<HookRun>) -> u32 {
    label(run, RUN_ATTEMPT_LABEL).and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// When the hook of a pod is asked again after it has denied.
pub(super) fn asked_again_at(asked: &Asked) -> Timestamp {
    let doubled = FIRST_PAUSE.checked_mul(1 << asked.attempt.saturating_sub(1).min(10)).unwrap_or(MAX_PAUSE);
    ended(asked.run).map_or(Timestamp::MIN, |ended| ended.checked_add(doubled.min(MAX_PAUSE)).unwrap_or(Timestamp::MAX))
}

/// When a run ended.
pub(super) fn ended(run: &Arc<HookRun>) -> Option<Timestamp> {
    let ended = run.status.as_ref().and_then(|status| status.finished_at.as_ref()).or(run.metadata.creation_timestamp.as_ref());
    ended.map(|time| time.0)
}

/// Whether a question named an address that the pod no longer has: another pod may have it now.
pub(super) fn names_another_address(run: &HookRun, pod: &PodFacts) -> bool {
    let asked = run.spec.args.iter().find(|argument| argument.name == "PodIP").and_then(|argument| argument.value.as_deref());
    asked.is_some_and(|asked| asked != pod.ip)
}
