//! The laws of a throw-away kind: what a new kind has to say is little, and everything else is shared.

mod kind;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use self::kind::{Squad, SquadStatus};
use crate::laws::laws;
use crate::world::{Rollout, Spec, Subject};

impl Subject for Squad {
    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn spec(&mut self) -> Spec<'_> {
        let (replicas, template, strategy) = (&mut self.spec.replicas, &mut self.spec.template, &mut self.spec.update_strategy);
        Spec { replicas, template, strategy, pods_to_delete: None, index: None, ungated: None, hooks: None }
    }

    fn set_status(&mut self, status: SquadStatus) {
        self.status = Some(status);
    }

    fn rollout(status: &SquadStatus) -> Rollout<'_> {
        Rollout { current: &status.current_revision, update: &status.update_revision, step: None }
    }
}

laws!(Squad);
