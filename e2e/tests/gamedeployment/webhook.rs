//! An admission webhook that rewrites images: whether a pod is updated follows from the image that the operator wrote, not
//! from the one that the webhook made of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::pod::restarts;
use e2e::webhook::{MIRROR, Mirror};
use e2e::{Game, Place, Scene, Suite, audited, counts, in_place};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, rewritten_images_cost_no_write_and_no_restart);
    suite.sharing(fake, a_rollback_in_the_grace);
    suite.sharing(fake, containers_restart_in_order);
}

fn mirrored(image: &str) -> String {
    format!("{MIRROR}{image}")
}

async fn rewritten_images_cost_no_write_and_no_restart(scene: Arc<Scene>) -> Result<()> {
    let mirror = Mirror::start(&scene).await?;
    let game = Game::apply(&scene, "game", &in_place(4, 0))?;
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == counts(&[(&mirrored("game:1"), 4)]), "{:?}", game.images().await?);
    game.set_image("game:2").await?;
    game.until_rest("Complete").await?;
    // A pass that has something to do, long after the change.
    game.patch(json!({ "spec": { "replicas": 5 } })).await?;
    Game::expect_counts(&game.until_rest("Complete").await?, 5, 5, 5)?;
    ensure!(game.images().await? == counts(&[(&mirrored("game:2"), 5)]), "{:?}", game.images().await?);
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(0, 1), (1, 4)]), "{:?}", restarts(&game.pods().await?));
    let count = |subresource: &str, verb: &str| audited(&scene, "pods", subresource, verb);
    e2e::eventually("fewer than 13 status writes", || count("status", "patch") >= 13).await?;
    let seen = (count("", "create"), count("", "patch"), count("status", "patch"), count("", "get"), count("", "delete"));
    ensure!(seen == (5, 4, 13, 0, 0), "creates, patches, status patches, gets and deletes: {seen:?}");
    ensure!(mirror.reviews() >= 9, "only {} reviews", mirror.reviews());
    mirror.stop(&scene)
}

async fn a_rollback_in_the_grace(scene: Arc<Scene>) -> Result<()> {
    let mirror = Mirror::start(&scene).await?;
    let game = Game::apply(&scene, "back", &in_place(4, 600))?;
    let first = game.until_rest("Complete").await?["updateRevision"].clone();
    game.set_image("game:2").await?;
    game.until_drained(2).await?;
    game.set_image("game:1").await?;
    let status = game.until_rest("Complete").await?;
    ensure!(status["updateRevision"] == first && status["currentRevision"] == first, "{status}");
    ensure!(restarts(&game.pods().await?) == BTreeMap::from([(0, 4)]), "{:?}", restarts(&game.pods().await?));
    ensure!(audited(&scene, "pods", "", "patch") == 0, "an image was written");
    mirror.stop(&scene)
}

async fn containers_restart_in_order(scene: Arc<Scene>) -> Result<()> {
    let mirror = Mirror::start(&scene).await?;
    let containers = |first: &str, second: &str| json!([{ "name": "first", "image": first }, { "name": "second", "image": second }]);
    let mut spec = in_place(2, 0);
    spec["updateStrategy"]["inPlaceUpdateStrategy"]["policy"] = json!("OrderedReady");
    spec["template"] = json!({ "spec": { "containers": containers("first:1", "second:1") } });
    let game = Game::apply(&scene, "several", &spec)?;
    game.until_rest("Complete").await?;
    game.patch(json!({ "spec": { "template": { "spec": { "containers": containers("first:2", "second:2") } } } })).await?;
    game.until_rest("Complete").await?;
    for pod in game.pods().await? {
        let statuses: Value = serde_json::to_value(pod.status.and_then(|status| status.container_statuses))?;
        let reported = |index: usize| (statuses[index]["image"].as_str().map(str::to_owned), statuses[index]["restartCount"].as_i64());
        ensure!(reported(0) == (Some(mirrored("first:2")), Some(1)) && reported(1) == (Some(mirrored("second:2")), Some(1)), "{statuses}");
    }
    ensure!(audited(&scene, "pods", "", "patch") == 4, "{} writes for two containers of two pods", audited(&scene, "pods", "", "patch"));
    mirror.stop(&scene)
}
