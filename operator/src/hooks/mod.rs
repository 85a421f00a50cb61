//! Runs measurements concurrently, within limits, so that an endpoint that hangs delays only its own measurements.

mod account;
mod address;
pub(crate) mod cluster;
pub mod egress;
mod evaluate;
mod exec;
pub(crate) mod hosts;
mod http;
mod kubernetes;
pub(crate) mod large;
mod names;
mod prometheus;
mod secret;
mod subject;
mod target;
#[cfg(test)]
mod testing;
pub(crate) mod tls;
mod web;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use ::http::{HeaderMap, HeaderName, HeaderValue, header};
use api::tkex::{Header, HookRun, Metric, Phase};
use jiff::Timestamp;
use planner::hookrun::arguments::{Place, fill};
use planner::hookrun::{Measured, Outcome, shortened};
use planner::plan::NewMeasurement;
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};

use crate::client::Server;
use crate::fair::{self, Places};
use crate::kinds::custom::Custom;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::store::{Key, Store};
pub use account::Clients;
use egress::Egress;
use evaluate::{Evaluation, Reading};
use http::NoAnswer;
use target::Target;

/// How many measurements run at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// In all.
    pub total: usize,
    /// In one namespace.
    pub per_namespace: usize,
    /// To one address and port.
    pub per_host: usize,
}

/// Runs single measurements: the clients, the egress policy and the limits that they need.
#[derive(Debug)]
pub struct Asker {
    /// The API server with the operator's own rights: for Secrets, and to look up what an address or a name belongs to.
    pub server: Server,
    /// The configuration of clients that impersonate ServiceAccounts.
    pub config: kube::Config,
    /// Clients that impersonate ServiceAccounts.
    pub clients: Clients,
    /// Whether this process still leads.
    pub leadership: Arc<Leadership>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// The egress policy.
    pub egress: Arc<Egress>,
    /// Concurrency limits.
    pub limits: Limits,
    /// Limits the measurements in flight to each address and port.
    pub(crate) hosts: hosts::Hosts,
    /// Which certificates are trusted.
    pub(crate) tls: Arc<tls::Tls>,
    /// Limits the large answers that are held in memory.
    pub(crate) large: Arc<large::LargeAnswers>,
}

/// Measurements that are in flight or have ended. Dropping the last clone aborts them.
#[derive(Debug, Clone)]
pub struct Hooks {
    shared: Arc<Shared>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

#[derive(Debug)]
struct Shared {
    asker: Asker,
    queue: Arc<Queue>,
    runs: Mutex<HashMap<String, Run>>,
    /// Slots for measurements. The last half is for namespaces that use few.
    slots: Arc<Places>,
    /// Parses and evaluates answers.
    evaluation: Evaluation,
}

/// The measurements of a HookRun that its status does not have yet.
#[derive(Debug, Default)]
struct Run {
    flying: HashMap<String, AbortHandle>,
    results: Vec<Measured>,
}

/// One measurement of one run.
#[derive(Debug)]
pub(crate) struct Measurement {
    namespace: String,
    /// The uid of the pod that the operator created the run for, if it did.
    pod: Option<String>,
    metric: Metric,
    arguments: BTreeMap<String, String>,
    /// The place that its answer takes if it is large.
    large: OnceLock<fair::Place>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Hooks {
    /// No measurement is in flight. A run is added to `queue` whenever one of its measurements ends.
    #[must_use]
    pub fn new(asker: Asker, queue: Arc<Queue>) -> Self {
        let slots = Places::with_reserve(asker.limits.total, asker.limits.per_namespace);
        let evaluation = Evaluation::default();
        let shared = Shared { asker, queue, runs: Mutex::default(), slots, evaluation };
        Self { shared: Arc::new(shared), tasks: Arc::default() }
    }

    /// The metrics of a run whose measurements are in flight, and the results that its status does not have yet.
    #[must_use]
    pub fn of(&self, uid: &str, is_new: impl Fn(&Measured) -> bool) -> (BTreeSet<String>, Vec<Measured>) {
        let mut runs = locked(&self.shared.runs);
        let Some(run) = runs.get_mut(uid) else { return (BTreeSet::new(), Vec::new()) };
        run.results.retain(is_new);
        let known = (run.flying.keys().cloned().collect(), run.results.clone());
        if run.flying.is_empty() && run.results.is_empty() {
            runs.remove(uid);
        }
        known
    }

    /// A run has a verdict or is gone: its measurements are aborted.
    pub fn end(&self, uid: &str) {
        let run = locked(&self.shared.runs).remove(uid);
        run.iter().flat_map(|run| run.flying.values()).for_each(AbortHandle::abort);
    }

    /// Starts a measurement and returns at once. Nothing is started for a run that `is_over`.
    fn start(&self, run: &HookRun, new: &NewMeasurement, is_over: impl Fn() -> bool) {
        let metadata = &run.metadata;
        let [namespace, name, uid] = [&metadata.namespace, &metadata.name, &metadata.uid].map(|part| part.clone().unwrap_or_default());
        let key = Key { namespace, name };
        let Some(metric) = run.spec.metrics.iter().find(|metric| metric.name == new.metric) else { return };
        let mut runs = locked(&self.shared.runs);
        // Checked under the lock: a run that ends later aborts what is started here.
        if is_over() {
            return;
        }
        let known = runs.entry(uid.clone()).or_default();
        if known.flying.contains_key(&new.metric) {
            return;
        }
        let arguments = run.spec.args.iter().filter_map(|one| Some((one.name.clone(), one.value.clone()?))).collect();
        let (namespace, pod) = (key.namespace.clone(), subject::of(run));
        let measurement = Measurement { namespace, pod, metric: metric.clone(), arguments, large: OnceLock::new() };
        let report = ReportOnDrop { shared: Arc::clone(&self.shared), key, uid, metric: new.metric.clone(), result: None };
        let number = new.number;
        let mut tasks = locked(&self.tasks);
        while tasks.try_join_next().is_some() {}
        let handle = tasks.spawn(async move {
            let result = report.shared.measure(measurement, number).await;
            report.with(result);
        });
        known.flying.insert(new.metric.clone(), handle);
    }
}

/// Starts measurements of one HookRun, as it was when they were decided on.
#[derive(Debug, Clone)]
pub struct Measurer {
    /// All measurements.
    pub hooks: Hooks,
    /// The run.
    pub run: Arc<HookRun>,
    /// HookRuns as they are now.
    pub objects: Arc<Store<Custom<HookRun>>>,
}

impl Measurer {
    /// Whether the run has a verdict or is gone.
    fn is_over(&self) -> bool {
        let metadata = &self.run.metadata;
        let [namespace, name] = [&metadata.namespace, &metadata.name].map(|part| part.clone().unwrap_or_default());
        let now = self.objects.get(&Key { namespace, name }).filter(|now| now.object.metadata.uid == metadata.uid);
        now.is_none_or(|now| now.has_verdict())
    }

    /// Starts a measurement and returns at once.
    pub fn start(&self, new: &NewMeasurement) {
        self.hooks.start(&self.run, new, || self.is_over());
    }
}

/// Reports the end of a measurement, even if it panicked or was aborted.
struct ReportOnDrop {
    shared: Arc<Shared>,
    key: Key,
    uid: String,
    metric: String,
    result: Option<Measured>,
}

impl ReportOnDrop {
    fn with(mut self, result: Option<Measured>) {
        self.result = result;
    }
}

impl Drop for ReportOnDrop {
    fn drop(&mut self) {
        // Results of a run that has ended meanwhile are dropped.
        if let Some(run) = locked(&self.shared.runs).get_mut(&self.uid) {
            run.flying.remove(&self.metric);
            run.results.extend(self.result.take());
        }
        self.shared.queue.add(self.key.clone());
    }
}

/// Counts a measurement as in flight until it is dropped.
struct InFlight<'a>(&'a Metrics);

impl<'a> InFlight<'a> {
    fn new(metrics: &'a Metrics) -> Self {
        metrics.hook_started();
        Self(metrics)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.hook_ended();
    }
}

impl Shared {
    /// Waits for its slots, sends the request and evaluates the answer. None if this process does not lead any more.
    async fn measure(&self, measurement: Measurement, number: i32) -> Option<Measured> {
        let metric = measurement.metric.name.clone();
        let (_turn, target) = self.admitted(&measurement).await;
        if !self.asker.leadership.may_write() {
            return None;
        }
        let provider = provider(&measurement.metric);
        let (started, clock) = (Timestamp::now(), tokio::time::Instant::now());
        let in_flight = InFlight::new(&self.asker.metrics);
        let answer = match target {
            Ok(target) => self.asker.ask(&measurement, target).await,
            Err(error) => Err(error),
        };
        drop(in_flight);
        let outcome = match answer {
            Ok(reading) => self.evaluation.of(measurement, reading).await,
            Err(error) => {
                if error.refused {
                    self.asker.metrics.count_refused_egress();
                }
                Outcome { phase: Phase::Error, value: None, message: Some(error.message) }
            }
        };
        self.asker.metrics.count_measurement(provider, planner::hookrun::word(outcome.phase), clock.elapsed());
        let outcome =
            Outcome { value: outcome.value.as_deref().map(shortened), message: outcome.message.as_deref().map(shortened), ..outcome };
        Some(Measured { metric, number, started, finished: Timestamp::now().max(started), outcome })
    }

    /// Waits for all slots of a measurement, and returns them with its target. The limit per host counts addresses, so the name
    /// is resolved first, while the other slots are held. If an address is busy they are released, and the name is resolved again
    /// after the wait.
    async fn admitted(&self, measurement: &Measurement) -> (Vec<fair::Place>, Result<Option<Target>, NoAnswer>) {
        let mut hosts = BTreeSet::new();
        loop {
            let mut turn = self.turn(measurement, &hosts).await;
            let target = self.asker.target(measurement).await;
            let found: BTreeSet<SocketAddr> = target.iter().flatten().flat_map(Target::hosts).collect();
            let places: Option<Vec<_>> =
                found.difference(&hosts).map(|host| self.asker.hosts.of(*host).try_take(&measurement.namespace)).collect();
            if let Some(places) = places {
                turn.extend(places);
                return (turn, target);
            }
            hosts = found;
        }
    }

    /// Takes all slots or none: a measurement that waits for a busy host, or for its namespace, holds no slot that others need.
    async fn turn(&self, measurement: &Measurement, hosts: &BTreeSet<SocketAddr>) -> Vec<fair::Place> {
        let mut gates = vec![Arc::clone(&self.slots)];
        gates.extend(hosts.iter().map(|host| self.asker.hosts.of(*host)));
        let mut waited: Option<(usize, fair::Place)> = None;
        loop {
            let (mine, mut places): (Option<usize>, Vec<_>) =
                waited.take().map_or((None, Vec::new()), |(mine, place)| (Some(mine), vec![place]));
            let mut others = gates.iter().enumerate().filter(|(index, _)| Some(*index) != mine);
            let busy = others.find_map(|(index, gate)| match gate.try_take(&measurement.namespace) {
                Some(place) => {
                    places.push(place);
                    None
                }
                None => Some((index, gate)),
            });
            let Some((index, gate)) = busy else { return places };
            drop(places);
            // The slot that it waited for is kept while the others are tried: released, it would go to another one that waits.
            waited = Some((index, gate.take(&measurement.namespace).await));
        }
    }
}

fn provider(metric: &Metric) -> &'static str {
    let provider = &metric.provider;
    match (&provider.web, &provider.prometheus, &provider.kubernetes) {
        (Some(_), _, _) => "web",
        (None, Some(_), _) => "prometheus",
        (None, None, Some(_)) => "kubernetes",
        (None, None, None) => "exec",
    }
}

/// Headers of the connection and of the message's length, which hooks may not set.
const OURS: [HeaderName; 6] =
    [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION, header::UPGRADE, header::TE];

/// The result of a measurement, before its conditions are evaluated.
enum Answer {
    /// A value for the conditions.
    Value(Value),
    /// A success without a value.
    Success,
    /// A failure.
    Refused { value: Option<String>, message: String },
    /// Not a number: inconclusive.
    Nothing(String),
}

impl Asker {
    async fn ask(&self, measurement: &Measurement, target: Option<Target>) -> Result<Reading, NoAnswer> {
        let provider = &measurement.metric.provider;
        match (&provider.web, &provider.prometheus, target) {
            (Some(web), _, Some(target)) => return web::measure(self, measurement, web, target).await,
            (None, Some(prometheus), Some(target)) => return prometheus::measure(self, measurement, prometheus, target).await,
            _ => {}
        }
        let answer = match (&provider.kubernetes, &provider.exec) {
            (Some(spec), _) => return kubernetes::measure(self, measurement, spec).await,
            (None, Some(spec)) => exec::measure(self, measurement, spec).await?,
            (None, None) => return Err(NoAnswer::because("nothing is asked")),
        };
        Ok(Box::new(|| Ok(answer)))
    }

    /// Headers with their values, including those from Secrets.
    async fn headers(&self, measurement: &Measurement, headers: &[Header]) -> Result<HeaderMap, NoAnswer> {
        let mut all = HeaderMap::new();
        for one in headers {
            let name = HeaderName::from_bytes(one.key.as_bytes());
            let name = name.map_err(|_| NoAnswer::because(format!("{:?} is no name of a header", one.key)))?;
            if OURS.contains(&name) {
                return Err(NoAnswer::because(format!("a hook cannot set the header {name}")));
            }
            let value = match &one.value_from {
                Some(source) => secret::value(self, measurement, &source.secret_key_ref).await?,
                None => {
                    let text = one.value.as_deref().unwrap_or_default();
                    fill(text, &measurement.arguments, Place::Plain).map_err(|problem| NoAnswer::because(problem.0))?.into_bytes()
                }
            };
            let mut value = HeaderValue::from_bytes(&value)
                .map_err(|_| NoAnswer::because(format!("the value of header {} does not fit a header", one.key)))?;
            value.set_sensitive(one.value_from.is_some());
            all.append(name, value);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use egress::Policy;
    use testing::{asker, measurement};

    #[tokio::test(start_paused = true)]
    async fn two_names_of_one_address_share_its_limit_and_hold_up_no_others() {
        let (asker, _) = asker(Policy::default(), Vec::new());
        let queue = Arc::new(Queue::new("HookRun", Arc::clone(&asker.metrics)));
        let shared = Hooks::new(asker, queue).shared;
        let (name, other_name) = (measurement("http://10.0.0.9:80/", None), measurement("http://[::ffff:10.0.0.9]/", None));
        let other_port = measurement("http://10.0.0.9:81/", None);
        let (first, target) = shared.admitted(&name).await;
        assert_eq!(target.unwrap().unwrap().addresses, ["10.0.0.9:80".parse().unwrap()]);
        let mut waiting = std::pin::pin!(shared.admitted(&other_name));
        let second = Duration::from_secs(1);
        assert!(tokio::time::timeout(second, &mut waiting).await.is_err(), "the address is busy, whatever it is called");
        let (third, _) = tokio::time::timeout(second, shared.admitted(&other_port))
            .await
            .expect("a measurement that waits for a host holds no other place");
        drop((first, third));
        let (_, target) = waiting.await;
        assert!(target.unwrap().is_some());
    }
}
