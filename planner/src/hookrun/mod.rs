//! What to do next for one HookRun.
//!
//! In: the run, measurements that are under way, and measurements that have ended. Out: which measurements are due, the
//! status with everything that has ended, and when to reconcile again. A measurement has a number, the count of those
//! before it: a result that is already in the status, or that belongs to an earlier run of the same name, is not
//! counted again, and a restarted operator resumes where the status ends.

pub mod arguments;
mod assess;
pub mod check;
pub mod duration;
pub mod expression;
mod guard;
pub mod judge;
mod notes;
mod pattern;

use std::collections::BTreeSet;
use std::sync::Arc;

use api::names::{condition as types, reason};
use api::tkex::{HookArgument, HookRun, HookRunSpec, HookRunStatus, HookTemplate, Measurement, Metric, MetricResult, Phase, Policy};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::condition::{self, Verdict};
use crate::plan::{Action, NewMeasurement, Plan};

pub use crate::jsonpath::Problem;
pub use assess::word;

/// The longest timeout of a measurement in seconds, whatever its `timeoutSeconds` says.
pub const MAX_TIMEOUT_SECONDS: u32 = 60;
/// How long after an error a measurement is repeated if there is no interval.
const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(10);
/// How long a run that has just started is left without a status.
const STATUS_DELAY: SignedDuration = SignedDuration::from_millis(200);
/// How often counts are written while nothing else changes.
const COUNTS_INTERVAL: SignedDuration = SignedDuration::from_secs(10);
/// Measurements that a status keeps of each metric, and of all of them: the size of an object is limited.
const MAX_MEASUREMENTS_PER_METRIC: usize = 10;
const MAX_MEASUREMENTS: usize = 160;
/// The longest value or message in a status, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Everything a decision is made from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Observed {
    /// The run.
    pub object: Arc<HookRun>,
    /// Metrics that are being measured.
    pub flying: BTreeSet<String>,
    /// Measurements that have ended, whether or not the status has them.
    pub results: Vec<Measured>,
    /// How long a finished run without an owner is kept.
    pub keep: SignedDuration,
    /// Why its spec is not known, if it is not.
    #[serde(default)]
    pub too_large: Option<String>,
    /// Whether its spec may be known later, once its namespace has room for it.
    #[serde(default)]
    pub has_no_room: bool,
}

/// A measurement that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// The metric.
    pub metric: String,
    /// How many measurements of the metric there were before.
    pub number: i32,
    /// When it started.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Timestamp,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a measurement ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Successful, Failed, Inconclusive or Error.
    pub phase: Phase,
    /// What was measured.
    pub value: Option<String>,
    /// Why it ended so.
    pub message: Option<String>,
}

/// The spec of a run that is made from a template. `args` are those of the hook, and `given` those that every workload
/// of the kind passes. The error names what is missing.
pub fn question(template: &HookTemplate, args: &[HookArgument], given: &[HookArgument]) -> Result<HookRunSpec, String> {
    let mut all = template.spec.args.clone();
    for argument in args.iter().chain(given) {
        match all.iter_mut().find(|known| known.name == argument.name) {
            Some(known) => known.value = argument.value.clone().or_else(|| known.value.take()),
            None => all.push(argument.clone()),
        }
    }
    let metrics = template.spec.metrics.clone();
    match check::problems(&metrics, &all, check::Of::Run).into_iter().next() {
        Some(problem) => Err(format!("{} {}", problem.field, problem.text)),
        None => Ok(HookRunSpec { metrics, args: all, policy: template.spec.policy, terminate: None }),
    }
}

/// What to do next. Never fails: an invalid spec ends the run with an error.
#[must_use]
pub fn decide(seen: &Observed, now: Timestamp) -> Plan<HookRunStatus> {
    let run = &seen.object;
    let mut status = run.status.clone().unwrap_or_default();
    if run.metadata.deletion_timestamp.is_some() {
        return Plan::only(status);
    }
    if status.phase.is_some_and(Phase::is_final) {
        return collect(seen, status, now);
    }
    if let Some(why) = seen.too_large.as_ref().filter(|_| seen.has_no_room) {
        let waits = Verdict::no(reason::TOO_LARGE, why.clone());
        condition::set(&mut status.conditions, types::COMPLETE, waits, run.metadata.generation, now);
        return Plan::only(status);
    }
    if let Some(why) = &seen.too_large {
        finish(&mut status, Phase::Error, Some(why.clone()), run.metadata.generation, now);
        return collect(seen, status, now);
    }
    // The first status may be written after the first measurement.
    let first = seen.results.iter().map(|result| result.started).fold(now, Timestamp::min);
    let started = status.started_at.get_or_insert(Time(first)).0;
    // The spec never changes: it is validated once.
    let problem = || check::problems(&run.spec.metrics, &run.spec.args, check::Of::Run).into_iter().next();
    if let Some(problem) = run.status.is_none().then(problem).flatten() {
        finish(&mut status, Phase::Error, Some(format!("{} {}", problem.field, problem.text)), run.metadata.generation, now);
        return collect(seen, status, now);
    }
    seen.results.iter().for_each(|result| add(&mut status, &run.spec.metrics, result));
    if let Some((phase, message)) = assess::assess(&run.spec, &mut status) {
        finish(&mut status, phase, message, run.metadata.generation, now);
        return collect(seen, status, now);
    }
    status.phase = Some(Phase::Running);
    let running = Verdict::no(reason::RUNNING, "measurements are under way or to come");
    condition::set(&mut status.conditions, types::COMPLETE, running, run.metadata.generation, now);
    let ordered = run.spec.policy == Some(Policy::Ordered);
    let (mut due, mut wake) = (Vec::new(), None);
    let mut base = started;
    for metric in &run.spec.metrics {
        let result = result_of(&status, &metric.name);
        let is_final = result.is_some_and(|result| result.phase.is_final());
        if !is_final && !seen.flying.contains(&metric.name) {
            let at = due_at(metric, result, base);
            if at <= now {
                due.push(Action::Measure(NewMeasurement { metric: metric.name.clone(), number: result.map_or(0, measured) }));
            } else {
                wake = Some(wake.map_or(at, |wake: Timestamp| wake.min(at)));
            }
        }
        if ordered {
            // The next metric starts when this one has ended.
            match result.filter(|_| is_final).and_then(last_end) {
                Some(end) => base = end,
                None => break,
            }
        }
    }
    let notes = notes::of(run.status.as_ref(), &status);
    let status_delay = match &run.status {
        // Most answers come so soon that one status reports everything.
        None => (!due.is_empty()).then_some(STATUS_DELAY),
        Some(told) => status_delay(told, &status, now),
    };
    let steps = if due.is_empty() { Vec::new() } else { vec![due] };
    Plan { steps, notes, wake, status_delay, ..Plan::only(status) }
}

/// How long a status can wait in which only counts change: a hook that is asked every second for an hour is not written
/// every second.
fn status_delay(told: &HookRunStatus, status: &HookRunStatus, now: Timestamp) -> Option<SignedDuration> {
    let verdicts =
        |status: &HookRunStatus| status.metric_results.iter().map(|result| (result.name.clone(), result.phase)).collect::<Vec<_>>();
    let last = told.metric_results.iter().filter_map(last_end).max()?;
    let rest = last.checked_add(COUNTS_INTERVAL).ok()?.duration_since(now);
    (verdicts(told) == verdicts(status) && rest.is_positive()).then_some(rest)
}

/// Deletes a finished run without an owner when it has been kept long enough.
fn collect(seen: &Observed, status: HookRunStatus, now: Timestamp) -> Plan<HookRunStatus> {
    let metadata = &seen.object.metadata;
    let owned = metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
    let ended = status.finished_at.as_ref().or(status.started_at.as_ref()).map(|time| time.0);
    let due = ended.filter(|_| !owned).and_then(|ended| ended.checked_add(seen.keep).ok());
    let delete = || Action::DeleteHookRun {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        pod: None,
    };
    let is_recorded = seen.object.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_final);
    let steps = if is_recorded && due.is_some_and(|due| due <= now) { vec![vec![delete()]] } else { Vec::new() };
    let notes = notes::of(seen.object.status.as_ref(), &status);
    Plan { steps, notes, wake: due.filter(|due| *due > now), ..Plan::only(status) }
}

fn finish(status: &mut HookRunStatus, phase: Phase, message: Option<String>, generation: Option<i64>, now: Timestamp) {
    status.phase = Some(phase);
    status.finished_at = Some(Time(now));
    let said = message.clone().unwrap_or_else(|| "every metric is as wanted".to_owned());
    status.message = message.map(|message| shortened(&message));
    condition::set(&mut status.conditions, types::COMPLETE, Verdict::yes(word(phase), said), generation, now);
}

fn result_of<'a>(status: &'a HookRunStatus, metric: &str) -> Option<&'a MetricResult> {
    status.metric_results.iter().find(|result| result.name == metric)
}

/// How many measurements of the metric have ended.
fn measured(result: &MetricResult) -> i32 {
    result.count.saturating_add(result.error)
}

fn last_end(result: &MetricResult) -> Option<Timestamp> {
    result.measurements.last().map(|last| last.finished_at.as_ref().map_or(last.started_at.0, |time| time.0))
}

fn due_at(metric: &Metric, result: Option<&MetricResult>, base: Timestamp) -> Timestamp {
    let read = |text: Option<&String>| text.filter(|text| !text.is_empty()).and_then(|text| duration::parse(text).ok());
    let (from, wait) = match result.and_then(last_end) {
        None => (base, read(metric.initial_delay.as_ref()).unwrap_or_default()),
        Some(end) => (end, read(metric.interval.as_ref()).unwrap_or(RETRY_AFTER)),
    };
    from.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Adds a measurement to the status, unless it is there already.
fn add(status: &mut HookRunStatus, metrics: &[Metric], one: &Measured) {
    let Some(place) = metrics.iter().position(|metric| metric.name == one.metric) else { return };
    let index = match status.metric_results.iter().position(|result| result.name == one.metric) {
        Some(index) => index,
        None => {
            // Metrics are in the order of the spec, whichever is measured first.
            let before = |result: &MetricResult| metrics.iter().position(|metric| metric.name == result.name).is_some_and(|at| at < place);
            let index = status.metric_results.iter().filter(|result| before(result)).count();
            status.metric_results.insert(index, empty(&one.metric, Phase::Running));
            index
        }
    };
    let Some(result) = status.metric_results.get_mut(index) else { return };
    if result.phase.is_final() || measured(result) != one.number {
        return;
    }
    let Outcome { phase, value, message } = &one.outcome;
    let mut counted = |successful: i32, failed: i32, inconclusive: i32| {
        result.count += 1;
        result.successful += successful;
        result.failed += failed;
        result.inconclusive += inconclusive;
        result.consecutive_error = 0;
        result.consecutive_successful = if successful > 0 { result.consecutive_successful + 1 } else { 0 };
    };
    match phase {
        Phase::Successful => counted(1, 0, 0),
        Phase::Failed => counted(0, 1, 0),
        Phase::Inconclusive => counted(0, 0, 1),
        Phase::Error | Phase::Pending | Phase::Running | Phase::Cancelled | Phase::Skipped => {
            result.error += 1;
            result.consecutive_error += 1;
            result.consecutive_successful = 0;
        }
    }
    result.measurements.push(Measurement {
        phase: *phase,
        message: message.as_deref().map(shortened),
        started_at: Time(one.started),
        finished_at: Some(Time(one.finished)),
        value: value.as_deref().map(shortened),
    });
    let kept = (MAX_MEASUREMENTS / metrics.len().max(1)).clamp(1, MAX_MEASUREMENTS_PER_METRIC);
    let surplus = result.measurements.len().saturating_sub(kept);
    result.measurements.drain(..surplus);
}

fn empty(metric: &str, phase: Phase) -> MetricResult {
    MetricResult {
        name: metric.to_owned(),
        phase,
        message: None,
        count: 0,
        successful: 0,
        failed: 0,
        inconclusive: 0,
        error: 0,
        consecutive_error: 0,
        consecutive_successful: 0,
        measurements: Vec::new(),
    }
}

/// The text, cut to what a status keeps.
#[must_use]
pub fn shortened(text: &str) -> String {
    // Control characters, which a terminal would act on, are removed.
    let is_plain = |letter: char| !letter.is_control() || letter == '\n' || letter == '\t';
    let text: String = text.chars().take(MAX_TEXT_BYTES * 4).map(|letter| if is_plain(letter) { letter } else { ' ' }).collect();
    if text.len() <= MAX_TEXT_BYTES {
        return text;
    }
    let end = (0..=MAX_TEXT_BYTES - 4).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    format!("{}…", text.get(..end).unwrap_or_default())
}
