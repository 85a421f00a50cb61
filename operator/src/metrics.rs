//! The metrics for Prometheus.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// A kind of object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Kind {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    verb: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reconcile {
    kind: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Action {
    action: &'static str,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct State {
    kind: &'static str,
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Gate {
    kind: &'static str,
    hook: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    hook: &'static str,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Measured {
    provider: &'static str,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Provider {
    provider: &'static str,
}

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: Family<Call, Counter>,
    reconciles: Family<Reconcile, Counter>,
    reconcile_seconds: Family<Kind, Histogram>,
    queue_depth: Family<Kind, Gauge>,
    queue_seconds: Family<Kind, Histogram>,
    actions: Family<Action, Counter>,
    watch_restarts: Family<Kind, Counter>,
    watch_failing: Family<Kind, Gauge>,
    unreadable: Family<Kind, Counter>,
    cached: Family<Kind, Gauge>,
    workloads: Family<State, Gauge>,
    gates_waiting: Family<Gate, Gauge>,
    gates_oldest: Family<Gate, Gauge>,
    gate_answers: Family<Answered, Counter>,
    leading: Gauge<i64>,
    writes: Gauge<u64, AtomicU64>,
    measurements: Family<Measured, Counter>,
    measurement_seconds: Family<Provider, Histogram>,
    measuring: Gauge<u64, AtomicU64>,
    refused_egress: Counter,
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 4.0, 9))
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("gameplane");
        let metrics = Self {
            registry: Registry::default(),
            calls: Family::default(),
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(seconds),
            queue_depth: Family::default(),
            queue_seconds: Family::new_with_constructor(seconds),
            actions: Family::default(),
            watch_restarts: Family::default(),
            watch_failing: Family::default(),
            unreadable: Family::default(),
            cached: Family::default(),
            workloads: Family::default(),
            gates_waiting: Family::default(),
            gates_oldest: Family::default(),
            gate_answers: Family::default(),
            leading: Gauge::default(),
            writes: Gauge::default(),
            measurements: Family::default(),
            measurement_seconds: Family::new_with_constructor(seconds),
            measuring: Gauge::default(),
            refused_egress: Counter::default(),
        };
        registry.register("api_calls", "Calls to the API server; code 0 means no answer", metrics.calls.clone());
        registry.register("reconciles", "Passes over one object", metrics.reconciles.clone());
        registry.register("reconcile_seconds", "How long a pass took", metrics.reconcile_seconds.clone());
        registry.register("queue_depth", "Objects that wait for a pass", metrics.queue_depth.clone());
        registry.register("queue_seconds", "How long an object waited for its pass", metrics.queue_seconds.clone());
        registry.register("actions", "Writes of work, by what they do", metrics.actions.clone());
        registry.register("watch_restarts", "Watches that were opened again", metrics.watch_restarts.clone());
        registry.register("watch_failing", "1 while a kind cannot be listed or watched", metrics.watch_failing.clone());
        registry.register("unreadable_objects", "Objects that could not be read and are not served", metrics.unreadable.clone());
        registry.register("cached_objects", "Objects in the cache", metrics.cached.clone());
        registry.register("workloads", "Objects by the reason of their Progressing condition", metrics.workloads.clone());
        registry.register("gates_waiting", "Pods that wait for a hook", metrics.gates_waiting.clone());
        let oldest = "When the pod that waits longest was asked first, in Unix seconds; 0 if none waits";
        registry.register("gates_oldest_timestamp_seconds", oldest, metrics.gates_oldest.clone());
        registry.register(
            "gate_answers",
            "HookRuns about pods that were created (Asked) or have ended, by their phase",
            metrics.gate_answers.clone(),
        );
        registry.register("leading", "1 while this process leads", metrics.leading.clone());
        registry.register("writes_in_flight", "Writes that wait for their answer", metrics.writes.clone());
        registry.register("hook_measurements", "Measurements of hooks that have ended", metrics.measurements.clone());
        registry.register("hook_measurement_seconds", "How long a measurement of a hook took", metrics.measurement_seconds.clone());
        registry.register("hook_measurements_in_flight", "Measurements of hooks under way", metrics.measuring.clone());
        registry.register("hook_refused_egress", "Requests of hooks that the egress policy refused", metrics.refused_egress.clone());
        Self { registry, ..metrics }
    }
}

impl Metrics {
    /// The metrics in the OpenMetrics text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }

    pub(crate) fn count_call(&self, verb: &'static str, code: u16) {
        self.calls.get_or_create(&Call { verb, code }).inc();
    }

    pub(crate) fn count_reconcile(&self, kind: &'static str, result: &'static str, took: std::time::Duration) {
        self.reconciles.get_or_create(&Reconcile { kind, result }).inc();
        self.reconcile_seconds.get_or_create(&Kind { kind }).observe(took.as_secs_f64());
    }

    pub(crate) fn set_queue_depth(&self, kind: &'static str, depth: usize) {
        self.queue_depth.get_or_create(&Kind { kind }).set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    pub(crate) fn observe_wait(&self, kind: &'static str, waited: std::time::Duration) {
        self.queue_seconds.get_or_create(&Kind { kind }).observe(waited.as_secs_f64());
    }

    pub(crate) fn count_action(&self, action: &'static str, result: &'static str) {
        self.actions.get_or_create(&Action { action, result }).inc();
    }

    pub(crate) fn count_measurement(&self, provider: &'static str, phase: &'static str, took: std::time::Duration) {
        self.measurements.get_or_create(&Measured { provider, phase }).inc();
        self.measurement_seconds.get_or_create(&Provider { provider }).observe(took.as_secs_f64());
    }

    pub(crate) fn hook_started(&self) {
        self.measuring.inc();
    }

    pub(crate) fn hook_ended(&self) {
        self.measuring.dec();
    }

    pub(crate) fn count_refused_egress(&self) {
        self.refused_egress.inc();
    }

    pub(crate) fn count_watch_restart(&self, kind: &'static str) {
        self.watch_restarts.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn set_watch_failing(&self, kind: &'static str, failing: bool) {
        self.watch_failing.get_or_create(&Kind { kind }).set(i64::from(failing));
    }

    pub(crate) fn forget_watches(&self) {
        self.watch_failing.clear();
    }

    pub(crate) fn count_unreadable(&self, kind: &'static str) {
        self.unreadable.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn set_cached(&self, kind: &'static str, count: usize) {
        self.cached.get_or_create(&Kind { kind }).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn set_workloads(&self, kind: &'static str, state: &str, count: i64) {
        self.workloads.get_or_create(&State { kind, state: state.to_owned() }).set(count);
    }

    pub(crate) fn set_gate(&self, kind: &'static str, hook: &'static str, waiting: i64, oldest: i64) {
        self.gates_waiting.get_or_create(&Gate { kind, hook }).set(waiting);
        self.gates_oldest.get_or_create(&Gate { kind, hook }).set(oldest);
    }

    pub(crate) fn count_answer(&self, hook: &'static str, phase: &'static str) {
        self.gate_answers.get_or_create(&Answered { hook, phase }).inc();
    }

    /// Whether this process leads.
    pub fn set_leading(&self, leading: bool) {
        self.leading.set(i64::from(leading));
    }

    /// Clears what only holds for a leader.
    pub fn end_term(&self) {
        self.set_leading(false);
        self.workloads.clear();
        self.gates_waiting.clear();
        self.gates_oldest.clear();
        self.cached.clear();
        self.queue_depth.clear();
    }

    pub(crate) fn write_started(&self) {
        self.writes.inc();
    }

    pub(crate) fn write_ended(&self) {
        self.writes.dec();
    }
}
