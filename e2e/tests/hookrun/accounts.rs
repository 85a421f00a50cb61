//! Hooks that read or change objects and run commands, as a ServiceAccount that the namespace lends to the operator.

use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::hook::{hook_run, lend, verdict};
use e2e::{Place, Scene, Suite};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, an_object_is_read_and_patched_as_a_service_account);
    suite.sharing(Place::Real, a_command_is_run_in_the_pod);
}

/// A HookRun about a pod.
fn about(name: &str, pod: &str, metric: &Value) -> Value {
    let mut run = hook_run(name, metric);
    run["spec"]["args"] = json!([{ "name": "PodName", "value": pod }]);
    run
}

/// The message of a HookRun that ended with an error.
async fn error(scene: &Scene, name: &str) -> Result<String> {
    let status = verdict(scene, name).await?;
    ensure!(status["phase"] == "Error", "{status}");
    Ok(status["message"].as_str().unwrap_or_default().to_owned())
}

async fn an_object_is_read_and_patched_as_a_service_account(scene: Arc<Scene>) -> Result<()> {
    let account = format!("system:serviceaccount:{}:default", scene.namespace());
    scene.pod("game", "game:1", &json!({ "metadata": { "annotations": { "game.io/state": "idle" } } }))?;
    let once = |kubernetes: Value| json!({ "name": "state", "consecutiveErrorLimit": 0, "provider": { "kubernetes": kubernetes } });
    let fields = |value: &str| json!([{ "path": "metadata.annotations.game.io/state", "value": value }]);
    let get = |value: &str| once(json!({ "function": "get", "fields": fields(value) }));
    scene.apply(&about("alone", "game", &get("idle")))?;
    let said = error(&scene, "alone").await?;
    ensure!(
        said.contains("cannot impersonate") && said.contains("a Role of this namespace must allow the operator to impersonate"),
        "{said}"
    );
    lend(&scene).await?;
    scene.apply(&about("powerless", "game", &get("idle")))?;
    let said = error(&scene, "powerless").await?;
    ensure!(said.contains("cannot get resource \"pods\"") && said.contains("must allow it to the ServiceAccount default"), "{said}");
    scene.kubectl(&["create", "role", "pods", "--verb=get,patch", "--resource=pods"])?;
    scene.kubectl(&["create", "rolebinding", "pods", "--role=pods", &format!("--serviceaccount={}:default", scene.namespace())])?;
    scene.until_allowed(&["patch", "pods", &format!("--as={account}")]).await?;
    scene.apply(&about("idle", "game", &get("idle")))?;
    ensure!(verdict(&scene, "idle").await?["phase"] == "Successful", "the annotation is not read");
    scene.apply(&about("busy", "game", &get("busy")))?;
    let status = verdict(&scene, "busy").await?;
    ensure!(
        status["phase"] == "Failed" && status["message"].as_str().is_some_and(|said| said.contains("is \"idle\", not \"busy\"")),
        "{status}"
    );
    scene.apply(&about("set", "game", &once(json!({ "function": "patch", "fields": fields("a \"b\" ~/c") }))))?;
    ensure!(verdict(&scene, "set").await?["phase"] == "Successful", "the annotation is not set");
    let now = scene.kubectl(&["get", "pod", "game", "-o", "jsonpath={.metadata.annotations.game\\.io/state}"])?;
    ensure!(now == "a \"b\" ~/c", "{now:?}");
    let mut value = once(json!({ "jsonPath": "{.spec.containers[*].image}" }));
    value["successCondition"] = json!("result == 'game:1'");
    scene.apply(&about("value", "game", &value))?;
    ensure!(verdict(&scene, "value").await?["phase"] == "Successful", "the value is not found");
    Ok(())
}

async fn a_command_is_run_in_the_pod(scene: Arc<Scene>) -> Result<()> {
    scene.pod("game", "main:v1", &json!({}))?;
    e2e::until_pod_ready(&scene.pods(), "game").await?;
    lend(&scene).await?;
    scene.kubectl(&["create", "role", "run", "--verb=get,create", "--resource=pods,pods/exec"])?;
    scene.kubectl(&["create", "rolebinding", "run", "--role=run", &format!("--serviceaccount={}:default", scene.namespace())])?;
    scene.until_allowed(&["create", "pods/exec", &format!("--as=system:serviceaccount:{}:default", scene.namespace())]).await?;
    let exec = |command: &[&str], condition: Option<&str>| json!({ "name": "command", "consecutiveErrorLimit": 0, "successCondition": condition, "provider": { "exec": { "command": command } } });
    scene.apply(&about("good", "game", &exec(&["/main", "--help"], Some("result contains 'stand-in game server'"))))?;
    let status = verdict(&scene, "good").await?;
    ensure!(status["phase"] == "Successful", "{status}");
    scene.apply(&about("bad", "game", &exec(&["/main", "--nonsense"], None)))?;
    let status = verdict(&scene, "bad").await?;
    ensure!(status["phase"] == "Failed" && status["message"].as_str().is_some_and(|said| said.contains("exit code")), "{status}");
    scene.apply(&about("missing", "game", &exec(&["/no/such/program"], None)))?;
    let status = verdict(&scene, "missing").await?;
    ensure!(
        status["phase"] == "Error" && status["message"].as_str().is_some_and(|said| said.contains("stat /no/such/program")),
        "{status}"
    );
    // Pods reach the API server at an address that is not this machine's, and with which the operator is not configured.
    let address = scene.kubectl(&["get", "endpointslice", "-n=default", "kubernetes", "-o", "jsonpath={.endpoints[0].addresses[0]}"])?;
    let web = json!({ "name": "web", "consecutiveErrorLimit": 0, "provider": { "web": { "url": format!("https://{address}:6443/") } } });
    scene.apply(&hook_run("cluster", &web))?;
    let said = error(&scene, "cluster").await?;
    ensure!(said.contains(&format!("{address} is refused: it is the API server's")), "{said}");
    scene.apply(&about("nobody", "nobody", &exec(&["/main"], None)))?;
    let said = error(&scene, "nobody").await?;
    ensure!(said.contains("nobody"), "{said}");
    Ok(())
}
