//! The walk-throughs of `examples/tkex`.

use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};

use crate::game::Game;
use crate::hook::{HookServer, webtest};
use crate::scene::{Scene, merge, root};

/// The name of their GameDeployment.
const NAME: &str = "test-gamedeployment";

/// One of the files, changed by a merge patch of its spec.
pub fn example(file: &str, change: &Value) -> Result<Value> {
    let mut object: Value = serde_saphyr::from_str(&std::fs::read_to_string(root().join("examples/tkex").join(file))?)?;
    merge(&mut object, &json!({ "spec": change }));
    Ok(object)
}

/// The GameDeployment of the canary walk-through, with short pauses and further changes of its spec.
pub fn canary(scene: &Arc<Scene>, change: &Value) -> Result<Game> {
    let mut spec = json!({ "updateStrategy": {
        "inPlaceUpdateStrategy": { "gracePeriodSeconds": 2 },
        "canary": { "steps": [
            { "partition": 3 }, { "pause": {} }, { "partition": 2 }, { "pause": { "duration": 3 } }, { "hook": { "templateName": "test" } },
        ] },
    } });
    merge(&mut spec, change);
    scene.apply(&example("gamedeployment.yaml", &spec)?)?;
    Ok(Game::named(scene, NAME))
}

/// The HookTemplate of the canary walk-through, which asks this server.
pub fn hook_template(server: &HookServer, condition: &str) -> Result<Value> {
    let mut template = example("hooktemplate.yaml", &json!({}))?;
    template["spec"]["metrics"] = json!([webtest(&server.url(), condition, "1s")]);
    Ok(template)
}

/// Changes the image as the walk-throughs do, and returns kubectl's output.
pub fn set_image(scene: &Scene, image: &str) -> Result<String> {
    patch(scene, "/spec/template/spec/containers/0/image", &json!(image))
}

/// Resumes a paused rollout as the walk-throughs do.
pub fn resume(scene: &Scene) -> Result<()> {
    patch(scene, "/spec/updateStrategy/paused", &json!(false)).map(drop)
}

fn patch(scene: &Scene, path: &str, value: &Value) -> Result<String> {
    let patch = json!([{ "op": "replace", "path": path, "value": value }]).to_string();
    scene.kubectl(&["patch", "gamedeployment", NAME, "--type=json", "-p", &patch])
}
