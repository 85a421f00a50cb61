//! Executes plans. The only place that writes pods and revisions with the operator's own rights.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use planner::plan::Action;
use planner::refusal::{Fallout, Outcome, Refusals};
use planner::request::{self, Resource, Subject};
use planner::workload::manifest::Owner;
use tokio::time::Instant;

use crate::client::{CallError, Server};
use crate::events::{Events, Note};
use crate::fair::Places;
use crate::hooks::Measurer;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::send::{Effect, OwnerIsAlive, Sender, is_not_served};
use crate::settle::Writes;
use crate::store::Key;

/// After this time the rest of a plan is left for the next pass.
const PLAN_TIMEOUT: Duration = Duration::from_secs(1);
/// The same for pods that are missing, as long as no other object waits for a worker: how many there should be depends
/// only on the object, which is checked before each write.
const CREATION_TIMEOUT: Duration = Duration::from_secs(20);
/// A plan ends after this many writes without a success in between that failed because of the API server itself.
const MAX_FAILURES_IN_A_ROW: u32 = 3;
/// With how many concurrent writes a workload starts.
const FIRST_WIDTH: usize = 4;

/// Executes plans.
#[derive(Debug, Clone)]
pub struct Executor {
    /// The API server.
    pub server: Server,
    /// Whether this process may still write.
    pub leadership: Arc<Leadership>,
    /// Kubernetes events.
    pub events: Events,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Limits the writes in flight for all objects.
    pub writes: Arc<Places>,
    /// The most writes in flight for one object.
    pub per_object: usize,
}

/// The object whose plan is executed.
#[derive(Debug, Clone)]
pub struct ExecutionContext {
    /// The object.
    pub owner: Owner,
    /// The path of the object.
    pub path: String,
    /// The reporting controller of events.
    pub reporter: &'static str,
    /// How many concurrent writes to start with, more as they succeed; 0 if nothing is known.
    pub width: usize,
    /// Starts measurements, if the object is a HookRun.
    pub measurer: Option<Measurer>,
}

/// What a plan rests on. Both are asked before each write.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    /// Whether the object is still the one that the plan was decided on.
    pub holds: &'a (dyn Fn() -> bool + Sync),
    /// Whether another object waits for a worker.
    pub is_crowded: &'a (dyn Fn() -> bool + Sync),
}

impl std::fmt::Debug for Ground<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Ground").finish_non_exhaustive()
    }
}

/// The result of a plan.
#[derive(Debug, Default)]
pub struct Report {
    /// What the cache must see before the next decision.
    pub writes: Writes,
    /// The first write that was refused for the first time.
    pub failure: Option<Failure>,
    /// What the API server refuses.
    pub refusals: Refusals,
    /// Whether the plan ended because the API server fails repeatedly or rejects the token.
    pub trouble: bool,
    /// How many concurrent writes succeeded.
    pub width: usize,
    /// Names of pods and of revisions that other objects have.
    pub taken: Taken,
    /// Actions that succeeded.
    pub done: usize,
    /// How long it took.
    pub took: Duration,
    /// Whether actions are left for another pass, which follows at once.
    pub unfinished: bool,
    /// Whether the next pass should wait a little: the lease is in doubt, or the cluster differs from what the cache shows.
    pub unsure: bool,
}

/// Names that other objects have.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// Of pods.
    pub pods: Vec<String>,
    /// Of revisions.
    pub revisions: Vec<String>,
}

/// A refused write, for the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The reason, one word in CamelCase.
    pub reason: &'static str,
    /// A sentence that quotes the API server's error.
    pub message: String,
}

struct Run<'a> {
    executor: &'a Executor,
    /// For writes, which wait before they are checked and not after.
    server: Server,
    context: &'a ExecutionContext,
    ground: Ground<'a>,
    report: Mutex<Report>,
    /// Actions that are dropped because one that they depend on failed.
    fallout: Mutex<Fallout>,
    /// Writes since the last success that failed because of the API server itself.
    trouble: AtomicU32,
    width: AtomicUsize,
    stopped: AtomicBool,
    done: AtomicUsize,
    owner_is_alive: OwnerIsAlive,
    started: Instant,
}

impl Executor {
    /// Executes the steps in order, until the timeout or until the object changes. A refused write stops only what depends on it.
    pub async fn execute(&self, context: &ExecutionContext, steps: &[Vec<Action>], refusals: Refusals, ground: Ground<'_>) -> Report {
        let started = Instant::now();
        let run = Run {
            executor: self,
            server: self.server.at_once(),
            context,
            ground,
            report: Mutex::new(Report { refusals, ..Report::default() }),
            fallout: Mutex::default(),
            trouble: AtomicU32::new(0),
            width: AtomicUsize::new(if context.width == 0 { FIRST_WIDTH } else { context.width }),
            stopped: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            owner_is_alive: OwnerIsAlive::default(),
            started,
        };
        for step in steps {
            run.step(step).await;
            if run.is_stopped() {
                break;
            }
        }
        let mut report = run.report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        report.width = run.width.into_inner();
        report.done = run.done.into_inner();
        report.took = started.elapsed();
        report
    }
}

impl Run<'_> {
    async fn step(&self, actions: &[Action]) {
        let mut rest = actions;
        while !rest.is_empty() && !self.is_stopped() {
            // At the full width the whole step is one batch; until then batches double as they succeed.
            let width = self.width.load(Ordering::Relaxed).min(self.executor.per_object);
            let count = if width >= self.executor.per_object { rest.len() } else { width.min(rest.len()) };
            let (batch, later) = rest.split_at(count);
            futures::stream::iter(batch).for_each_concurrent(width, |action| self.one(action)).await;
            rest = later;
            // Not if a refused write has reset the width meanwhile.
            let _ = self.width.compare_exchange(width, width.saturating_mul(2), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    async fn one(&self, action: &Action) {
        if self.is_stopped() || !self.fallout().stands(action) {
            return;
        }
        if !self.has_time_for(action) {
            self.leave_the_rest();
            return;
        }
        // A measurement does not write to the API server, so it does not wait for it.
        let mut place = None;
        if !matches!(action, Action::Measure(_)) {
            place = Some(self.executor.writes.take(&self.context.owner.namespace).await);
            let has_waited = self.executor.server.wait_while_overloaded().await;
            if self.is_stopped() {
                return;
            }
            // An overloaded server asks for up to a minute: by then the decision is too old.
            if has_waited && !self.has_time_for(action) {
                self.leave_the_rest();
                return;
            }
        }
        // Checked after the waits, because the lease may have expired meanwhile.
        if !self.executor.leadership.may_write() {
            self.stopped.store(true, Ordering::Relaxed);
            self.with_report(|report| report.unsure = true);
            return;
        }
        // So is the object: a pause or a rollback takes effect at once.
        if !(self.ground.holds)() {
            self.leave_the_rest();
            return;
        }
        self.executor.metrics.write_started();
        let result = self.write(action).await;
        self.executor.metrics.write_ended();
        drop(place);
        self.note(action, result);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn has_time_for(&self, action: &Action) -> bool {
        let elapsed = self.started.elapsed();
        elapsed < PLAN_TIMEOUT || elapsed < CREATION_TIMEOUT && action.fills_a_gap() && !(self.ground.is_crowded)()
    }

    /// Leaves the rest of the plan to the next pass, which follows at once.
    fn leave_the_rest(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.with_report(|report| report.unfinished = true);
    }

    fn fallout(&self) -> MutexGuard<'_, Fallout> {
        self.fallout.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn with_report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    fn note(&self, action: &Action, result: Result<Effect, CallError>) {
        let metrics = &self.executor.metrics;
        match result {
            Ok(effect) => {
                metrics.count_action(action.word(), if matches!(effect, Effect::Orphaned | Effect::Vanished) { "stale" } else { "ok" });
                self.trouble.store(0, Ordering::Relaxed);
                self.done.fetch_add(1, Ordering::Relaxed);
                match &effect {
                    Effect::Orphaned => self.stopped.store(true, Ordering::Relaxed),
                    // The actions that depend on this one assume an object that is gone, has changed, or has another controller.
                    Effect::Replaced | Effect::Changed | Effect::NameTaken | Effect::Vanished => self.fallout().lose(action),
                    Effect::Wrote(_) | Effect::Seen(_) | Effect::Gone | Effect::Started => self.fallout().done(action),
                }
                let outcome = if matches!(effect, Effect::Replaced) { Outcome::Gone } else { Outcome::Done };
                self.with_report(|report| {
                    report.refusals.note(action, &outcome, Timestamp::now());
                    remember(report, action, &self.context.owner, &effect);
                });
                if let Some((reason, message)) = action.success().filter(|_| matches!(effect, Effect::Wrote(_))) {
                    self.tell(false, reason, message);
                }
            }
            Err(error) => {
                metrics.count_action(action.word(), "error");
                self.refuse(action, &error);
            }
        }
    }

    fn refuse(&self, action: &Action, error: &CallError) {
        self.fallout().refuse(action);
        self.width.store(1, Ordering::Relaxed);
        let trouble = if error.is_trouble() { self.trouble.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        let is_over = trouble >= MAX_FAILURES_IN_A_ROW || error.code == 401;
        if is_over {
            self.stopped.store(true, Ordering::Relaxed);
        }
        let is_probe = matches!(action, Action::Probe(_));
        let outcome = if is_probe && (error.is_no_dry_run() || error.is_without_answer()) {
            Outcome::Unknown
        } else if is_probe && (error.is_not_found() && !is_not_served(error) || error.is_other_uid()) {
            Outcome::Gone
        } else {
            Outcome::Refused { reason: error.kind(), message: error.message.clone() }
        };
        let (reason, message) = action.failure(&error.message);
        self.with_report(|report| {
            let is_new = report.refusals.note(action, &outcome, Timestamp::now());
            report.trouble |= is_over;
            // The write may have been done although there was no answer.
            if error.is_without_answer()
                && let Some(Subject { resource, name, .. }) = request::subject(&self.context.owner, action)
            {
                let key = Key { namespace: self.context.owner.namespace.clone(), name: name.to_owned() };
                report.writes.of(resource).unanswered.insert(key);
            }
            // The plan reports earlier refusals itself. A conflict with another client's write is not reported.
            if (is_new || is_over) && !error.is_conflict() {
                report.failure.get_or_insert(Failure { reason, message: message.clone() });
            }
            // The pod may be drained for the refused write: the next pass, which can undo that, follows at once.
            report.unfinished |= is_new || outcome == Outcome::Unknown;
        });
        // That the API server is overloaded or does not answer is no event of this object.
        if !is_probe && !error.overloaded && error.code != 0 && !error.is_conflict() {
            self.tell(true, reason, message);
        }
    }

    fn tell(&self, warning: bool, reason: &str, message: String) {
        let about = self.context.owner.clone();
        self.executor.events.tell(Note { about, reporter: self.context.reporter, warning, reason: reason.to_owned(), message });
    }

    async fn write(&self, action: &Action) -> Result<Effect, CallError> {
        let server = &self.server;
        let sender = Sender { server, owner: &self.context.owner, path: &self.context.path, owner_is_alive: &self.owner_is_alive };
        if let Action::Probe(inner) = action {
            return Sender { server: &server.dry(), ..sender }.send(inner).await.map(|_| Effect::Started);
        }
        if let Action::Measure(new) = action {
            self.context.measurer.iter().for_each(|measurer| measurer.start(new));
            return Ok(Effect::Started);
        }
        sender.send(action).await
    }
}

fn remember(report: &mut Report, action: &Action, owner: &Owner, effect: &Effect) {
    let key = |name: &str| Key { namespace: owner.namespace.clone(), name: name.to_owned() };
    // A dry run succeeded: the next plan can do the write that waited for it.
    report.unfinished |= matches!(action, Action::Probe(_));
    let Some(Subject { resource, name, uid }) = request::subject(owner, action) else { return };
    let expected = report.writes.of(resource);
    match effect {
        Effect::Wrote(version) | Effect::Seen(version) => expected.wrote(*version),
        Effect::Gone => expected.lost(key(name), uid),
        Effect::Replaced => {
            expected.lost(key(name), uid);
            report.unfinished = true;
        }
        Effect::NameTaken => {
            let names = if resource == Resource::Pod { &mut report.taken.pods } else { &mut report.taken.revisions };
            names.push(name.to_owned());
            report.unfinished = true;
        }
        Effect::Vanished | Effect::Orphaned => report.unsure = true,
        Effect::Changed | Effect::Started => {}
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::State;
    use http::StatusCode;
    use planner::plan::{DeleteReason, NewPod, PatchReason, PodPart, PodPatch};
    use planner::refusal::Wanted;
    use serde_json::{Value, json};

    use super::*;
    use crate::settle::Expected;

    /// What the server answers to requests whose method and name contain this text, and how often; always if 0.
    #[derive(Clone, Copy)]
    struct Rule(&'static str, u16, &'static str, usize);

    const OTHER_UID: &str = "Precondition failed: UID in precondition: a, UID in object meta: b";
    const OTHER_VERSION: &str = "Precondition failed: ResourceVersion in precondition: 3, ResourceVersion in object meta: 4";

    /// The server asks to be left alone for 30 seconds.
    const OVERLOADED: &str = "overloaded";

    /// The requests to a fake API server, in order, and what it refuses; everything else succeeds.
    #[derive(Clone)]
    struct Asked {
        all: Arc<Mutex<Vec<String>>>,
        rules: Arc<Mutex<Vec<(Rule, usize)>>>,
        /// How long each takes.
        takes: Duration,
    }

    async fn answer(State(asked): State<Asked>, request: axum::extract::Request) -> (StatusCode, String) {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let is_dry = request.uri().query().is_some_and(|query| query.contains("dryRun=All"));
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let is_dry = is_dry || String::from_utf8_lossy(&body).contains("dryRun");
        let named = serde_json::from_slice::<Value>(&body).ok().and_then(|body| Some(body["metadata"]["name"].as_str()?.to_owned()));
        let name = named
            .filter(|_| method == http::Method::POST)
            .unwrap_or_else(|| path.rsplit('/').find(|part| *part != "status").unwrap().to_owned());
        let line = format!("{method} {name}{}", if is_dry { " dry" } else { "" });
        tokio::time::sleep(asked.takes).await;
        asked.all.lock().unwrap().push(line.clone());
        let mut rules = asked.rules.lock().unwrap();
        let rule = rules.iter_mut().find(|(rule, used)| line.contains(rule.0) && (rule.3 == 0 || *used < rule.3));
        let (code, message) = rule.map_or((200, ""), |(rule, used)| {
            *used += 1;
            (rule.1, rule.2)
        });
        let reason = match code {
            409 => "Conflict",
            403 => "Forbidden",
            422 => "Invalid",
            400 => "BadRequest",
            _ => "",
        };
        let details = (message == OVERLOADED).then(|| json!({ "retryAfterSeconds": 30 }));
        let metadata = json!({ "uid": "g", "resourceVersion": "7" });
        let answer = json!({ "reason": reason, "message": message, "details": details, "metadata": metadata });
        (StatusCode::from_u16(code).unwrap(), answer.to_string())
    }

    /// Executes steps, one write at a time, and returns the requests.
    async fn execute(rules: &[Rule], steps: &[Vec<Action>]) -> (Report, Vec<String>) {
        execute_with(rules, steps, Refusals::default(), 1).await
    }

    async fn execute_with(rules: &[Rule], steps: &[Vec<Action>], refusals: Refusals, width: usize) -> (Report, Vec<String>) {
        execute_on(rules, steps, refusals, width, (Ground { holds: &|| true, is_crowded: &|| false }, Duration::ZERO)).await
    }

    async fn execute_on(
        rules: &[Rule],
        steps: &[Vec<Action>],
        refusals: Refusals,
        width: usize,
        (ground, takes): (Ground<'_>, Duration),
    ) -> (Report, Vec<String>) {
        let rules = Arc::new(Mutex::new(rules.iter().map(|rule| (*rule, 0)).collect()));
        let asked = Asked { all: Arc::default(), rules, takes };
        let router = Router::new().fallback(answer).with_state(asked.clone());
        let metrics: Arc<Metrics> = Arc::default();
        let server = Server::new(kube::Client::new(router, "play"), Arc::clone(&metrics));
        let leadership = Arc::new(Leadership::unquestioned());
        let (events, _) = Events::start(server.clone(), Arc::clone(&leadership));
        let executor = Executor { server, leadership, events, metrics, writes: Places::new(width), per_object: width };
        let [api_version, kind, name, namespace, uid] =
            ["tkex.tencent.com/v1alpha1", "GameDeployment", "game", "play", "g"].map(str::to_owned);
        let owner = Owner { api_version, kind, name, namespace, uid };
        let context = ExecutionContext { owner, path: "/game".to_owned(), reporter: "test", width, measurer: None };
        let report = executor.execute(&context, steps, refusals, ground).await;
        let all = asked.all.lock().unwrap().clone();
        (report, all)
    }

    fn pods(writes: &Writes) -> Expected {
        writes.clone().of(Resource::Pod).clone()
    }

    fn delete(name: &str, version: Option<u64>) -> Action {
        Action::DeletePod { name: name.to_owned(), uid: format!("uid-{name}"), why: DeleteReason::Scale, version }
    }

    fn patch(name: &str, why: PatchReason, revision: Option<&str>) -> Action {
        let (name, uid, revision) = (name.to_owned(), format!("uid-{name}"), revision.map(str::to_owned));
        Action::PatchPod(PodPatch { name, uid, why, part: PodPart::Status, revision, body: json!({ "metadata": { "uid": "" } }) })
    }

    fn drain(name: &str) -> Action {
        patch(name, PatchReason::Drain, Some("game-2"))
    }

    fn create(name: &str, successor: bool) -> Action {
        let (name, id, revision, template) = (name.to_owned(), name.to_owned(), "game-2".to_owned(), json!({}).into());
        Action::CreatePod(NewPod { name, id, revision, template, gated: false, index: None, protected: false, successor })
    }

    #[tokio::test]
    async fn a_pod_that_has_changed_is_left_alone_and_the_others_go() {
        let steps =
            [vec![delete("odd", Some(3)), delete("b", Some(4))], vec![delete("c", None)], vec![create("d", true), create("e", true)]];
        let (report, asked) = execute(&[Rule("DELETE odd", 409, OTHER_VERSION, 0)], &steps).await;
        assert_eq!(asked, ["DELETE odd", "DELETE b", "DELETE c", "POST e"], "there is no room for two successors");
        assert_eq!((report.failure, report.unfinished, report.unsure), (None, false, false), "its change brings the next pass");
        assert_eq!(pods(&report.writes), Expected { version: 7, ..Expected::default() }, "it is not gone");
        assert!(report.refusals.is_empty());
    }

    #[tokio::test]
    async fn a_pod_that_is_another_one_is_left_alone_and_the_others_go() {
        let steps = [vec![delete("odd", None), delete("b", None)]];
        let (report, asked) = execute(&[Rule("odd", 409, OTHER_UID, 0)], &steps).await;
        assert_eq!(asked, ["DELETE odd", "DELETE b"]);
        assert!(report.unfinished && report.failure.is_none(), "{report:?}");
        let odd = Key { namespace: "play".to_owned(), name: "odd".to_owned() };
        assert_eq!(pods(&report.writes).gone, std::collections::HashSet::from([(odd, "uid-odd".to_owned())]));
    }

    #[tokio::test]
    async fn a_refused_write_stops_only_what_depends_on_it() {
        for (code, told) in [(403, true), (422, true), (429, true), (500, true), (409, false)] {
            let restart = |name| patch(name, PatchReason::InPlace, None);
            let steps = [
                vec![drain("odd"), drain("b")],
                vec![restart("odd"), restart("b")],
                vec![delete("odd", None), delete("c", None)],
                vec![create("d", true), create("e", true)],
            ];
            let (report, asked) = execute(&[Rule("odd", code, "said the server", 0)], &steps).await;
            assert_eq!(asked, ["PATCH odd", "PATCH b", "PATCH b", "DELETE c", "POST e"], "{code}");
            assert_eq!(report.failure.is_some_and(|failure| failure.message.contains("said the server")), told, "{code}");
            assert!(!report.refusals.is_empty() && !report.trouble, "{code}");
        }
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_ends_the_plan() {
        let steps = [vec![drain("a"), drain("b"), drain("c")], vec![delete("d", None)]];
        let (report, asked) = execute(&[Rule("", 503, "", 0)], &steps).await;
        assert_eq!(asked, ["PATCH a", "PATCH b", "PATCH c"]);
        assert!(report.trouble && pods(&report.writes).unanswered.is_empty(), "{report:?}");
        let (report, asked) = execute(&[Rule("", 504, "", 1)], &steps).await;
        assert_eq!(asked.len(), 4, "one that is answered late stops nothing");
        assert!(!report.trouble && pods(&report.writes).unanswered.len() == 1, "{report:?}");
    }

    #[tokio::test]
    async fn a_quota_is_asked_once_and_not_for_each_pod() {
        let steps = [(0..100).map(|number| create(&format!("p{number}"), false)).collect()];
        let (report, asked) = execute(&[Rule("p6", 403, "exceeded quota", 0)], &steps).await;
        assert_eq!(asked.len(), 7, "{asked:?}");
        let later = report.refusals.creations("game-2", Timestamp::now() + jiff::SignedDuration::from_millis(1_100));
        assert_eq!((report.refusals.creations("game-2", Timestamp::now()), later), (Some(0), Some(1)));
    }

    #[tokio::test]
    async fn no_write_follows_a_change_of_the_object() {
        let checks = AtomicUsize::new(0);
        let holds = || checks.fetch_add(1, Ordering::Relaxed) < 2;
        let steps = [vec![create("a", false), create("b", false), create("c", false)], vec![delete("d", None)]];
        let ground = Ground { holds: &holds, is_crowded: &|| false };
        let (report, asked) = execute_on(&[], &steps, Refusals::default(), 1, (ground, Duration::ZERO)).await;
        assert_eq!(asked, ["POST a", "POST b"]);
        assert!(report.unfinished && report.failure.is_none(), "the next pass follows at once: {report:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_missing_pods_are_created_for_longer_and_only_while_no_other_object_waits() {
        let missing = |count: usize| (0..count).map(|number| create(&format!("p{number}"), false)).collect::<Vec<_>>();
        let steps = [missing(3), vec![delete("d", None)], vec![create("e", true)]];
        let slow = |steps: Vec<Vec<Action>>, is_crowded: bool| async move {
            let is_crowded = || is_crowded;
            let ground = Ground { holds: &|| true, is_crowded: &is_crowded };
            let (report, asked) = execute_on(&[], &steps, Refusals::default(), 1, (ground, PLAN_TIMEOUT)).await;
            assert!(report.unfinished);
            asked
        };
        assert_eq!(slow(steps.to_vec(), false).await, ["POST p0", "POST p1", "POST p2"]);
        assert_eq!(slow(steps.to_vec(), true).await, ["POST p0"]);
        assert_eq!(slow(vec![missing(100)], false).await.len() as u64, CREATION_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_an_overloaded_server_is_decided_again() {
        let steps = [vec![delete("a", None), delete("b", None), delete("c", None)]];
        let (report, asked) = execute(&[Rule("DELETE a", 429, OVERLOADED, 0)], &steps).await;
        assert_eq!(asked, ["DELETE a"]);
        assert!(report.unfinished, "the next pass follows");
    }

    #[tokio::test]
    async fn before_pods_are_adopted_the_owner_is_read_once() {
        let adopt = |name: &str| Action::AdoptRevision { name: name.to_owned(), uid: format!("uid-{name}") };
        let (_, asked) = execute(&[], &[vec![adopt("a"), adopt("b")]]).await;
        assert_eq!(asked, ["GET game", "PATCH a", "PATCH b"]);
        let (report, asked) = execute(&[Rule("GET game", 404, "", 0)], &[vec![adopt("a"), adopt("b")]]).await;
        assert_eq!((asked.as_slice(), report.done), (["GET game".to_owned()].as_slice(), 1), "an owner that is gone adopts nothing");
    }

    #[tokio::test]
    async fn a_pod_is_not_drained_for_a_revision_that_another_could_not_get() {
        let restart = |name| patch(name, PatchReason::InPlace, Some("game-2"));
        let steps = [vec![drain("odd")], vec![restart("odd")], vec![drain("b"), drain("c")], vec![restart("b"), restart("c")]];
        let (_, asked) = execute(&[Rule("odd", 422, "", 0)], &[steps[1].clone(), steps[2].clone(), steps[3].clone()]).await;
        assert_eq!(asked, ["PATCH odd"]);
    }

    #[tokio::test]
    async fn a_dry_run_writes_nothing_and_tells_what_may_be_tried() {
        let now = Timestamp::now();
        let refused = Outcome::Refused { reason: "Forbidden".to_owned(), message: "no".to_owned() };
        let mut refusals = Refusals::default();
        refusals.note(&delete("odd", None), &refused, now);
        let holds = |refusals: &Refusals| refusals.hold_back("uid-odd", Wanted::Leave);
        assert!(holds(&refusals));
        let steps = [vec![Action::Probe(Box::new(delete("odd", None)))]];
        let (report, asked) = execute_with(&[], &steps, refusals.clone(), 1).await;
        assert_eq!(asked, ["DELETE odd dry"]);
        assert!(!holds(&report.refusals) && report.unfinished, "{report:?}");
        assert_eq!(report.writes, Writes::default(), "nothing was written");
        let (report, _) = execute_with(&[Rule("dry", 403, "no", 0)], &steps, refusals.clone(), 1).await;
        assert!(holds(&report.refusals), "{report:?}");
        let no_dry_run = r#"admission webhook "a.b" does not support dry run"#;
        let (report, _) = execute_with(&[Rule("dry", 400, no_dry_run, 0)], &steps, refusals, 1).await;
        assert!(!holds(&report.refusals), "only the write itself can tell: {report:?}");
    }
}
