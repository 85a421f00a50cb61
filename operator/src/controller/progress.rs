//! How a plan is executed that may take long: as long as it holds what it was decided on, and with a status that follows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use planner::plan::Action;
use serde::Serialize;
use tokio::sync::oneshot;

use super::{Basis, Controller, Known, Memory, Pass, Reconcile, note_unanswered};
use crate::client::CallError;
use crate::execute::{ExecutionContext, Ground, Report};
use crate::record::{Recorded, is_urgent};
use crate::settle::Expected;
use crate::store::Key;

/// How often a plan that still creates missing pods is looked after. All other plans end sooner.
const LOOK_AFTER: Duration = Duration::from_millis(1_250);
/// How long the end of a plan waits for the answer to a status.
const LAST_STATUS: Duration = Duration::from_secs(1);

impl<W: Reconcile> Controller<W> {
    /// Executes a plan that was decided on this basis. Also returns what was written to the status meanwhile.
    pub(super) async fn execute(&self, key: &Key, pass: &Pass<W::Status>, memory: &Memory, basis: Option<Basis>) -> (Report, Expected) {
        let (owner, path, measurer) = (pass.owner.clone(), pass.path.clone(), pass.measurer.clone());
        let context = ExecutionContext { owner, path, reporter: W::REPORTER, width: memory.width, measurer };
        let outdated = AtomicBool::new(false);
        let holds = || !outdated.load(Ordering::Relaxed) && self.kind.basis(key) == basis;
        let is_crowded = || self.queue.is_crowded(self.workers);
        let ground = Ground { holds: &holds, is_crowded: &is_crowded };
        let (running, ended) = oneshot::channel();
        let execute = async {
            let report = self.executor.execute(&context, &pass.plan.steps, pass.plan.refusals.clone(), ground).await;
            drop::<oneshot::Sender<()>>(running);
            report
        };
        let look_after = async {
            if pass.plan.actions().any(Action::fills_a_gap) {
                self.look_after(key, pass, &memory.known, ended.map(drop).shared(), &outdated).await
            } else {
                Expected::default()
            }
        };
        tokio::join!(execute, look_after)
    }

    /// Writes the status while missing pods are created. What else is to be done does not wait for them: the plan is then `outdated`.
    async fn look_after(
        &self,
        key: &Key,
        pass: &Pass<W::Status>,
        known: &Known,
        ended: impl Future<Output = ()> + Clone,
        outdated: &AtomicBool,
    ) -> Expected {
        let (mut written, mut is_first) = (Expected::default(), true);
        while tokio::time::timeout(LOOK_AFTER, ended.clone()).await.is_err() {
            let fresh = self.decide(key, known, Timestamp::now()).await.ok().flatten();
            let only_fills_gaps =
                |fresh: &Pass<W::Status>| fresh.plan.actions().next().is_some() && fresh.plan.actions().all(Action::fills_a_gap);
            let fresh = fresh.filter(only_fills_gaps);
            // The status of the plan comes first. After it, numbers only: verdicts are given when all writes were seen.
            let next = if is_first { Some(pass) } else { fresh.as_ref().filter(|fresh| !has_verdict(fresh)) };
            let is_late = async {
                ended.clone().await;
                tokio::time::sleep(LAST_STATUS).await;
            };
            let recorded = match next.filter(|_| fresh.is_some()) {
                Some(next) => tokio::select! {
                    recorded = self.record(key, next, None, Timestamp::now()) => recorded,
                    () = is_late => Err(CallError::no_answer("the plan has ended")),
                },
                None => Ok(Recorded::Stale),
            };
            match recorded {
                Ok(Recorded::Written(version)) => {
                    written.wrote(version);
                    is_first = false;
                }
                Ok(Recorded::Same) => is_first = false,
                Ok(Recorded::Later(_)) => {}
                // Something has changed that the cache may not show yet.
                Ok(Recorded::Stale) => {
                    outdated.store(true, Ordering::Relaxed);
                    break;
                }
                // The API server is in trouble.
                Err(error) => {
                    note_unanswered(&mut written, key, &error);
                    outdated.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
        written
    }
}

/// Whether more than numbers of the status has changed.
fn has_verdict<S: Serialize>(pass: &Pass<S>) -> bool {
    let [before, after] = [serde_json::to_value(&pass.before), serde_json::to_value(&pass.plan.status)].map(Result::unwrap_or_default);
    is_urgent(&before, &after)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::extract::State;
    use planner::plan::{DeleteReason, NewPod, Plan};
    use planner::request::Resource;
    use planner::workload::manifest::Owner;
    use serde_json::{Value, json};

    use super::*;
    use crate::client::Server;
    use crate::events::Events;
    use crate::execute::{Executor, Failure};
    use crate::fair::Places;
    use crate::leader::Leadership;
    use crate::queue::Queue;
    use crate::settle::Cache;

    /// A kind whose objects lack pods. Its fourth decision finds something else to do.
    struct Lacking(AtomicUsize);

    impl Reconcile for Lacking {
        type Status = Value;
        const KIND: &'static str = "Test";
        const REPORTER: &'static str = "test";

        fn basis(&self, _: &Key) -> Option<Basis> {
            Some(Basis::default())
        }

        fn pass(&self, key: &Key, _: &Known, _: Timestamp) -> Option<Pass<Value>> {
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            let [api_version, kind, uid] = ["v1", "Test", "u"].map(str::to_owned);
            let owner = Owner { api_version, kind, name: key.name.clone(), namespace: key.namespace.clone(), uid };
            let creations = (0..100).map(|number| {
                let [name, id, revision] = [format!("p{number}"), number.to_string(), "r".to_owned()];
                let template = json!({}).into();
                Action::CreatePod(NewPod { name, id, revision, template, gated: false, index: None, protected: false, successor: false })
            });
            let delete = Action::DeletePod { name: "d".to_owned(), uid: "d".to_owned(), why: DeleteReason::Scale, version: None };
            let steps = vec![creations.collect(), if number == 3 { vec![delete] } else { Vec::new() }];
            let plan = Plan { steps, ..Plan::only(json!({ "observedGeneration": 1, "replicas": number })) };
            let before = Some(if number == 0 { json!({}) } else { json!({ "observedGeneration": 1 }) });
            Some(Pass { owner, path: "/test".to_owned(), version: "1".to_owned(), before, plan, pods: 0, measurer: None })
        }

        fn with_trouble(status: Value, _: Option<&Value>, _: &Failure, _: Timestamp) -> Value {
            status
        }

        fn cache(&self, _: Resource) -> Option<&dyn Cache> {
            None
        }
    }

    type Asked = Arc<Mutex<Vec<(String, Value)>>>;

    async fn answer(State(asked): State<Asked>, request: axum::extract::Request) -> String {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        asked.lock().unwrap().push((format!("{} {}", parts.method, parts.uri.path()), serde_json::from_slice(&body).unwrap_or_default()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        json!({ "metadata": { "resourceVersion": "7" } }).to_string()
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_plan_writes_its_status_meanwhile_and_ends_when_there_is_other_work() {
        let asked = Asked::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&asked));
        let server = Server::new(kube::Client::new(router, "play"), Arc::default());
        let leadership = Arc::new(Leadership::unquestioned());
        let (events, _) = Events::start(server.clone(), Arc::clone(&leadership));
        let executor = Executor { server, leadership, events, metrics: Arc::default(), writes: Places::new(1), per_object: 1 };
        let kind = Arc::new(Lacking(AtomicUsize::new(0)));
        let controller = Controller::new(Arc::clone(&kind), Arc::new(Queue::new("Test", Arc::default())), executor, 1);
        controller.reconcile(&Key { namespace: "play".to_owned(), name: "game".to_owned() }).await;
        let asked = asked.lock().unwrap();
        let of = |method: &'static str| asked.iter().filter(move |(line, _)| line.starts_with(method));
        let written: Vec<&Value> = of("PATCH").map(|(_, body)| &body["status"]["replicas"]).collect();
        assert_eq!(written, [0, 2], "first that of the plan, then numbers; none of the plan follows newer ones");
        assert_eq!((of("DELETE").count(), kind.0.load(Ordering::Relaxed)), (0, 4), "it is left to the next pass");
        assert!((10..20).contains(&of("POST").count()), "{}", of("POST").count());
    }
}
