//! Writes of a workload that are refused alike wait together, and are tried in rotation.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::{ASKED_ANNOTATION, DELETING_ANNOTATION, PROTECTED_LABEL, REVISION_LABEL};
use api::tkex::HookRun;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::CLOSED_AFTER;
use super::fallout::{Subject, about, target, tried};
use crate::facts::pod::PodFacts;
use crate::facts::text::Texts;
use crate::plan::{Action, PatchReason, PodPatch};

/// The longest time between two tries of a group.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(4);
/// The longest time between two tries of a pod whose dry run passes although the write itself is refused.
const LONGEST_DISTRUST: SignedDuration = SignedDuration::from_mins(5);

/// A refused write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Member {
    /// The pod's uid, or a name.
    pub(super) identity: String,
    /// What to try with a dry run.
    pub(super) action: Option<Action>,
    /// The reason of the event that reported it.
    pub(super) reason: String,
    /// The message of that event.
    pub(super) message: String,
    /// When it was last tried.
    pub(super) at: Timestamp,
    /// A dry run has passed: the write may be tried.
    pub(super) passed: bool,
    /// Labels and annotations of the pod when it was refused. If they change, the write may get another answer.
    pub(super) seen: Option<(Texts, Texts)>,
}

impl Member {
    /// The uid of the pod that it is about.
    pub(super) fn pod(&self) -> Option<&str> {
        let action = self.action.as_ref()?;
        if let Action::PatchPod(change) = action {
            return Some(&change.uid);
        }
        if let Subject::Pod(uid) = about(action)? { Some(uid) } else { None }
    }

    /// Whether others have changed the pod since the write was refused: it may get another answer.
    pub(super) fn has_changed(&mut self, pods: &BTreeMap<&str, &PodFacts>) -> bool {
        let Some(now) = self.pod().and_then(|uid| pods.get(uid)).map(|pod| foreign_metadata(pod)) else { return false };
        self.seen.replace(now.clone()).is_some_and(|before| before != now)
    }

    /// Whether what it is about is gone or done.
    pub(super) fn is_over(&self, pods: &BTreeMap<&str, &PodFacts>, runs: &[Arc<HookRun>]) -> bool {
        // A write may have been done although it was answered with an error.
        let is_done = if let Some(Action::DeleteHookRun { uid, .. }) = &self.action {
            !runs.iter().any(|run| run.metadata.uid.as_ref() == Some(uid))
        } else if let Some(Action::PatchPod(PodPatch { why: PatchReason::Unmark, uid, .. })) = &self.action {
            pods.get(uid.as_str()).is_some_and(|pod| !pod.annotations.contains_key(DELETING_ANNOTATION))
        } else {
            false
        };
        let is_of_pod = matches!(
            &self.action,
            Some(Action::DeletePod { .. } | Action::AdoptPod { .. } | Action::ReleasePod { .. } | Action::PatchPod(_))
        );
        is_done || is_of_pod && self.pod().is_some_and(|uid| !pods.contains_key(uid))
    }
}

/// Writes that are refused alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Group {
    /// The action's word: verb and resource.
    pub(super) write: String,
    /// The revision that pods were to get.
    pub(super) target: Option<String>,
    /// The API server's reason.
    pub(super) reason: String,
    pub(super) tries: u32,
    pub(super) next: Timestamp,
    /// How many were refused for the first time without a success in between.
    pub(super) row: u32,
    /// One has passed: the others are tried without a pause.
    pub(super) eager: bool,
    /// How often a write was refused although its dry run had passed, since the last one that was done.
    pub(super) relapses: u32,
    pub(super) members: Vec<Member>,
}

impl Group {
    pub(super) fn is_of(&self, action: &Action) -> bool {
        let inner = tried(action);
        self.write == inner.word() && self.target.as_deref() == target(inner)
    }

    pub(super) fn member(&self, identity: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.identity == identity)
    }

    /// Whether also writes that were not tried yet wait.
    pub(super) fn is_closed(&self) -> bool {
        let most = if self.write == "create_pod" { 1 } else { CLOSED_AFTER };
        self.row >= most
    }

    pub(super) fn holds_back(&self, identity: &str) -> bool {
        match self.member(identity) {
            Some(member) => !member.passed,
            None => self.is_closed(),
        }
    }

    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.eager || self.next <= now
    }

    /// How long to wait where dry runs pass and writes do not.
    pub(super) fn distrust(&self) -> SignedDuration {
        SignedDuration::from_secs(4 << self.relapses.min(10)).min(LONGEST_DISTRUST)
    }

    pub(super) fn wait(&mut self, now: Timestamp, pause: SignedDuration) {
        (self.next, self.eager) = (now.checked_add(pause).unwrap_or(Timestamp::MAX), false);
    }

    pub(super) fn refused(&mut self, now: Timestamp) {
        if self.is_due(now) {
            let pause = SignedDuration::from_secs(1 << self.tries.min(10)).min(LONGEST_PAUSE);
            self.tries = self.tries.saturating_add(1);
            self.wait(now, if self.relapses == 0 { pause } else { self.distrust() });
        }
    }
}

/// Labels and annotations that are not ours to write.
fn foreign_metadata(pod: &PodFacts) -> (Texts, Texts) {
    let keep = |all: &Texts, ours: &[&str]| {
        let mut all = all.clone();
        all.retain(|key, _| !ours.contains(&key));
        all
    };
    (keep(&pod.labels, &[REVISION_LABEL, PROTECTED_LABEL]), keep(&pod.annotations, &[DELETING_ANNOTATION, ASKED_ANNOTATION]))
}
