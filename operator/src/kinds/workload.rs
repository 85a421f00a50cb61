//! Kinds that own pods: how an object is observed, and which objects another object's change concerns.

use std::sync::Arc;

use api::tkex::{HookRun, HookTemplate};
use jiff::Timestamp;
use planner::facts::node::NodeEffect;
use planner::facts::object::OwnerReference;
use planner::request::Resource;
use planner::workload::{self, Observed, Seen, conditions};
use serde::Serialize;

use super::budget::Budget;
use super::custom::{Custom, OurKind, basis, controller, object_changed, owner, path};
use super::pod::Pod;
use super::revision::Revision;
use crate::caches::Caches;
use crate::controller::{Basis, Known, Pass, Reconcile};
use crate::execute::Failure;
use crate::gone::GonePods;
use crate::queue::Queue;
use crate::settle::Cache;
use crate::store::{Cached, Change, Index, Key, OwnerKey, Store};

/// A kind that owns pods.
pub trait Workload:
    OurKind<Status: workload::Status + Serialize + Send + Sync> + workload::Kind<Status = <Self as OurKind>::Status>
{
    /// The reporting controller of its events.
    const REPORTER: &'static str;
}

/// The objects of a kind that owns pods.
#[derive(Debug)]
pub struct Workloads<K: Workload> {
    /// The objects.
    pub objects: Arc<Store<Custom<K>>>,
    /// Everything else that they are decided from.
    pub caches: Arc<Caches>,
    /// Names of their pods that are gone.
    gone: GonePods,
}

impl<K: Workload> Workloads<K> {
    /// No object is known yet.
    #[must_use]
    pub fn new(caches: Arc<Caches>) -> Self {
        Self { objects: caches.store(), caches, gone: GonePods::default() }
    }

    /// Everything known about one object.
    #[must_use]
    pub fn observe(&self, key: &Key, known: &Known) -> Option<Observed<K>> {
        let entry = self.objects.get(key)?;
        let object = Arc::clone(&entry.object);
        // Checked before anything is read: objects of a list that completes meanwhile may be missing below.
        let unlisted = self.caches.unlisted();
        let workload = object.workload();
        let uid = workload.uid();
        let owner = OwnerKey { kind: <K as OurKind>::KIND.to_owned(), key: key.clone(), uid: uid.to_owned() };
        let (owned, orphans) = (Index::Owner(owner), Index::Orphan(key.namespace.clone()));
        let mut too_large = entry.too_large.clone();
        let mut pods = whole(self.caches.pods.find(&owned), &mut too_large);
        pods.extend(self.caches.pods.find(&orphans).into_iter().filter(|pod| workload.selector.matches(&pod.facts.labels)));
        let pods: Vec<_> = pods.iter().map(|pod| Arc::clone(&pod.facts)).collect();
        let mut revisions = whole(self.caches.revisions.find(&owned), &mut too_large);
        revisions.extend(self.caches.revisions.find(&orphans).into_iter().filter(|one| workload.selector.matches(&one.labels)));
        let hook_runs = whole(self.caches.hook_runs.find(&owned), &mut too_large);
        let template = |name: &str| self.caches.hook_templates.get(&Key { namespace: key.namespace.clone(), name: name.to_owned() });
        let hook_templates = workload.hook_templates().filter_map(template).map(|template| Arc::clone(&template.object)).collect();
        let neighbours = || self.caches.budgets.find(&Index::Namespace(key.namespace.clone()));
        let budgets = if workload.guards_pods() { neighbours() } else { Vec::new() };
        // Read after the pods: the name of a pod that is no longer among them is already here.
        let gone = self.gone.names(&key.namespace, uid);
        let Known { taken, refusals } = known.clone();
        let seen = Seen {
            nodes: self.caches.nodes.of(&pods),
            pods,
            revisions: revisions.iter().map(|revision| Arc::clone(&revision.facts)).collect(),
            hook_runs: hook_runs.iter().map(|run| Arc::clone(&run.object)).collect(),
            hook_templates,
            budgets: budgets.iter().map(|budget| Arc::clone(&budget.facts)).collect(),
            taken_revision_names: taken.revisions,
            taken_pod_names: [taken.pods, gone].concat(),
            refusals,
            too_large,
            unlisted,
            lowers_memory: self.caches.lowers_memory(),
        };
        Some(Observed { object, seen })
    }

    /// An object of the kind itself changed. Names of its deleted pods are forgotten when it is gone.
    pub fn object_changed(&self, queue: &Queue, change: &Change<Custom<K>>) {
        object_changed(queue, change);
        if let (Some(object), None) = (&change.old, &change.new) {
            self.gone.forget(&object.key().namespace, object.uid());
        }
    }

    /// The owner of a dependent object, if it is of this kind.
    fn owner_of(namespace: &str, owner: Option<&OwnerReference>) -> Option<Key> {
        let owner = owner.filter(|owner| owner.kind == <K as OurKind>::KIND)?;
        Some(Key { namespace: namespace.to_owned(), name: owner.name.to_string() })
    }

    fn neighbours(&self, namespace: &str, is_concerned: impl Fn(&K) -> bool) -> Vec<Key> {
        let neighbours = self.objects.find(&Index::Namespace(namespace.to_owned()));
        neighbours.iter().filter(|entry| is_concerned(&entry.object)).map(|entry| entry.key()).collect()
    }

    /// A pod is gone: its name is not reused soon.
    fn remember_gone(&self, pod: &Pod) {
        let Some(owner) = &pod.controller else { return };
        let key = Self::owner_of(&pod.facts.namespace, Some(owner));
        if key.and_then(|key| self.objects.get(&key)).is_some_and(|object| object.uid() == owner.uid) {
            self.gone.remember(&pod.facts.namespace, &owner.uid, &pod.facts.name);
        }
    }

    /// The owner of a pod, or the objects that may adopt it.
    fn of_pod(&self, pod: &Pod) -> Vec<Key> {
        let namespace = &pod.facts.namespace;
        if pod.controller.is_some() {
            return Self::owner_of(namespace, pod.controller.as_ref()).into_iter().collect();
        }
        self.neighbours(namespace, |object| object.workload().selector.matches(&pod.facts.labels))
    }
}

/// A change of an object that workloads are decided from.
#[derive(Debug)]
pub enum Changed<'a> {
    /// A pod.
    Pod(&'a Change<Pod>),
    /// A ControllerRevision.
    Revision(&'a Change<Revision>),
    /// A HookRun.
    HookRun(&'a Change<Custom<HookRun>>),
    /// A HookTemplate.
    HookTemplate(&'a Change<Custom<HookTemplate>>),
    /// A PodDisruptionBudget.
    Budget(&'a Change<Budget>),
    /// A node, with what depends on its change.
    Node(NodeEffect),
    /// A kind that only some objects need is listed now.
    Listed,
}

/// A kind whose objects depend on others.
pub trait Dependent: Send + Sync {
    /// Remembers names of pods that are gone. Called before any of these changes is routed.
    fn pods_changed(&self, changes: &[Change<Pod>]);
    /// The objects that a change concerns.
    fn concerned(&self, changed: &Changed) -> Vec<Key>;
}

impl<K: Workload> Dependent for Workloads<K> {
    fn pods_changed(&self, changes: &[Change<Pod>]) {
        for change in changes {
            let is_there = |pod: &&Arc<Pod>| change.new.as_ref().is_some_and(|new| new.facts.uid == pod.facts.uid);
            if let Some(pod) = change.old.as_ref().filter(|pod| !is_there(pod)) {
                self.remember_gone(pod);
            }
        }
    }

    fn concerned(&self, changed: &Changed) -> Vec<Key> {
        match changed {
            Changed::Pod(change) => either(change).flat_map(|pod| self.of_pod(pod)).collect(),
            Changed::Revision(change) => {
                either(change).filter_map(|revision| Self::owner_of(&revision.key().namespace, revision.controller.as_ref())).collect()
            }
            Changed::HookRun(change) => {
                either(change).filter_map(|run| Self::owner_of(&run.key().namespace, controller(&run.object.metadata).as_ref())).collect()
            }
            Changed::HookTemplate(change) => {
                let Some(key) = either(change).next().map(|template| template.key()) else { return Vec::new() };
                self.neighbours(&key.namespace, |object| object.workload().hook_templates().any(|name| name == key.name))
            }
            Changed::Budget(change) => {
                // Changes of its status do not matter here.
                let is_same = change.old.as_ref().map(|old| &old.facts) == change.new.as_ref().map(|new| &new.facts);
                let Some(budget) = either(change).next().filter(|_| !is_same) else { return Vec::new() };
                self.neighbours(&budget.key().namespace, |object| object.workload().guards_pods())
            }
            Changed::Node(NodeEffect::Deletions) => {
                let asks = |entry: &Arc<Custom<K>>| entry.object.workload().asks_about_pods();
                self.objects.all().iter().filter(|entry| asks(entry)).map(|entry| entry.key()).collect()
            }
            Changed::Node(NodeEffect::Availability) | Changed::Listed => self.objects.keys(),
        }
    }
}

/// What is known of an object before and after a change.
fn either<T>(change: &Change<T>) -> impl Iterator<Item = &Arc<T>> {
    change.old.iter().chain(&change.new)
}

/// Notes why, if one of these objects is not kept whole.
fn whole<T: Cached>(found: Vec<Arc<T>>, too_large: &mut Option<String>) -> Vec<Arc<T>> {
    let cut = || {
        let (object, why) = found.iter().find_map(|object| Some((object, object.too_large()?)))?;
        Some(format!("{} {}: {why}", T::KIND, object.key().name))
    };
    *too_large = too_large.take().or_else(cut);
    found
}

impl<K: Workload> Reconcile for Workloads<K> {
    type Status = <K as OurKind>::Status;
    const KIND: &'static str = <K as OurKind>::KIND;
    const REPORTER: &'static str = K::REPORTER;
    const HEEDS_REFUSALS: bool = true;

    fn basis(&self, key: &Key) -> Option<Basis> {
        basis(&self.objects, key)
    }

    fn pass(&self, key: &Key, known: &Known, now: Timestamp) -> Option<Pass<Self::Status>> {
        let observed = self.observe(key, known)?;
        let object = &*observed.object;
        Some(Pass {
            owner: owner(object),
            path: path(object),
            version: object.meta().resource_version.clone().unwrap_or_default(),
            before: object.status().cloned(),
            plan: workload::decide(&observed, now),
            pods: observed.seen.pods.len(),
            measurer: None,
        })
    }

    fn with_trouble(status: Self::Status, before: Option<&Self::Status>, failure: &Failure, now: Timestamp) -> Self::Status {
        conditions::with_trouble(status, before, failure.reason, &failure.message, now)
    }

    fn cache(&self, resource: Resource) -> Option<&dyn Cache> {
        self.caches.of(resource).or(Some(&*self.objects))
    }

    fn is_unwatched(&self, resource: Resource) -> bool {
        self.caches.is_unwatched(resource)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use api::names::INDEX_RANGE_ANNOTATION;
    use api::tkex::GameDeployment;
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::*;
    use crate::allowance::Allowance;
    use crate::kinds::gamedeployment::GameDeployments;
    use crate::queue::Outcome;

    fn world() -> GameDeployments {
        world_within(Allowance::default())
    }

    fn world_within(allowance: Allowance) -> GameDeployments {
        let (caches, _) = Caches::new(Arc::new(allowance), SignedDuration::from_mins(5), Arc::default());
        Workloads::new(Arc::new(caches))
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
        put(&world.caches.pods, &json!({ "metadata": metadata, "status": { "phase": "Running" } }));
        put(
            &world.caches.revisions,
            &json!({ "metadata": metadata, "revision": 99, "data": { "spec": { "template": { "spec": { "containers": [] } } } } }),
        );
        let run = json!({ "metadata": metadata, "spec": { "metrics": [] }, "status": { "phase": "Successful" } });
        put(&world.caches.hook_runs, &run);
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

    #[tokio::test(start_paused = true)]
    async fn a_changed_range_of_pod_indices_does_not_wait_for_the_backoff() {
        let (world, queue) = (world(), Queue::new("GameDeployment", Arc::default()));
        let change = |end: i32, replicas: i32| {
            let annotations = json!({ INDEX_RANGE_ANNOTATION: format!("{{\"podStartIndex\":0,\"podEndIndex\":{end}}}") });
            let metadata = json!({ "name": "game", "namespace": "play", "uid": "u", "resourceVersion": "1", "generation": 1, "annotations": annotations });
            let object = json!({ "metadata": metadata, "spec": { "selector": {}, "template": {} }, "status": { "replicas": replicas } });
            let object = Custom::<GameDeployment>::decode(&object.to_string()).unwrap();
            world.object_changed(&queue, &world.objects.put(&object.key(), Some(object)));
        };
        change(5, 0);
        queue.done(&queue.next().await, Outcome::Failed);
        let is_due = || async { tokio::time::timeout(Duration::from_millis(20), queue.next()).await.is_ok() };
        change(5, 1);
        assert!(!is_due().await, "a status is no reason to hurry");
        change(6, 1);
        assert!(is_due().await);
    }

    #[test]
    fn a_plan_rests_on_the_spec_and_on_the_annotations_that_count() {
        let world = world();
        let basis = |uid: &str, generation: i64, annotations: Value, status: Value| {
            let metadata = json!({ "name": "game", "namespace": "play", "uid": uid, "resourceVersion": "1", "generation": generation, "annotations": annotations });
            let spec = json!({ "selector": {}, "template": {} });
            put(&world.objects, &json!({ "metadata": metadata, "spec": spec, "status": status }));
            world.basis(&Key { namespace: "play".to_owned(), name: "game".to_owned() }).unwrap()
        };
        let range = |end: i32| json!({ INDEX_RANGE_ANNOTATION: format!("{{\"podStartIndex\":0,\"podEndIndex\":{end}}}") });
        let before = basis("u", 1, range(5), json!({}));
        assert_ne!(basis("u", 1, range(6), json!({})), before);
        assert_ne!(basis("u", 2, range(5), json!({})), before);
        assert_ne!(basis("v", 1, range(5), json!({})), before);
        assert_eq!(basis("u", 1, range(5), json!({ "replicas": 1 })), before);
    }

    #[test]
    fn the_name_of_a_gone_pod_is_not_used_again() {
        let world = victim();
        let pod = |owner_uid: &str| {
            let metadata = json!({
                "name": "gone", "namespace": "play", "uid": "gone", "resourceVersion": "7", "creationTimestamp": "2026-11-15T10:00:00Z",
                "ownerReferences": [owner(&json!({ "uid": owner_uid }))],
            });
            Some(Arc::new(Pod::decode(&json!({ "metadata": metadata }).to_string()).unwrap()))
        };
        world.pods_changed(&[Change { old: pod("uid-other"), new: None }]);
        assert_eq!(seen(&world)["taken_pod_names"], json!([]), "its owner is another object of that name");
        world.pods_changed(&[Change { old: pod("uid-game"), new: pod("uid-game") }]);
        assert_eq!(seen(&world)["taken_pod_names"], json!([]), "it is still there");
        world.pods_changed(&[Change { old: pod("uid-game"), new: None }]);
        assert_eq!(seen(&world)["taken_pod_names"], json!(["gone"]));
    }

    #[test]
    fn a_workload_of_which_not_all_is_kept_is_held_and_told_why() {
        let world = world_within(Allowance::of(20_000));
        let metadata = json!({ "name": "game", "namespace": "play", "uid": "uid-game", "resourceVersion": "1" });
        let spec = json!({ "selector": { "matchLabels": { "app": "game" } }, "template": { "metadata": { "labels": { "app": "game" } } } });
        put(&world.objects, &json!({ "metadata": metadata, "spec": spec }));
        let pod = |name: &str, note: usize| {
            let metadata = json!({
                "name": name, "namespace": "play", "uid": name, "resourceVersion": "7", "creationTimestamp": "2026-11-15T10:00:00Z",
                "labels": { "app": "game" }, "annotations": { "note": "x".repeat(note) }, "ownerReferences": [owner(&json!({}))],
            });
            put(&world.caches.pods, &json!({ "metadata": metadata }));
        };
        pod("thin", 1_000);
        assert_eq!(seen(&world)["too_large"], Value::Null);
        pod("fat", 100_000);
        let key = Key { namespace: "play".to_owned(), name: "game".to_owned() };
        let pass = world.pass(&key, &Known::default(), Timestamp::now()).unwrap();
        assert_eq!((pass.pods, pass.plan.actions().count()), (2, 0), "it is still there, and nothing is done");
        let held = pass.plan.holds.iter().map(ToString::to_string).collect::<String>();
        assert!(held.contains("Pod fat: the objects of namespace play need more than"), "{held}");
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
            Custom::<GameDeployment>::decode(&json!({ "metadata": metadata, "spec": spec }).to_string()).unwrap()
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
