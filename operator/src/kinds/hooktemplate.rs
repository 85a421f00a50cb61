//! HookTemplates: how they are read and observed.

use std::sync::Arc;

use api::names::HOOK_REPORTER;
use api::tkex::{HookTemplate, HookTemplateSpec, HookTemplateStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use planner::hooktemplate;
use planner::request::Resource;

use super::custom::{Custom, OurKind, basis, owner, path, some_of};
use crate::controller::{Basis, Known, Pass, Reconcile};
use crate::execute::Failure;
use crate::settle::Cache;
use crate::store::{Key, Store};

impl OurKind for HookTemplate {
    type Spec = HookTemplateSpec;
    type Status = HookTemplateStatus;
    const KIND: &'static str = "HookTemplate";
    const PATH: &'static str = "/apis/tkex.tencent.com/v1alpha1/hooktemplates";
    const MAX_SPEC_BYTES: usize = 256 * 1024;
    const MOST_VALUES: usize = 8_192;
    const NOTHING: &'static str = r#"{"metrics":[]}"#;

    fn assemble(metadata: ObjectMeta, spec: Self::Spec, status: Option<Self::Status>) -> Self {
        Self { metadata, spec, status }
    }

    fn spec_mut(&mut self) -> &mut Self::Spec {
        &mut self.spec
    }

    fn shorten_status(&mut self) {
        if let Some(status) = &mut self.status {
            status.conditions = some_of(std::mem::take(&mut status.conditions));
        }
    }
}

/// Everything that HookTemplates are decided from.
#[derive(Debug, Clone, Default)]
pub struct HookTemplates {
    /// The objects.
    pub objects: Arc<Store<Custom<HookTemplate>>>,
}

impl Reconcile for HookTemplates {
    type Status = HookTemplateStatus;
    const KIND: &'static str = "HookTemplate";
    const REPORTER: &'static str = HOOK_REPORTER;

    fn basis(&self, key: &Key) -> Option<Basis> {
        basis(&self.objects, key)
    }

    fn pass(&self, key: &Key, _: &Known, now: Timestamp) -> Option<Pass<HookTemplateStatus>> {
        let entry = self.objects.get(key)?;
        let template = Arc::clone(&entry.object);
        Some(Pass {
            owner: owner(&*template),
            path: path(&*template),
            version: template.metadata.resource_version.clone().unwrap_or_default(),
            before: template.status.clone(),
            plan: hooktemplate::decide(&template, entry.too_large.as_deref(), now),
            pods: 0,
            measurer: None,
        })
    }

    fn is_heavy(&self, _: &Key) -> bool {
        true
    }

    fn with_trouble(status: HookTemplateStatus, _: Option<&HookTemplateStatus>, _: &Failure, _: Timestamp) -> HookTemplateStatus {
        status
    }

    fn cache(&self, resource: Resource) -> Option<&dyn Cache> {
        (resource == Resource::Object).then_some(&*self.objects)
    }
}
