//! The reconcile of one object of any kind: settle, observe, decide, execute, record.

mod progress;

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use planner::plan::{Plan, Summary};
use planner::refusal::Refusals;
use planner::request::Resource;
use planner::workload::gate::Place;
use planner::workload::manifest::Owner;
use serde::Serialize;
use tokio::time::Instant;

use crate::client::CallError;
use crate::events::Note;
use crate::execute::{Executor, Failure, Report, Taken};
use crate::fair::Places;
use crate::hooks::Measurer;
use crate::metrics::Metrics;
use crate::queue::{Outcome, Queue};
use crate::record::{Recorded, Recorder};
use crate::settle::{Cache, Expected, Settle, Settled, Writes};
use crate::store::Key;

/// What a decision rests on besides the pods: what users write into an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Basis {
    /// Its uid.
    pub uid: String,
    /// Its generation, which follows the spec.
    pub generation: i64,
    /// Its annotations that decisions read.
    pub annotations: BTreeMap<String, String>,
}

/// A kind that is reconciled.
pub trait Reconcile: Send + Sync + 'static {
    /// Its status.
    type Status: Serialize + Clone + Send + Sync;
    /// Its kind.
    const KIND: &'static str;
    /// The reporting controller of its events.
    const REPORTER: &'static str;
    /// Whether its plans leave out writes that were refused before. Otherwise a refused write fails the whole pass.
    const HEEDS_REFUSALS: bool = false;
    /// What a decision about an object rests on. None if it does not exist.
    fn basis(&self, key: &Key) -> Option<Basis>;
    /// Observes one object and decides what to do. None if it does not exist.
    fn pass(&self, key: &Key, known: &Known, now: Timestamp) -> Option<Pass<Self::Status>>;
    /// Whether the next decision can take long because of what users wrote. Few such decisions run at once.
    fn is_heavy(&self, _: &Key) -> bool {
        false
    }
    /// Adds to a status that a write of the plan failed.
    fn with_trouble(status: Self::Status, before: Option<&Self::Status>, failure: &Failure, now: Timestamp) -> Self::Status;
    /// The cache that sees writes of a resource; none for resources that objects of the kind do not write.
    fn cache(&self, resource: Resource) -> Option<&dyn Cache>;
    /// Whether a resource cannot be watched any more, and that lasts.
    fn is_unwatched(&self, _: Resource) -> bool {
        false
    }
}

/// One pass over one object: what was observed and decided.
#[derive(Debug)]
pub struct Pass<S> {
    /// The object.
    pub owner: Owner,
    /// Its path.
    pub path: String,
    /// The resourceVersion of the observed object.
    pub version: String,
    /// Its status so far.
    pub before: Option<S>,
    /// What to do.
    pub plan: Plan<S>,
    /// How many pods it has.
    pub pods: usize,
    /// Starts the measurements of the plan. Only HookRuns have any.
    pub measurer: Option<Measurer>,
}

/// What earlier passes learned from the API server's answers.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Names that other objects have.
    pub taken: Taken,
    /// What the API server refuses.
    pub refusals: Refusals,
}

/// What is remembered of an object between passes. Losing it costs time, never safety.
#[derive(Debug, Clone, Default)]
struct Memory {
    known: Known,
    /// How many concurrent writes succeeded.
    width: usize,
    summary: Summary,
}

/// Reconciles the objects of one kind.
#[derive(Debug)]
pub struct Controller<W> {
    kind: Arc<W>,
    queue: Arc<Queue>,
    /// How many objects are reconciled at once.
    pub workers: usize,
    settle: Settle,
    executor: Executor,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    memory: Mutex<HashMap<Key, Memory>>,
    heavy: Arc<Places>,
}

/// How many taken names are remembered per object; the latest are kept.
const MOST_TAKEN: usize = 1_000;
/// How many heavy decisions run at once.
const HEAVY: usize = 2;

impl<W: Reconcile> Controller<W> {
    /// A controller that has done nothing yet.
    pub fn new(kind: Arc<W>, queue: Arc<Queue>, executor: Executor, workers: usize) -> Self {
        let recorder = Recorder::new(executor.server.clone(), Arc::clone(&executor.leadership));
        let metrics = Arc::clone(&executor.metrics);
        let (settle, memory, heavy) = (Settle::default(), Mutex::default(), Places::new(HEAVY));
        Self { kind, queue, workers, settle, executor, recorder, metrics, memory, heavy }
    }

    /// One worker; runs until it is dropped.
    pub async fn work(&self) {
        loop {
            let key = self.queue.next().await;
            let started = Instant::now();
            let outcome = self.reconcile(&key).await;
            let result = match outcome {
                Outcome::Done { .. } => "ok",
                Outcome::Failed => "error",
                Outcome::Unsettled => "unsettled",
                Outcome::Gone => "gone",
            };
            self.metrics.count_reconcile(W::KIND, result, started.elapsed());
            self.queue.done(&key, outcome);
        }
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Memory>> {
        self.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What the caches must have seen before the next decision, with the cache of each resource.
    fn awaited<'a>(&'a self, writes: &'a Writes) -> impl Iterator<Item = (Resource, &'a dyn Cache, &'a Expected)> {
        writes.iter().filter_map(|(resource, expected)| Some((resource, self.kind.cache(resource)?, expected)))
    }

    async fn reconcile(&self, key: &Key) -> Outcome {
        let is_met = |writes: &Writes| self.awaited(writes).all(|(_, cache, expected)| cache.has_seen(expected));
        match self.settle.check(key, is_met) {
            Settled::Yes => {}
            Settled::No => return Outcome::Unsettled,
            Settled::Overdue => {
                let writes = self.settle.expected(key);
                let unseen = || self.awaited(&writes).filter(|(_, cache, expected)| !cache.has_seen(expected));
                // What cannot be watched any more is not waited for: decisions that need it hold, and say why.
                if !unseen().all(|(resource, ..)| self.kind.is_unwatched(resource)) {
                    unseen().for_each(|(_, cache, _)| cache.watch_again());
                    return Outcome::Unsettled;
                }
            }
            Settled::Unanswered => return self.look_up(key).await,
        }
        let memory = self.memory().get(key).cloned().unwrap_or_default();
        let now = Timestamp::now();
        // Read first: if the object changes meanwhile, the plan ends before its first write.
        let basis = self.kind.basis(key);
        let pass = match self.decide(key, &memory.known, now).await {
            Ok(Some(pass)) => pass,
            Ok(None) => {
                self.forget(key);
                return Outcome::Gone;
            }
            Err(()) => return Outcome::Failed,
        };
        let (report, recorded) = self.execute(key, &pass, &memory, basis).await;
        self.log(key, &pass, &report);
        self.finish(key, pass, memory, report, recorded, now).await
    }

    /// Observes an object and decides what to do; None if it does not exist. A decision that panics fails the pass of this object only.
    async fn decide(&self, key: &Key, known: &Known, now: Timestamp) -> Result<Option<Pass<W::Status>>, ()> {
        let decide = || std::panic::catch_unwind(AssertUnwindSafe(|| self.kind.pass(key, known, now)));
        let decided = if self.kind.is_heavy(key) {
            let _place = self.heavy.take(&key.namespace).await;
            tokio::task::block_in_place(decide)
        } else {
            decide()
        };
        decided.map_err(|_| tracing::error!(kind = W::KIND, object = %key, "the decision panicked; please report this with the object"))
    }

    /// Writes got no answer: asks the API server what became of them. This pass does nothing else.
    async fn look_up(&self, key: &Key) -> Outcome {
        tracing::warn!(kind = W::KIND, object = %key, "a write got no answer; asking what became of it");
        let writes = self.settle.expected(key);
        let found = self.awaited(&writes).map(|(resource, cache, expected)| async move {
            Ok((resource, cache.look_up(&self.executor.server, &expected.unanswered).await?))
        });
        let found: Result<Vec<_>, CallError> = futures::future::try_join_all(found).await;
        match found {
            Ok(found) => {
                self.settle.answered(key, found);
                Outcome::Unsettled
            }
            Err(error) => {
                tracing::warn!(kind = W::KIND, object = %key, %error, "the server does not say what became of a write");
                Outcome::Failed
            }
        }
    }

    /// Writes the status and decides when the object is reconciled again. `meanwhile` is what was written to the status while the plan
    /// was executed: it is newer than that of the plan.
    async fn finish(
        &self,
        key: &Key,
        pass: Pass<W::Status>,
        memory: Memory,
        report: Report,
        meanwhile: Expected,
        now: Timestamp,
    ) -> Outcome {
        let Report { mut writes, failure, taken, refusals, trouble, width, unfinished, unsure, took, .. } = report;
        let is_written = meanwhile != Expected::default();
        writes.of(Resource::Object).join(meanwhile);
        let recorded = if is_written { Ok(Recorded::Same) } else { self.record(key, &pass, failure.as_ref(), now).await };
        let mut failed = trouble || unsure || !W::HEEDS_REFUSALS && !refusals.is_empty();
        match recorded {
            Ok(Recorded::Same | Recorded::Stale) => {}
            Ok(Recorded::Written(version)) => writes.of(Resource::Object).wrote(version),
            Ok(Recorded::Later(at)) => self.queue.add_at(key.clone(), at),
            Err(error) => {
                tracing::warn!(kind = W::KIND, object = %key, %error, "the status could not be written");
                note_unanswered(writes.of(Resource::Object), key, &error);
                failed = true;
            }
        }
        self.settle.expect(key, writes);
        let Plan { wake, summary, .. } = pass.plan;
        for wake in wake.into_iter().chain(refusals.wake(now)) {
            // The plan itself has taken a while.
            let wait = wake.duration_since(Timestamp::now()).try_into().unwrap_or(Duration::ZERO);
            self.queue.add_at(key.clone(), Instant::now() + wait);
        }
        self.remember(key, memory, Memory { known: Known { taken, refusals }, width, summary });
        if failed {
            return Outcome::Failed;
        }
        if unfinished || is_written {
            self.queue.add(key.clone());
        }
        Outcome::Done { pause: pause(pass.pods, took) }
    }

    /// Writes the status of a plan, and reports what it says for the first time as events.
    async fn record(&self, key: &Key, pass: &Pass<W::Status>, failure: Option<&Failure>, now: Timestamp) -> Result<Recorded, CallError> {
        if let Some(delay) = pass.plan.status_delay.and_then(|delay| Duration::try_from(delay).ok()) {
            return Ok(Recorded::Later(Instant::now() + delay));
        }
        let status = || pass.plan.status.clone();
        let status = failure.map_or_else(status, |failure| W::with_trouble(status(), pass.before.as_ref(), failure, now));
        let before = serde_json::to_value(&pass.before).unwrap_or_default();
        let after = serde_json::to_value(status).unwrap_or_default();
        let recorded = self.recorder.record(key, &pass.path, &pass.version, &before, &after).await?;
        if matches!(recorded, Recorded::Written(_)) {
            for planner::plan::Note { warning, reason, message } in &pass.plan.notes {
                let (about, reason, message) = (pass.owner.clone(), (*reason).to_owned(), message.clone());
                self.executor.events.tell(Note { about, reporter: W::REPORTER, warning: *warning, reason, message });
            }
        }
        Ok(recorded)
    }

    fn remember(&self, key: &Key, before: Memory, mut now: Memory) {
        let Taken { pods, revisions } = before.known.taken;
        for (names, before) in [(&mut now.known.taken.pods, pods), (&mut now.known.taken.revisions, revisions)] {
            names.extend(before);
            names.truncate(MOST_TAKEN);
        }
        let (old, new) = (before.summary.state, now.summary.state.clone());
        let moved = before.summary.waiting != now.summary.waiting;
        let mut memory = self.memory();
        memory.insert(key.clone(), now);
        if moved {
            self.count_gates(&memory);
        }
        if old != new {
            for state in [old, new].iter().filter(|state| !state.is_empty()) {
                let count = memory.values().filter(|memory| memory.summary.state == *state).count();
                self.metrics.set_workloads(W::KIND, state, i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }

    fn forget(&self, key: &Key) {
        self.settle.forget(key);
        self.recorder.forget(key);
        let mut memory = self.memory();
        let Some(Memory { summary: gone, .. }) = memory.remove(key) else { return };
        if gone.waiting != Summary::default().waiting {
            self.count_gates(&memory);
        }
        if !gone.state.is_empty() {
            let count = memory.values().filter(|memory| memory.summary.state == gone.state).count();
            self.metrics.set_workloads(W::KIND, &gone.state, i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    fn count_gates(&self, memory: &HashMap<Key, Memory>) {
        for (index, place) in Place::ALL.into_iter().enumerate() {
            let all = || memory.values().filter_map(|memory| memory.summary.waiting.get(index));
            let pods: usize = all().map(|wait| wait.pods).sum();
            let oldest = all().filter_map(|wait| wait.since).min().map_or(0, Timestamp::as_second);
            self.metrics.set_gate(W::KIND, place.word(), i64::try_from(pods).unwrap_or(i64::MAX), oldest);
        }
    }

    fn log(&self, key: &Key, pass: &Pass<W::Status>, report: &Report) {
        let (planned, done) = (pass.plan.actions().count(), report.done);
        let holds = || pass.plan.holds.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if let Some(failure) = &report.failure {
            tracing::warn!(kind = W::KIND, object = %key, planned, done, reason = failure.reason, error = failure.message, "reconciled in part");
        } else if planned > 0 {
            tracing::info!(kind = W::KIND, object = %key, pods = pass.pods, planned, done, holds = holds(), "reconciled");
        } else {
            tracing::debug!(kind = W::KIND, object = %key, pods = pass.pods, holds = holds(), "nothing to do");
        }
    }
}

/// The write of an object may have been done although there was no answer.
fn note_unanswered(expected: &mut Expected, key: &Key, error: &CallError) {
    if error.is_without_answer() {
        expected.unanswered.insert(key.clone());
    }
}

/// A pass costs time in proportion to the pods, so events of large workloads are batched.
/// Events that came during the writes are batched already, so the time of the writes is subtracted.
fn pause(pods: usize, writing: Duration) -> Duration {
    Duration::from_micros(100)
        .saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX))
        .clamp(Duration::from_millis(5), Duration::from_millis(250))
        .saturating_sub(writing)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use serde_json::{Value, json};

    use super::*;
    use crate::client::Server;
    use crate::events::Events;
    use crate::leader::Leadership;
    use crate::settle::UNSEEN_TIMEOUT;
    use crate::testing::{Answer, Scripted};

    /// A cache that never sees what was written.
    struct Blind;

    impl Cache for Blind {
        fn has_seen(&self, _: &Expected) -> bool {
            false
        }

        fn watch_again(&self) {}

        fn look_up<'a>(&'a self, _: &'a Server, _: &'a HashSet<Key>) -> BoxFuture<'a, Result<Expected, CallError>> {
            async { Ok(Expected::default()) }.boxed()
        }
    }

    /// A kind that writes HookRuns, whose watch may be gone for good, and ControllerRevisions.
    struct Kind {
        hook_runs_are_unwatched: bool,
        status: Value,
        passes: AtomicUsize,
    }

    impl Reconcile for Kind {
        type Status = Value;
        const KIND: &'static str = "Test";
        const REPORTER: &'static str = "test";

        fn basis(&self, _: &Key) -> Option<Basis> {
            None
        }

        fn pass(&self, key: &Key, _: &Known, _: Timestamp) -> Option<Pass<Value>> {
            self.passes.fetch_add(1, Ordering::Relaxed);
            let [api_version, kind, uid] = ["v1", "Test", "u"].map(str::to_owned);
            let owner = Owner { api_version, kind, name: key.name.clone(), namespace: key.namespace.clone(), uid };
            let (before, plan) = (Some(json!({})), Plan::only(self.status.clone()));
            Some(Pass { owner, path: "/test".to_owned(), version: "1".to_owned(), before, plan, pods: 0, measurer: None })
        }

        fn with_trouble(status: Value, _: Option<&Value>, _: &Failure, _: Timestamp) -> Value {
            status
        }

        fn cache(&self, _: Resource) -> Option<&dyn Cache> {
            Some(&Blind)
        }

        fn is_unwatched(&self, resource: Resource) -> bool {
            resource == Resource::HookRun && self.hook_runs_are_unwatched
        }
    }

    fn key() -> Key {
        Key { namespace: "play".to_owned(), name: "game".to_owned() }
    }

    fn controller(kind: Kind, answers: impl IntoIterator<Item = Answer>) -> Controller<Kind> {
        let (server, _) = Scripted::new(answers);
        let (leadership, metrics): (_, Arc<Metrics>) = (Arc::new(Leadership::unquestioned()), Arc::default());
        let (events, _) = Events::start(server.clone(), Arc::clone(&leadership));
        let executor = Executor { server, leadership, events, metrics: Arc::clone(&metrics), writes: Places::new(1), per_object: 1 };
        Controller::new(Arc::new(kind), Arc::new(Queue::new("Test", metrics)), executor, 1)
    }

    /// How many passes there are after writes that are never seen.
    async fn passes(hook_runs_are_unwatched: bool, written: &[Resource]) -> usize {
        let controller = controller(Kind { hook_runs_are_unwatched, status: json!({}), passes: AtomicUsize::new(0) }, []);
        let passes = || controller.kind.passes.load(Ordering::Relaxed);
        let mut writes = Writes::default();
        written.iter().for_each(|resource| writes.of(*resource).wrote(7));
        controller.settle.expect(&key(), writes);
        controller.reconcile(&key()).await;
        assert_eq!(passes(), 0, "the cache may be late");
        tokio::time::advance(UNSEEN_TIMEOUT).await;
        controller.reconcile(&key()).await;
        passes()
    }

    #[tokio::test]
    async fn a_status_that_got_no_answer_is_looked_up() {
        for (answer, settled) in [(Answer::Raw(504, ""), Settled::Unanswered), (Answer::Raw(500, ""), Settled::Yes)] {
            let kind = Kind { hook_runs_are_unwatched: false, status: json!({ "phase": "Done" }), passes: AtomicUsize::new(0) };
            let controller = controller(kind, [answer]);
            assert_eq!(controller.reconcile(&key()).await, Outcome::Failed);
            assert_eq!(controller.settle.check(&key(), |_| false), settled);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_of_a_kind_that_cannot_be_watched_any_more_is_not_waited_for() {
        let (run, revision) = (Resource::HookRun, Resource::ControllerRevision);
        assert_eq!(passes(true, &[run]).await, 1, "the plan says what is missing");
        assert_eq!((passes(false, &[run]).await, passes(true, &[run, revision]).await), (0, 0), "its watch is opened again");
    }

    #[test]
    fn passes_over_many_pods_are_rare_and_writing_is_pause_enough() {
        let milliseconds = Duration::from_millis;
        assert_eq!(pause(1, Duration::ZERO), milliseconds(5));
        assert_eq!(pause(1_000, Duration::ZERO), milliseconds(100));
        assert_eq!(pause(100_000, Duration::ZERO), milliseconds(250));
        assert_eq!(pause(1_000, milliseconds(30)), milliseconds(70));
        assert_eq!(pause(5_000, milliseconds(1_000)), Duration::ZERO);
    }
}
