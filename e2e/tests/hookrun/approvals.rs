//! A tenant that tries to forge approvals, to end protected pods and to misuse what its namespace lends, on fake nodes. The
//! tenant may do everything in its own namespace.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::{hook_run, serve_sessions, sessions_hook, verdict};
use e2e::{Game, Place, Scene, Suite, eventually, run, until, until_gone};
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, approvals_cannot_be_forged);
    suite.sharing(fake, a_question_can_be_stopped_and_removed);
    suite.sharing(fake, changes_that_would_end_a_protected_pod_are_refused);
    suite.sharing(fake, permissions_lent_for_a_pod_reach_no_other_object);
}

/// Creates a tenant that may do everything in the namespace, and returns kubectl's argument to impersonate it.
async fn tenant(scene: &Scene) -> Result<String> {
    scene.kubectl(&["create", "serviceaccount", "tenant"])?;
    let rule = json!({ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] });
    scene.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "everything" }, "rules": [rule],
    }))?;
    let account = format!("{}:tenant", scene.namespace());
    scene.kubectl(&["create", "rolebinding", "everything", "--role=everything", &format!("--serviceaccount={account}")])?;
    let tenant = format!("--as=system:serviceaccount:{account}");
    scene.until_allowed(&["patch", "hookruns", &tenant]).await?;
    Ok(tenant)
}

/// The error that the tenant gets when it creates an object; an error of the test if the object is created.
fn refused_creation(scene: &Scene, tenant: &str, object: &Value) -> Result<String> {
    match run(scene.kubectl_command().args(["create", "-f", "-", tenant]), &object.to_string()) {
        Ok(said) => anyhow::bail!("it was created: {said}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

/// kubectl's arguments to patch an object as the tenant.
fn patch<'w>(what: &[&'w str], change: &'w str, tenant: &'w str) -> Vec<&'w str> {
    [&["patch"], what, &["--type=merge", "-p", change, tenant]].concat()
}

/// Scales a GameDeployment in from two pods to one, and returns it with the pod that waits and its HookRun.
async fn asked(scene: &Arc<Scene>) -> Result<(Game, String, DynamicObject)> {
    let game = Game::apply(scene, "door", &json!({ "replicas": 2, "preDeleteUpdateStrategy": sessions_hook() }))?;
    game.until_rest("Complete").await?;
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    let pod = game.until_waiting("preDeleteHookCondition", 1).await?.pop_first().context("no pod waits")?;
    let run = scene.custom("HookRun").list(&ListParams::default()).await?.items.pop().context("no HookRun")?;
    Ok((game, pod, run))
}

async fn approvals_cannot_be_forged(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let tenant = tenant(&scene).await?;
    let (game, pod, asked) = asked(&scene).await?;
    let name = asked.name_any();
    let marked = scene.pods().get(&pod).await?;
    ensure!(marked.annotations().get("gameplane.dev/asked").is_some_and(|hash| hash.len() == 64), "{:?}", marked.annotations());

    // A run that looks like the operator's.
    let (labels, owners) = (json!({ "labels": asked.labels() }), json!({ "ownerReferences": asked.owner_references() }));
    for (number, part) in [&labels, &owners].into_iter().enumerate() {
        let mut forged = json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": { "name": format!("forged-{number}") },
            "spec": asked.data["spec"],
        });
        e2e::merge(&mut forged["metadata"], part);
        let said = refused_creation(&scene, &tenant, &forged)?;
        ensure!(said.contains("only the operator makes HookRuns with its labels"), "{said}");
    }
    // A run of the tenant's own that is changed to look like the operator's.
    let own = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": { "name": "own" }, "spec": asked.data["spec"],
    });
    run(scene.kubectl_command().args(["create", "-f", "-", &tenant]), &own.to_string())?;
    let approval = json!({ "status": { "phase": "Successful" } }).to_string();
    scene.kubectl(&patch(&["hookrun", "own", "--subresource=status"], &approval, &tenant))?;
    for part in [&labels, &owners] {
        let change = json!({ "metadata": part }).to_string();
        let said = scene.refusal(&patch(&["hookrun", "own"], &change, &tenant))?;
        ensure!(said.contains("of these only spec.terminate can be set"), "{said}");
    }
    // The operator's own run.
    let said = scene.refusal(&patch(&["hookrun", &name, "--subresource=status"], &approval, &tenant))?;
    ensure!(said.contains("only the operator writes what a hook has answered"), "{said}");
    for change in [json!({ "labels": { "pod-uid": "another" } }), json!({ "labels": null }), json!({ "ownerReferences": null })] {
        let change = json!({ "metadata": change }).to_string();
        let said = scene.refusal(&patch(&["hookrun", &name], &change, &tenant))?;
        ensure!(said.contains("of these only spec.terminate can be set"), "{change}: {said}");
    }
    ensure!(game.pods().await?.len() == 2, "a pod was deleted with a forged approval");
    sessions.end(&pod);
    until_gone(&scene.pods(), &pod).await?;
    game.until_rest("Complete").await?;
    Ok(())
}

async fn a_question_can_be_stopped_and_removed(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let tenant = tenant(&scene).await?;
    let (game, pod, asked) = asked(&scene).await?;
    let (name, runs) = (asked.name_any(), scene.custom("HookRun"));
    scene.kubectl(&["delete", "hookrun", &name, &tenant])?;
    let is_new = |run: Option<&DynamicObject>| run.is_some_and(|run| run.uid() != asked.uid());
    until(&runs, &name, "asked again", is_new).await?;
    let stop = json!({ "spec": { "terminate": true } }).to_string();
    scene.kubectl(&patch(&["hookrun", &name], &stop, &tenant))?;
    until(&runs, &name, "Cancelled", |run| run.is_some_and(|run| run.data["status"]["phase"] == "Cancelled")).await?;
    ensure!(game.pods().await?.len() == 2, "a pod was deleted although its HookRun was stopped");
    // The hook is asked again without any change.
    sessions.end(&pod);
    until_gone(&scene.pods(), &pod).await?;
    game.until_rest("Complete").await?;
    Ok(())
}

async fn changes_that_would_end_a_protected_pod_are_refused(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let tenant = tenant(&scene).await?;
    let container = json!({ "name": "game", "image": "game:1", "resources": { "requests": { "cpu": "10m" } } });
    let spec = json!({
        "replicas": 1, "template": { "spec": { "containers": [container] } },
        "preDeleteUpdateStrategy": { "protect": true, "hook": { "templateName": "drained" } },
    });
    let game = Game::apply(&scene, "door", &spec)?;
    let pod = game.until_protected().await?.pop().context("no pod")?;
    let name = pod.name_any();
    let refused = |words: &[&str], why: &str| -> Result<()> {
        let said = scene.refusal(&[words, &[tenant.as_str()]].concat())?;
        ensure!(said.contains(why), "{words:?}: {said}");
        Ok(())
    };
    refused(&["set", "image", &format!("pod/{name}"), "game=game:2"], "change the image in the template of GameDeployment door")?;
    let deadline = r#"{"spec":{"activeDeadlineSeconds":1}}"#;
    refused(&["patch", "pod", &name, "--type=merge", "-p", deadline], "add the pod to spec.scaleStrategy.podsToDelete")?;
    for label in ["controller-revision-hash", "tkex.bkbcs.tencent.com/gamedeployment-instance-id"] {
        refused(&["label", "pod", &name, &format!("{label}=other"), "--overwrite"], "other labels can be changed")?;
        refused(&["label", "pod", &name, &format!("{label}-")], "other labels can be changed")?;
    }
    for status in [r#"{"status":{"phase":"Failed"}}"#, r#"{"status":{"containerStatuses":null}}"#] {
        refused(&["patch", "pod", &name, "--subresource=status", "--type=merge", "-p", status], "only users of the group system:nodes")?;
    }
    scene.kubectl(&["label", "pod", &name, "shard=7", &tenant])?;
    let after = game.until_protected().await?.pop().context("no pod")?;
    ensure!(after.uid() == pod.uid() && after.labels().get("shard").is_some_and(|shard| shard == "7"), "another pod, or another label");
    ensure!(sessions.asked().is_empty(), "the hook was asked although no pod was to be deleted");
    Ok(())
}

async fn permissions_lent_for_a_pod_reach_no_other_object(scene: Arc<Scene>) -> Result<()> {
    let kubernetes = json!({ "function": "get", "fields": [{ "path": "metadata.annotations.free", "value": "yes" }] });
    let template = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": { "name": "drained" },
        "spec": {
            "args": [{ "name": "PodName" }, { "name": "Version", "value": "v1" }, { "name": "Kind", "value": "ConfigMap" }],
            "metrics": [{ "name": "free", "consecutiveErrorLimit": 0, "provider": { "kubernetes": kubernetes } }],
        },
    });
    scene.apply(&template)?;
    let (game, ..) = asked(&scene).await?;
    let message = || scene.kubectl(&["get", "hookruns", "-o", "jsonpath={.items[*].status.message}"]);
    eventually("the run does not say why", || message().is_ok_and(|said| said.contains("args.Kind cannot lead elsewhere"))).await?;
    ensure!(game.pods().await?.len() == 2, "a pod was deleted although its hook could not be asked");

    // An invalid name never becomes part of a path.
    let mut named = hook_run("named", &json!({ "name": "free", "consecutiveErrorLimit": 0, "provider": { "kubernetes": kubernetes } }));
    named["spec"]["args"] = json!([{ "name": "PodName", "value": "../secrets/door" }]);
    scene.apply(&named)?;
    let said = verdict(&scene, "named").await?["message"].as_str().unwrap_or_default().to_owned();
    ensure!(said.contains("cannot be the name of a pod"), "{said}");
    Ok(())
}
