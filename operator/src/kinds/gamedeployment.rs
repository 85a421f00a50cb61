//! GameDeployments: how they are read.

use api::names::GAMEDEPLOYMENT_REPORTER;
use api::tkex::{GameDeployment, GameDeploymentSpec, GameDeploymentStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::custom::{OurKind, some_of};
use super::workload::{Workload, Workloads};

/// All GameDeployments.
pub type GameDeployments = Workloads<GameDeployment>;

impl Workload for GameDeployment {
    const REPORTER: &'static str = GAMEDEPLOYMENT_REPORTER;
}

impl OurKind for GameDeployment {
    type Spec = GameDeploymentSpec;
    type Status = GameDeploymentStatus;
    const KIND: &'static str = "GameDeployment";
    const PATH: &'static str = "/apis/tkex.tencent.com/v1alpha1/gamedeployments";
    const MAX_SPEC_BYTES: usize = 512 * 1024;
    const MOST_VALUES: usize = 20_000;
    const NOTHING: &'static str = r#"{"selector":{},"template":null}"#;

    fn assemble(metadata: ObjectMeta, spec: Self::Spec, status: Option<Self::Status>) -> Self {
        Self { metadata, spec, status }
    }

    fn spec_mut(&mut self) -> &mut Self::Spec {
        &mut self.spec
    }

    fn shorten_status(&mut self) {
        let keep = |status: GameDeploymentStatus| GameDeploymentStatus {
            observed_generation: status.observed_generation,
            conditions: some_of(status.conditions),
            ..GameDeploymentStatus::default()
        };
        self.status = self.status.take().map(keep);
    }
}
