//! Group `tkex.tencent.com`, version `v1alpha1`.

mod gamedeployment;
mod hook;
mod hookrun;
mod hooktemplate;
mod metric;
mod strategy;

pub use gamedeployment::{
    CanaryStatus, GameDeployment, GameDeploymentSpec, GameDeploymentStatus, PauseCondition, PodHookCondition, PodIndex, ScaleStrategy,
};
pub use hook::{HookArgument, HookStep, PodHook, PreDeleteHook};
pub use hookrun::{HookRun, HookRunSpec, HookRunStatus, Measurement, MetricResult, Phase};
pub use hooktemplate::{HookTemplate, HookTemplateSpec, HookTemplateStatus};
pub use metric::{Exec, Field, Function, Header, HeaderSource, Kubernetes, Method, Metric, Policy, Prometheus, Provider, SecretKey, Web};
pub use strategy::{
    Canary, ContainerOrder, HotPatch, HotPatchExecutor, HotPatchLimits, HotPatchMode, HttpReload, InPlace, OnConflict, OnFailure,
    OnRestart, Pause, Reload, Step, UpdateStrategy, UpdateType, WhenNotPossible,
};
