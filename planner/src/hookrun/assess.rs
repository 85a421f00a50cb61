//! When a metric is final, and when a run is.

use api::tkex::{HookRunSpec, HookRunStatus, Metric, MetricResult, Phase};

use super::empty;

/// The default of `consecutiveErrorLimit`.
const DEFAULT_ERROR_LIMIT: i32 = 4;

/// Gives a phase to every metric that is final now. Returns the run's phase and the reason for it, if the run is final.
pub(super) fn assess(spec: &HookRunSpec, status: &mut HookRunStatus) -> Option<(Phase, Option<String>)> {
    for result in status.metric_results.iter_mut().filter(|result| !result.phase.is_final()) {
        let Some(metric) = spec.metrics.iter().find(|metric| metric.name == result.name) else { continue };
        if let Some((phase, message)) = verdict(metric, result) {
            result.phase = phase;
            result.message = message.map(|message| with_evidence(&message, result));
        }
    }
    // The first phase that any metric has is the run's.
    let bad = [Phase::Failed, Phase::Error, Phase::Inconclusive];
    let worst = bad.iter().find_map(|phase| status.metric_results.iter().find(|result| result.phase == *phase));
    if let Some(worst) = worst {
        let (phase, why) = (worst.phase, format!("metric {}: {}", worst.name, worst.message.as_deref().unwrap_or("not as wanted")));
        let skipped = format!("not measured any further: metric {} has ended the run", worst.name);
        cut_off(spec, status, Phase::Skipped, &skipped);
        return Some((phase, Some(why)));
    }
    let decided = |metric: &Metric| status.metric_results.iter().any(|result| result.name == metric.name && result.phase.is_final());
    if spec.metrics.iter().all(decided) {
        return Some((Phase::Successful, None));
    }
    if spec.terminate == Some(true) {
        cut_off(spec, status, Phase::Cancelled, "spec.terminate was set");
        return Some((Phase::Cancelled, Some("stopped by spec.terminate: no approval".to_owned())));
    }
    None
}

/// Ends metrics that are not final. A metric that was never measured is skipped.
fn cut_off(spec: &HookRunSpec, status: &mut HookRunStatus, phase: Phase, why: &str) {
    for metric in &spec.metrics {
        match status.metric_results.iter_mut().find(|result| result.name == metric.name) {
            Some(result) if result.phase.is_final() => {}
            Some(result) => {
                result.phase = phase;
                result.message = Some(why.to_owned());
            }
            None => {
                let mut result = empty(&metric.name, Phase::Skipped);
                result.message = Some(why.to_owned());
                status.metric_results.push(result);
            }
        }
    }
}

/// The phase from the first rule that applies, with its message; none if no rule applies yet.
fn verdict(metric: &Metric, result: &MetricResult) -> Option<(Phase, Option<String>)> {
    let limit = |limit: Option<i32>| limit.unwrap_or_default();
    let says = |count: i32, what: &str, limit: i32| Some(format!("{count} {what}, {limit} allowed"));
    if result.failed > limit(metric.failure_limit) {
        return Some((Phase::Failed, says(result.failed, "measurements failed", limit(metric.failure_limit))));
    }
    let successful_limit = limit(metric.successful_limit);
    if successful_limit > 0 && result.successful >= successful_limit {
        return Some((Phase::Successful, None));
    }
    if result.inconclusive > limit(metric.inconclusive_limit) {
        return Some((Phase::Inconclusive, says(result.inconclusive, "measurements were inconclusive", limit(metric.inconclusive_limit))));
    }
    let errors = metric.consecutive_error_limit.unwrap_or(DEFAULT_ERROR_LIMIT);
    if result.consecutive_error > errors {
        return Some((Phase::Error, says(result.consecutive_error, "measurements in a row ended in an error", errors)));
    }
    if metric.consecutive_successful_limit.is_some_and(|limit| result.consecutive_successful >= limit) {
        return Some((Phase::Successful, None));
    }
    let count = effective_count(metric).filter(|count| result.count >= *count)?;
    // All measurements are made: enough of them must also have succeeded.
    let wanted = (successful_limit > 0).then_some(("successfulLimit", successful_limit));
    let in_a_row = metric.consecutive_successful_limit.map(|limit| ("consecutiveSuccessfulLimit", limit));
    let none = (result.successful == 0).then_some(("one success", 1));
    match wanted.or(in_a_row).or(none) {
        None => Some((Phase::Successful, None)),
        Some((what, number)) => {
            let phase = if result.failed == 0 && result.inconclusive > 0 { Phase::Inconclusive } else { Phase::Failed };
            Some((phase, Some(format!("{count} measurements were made without reaching {what} ({number})"))))
        }
    }
}

/// How many measurements are made; none if they are repeated until another limit is reached.
fn effective_count(metric: &Metric) -> Option<i32> {
    let repeats = metric.interval.as_ref().is_some_and(|interval| !interval.is_empty());
    match metric.count.unwrap_or_default() {
        0 if repeats => None,
        0 => Some(1),
        count => Some(count),
    }
}

/// The message with that of the last measurement, or with its value.
fn with_evidence(message: &str, result: &MetricResult) -> String {
    let last = result.measurements.last();
    let said = last.and_then(|last| last.message.clone().or_else(|| last.value.as_ref().map(|value| format!("the value was {value}"))));
    said.map_or_else(|| message.to_owned(), |said| super::shortened(&format!("{message}; {said}")))
}

/// The name of a phase.
#[must_use]
pub fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending => "Pending",
        Phase::Running => "Running",
        Phase::Successful => "Successful",
        Phase::Failed => "Failed",
        Phase::Error => "Error",
        Phase::Inconclusive => "Inconclusive",
        Phase::Cancelled => "Cancelled",
        Phase::Skipped => "Skipped",
    }
}
