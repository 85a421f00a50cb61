//! What the hook of a pod says to what is wanted of the pod.

use jiff::{SignedDuration, Timestamp};

use super::place::{Hook, Intent, Place};
use super::question::text;
use super::run::{Asked, asked_again_at, ended, names_another_address, phase};
use super::{Gates, is_marked};
use crate::facts::pod::{self, PodFacts};

/// How long an approval holds when the deletion that it was for was refused: then the hook is asked again.
const MAX_APPROVAL_AGE: SignedDuration = SignedDuration::from_secs(30);

/// What the hook of a pod says to an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// There is no hook to ask.
    Free,
    /// The hook is skipped: why.
    Skipped(&'static str),
    /// It approves.
    Approved,
    /// It is being asked.
    Asking,
    /// It has not been asked.
    Open,
    /// It denies, and is asked again then.
    Denied(Timestamp),
    /// It denies, or its approval no longer counts, and it is asked again now.
    Again,
}

impl<'a> Gates<'a> {
    /// The hook that has to approve.
    pub(super) fn hook(&self, intent: Intent) -> Option<Hook<'a>> {
        match intent {
            Intent::Delete => self.at(Place::PreDelete),
            Intent::Update(_) => self.at(Place::PreInplace).or_else(|| self.at(Place::PreDelete)),
            Intent::Updated(_) => self.at(Place::PostInplace),
        }
    }

    /// The newest run that asks this. A pod is marked before its hook is asked about its deletion: without the mark no run counts.
    pub(super) fn run(&self, pod: &PodFacts, hook: &Hook, intent: Intent) -> Option<Asked<'a>> {
        let runs = self.runs.get(pod.uid.as_str()).filter(|_| intent != Intent::Delete || is_marked(pod))?;
        let (target, template) = (intent.target(), text(&hook.step.template_name));
        let is_it = |asked: &&Asked| asked.place == hook.place && asked.template == Some(&*template) && asked.target == target;
        runs.iter().filter(is_it).max_by_key(|asked| (asked.attempt, asked.name())).copied()
    }

    /// What the hook says to an intent.
    #[must_use]
    pub fn answer(&self, pod: &PodFacts, intent: Intent) -> Answer {
        self.answer_and_run(pod, intent).0
    }

    /// What the hook says to an intent, and the run that says it.
    pub(super) fn answer_and_run(&self, pod: &PodFacts, intent: Intent) -> (Answer, Option<Asked<'a>>) {
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
        if names_another_address(run, pod) {
            return Answer::Again;
        }
        if !phase(run).is_final() {
            return Answer::Asking;
        }
        if asked.is_approval(pod) {
            let is_old = || ended(run).and_then(|ended| ended.checked_add(MAX_APPROVAL_AGE).ok()).is_none_or(|end| end <= self.facts.now);
            let is_retried = intent == Intent::Delete && self.facts.refusals.is_deletion_refused(&pod.uid);
            return if is_retried && is_old() { Answer::Again } else { Answer::Approved };
        }
        let again = asked_again_at(asked);
        // As long as `retry` cannot be reset it is ignored: the hook would be asked in a loop.
        let is_retried = hook.retry && !self.facts.refusals.has("reset_retry");
        if is_retried || again <= self.facts.now { Answer::Again } else { Answer::Denied(again) }
    }

    /// Why the hook of a pod is skipped: the pod serves no players, or its node is lost.
    fn skipped(&self, pod: &PodFacts) -> Option<&'static str> {
        let is_lost = || pod.node.as_deref().is_some_and(|node| self.facts.nodes.is_lost(node, self.facts.now));
        match pod.phase {
            pod::Phase::Running if pod.is_crash_looping() => Some("it crashes again and again"),
            pod::Phase::Running if is_lost() => Some("its node is lost"),
            pod::Phase::Running => None,
            pod::Phase::Pending | pod::Phase::Unknown | pod::Phase::Succeeded | pod::Phase::Failed => Some("it does not run"),
        }
    }
}
