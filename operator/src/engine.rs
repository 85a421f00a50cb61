//! One term of leadership: informers, a queue and workers, all new. Dropping it ends the term.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::client::Server;
use crate::controller::Controller;
use crate::events::Events;
use crate::execute::Executor;
use crate::informer::Informer;
use crate::kinds::gamedeployment::GameDeployments;
use crate::leader::Leadership;
use crate::metrics::Metrics;
use crate::queue::Queue;

/// How much at once.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Objects that are worked on at the same time.
    pub workers: usize,
    /// Writes under way for one object.
    pub writes_per_object: usize,
    /// Writes under way for all objects.
    pub writes: usize,
}

/// What a term needs.
#[derive(Debug, Clone)]
pub struct Engine {
    /// The API server.
    pub server: Server,
    /// Whether writes are allowed.
    pub leadership: Arc<Leadership>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// How much at once.
    pub limits: Limits,
    /// Whether the server can stream lists.
    pub streaming: bool,
}

impl Engine {
    /// Runs one term. Says through `synced` when the caches are complete. Ends only by being dropped, or by a worker's death.
    pub async fn run(self, synced: &watch::Sender<bool>) {
        let Self { server, leadership, metrics, limits, streaming } = self;
        let mut tasks = JoinSet::new();
        let (events, write_events) = Events::start(server.clone(), Arc::clone(&leadership));
        tasks.spawn(write_events);
        let queue = Arc::new(Queue::new("GameDeployment", Arc::clone(&metrics)));
        let kinds = GameDeployments::default();

        let on = Arc::clone(&queue);
        let objects = Informer::new(server.clone(), Arc::clone(&kinds.objects), Arc::clone(&metrics), streaming, move |change| {
            GameDeployments::object_changed(&on, change);
        });
        let (on, known) = (Arc::clone(&queue), kinds.clone());
        let pods = Informer::new(server.clone(), Arc::clone(&kinds.pods), Arc::clone(&metrics), streaming, move |change| {
            known.pod_changed(&on, change);
        });
        let on = Arc::clone(&queue);
        let revisions = Informer::new(server.clone(), Arc::clone(&kinds.revisions), Arc::clone(&metrics), streaming, move |change| {
            GameDeployments::revision_changed(&on, change);
        });
        tasks.spawn(objects.run());
        tasks.spawn(pods.run());
        tasks.spawn(revisions.run());
        let listed = async { tokio::join!(kinds.objects.listed(), kinds.pods.listed(), kinds.revisions.listed()) };
        tokio::select! {
            _ = listed => {}
            death = tasks.join_next() => {
                tracing::error!(?death, "a part of the engine died before the first list");
                return;
            }
        }
        tracing::info!(gamedeployments = kinds.objects.len(), pods = kinds.pods.len(), "the caches are complete");
        synced.send_replace(true);

        let writes = Arc::new(Semaphore::new(limits.writes));
        let executor = Executor { server, leadership, events, metrics, writes, per_object: limits.writes_per_object };
        let controller = Arc::new(Controller::new(kinds, queue, executor));
        for _ in 0..limits.workers {
            let controller = Arc::clone(&controller);
            tasks.spawn(async move { controller.work().await });
        }
        // No task ends by itself: one that did has died.
        if let Some(Err(death)) = tasks.join_next().await {
            tracing::error!(error = %death, "a part of the engine died; starting again");
        }
        synced.send_replace(false);
    }
}
