//! Which approvals count, judged from the HookRuns alone, and forged ones.

use api::names::ASKED_ANNOTATION;
use api::tkex::{HookRun, Phase as Verdict};
use planner::facts::pod::{Gate, Phase, PodFacts};
use planner::plan::{Action, PatchReason, PodPatch};
use planner::workload::approval;
use serde_json::{Value, json};

use super::World;
use super::cluster::hook_template;
use super::subject::Subject;

/// How a forged HookRun that looks like an approval differs from a real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// It names another controller.
    Controller,
    /// It names no controller.
    NoController,
    /// It is about another pod.
    Pod,
    /// It is asked for something else.
    Intent,
    /// It asks something else.
    Question,
}

pub(crate) const FORGERIES: &[Forgery] = &[Forgery::Controller, Forgery::NoController, Forgery::Pod, Forgery::Intent, Forgery::Question];

impl<S: Subject> World<S> {
    /// A tenant forges an approval of the deletion of a pod: everything is right except one thing.
    pub(crate) fn forge(&mut self, pod: &str, forgery: Forgery) {
        let mut labels =
            json!({ "hookrun-type": "pre-delete-step", "hook-template": "pod", "pod-uid": self.cluster.pods[pod].uid, "attempt": "9" });
        let (mut owner, mut template) = (self.owner(), hook_template("pod"));
        match forgery {
            Forgery::Controller => owner.name = "another".to_owned(),
            Forgery::Pod => labels["pod-uid"] = json!("another"),
            Forgery::Intent => labels["target-revision"] = json!("another"),
            Forgery::Question => template.spec.metrics[0].name = "always".to_owned(),
            Forgery::NoController => {}
        }
        let owners = if forgery == Forgery::NoController { json!(null) } else { json!([owner.reference()]) };
        let (name, now) = (format!("forged-{pod}-{forgery:?}"), self.cluster.now);
        let run = json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": { "name": name, "uid": name, "labels": labels, "creationTimestamp": now, "ownerReferences": owners },
            "spec": { "metrics": template.spec.metrics },
            "status": { "phase": "Successful", "finishedAt": now },
        });
        self.cluster.hook_runs.insert(name, serde_json::from_value(run).unwrap());
    }

    /// Whether a hook has approved what an action does to a pod, or no approval is needed.
    pub(crate) fn is_approved(&self, action: &Action) -> bool {
        let [pre_delete, pre_inplace, _] = self.object.workload().hooks.map(|hook| hook.is_some());
        let (uid, kind, target) = match action {
            Action::DeletePod { uid, .. } if pre_delete => (uid, "pre-delete-step", None),
            Action::PatchPod(PodPatch { uid, why: why @ (PatchReason::Drain | PatchReason::InPlace), body, .. })
                if pre_delete || pre_inplace =>
            {
                let serves = |pod: &&PodFacts| *why == PatchReason::Drain && pod.uid == *uid && pod.gate == Gate::Up;
                let half_changed = || self.cluster.pods.values().find(serves).and_then(PodFacts::revision);
                let target = body["metadata"]["labels"]["controller-revision-hash"].as_str().or_else(half_changed);
                // Otherwise it completes an update that was started before.
                if target.is_none() {
                    return true;
                }
                (uid, if pre_inplace { "pre-inplace-step" } else { "pre-delete-step" }, target)
            }
            _ => return true,
        };
        let Some(pod) = self.cluster.pods.values().find(|pod| pod.uid == *uid) else { return true };
        let announced = pod.update.as_ref().is_some_and(|update| update.pending.is_some());
        // The pod is on that revision already, and none of its containers restarts.
        let is_there = |body: &Value| body.get("spec").is_none() && target.is_some() && pod.revision() == target;
        if matches!(action, Action::PatchPod(PodPatch { why: PatchReason::InPlace, body, .. }) if is_there(body)) {
            return true;
        }
        if pod.phase != Phase::Running
            || pod.is_crash_looping()
            || self.cluster.is_lost(pod)
            || announced && target.is_some_and(|target| self.cluster.has_images_of(pod, target))
        {
            return true;
        }
        let is_marked_for = |run: &HookRun| pod.annotations[ASKED_ANNOTATION] == approval::fingerprint(&run.spec);
        self.cluster.hook_runs.values().any(|run| {
            let labels = run.metadata.labels.as_ref().unwrap();
            let is_it = labels.get("pod-uid") == Some(uid) && labels["hookrun-type"] == kind;
            let yes = run.status.as_ref().is_some_and(|status| status.phase == Some(Verdict::Successful));
            let is_ours = json!(run.metadata.owner_references) == json!([self.owner().reference()]);
            let is_of_mark = !matches!(action, Action::DeletePod { .. }) || is_marked_for(run);
            is_it && yes && is_ours && is_of_mark && labels.get("target-revision").map(String::as_str) == target
        })
    }
}
