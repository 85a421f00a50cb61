//! Every string that is part of the API: labels, annotations, condition types, reasons.

/// Pod label: the name of the pod's ControllerRevision.
pub const REVISION_LABEL: &str = "controller-revision-hash";
/// Pod label: the five characters at the end of the pod's name.
pub const INSTANCE_ID_LABEL: &str = "tkex.bkbcs.tencent.com/gamedeployment-instance-id";
/// ControllerRevision label: the hash in its name.
pub const REVISION_HASH_LABEL: &str = "controller.kubernetes.io/hash";
/// Pod annotation: pods with a lower cost are deleted first.
pub const DELETION_COST_ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Pod annotation: the pod's number, unique in its workload.
pub const INDEX_ANNOTATION: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-id";
/// Environment variable of every container: the pod's number.
pub const INDEX_VARIABLE: &str = "POD_INDEX";
/// GameDeployment annotation: pods get numbers.
pub const INDEX_ON_ANNOTATION: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-on";
/// GameDeployment annotation: which numbers, as `{"podStartIndex":0,"podEndIndex":10}`.
pub const INDEX_RANGE_ANNOTATION: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-range";
/// On a workload: the revision and the canary step for which the operator set `spec.updateStrategy.paused`. Without it,
/// a user did.
pub const PAUSED_FOR_ANNOTATION: &str = "gameplane.dev/paused-for";
/// Taint of a node: it is gone for good.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Readiness gate and condition of pods: false during an in-place update.
pub const READINESS_GATE: &str = "InPlaceUpdateReady";
/// Pod annotation: what an in-place update changes, and what ran before.
pub const INPLACE_STATE_ANNOTATION: &str = "inplace-update-state";
/// Pod annotation: a change that waits for the end of the grace period, while the pod is drained.
pub const INPLACE_GRACE_ANNOTATION: &str = "inplace-update-grace";
/// Pod annotation: what a hot patch changed, and what ran before.
pub const HOTPATCH_STATE_ANNOTATION: &str = "hotpatch-update-state";
/// Pod annotation: a kubelet that supports hot patches changes images without restarting containers.
pub const HOTPATCH_ANNOTATION: &str = "io.kubernetes.hotpatch.container";
/// Reason of the gate while it is false.
pub const GATE_REASON: &str = "StartInPlaceUpdate";
/// HookRun label: the revision that is rolled out.
pub const RUN_REVISION_LABEL: &str = "workload-revision";
/// HookRun label: what the hook decides about; one of the values below.
pub const RUN_TYPE_LABEL: &str = "hookrun-type";
/// Value of `hookrun-type`: a canary step.
pub const RUN_TYPE_CANARY: &str = "canary-step";
/// Value of `hookrun-type`: a pod that is to be deleted.
pub const RUN_TYPE_PRE_DELETE: &str = "pre-delete-step";
/// Value of `hookrun-type`: a pod before its in-place update.
pub const RUN_TYPE_PRE_INPLACE: &str = "pre-inplace-step";
/// Value of `hookrun-type`: a pod after its in-place update.
pub const RUN_TYPE_POST_INPLACE: &str = "post-inplace-step";
/// HookRun label: the five characters at the end of the pod's name.
pub const RUN_INSTANCE_LABEL: &str = "instance-id";
/// HookRun label: the uid of the pod.
pub const RUN_POD_UID_LABEL: &str = "pod-uid";
/// HookRun label: the HookTemplate that it was made from.
pub const RUN_TEMPLATE_LABEL: &str = "hook-template";
/// HookRun label: the revision that the pod is updated to.
pub const RUN_TARGET_LABEL: &str = "target-revision";
/// HookRun label: the number of the attempt, from 1.
pub const RUN_ATTEMPT_LABEL: &str = "attempt";
/// Pod annotation: the pod is deleted when its hook approves.
pub const DELETING_ANNOTATION: &str = "io.tencent.bcs.dev/game-pod-deleting";
/// Pod annotation, written with `game-pod-deleting`: the hash of what the hook is asked.
pub const ASKED_ANNOTATION: &str = "gameplane.dev/asked";
/// Secret annotation: the hosts that hooks may send its values to.
pub const HOOK_HOSTS_ANNOTATION: &str = "gameplane.dev/hook-hosts";
/// Pod label: the uid of the workload whose hook must approve before the pod can be deleted.
pub const PROTECTED_LABEL: &str = "gameplane.dev/protected-by";
/// Prefix of the names of our PodDisruptionBudgets; the uid of the workload follows.
pub const BUDGET_PREFIX: &str = "gameplane-";
/// Finalizer with which Kubernetes keeps an object that is deleted with `--cascade=orphan` until its pods have no
/// owner.
pub const ORPHAN_FINALIZER: &str = "orphan";
/// Finalizer of a workload with protected pods: it stays until they are gone.
pub const PROTECTION_FINALIZER: &str = "gameplane.dev/protected-pods";
/// Node annotation: pods on nodes with a lower cost are deleted first.
pub const NODE_DELETION_COST_ANNOTATION: &str = "io.tencent.bcs.dev/node-deletion-cost";
/// HookRun label: the index of the canary step.
pub const RUN_STEP_LABEL: &str = "canary-step-index";
/// Reason of a pause: a pause step.
pub const PAUSED_BY_STEP: &str = "PausedByCanaryPauseStep";
/// Reason of a pause: the hook of a canary step denied.
pub const PAUSED_BY_HOOK: &str = "PausedByStepBasedHook";
/// The reporting controller of events about HookRuns.
pub const HOOK_REPORTER: &str = "bcs-hook-operator";
/// The reporting controller of events about GameDeployments.
pub const GAMEDEPLOYMENT_REPORTER: &str = "bcs-gamedeployment-operator";

/// Condition types.
pub mod condition {
    /// The operator is changing pods, or waits for pods that it changed.
    pub const PROGRESSING: &str = "Progressing";
    /// Enough pods are available.
    pub const AVAILABLE: &str = "Available";
    /// The rollout is stopped.
    pub const PAUSED: &str = "Paused";
    /// Something needs the user's attention.
    pub const DEGRADED: &str = "Degraded";
    /// No pod can be deleted before its hook approves.
    pub const PROTECTED: &str = "Protected";
    /// A HookRun has a verdict.
    pub const COMPLETE: &str = "Complete";
    /// A HookTemplate is valid.
    pub const ACCEPTED: &str = "Accepted";
}

/// Reasons of conditions.
pub mod reason {
    /// Pods are being created or deleted to reach `replicas`.
    pub const SCALING: &str = "Scaling";
    /// Pods are being updated to the update revision.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// Every pod exists, is on the update revision, and is available.
    pub const COMPLETE: &str = "Complete";
    /// As many pods as the partition allows are updated.
    pub const PARTITION_REACHED: &str = "PartitionReached";
    /// With OnDelete: pods get the new template when they are deleted.
    pub const ON_DELETE: &str = "WaitingForDelete";
    /// `spec.updateStrategy.paused` is true.
    pub const PAUSED_BY_USER: &str = "PausedByUser";
    /// The rollout is not paused.
    pub const NOT_PAUSED: &str = "NotPaused";
    /// At least as many pods are available as `maxUnavailable` demands.
    pub const ENOUGH_AVAILABLE: &str = "MinimumReplicasAvailable";
    /// Fewer pods are available than `maxUnavailable` demands.
    pub const TOO_FEW_AVAILABLE: &str = "MinimumReplicasUnavailable";
    /// Nothing is wrong.
    pub const AS_EXPECTED: &str = "AsExpected";
    /// The object is being deleted.
    pub const DELETING: &str = "Deleting";
    /// A field has an invalid value.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// The revision of the template is being deleted.
    pub const REVISION_LEAVING: &str = "RevisionBeingDeleted";
    /// The object, its pods or their revisions exceed a limit.
    pub const TOO_LARGE: &str = "TooLarge";
    /// A kind that the workload depends on cannot be listed.
    pub const NOT_LISTED: &str = "NotListed";
    /// This version has no hot patches.
    pub const NO_HOT_PATCH: &str = "HotPatchUpdateNotInThisVersion";
    /// The HookRun of a canary step is running.
    pub const HOOK_RUNNING: &str = "HookRunning";
    /// A hook denied, and updated pods return to the stable revision.
    pub const ROLLED_BACK: &str = "RolledBackByHook";
    /// A hook cannot be asked.
    pub const HOOK_NOT_POSSIBLE: &str = "HookNotPossible";
    /// The template changed more than an in-place update can apply.
    pub const INPLACE_NOT_POSSIBLE: &str = "InPlaceNotPossible";
    /// A HookRun has no verdict yet.
    pub const RUNNING: &str = "Running";
    /// A HookTemplate is valid.
    pub const ACCEPTED: &str = "Accepted";
    /// Pods wait for a number.
    pub const NO_INDEX: &str = "NoPodIndex";
    /// Pods wait until their hook approves.
    pub const WAITING_FOR_HOOK: &str = "WaitingForHook";
    /// Everything is done except writes that the API server refuses.
    pub const REFUSED: &str = "Refused";
    /// Every pod is protected.
    pub const HOOK_DECIDES: &str = "HookDecides";
    /// Some pods are not protected yet.
    pub const NOT_ALL_PROTECTED: &str = "NotAllProtected";
    /// Nothing is protected, because there is no hook.
    pub const NO_HOOK: &str = "NoHook";
}

/// Reasons of events.
pub mod event {
    /// A pod was created.
    pub const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
    /// A pod could not be created.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// A pod was deleted.
    pub const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
    /// A pod could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// A pod was deleted, so that its replacement gets the new template.
    pub const SUCCESSFUL_RECREATE: &str = "SuccessfulUpdatePodReCreate";
    /// A pod could not be deleted for its update.
    pub const FAILED_RECREATE: &str = "FailedUpdatePodReCreate";
    /// A pod could not be adopted or released.
    pub const FAILED_CLAIM: &str = "FailedClaim";
    /// A metric of a HookRun is Successful.
    pub const METRIC_SUCCESSFUL: &str = "MetricSuccessful";
    /// A metric of a HookRun is Failed.
    pub const METRIC_FAILED: &str = "MetricFailed";
    /// A metric of a HookRun could not be measured.
    pub const METRIC_ERROR: &str = "MetricError";
    /// A metric of a HookRun is Inconclusive.
    pub const METRIC_INCONCLUSIVE: &str = "MetricInconclusive";
    /// A metric of a HookRun was cancelled.
    pub const METRIC_CANCELLED: &str = "MetricCancelled";
    /// A HookRun is Successful.
    pub const RUN_SUCCESSFUL: &str = "HookRunSuccessful";
    /// A HookRun is Failed.
    pub const RUN_FAILED: &str = "HookRunFailed";
    /// A HookRun could not be measured.
    pub const RUN_ERROR: &str = "HookRunError";
    /// A HookRun is Inconclusive.
    pub const RUN_INCONCLUSIVE: &str = "HookRunInconclusive";
    /// A HookRun was cancelled.
    pub const RUN_CANCELLED: &str = "HookRunCancelled";
    /// A measurement could not be started.
    pub const FAILED_MEASUREMENT: &str = "FailedMeasurement";
    /// A pod was updated in-place.
    pub const SUCCESSFUL_INPLACE: &str = "SuccessfulUpdatePodInPlace";
    /// A pod could not be updated in-place.
    pub const FAILED_INPLACE: &str = "FailedUpdatePodInPlace";
    /// A pod was hot-patched.
    pub const SUCCESSFUL_HOT_PATCH: &str = "SuccessfulUpdatePodHotPatch";
    /// A pod could not be hot-patched.
    pub const FAILED_HOT_PATCH: &str = "FailedUpdatePodHotPatch";
    /// A pod without the readiness gate was updated in-place.
    pub const WITHOUT_GATE: &str = "UpdatedWithoutReadinessGate";
    /// A rollout continues with the next step.
    pub const SET_STEP_INDEX: &str = "SetStepIndex";
    /// A rollout could not be paused or resumed.
    pub const FAILED_PAUSE: &str = "FailedPause";
    /// A HookRun was created.
    pub const SUCCESSFUL_CREATE_RUN: &str = "SuccessfulCreateHookRun";
    /// A HookRun could not be written.
    pub const FAILED_RUN: &str = "FailedHookRun";
    /// A pod was deleted or updated without its hook.
    pub const HOOK_SKIPPED: &str = "HookSkipped";
    /// The deletion mark of a pod could not be set or removed.
    pub const FAILED_MARK: &str = "FailedMarkPod";
    /// The protection of pods could not be set up or ended.
    pub const FAILED_PROTECTION: &str = "FailedProtection";
    /// `retry` could not be reset.
    pub const FAILED_RETRY: &str = "FailedResetRetry";
    /// A ControllerRevision could not be written.
    pub const FAILED_REVISION: &str = "FailedRevision";
}
