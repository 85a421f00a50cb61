//! Why work that is due is not done now, and what to do about it.

use api::names::reason;
use jiff::Timestamp;

/// Why work that is due is not done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// The user paused the rollout.
    PausedByUser,
    /// Pods stay on the current revision because the partition says so.
    Partition { kept: usize },
    /// Pods wait because `maxUnavailable`, less `maxSurge`, allows no more unavailable pods.
    Budget { waiting: usize, unavailable: usize, allowed: usize, surge: usize },
    /// Outdated pods wait until the user deletes them.
    OnDelete { waiting: usize },
    /// Pods ended right after their start; their successors wait.
    EndedTooSoon { pods: usize, until: Timestamp },
    /// A canary step pauses.
    PausedByStep { step: usize, until: Option<Timestamp> },
    /// The hook of a canary step denied.
    HookFailed { step: usize, run: String, message: String, rolls_back: bool },
    /// The HookRun of a canary step has not ended yet.
    HookRunning { step: usize, run: String },
    /// The hook of a canary step cannot be asked.
    HookNotPossible { step: usize, problem: String },
    /// Pods wait until their hook approves. The pod named is the one that has waited longest.
    WaitingForHook { field: &'static str, pods: usize, pod: String, since: Timestamp, run: String, said: Option<String> },
    /// A hook about pods cannot be asked.
    GateNotPossible { field: &'static str, problem: String },
    /// Protected pods are on cordoned nodes, of which one is named, and are deleted once their hook approves.
    Cordoned { pods: usize, node: String },
    /// Pods are on nodes that do not answer, of which one is named. They are kept until the node counts as lost.
    NodesSilent { pods: usize, node: String, until: Option<Timestamp>, braked: bool },
    /// A PodDisruptionBudget that is not the operator's selects protected pods too.
    OtherBudget { name: String },
    /// Pods are not created because every number is in use.
    NoIndex { missing: usize, start: i32, end: i32, too_few: bool },
    /// A canary step waits until enough pods are updated and available.
    Step { step: usize, of: usize, wanted: usize },
    /// Pods need more than an in-place update.
    NotInPlace { pods: usize, paths: Vec<String> },
    /// The API server refuses writes. The message is that of the first one.
    Refused { reason: String, writes: usize, message: String },
    /// A field has no effect here.
    Ignored { field: &'static str, why: &'static str },
    /// A field counts as less than it says.
    Clamped { field: &'static str, most: usize },
    /// The spec uses a feature that this version does not have.
    NotInThisVersion(Feature),
    /// A field has an invalid value.
    Invalid { field: String, problem: String },
    /// The revision of the template is being deleted, and its name is not free before it is gone.
    RevisionLeaving { name: String },
    /// The object, or what belongs to it, is larger than what the operator keeps in memory.
    TooLarge { what: String },
    /// A kind that the object depends on cannot be listed.
    NotListed { troubles: String },
}

/// The consequence of a revision that is being deleted.
const WAITS_FOR_NAME: &str = "no pod is made from the template before it is gone; remove its finalizers";
/// How refused writes are retried.
const TRIED_AGAIN: &str = "it is retried every few seconds; everything else continues";

fn silent_text(pods: usize, node: &str, until: Option<Timestamp>, braked: bool) -> String {
    let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
    let most = "more than 55 % of all nodes do not, so that none of them counts as lost";
    let why = if braked { most } else { "they may still serve" };
    format!("{pods} pods are kept{until}, because their nodes do not answer ({node}): {why}")
}

fn number_text(missing: usize, range: std::ops::Range<i32>, too_few: bool) -> String {
    let (start, last) = (range.start, range.end.saturating_sub(1));
    let widen = "these are fewer than spec.replicas: widen spec.podIndex";
    let then = if too_few { widen } else { "they are created when others are gone" };
    format!("{missing} pods wait for a number: existing pods have all of {start} to {last}; {then}")
}

/// A feature that this version does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// `updateStrategy.type: HotPatchUpdate` without a kubelet that supports it.
    HotPatchUpdate,
}

impl Feature {
    /// The reason of the condition.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::HotPatchUpdate => reason::NO_HOT_PATCH,
        }
    }
}

impl std::fmt::Display for Feature {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::HotPatchUpdate => "spec.updateStrategy.type HotPatchUpdate needs spec.updateStrategy.hotPatch.executor Kubelet in this version: pods keep their revision until then, or until the type is InplaceUpdate, RollingUpdate or OnDelete",
        })
    }
}

impl std::fmt::Display for Hold {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PausedByUser => write!(out, "the rollout is paused: set spec.updateStrategy.paused to false to resume"),
            Self::Partition { kept } => write!(out, "{kept} pods stay on the current revision (the partition)"),
            Self::Budget { waiting, unavailable, allowed, surge } => {
                let first = if *surge > 0 { format!(", and up to {surge} surge pods have to be available first") } else { String::new() };
                write!(out, "{waiting} pods wait for their turn: {unavailable} of at most {allowed} are unavailable{first}")
            }
            Self::OnDelete { waiting } => write!(out, "{waiting} pods are updated when they are deleted"),
            Self::EndedTooSoon { pods, until } => write!(out, "{pods} pods ended right after their start; they are replaced at {until}"),
            Self::PausedByStep { step, until: None } => {
                write!(out, "canary step {step} pauses the rollout: set spec.updateStrategy.paused to false to resume")
            }
            Self::PausedByStep { step, until: Some(until) } => {
                write!(
                    out,
                    "canary step {step} pauses the rollout until {until}: set spec.updateStrategy.paused to false to resume at once"
                )
            }
            Self::HookFailed { step, run, message, rolls_back } => {
                let then = if *rolls_back { "updated pods return to the stable revision" } else { "the rollout pauses" };
                write!(
                    out,
                    "the hook of canary step {step} failed ({message}; kubectl describe hookrun {run}): {then}; set spec.updateStrategy.paused to false to continue anyway, or restore the template to roll back"
                )
            }
            Self::HookRunning { step, run } => write!(out, "canary step {step} waits for HookRun {run}"),
            Self::HookNotPossible { step, problem } => write!(out, "the hook of canary step {step} cannot be asked: {problem}"),
            Self::WaitingForHook { field, pods, pod, since, run, said } => {
                let said = said.as_ref().map(|said| format!(", last denied: {said}")).unwrap_or_default();
                let then = "they continue when it approves; remove the hook to continue without it";
                write!(out, "{pods} pods wait for spec.{field}.hook, {pod} since {since} (kubectl describe hookrun {run}{said}): {then}")
            }
            Self::GateNotPossible { field, problem } => write!(out, "spec.{field}.hook cannot be asked: {problem}"),
            Self::Cordoned { pods, node } => {
                let then = "each is replaced when its hook approves; kubectl uncordon keeps them";
                write!(out, "{pods} protected pods are on cordoned nodes ({node}): {then}")
            }
            Self::NodesSilent { pods, node, until, braked } => write!(out, "{}", silent_text(*pods, node, *until, *braked)),
            Self::OtherBudget { name } => {
                write!(out, "PodDisruptionBudget {name} also selects protected pods: kubectl drain fails instead of waiting for them")
            }
            Self::NoIndex { missing, start, end, too_few } => write!(out, "{}", number_text(*missing, *start..*end, *too_few)),
            Self::Step { step, of, wanted } => {
                write!(out, "canary step {step} of {of} waits until {wanted} pods are updated and available")
            }
            Self::NotInPlace { pods, paths } => {
                let paths = paths.join(", ");
                write!(
                    out,
                    "{pods} pods cannot be updated in place, because more than images, labels and annotations changed ({paths}): they keep their revision; set spec.updateStrategy.inPlaceUpdateStrategy.whenNotPossible to Recreate to replace them"
                )
            }
            Self::Refused { writes, message, .. } => write!(out, "the API server refuses writes ({writes}): {message}; {TRIED_AGAIN}"),
            Self::Ignored { field, why } => write!(out, "{field} has no effect: {why}"),
            Self::Clamped { field, most } => write!(out, "{field} counts as {most}, the most there is"),
            Self::NotInThisVersion(feature) => write!(out, "{feature}"),
            Self::Invalid { field, problem } => write!(out, "{field}: {problem}"),
            Self::RevisionLeaving { name } => write!(out, "ControllerRevision {name} is being deleted: {WAITS_FOR_NAME}"),
            Self::TooLarge { what: why } | Self::NotListed { troubles: why } => write!(out, "nothing is done: {why}"),
        }
    }
}
