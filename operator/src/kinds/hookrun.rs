//! HookRuns: what is watched for them, and how they are observed.

use std::sync::Arc;

use api::names::HOOK_REPORTER;
use api::tkex::{HookRun, HookRunStatus, Phase};
use jiff::{SignedDuration, Timestamp};
use planner::hookrun::{self, Observed};
use planner::plan::NewMeasurement;
use planner::request::Resource;

use super::custom::{Custom, object_changed, owner, path};
use crate::controller::{Known, Pass, Workload};
use crate::execute::Failure;
use crate::hooks::Hooks;
use crate::queue::Queue;
use crate::settle::Cache;
use crate::store::{Cached as _, Change, Key, Store};

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
        if object.status.as_ref().and_then(|status| status.phase).is_some_and(Phase::is_final) {
            self.hooks.end(&uid);
        }
        let measured = |metric: &str| {
            let results = object.status.iter().flat_map(|status| &status.metric_results);
            results.filter(|result| result.name == metric).map(|result| result.count.saturating_add(result.error)).sum::<i32>()
        };
        let (flying, results) = self.hooks.of(&uid, |result| result.number >= measured(&result.metric));
        Some(Observed { object, flying, results, keep: self.keep, too_large: entry.too_large.clone(), has_no_room: entry.has_no_room })
    }
}

impl HookRuns {
    /// A run changed: reconciles it. If it is gone, its measurements are aborted.
    pub fn changed(queue: &Queue, hooks: &Hooks, change: &Change<Custom<HookRun>>) {
        if let (Some(old), None) = (&change.old, &change.new) {
            hooks.end(old.uid());
        }
        object_changed(queue, change);
    }
}

impl Workload for HookRuns {
    type Status = HookRunStatus;
    const KIND: &'static str = "HookRun";
    const REPORTER: &'static str = HOOK_REPORTER;

    fn pass(&self, key: &Key, _: &Known, now: Timestamp) -> Option<Pass<HookRunStatus>> {
        let seen = self.observe(key)?;
        Some(Pass {
            owner: owner(&*seen.object),
            path: path(&*seen.object),
            version: seen.object.metadata.resource_version.clone().unwrap_or_default(),
            before: seen.object.status.clone(),
            plan: hookrun::decide(&seen, now),
            pods: 0,
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

    fn measure(&self, key: &Key, new: &NewMeasurement) {
        if let Some(entry) = self.objects.get(key) {
            self.hooks.begin(key.clone(), &entry.object, new);
        }
    }
}
