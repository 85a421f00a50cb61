//! GameDeployments: what is watched for them, and how they are observed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use api::names::GAMEDEPLOYMENT_REPORTER;
use api::tkex::{GameDeployment, GameDeploymentStatus, HookRun, HookTemplate};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use jiff::{SignedDuration, Timestamp};
use planner::facts::node::{MOST_SILENT_PERCENT, NodeFacts, Nodes};
use planner::facts::pod::PodFacts;
use planner::request::Resource;
use planner::workload::gate::Place;
use planner::workload::{self, Kind as _, Needed, Observed, Seen, Unlisted, conditions};

use super::budget::Budget;
use super::custom::{Custom, controller, owner, path};
use super::node::{Deleted, Node};
use super::pod::Pod;
use super::revision::Revision;
use crate::allowance::Allowance;
use crate::client::Server;
use crate::controller::{Known, Pass, Workload};
use crate::execute::Failure;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::settle::Cache;
use crate::store::{Cached as _, Change, Index, Key, OwnerKey, Store};

/// A GameDeployment in the cache.
pub type Entry = Custom<GameDeployment>;

/// Everything that GameDeployments are decided from.
#[derive(Debug, Clone)]
pub struct GameDeployments {
    /// The objects.
    pub objects: Arc<Store<Entry>>,
    /// Pods.
    pub pods: Arc<Store<Pod>>,
    /// Revisions.
    pub revisions: Arc<Store<Revision>>,
    /// HookRuns, which their own controller reconciles.
    pub hook_runs: Arc<Store<Custom<HookRun>>>,
    /// HookTemplates, which their own controller reconciles.
    pub hook_templates: Arc<Store<Custom<HookTemplate>>>,
    /// Nodes.
    pub nodes: Arc<Store<Node>>,
    /// Nodes that do not exist any more.
    pub deleted_nodes: Arc<Deleted>,
    /// How long a node may be silent before it counts as lost.
    pub silence: SignedDuration,
    /// Whether memory limits can be lowered without a restart.
    pub lowers_memory: Arc<AtomicBool>,
    /// Which nodes are silent.
    silent: Arc<Mutex<Silent>>,
    /// Names of pods that are gone, by the namespace and the uid of their owner.
    gone: Arc<Mutex<Gone>>,
    /// PodDisruptionBudgets.
    pub budgets: Arc<Store<Budget>>,
    /// Which kinds cannot be listed, and why.
    health: Arc<Health>,
}

/// Names of pods, by the namespace and the uid of their owner.
type Gone = HashMap<String, HashMap<String, VecDeque<String>>>;

/// Nodes that do not answer, as far as this operator knows.
#[derive(Debug)]
struct Silent {
    /// Since when this operator has seen each as silent: clocks differ, and an operator without connection learns of it late.
    since: BTreeMap<String, Timestamp>,
    /// Whether so many are silent that none counts as lost.
    is_braked: bool,
    /// When that was last the case, or when this term started.
    heard_since: Timestamp,
}

/// Since this minor version of Kubernetes memory limits can be lowered without a restart.
const LOWERS_MEMORY: u32 = 34;

/// How many names of deleted pods are kept per owner and not reused. A scheduler that has missed the end of a pod could confuse
/// it with a new one of the same name.
const MOST_GONE: usize = 1_000;
/// For how many owners of one namespace such names are kept.
const MOST_OWNERS: usize = 200;

impl GameDeployments {
    /// Empty caches, except for those that are passed in.
    #[must_use]
    pub fn new(
        hook_templates: Arc<Store<Custom<HookTemplate>>>,
        deleted_nodes: Arc<Deleted>,
        silence: SignedDuration,
        allowance: &Arc<Allowance>,
        health: Arc<Health>,
    ) -> Self {
        let (objects, pods) = (store(allowance), store(allowance));
        let (revisions, hook_runs) = (store(allowance), store(allowance));
        let (nodes, budgets) = (Arc::default(), store(allowance));
        let silent = Arc::new(Mutex::new(Silent { since: BTreeMap::new(), is_braked: false, heard_since: Timestamp::now() }));
        let (gone, lowers_memory) = (Arc::default(), Arc::new(AtomicBool::new(true)));
        Self {
            objects,
            pods,
            revisions,
            hook_runs,
            hook_templates,
            nodes,
            deleted_nodes,
            silence,
            lowers_memory,
            silent,
            gone,
            budgets,
            health,
        }
    }

    /// Asks the API server for its version. If it does not say, all features count as supported.
    pub async fn ask_version(&self, server: &Server) {
        #[derive(serde::Deserialize)]
        struct Version {
            minor: String,
        }
        match server.get::<Version>("/version").await {
            Ok(version) => {
                // Some distributions report a minor version such as "33+".
                let minor: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
                self.lowers_memory
                    .store(minor.parse::<u32>().is_ok_and(|minor| minor >= LOWERS_MEMORY) || minor.is_empty(), Ordering::Relaxed);
            }
            Err(error) => tracing::warn!(%error, "the API server does not say its version"),
        }
    }

    /// Returns when everything has been listed that every object needs.
    pub async fn listed(&self) {
        tokio::join!(self.objects.listed(), self.pods.listed(), self.revisions.listed());
    }

    /// Reconciles all objects again as what only some of them need is listed. Never returns.
    pub async fn reconcile_when_more_is_listed(&self, queue: &Queue) {
        let listed = [
            self.hook_runs.listed().boxed(),
            self.hook_templates.listed().boxed(),
            self.nodes.listed().boxed(),
            self.budgets.listed().boxed(),
        ];
        let mut listed = FuturesUnordered::from_iter(listed);
        while listed.next().await.is_some() {
            self.objects.keys().into_iter().for_each(|key| queue.add(key));
        }
        std::future::pending::<()>().await;
    }

    /// Kinds that are not listed yet: that no object of them is in the cache does not mean that there is none.
    fn unlisted(&self) -> Vec<Unlisted> {
        let of = |is_listed: bool, kind: Needed, name: &str| (!is_listed).then(|| Unlisted { kind, why: self.health.trouble(name) });
        let all = [
            of(self.hook_runs.is_listed(), Needed::HookRun, Custom::<HookRun>::KIND),
            of(self.hook_templates.is_listed(), Needed::HookTemplate, Custom::<HookTemplate>::KIND),
            of(self.nodes.is_listed(), Needed::Node, Node::KIND),
            of(self.budgets.is_listed(), Needed::PodDisruptionBudget, Budget::KIND),
        ];
        all.into_iter().flatten().collect()
    }

    /// Everything known about one object.
    #[must_use]
    pub fn observe(&self, key: &Key, known: &Known) -> Option<Observed<GameDeployment>> {
        let entry = self.objects.get(key)?;
        let object = Arc::clone(&entry.object);
        let uid = object.metadata.uid.clone().unwrap_or_default();
        // Checked before anything is read: objects of a list that completes meanwhile may be missing below.
        let unlisted = self.unlisted();
        let mut too_large = entry.too_large.clone();
        let selector = &object.spec.selector;
        let owner = OwnerKey { kind: Self::KIND.to_owned(), key: key.clone(), uid: uid.clone() };
        let (owned, orphans) = (Index::Owner(owner), Index::Orphan(key.namespace.clone()));
        let own = self.pods.find(&owned);
        let name_of = |what: &str, name: &str, why: &String| format!("{what} {name}: {why}");
        too_large = too_large.or_else(|| own.iter().find_map(|pod| Some(name_of("pod", &pod.facts.name, pod.too_large.as_ref()?))));
        let mut pods: Vec<_> = own.iter().map(|pod| Arc::clone(&pod.facts)).collect();
        let loose = self.pods.find(&orphans);
        pods.extend(loose.iter().filter(|pod| selector.matches(&pod.facts.labels)).map(|pod| Arc::clone(&pod.facts)));
        let own = self.revisions.find(&owned);
        let of_revision =
            |revision: &Arc<Revision>| Some(name_of("ControllerRevision", &revision.facts.name, revision.too_large.as_ref()?));
        too_large = too_large.or_else(|| own.iter().find_map(of_revision));
        let mut revisions: Vec<_> = own.iter().map(|revision| Arc::clone(&revision.facts)).collect();
        let own = self.hook_runs.find(&owned);
        too_large = too_large.or_else(|| own.iter().find_map(|run| Some(name_of("HookRun", &run.key().name, run.too_large.as_ref()?))));
        let hook_runs = own.iter().map(|run| Arc::clone(&run.object)).collect();
        let mut hook_templates = Vec::new();
        for name in object.workload().hook_templates() {
            let known = self.hook_templates.get(&Key { namespace: key.namespace.clone(), name: name.to_owned() });
            hook_templates.extend(known.map(|template| Arc::clone(&template.object)));
        }
        let loose = self.revisions.find(&orphans);
        revisions.extend(loose.iter().filter(|one| selector.matches(&one.labels)).map(|one| Arc::clone(&one.facts)));
        let nodes = self.nodes_of(&pods);
        let neighbours = || self.budgets.find(&Index::Namespace(key.namespace.clone()));
        let budgets = if object.workload().guards_pods() { neighbours() } else { Vec::new() };
        let budgets = budgets.iter().map(|budget| Arc::clone(&budget.facts)).collect();
        // Read after the pods: the name of a pod that is no longer among them is already here.
        let names = |gone: &HashMap<_, VecDeque<String>>| Some(gone.get(&uid)?.iter().cloned().collect::<Vec<_>>());
        let gone = self.gone().get(&key.namespace).and_then(names).unwrap_or_default();
        let Known { taken, refusals } = known.clone();
        let (taken_revision_names, taken_pod_names) = (taken.revisions, [taken.pods, gone].concat());
        let seen = Seen {
            pods,
            revisions,
            hook_runs,
            hook_templates,
            nodes,
            budgets,
            taken_revision_names,
            taken_pod_names,
            refusals,
            too_large,
            unlisted,
            lowers_memory: self.lowers_memory.load(Ordering::Relaxed),
        };
        Some(Observed { object, seen })
    }

    /// The nodes of pods, except those with nothing that matters to a decision.
    fn nodes_of(&self, pods: &[Arc<PodFacts>]) -> Nodes {
        let names: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.node.as_deref()).collect();
        let seen = self.silent();
        let facts = |name: &str| {
            let key = Key { namespace: String::new(), name: name.to_owned() };
            // A silent node that is not counted yet was only just seen as silent.
            let heard = |since: Timestamp| since.max(seen.since.get(name).copied().unwrap_or_else(Timestamp::now));
            let known = self.nodes.get(&key).map(|node| NodeFacts { silent: node.facts.silent.map(heard), ..node.facts });
            // A node that is not in the cache may be too new.
            known.unwrap_or_else(|| NodeFacts { gone: self.deleted_nodes.contains(name), ..NodeFacts::default() })
        };
        let all = names.into_iter().map(|name| (name.to_owned(), facts(name)));
        let known: BTreeMap<String, NodeFacts> = all.filter(|(_, facts)| *facts != NodeFacts::default()).collect();
        Nodes { known, silence: self.silence, braked: seen.is_braked, heard_since: seen.heard_since }
    }

    fn silent(&self) -> MutexGuard<'_, Silent> {
        self.silent.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn gone(&self) -> MutexGuard<'_, Gone> {
        self.gone.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Counts silent nodes. Called when a node becomes silent or lost, answers again, appears or is deleted.
    fn count_silent(&self, change: &Change<Node>) {
        let count = self.nodes.count(|node| node.facts.silent.is_some());
        let is_braked = count * 100 > self.nodes.len() * MOST_SILENT_PERCENT;
        let is_silent = change.new.as_ref().is_some_and(|node| node.facts.silent.is_some());
        let name = change.new.as_ref().or(change.old.as_ref()).map(|node| node.key().name).unwrap_or_default();
        let (mut seen, now) = (self.silent(), Timestamp::now());
        if is_silent {
            seen.since.entry(name).or_insert(now);
        } else {
            seen.since.remove(&name);
        }
        if is_braked || seen.is_braked {
            seen.heard_since = now;
        }
        seen.is_braked = is_braked;
    }

    /// A node changed.
    pub fn node_changed(&self, queue: &Queue, change: &Change<Node>) {
        self.deleted_nodes.saw(change);
        let state = |node: &Option<Arc<Node>>| {
            let facts = node.as_ref().map(|node| node.facts)?;
            Some((facts.silent.is_some(), facts.gone, facts.cordoned))
        };
        let (old, new) = (state(&change.old), state(&change.new));
        if old.map(|old| (old.0, old.1)) != new.map(|new| (new.0, new.1)) {
            // It decides whether pods on the node count as available.
            self.count_silent(change);
            self.objects.keys().into_iter().for_each(|key| queue.add(key));
        } else if old != new {
            self.nodes_changed(queue);
        }
    }

    /// A node was cordoned or uncordoned, or is known to be deleted: reconciles the workloads with hooks about their pods.
    pub fn nodes_changed(&self, queue: &Queue) {
        let keys = self.objects.keys();
        let asks = |key: &Key| self.objects.get(key).is_some_and(|entry| entry.object.workload().asks_about_pods());
        keys.into_iter().filter(asks).for_each(|key| queue.add(key));
    }

    /// Pods changed. Names of deleted pods are remembered before anything is decided.
    pub fn pods_changed(&self, queue: &Queue, changes: &[Change<Pod>]) {
        for change in changes {
            let is_there = |pod: &&Arc<Pod>| change.new.as_ref().is_some_and(|new| new.facts.uid == pod.facts.uid);
            if let Some(pod) = change.old.as_ref().filter(|pod| !is_there(pod)) {
                self.remember_gone(pod);
            }
        }
        changes.iter().for_each(|change| self.pod_changed(queue, change));
    }

    /// A pod changed: reconciles its owner, or the workloads that may adopt it.
    fn pod_changed(&self, queue: &Queue, change: &Change<Pod>) {
        for pod in change.old.iter().chain(&change.new) {
            let namespace = pod.facts.namespace.clone();
            if let Some(owner) = &pod.controller {
                queue.add(Key { namespace, name: owner.name.clone() });
                continue;
            }
            let neighbours = self.objects.find(&Index::Namespace(namespace));
            let takers = neighbours.iter().filter(|entry| entry.object.spec.selector.matches(&pod.facts.labels));
            takers.for_each(|entry| queue.add(entry.key()));
        }
    }

    /// A pod is gone: remembers its name, which is not reused soon.
    fn remember_gone(&self, pod: &Pod) {
        let Some(owner) = &pod.controller else { return };
        let key = Key { namespace: pod.facts.namespace.clone(), name: owner.name.clone() };
        if self.objects.get(&key).is_none_or(|object| object.uid() != owner.uid) {
            return;
        }
        let mut all = self.gone();
        let gone = all.entry(key.namespace).or_default();
        // A namespace with too many owners loses its own names, not those of other namespaces.
        if gone.len() >= MOST_OWNERS && !gone.contains_key(&owner.uid) {
            gone.clear();
        }
        let names = gone.entry(owner.uid.clone()).or_default();
        names.push_back(pod.facts.name.clone());
        names.drain(..names.len().saturating_sub(MOST_GONE));
    }

    /// An object changed. Forgets the names of its deleted pods if it is gone.
    pub fn object_changed(&self, queue: &Queue, change: &Change<Entry>) {
        super::custom::object_changed(queue, change);
        if let Some(object) = change.old.as_ref().filter(|_| change.new.is_none()) {
            let (mut gone, namespace) = (self.gone(), object.key().namespace);
            if let Some(owners) = gone.get_mut(&namespace) {
                owners.remove(object.uid());
                if owners.is_empty() {
                    gone.remove(&namespace);
                }
            }
        }
    }

    /// A HookRun changed: reconciles its owner.
    pub fn run_changed(queue: &Queue, metrics: &Metrics, change: &Change<Custom<HookRun>>) {
        count(metrics, change);
        for run in change.old.iter().chain(&change.new) {
            if let Some(owner) = controller(&run.object.metadata) {
                queue.add(Key { namespace: run.key().namespace, name: owner.name.clone() });
            }
        }
    }

    /// A HookTemplate changed: reconciles the workloads that name it.
    pub fn template_changed(&self, queue: &Queue, change: &Change<Custom<HookTemplate>>) {
        let Some(key) = change.new.as_ref().or(change.old.as_ref()).map(|template| template.key()) else { return };
        let neighbours = self.objects.find(&Index::Namespace(key.namespace));
        let askers = neighbours.iter().filter(|entry| entry.object.workload().hook_templates().any(|name| name == key.name));
        askers.for_each(|entry| queue.add(entry.key()));
    }

    /// A PodDisruptionBudget changed: reconciles the workloads of its namespace that protect their pods.
    pub fn budget_changed(&self, queue: &Queue, change: &Change<Budget>) {
        let Some(budget) = change.new.as_ref().or(change.old.as_ref()) else { return };
        // Changes of its status do not matter here.
        if change.old.as_ref().map(|old| &old.facts) == change.new.as_ref().map(|new| &new.facts) {
            return;
        }
        let neighbours = self.objects.find(&Index::Namespace(budget.key().namespace));
        neighbours.iter().filter(|entry| entry.object.workload().guards_pods()).for_each(|entry| queue.add(entry.key()));
    }

    /// A revision changed: reconciles its owner.
    pub fn revision_changed(queue: &Queue, change: &Change<Revision>) {
        for revision in change.old.iter().chain(&change.new) {
            if let Some(owner) = &revision.controller {
                queue.add(Key { namespace: revision.key().namespace, name: owner.name.clone() });
            }
        }
    }
}

/// An empty store whose objects share the memory allowance of their namespaces.
fn store<T: crate::store::Cached>(allowance: &Arc<Allowance>) -> Arc<Store<T>> {
    Arc::new(Store::within(Arc::clone(allowance)))
}

/// Counts HookRuns about pods: created, and ended in which phase.
fn count(metrics: &Metrics, change: &Change<Custom<HookRun>>) {
    let Some(run) = &change.new else { return };
    let Some(place) = Place::of(&run.object) else { return };
    let verdict = |run: &Custom<HookRun>| run.object.status.as_ref().and_then(|status| status.phase).filter(|phase| phase.is_final());
    match (change.old.as_ref().map(|run| verdict(run)), verdict(run)) {
        (Some(None), Some(phase)) => metrics.count_answer(place.word(), planner::hookrun::word(phase)),
        (None, None) => metrics.count_answer(place.word(), "Asked"),
        (Some(_) | None, _) => {}
    }
}

impl Workload for GameDeployments {
    type Status = GameDeploymentStatus;
    const KIND: &'static str = "GameDeployment";
    const REPORTER: &'static str = GAMEDEPLOYMENT_REPORTER;
    const HEEDS_REFUSALS: bool = true;

    fn pass(&self, key: &Key, known: &Known, now: Timestamp) -> Option<Pass<GameDeploymentStatus>> {
        let observed = self.observe(key, known)?;
        let object = &*observed.object;
        Some(Pass {
            owner: owner(object),
            path: path(object),
            version: object.metadata.resource_version.clone().unwrap_or_default(),
            before: object.status.clone(),
            plan: workload::decide(&observed, now),
            pods: observed.seen.pods.len(),
        })
    }

    fn with_trouble(
        status: GameDeploymentStatus,
        before: Option<&GameDeploymentStatus>,
        failure: &Failure,
        now: Timestamp,
    ) -> GameDeploymentStatus {
        conditions::with_trouble(status, before, failure.reason, &failure.message, now)
    }

    fn cache(&self, resource: Resource) -> Option<&dyn Cache> {
        Some(match resource {
            Resource::Object => &*self.objects,
            Resource::Pod => &*self.pods,
            Resource::ControllerRevision => &*self.revisions,
            Resource::HookRun => &*self.hook_runs,
            Resource::PodDisruptionBudget => &*self.budgets,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::store::Cached;

    fn world() -> GameDeployments {
        let (deleted, _) = Deleted::new();
        GameDeployments::new(Arc::default(), Arc::new(deleted), SignedDuration::from_mins(5), &Arc::default(), Arc::default())
    }

    fn put<T: Cached>(store: &Store<T>, object: &Value) {
        let object = T::decode(&object.to_string()).unwrap();
        store.put(&object.key(), Some(object));
    }

    /// An owner reference to the workload, with changed fields.
    fn owner(change: &Value) -> Value {
        let mut owner = json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "game", "uid": "uid-game", "controller": true,
        });
        for (key, value) in change.as_object().unwrap() {
            owner[key] = value.clone();
        }
        owner
    }

    fn add_owned(world: &GameDeployments, namespace: &str, name: &str, owner: &Value) {
        let metadata = json!({
            "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "resourceVersion": "7", "creationTimestamp": "2026-11-15T10:00:00Z",
            "labels": { "app": "game", "hookrun-type": "pre-delete-step", "pod-uid": "uid-game-a" }, "ownerReferences": [owner],
            "annotations": { "controller.kubernetes.io/pod-deletion-cost": "-2147483648" },
        });
        put(&world.pods, &json!({ "metadata": metadata, "status": { "phase": "Running" } }));
        put(
            &world.revisions,
            &json!({ "metadata": metadata, "revision": 99, "data": { "spec": { "template": { "spec": { "containers": [] } } } } }),
        );
        let run = json!({ "metadata": metadata, "spec": { "metrics": [] }, "status": { "phase": "Successful" } });
        put(&world.hook_runs, &run);
    }

    fn victim() -> GameDeployments {
        let world = world();
        let metadata = json!({ "name": "game", "namespace": "play", "uid": "uid-game", "resourceVersion": "1", "generation": 1 });
        let template =
            json!({ "metadata": { "labels": { "app": "game" } }, "spec": { "containers": [{ "name": "game", "image": "game:1" }] } });
        let spec = json!({ "selector": { "matchLabels": { "app": "game" } }, "template": template });
        put(&world.objects, &json!({ "metadata": metadata, "spec": spec }));
        add_owned(&world, "play", "game-a", &owner(&json!({})));
        world
    }

    fn seen(world: &GameDeployments) -> Value {
        let key = Key { namespace: "play".to_owned(), name: "game".to_owned() };
        serde_json::to_value(world.observe(&key, &Known::default()).unwrap().seen).unwrap()
    }

    #[test]
    fn objects_of_another_namespace_or_with_a_forged_owner_change_nothing() {
        let world = victim();
        let before = seen(&world);
        assert_eq!((before["pods"].as_array().unwrap().len(), before["revisions"].as_array().unwrap().len()), (1, 1));
        assert_eq!(before["hook_runs"].as_array().unwrap().len(), 1);
        let forged = [
            ("evil", json!({})),
            ("play", json!({ "kind": "HookRun" })),
            ("play", json!({ "apiVersion": "evil.example.com/v1" })),
            ("play", json!({ "name": "other" })),
            ("play", json!({ "uid": "uid-other" })),
        ];
        for (number, (namespace, change)) in forged.iter().enumerate() {
            add_owned(&world, namespace, &format!("game-forged-{number}"), &owner(change));
            assert_eq!(seen(&world), before, "{namespace} {change}");
        }
    }

    #[test]
    fn names_of_gone_pods_are_not_forgotten_because_of_another_namespace() {
        let world = victim();
        let remembered = || seen(&world)["taken_pod_names"].clone();
        let pod = |namespace: &str, owner_name: &str| {
            let owner = owner(&json!({ "name": owner_name, "uid": format!("uid-{owner_name}") }));
            let metadata = json!({
                "name": "gone", "namespace": namespace, "uid": "gone", "resourceVersion": "7", "creationTimestamp": "2026-11-15T10:00:00Z",
                "ownerReferences": [owner],
            });
            Pod::decode(&json!({ "metadata": metadata }).to_string()).unwrap()
        };
        world.remember_gone(&pod("play", "game"));
        assert_eq!(remembered(), json!(["gone"]));
        for number in 0..3 * MOST_OWNERS {
            let name = format!("evil-{number}");
            let metadata = json!({ "name": name, "namespace": "evil", "uid": format!("uid-{name}"), "resourceVersion": "1" });
            put(&world.objects, &json!({ "metadata": metadata, "spec": { "selector": {}, "template": {} } }));
            world.remember_gone(&pod("evil", &name));
        }
        assert_eq!(remembered(), json!(["gone"]));
        assert!(world.gone()["evil"].len() <= MOST_OWNERS);
    }

    #[test]
    fn a_workload_of_which_not_all_is_kept_is_held_and_told_why() {
        let (deleted, _) = Deleted::new();
        let allowance = Arc::new(Allowance::of(20_000));
        let world = GameDeployments::new(Arc::default(), Arc::new(deleted), SignedDuration::from_mins(5), &allowance, Arc::default());
        let metadata = json!({ "name": "game", "namespace": "play", "uid": "uid-game", "resourceVersion": "1" });
        let spec = json!({ "selector": { "matchLabels": { "app": "game" } }, "template": { "metadata": { "labels": { "app": "game" } } } });
        put(&world.objects, &json!({ "metadata": metadata, "spec": spec }));
        let pod = |name: &str, note: usize| {
            let metadata = json!({
                "name": name, "namespace": "play", "uid": name, "resourceVersion": "7", "creationTimestamp": "2026-11-15T10:00:00Z",
                "labels": { "app": "game" }, "annotations": { "note": "x".repeat(note) }, "ownerReferences": [owner(&json!({}))],
            });
            put(&world.pods, &json!({ "metadata": metadata }));
        };
        pod("thin", 1_000);
        assert_eq!(seen(&world)["too_large"], Value::Null);
        pod("fat", 100_000);
        let key = Key { namespace: "play".to_owned(), name: "game".to_owned() };
        let pass = world.pass(&key, &Known::default(), Timestamp::now()).unwrap();
        assert_eq!((pass.pods, pass.plan.actions().count()), (2, 0), "it is still there, and nothing is done");
        let held = pass.plan.holds.iter().map(ToString::to_string).collect::<String>();
        assert!(held.contains("pod fat: the objects of namespace play need more than"), "{held}");
        pod("fat", 1_000);
        assert_eq!(seen(&world)["too_large"], Value::Null);
    }

    #[test]
    fn a_spec_that_is_too_large_is_not_kept() {
        let object_with = |steps: usize, junk: usize| {
            let spec = json!({
                "selector": {}, "template": { "junk": "x".repeat(junk) },
                "scaleStrategy": { "podsToDelete": (0..steps).map(|number| format!("game-{number}")).collect::<Vec<_>>() },
            });
            let metadata = json!({ "name": "game", "uid": "u", "resourceVersion": "1", "managedFields": [{ "fieldsV1": {} }] });
            Entry::decode(&json!({ "metadata": metadata, "spec": spec }).to_string()).unwrap()
        };
        let object = |steps: usize| object_with(steps, 1000);
        let small = object(10);
        assert!(small.too_large.is_none() && small.size() > 1_000 && small.size() < 4_000, "{}", small.size());
        let long = object_with(10, 1 << 20);
        assert!(long.too_large.is_none() && long.object.spec.template.too_large().is_some());
        assert!(long.size() < 4_000, "a template that is not kept needs nothing: {}", long.size());
        let large = object(25_000);
        assert_eq!((large.size(), large.object.spec.scale_strategy.is_none()), (0, true));
        let why = large.too_large.unwrap();
        assert!(why.contains("spec, its template apart, has") && why.contains("at most 20000 are allowed"), "{why}");
    }
}
