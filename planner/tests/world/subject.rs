//! A kind as laws and scenarios see it: how an object is made, and what its users change.

use std::fmt::Debug;

use api::template::PodTemplate;
use api::tkex::{GameDeployment, GameDeploymentStatus, PodHook, PodIndex, PreDeleteHook, UpdateStrategy};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use planner::workload::Kind;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A kind that owns pods, under test.
pub(crate) trait Subject: Kind<Status: Debug + PartialEq> + Clone + Debug + DeserializeOwned {
    /// Its metadata.
    fn metadata(&mut self) -> &mut ObjectMeta;
    /// The fields of its spec that users change.
    fn spec(&mut self) -> Spec<'_>;
    /// Writes its status.
    fn set_status(&mut self, status: Self::Status);
    /// The progress of the rollout that a status tells of.
    fn rollout(status: &Self::Status) -> Rollout<'_>;

    /// The object `game` with this spec, over the defaults of its CustomResourceDefinition.
    fn new(spec: &Value) -> Self {
        let mut whole = json!({ "selector": { "matchLabels": { "app": "game" } }, "template": super::template(0) });
        for (key, value) in spec.as_object().into_iter().flatten() {
            whole[key] = value.clone();
        }
        let metadata = json!({ "name": "game", "namespace": "play", "uid": "uid-game", "generation": 1, "resourceVersion": "1" });
        let object = json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "metadata": metadata, "spec": whole });
        serde_json::from_value(object).unwrap()
    }
}

/// The fields of a spec that users change. Not every kind has all of them.
#[derive(Debug)]
pub(crate) struct Spec<'a> {
    pub(crate) replicas: &'a mut i32,
    pub(crate) template: &'a mut PodTemplate,
    pub(crate) strategy: &'a mut UpdateStrategy,
    pub(crate) pods_to_delete: Option<&'a mut Vec<String>>,
    pub(crate) index: Option<&'a mut Option<PodIndex>>,
    pub(crate) ungated: Option<&'a mut Option<bool>>,
    pub(crate) hooks: Option<Hooks<'a>>,
}

/// Hooks about pods.
#[derive(Debug)]
pub(crate) struct Hooks<'a> {
    pub(crate) pre_delete: &'a mut PreDeleteHook,
    pub(crate) pre_inplace: &'a mut PodHook,
    pub(crate) post_inplace: &'a mut PodHook,
}

/// The progress of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rollout<'a> {
    /// The stable revision.
    pub(crate) current: &'a str,
    /// The revision of the template.
    pub(crate) update: &'a str,
    /// The canary step.
    pub(crate) step: Option<i32>,
}

impl Subject for GameDeployment {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn spec(&mut self) -> Spec<'_> {
        let spec = &mut self.spec;
        Spec {
            replicas: &mut spec.replicas,
            template: &mut spec.template,
            strategy: &mut spec.update_strategy,
            pods_to_delete: Some(&mut spec.scale_strategy.get_or_insert_default().pods_to_delete),
            index: Some(&mut spec.pod_index),
            ungated: Some(&mut spec.disable_readiness_gate),
            hooks: Some(Hooks {
                pre_delete: spec.pre_delete_update_strategy.get_or_insert_default(),
                pre_inplace: spec.pre_inplace_update_strategy.get_or_insert_default(),
                post_inplace: spec.post_inplace_update_strategy.get_or_insert_default(),
            }),
        }
    }

    fn set_status(&mut self, status: GameDeploymentStatus) {
        self.status = Some(status);
    }

    fn rollout(status: &GameDeploymentStatus) -> Rollout<'_> {
        Rollout { current: &status.current_revision, update: &status.update_revision, step: status.current_step_index }
    }
}
