//! Thousands of pods: a change takes effect in the middle of their creation, and kill -9 loses none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::operator::{Killer, peak_memory, pid, single};
use e2e::pod::restarts;
use e2e::{Game, Scene, Suite, counts, eventually, watch_pods};
use jiff::Timestamp;
use localkube::{Cluster, OperatorOptions};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(a_change_ends_the_creation_of_pods);
    suite.alone(kill_9_loses_none_of_two_thousand_pods);
    suite.alone(each_pod_needs_little_memory);
}

/// When the operator's requests to create pods in the namespace arrived at the API server, and when others' changes of the
/// GameDeployment were answered.
fn moments(scene: &Scene) -> Result<(Vec<Timestamp>, Vec<Timestamp>)> {
    let log = std::fs::read_to_string(scene.cluster().audit_log())?;
    let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut created, mut changed) = (Vec::new(), Vec::new());
    for entry in entries.filter(|entry| entry["objectRef"]["namespace"] == scene.namespace()) {
        let time = |field: &str| entry[field].as_str().unwrap_or_default().parse::<Timestamp>();
        let is_operator = entry["user"]["username"].as_str().is_some_and(|name| name.ends_with(":gameplane"));
        match (entry["verb"].as_str(), entry["objectRef"]["resource"].as_str()) {
            (Some("create"), Some("pods")) if is_operator => created.push(time("requestReceivedTimestamp")?),
            (Some("patch"), Some("gamedeployments")) if !is_operator => changed.push(time("stageTimestamp")?),
            _ => {}
        }
    }
    Ok((created, changed))
}

async fn a_change_ends_the_creation_of_pods(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = cluster.start_operators(&single()).await?;
    let scene = Arc::new(Scene::open(cluster, "changed").await?);
    let game = Game::apply(&scene, "game", &json!({ "replicas": 5_000 }))?;
    // Only a plan without rests creates more than 500.
    eventually("no thousand pods were created", || moments(&scene).is_ok_and(|(created, _)| created.len() > 1_000)).await?;
    game.patch(json!({ "spec": { "replicas": 0 } })).await?;
    game.until_rest("Complete").await?;
    let (created, changed) = moments(&scene)?;
    let changed = changed.last().context("the audit log has no change")?;
    let late = created.iter().filter(|time| *time > changed).count();
    // Those under way, and what is written until the watch shows the change.
    ensure!(late < 250 && created.len() < 5_000, "{late} of {} pods were created after the change", created.len());
    Ok(())
}

/// Kills the operator so often, each time soon after it is ready.
async fn killed(cluster: &Arc<Cluster>, times: usize) -> Result<()> {
    let killer = Killer::of_ready(cluster);
    eventually("the operator was not killed often enough", || killer.kills() >= times).await
}

async fn kill_9_loses_none_of_two_thousand_pods(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let options = OperatorOptions { longest_pause: Duration::from_millis(300), ..single() };
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "many").await?);
    let seen = watch_pods(&scene.pods(), "app=game").await?;
    let strategy = json!({ "type": "InplaceUpdate", "maxUnavailable": "25%" });
    let game = Game::apply(&scene, "game", &json!({ "replicas": 2_000, "updateStrategy": strategy }))?;
    killed(&cluster, 6).await?;
    game.until_rest("Complete").await?;
    // The audit log does not tell: it has no answer for requests of an operator that is killed meanwhile.
    let created = seen();
    ensure!(created.most == 2_000 && created.names.len() == 2_000, "{} pods were created, {} at once", created.names.len(), created.most);
    let seen = watch_pods(&scene.pods(), "app=game").await?;
    game.set_image("game:2").await?;
    killed(&cluster, 12).await?;
    game.until_rest("Complete").await?;
    let seen = seen();
    ensure!(seen.most == 2_000 && seen.fewest_ready >= 1_500, "{} pods at once, {} ready", seen.most, seen.fewest_ready);
    ensure!(seen.names == created.names, "a pod was replaced");
    let pods = game.pods().await?;
    ensure!(game.images().await? == counts(&[("game:2", 2_000)]), "{:?}", game.images().await?);
    ensure!(restarts(&pods) == BTreeMap::from([(1, 2_000)]), "{:?}", restarts(&pods));
    Ok(())
}

/// How many pods, and the memory in MiB that the operator may need for them: with SOAK=1 fifty thousand.
fn sizes() -> (usize, u64) {
    if std::env::var_os("SOAK").is_some() { (50_000, 250) } else { (3_000, 48) }
}

async fn each_pod_needs_little_memory(suite: Arc<Suite>) -> Result<()> {
    let (pods, most) = sizes();
    let cluster = suite.own_cluster().await?;
    let _operators = cluster.start_operators(&single()).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "memory").await?);
    let strategy = json!({ "type": "InplaceUpdate", "maxUnavailable": "25%" });
    let game = Game::apply(&scene, "game", &json!({ "replicas": pods, "updateStrategy": strategy }))?;
    game.until_rest("Complete").await?;
    let created = peak_memory(&pid(&cluster)?)? / 1024;
    game.set_image("game:2").await?;
    let status = game.until_rest("Complete").await?;
    ensure!(status["updatedReadyReplicas"] == pods, "{status}");
    let updated = peak_memory(&pid(&cluster)?)? / 1024;
    eprintln!("{pods} pods: {created} MiB when they are created, {updated} MiB when they are updated in place");
    ensure!(updated <= most, "{created} MiB when they are created and {updated} MiB when they are updated, at most {most} are expected");
    Ok(())
}
