//! The operator is killed after every Nth write, while it scales and while it updates. The API server has carried the
//! write out; the operator never learns of it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::operator::single;
use e2e::{Game, PodCount, Proxy, Scene, Suite, counts, watch_pods};
use kube::ResourceExt;
use localkube::OperatorOptions;
use serde_json::json;

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(a_crash_after_every_nth_write_loses_nothing);
}

/// After how many writes it crashes: with SOAK=1 every number up to 20.
fn intervals() -> Vec<usize> {
    if std::env::var_os("SOAK").is_some() { (1..=20).collect() } else { vec![2, 7, 20] }
}

async fn a_crash_after_every_nth_write_loses_nothing(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let proxy = Proxy::start(&cluster).await?;
    let options = OperatorOptions { kubeconfig: Some(proxy.kubeconfig()), longest_pause: Duration::ZERO, ..single() };
    let _operators = cluster.start_operators(&options).await?;
    for every in intervals() {
        let scene = Arc::new(Scene::open(Arc::clone(&cluster), &format!("every-{every}")).await?);
        proxy.kill_every(every);
        let result = lifecycle(&scene).await.with_context(|| format!("with a crash after every {every} writes"));
        proxy.kill_every(0);
        result?;
    }
    Ok(())
}

async fn lifecycle(scene: &Arc<Scene>) -> Result<()> {
    let game = Game::apply(scene, "game", &json!({ "replicas": 0, "updateStrategy": { "maxUnavailable": "25%" } }))?;
    game.until_rest("Complete").await?;
    let mut before = 0;
    for replicas in [50, 10, 30] {
        let seen = watch_pods(&scene.pods(), "app=game").await?;
        scene.kubectl(&["scale", "gd/game", &format!("--replicas={replicas}")])?;
        game.until("scaled", |status| status["readyReplicas"] == replicas && status["replicas"] == replicas).await?;
        expect(scene, &game, &seen(), replicas, replicas.max(before), 0).await?;
        before = replicas;
    }
    let seen = watch_pods(&scene.pods(), "app=game").await?;
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    expect(scene, &game, &seen(), 30, 30, 23).await?;
    ensure!(game.images().await? == counts(&[("game:2", 30)]), "{:?}", game.images().await?);
    Ok(())
}

/// Fails unless there are exactly the right pods, each with an owner, and every event was within the rollout's limits.
async fn expect(scene: &Arc<Scene>, game: &Game, seen: &PodCount, replicas: usize, most: usize, fewest_ready: usize) -> Result<()> {
    let pods = game.pods().await?;
    ensure!(pods.len() == replicas, "{} pods instead of {replicas}", pods.len());
    let orphans: Vec<String> = pods.iter().filter(|pod| pod.owner_references().is_empty()).map(ResourceExt::name_any).collect();
    ensure!(orphans.is_empty(), "{orphans:?} have no owner");
    ensure!(seen.most <= most, "{} pods at once in {}, at most {most} allowed", seen.most, scene.namespace());
    ensure!(seen.fewest_ready >= fewest_ready, "only {} pods ready, at least {fewest_ready} needed", seen.fewest_ready);
    Ok(())
}
