//! Which HookRuns count as approvals.
//!
//! A user who may write HookRuns in a namespace must not be able to approve what a hook has not approved. The chart's
//! admission policy refuses HookRuns of others that look like the operator's; here a run counts only for the object
//! that controls it, and an approval of a deletion only if it answers the question that the mark on the pod names.

use std::sync::Arc;

use api::names::ASKED_ANNOTATION;
use api::tkex::{HookRun, HookRunSpec};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::facts::pod::PodFacts;
use crate::facts::text::Text;

/// The message for an approval that does not count.
pub const OTHER_QUESTION: &str = "it approved another question than the one on the mark of the pod, so its approval does not count";

/// The object that HookRuns are created for.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// Its API group.
    pub group: &'a str,
    /// Its kind.
    pub kind: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
}

/// The runs that this object controls.
#[must_use]
pub fn runs_of(owner: &Owner, runs: &[Arc<HookRun>]) -> Vec<Arc<HookRun>> {
    runs.iter().filter(|run| is_of(owner, run)).cloned().collect()
}

fn is_of(owner: &Owner, run: &HookRun) -> bool {
    let controller = run.metadata.owner_references.iter().flatten().find(|one| one.controller == Some(true));
    controller.is_some_and(|one| {
        let group = one.api_version.split_once('/').map_or("", |(group, _)| group);
        (group, one.kind.as_str(), one.name.as_str(), one.uid.as_str()) == (owner.group, owner.kind, owner.name, owner.uid)
    })
}

/// The identity of a question: the hash of its spec, except `terminate`.
#[must_use]
pub fn fingerprint(question: &HookRunSpec) -> String {
    let mut question = serde_json::to_value(question).unwrap_or_default();
    if let Value::Object(fields) = &mut question {
        fields.remove("terminate");
    }
    // The keys of a Value are sorted, so that the text is the same in every version of the operator that knows the same
    // fields.
    Sha256::digest(question.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the mark on a pod names this question.
#[must_use]
pub fn is_on_mark(pod: &PodFacts, question: &HookRunSpec) -> bool {
    asked(pod).is_some_and(|asked| asked == fingerprint(question))
}

/// Whether a run answers the question that the mark on a pod names. A mark of an older operator names none, and any
/// answer counts.
#[must_use]
pub fn answers_mark(pod: &PodFacts, question: &HookRunSpec) -> bool {
    asked(pod).is_none() || is_on_mark(pod, question)
}

fn asked(pod: &PodFacts) -> Option<&str> {
    pod.annotations.get(ASKED_ANNOTATION).map(Text::as_str)
}
