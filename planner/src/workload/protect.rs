//! Pods that nobody deletes before their hook agrees.
//!
//! Three things make it so: a label, by which the chart's admission policy knows pods that only the operator may delete; a PodDisruptionBudget, which refuses evictions;
//! a finalizer, which keeps a workload that is being deleted until its pods have left. They are there before a pod that needs them, and go after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::{BUDGET_PREFIX, PROTECTED_LABEL, PROTECTION_FINALIZER};
use api::selector::LabelSelector;
use serde_json::json;

use crate::facts::pdb::PdbFacts;
use crate::facts::pod::PodFacts;
use crate::plan::{Action, PatchReason, PodPart, PodPatch};

/// How many pods must be available for one to be evicted. `maxUnavailable: 0` would be reckoned from the workload's `replicas`, and let those go that are more than these.
pub const EVERYBODY: i32 = i32::MAX;

/// What protection is decided from.
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
    /// Whether the workload stays until its pods have left.
    #[must_use]
    pub fn holds_on(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == PROTECTION_FINALIZER)
    }

    /// Whether a budget is the workload's: by its name too, somebody may have taken its owner away.
    fn is_own(&self, budget: &PdbFacts) -> bool {
        budget.controller.as_deref() == Some(self.uid) || budget.name.strip_prefix(BUDGET_PREFIX) == Some(self.uid)
    }

    fn own(&self) -> impl Iterator<Item = &'a Arc<PdbFacts>> {
        let all = *self;
        self.budgets.iter().filter(move |budget| all.is_own(budget))
    }

    /// What is missing, in order.
    #[must_use]
    pub fn put_up(&self) -> Vec<Vec<Action>> {
        let with = || self.finalizers.iter().cloned().chain([PROTECTION_FINALIZER.to_owned()]).collect();
        let finalizer = if self.holds_on() { Vec::new() } else { vec![self.finalize(with())] };
        let is_right = |budget: &&Arc<PdbFacts>| {
            budget.is_closed && budget.selector == selector(self.uid) && budget.controller.as_deref() == Some(self.uid)
        };
        let budget = match self.own().find(|budget| !is_right(budget)) {
            // It is made anew when it is gone.
            Some(wrong) => vec![delete(wrong)],
            None if self.own().next().is_none() => vec![Action::CreateBudget { name: format!("{BUDGET_PREFIX}{}", self.uid) }],
            None => Vec::new(),
        };
        let is_bare =
            |pod: &&Arc<PodFacts>| pod.is_active() && pod.controller.as_deref() == Some(self.uid) && protector(pod) != Some(self.uid);
        let pods = self.pods.iter().filter(is_bare).map(|pod| label(pod, Some(self.uid), PatchReason::Protect)).collect();
        vec![finalizer, budget, pods]
    }

    /// Whether nothing is missing.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.put_up().iter().all(Vec::is_empty)
    }

    /// What is left of it, in order.
    #[must_use]
    pub fn take_down(&self) -> Vec<Vec<Action>> {
        let is_covered = |pod: &&Arc<PodFacts>| !pod.deleting && protector(pod).is_some();
        let pods = self.pods.iter().filter(is_covered).map(|pod| label(pod, None, PatchReason::Unprotect)).collect();
        vec![pods, self.own().map(delete).collect(), self.let_go()]
    }

    /// The workload may go.
    #[must_use]
    pub fn let_go(&self) -> Vec<Action> {
        let others = self.finalizers.iter().filter(|finalizer| *finalizer != PROTECTION_FINALIZER).cloned().collect();
        if self.holds_on() { vec![self.finalize(others)] } else { Vec::new() }
    }

    fn finalize(&self, finalizers: Vec<String>) -> Action {
        Action::SetFinalizers { finalizers, version: self.version.to_owned() }
    }

    /// Somebody else's budget that means these pods too.
    #[must_use]
    pub fn rival(&self, labels: &BTreeMap<String, String>) -> Option<&'a str> {
        let is_rival = |budget: &&Arc<PdbFacts>| !self.is_own(budget) && budget.selects(labels);
        self.budgets.iter().find(is_rival).map(|budget| budget.name.as_str())
    }
}

/// The uid of the workload without which nobody deletes the pod.
#[must_use]
pub fn protector(pod: &PodFacts) -> Option<&str> {
    pod.labels.get(PROTECTED_LABEL).map(String::as_str)
}

/// The pods of a workload that are protected.
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
