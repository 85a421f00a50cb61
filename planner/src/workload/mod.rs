//! What every kind that owns pods shares. A kind decides which pods exist, under which names, and in which order they
//! go ([`Kind`]); everything else is decided here.
//!
//! Pods fall into three groups by their revision: `update` (the template of the spec), `current` (the stable revision,
//! recorded in status) and `stray` (neither). [`view`] is what is observed, in order; [`ledger`] is the one place that
//! decides which pods go or change within the limits, and asks hooks; [`steps`] is what is written, in order.

pub mod adopt;
pub mod approval;
pub mod canary;
pub mod conditions;
mod deletion;
pub mod gate;
pub mod index;
pub mod inplace;
pub mod ledger;
pub mod limits;
pub mod manifest;
mod moves;
pub mod naming;
mod needs;
mod notices;
pub mod order;
pub mod protect;
mod replace;
pub mod revision;
mod scale_in;
mod steps;
pub mod templates;
mod upkeep;
pub mod view;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use api::names::PROTECTION_FINALIZER;
use api::selector::LabelSelector;
use api::template::PodTemplate;
use api::tkex::{HookRun, HookStep, HookTemplate, PodHookCondition, PodIndex, UpdateStrategy};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

use self::conditions::Report;
use self::gate::Hook;
use self::ledger::Ledger;
use self::moves::Moves;
use self::view::{Target, View};
use crate::facts::node::Nodes;
use crate::facts::pdb::PdbFacts;
use crate::facts::pod::PodFacts;
use crate::facts::revision::RevisionFacts;
use crate::hold::Hold;
use crate::plan::{NewPod, Plan};
use crate::refusal::Refusals;

pub use needs::{Needed, Unlisted};

/// The time of the decision.
pub type Now = Timestamp;

/// A kind that owns pods.
pub trait Kind: Sized {
    /// Its status.
    type Status: Status;

    /// An object of it, as shared decisions see it.
    fn workload(&self) -> Workload<'_>;

    /// The status that was observed.
    fn status(&self) -> Option<&Self::Status>;

    /// Sorts pods: those first that go, or are updated, first. `all` are the pods of the object, including those that
    /// are being deleted.
    fn order(pods: &mut [Arc<PodFacts>], all: &[Arc<PodFacts>], nodes: &Nodes, now: Now);

    /// The class of a pod in a scale-in: pods of a lower class go first, and within a class the order decides.
    fn class(_: &Ledger, _: &PodFacts) -> u8 {
        0
    }

    /// At most `count` new pods of a revision. `taken` are names that they must not have.
    fn pods(view: &View, target: &Target, count: usize, taken: &mut BTreeSet<String>) -> Vec<NewPod>;

    /// Puts a report into the status. `before` is the status that was observed.
    fn report(before: Self::Status, view: &View, report: Report) -> Self::Status;
}

/// The parts of a status that every kind has.
pub trait Status: Clone + Default {
    /// Its conditions.
    fn conditions(&self) -> &[Condition];
    /// Its conditions, and the generation that was observed.
    fn conditions_mut(&mut self) -> (&mut Vec<Condition>, &mut Option<i64>);
    /// Pods that wait for a hook, by [`gate::Place`].
    fn waiting(&self) -> [&[PodHookCondition]; 3] {
        [&[]; 3]
    }
}

/// An object that owns pods, as shared decisions see it.
#[derive(Debug, Clone)]
pub struct Workload<'a> {
    /// The API group of its kind.
    pub group: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// Its metadata.
    pub metadata: &'a ObjectMeta,
    /// How many pods are wanted.
    pub replicas: i32,
    /// Which pods it may adopt.
    pub selector: &'a LabelSelector,
    /// What new pods are made from.
    pub template: &'a PodTemplate,
    /// How long a pod has to be ready before it is available.
    pub min_ready: SignedDuration,
    /// How many revisions are kept that are not used any more.
    pub history_limit: i32,
    /// How pods are updated.
    pub strategy: Cow<'a, UpdateStrategy>,
    /// Its hooks about pods, by [`gate::Place`].
    pub hooks: [Option<Hook<'a>>; 3],
    /// Whether its pods are protected from deletion by others. Without a preDelete hook none is.
    pub protect: bool,
    /// Which numbers its pods get.
    pub index: Option<&'a PodIndex>,
    /// Pods that the user wants deleted first.
    pub pods_to_delete: &'a [String],
    /// Whether its pods have no readiness gate.
    pub ungated: bool,
    /// What its status records.
    pub memory: Memory<'a>,
}

/// What a status records for the next decision.
#[derive(Debug, Clone, Default)]
pub struct Memory<'a> {
    /// The stable revision; empty for an object that never had one.
    pub current_revision: &'a str,
    /// How often the name of a new revision was taken by another template.
    pub collisions: i32,
    /// The progress of the canary.
    pub rollout: canary::Memory,
}

impl<'a> Workload<'a> {
    /// An object without hooks, numbers and protection.
    #[must_use]
    pub fn new(
        (group, kind): (&'static str, &'static str),
        metadata: &'a ObjectMeta,
        selector: &'a LabelSelector,
        template: &'a PodTemplate,
        strategy: Cow<'a, UpdateStrategy>,
    ) -> Self {
        Self {
            group,
            kind,
            metadata,
            replicas: 1,
            selector,
            template,
            min_ready: SignedDuration::ZERO,
            history_limit: 10,
            strategy,
            hooks: [None; 3],
            protect: false,
            index: None,
            pods_to_delete: &[],
            ungated: false,
            memory: Memory::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Its uid.
    #[must_use]
    pub fn uid(&self) -> &'a str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> &'a str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    fn finalizers(&self) -> &'a [String] {
        self.metadata.finalizers.as_deref().unwrap_or_default()
    }

    /// Whether only the operator may delete its pods, once their hook approves.
    #[must_use]
    pub fn protects(&self) -> bool {
        self.protect && self.hooks.iter().flatten().any(|hook| hook.place == gate::Place::PreDelete)
    }

    /// Whether it protects its pods, or still has the finalizer of an earlier protection.
    #[must_use]
    pub fn guards_pods(&self) -> bool {
        self.protect || self.finalizers().iter().any(|finalizer| finalizer == PROTECTION_FINALIZER)
    }

    /// Whether hooks are asked about its pods.
    #[must_use]
    pub fn asks_about_pods(&self) -> bool {
        self.hooks.iter().any(Option::is_some)
    }

    /// Names of HookTemplates that it uses.
    pub fn hook_templates(&self) -> impl Iterator<Item = &str> {
        let of_steps = self.strategy.canary.iter().flat_map(|canary| &canary.steps).filter_map(|step| step.hook.as_ref());
        let about_pods = self.hooks.iter().flatten().map(|hook| hook.step);
        of_steps.chain(about_pods).map(|hook: &HookStep| hook.template_name.as_str())
    }
}

/// Everything a decision about one object is made from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Observed<K> {
    /// The object, with defaults.
    pub object: Arc<K>,
    /// What is observed besides the object.
    pub seen: Seen,
}

/// What is observed of an object that owns pods, besides the object itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seen {
    /// Pods that it controls, and pods of its namespace without a controller.
    pub pods: Vec<Arc<PodFacts>>,
    /// Revisions that it controls, and those without a controller that its selector matches.
    pub revisions: Vec<Arc<RevisionFacts>>,
    /// HookRuns that it controls.
    #[serde(default)]
    pub hook_runs: Vec<Arc<HookRun>>,
    /// HookTemplates that it names.
    #[serde(default)]
    pub hook_templates: Vec<Arc<HookTemplate>>,
    /// Nodes that its pods are on.
    #[serde(default)]
    pub nodes: Nodes,
    /// PodDisruptionBudgets of its namespace, if it protects its pods.
    #[serde(default)]
    pub budgets: Vec<Arc<PdbFacts>>,
    /// Names of revisions and HookRuns of other objects.
    pub taken_revision_names: Vec<String>,
    /// Names of pods of other objects.
    pub taken_pod_names: Vec<String>,
    /// What the API server has refused.
    #[serde(default)]
    pub refusals: Refusals,
    /// Why the object or one of its pods, revisions and HookRuns is not known whole, if so.
    #[serde(default)]
    pub too_large: Option<String>,
    /// Kinds that have not been listed.
    #[serde(default)]
    pub unlisted: Vec<Unlisted>,
    /// Whether memory limits can be lowered without a restart: since Kubernetes 1.34.
    #[serde(default = "yes")]
    pub lowers_memory: bool,
}

fn yes() -> bool {
    true
}

/// What to do next for one object. Never fails: an invalid spec is a hold.
#[must_use]
pub fn decide<K: Kind>(observed: &Observed<K>, now: Now) -> Plan<K::Status> {
    let (object, seen) = (&*observed.object, &observed.seen);
    let workload = object.workload();
    let before = object.status().cloned().unwrap_or_default();
    if let Some(what) = &seen.too_large {
        return conditions::unknown(before, Hold::TooLarge { what: what.clone() }, workload.metadata.generation, now);
    }
    if let Some(missing) = needs::missing(&workload, &seen.unlisted) {
        return needs::plan(before, &missing, workload.metadata.generation, now);
    }
    let is_leaving = workload.metadata.deletion_timestamp.is_some();
    let view = View::of(workload, seen, now, K::order);
    if is_leaving {
        return deletion::decide::<K>(&before, &view);
    }
    let mut moves = Moves::of::<K>(&view);
    let writes = steps::of(&view, &mut moves);
    let refused = view.refusals.holds(&moves.held, &writes, &moves.missing_revisions);
    moves.holds.extend(refused);
    let report = conditions::report(&before, &view, &moves);
    let tidy = steps::forgotten(&view, &report.current_revision);
    let status = K::report(before, &view, report);
    let steps = steps::admitted(&view, writes, [tidy, view.refusals.probes(&moves.held, now)]);
    let notes = [view.canary.notes.clone(), moves.notes].concat();
    let wake = view.wake().into_iter().chain(moves.wake).chain(view.refusals.wake(now)).min();
    Plan { steps, holds: moves.holds, notes, wake, refusals: view.refusals.clone(), ..conditions::plan(status) }
}
