//! One term of leadership: new informers, queues and workers. Dropping it ends the term.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::tkex::{GameDeployment, HookRun, HookTemplate};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use jiff::SignedDuration;
use planner::facts::node::NodeEffect;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::allowance::Allowance;
use crate::caches::Caches;
use crate::client::Server;
use crate::controller::{Controller, Reconcile};
use crate::events::Events;
use crate::execute::Executor;
use crate::fair::Places;
use crate::health::Health;
use crate::hooks::cluster::ClusterLookup;
use crate::hooks::egress::{Egress, NO_NETWORKS};
use crate::hooks::hosts::Hosts;
use crate::hooks::{self, Asker, Clients, Hooks};
use crate::informer::Informer;
use crate::kinds::custom::{Custom, OurKind, object_changed};
use crate::kinds::hookrun::HookRuns;
use crate::kinds::hooktemplate::HookTemplates;
use crate::kinds::node::has_moved;
use crate::kinds::workload::{Changed, Dependent, Workload, Workloads};
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::store::{Cached, Change, Store};

/// Limits on concurrency and memory.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Workers, each of which reconciles one object at a time.
    pub workers: usize,
    /// Writes in flight for one object.
    pub writes_per_object: usize,
    /// Writes in flight for all objects.
    pub writes: usize,
    /// Bytes of memory for the objects of one namespace.
    pub namespace_memory: usize,
}

/// What a term needs.
#[derive(Debug, Clone)]
pub struct Engine {
    /// The API server.
    pub server: Server,
    /// Whether writes are allowed.
    pub leadership: Arc<Leadership>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Which kinds can be listed and watched.
    pub health: Arc<Health>,
    /// Limits on concurrency and memory.
    pub limits: Limits,
    /// Whether the API server can stream lists.
    pub streaming: bool,
    /// How long a node may be silent (Ready is Unknown) before it counts as lost.
    pub node_silence: SignedDuration,
    /// Settings of hooks.
    pub hooks: HookOptions,
}

/// Settings of hooks.
#[derive(Debug, Clone)]
pub struct HookOptions {
    /// The configuration of clients that impersonate ServiceAccounts.
    pub config: kube::Config,
    /// The egress policy.
    pub egress: Arc<Egress>,
    /// Concurrency limits.
    pub limits: hooks::Limits,
    /// How long a finished HookRun without an owner is kept.
    pub keep: SignedDuration,
}

impl HookOptions {
    fn asker(&self, server: &Server, leadership: &Arc<Leadership>, metrics: &Arc<Metrics>) -> Asker {
        Asker {
            server: server.clone(),
            leadership: Arc::clone(leadership),
            metrics: Arc::clone(metrics),
            config: self.config.clone(),
            clients: Clients::default(),
            egress: Arc::clone(&self.egress),
            limits: self.limits,
            hosts: Hosts::new(self.limits.per_host),
            tls: Arc::default(),
            large: Arc::default(),
        }
    }
}

impl Engine {
    /// Runs one term. Each kind is served as soon as what it needs is listed. Ends only when it is dropped or a task panics.
    pub async fn run(self) {
        let Self { server, leadership, metrics, health, limits, streaming, node_silence, hooks } = self;
        health.reset();
        let mut tasks = JoinSet::new();
        let (events, write_events) = Events::start(server.clone(), Arc::clone(&leadership));
        tasks.spawn(write_events);
        let egress = Arc::clone(&hooks.egress);
        let (first, looked) = oneshot::channel();
        tasks.spawn(ClusterLookup::new(&server, &hooks.config, Arc::clone(&egress)).keep_looking(first));
        let asker = hooks.asker(&server, &leadership, &metrics);
        let writes = Places::new(limits.writes);
        let executor = Executor {
            server: server.clone(),
            leadership,
            events,
            metrics: Arc::clone(&metrics),
            writes,
            per_object: limits.writes_per_object,
        };

        let allowance = Arc::new(Allowance::of(limits.namespace_memory));
        let (caches, unknown_nodes) = Caches::new(allowance, node_silence, Arc::clone(&health));
        let caches = Arc::new(caches);
        let mut watch = Watch { server: &server, metrics: &metrics, health: &health, streaming, tasks: &mut tasks };
        let games = watch.workloads::<GameDeployment>(&caches);
        let owners: Owners = Arc::new([games.as_owner()]);
        let runs_queue = watch.queue::<HookRun>();
        let runs = HookRuns { objects: Arc::clone(&caches.hook_runs), hooks: Hooks::new(asker, Arc::clone(&runs_queue)), keep: hooks.keep };
        let templates_queue = watch.queue::<HookTemplate>();
        let templates = HookTemplates { objects: Arc::clone(&caches.hook_templates) };
        watch.dependents(&caches, &owners, &egress);
        watch.hooks((&runs, &runs_queue), (&templates, &templates_queue), &owners);

        let (known, all, on) = (Arc::clone(&caches), Arc::clone(&owners), server.clone());
        let lost = move || route(&all, &Changed::Node(NodeEffect::Deletions));
        tasks.spawn(async move { known.nodes.look_up(&on, unknown_nodes, lost).await });
        let ready = ready(&caches, &games.kind.objects, &server);
        tasks.spawn(serve(ready, Controller::new(games.kind, games.queue, executor.clone(), limits.workers)));
        let ready = hooks_may_be_asked(Arc::clone(&caches), looked, egress);
        // More workers than for other kinds: each mostly waits for the one write of its pass, and a new run must not wait behind it.
        tasks.spawn(serve(ready, Controller::new(Arc::new(runs), runs_queue, executor.clone(), limits.workers * 4)));
        let known = Arc::clone(&caches);
        let ready = async move { known.hook_templates.listed().await };
        tasks.spawn(serve(ready, Controller::new(Arc::new(templates), templates_queue, executor, 1)));
        tasks.spawn(async move { reconcile_when_more_is_listed(&caches, &owners).await });
        // Tasks do not end by themselves: one that did has panicked.
        if let Some(Err(death)) = tasks.join_next().await {
            tracing::error!(error = %death, "a part of the engine died; starting again");
        }
        health.reset();
    }
}

/// A kind and its queue.
struct Served<K: ?Sized> {
    kind: Arc<K>,
    queue: Arc<Queue>,
}

impl<K> Clone for Served<K> {
    fn clone(&self) -> Self {
        Self { kind: Arc::clone(&self.kind), queue: Arc::clone(&self.queue) }
    }
}

impl<K: Dependent + 'static> Served<K> {
    fn as_owner(&self) -> Served<dyn Dependent> {
        let kind: Arc<dyn Dependent> = Arc::<K>::clone(&self.kind);
        Served { kind, queue: Arc::clone(&self.queue) }
    }
}

/// The kinds that own pods, whichever they are.
type Owners = Arc<[Served<dyn Dependent>]>;

/// Reconciles the objects that a change concerns.
fn route(owners: &Owners, changed: &Changed) {
    for owner in owners.iter() {
        owner.kind.concerned(changed).into_iter().for_each(|key| owner.queue.add(key));
    }
}

/// Returns when objects of a kind that owns pods can be reconciled. Each waits by itself for the other kinds that it needs.
fn ready<K: Workload>(caches: &Arc<Caches>, objects: &Arc<Store<Custom<K>>>, server: &Server) -> impl Future + use<K> {
    let (caches, objects, server) = (Arc::clone(caches), Arc::clone(objects), server.clone());
    async move { tokio::join!(objects.listed(), caches.ask_version(&server)) }
}

/// Reconciles all objects again as what they need is listed. Never returns.
async fn reconcile_when_more_is_listed(caches: &Caches, owners: &Owners) {
    let listed = [
        caches.listed().boxed(),
        caches.hook_runs.listed().boxed(),
        caches.hook_templates.listed().boxed(),
        caches.budgets.listed().boxed(),
    ];
    let mut listed = FuturesUnordered::from_iter(listed);
    while listed.next().await.is_some() {
        route(owners, &Changed::Listed);
    }
    std::future::pending::<()>().await;
}

/// Returns when measurements may start: the addresses of nodes have to be listed, and those of the API server looked up once.
async fn hooks_may_be_asked(caches: Arc<Caches>, looked: oneshot::Receiver<()>, egress: Arc<Egress>) {
    let nodes = &caches.nodes.store;
    let _ = tokio::join!(caches.hook_runs.listed(), nodes.listed(), looked);
    // A list counts as complete shortly before its changes are reported to the egress policy.
    egress.see_nodes(nodes);
    if egress.lacks_networks() {
        tracing::error!(
            "--hook-policy=cluster refuses all hooks over the network: {NO_NETWORKS}; name its networks with --hook-allow-cidr"
        );
    }
}

/// Starts the workers of a kind when it is `ready`. Ends only when a worker panics.
async fn serve<W: Reconcile>(ready: impl Future, controller: Controller<W>) {
    ready.await;
    tracing::info!(kind = W::KIND, "what is needed is listed; serving");
    let (controller, mut tasks) = (Arc::new(controller), JoinSet::new());
    for _ in 0..controller.workers {
        let controller = Arc::clone(&controller);
        tasks.spawn(async move { controller.work().await });
    }
    if let Some(Err(death)) = tasks.join_next().await {
        std::panic::resume_unwind(death.into_panic());
    }
}

/// Starts informers.
struct Watch<'a> {
    server: &'a Server,
    metrics: &'a Arc<Metrics>,
    health: &'a Arc<Health>,
    streaming: bool,
    tasks: &'a mut JoinSet<()>,
}

impl Watch<'_> {
    fn start<T: Cached>(&mut self, store: &Arc<Store<T>>, changed: impl Fn(&Change<T>) + Send + Sync + 'static) {
        self.start_all(store, move |changes| changes.iter().for_each(&changed));
    }

    fn start_all<T: Cached>(&mut self, store: &Arc<Store<T>>, changed: impl Fn(&[Change<T>]) + Send + Sync + 'static) {
        let (server, metrics, health) = (self.server.clone(), Arc::clone(self.metrics), Arc::clone(self.health));
        let informer = Informer::new(server, Arc::clone(store), metrics, health, self.streaming, changed);
        self.tasks.spawn(informer.run());
    }

    fn queue<K: OurKind>(&self) -> Arc<Queue> {
        Arc::new(Queue::new(K::KIND, Arc::clone(self.metrics)))
    }

    /// A kind that owns pods.
    fn workloads<K: Workload>(&mut self, caches: &Arc<Caches>) -> Served<Workloads<K>> {
        let served = Served { kind: Arc::new(Workloads::new(Arc::clone(caches))), queue: self.queue::<K>() };
        let Served { kind, queue } = served.clone();
        self.start(&served.kind.objects, move |change| kind.object_changed(&queue, change));
        served
    }

    /// What kinds that own pods depend on.
    fn dependents(&mut self, caches: &Arc<Caches>, owners: &Owners, egress: &Arc<Egress>) {
        let all = Arc::clone(owners);
        self.start_all(&caches.pods, move |changes| {
            all.iter().for_each(|owner| owner.kind.pods_changed(changes));
            changes.iter().for_each(|change| route(&all, &Changed::Pod(change)));
        });
        let all = Arc::clone(owners);
        self.start(&caches.revisions, move |change| route(&all, &Changed::Revision(change)));
        let all = Arc::clone(owners);
        self.start(&caches.budgets, move |change| route(&all, &Changed::Budget(change)));
        let (all, known, egress) = (Arc::clone(owners), Arc::clone(caches), Arc::clone(egress));
        self.start_all(&caches.nodes.store, move |changes| {
            if changes.iter().any(has_moved) {
                egress.see_nodes(&known.nodes.store);
            }
            let effects: BTreeSet<NodeEffect> = changes.iter().filter_map(|change| known.nodes.changed(change)).collect();
            effects.into_iter().for_each(|effect| route(&all, &Changed::Node(effect)));
        });
    }

    /// HookRuns and HookTemplates: they are reconciled themselves, and the workloads that use them.
    fn hooks(&mut self, runs: (&HookRuns, &Arc<Queue>), templates: (&HookTemplates, &Arc<Queue>), owners: &Owners) {
        let ((runs, runs_queue), (templates, templates_queue)) = (runs, templates);
        let (on, hooks, all, metrics) = (Arc::clone(runs_queue), runs.hooks.clone(), Arc::clone(owners), Arc::clone(self.metrics));
        self.start(&runs.objects, move |change| {
            HookRuns::changed(&on, &hooks, &metrics, change);
            route(&all, &Changed::HookRun(change));
        });
        let (on, all) = (Arc::clone(templates_queue), Arc::clone(owners));
        self.start(&templates.objects, move |change| {
            object_changed(&on, change);
            route(&all, &Changed::HookTemplate(change));
        });
    }
}
