//! Hooks on real nodes: pods that are deleted when their last player has left.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::game_server::{get, play};
use e2e::hook::lend;
use e2e::{Game, Place, Scene, Suite, eventually, until_gone};
use kube::ResourceExt;
use serde_json::json;

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.sharing(Place::Real, a_game_goes_when_its_last_player_has_left);
}

/// The example, with its three kinds of hook one after another.
async fn a_game_goes_when_its_last_player_has_left(scene: Arc<Scene>) -> Result<()> {
    lend(&scene).await?;
    let account = format!("system:serviceaccount:{}:default", scene.namespace());
    scene.kubectl(&["create", "role", "exec", "--verb=get,create", "--resource=pods,pods/exec"])?;
    scene.kubectl(&["create", "rolebinding", "exec", "--role=exec", &format!("--serviceaccount={}:default", scene.namespace())])?;
    scene.until_allowed(&["create", "pods/exec", &format!("--as={account}")]).await?;
    scene.apply_file("examples/tkex/drain.yaml")?;
    let game = Game::named(&scene, "drained");
    game.until_rest("Complete").await?;
    let mut players = BTreeMap::new();
    for pod in game.pods().await? {
        players.insert(pod.name_any(), play(&pod)?);
    }
    for (left, template) in [(2, "drained-by-web"), (1, "drained-by-command"), (0, "drained-by-annotation")] {
        game.patch(json!({ "spec": { "replicas": left, "preDeleteUpdateStrategy": { "hook": { "templateName": template } } } })).await?;
        let name = game.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("no pod waits")?;
        let measured = || {
            let path = "jsonpath={.items[*].status.metricResults[0].failed}";
            scene.kubectl(&["get", "hookruns", "-o", path]).is_ok_and(|failed| failed.trim().parse::<i32>().is_ok_and(|failed| failed > 0))
        };
        eventually(&format!("{template} does not deny"), measured).await?;
        let pod = scene.pods().get(&name).await?;
        let state = get(&pod, "/")?;
        ensure!(state.contains("\"sessions\":1") && state.contains("\"sigterm\":0"), "{template}: {state}");
        drop(players.remove(&name));
        if template == "drained-by-annotation" {
            scene.kubectl(&["annotate", "pod", &name, "game/idle=true"])?;
        }
        until_gone(&scene.pods(), &name).await.with_context(|| template.to_owned())?;
    }
    game.until_rest("Complete").await.map(drop)
}
