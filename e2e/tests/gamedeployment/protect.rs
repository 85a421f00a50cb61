//! Protected pods, which cannot be deleted before their hook approves, on fake nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::serve_sessions;
use e2e::{Game, PROTECTED_BY, Place, Scene, Suite, eventually, run, says, until, until_gone};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, a_pod_is_deleted_when_its_hook_approves_and_not_before);
    suite.sharing(fake, a_deleted_workload_stays_until_its_last_pod_has_left);
    suite.sharing(fake, protection_ends_with_the_field_or_with_the_hook);
    suite.sharing(fake, users_who_may_not_change_the_workload_cannot_end_its_protection);
    suite.sharing(fake, pods_may_outlive_their_workload);
    suite.sharing(fake, a_foreign_pdb_is_reported);
    suite.alone(a_namespace_goes_with_its_protected_pods);
    suite.alone(nothing_is_stuck_without_the_operator);
}

const FINALIZER: &str = "gameplane.dev/protected-pods";

/// A spec whose pods are protected.
fn protected(replicas: usize) -> Value {
    json!({ "replicas": replicas, "preDeleteUpdateStrategy": { "protect": true, "hook": { "templateName": "drained" } } })
}

async fn pdbs(scene: &Scene) -> Result<Vec<PodDisruptionBudget>> {
    Ok(scene.api::<PodDisruptionBudget>().list(&ListParams::default()).await?.items)
}

fn evict(scene: &Scene, pod: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", scene.namespace());
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": scene.namespace() } });
    match run(scene.kubectl_command().args(["create", "--raw", &path, "-f", "-"]), &eviction.to_string()) {
        Ok(said) => anyhow::bail!("{pod} was evicted: {said}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

async fn a_pod_is_deleted_when_its_hook_approves_and_not_before(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(3))?;
    let pods = game.until_protected().await?;
    let name = pods.first().context("no pod")?.name_any();
    let said = scene.refusal(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by GameDeployment door") && said.contains("podsToDelete"), "{said}");
    let said = scene.refusal(&["delete", "pods", "--all", "--wait=false"])?;
    ensure!(said.matches("it is protected by").count() == 3, "{said}");
    let said = scene.refusal(&["delete", "pod", &name, "--force", "--grace-period=0", "--wait=false"])?;
    ensure!(said.contains("it is protected by"), "{said}");
    let said = evict(&scene, &name)?;
    ensure!(said.contains("disruption budget"), "{said}");
    ensure!(sessions.asked().is_empty(), "the hook was asked although no pod was to be deleted");
    // As the refusal advises.
    game.patch(json!({ "spec": { "scaleStrategy": { "podsToDelete": [name] } } })).await?;
    ensure!(game.until_waiting("preDeleteHookCondition", 1).await? == BTreeSet::from([name.clone()]), "another pod waits");
    game.until("the waiting pod is named", |status| says(status, "Protected", &name)).await?;
    let said = scene.refusal(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by"), "a pod that waits is not protected: {said}");
    // Surplus pods cannot be evicted either.
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    game.until_waiting("preDeleteHookCondition", 2).await?;
    let is_counted = || {
        let path = "jsonpath={.items[0].status.observedGeneration} {.items[0].status.currentHealthy}";
        scene.kubectl(&["get", "poddisruptionbudgets", "-o", path]).is_ok_and(|said| said.trim().ends_with(" 3"))
    };
    eventually("the PodDisruptionBudget does not count three pods", is_counted).await?;
    for pod in &pods {
        let said = evict(&scene, &pod.name_any())?;
        ensure!(said.contains("disruption budget"), "{said}");
    }
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=3"])?;
    game.until_waiting("preDeleteHookCondition", 1).await?;
    sessions.end(&name);
    until_gone(&scene.pods(), &name).await?;
    let after = game.until_protected().await?;
    ensure!(after.len() == 3 && after.iter().all(|pod| pod.name_any() != name), "it was not replaced");
    Ok(())
}

async fn a_deleted_workload_stays_until_its_last_pod_has_left(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(3))?;
    let pods = game.until_protected().await?;
    let said = scene.refusal(&["delete", "gamedeployment", "door", "--cascade=foreground", "--wait=false"])?;
    ensure!(said.contains("--cascade=background"), "{said}");
    scene.kubectl(&["delete", "gamedeployment", "door", "--wait=false"])?;
    let message = game.until_condition("Progressing", "False", "Deleting").await?;
    ensure!(message.contains("3 pods wait for spec.preDeleteUpdateStrategy.hook"), "{message}");
    game.until_waiting("preDeleteHookCondition", 3).await?;
    eventually("the hook is not asked for all pods", || sessions.asked().len() == 3).await?;
    // A deleted workload is not updated any more, and each pod waits for its own approval.
    game.set_image("game:2").await?;
    for (gone, pod) in pods.iter().enumerate() {
        ensure!(game.pods().await?.len() == 3 - gone, "a pod was deleted without an approval");
        sessions.end(&pod.name_any());
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    until_gone(&game.api(), "door").await?;
    ensure!(game.pods().await?.is_empty(), "pods were created for a workload that is being deleted");
    let left = || scene.kubectl(&["get", "hookruns,poddisruptionbudgets", "-o", "name"]).is_ok_and(|all| all.trim().is_empty());
    eventually("HookRuns or the PodDisruptionBudget are left", left).await
}

/// Waits until the protection has ended: no finalizer, label or PodDisruptionBudget is left.
async fn until_released(scene: &Scene, game: &Game) -> Result<()> {
    let free = |object: &kube::api::DynamicObject| object.finalizers().iter().all(|finalizer| finalizer != FINALIZER);
    until(&game.api(), "door", "no finalizer", |object| object.is_some_and(free)).await?;
    ensure!(game.pods().await?.iter().all(|pod| !pod.labels().contains_key(PROTECTED_BY)), "a pod is still protected");
    ensure!(pdbs(scene).await?.is_empty(), "the PodDisruptionBudget is left");
    Ok(())
}

async fn protection_ends_with_the_field_or_with_the_hook(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(2))?;
    game.until_protected().await?;
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "protect": false } } })).await?;
    until_released(&scene, &game).await?;
    let name = game.pods().await?.first().context("no pod")?.name_any();
    scene.kubectl(&["delete", "pod", &name])?;
    game.until_rest("Complete").await?;
    // Existing pods become protected, too.
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "protect": true } } })).await?;
    let pods = game.until_protected().await?;
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "hook": null } } })).await?;
    let message = game.until_condition("Protected", "False", "NoHook").await?;
    ensure!(message.contains("there is no spec.preDeleteUpdateStrategy.hook"), "{message}");
    until_released(&scene, &game).await?;
    ensure!(game.pods().await?.len() == pods.len(), "a pod was deleted");
    // The way out for a workload whose hook never approves.
    game.patch(json!({ "spec": protected(2) })).await?;
    game.until_protected().await?;
    scene.kubectl(&["delete", "gamedeployment", "door", "--wait=false"])?;
    game.until_waiting("preDeleteHookCondition", 2).await?;
    ensure!(sessions.asked().len() <= 2 && game.pods().await?.len() == 2, "a pod was deleted without an approval");
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "protect": false } } })).await?;
    until_gone(&game.api(), "door").await?;
    for pod in pods {
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    Ok(())
}

async fn users_who_may_not_change_the_workload_cannot_end_its_protection(scene: Arc<Scene>) -> Result<()> {
    let (_server, _) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(1))?;
    let pod = game.until_protected().await?.pop().context("no pod")?;
    let name = pod.name_any();
    scene.kubectl(&[
        "create",
        "role",
        "pods",
        "--verb=get,list,patch,update,delete",
        "--resource=pods,pods/status,poddisruptionbudgets.policy",
    ])?;
    scene.kubectl(&["create", "rolebinding", "pods", "--role=pods", "--user=player-support"])?;
    scene.until_allowed(&["delete", "pods", "--as=player-support"]).await?;
    let try_it = |words: &[&str]| scene.refusal(&[words, &["--as=player-support"]].concat());
    for subresource in ["", "status"] {
        for patch in
            [json!({ "metadata": { "labels": { PROTECTED_BY: null } } }), json!({ "metadata": { "labels": { PROTECTED_BY: "nobody" } } })]
        {
            let patch = patch.to_string();
            let mut words = vec!["patch", "pod", &name, "--type=merge", "-p", &patch];
            if !subresource.is_empty() {
                words.push("--subresource=status");
            }
            let said = try_it(&words)?;
            ensure!(said.contains("it is protected by GameDeployment door: the label"), "{said}");
        }
    }
    let owner = |field: &str, value: Value| -> Result<String> {
        let mut owner = json!(pod.owner_references().first().context("no owner")?);
        owner[field] = value;
        Ok(json!({ "metadata": { "ownerReferences": [owner] } }).to_string())
    };
    let other = [("controller", json!(false)), ("name", json!("nobody")), ("kind", json!("ReplicaSet")), ("uid", json!("nobody"))];
    let mut patches = vec![r#"{"metadata":{"ownerReferences":null}}"#.to_owned()];
    for (field, value) in other {
        patches.push(owner(field, value)?);
    }
    for patch in &patches {
        let said = try_it(&["patch", "pod", &name, "--type=merge", "-p", patch])?;
        ensure!(said.contains("it is protected by GameDeployment door: the label"), "{patch}: {said}");
    }
    let pdb = pdbs(&scene).await?.pop().context("no PodDisruptionBudget")?.name_any();
    let said = try_it(&["delete", "poddisruptionbudget", &pdb])?;
    ensure!(said.contains("it protects the pods of GameDeployment door"), "{said}");
    let said = try_it(&["patch", "poddisruptionbudget", &pdb, "--type=merge", "-p", r#"{"spec":{"minAvailable":0}}"#])?;
    ensure!(said.contains("it is protected by GameDeployment door: the label"), "{said}");
    // A pod that a changed label takes out of the selector stays protected.
    scene.kubectl(&["label", "pod", &name, "app=elsewhere", "--overwrite", "--as=player-support"])?;
    let said = try_it(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by GameDeployment door"), "{said}");
    scene.kubectl(&["label", "pod", &name, "app=door", "--overwrite", "--as=player-support"])?;
    let said = try_it(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by GameDeployment door"), "{said}");
    let off = r#"{"spec":{"preDeleteUpdateStrategy":{"protect":false}}}"#;
    let said = try_it(&["patch", "gamedeployment", "door", "--type=merge", "-p", off])?;
    ensure!(said.contains("forbidden") && said.contains("gamedeployments"), "{said}");
    // Other labels can still be changed.
    scene.kubectl(&["label", "pod", &name, "shard=7", "--as=player-support"])?;
    ensure!(scene.pods().get(&name).await?.uid() == pod.uid(), "another pod");
    Ok(())
}

/// On a cluster of its own: a namespace is deleted only when every API of the cluster answers, and other tests register one.
async fn a_namespace_goes_with_its_protected_pods(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = cluster.start_operators(&localkube::OperatorOptions::default()).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "going").await?);
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let namespaces: Api<Namespace> = Api::all(scene.client());
    let game = Game::apply(&scene, "door", &protected(2))?;
    game.until_protected().await?;
    // Also while a hook is asked.
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    game.until_waiting("preDeleteHookCondition", 1).await?;
    scene.kubectl(&["delete", "namespace", scene.namespace(), "--wait=false"])?;
    until_gone(&namespaces, scene.namespace()).await?;
    ensure!(!sessions.asked().is_empty(), "the hook was never asked");
    Ok(())
}

async fn pods_may_outlive_their_workload(scene: Arc<Scene>) -> Result<()> {
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(2))?;
    let pods = game.until_protected().await?;
    scene.kubectl(&["delete", "gamedeployment", "door", "--cascade=orphan"])?;
    until_gone(&game.api(), "door").await?;
    ensure!(sessions.asked().is_empty(), "the hook was asked for pods that stay");
    for pod in &pods {
        let after = scene.pods().get(&pod.name_any()).await?;
        ensure!(after.uid() == pod.uid() && after.metadata.deletion_timestamp.is_none(), "{} was deleted", pod.name_any());
        scene.kubectl(&["delete", "pod", &pod.name_any()])?;
    }
    Ok(())
}

async fn a_foreign_pdb_is_reported(scene: Arc<Scene>) -> Result<()> {
    let (_server, _) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(1))?;
    let pod = game.until_protected().await?.pop().context("no pod")?;
    let is_reported = |status: &Value| says(status, "Progressing", "PodDisruptionBudget mine");
    scene.kubectl(&["create", "poddisruptionbudget", "mine", "--selector=app=door", "--max-unavailable=1"])?;
    game.until("it is reported", is_reported).await?;
    let said = evict(&scene, &pod.name_any())?;
    ensure!(said.contains("more than one PodDisruptionBudget"), "{said}");
    scene.kubectl(&["delete", "poddisruptionbudget", "mine"])?;
    game.until("it is no longer reported", |status| !is_reported(status)).await?;
    // The operator's own PodDisruptionBudget is restored when it is deleted or set to allow evictions.
    let ours = pdbs(&scene).await?.pop().context("no PodDisruptionBudget")?;
    let collector = "--as=system:serviceaccount:kube-system:generic-garbage-collector";
    scene.kubectl(&["delete", "poddisruptionbudget", &ours.name_any(), collector])?;
    let api = scene.api::<PodDisruptionBudget>();
    let is_back = |pdb: Option<&PodDisruptionBudget>| pdb.is_some_and(|pdb| pdb.uid() != ours.uid());
    let again = until(&api, &ours.name_any(), "created again", is_back).await?.context("no PodDisruptionBudget")?;
    let open = r#"{"spec":{"minAvailable":0}}"#;
    scene.kubectl(&["patch", "poddisruptionbudget", &ours.name_any(), "--type=merge", "-p", open, collector])?;
    until(&api, &ours.name_any(), "restored", |pdb| pdb.is_some_and(|pdb| pdb.uid() != again.uid())).await?;
    Ok(())
}

/// The operator is gone and its policies are deleted while pods are protected: the way out in the guide works.
async fn nothing_is_stuck_without_the_operator(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let operators = cluster.start_operators(&localkube::OperatorOptions::default()).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "uninstalled").await?);
    let (_server, _) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(2))?;
    let pods = game.until_protected().await?;
    operators.stop().await;
    // Without the operator no hook is asked, so the pods stay protected.
    let name = pods.first().context("no pod")?.name_any();
    let said = scene.refusal(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by"), "{said}");
    for kind in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        scene.kubectl(&["delete", kind, "gameplane-protected-pods", "gameplane-protecting-workloads"])?;
    }
    eventually("a pod cannot be deleted", || scene.kubectl(&["delete", "pod", &name]).is_ok()).await?;
    // As the guide says.
    scene.kubectl(&["delete", "poddisruptionbudgets", "--selector", PROTECTED_BY])?;
    let other = pods.last().context("no pod")?.name_any();
    ensure!(evict(&scene, &other).is_err_and(|error| error.to_string().contains("was evicted")), "evictions are still refused");
    scene.kubectl(&["delete", "gamedeployment", "door", "--wait=false"])?;
    let object = game.api().get("door").await?;
    ensure!(object.finalizers().iter().any(|finalizer| finalizer == FINALIZER), "it has no finalizer");
    scene.kubectl(&["patch", "gamedeployment", "door", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    until_gone(&game.api(), "door").await?;
    for pod in &pods {
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    Ok(())
}
