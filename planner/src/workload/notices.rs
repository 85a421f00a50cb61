//! What a user should know of a workload besides the work that waits: holds that follow from the view alone.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::view::{MOST_REVISIONS, View, replaceable_at};
use crate::hold::Hold;

impl View<'_> {
    /// Pods that are spared: their node is silent, and they may still serve.
    pub(super) fn silent(&self) -> Option<Hold> {
        let nodes = &self.seen.nodes;
        let silent: Vec<&str> =
            self.placed.iter().filter_map(|pod| pod.node.as_deref()).filter(|node| nodes.silent_since(node, self.now).is_some()).collect();
        let node = silent.iter().min()?;
        Some(Hold::NodesSilent { pods: silent.len(), node: (*node).to_owned(), until: nodes.lost_at(node), braked: nodes.braked })
    }

    /// Protected pods on cordoned nodes, and PodDisruptionBudgets of others that select protected pods.
    pub(super) fn guarded(&self) -> Vec<Hold> {
        if !self.protects() {
            return Vec::new();
        }
        let cordoned: Vec<_> = self.placed.iter().filter(|pod| self.is_on_cordoned_node(pod)).collect();
        let node = cordoned.iter().filter_map(|pod| pod.node.clone()).min();
        let cordoned = node.map(|node| Hold::Cordoned { pods: cordoned.len(), node: node.to_string() });
        let rival = self.protection().rival(&self.workload.template.labels());
        cordoned.into_iter().chain(rival.map(|name| Hold::OtherBudget { name: name.to_owned() })).collect()
    }

    /// Pods whose successor has to wait, and until when.
    pub(super) fn ended_too_soon(&self) -> Option<Hold> {
        let soon: Vec<_> = self.placed.iter().filter(|pod| pod.has_ended()).map(|pod| replaceable_at(pod)).collect();
        let until = soon.iter().min().copied()?;
        Some(Hold::EndedTooSoon { pods: soon.len(), until })
    }

    /// Fields that have no effect here, although the user gave them a value.
    pub(super) fn ignored(&self) -> Vec<Hold> {
        let strategy = &self.workload.strategy;
        let is_zero = |value: &IntOrString| matches!(value, IntOrString::Int(0)) || *value == IntOrString::String("0%".to_owned());
        let mut ignored = Vec::new();
        if self.stays() && !is_zero(&strategy.max_surge) {
            let why = "pods stay when they are updated";
            ignored.push(Hold::Ignored { field: "spec.updateStrategy.maxSurge", why });
        }
        if !self.stays() && !is_zero(&strategy.max_surge) && self.limits.max_surge == 0 && matches!(self.index, Ok(Some(_))) {
            let why = "spec.podIndex has no more numbers than replicas";
            ignored.push(Hold::Ignored { field: "spec.updateStrategy.maxSurge", why });
        }
        if self.workload.protect && !self.protects() {
            let why = "there is no spec.preDeleteUpdateStrategy.hook to ask";
            ignored.push(Hold::Ignored { field: "spec.preDeleteUpdateStrategy.protect", why });
        }
        if strategy.canary.as_ref().is_some_and(|canary| !canary.steps.is_empty()) && !is_zero(&strategy.partition) {
            ignored.push(Hold::Ignored { field: "spec.updateStrategy.partition", why: "the canary steps say how many pods stay" });
        }
        if self.history_limit() > MOST_REVISIONS {
            ignored.push(Hold::Clamped { field: "spec.revisionHistoryLimit", most: MOST_REVISIONS });
        }
        ignored
    }
}
