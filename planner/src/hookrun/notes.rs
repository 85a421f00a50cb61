//! Events of a run.

use api::names::event;
use api::tkex::{HookRunStatus, Phase};

use super::result_of;
use crate::plan::Note;

/// An event for each metric that became final with this status, and for the run if it did.
pub(super) fn of(before: Option<&HookRunStatus>, after: &HookRunStatus) -> Vec<Note> {
    let known = |metric: &str| before.and_then(|before| result_of(before, metric)).is_some_and(|result| result.phase.is_final());
    let mut notes = Vec::new();
    for result in after.metric_results.iter().filter(|result| result.phase.is_final() && !known(&result.name)) {
        let why = result.message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        notes.extend(note(result.phase, METRIC, &format!("metric {}", result.name), &why));
    }
    if let Some(phase) = after.phase.filter(|phase| phase.is_final() && before.and_then(|before| before.phase) != Some(*phase)) {
        let why = after.message.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        notes.extend(note(phase, RUN, "the run", &why));
    }
    notes
}

/// The reasons of events about a metric and about a run, in the order of the phases below.
const METRIC: [&str; 5] =
    [event::METRIC_SUCCESSFUL, event::METRIC_FAILED, event::METRIC_ERROR, event::METRIC_INCONCLUSIVE, event::METRIC_CANCELLED];
const RUN: [&str; 5] = [event::RUN_SUCCESSFUL, event::RUN_FAILED, event::RUN_ERROR, event::RUN_INCONCLUSIVE, event::RUN_CANCELLED];

fn note(phase: Phase, [successful, failed, error, inconclusive, cancelled]: [&'static str; 5], what: &str, why: &str) -> Option<Note> {
    let (warning, reason) = match phase {
        Phase::Successful => (false, successful),
        Phase::Failed => (true, failed),
        Phase::Error => (true, error),
        Phase::Inconclusive => (true, inconclusive),
        Phase::Cancelled => (false, cancelled),
        Phase::Skipped | Phase::Pending | Phase::Running => return None,
    };
    Some(Note { warning, reason, message: format!("{what} ended {}{why}", super::word(phase)) })
}
