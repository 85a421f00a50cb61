//! HookRuns on a simulated clock: scenarios (tests/scenarios/hookrun/*.yaml) and laws on random ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::tkex::{HookRun, HookRunStatus, Phase};
use jiff::{SignedDuration, Timestamp};
use planner::hookrun::{Measured, Observed, Outcome, decide, judge, word};
use planner::plan::Action;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

const START: i64 = 1_800_000_000;
const KEEP: SignedDuration = SignedDuration::from_hours(24);

/// A run whose endpoints answer from a list; the last answer is repeated.
#[derive(Debug, Clone)]
struct Hook {
    run: HookRun,
    now: Timestamp,
    answers: BTreeMap<String, Vec<String>>,
    /// How long an answer takes, in seconds.
    latency: i64,
    /// Every pass and every answer, for failure messages.
    asked: BTreeMap<String, i32>,
}

impl Hook {
    fn new(spec: &Value, answers: BTreeMap<String, Vec<String>>) -> Self {
        let object = json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": { "name": "run", "namespace": "play", "uid": "u", "generation": 1 }, "spec": spec,
        });
        let run = serde_json::from_value(object).unwrap();
        Self { run, now: Timestamp::from_second(START).unwrap(), answers, latency: 0, asked: BTreeMap::new() }
    }

    fn observe(&self, results: &[Measured]) -> Observed {
        Observed {
            object: Arc::new(self.run.clone()),
            flying: BTreeSet::new(),
            results: results.to_vec(),
            keep: KEEP,
            too_large: None,
            has_no_room: false,
        }
    }

    fn status(&self) -> HookRunStatus {
        self.run.status.clone().unwrap_or_default()
    }

    fn elapsed(&self) -> i64 {
        self.now.as_second() - START
    }

    /// An answer depends only on the number of its measurement, so that a repeated measurement gets the same answer.
    fn answer(&mut self, metric: &str, number: i32) -> Measured {
        *self.asked.entry(metric.to_owned()).or_default() += 1;
        let list = &self.answers[metric];
        let text = &list[usize::try_from(number).unwrap().min(list.len() - 1)];
        let plain = |phase| Outcome { phase, value: None, message: None };
        let outcome = match text.as_str() {
            "ok" => plain(Phase::Successful),
            "no" => plain(Phase::Failed),
            "open" => plain(Phase::Inconclusive),
            "down" => Outcome { phase: Phase::Error, value: None, message: Some("connection refused".to_owned()) },
            value => {
                let spec = self.run.spec.metrics.iter().find(|one| one.name == metric).unwrap();
                judge::judge(spec, &Value::String(value.to_owned()))
            }
        };
        let started = self.now;
        let finished = started + SignedDuration::from_secs(self.latency);
        Measured { metric: metric.to_owned(), number, started, finished, outcome }
    }

    /// One pass: measures what is due and records. False when there is nothing left to do.
    fn pass(&mut self) -> bool {
        let plan = decide(&self.observe(&[]), self.now);
        assert!(plan.wake.is_none_or(|wake| wake > self.now), "wakes in the past");
        let due: Vec<(String, i32)> = plan
            .actions()
            .filter_map(|action| if let Action::Measure(new) = action { Some((new.metric.clone(), new.number)) } else { None })
            .collect();
        self.run.status = Some(plan.status);
        if !due.is_empty() {
            let results: Vec<Measured> = due.iter().map(|(metric, number)| self.answer(metric, *number)).collect();
            self.now += SignedDuration::from_secs(self.latency);
            self.run.status = Some(decide(&self.observe(&results), self.now).status);
            return true;
        }
        if self.status().phase.is_some_and(Phase::is_final) {
            return false;
        }
        match plan.wake {
            Some(wake) => self.now = wake,
            None => panic!("waits for nothing: {:?}", self.status()),
        }
        true
    }

    /// Until the run ends, or `limit` seconds have passed.
    fn until(&mut self, limit: i64) {
        for _ in 0..10_000 {
            if self.elapsed() > limit || !self.pass() {
                return;
            }
        }
        panic!("no end: {:?}", self.status());
    }
}

#[test]
fn numbers_that_grow_are_told_every_ten_seconds() {
    let provider = json!({ "web": { "url": "http://1.1.1.1", "jsonPath": "{.age}" } });
    let metric = json!({ "name": "sessions", "interval": "1s", "failureLimit": 1000, "provider": provider });
    let mut hook = Hook::new(&json!({ "metrics": [metric] }), [("sessions".to_owned(), vec!["no".to_owned()])].into());
    let (mut results, mut told) = (Vec::new(), Vec::new());
    while hook.elapsed() < 35 {
        let plan = decide(&hook.observe(&results), hook.now);
        if plan.status_delay.is_none() && hook.run.status.as_ref() != Some(&plan.status) {
            told.push(plan.status.metric_results[0].failed);
            hook.run.status = Some(plan.status.clone());
        }
        let due = plan.actions().find_map(|action| if let Action::Measure(new) = action { Some(new.number) } else { None });
        match (due, plan.wake) {
            (Some(number), _) => results.push(hook.answer("sessions", number)),
            (None, Some(wake)) => hook.now = wake,
            (None, None) => panic!("waits for nothing"),
        }
    }
    assert_eq!((hook.asked["sessions"], told), (35, vec![1, 10, 19, 28]), "measured every second, written about every ten seconds");
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    metrics: Vec<Value>,
    #[serde(default)]
    args: Vec<Value>,
    #[serde(default)]
    policy: Option<String>,
    #[serde(default)]
    answers: BTreeMap<String, Vec<String>>,
    /// Seconds that an answer takes.
    #[serde(default)]
    latency: i64,
    /// When the user sets `terminate`.
    #[serde(default)]
    terminate: Option<i64>,
    /// Phase and second of the end.
    ends: String,
    /// Phase of each metric.
    #[serde(default)]
    results: BTreeMap<String, String>,
    /// Measurements of each metric.
    #[serde(default)]
    asked: BTreeMap<String, i32>,
    #[serde(default)]
    says: Option<String>,
}

fn check(scenario: &Scenario) -> Result<(), String> {
    let metrics: Vec<Value> = scenario
        .metrics
        .iter()
        .map(|metric| {
            let mut metric = metric.clone();
            if metric.get("provider").is_none() {
                metric["provider"] = json!({ "web": { "url": "http://1.1.1.1:9091", "jsonPath": "{$.age}" } });
            }
            metric
        })
        .collect();
    let mut hook = Hook::new(&json!({ "metrics": metrics, "args": scenario.args, "policy": scenario.policy }), scenario.answers.clone());
    hook.latency = scenario.latency;
    if let Some(at) = scenario.terminate {
        hook.until(at);
        hook.now = hook.now.min(Timestamp::from_second(START + at).unwrap());
        hook.run.spec.terminate = Some(true);
    }
    hook.until(100_000);
    let status = hook.status();
    let differ = |what: &str, wanted: &dyn std::fmt::Debug, seen: &dyn std::fmt::Debug| {
        Err(format!("{what}: wanted {wanted:?}, seen {seen:?}; {:?}", status.message))
    };
    let ended = format!("{} {}", status.phase.map(word).unwrap_or("nothing"), hook.elapsed());
    if ended != scenario.ends {
        return differ("ends", &scenario.ends, &ended);
    }
    for (metric, phase) in &scenario.results {
        let seen = status.metric_results.iter().find(|result| result.name == *metric).map(|result| word(result.phase));
        if seen != Some(phase.as_str()) {
            return differ(metric, phase, &seen);
        }
    }
    if !scenario.asked.is_empty() && scenario.asked != hook.asked {
        return differ("asked", &scenario.asked, &hook.asked);
    }
    let message = status.message.clone().unwrap_or_default();
    if let Some(words) = scenario.says.as_ref().filter(|words| !message.contains(words.as_str())) {
        return differ("says", words, &message);
    }
    Ok(())
}

#[test]
fn every_hook_scenario_holds() {
    crate::scenarios::hold("hookrun", 25, |scenario: &Scenario| &scenario.name, check);
}

fn cases() -> u32 {
    std::env::var("PLANNER_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(7),
        ..ProptestConfig::default()
    }
}

fn metric(name: &'static str) -> impl Strategy<Value = Value> {
    let small = || prop::option::of(0..3_i32);
    (prop::option::of(1..4_i32), prop::option::of(0..60_u32), small(), small(), small(), small(), prop::option::of(1..3_i32)).prop_map(
        move |(count, delay, failure, success, inconclusive, errors, in_a_row)| {
            let top = count.unwrap_or(9);
            json!({
                "name": name, "interval": "10s", "count": count, "initialDelay": delay.map(|delay| format!("{delay}s")),
                "failureLimit": failure.map(|limit| limit.min(top)), "successfulLimit": success.map(|limit| limit.min(top)),
                "inconclusiveLimit": inconclusive.map(|limit| limit.min(top)), "consecutiveErrorLimit": errors,
                "consecutiveSuccessfulLimit": in_a_row, "provider": { "web": { "url": "http://a/" } },
            })
        },
    )
}

fn answers() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop::sample::select(vec!["ok", "no", "open", "down"]).prop_map(str::to_owned), 1..8)
}

fn hooks() -> impl Strategy<Value = Hook> {
    (metric("a"), metric("b"), answers(), answers(), any::<bool>(), 0..3_i64).prop_map(|(a, b, first, second, ordered, latency)| {
        let policy = if ordered { "Ordered" } else { "Parallel" };
        let answers = BTreeMap::from([("a".to_owned(), first), ("b".to_owned(), second)]);
        let mut hook = Hook::new(&json!({ "metrics": [a, b], "policy": policy }), answers);
        hook.latency = latency;
        hook
    })
}

proptest! {
    #![proptest_config(config())]

    /// A run ends unless it is to poll without end, and is never Successful without a success.
    #[test]
    fn a_run_ends_and_never_approves_without_a_success(mut hook in hooks()) {
        hook.until(3_000);
        let status = hook.status();
        if status.phase == Some(Phase::Successful) {
            for result in &status.metric_results {
                prop_assert!(result.successful > 0, "{result:?}");
                prop_assert_eq!(result.phase, Phase::Successful);
            }
            prop_assert_eq!(status.metric_results.len(), 2);
        }
        if hook.run.spec.metrics.iter().all(|metric| metric.count.is_some_and(|count| count > 0)) {
            let errors_end = hook.answers.values().all(|answers| answers.last().is_some_and(|last| last != "down"));
            prop_assert!(status.phase.is_some_and(Phase::is_final) || !errors_end, "{status:?}");
        }
        for result in &status.metric_results {
            prop_assert_eq!(result.count, result.successful + result.failed + result.inconclusive);
            prop_assert!(result.measurements.len() <= 10);
        }
    }

    /// A crash loses only what was not recorded: the verdict stays the same, whether it is an approval or not.
    #[test]
    fn a_crash_changes_no_verdict(hook in hooks(), crashes in prop::collection::vec(any::<bool>(), 1..20)) {
        let mut calm = hook.clone();
        calm.until(3_000);
        let mut shaken = hook;
        let mut crashes = crashes.into_iter().cycle();
        for _ in 0..10_000 {
            if shaken.elapsed() > 6_000 {
                break;
            }
            if crashes.next().unwrap_or_default() {
                // The measurement has started, and the process dies before it ends.
                let _ = decide(&shaken.observe(&[]), shaken.now);
                shaken.now += SignedDuration::from_secs(1);
            }
            if !shaken.pass() {
                break;
            }
        }
        if let Some(phase) = calm.status().phase.filter(|phase| phase.is_final()) {
            // Which of two bad verdicts comes first depends on time; whether there is one does not.
            let after = shaken.status().phase;
            prop_assert!(after.is_some_and(Phase::is_final), "no end: {after:?}");
            prop_assert_eq!(after == Some(Phase::Successful), phase == Phase::Successful);
        }
    }

    /// A result that arrives twice, or late, is counted once.
    #[test]
    fn a_result_is_counted_once(mut hook in hooks(), passes in 1..12_usize) {
        for _ in 0..passes {
            if !hook.pass() {
                break;
            }
        }
        let before = hook.status();
        let old: Vec<Measured> = before.metric_results.iter().flat_map(|result| {
            (0..result.count + result.error).map(|number| hook.clone().answer(&result.name, number)).collect::<Vec<_>>()
        }).collect();
        let after = decide(&hook.observe(&old), hook.now).status;
        prop_assert_eq!(before.metric_results, after.metric_results);
    }

    /// The end of a run is final: no measurement and no change except its deletion.
    #[test]
    fn a_finished_run_rests_until_its_time_is_over(mut hook in hooks()) {
        hook.until(3_000);
        // Polling without end is the subject of another law.
        if !hook.status().phase.is_some_and(Phase::is_final) {
            return Ok(());
        }
        let plan = decide(&hook.observe(&[]), hook.now);
        prop_assert_eq!(plan.actions().count(), 0);
        prop_assert_eq!(&plan.status, &hook.status());
        hook.now += KEEP;
        let plan = decide(&hook.observe(&[]), hook.now);
        let is_removed = matches!(plan.actions().collect::<Vec<_>>().as_slice(), [Action::DeleteHookRun { .. }]);
        prop_assert!(is_removed);
        hook.run.metadata.owner_references = Some(vec![Default::default()]);
        prop_assert_eq!(decide(&hook.observe(&[]), hook.now).actions().count(), 0);
    }
}
