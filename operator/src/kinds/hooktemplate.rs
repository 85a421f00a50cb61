//! HookTemplates: whether they are valid.

use std::sync::Arc;

use api::names::HOOK_REPORTER;
use api::tkex::{HookTemplate, HookTemplateStatus};
use jiff::Timestamp;
use planner::hooktemplate;
use planner::request::Resource;

use super::custom::{Custom, owner, path};
use crate::controller::{Known, Pass, Workload};
use crate::execute::Failure;
use crate::settle::Cache;
use crate::store::{Key, Store};

/// Everything that HookTemplates are decided from.
#[derive(Debug, Clone, Default)]
pub struct HookTemplates {
    /// The objects.
    pub objects: Arc<Store<Custom<HookTemplate>>>,
}

impl Workload for HookTemplates {
    type Status = HookTemplateStatus;
    const KIND: &'static str = "HookTemplate";
    const REPORTER: &'static str = HOOK_REPORTER;

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
