//! Every string that others can see on the wire: labels, annotations, condition types, reasons.

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
/// Variable that tells every container the pod's number.
pub const INDEX_VARIABLE: &str = "POD_INDEX";
/// GameDeployment annotation: pods get numbers.
pub const INDEX_ON_ANNOTATION: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-on";
/// GameDeployment annotation: which numbers, as `{"podStartIndex":0,"podEndIndex":10}`.
pub const INDEX_RANGE_ANNOTATION: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-range";
/// On a workload: the revision and the canary step for which the operator set `spec.updateStrategy.paused`. Without it, a person did.
pub const PAUSED_FOR_ANNOTATION: &str = "gameplane.dev/paused-for";
/// On a node: a person or a cloud says that it is gone for good.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// Readiness gate and condition of pods: false while a pod is updated in place.
pub const READINESS_GATE: &str = "InPlaceUpdateReady";
/// Pod annotation: what an update in place changes, and what ran before.
pub const INPLACE_STATE_ANNOTATION: &str = "inplace-update-state";
/// Pod annotation: a change that waits until the pod is out of its services.
pub const INPLACE_GRACE_ANNOTATION: &str = "inplace-update-grace";
/// Pod annotation: what a hot patch changed, and what ran before.
pub const HOTPATCH_STATE_ANNOTATION: &str = "hotpatch-update-state";
/// Pod annotation: tells a kubelet that knows how to change images under a running container.
pub const HOTPATCH_ANNOTATION: &str = "io.kubernetes.hotpatch.container";
/// Reason of the gate while it is false.
pub const GATE_REASON: &str = "StartInPlaceUpdate";
/// HookRun label: the revision that is rolled out.
pub const RUN_REVISION_LABEL: &str = "workload-revision";
/// HookRun label: what asked.
pub const RUN_TYPE_LABEL: &str = "hookrun-type";
/// Value of the label above: a canary step.
pub const RUN_TYPE_CANARY: &str = "canary-step";
/// Value of the label above: a pod that is to be deleted.
pub const RUN_TYPE_PRE_DELETE: &str = "pre-delete-step";
/// Value of the label above: a pod that is to be updated in place.
pub const RUN_TYPE_PRE_INPLACE: &str = "pre-inplace-step";
/// Value of the label above: a pod that was updated in place.
pub const RUN_TYPE_POST_INPLACE: &str = "post-inplace-step";
/// HookRun label: the five characters at the end of the pod's name.
pub const RUN_INSTANCE_LABEL: &str = "instance-id";
/// HookRun label: the uid of the pod.
pub const RUN_POD_UID_LABEL: &str = "pod-uid";
/// HookRun label: the HookTemplate that it was made from.
pub const RUN_TEMPLATE_LABEL: &str = "hook-template";
/// HookRun label: the revision that the pod is updated to.
pub const RUN_TARGET_LABEL: &str = "target-revision";
/// HookRun label: how often the question was asked.
pub const RUN_ATTEMPT_LABEL: &str = "attempt";
/// Pod annotation: the pod is to be deleted, once its hook agrees.
pub const DELETING_ANNOTATION: &str = "io.tencent.bcs.dev/game-pod-deleting";
/// Pod annotation, beside the one above: the hash of what its hook is asked.
pub const ASKED_ANNOTATION: &str = "gameplane.dev/asked";
/// Secret annotation: the hosts that hooks may send its values to.
pub const HOOK_HOSTS_ANNOTATION: &str = "gameplane.dev/hook-hosts";
/// Pod label: the uid of the workload whose hook must agree before anybody deletes the pod.
pub const PROTECTED_LABEL: &str = "gameplane.dev/protected-by";
/// How the names of our PodDisruptionBudgets begin; the uid of the workload follows.
pub const BUDGET_PREFIX: &str = "gameplane-";
/// Finalizer with which Kubernetes keeps an object whose pods are to stay (`--cascade=orphan`) until they have no owner.
pub const ORPHAN_FINALIZER: &str = "orphan";
/// Finalizer of a workload that stays until its protected pods have left.
pub const PROTECTION_FINALIZER: &str = "gameplane.dev/protected-pods";
/// Node annotation: pods on nodes with a lower cost are deleted first.
pub const NODE_DELETION_COST_ANNOTATION: &str = "io.tencent.bcs.dev/node-deletion-cost";
/// HookRun label: which step.
pub const RUN_STEP_LABEL: &str = "canary-step-index";
/// Why a rollout pauses by itself: a step says so.
pub const PAUSED_BY_STEP: &str = "PausedByCanaryPauseStep";
/// Why a rollout pauses by itself: a hook said no.
pub const PAUSED_BY_HOOK: &str = "PausedByStepBasedHook";
/// What events of hooks are reported by.
pub const HOOK_REPORTER: &str = "bcs-hook-operator";
/// What events of GameDeployments are reported by.
pub const GAMEDEPLOYMENT_REPORTER: &str = "bcs-gamedeployment-operator";

/// Condition types.
pub mod condition {
    /// The operator is changing pods, or waits for pods that it changed.
    pub const PROGRESSING: &str = "Progressing";
    /// Enough pods serve.
    pub const AVAILABLE: &str = "Available";
    /// The rollout is stopped.
    pub const PAUSED: &str = "Paused";
    /// Something needs a person.
    pub const DEGRADED: &str = "Degraded";
    /// Nobody deletes a pod before its hook agrees.
    pub const PROTECTED: &str = "Protected";
    /// A HookRun has a verdict.
    pub const COMPLETE: &str = "Complete";
    /// A HookTemplate can be followed.
    pub const ACCEPTED: &str = "Accepted";
}

/// Reasons of conditions.
pub mod reason {
    /// Pods are being created or removed to reach the wanted number.
    pub const SCALING: &str = "Scaling";
    /// Pods are being moved to the update revision.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// Every pod is there, on the update revision, and available.
    pub const COMPLETE: &str = "Complete";
    /// As many pods as the partition allows are updated.
    pub const PARTITION_REACHED: &str = "PartitionReached";
    /// Pods are replaced when somebody deletes them.
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
    /// A field has a value that cannot be followed.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// The revision of the template is being deleted.
    pub const REVISION_LEAVING: &str = "RevisionBeingDeleted";
    /// More is stored of the object than the operator keeps.
    pub const TOO_LARGE: &str = "TooLarge";
    /// What the object needs of other kinds cannot be listed.
    pub const NOT_LISTED: &str = "NotListed";
    /// Hot patches are not in this version.
    pub const NO_HOT_PATCH: &str = "HotPatchUpdateNotInThisVersion";
    /// A hook of a canary step is being asked.
    pub const HOOK_RUNNING: &str = "HookRunning";
    /// A hook said no, and updated pods return to the stable revision.
    pub const ROLLED_BACK: &str = "RolledBackByHook";
    /// A hook cannot be asked.
    pub const HOOK_NOT_POSSIBLE: &str = "HookNotPossible";
    /// The template changed more than an update in place can.
    pub const INPLACE_NOT_POSSIBLE: &str = "InPlaceNotPossible";
    /// A HookRun has no verdict yet.
    pub const RUNNING: &str = "Running";
    /// A HookTemplate can be followed.
    pub const ACCEPTED: &str = "Accepted";
    /// Pods wait for a number.
    pub const NO_INDEX: &str = "NoPodIndex";
    /// Pods wait until their hook agrees.
    pub const WAITING_FOR_HOOK: &str = "WaitingForHook";
    /// The API server refuses what is left to do.
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
    /// A pod was deleted so that its successor has the new template.
    pub const SUCCESSFUL_RECREATE: &str = "SuccessfulUpdatePodReCreate";
    /// A pod could not be deleted for its update.
    pub const FAILED_RECREATE: &str = "FailedUpdatePodReCreate";
    /// A pod could not be adopted or let go.
    pub const FAILED_CLAIM: &str = "FailedClaim";
    /// A metric of a HookRun is as wanted.
    pub const METRIC_SUCCESSFUL: &str = "MetricSuccessful";
    /// A metric of a HookRun is not as wanted.
    pub const METRIC_FAILED: &str = "MetricFailed";
    /// A metric of a HookRun could not be measured.
    pub const METRIC_ERROR: &str = "MetricError";
    /// A metric of a HookRun says neither yes nor no.
    pub const METRIC_INCONCLUSIVE: &str = "MetricInconclusive";
    /// A metric of a HookRun was stopped.
    pub const METRIC_CANCELLED: &str = "MetricCancelled";
    /// A HookRun is as wanted.
    pub const RUN_SUCCESSFUL: &str = "HookRunSuccessful";
    /// A HookRun is not as wanted.
    pub const RUN_FAILED: &str = "HookRunFailed";
    /// A HookRun could not be measured.
    pub const RUN_ERROR: &str = "HookRunError";
    /// A HookRun says neither yes nor no.
    pub const RUN_INCONCLUSIVE: &str = "HookRunInconclusive";
    /// A HookRun was stopped.
    pub const RUN_CANCELLED: &str = "HookRunCancelled";
    /// A measurement could not be begun.
    pub const FAILED_MEASUREMENT: &str = "FailedMeasurement";
    /// A pod was updated in place.
    pub const SUCCESSFUL_INPLACE: &str = "SuccessfulUpdatePodInPlace";
    /// A pod could not be updated in place.
    pub const FAILED_INPLACE: &str = "FailedUpdatePodInPlace";
    /// A pod was hot-patched.
    pub const SUCCESSFUL_HOT_PATCH: &str = "SuccessfulUpdatePodHotPatch";
    /// A pod could not be hot-patched.
    pub const FAILED_HOT_PATCH: &str = "FailedUpdatePodHotPatch";
    /// A pod without the readiness gate was updated in place.
    pub const WITHOUT_GATE: &str = "UpdatedWithoutReadinessGate";
    /// A rollout goes on to the next step.
    pub const SET_STEP_INDEX: &str = "SetStepIndex";
    /// A rollout could not be paused or resumed.
    pub const FAILED_PAUSE: &str = "FailedPause";
    /// A HookRun was created.
    pub const SUCCESSFUL_CREATE_RUN: &str = "SuccessfulCreateHookRun";
    /// A HookRun could not be written.
    pub const FAILED_RUN: &str = "FailedHookRun";
    /// A pod went on without its hook.
    pub const HOOK_SKIPPED: &str = "HookSkipped";
    /// A pod could not be marked for deletion, or its mark not removed.
    pub const FAILED_MARK: &str = "FailedMarkPod";
    /// Pods could not be protected, or their protection not ended.
    pub const FAILED_PROTECTION: &str = "FailedProtection";
    /// `retry` could not be reset.
    pub const FAILED_RETRY: &str = "FailedResetRetry";
    /// A ControllerRevision could not be written.
    pub const FAILED_REVISION: &str = "FailedRevision";
}
