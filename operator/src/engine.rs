//! One term of leadership: new informers, queues and workers. Dropping it ends the term.

use std::sync::Arc;

use api::tkex::HookRun;
use jiff::SignedDuration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::allowance::Allowance;
use crate::client::Server;
use crate::controller::{Controller, Workload};
use crate::events::Events;
use crate::execute::Executor;
use crate::fair::Places;
use crate::health::Health;
use crate::hooks::cluster::ClusterLookup;
use crate::hooks::egress::{Egress, NO_NETWORKS};
use crate::hooks::hosts::Hosts;
use crate::hooks::{self, Asker, Clients, Hooks};
use crate::informer::Informer;
use crate::kinds::custom::{Custom, object_changed};
use crate::kinds::gamedeployment::GameDeployments;
use crate::kinds::hookrun::HookRuns;
use crate::kinds::hooktemplate::HookTemplates;
use crate::kinds::node::{Deleted, Node, has_moved, look_up};
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
        let mut watch = Watch { server: &server, metrics: &metrics, health: &health, streaming, tasks: &mut tasks };

        let queue = |kind| Arc::new(Queue::new(kind, Arc::clone(&metrics)));
        let (games_queue, runs_queue, templates_queue) = (queue("GameDeployment"), queue("HookRun"), queue("HookTemplate"));
        let allowance = Arc::new(Allowance::of(limits.namespace_memory));
        let templates = HookTemplates { objects: Arc::new(Store::within(Arc::clone(&allowance))) };
        let (deleted, unknown_nodes) = Deleted::new();
        let deleted = Arc::new(deleted);
        let games =
            GameDeployments::new(Arc::clone(&templates.objects), Arc::clone(&deleted), node_silence, &allowance, Arc::clone(&health));
        watch.games(&games, &games_queue, &egress);
        let (known, on) = (games.clone(), Arc::clone(&games_queue));
        watch.tasks.spawn(look_up(server.clone(), deleted, unknown_nodes, move || known.nodes_changed(&on)));
        let asker = hooks.asker(&server, &leadership, &metrics);
        let runs = HookRuns { objects: Arc::clone(&games.hook_runs), hooks: Hooks::new(asker, Arc::clone(&runs_queue)), keep: hooks.keep };
        watch.hooks((&runs, &runs_queue), (&templates, &templates_queue), (&games, &games_queue));

        let writes = Places::new(limits.writes);
        let executor = Executor { server: server.clone(), leadership, events, metrics, writes, per_object: limits.writes_per_object };
        let known = games.clone();
        let ready = async move { tokio::join!(known.listed(), known.ask_version(&server)) };
        tasks.spawn(serve(ready, limits.workers, Controller::new(games.clone(), Arc::clone(&games_queue), executor.clone())));
        let ready = hooks_may_be_asked(Arc::clone(&runs.objects), Arc::clone(&games.nodes), looked, egress);
        // More workers than for other kinds: each mostly waits for the one write of its pass, and a new run must not wait behind it.
        tasks.spawn(serve(ready, limits.workers * 4, Controller::new(runs, runs_queue, executor.clone())));
        let known = Arc::clone(&templates.objects);
        let ready = async move { known.listed().await };
        tasks.spawn(serve(ready, 1, Controller::new(templates, templates_queue, executor)));
        tasks.spawn(async move { games.reconcile_when_more_is_listed(&games_queue).await });
        // Tasks do not end by themselves: one that did has panicked.
        if let Some(Err(death)) = tasks.join_next().await {
            tracing::error!(error = %death, "a part of the engine died; starting again");
        }
        health.reset();
    }
}

/// Returns when measurements may start: the addresses of nodes have to be listed, and those of the API server looked up once.
async fn hooks_may_be_asked(
    objects: Arc<Store<Custom<HookRun>>>,
    nodes: Arc<Store<Node>>,
    looked: oneshot::Receiver<()>,
    egress: Arc<Egress>,
) {
    let _ = tokio::join!(objects.listed(), nodes.listed(), looked);
    // A list counts as complete shortly before its changes are reported to the egress policy.
    egress.see_nodes(&nodes);
    if egress.lacks_networks() {
        tracing::error!(
            "--hook-policy=cluster refuses all hooks over the network: {NO_NETWORKS}; name its networks with --hook-allow-cidr"
        );
    }
}

/// Starts the workers of a kind when it is `ready`. Ends only when a worker panics.
async fn serve<W: Workload>(ready: impl Future, workers: usize, controller: Controller<W>) {
    ready.await;
    tracing::info!(kind = W::KIND, "what is needed is listed; serving");
    let (controller, mut tasks) = (Arc::new(controller), JoinSet::new());
    for _ in 0..workers {
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

    fn games(&mut self, games: &GameDeployments, queue: &Arc<Queue>, egress: &Arc<Egress>) {
        let (on, known) = (Arc::clone(queue), games.clone());
        self.start(&games.objects, move |change| known.object_changed(&on, change));
        let (on, known) = (Arc::clone(queue), games.clone());
        self.start_all(&games.pods, move |changes| known.pods_changed(&on, changes));
        let on = Arc::clone(queue);
        self.start(&games.revisions, move |change| GameDeployments::revision_changed(&on, change));
        let (on, known, egress) = (Arc::clone(queue), games.clone(), Arc::clone(egress));
        self.start_all(&games.nodes, move |changes| {
            if changes.iter().any(has_moved) {
                egress.see_nodes(&known.nodes);
            }
            changes.iter().for_each(|change| known.node_changed(&on, change));
        });
        let (on, known) = (Arc::clone(queue), games.clone());
        self.start(&games.budgets, move |change| known.budget_changed(&on, change));
    }

    fn hooks(&mut self, runs: (&HookRuns, &Arc<Queue>), templates: (&HookTemplates, &Arc<Queue>), games: (&GameDeployments, &Arc<Queue>)) {
        let (on, asked, owners, metrics) = (Arc::clone(runs.1), runs.0.hooks.clone(), Arc::clone(games.1), Arc::clone(self.metrics));
        self.start(&runs.0.objects, move |change| {
            HookRuns::changed(&on, &asked, change);
            GameDeployments::run_changed(&owners, &metrics, change);
        });
        let (on, askers, known) = (Arc::clone(templates.1), Arc::clone(games.1), games.0.clone());
        self.start(&templates.0.objects, move |change| {
            object_changed(&on, change);
            known.template_changed(&askers, change);
        });
    }
}
