//! GameDeployments: interchangeable pods with generated names.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use api::tkex::{CanaryStatus, GameDeployment, GameDeploymentStatus, HookStep, PodHook, PodHookCondition};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::facts::node::Nodes;
use crate::facts::pod::PodFacts;
use crate::plan::NewPod;
use crate::workload::conditions::Report;
use crate::workload::gate::{Hook, Place};
use crate::workload::ledger::Ledger;
use crate::workload::view::{Group, Target, View};
use crate::workload::{Kind, Memory, Now, Status, Workload, canary, naming, order};

impl Kind for GameDeployment {
    type Status = GameDeploymentStatus;

    fn workload(&self) -> Workload<'_> {
        let spec = &self.spec;
        let pre_delete = spec.pre_delete_update_strategy.as_ref();
        Workload {
            group: "tkex.tencent.com",
            kind: "GameDeployment",
            metadata: &self.metadata,
            replicas: spec.replicas,
            selector: &spec.selector,
            template: &spec.template,
            min_ready: SignedDuration::from_secs(i64::from(spec.min_ready_seconds.max(0))),
            history_limit: spec.revision_history_limit,
            strategy: Cow::Borrowed(&spec.update_strategy),
            hooks: [
                pre_delete.and_then(|strategy| hook(Place::PreDelete, strategy.hook.as_ref(), strategy.retry)),
                pod_hook(Place::PreInplace, spec.pre_inplace_update_strategy.as_ref()),
                pod_hook(Place::PostInplace, spec.post_inplace_update_strategy.as_ref()),
            ],
            protect: pre_delete.is_some_and(|strategy| strategy.protect == Some(true)),
            index: spec.pod_index.as_ref(),
            pods_to_delete: spec.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.pods_to_delete),
            ungated: spec.disable_readiness_gate == Some(true),
            memory: self.status.as_ref().map(memory).unwrap_or_default(),
        }
    }

    fn status(&self) -> Option<&GameDeploymentStatus> {
        self.status.as_ref()
    }

    fn order(pods: &mut [Arc<PodFacts>], all: &[Arc<PodFacts>], nodes: &Nodes, now: Now) {
        order::least_missed_first(pods, all, nodes, now);
    }

    /// Outdated pods go first, as far as the partition allows, then updated ones.
    fn class(ledger: &Ledger, pod: &PodFacts) -> u8 {
        match ledger.view.group(pod) {
            Group::Stray => 0,
            Group::Current if ledger.current_to_spare > 0 => 1,
            Group::Update => 2,
            Group::Current => 3,
        }
    }

    fn pods(view: &View, target: &Target, count: usize, taken: &mut BTreeSet<String>) -> Vec<NewPod> {
        let workload = &view.workload;
        let names = naming::names(workload.name(), workload.uid(), &target.name, taken);
        names.take(count).map(|(name, id)| view.new_pod(target, name, id)).collect()
    }

    fn report(before: GameDeploymentStatus, view: &View, report: Report) -> GameDeploymentStatus {
        let Report { rollout, waiting: [pre_delete, pre_inplace, post_inplace], .. } = report;
        // The status of a canary stays once there was one.
        let has_canary = before.canary.is_some() || view.workload.strategy.canary.is_some();
        let canary = CanaryStatus {
            revision: Some(report.current_revision.clone()),
            pause_start_time: None,
            current_step_hook_run: rollout.hook_run,
        };
        GameDeploymentStatus {
            observed_generation: report.generation,
            replicas: report.replicas,
            ready_replicas: report.ready,
            available_replicas: report.available,
            updated_replicas: report.updated,
            updated_ready_replicas: report.updated_ready,
            update_revision: rollout.revision,
            current_revision: report.current_revision,
            collision_count: Some(report.collisions),
            label_selector: report.selector,
            conditions: report.conditions,
            pause_conditions: rollout.pauses,
            current_step_index: rollout.index.and_then(|index| i32::try_from(index).ok()),
            current_step_hash: rollout.hash,
            canary: has_canary.then_some(canary),
            pre_delete_hook_condition: pre_delete,
            pre_inplace_hook_condition: pre_inplace,
            post_inplace_hook_condition: post_inplace,
        }
    }
}

fn pod_hook(place: Place, strategy: Option<&PodHook>) -> Option<Hook<'_>> {
    strategy.and_then(|strategy| hook(place, strategy.hook.as_ref(), strategy.retry))
}

fn hook(place: Place, step: Option<&HookStep>, retry: Option<bool>) -> Option<Hook<'_>> {
    step.map(|step| Hook { place, step, retry: retry == Some(true) })
}

impl Status for GameDeploymentStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn conditions_mut(&mut self) -> (&mut Vec<Condition>, &mut Option<i64>) {
        (&mut self.conditions, &mut self.observed_generation)
    }

    fn waiting(&self) -> [&[PodHookCondition]; 3] {
        [&self.pre_delete_hook_condition, &self.pre_inplace_hook_condition, &self.post_inplace_hook_condition]
    }
}

/// What the status remembers for the next decision. The original operator stored the stable revision in the status of
/// the canary.
fn memory(status: &GameDeploymentStatus) -> Memory<'_> {
    let current = Some(&status.current_revision).filter(|name| !name.is_empty());
    Memory {
        current_revision: current.or_else(|| status.canary.as_ref()?.revision.as_ref()).map_or("", String::as_str),
        collisions: status.collision_count.unwrap_or_default(),
        rollout: canary::Memory {
            revision: status.update_revision.clone(),
            index: status.current_step_index.and_then(|index| usize::try_from(index).ok()),
            hash: status.current_step_hash.clone(),
            pauses: status.pause_conditions.clone(),
            hook_run: status.canary.as_ref().and_then(|canary| canary.current_step_hook_run.clone()),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Laws and scenarios read a GameDeployment through this mapping, so they cannot notice what it leaves out.
    #[test]
    fn every_field_of_the_spec_reaches_decisions() {
        let hook = |name: &str| json!({ "templateName": name });
        let object: GameDeployment = serde_json::from_value(json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
            "metadata": { "name": "game", "namespace": "play", "uid": "u", "resourceVersion": "7" },
            "spec": {
                "replicas": 5, "minReadySeconds": 3, "revisionHistoryLimit": 4, "disableReadinessGate": true,
                "selector": { "matchLabels": { "app": "game" } },
                "template": { "metadata": { "labels": { "app": "game" } }, "spec": { "containers": [] } },
                "updateStrategy": { "type": "InplaceUpdate", "partition": 2, "paused": true },
                "preDeleteUpdateStrategy": { "hook": hook("before"), "retry": true, "protect": true },
                "preInplaceUpdateStrategy": { "hook": hook("change") },
                "postInplaceUpdateStrategy": { "hook": hook("after"), "retry": true },
                "podIndex": { "start": 1, "end": 9 },
                "scaleStrategy": { "podsToDelete": ["game-a"] },
            },
            "status": {
                "currentRevision": "game-1", "updateRevision": "game-2", "collisionCount": 6, "currentStepIndex": 3, "currentStepHash": "s1",
                "pauseConditions": [{ "reason": "PausedByStep", "startTime": "2026-11-15T10:00:00Z" }],
                "canary": { "currentStepHookRun": "run" },
            },
        }))
        .unwrap();
        let workload = object.workload();
        assert_eq!((workload.group, workload.kind), ("tkex.tencent.com", "GameDeployment"));
        assert_eq!((workload.name(), workload.uid(), workload.version()), ("game", "u", "7"));
        assert_eq!((workload.replicas, workload.min_ready.as_secs(), workload.history_limit), (5, 3, 4));
        assert!(workload.selector.matches(&workload.template.labels()) && !workload.selector.matches(&std::collections::BTreeMap::new()));
        assert_eq!(*workload.strategy, object.spec.update_strategy);
        let hooks = workload.hooks.map(|hook| hook.map(|hook| (hook.place, hook.step.template_name.clone(), hook.retry)));
        let [before, change, after] = [Place::PreDelete, Place::PreInplace, Place::PostInplace];
        let named = |place, name: &str, retry| Some((place, name.to_owned(), retry));
        assert_eq!(hooks, [named(before, "before", true), named(change, "change", false), named(after, "after", true)]);
        assert!(workload.protect && workload.protects() && workload.ungated);
        assert_eq!(workload.index.map(|range| (range.start, range.end)), Some((1, 9)));
        assert_eq!(workload.pods_to_delete, ["game-a"]);
        let Memory { current_revision, collisions, rollout } = workload.memory;
        assert_eq!((current_revision, collisions, rollout.revision.as_str()), ("game-1", 6, "game-2"));
        assert_eq!((rollout.index, rollout.hash.as_deref(), rollout.hook_run.as_deref()), (Some(3), Some("s1"), Some("run")));
        assert_eq!(rollout.pauses.len(), 1);
    }
}
