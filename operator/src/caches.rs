//! Everything that is watched, once: what decisions of every kind are made from.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::tkex::{HookRun, HookTemplate};
use jiff::SignedDuration;
use planner::request::Resource;
use planner::workload::{Needed, Unlisted, inplace};
use serde::Deserialize;

use crate::allowance::Allowance;
use crate::client::Server;
use crate::health::Health;
use crate::kinds::budget::Budget;
use crate::kinds::custom::Custom;
use crate::kinds::node::Node;
use crate::kinds::pod::Pod;
use crate::kinds::revision::Revision;
use crate::nodes::{NodeStates, UnknownNodes};
use crate::settle::Cache;
use crate::store::{Cached, Store};

/// The caches of one term. Each kind that owns pods has one more, of its own objects.
#[derive(Debug)]
pub struct Caches {
    /// Pods.
    pub pods: Arc<Store<Pod>>,
    /// ControllerRevisions.
    pub revisions: Arc<Store<Revision>>,
    /// HookRuns.
    pub hook_runs: Arc<Store<Custom<HookRun>>>,
    /// HookTemplates.
    pub hook_templates: Arc<Store<Custom<HookTemplate>>>,
    /// PodDisruptionBudgets.
    pub budgets: Arc<Store<Budget>>,
    /// Nodes.
    pub nodes: NodeStates,
    allowance: Arc<Allowance>,
    /// Which kinds cannot be listed, and why.
    health: Arc<Health>,
    /// Whether memory limits can be lowered without a restart.
    lowers_memory: AtomicBool,
}

impl Caches {
    /// Empty caches. The names from the receiver are of nodes that have to be looked up.
    #[must_use]
    pub fn new(allowance: Arc<Allowance>, node_silence: SignedDuration, health: Arc<Health>) -> (Self, UnknownNodes) {
        let (nodes, unknown) = NodeStates::new(node_silence);
        let caches = Self {
            pods: store(&allowance),
            revisions: store(&allowance),
            hook_runs: store(&allowance),
            hook_templates: store(&allowance),
            budgets: store(&allowance),
            nodes,
            allowance,
            health,
            lowers_memory: AtomicBool::new(true),
        };
        (caches, unknown)
    }

    /// An empty store whose objects share the memory allowance of their namespaces with all others.
    #[must_use]
    pub fn store<T: Cached>(&self) -> Arc<Store<T>> {
        store(&self.allowance)
    }

    /// The cache that sees writes of a resource; none for the object itself, which is in the cache of its kind.
    #[must_use]
    pub fn of(&self, resource: Resource) -> Option<&dyn Cache> {
        Some(match resource {
            Resource::Object => return None,
            Resource::Pod => &*self.pods,
            Resource::ControllerRevision => &*self.revisions,
            Resource::HookRun => &*self.hook_runs,
            Resource::PodDisruptionBudget => &*self.budgets,
        })
    }

    /// Returns when what every workload needs is listed.
    pub async fn listed(&self) {
        tokio::join!(self.pods.listed(), self.revisions.listed(), self.nodes.store.listed());
    }

    /// Kinds that are not listed, or cannot be watched any more: that no object of them is in the cache does not mean that there is
    /// none.
    #[must_use]
    pub fn unlisted(&self) -> Vec<Unlisted> {
        let of = |is_listed: bool, kind: Needed, name: &str| {
            let why = self.health.lasting(name, is_listed);
            (!is_listed || why.is_some()).then_some(Unlisted { kind, why })
        };
        let all = [
            of(self.pods.is_listed(), Needed::Pod, Pod::KIND),
            of(self.revisions.is_listed(), Needed::ControllerRevision, Revision::KIND),
            of(self.nodes.store.is_listed(), Needed::Node, Node::KIND),
            of(self.hook_runs.is_listed(), Needed::HookRun, Custom::<HookRun>::KIND),
            of(self.hook_templates.is_listed(), Needed::HookTemplate, Custom::<HookTemplate>::KIND),
            of(self.budgets.is_listed(), Needed::PodDisruptionBudget, Budget::KIND),
        ];
        all.into_iter().flatten().collect()
    }

    /// Whether a resource cannot be watched any more, and that lasts.
    #[must_use]
    pub fn is_unwatched(&self, resource: Resource) -> bool {
        let name = match resource {
            Resource::Object => return false,
            Resource::Pod => Pod::KIND,
            Resource::ControllerRevision => Revision::KIND,
            Resource::HookRun => Custom::<HookRun>::KIND,
            Resource::PodDisruptionBudget => Budget::KIND,
        };
        self.health.lasting(name, true).is_some()
    }

    /// Asks the API server for its version. If it does not say, all features count as supported.
    pub async fn ask_version(&self, server: &Server) {
        #[derive(Deserialize)]
        struct Version {
            minor: String,
        }
        match server.get::<Version>("/version").await {
            Ok(version) => {
                // Some distributions report a minor version such as "33+".
                let minor: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
                self.lowers_memory.store(minor.parse().map_or(true, inplace::lowers_memory), Ordering::Relaxed);
            }
            Err(error) => tracing::warn!(%error, "the API server does not say its version"),
        }
    }

    /// Whether memory limits can be lowered without a restart.
    #[must_use]
    pub fn lowers_memory(&self) -> bool {
        self.lowers_memory.load(Ordering::Relaxed)
    }
}

fn store<T: Cached>(allowance: &Arc<Allowance>) -> Arc<Store<T>> {
    Arc::new(Store::within(Arc::clone(allowance)))
}
