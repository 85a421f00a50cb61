//! Group `tkex.tencent.com`, version `v1alpha1`.

mod gamedeployment;
mod hook;
mod strategy;

pub use gamedeployment::{
    CanaryStatus, GameDeployment, GameDeploymentSpec, GameDeploymentStatus, PauseCondition, PodHookCondition, ScaleStrategy,
};
pub use hook::{HookArgument, HookStep, PodHook, PreDeleteHook};
pub use strategy::{
    Canary, ContainerOrder, HotPatch, HotPatchExecutor, HotPatchLimits, HotPatchMode, HttpReload, InPlace, OnConflict, OnFailure,
    OnRestart, Pause, Reload, Step, UpdateStrategy, UpdateType, WhenNotPossible,
};
