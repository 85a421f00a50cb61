//! A throw-away kind: pods named `<name>-0`, `<name>-1`, … of which the last goes first. This is all that a kind without hooks has to say.

use api::tkex::UpdateStrategy;
use api::{selector::LabelSelector, template::PodTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use planner::facts::{node::Nodes, pod::PodFacts};
use planner::plan::NewPod;
use planner::workload::view::{Target, View};
use planner::workload::{Kind, Memory, Now, Status, Workload, canary, conditions::Report};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Squad {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: SquadSpec,
    pub(crate) status: Option<SquadStatus>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SquadSpec {
    pub(crate) replicas: i32,
    pub(crate) selector: LabelSelector,
    pub(crate) template: PodTemplate,
    #[serde(default)]
    pub(crate) update_strategy: UpdateStrategy,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SquadStatus {
    pub(crate) current_revision: String,
    pub(crate) update_revision: String,
    pub(crate) observed_generation: Option<i64>,
    pub(crate) conditions: Vec<Condition>,
}

impl Kind for Squad {
    type Status = SquadStatus;

    fn workload(&self) -> Workload<'_> {
        let SquadSpec { replicas, selector, template, update_strategy } = &self.spec;
        let remember = |status: &SquadStatus| canary::Memory { revision: status.update_revision.clone(), ..Default::default() };
        let rollout = self.status.as_ref().map(remember).unwrap_or_default();
        let current_revision = self.status.as_ref().map_or("", |status| &status.current_revision);
        let strategy = Cow::Owned(UpdateStrategy { canary: None, ..update_strategy.clone() });
        let plain = Workload::new(("tkex.tencent.com", "Squad"), &self.metadata, selector, template, strategy);
        Workload { replicas: *replicas, memory: Memory { current_revision, rollout, collisions: 0 }, ..plain }
    }

    fn status(&self) -> Option<&SquadStatus> {
        self.status.as_ref()
    }

    fn order(pods: &mut [Arc<PodFacts>], _: &[Arc<PodFacts>], _: &Nodes, _: Now) {
        pods.sort_by(|one, other| (other.name.len(), &other.name).cmp(&(one.name.len(), &one.name)));
    }

    fn pods(view: &View, target: &Target, count: usize, taken: &mut BTreeSet<String>) -> Vec<NewPod> {
        let named = (0..).map(|number| (format!("{}-{number}", view.workload.name()), number.to_string()));
        let free = named.filter(|(name, _)| taken.insert(name.clone())).take(count);
        free.map(|(name, id)| view.new_pod(target, name, id)).collect()
    }

    fn report(_: SquadStatus, _: &View, report: Report) -> SquadStatus {
        let Report { generation, current_revision, rollout, conditions, .. } = report;
        SquadStatus { current_revision, update_revision: rollout.revision, observed_generation: generation, conditions }
    }
}

impl Status for SquadStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn conditions_mut(&mut self) -> (&mut Vec<Condition>, &mut Option<i64>) {
        (&mut self.conditions, &mut self.observed_generation)
    }
}
