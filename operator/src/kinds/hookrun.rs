//! HookRuns: how they are read and observed.

use std::sync::Arc;

use api::names::HOOK_REPORTER;
use api::tkex::{HookRun, HookRunSpec, HookRunStatus, Phase};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use planner::hookrun::{self, Observed};
use planner::request::Resource;
use planner::workload::gate::Place;

use super::custom::{Custom, OurKind, basis, object_changed, owner, path, some_of};
use crate::controller::{Basis, Known, Pass, Reconcile};
use crate::execute::Failure;
use crate::hooks::{Hooks, Measurer};
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::settle::Cache;
use crate::store::{Cached as _, Change, Key, Store};

impl OurKind for HookRun {
    type Spec = HookRunSpec;
    type Status = HookRunStatus;
    const KIND: &'static str = "HookRun";
    const PATH: &'static str = "/apis/tkex.tencent.com/v1alpha1/hookruns";
    const OWNED: bool = true;
    const MAX_SPEC_BYTES: usize = 256 * 1024;
    const MOST_VALUES: usize = 8_192;
    const NOTHING: &'static str = r#"{"metrics":[]}"#;

    fn assemble(metadata: ObjectMeta, spec: Self::Spec, status: Option<Self::Status>) -> Self {
        Self { metadata, spec, status }
    }

    fn spec_mut(&mut self) -> &mut Self::Spec {
        &mut self.spec
    }

    fn shorten_status(&mut self) {
        if let Some(status) = &mut self.status {
            status.metric_results = Vec::new();
            status.message = None;
            status.conditions = some_of(std::mem::take(&mut status.conditions));
        }
    }
}

/// Everything that HookRuns are decided from.
#[derive(Debug, Clone)]
pub struct HookRuns {
    /// The objects.
    pub objects: Arc<Store<Custom<HookRun>>>,
    /// Measurements.
    pub hooks: Hooks,
    /// How long a finished run without an owner is kept.
    pub keep: SignedDuration,
}

impl HookRuns {
    fn observe(&self, key: &Key) -> Option<Observed> {
        let entry = self.objects.get(key)?;
        let object = Arc::clone(&entry.object);
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let measured = |metric: &str| {
            let results = object.status.iter().flat_map(|status| &status.metric_results);
            results.filter(|result| result.name == metric).map(|result| result.count.saturating_add(result.error)).sum::<i32>()
        };
        let (flying, results) = self.hooks.of(&uid, |result| result.number >= measured(&result.metric));
        Some(Observed { object, flying, results, keep: self.keep, too_large: entry.too_large.clone(), has_no_room: entry.has_no_room })
    }

    /// A run changed: reconciles it. If it has a verdict or is gone, its measurements are aborted.
    pub fn changed(queue: &Queue, hooks: &Hooks, metrics: &Metrics, change: &Change<Custom<HookRun>>) {
        count(metrics, change);
        if let Some(old) = change.old.as_ref().filter(|old| change.new.as_ref().is_none_or(|new| new.uid() != old.uid())) {
            hooks.end(old.uid());
        }
        if let Some(new) = change.new.as_ref().filter(|new| new.has_verdict()) {
            hooks.end(new.uid());
        }
        object_changed(queue, change);
    }
}

impl Custom<HookRun> {
    /// Whether the run has a verdict.
    #[must_use]
    pub fn has_verdict(&self) -> bool {
        self.object.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_final)
    }
}

/// Counts HookRuns about pods: created, and ended in which phase.
fn count(metrics: &Metrics, change: &Change<Custom<HookRun>>) {
    let Some(run) = &change.new else { return };
    let Some(place) = Place::of(&run.object) else { return };
    let verdict = |run: &Custom<HookRun>| run.object.status.as_ref().and_then(|status| status.phase).filter(|phase| phase.is_final());
    match (change.old.as_ref().map(|run| verdict(run)), verdict(run)) {
        (Some(None), Some(phase)) => metrics.count_answer(place.word(), hookrun::word(phase)),
        (None, None) => metrics.count_answer(place.word(), "Asked"),
        (Some(_) | None, _) => {}
    }
}

impl Reconcile for HookRuns {
    type Status = HookRunStatus;
    const KIND: &'static str = "HookRun";
    const REPORTER: &'static str = HOOK_REPORTER;

    fn basis(&self, key: &Key) -> Option<Basis> {
        basis(&self.objects, key)
    }

    fn pass(&self, key: &Key, _: &Known, now: Timestamp) -> Option<Pass<HookRunStatus>> {
        let seen = self.observe(key)?;
        let measurer = Measurer { hooks: self.hooks.clone(), run: Arc::clone(&seen.object), objects: Arc::clone(&self.objects) };
        Some(Pass {
            owner: owner(&*seen.object),
            path: path(&*seen.object),
            version: seen.object.metadata.resource_version.clone().unwrap_or_default(),
            before: seen.object.status.clone(),
            plan: hookrun::decide(&seen, now),
            pods: 0,
            measurer: Some(measurer),
        })
    }

    /// Before its first status the whole spec is validated.
    fn is_heavy(&self, key: &Key) -> bool {
        self.objects.get(key).is_some_and(|entry| entry.object.status.is_none())
    }

    fn with_trouble(status: HookRunStatus, _: Option<&HookRunStatus>, _: &Failure, _: Timestamp) -> HookRunStatus {
        status
    }

    fn cache(&self, resource: Resource) -> Option<&dyn Cache> {
        (resource == Resource::Object).then_some(&*self.objects)
    }
}
