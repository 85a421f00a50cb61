//! Carries plans out. The only place that writes pods and revisions.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use planner::manifest::{self, Owner};
use planner::plan::{Action, NewMeasurement, PodPart, PodPatch};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::client::{CallError, Patch, Server, Written};
use crate::events::{Events, Note};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::settle::{Expected, Writes};
use crate::store::Key;

/// After this time the rest waits for a fresh decision.
const SLICE: Duration = Duration::from_secs(1);

/// Who carries plans out.
#[derive(Debug, Clone)]
pub struct Executor {
    /// Where to.
    pub server: Server,
    /// Whether we still may.
    pub leadership: Arc<Leadership>,
    /// Tells people.
    pub events: Events,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Writes of all objects together that may be under way.
    pub writes: Arc<Semaphore>,
    /// Writes of one object that may be under way.
    pub per_object: usize,
}

/// Whose plan it is.
#[derive(Debug, Clone)]
pub struct Mandate {
    /// The object.
    pub owner: Owner,
    /// The path of the object.
    pub path: String,
    /// Who reports events.
    pub reporter: &'static str,
    /// Begin with one write and double, because the last plan failed.
    pub cautious: bool,
}

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Report {
    /// What the cache must see before the next decision.
    pub writes: Writes,
    /// Why the plan stopped.
    pub failure: Option<Failure>,
    /// Names of pods and of revisions that belong to others.
    pub taken: Taken,
    /// Actions that succeeded.
    pub done: usize,
    /// How long it took.
    pub took: Duration,
    /// Whether actions are left for a fresh decision.
    pub unfinished: bool,
    /// Whether the fresh decision should wait a little: the lease is in doubt, or the world is not what the cache shows.
    pub unsure: bool,
}

/// Names that belong to others.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// Of pods.
    pub pods: Vec<String>,
    /// Of revisions.
    pub revisions: Vec<String>,
}

/// Why a plan stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One word.
    pub reason: &'static str,
    /// A sentence with the server's words.
    pub message: String,
}

/// What one write did.
enum Effect {
    /// It made this version.
    Wrote(u64),
    /// It was there already, with this version.
    Seen(u64),
    /// The object is gone.
    Gone,
    /// The name belongs to somebody else.
    NameTaken,
    /// The object that was decided on is gone, and another may have its name.
    Replaced,
    /// The object is not what was decided on: it is left alone, and its change brings the next look.
    Changed,
    /// It is under way; who does it tells when it has ended.
    Begun,
    /// The world differs from what was decided on: decide again.
    Stale,
}

struct Run<'a> {
    executor: &'a Executor,
    mandate: &'a Mandate,
    /// Begins a measurement.
    measure: &'a (dyn Fn(&NewMeasurement) + Sync),
    report: Mutex<Report>,
    /// Uids of pods whose change was refused: nothing more is tried for them in this plan.
    refused: Mutex<HashSet<String>>,
    stopped: AtomicBool,
    done: AtomicUsize,
    deadline: Instant,
}

impl Executor {
    /// Carries the steps out, in order, until one fails or the time is up.
    pub async fn execute(&self, mandate: &Mandate, steps: &[Vec<Action>], measure: &(dyn Fn(&NewMeasurement) + Sync)) -> Report {
        let begun = Instant::now();
        let run = Run {
            executor: self,
            mandate,
            measure,
            report: Mutex::default(),
            refused: Mutex::default(),
            stopped: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            deadline: begun + SLICE,
        };
        for step in steps {
            run.step(step).await;
            if run.stopped.load(Ordering::Relaxed) {
                break;
            }
        }
        let mut report = run.report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        report.done = run.done.into_inner();
        report.took = begun.elapsed();
        report
    }
}

impl Run<'_> {
    async fn step(&self, actions: &[Action]) {
        let mut rest = actions;
        let mut width = if self.mandate.cautious { 1 } else { self.executor.per_object };
        while !rest.is_empty() && !self.stopped.load(Ordering::Relaxed) {
            // With full width the whole step is one batch; after a failure batches grow as they succeed.
            let count = if width >= self.executor.per_object { rest.len() } else { width.min(rest.len()) };
            let (batch, later) = rest.split_at(count);
            futures::stream::iter(batch).for_each_concurrent(width, |action| self.one(action)).await;
            rest = later;
            width = width.saturating_mul(2).min(self.executor.per_object);
        }
    }

    async fn one(&self, action: &Action) {
        if self.stopped.load(Ordering::Relaxed) || self.is_refused(action) {
            return;
        }
        if Instant::now() >= self.deadline {
            self.stopped.store(true, Ordering::Relaxed);
            self.with_report(|report| report.unfinished = true);
            return;
        }
        // A measurement goes elsewhere: it does not wait for the API server.
        let permit = if matches!(action, Action::Measure(_)) { None } else { self.executor.writes.acquire().await.ok() };
        if permit.is_some() {
            self.executor.server.wait_while_overloaded().await;
        }
        // Waiting comes before asking: the lease may end meanwhile.
        if !self.executor.leadership.may_write() {
            self.stopped.store(true, Ordering::Relaxed);
            self.with_report(|report| report.unsure = true);
            return;
        }
        self.executor.metrics.write_started();
        let result = self.write(action).await;
        self.executor.metrics.write_ended();
        drop(permit);
        self.note(action, result);
    }

    fn refused(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether an earlier change of the same pod was refused.
    fn is_refused(&self, action: &Action) -> bool {
        matches!(action, Action::PatchPod(change) if self.refused().contains(&change.uid))
    }

    fn with_report(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.report.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    fn note(&self, action: &Action, result: Result<Effect, CallError>) {
        let metrics = &self.executor.metrics;
        match result {
            Ok(Effect::Stale) => {
                metrics.count_action(action.word(), "stale");
                self.stopped.store(true, Ordering::Relaxed);
                self.with_report(|report| report.unsure = true);
            }
            Ok(effect) => {
                metrics.count_action(action.word(), "ok");
                self.done.fetch_add(1, Ordering::Relaxed);
                let wrote = matches!(effect, Effect::Wrote(_));
                // What comes next was decided on a pod that is not there, or for a revision that is not ours.
                if matches!((&effect, action), (Effect::Replaced, _) | (Effect::NameTaken, Action::CreateRevision(_))) {
                    self.stopped.store(true, Ordering::Relaxed);
                }
                self.with_report(|report| remember(report, action, &self.mandate.owner, &effect));
                if let Some((reason, message)) = action.success().filter(|_| wrote) {
                    self.tell(false, reason, message);
                }
            }
            Err(error) => {
                metrics.count_action(action.word(), "error");
                // The trouble of one pod is not the others'.
                if let (Action::PatchPod(change), true) = (action, error.is_refusal()) {
                    self.refused().insert(change.uid.clone());
                } else if !(matches!(action, Action::CreateHookRun(_) | Action::CreateBudget { .. }) && error.is_refusal()) {
                    self.stopped.store(true, Ordering::Relaxed);
                }
                let (reason, message) = action.failure(&error.message);
                self.with_report(|report| {
                    report.failure.get_or_insert(Failure { reason, message: message.clone() });
                    // Nobody answered: it may have been done all the same.
                    report.writes.unknown |= error.is_without_answer();
                });
                // An overloaded or silent server is not news about this object.
                if !error.is_overload() && error.code != 0 {
                    self.tell(true, reason, message);
                }
            }
        }
    }

    fn tell(&self, warning: bool, reason: &str, message: String) {
        let about = self.mandate.owner.clone();
        self.executor.events.tell(Note { about, reporter: self.mandate.reporter, warning, reason: reason.to_owned(), message });
    }

    async fn write(&self, action: &Action) -> Result<Effect, CallError> {
        let (server, owner) = (&self.executor.server, &self.mandate.owner);
        let pods = format!("/api/v1/namespaces/{}/pods", owner.namespace);
        let revisions = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", owner.namespace);
        let runs = format!("/apis/tkex.tencent.com/v1alpha1/namespaces/{}/hookruns", owner.namespace);
        let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", owner.namespace);
        match action {
            Action::CreatePod(new) => self.create(&pods, &new.name, &manifest::pod(owner, new)).await,
            Action::DeletePod { name, uid, version, .. } => match gone(server.delete(&format!("{pods}/{name}"), uid, *version).await) {
                Ok(Effect::Replaced) if version.is_some() => Ok(Effect::Changed),
                effect => effect,
            },
            Action::AdoptPod { name, uid } => {
                if !self.owner_is_alive().await? {
                    return Ok(Effect::Stale);
                }
                changed(server.patch(&format!("{pods}/{name}"), Patch::Strategic, &manifest::adoption(owner, uid)).await)
            }
            Action::ReleasePod { name, uid } => {
                changed(server.patch(&format!("{pods}/{name}"), Patch::Strategic, &manifest::release(owner, uid)).await)
            }
            Action::CreateRevision(new) => self.create(&revisions, &new.name, &manifest::controller_revision(owner, new)).await,
            Action::BumpRevision { name, uid, number } => {
                let patch = json!({ "metadata": { "uid": uid }, "revision": number });
                changed(server.patch(&format!("{revisions}/{name}"), Patch::Merge, &patch).await)
            }
            Action::AdoptRevision { name, uid } => {
                if !self.owner_is_alive().await? {
                    return Ok(Effect::Stale);
                }
                changed(server.patch(&format!("{revisions}/{name}"), Patch::Strategic, &manifest::adoption(owner, uid)).await)
            }
            Action::DeleteRevision { name, uid } => gone(server.delete(&format!("{revisions}/{name}"), uid, None).await),
            Action::Measure(new) => {
                (self.measure)(new);
                Ok(Effect::Begun)
            }
            Action::PatchPod(change) => self.patch_pod(&pods, change).await,
            // Only told.
            Action::SkipHook { .. } => Ok(Effect::Wrote(0)),
            Action::Pause { paused, version } => {
                let spec = json!({ "updateStrategy": { "paused": paused } });
                self.patch_owner(json!({ "metadata": { "resourceVersion": version }, "spec": spec })).await
            }
            Action::ResetRetry { field, version } => {
                let spec = json!({ field: { "retry": false } });
                self.patch_owner(json!({ "metadata": { "resourceVersion": version }, "spec": spec })).await
            }
            Action::SetFinalizers { finalizers, version } => {
                self.patch_owner(json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } })).await
            }
            Action::CreateBudget { name } => self.create(&budgets, name, &manifest::budget(owner, name)).await,
            Action::DeleteBudget { name, uid } => gone(server.delete(&format!("{budgets}/{name}"), uid, None).await),
            Action::CreateHookRun(new) => self.create(&runs, &new.name, &manifest::hook_run(owner, new)).await,
            Action::DeleteHookRun { name, uid } => gone(server.delete(&format!("{runs}/{name}"), uid, None).await),
        }
    }

    /// Creates an object. One of that name may be ours already.
    async fn create(&self, all: &str, name: &str, body: &Value) -> Result<Effect, CallError> {
        match self.executor.server.create(all, body).await {
            Err(error) if error.is_already_there() => self.whose(&format!("{all}/{name}")).await,
            written => Ok(Effect::Wrote(written?.metadata.version())),
        }
    }

    /// Changes the object itself, if nobody has since: the patch names the version.
    async fn patch_owner(&self, patch: Value) -> Result<Effect, CallError> {
        match self.executor.server.patch(&self.mandate.path, Patch::Merge, &patch).await {
            // Somebody else was faster.
            Err(error) if error.is_conflict() => Ok(Effect::Stale),
            written => changed(written),
        }
    }

    async fn patch_pod(&self, pods: &str, change: &PodPatch) -> Result<Effect, CallError> {
        let part = match change.part {
            PodPart::Main => "",
            PodPart::Status => "/status",
            PodPart::Resize => "/resize",
        };
        match self.executor.server.patch(&format!("{pods}/{}{part}", change.name), Patch::Strategic, &change.body).await {
            // The pod is there, but nobody serves this part of it.
            Err(error) if error.is_not_found() && error.message.contains("could not find the requested resource") => Err(error),
            written => changed(written),
        }
    }

    /// An object of that name exists: ours, which the cache has not seen yet, or another's.
    async fn whose(&self, path: &str) -> Result<Effect, CallError> {
        let found: Written = match self.executor.server.get(path).await {
            Err(error) if error.is_not_found() => return Ok(Effect::Stale),
            found => found?,
        };
        let ours =
            found.metadata.owner_references.iter().any(|owner| owner.controller == Some(true) && owner.uid == self.mandate.owner.uid);
        Ok(if ours { Effect::Seen(found.metadata.version()) } else { Effect::NameTaken })
    }

    /// Whether the owner still exists and is not being deleted: nothing is adopted for a dying one.
    async fn owner_is_alive(&self) -> Result<bool, CallError> {
        match self.executor.server.get::<Written>(&self.mandate.path).await {
            Ok(found) => Ok(found.metadata.uid == self.mandate.owner.uid && found.metadata.deletion_timestamp.is_none()),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn gone(result: Result<Written, CallError>) -> Result<Effect, CallError> {
    match result {
        Ok(written) if written.metadata.version() > 0 => Ok(Effect::Wrote(written.metadata.version())),
        Ok(_) => Ok(Effect::Gone),
        Err(error) if error.is_not_found() => Ok(Effect::Gone),
        Err(error) if error.is_conflict() => Ok(Effect::Replaced),
        Err(error) => Err(error),
    }
}

fn changed(result: Result<Written, CallError>) -> Result<Effect, CallError> {
    match result {
        Ok(written) => Ok(Effect::Wrote(written.metadata.version())),
        Err(error) if error.is_not_found() || error.is_conflict() || error.is_other_uid() => Ok(Effect::Replaced),
        Err(error) => Err(error),
    }
}

fn remember(report: &mut Report, action: &Action, owner: &Owner, effect: &Effect) {
    let key = |name: &str| Key { namespace: owner.namespace.clone(), name: name.to_owned() };
    let Writes { object, pods, revisions, hook_runs, budgets, .. } = &mut report.writes;
    let (expected, name, uid): (&mut Expected, &str, &str) = match action {
        Action::CreatePod(new) => (pods, &new.name, ""),
        Action::DeletePod { name, uid, .. }
        | Action::AdoptPod { name, uid }
        | Action::ReleasePod { name, uid }
        | Action::SkipHook { name, uid, .. } => (pods, name, uid),
        Action::CreateRevision(new) => (revisions, &new.name, ""),
        Action::BumpRevision { name, uid, .. } | Action::AdoptRevision { name, uid } | Action::DeleteRevision { name, uid } => {
            (revisions, name, uid)
        }
        Action::PatchPod(change) => (pods, &change.name, &change.uid),
        Action::Pause { .. } | Action::ResetRetry { .. } | Action::SetFinalizers { .. } => (object, &owner.name, &owner.uid),
        Action::CreateBudget { name } => (budgets, name, ""),
        Action::DeleteBudget { name, uid } => (budgets, name, uid),
        Action::CreateHookRun(new) => (hook_runs, &new.name, ""),
        // The one that the plan is about, or one of its own.
        Action::DeleteHookRun { name, uid } => (if owner.uid == *uid { object } else { hook_runs }, name, uid),
        Action::Measure(new) => (object, &new.metric, ""),
    };
    match effect {
        Effect::Wrote(version) | Effect::Seen(version) => expected.wrote(*version),
        Effect::Gone => expected.lost(key(name), uid),
        Effect::Replaced => {
            expected.lost(key(name), uid);
            report.unfinished = true;
        }
        Effect::NameTaken => {
            let names = if matches!(action, Action::CreatePod(_)) { &mut report.taken.pods } else { &mut report.taken.revisions };
            names.push(name.to_owned());
            report.unfinished = true;
        }
        Effect::Changed | Effect::Begun | Effect::Stale => {}
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::{Path, State};
    use http::StatusCode;
    use planner::plan::{DeleteReason, PatchReason};

    use super::*;

    /// What an API server was asked, in order, and what it answers about the pod `odd`; all others do as they are told.
    #[derive(Clone)]
    struct Asked {
        all: Arc<Mutex<Vec<String>>>,
        about_odd: (StatusCode, &'static str),
    }

    async fn answer(State(asked): State<Asked>, method: http::Method, Path(path): Path<String>) -> (StatusCode, String) {
        let name = path.rsplit('/').find(|part| *part != "status").unwrap_or_default().to_owned();
        asked.all.lock().unwrap().push(format!("{method} {name}"));
        let (code, reason) = if name == "odd" { asked.about_odd } else { (StatusCode::OK, "") };
        (code, json!({ "reason": reason, "message": "said the server", "metadata": { "resourceVersion": "7" } }).to_string())
    }

    /// Carries steps out, one write at a time.
    async fn execute(about_odd: (StatusCode, &'static str), steps: &[Vec<Action>]) -> (Report, Vec<String>) {
        let asked = Asked { all: Arc::default(), about_odd };
        let router = Router::new().route("/{*path}", axum::routing::any(answer)).with_state(asked.clone());
        let metrics: Arc<Metrics> = Arc::default();
        let server = Server::new(kube::Client::new(router, "play"), Arc::clone(&metrics));
        let leadership = Arc::new(Leadership::unquestioned());
        let (events, _) = Events::start(server.clone(), Arc::clone(&leadership));
        let executor = Executor { server, leadership, events, metrics, writes: Arc::new(Semaphore::new(1)), per_object: 1 };
        let [api_version, kind, name, namespace, uid] =
            ["tkex.tencent.com/v1alpha1", "GameDeployment", "game", "play", "g"].map(str::to_owned);
        let owner = Owner { api_version, kind, name, namespace, uid };
        let mandate = Mandate { owner, path: "/game".to_owned(), reporter: "test", cautious: false };
        let report = executor.execute(&mandate, steps, &|_| {}).await;
        let all = asked.all.lock().unwrap().clone();
        (report, all)
    }

    fn delete(name: &str, version: Option<u64>) -> Action {
        Action::DeletePod { name: name.to_owned(), uid: format!("uid-{name}"), why: DeleteReason::Scale, version }
    }

    fn drain(name: &str) -> Action {
        let (name, uid) = (name.to_owned(), format!("uid-{name}"));
        Action::PatchPod(PodPatch { name, uid, why: PatchReason::Drain, part: PodPart::Status, body: json!({}) })
    }

    #[tokio::test]
    async fn a_pod_that_has_changed_is_left_alone_and_the_others_go() {
        let steps = [vec![delete("odd", Some(3)), delete("b", Some(4))], vec![delete("c", None)]];
        let (report, asked) = execute((StatusCode::CONFLICT, "Conflict"), &steps).await;
        assert_eq!(asked, ["DELETE odd", "DELETE b", "DELETE c"]);
        assert_eq!((report.failure, report.unfinished, report.unsure), (None, false, false), "its change brings the next look");
        assert_eq!(report.writes.pods, Expected { version: 7, ..Expected::default() }, "it is not gone");
    }

    #[tokio::test]
    async fn a_pod_that_is_another_one_stops_the_plan() {
        let steps = [vec![delete("odd", None), delete("b", None)]];
        let (report, asked) = execute((StatusCode::CONFLICT, "Conflict"), &steps).await;
        assert_eq!(asked, ["DELETE odd"]);
        assert!(report.unfinished && report.failure.is_none(), "{report:?}");
        let odd = Key { namespace: "play".to_owned(), name: "odd".to_owned() };
        assert_eq!(report.writes.pods.gone, HashSet::from([(odd, "uid-odd".to_owned())]));
    }

    #[tokio::test]
    async fn a_pod_whose_change_is_refused_is_not_asked_again_and_holds_up_nobody() {
        let steps = [vec![drain("odd"), drain("b")], vec![drain("odd"), drain("b")]];
        let (report, asked) = execute((StatusCode::UNPROCESSABLE_ENTITY, "Invalid"), &steps).await;
        assert_eq!(asked, ["PATCH odd", "PATCH b", "PATCH b"]);
        assert!(report.failure.is_some_and(|failure| failure.message.contains("said the server")));
    }

    #[tokio::test]
    async fn a_server_that_fails_stops_the_plan() {
        let steps = [vec![drain("odd"), drain("b")]];
        let (report, asked) = execute((StatusCode::INTERNAL_SERVER_ERROR, ""), &steps).await;
        assert_eq!(asked, ["PATCH odd"]);
        assert!(report.failure.is_some() && !report.writes.unknown, "{report:?}");
    }
}
