//! Pods that only the operator deletes, once their hook approves.
//!
//! Three things protect them: a label, by which the chart's admission policy recognizes pods that only the operator may
//! delete; a PodDisruptionBudget, which refuses evictions; a finalizer, which keeps a workload that is being deleted
//! until its pods are gone. They exist before a pod that needs them, and are removed after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::{BUDGET_PREFIX, PROTECTED_LABEL, PROTECTION_FINALIZER};
use api::selector::LabelSelector;
use serde_json::json;

use crate::facts::pdb::PdbFacts;
use crate::facts::pod::PodFacts;
use crate::facts::text::Text;
use crate::plan::{Action, PatchReason, PodPart, PodPatch};

/// `minAvailable` of the PodDisruptionBudget, which no number of pods reaches: no eviction is allowed. With
/// `maxUnavailable` of 0 the API server would compute it from the workload's `replicas`, and allow the eviction of pods
/// beyond these.
pub const EVERY_POD: i32 = i32::MAX;

/// What is known of a workload and of its protection.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The uid of the workload.
    pub uid: &'a str,
    /// Its finalizers.
    pub finalizers: &'a [String],
    /// Its version.
    pub version: &'a str,
    /// Its pods.
    pub pods: &'a [Arc<PodFacts>],
    /// PodDisruptionBudgets of its namespace.
    pub budgets: &'a [Arc<PdbFacts>],
}

impl<'a> Facts<'a> {
    /// Whether the workload has the finalizer that keeps it until its pods are gone.
    #[must_use]
    pub fn holds_on(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == PROTECTION_FINALIZER)
    }

    /// Whether a PodDisruptionBudget is the workload's: by its controller, or by its name, because its controller may
    /// have been removed.
    fn is_own(&self, budget: &PdbFacts) -> bool {
        budget.controller.as_deref() == Some(self.uid) || budget.name.strip_prefix(BUDGET_PREFIX) == Some(self.uid)
    }

    fn own(&self) -> impl Iterator<Item = &'a Arc<PdbFacts>> {
        let all = *self;
        self.budgets.iter().filter(move |budget| all.is_own(budget))
    }

    /// Writes that complete the protection, in order.
    #[must_use]
    pub fn put_up(&self) -> Vec<Vec<Action>> {
        let with = || self.finalizers.iter().cloned().chain([PROTECTION_FINALIZER.to_owned()]).collect();
        let finalizer = if self.holds_on() { Vec::new() } else { vec![self.finalize(with())] };
        let is_right = |budget: &&Arc<PdbFacts>| {
            budget.is_closed && budget.selector == Some(selector(self.uid)) && budget.controller.as_deref() == Some(self.uid)
        };
        let budget = match self.own().find(|budget| !is_right(budget)) {
            // It is created again once it is gone.
            Some(wrong) => vec![delete(wrong)],
            None if self.own().next().is_none() => vec![Action::CreateBudget { name: format!("{BUDGET_PREFIX}{}", self.uid) }],
            None => Vec::new(),
        };
        let is_bare =
            |pod: &&Arc<PodFacts>| pod.is_active() && pod.controller.as_deref() == Some(self.uid) && protector(pod) != Some(self.uid);
        let pods = self.pods.iter().filter(is_bare).map(|pod| label(pod, Some(self.uid), PatchReason::Protect)).collect();
        vec![finalizer, budget, pods]
    }

    /// Whether the protection is complete.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.put_up().iter().all(Vec::is_empty)
    }

    /// Writes that remove what is left of the protection, in order.
    #[must_use]
    pub fn take_down(&self) -> Vec<Vec<Action>> {
        let is_covered = |pod: &&Arc<PodFacts>| !pod.deleting && protector(pod).is_some();
        let pods = self.pods.iter().filter(is_covered).map(|pod| label(pod, None, PatchReason::Unprotect)).collect();
        vec![pods, self.own().map(delete).collect(), self.let_go()]
    }

    /// Removes the finalizer, so that the workload may be deleted.
    #[must_use]
    pub fn let_go(&self) -> Vec<Action> {
        let others = self.finalizers.iter().filter(|finalizer| *finalizer != PROTECTION_FINALIZER).cloned().collect();
        if self.holds_on() { vec![self.finalize(others)] } else { Vec::new() }
    }

    fn finalize(&self, finalizers: Vec<String>) -> Action {
        Action::SetFinalizers { finalizers, version: self.version.to_owned() }
    }

    /// A PodDisruptionBudget that is not the workload's and selects pods with these labels too.
    #[must_use]
    pub fn rival(&self, labels: &BTreeMap<String, String>) -> Option<&'a str> {
        let is_rival = |budget: &&Arc<PdbFacts>| !self.is_own(budget) && budget.selects(labels);
        self.budgets.iter().find(is_rival).map(|budget| budget.name.as_str())
    }
}

/// The uid of the workload that protects the pod: only its operator may delete the pod.
#[must_use]
pub fn protector(pod: &PodFacts) -> Option<&str> {
    pod.labels.get(PROTECTED_LABEL).map(Text::as_str)
}

/// The selector of the protected pods of a workload.
#[must_use]
pub fn selector(uid: &str) -> LabelSelector {
    LabelSelector { match_labels: [(PROTECTED_LABEL.to_owned(), uid.to_owned())].into(), match_expressions: Vec::new() }
}

fn delete(budget: &Arc<PdbFacts>) -> Action {
    Action::DeleteBudget { name: budget.name.clone(), uid: budget.uid.clone() }
}

fn label(pod: &PodFacts, value: Option<&str>, why: PatchReason) -> Action {
    let body = json!({ "metadata": { "uid": pod.uid, "labels": { PROTECTED_LABEL: value } } });
    Action::PatchPod(PodPatch { name: pod.name.clone(), uid: pod.uid.clone(), why, part: PodPart::Main, revision: None, body })
}
