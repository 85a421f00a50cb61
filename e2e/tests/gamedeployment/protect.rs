//! Pods that nobody deletes before their hook agrees, on fake nodes.

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
    suite.sharing(fake, a_pod_goes_when_its_hook_agrees_and_not_before);
    suite.sharing(fake, a_deleted_workload_stays_until_its_last_pod_has_left);
    suite.sharing(fake, protection_ends_with_the_field_or_with_the_hook);
    suite.sharing(fake, who_may_not_change_the_workload_cannot_end_it);
    suite.sharing(fake, pods_may_outlive_their_workload);
    suite.sharing(fake, a_budget_of_somebody_else_is_told);
    suite.alone(a_namespace_goes_with_its_protected_pods);
    suite.alone(nothing_is_stuck_without_the_operator);
}

const FINALIZER: &str = "gameplane.dev/protected-pods";

/// A spec whose pods are protected.
fn protected(replicas: usize) -> Value {
    json!({ "replicas": replicas, "preDeleteUpdateStrategy": { "protect": true, "hook": { "templateName": "drained" } } })
}

async fn budgets(scene: &Scene) -> Result<Vec<PodDisruptionBudget>> {
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

async fn a_pod_goes_when_its_hook_agrees_and_not_before(scene: Arc<Scene>) -> Result<()> {
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
    ensure!(sessions.asked().is_empty(), "nobody wanted it to go, so nobody is asked");
    // As the refusal says.
    game.patch(json!({ "spec": { "scaleStrategy": { "podsToDelete": [name] } } })).await?;
    ensure!(game.until_waiting("preDeleteHookCondition", 1).await? == BTreeSet::from([name.clone()]), "another pod waits");
    game.until("the waiting pod is named", |status| says(status, "Protected", &name)).await?;
    let said = scene.refusal(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by"), "a pod that waits is not protected: {said}");
    // More pods than are wanted are no reason to evict one.
    scene.kubectl(&["scale", "gamedeployment", "door", "--replicas=1"])?;
    game.until_waiting("preDeleteHookCondition", 2).await?;
    let is_counted = || {
        let path = "jsonpath={.items[0].status.observedGeneration} {.items[0].status.currentHealthy}";
        scene.kubectl(&["get", "poddisruptionbudgets", "-o", path]).is_ok_and(|said| said.trim().ends_with(" 3"))
    };
    eventually("the budget counts three pods", is_counted).await?;
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
    let told = game.until_condition("Progressing", "False", "Deleting").await?;
    ensure!(told.contains("3 pods wait for spec.preDeleteUpdateStrategy.hook"), "{told}");
    game.until_waiting("preDeleteHookCondition", 3).await?;
    eventually("everybody is asked", || sessions.asked().len() == 3).await?;
    // Nothing is changed any more, and nobody goes with another.
    game.set_image("game:2").await?;
    for (gone, pod) in pods.iter().enumerate() {
        ensure!(game.pods().await?.len() == 3 - gone, "somebody went unasked");
        sessions.end(&pod.name_any());
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    until_gone(&game.api(), "door").await?;
    ensure!(game.pods().await?.is_empty(), "pods were made for a workload that goes");
    let left = || scene.kubectl(&["get", "hookruns,poddisruptionbudgets", "-o", "name"]).is_ok_and(|all| all.trim().is_empty());
    eventually("HookRuns and the budget go with their owner", left).await
}

/// Waits until nothing of the protection is left.
async fn until_released(scene: &Scene, game: &Game) -> Result<()> {
    let free = |object: &kube::api::DynamicObject| object.finalizers().iter().all(|finalizer| finalizer != FINALIZER);
    until(&game.api(), "door", "no finalizer", |object| object.is_some_and(free)).await?;
    ensure!(game.pods().await?.iter().all(|pod| !pod.labels().contains_key(PROTECTED_BY)), "a pod is still protected");
    ensure!(budgets(scene).await?.is_empty(), "the budget is left");
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
    // Pods that are there already come under it, too.
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "protect": true } } })).await?;
    let pods = game.until_protected().await?;
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "hook": null } } })).await?;
    let told = game.until_condition("Protected", "False", "NoHook").await?;
    ensure!(told.contains("there is no spec.preDeleteUpdateStrategy.hook"), "{told}");
    until_released(&scene, &game).await?;
    ensure!(game.pods().await?.len() == pods.len(), "a pod went");
    // A way out for a workload whose hook will never agree.
    game.patch(json!({ "spec": protected(2) })).await?;
    game.until_protected().await?;
    scene.kubectl(&["delete", "gamedeployment", "door", "--wait=false"])?;
    game.until_waiting("preDeleteHookCondition", 2).await?;
    ensure!(sessions.asked().len() <= 2 && game.pods().await?.len() == 2, "somebody went unasked");
    game.patch(json!({ "spec": { "preDeleteUpdateStrategy": { "protect": false } } })).await?;
    until_gone(&game.api(), "door").await?;
    for pod in pods {
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    Ok(())
}

async fn who_may_not_change_the_workload_cannot_end_it(scene: Arc<Scene>) -> Result<()> {
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
    let budget = budgets(&scene).await?.pop().context("no budget")?.name_any();
    let said = try_it(&["delete", "poddisruptionbudget", &budget])?;
    ensure!(said.contains("it protects the pods of GameDeployment door"), "{said}");
    let said = try_it(&["patch", "poddisruptionbudget", &budget, "--type=merge", "-p", r#"{"spec":{"minAvailable":0}}"#])?;
    ensure!(said.contains("it is protected by GameDeployment door: the label"), "{said}");
    // Another label takes it out of the selector, and not out of its protection.
    scene.kubectl(&["label", "pod", &name, "app=elsewhere", "--overwrite", "--as=player-support"])?;
    let said = try_it(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by GameDeployment door"), "{said}");
    scene.kubectl(&["label", "pod", &name, "app=door", "--overwrite", "--as=player-support"])?;
    let said = try_it(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by GameDeployment door"), "{said}");
    let off = r#"{"spec":{"preDeleteUpdateStrategy":{"protect":false}}}"#;
    let said = try_it(&["patch", "gamedeployment", "door", "--type=merge", "-p", off])?;
    ensure!(said.contains("forbidden") && said.contains("gamedeployments"), "{said}");
    // What does not concern it stays as free as it was.
    scene.kubectl(&["label", "pod", &name, "shard=7", "--as=player-support"])?;
    ensure!(scene.pods().get(&name).await?.uid() == pod.uid(), "another pod");
    Ok(())
}

/// On a cluster of its own: a namespace goes only when every API of the cluster answers, those of other tests too.
async fn a_namespace_goes_with_its_protected_pods(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let _operators = cluster.start_operators(&localkube::OperatorOptions::default()).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "going").await?);
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let namespaces: Api<Namespace> = Api::all(scene.client());
    let game = Game::apply(&scene, "door", &protected(2))?;
    game.until_protected().await?;
    // In the middle of a question, too.
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
    ensure!(sessions.asked().is_empty(), "pods that stay were asked to go");
    for pod in &pods {
        let after = scene.pods().get(&pod.name_any()).await?;
        ensure!(after.uid() == pod.uid() && after.metadata.deletion_timestamp.is_none(), "{} went", pod.name_any());
        scene.kubectl(&["delete", "pod", &pod.name_any()])?;
    }
    Ok(())
}

async fn a_budget_of_somebody_else_is_told(scene: Arc<Scene>) -> Result<()> {
    let (_server, _) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(1))?;
    let pod = game.until_protected().await?.pop().context("no pod")?;
    let told = |status: &Value| says(status, "Progressing", "PodDisruptionBudget mine");
    scene.kubectl(&["create", "poddisruptionbudget", "mine", "--selector=app=door", "--max-unavailable=1"])?;
    game.until("it is told", told).await?;
    let said = evict(&scene, &pod.name_any())?;
    ensure!(said.contains("more than one PodDisruptionBudget"), "{said}");
    scene.kubectl(&["delete", "poddisruptionbudget", "mine"])?;
    game.until("it is told no more", |status| !told(status)).await?;
    // Ours comes back, whoever deletes or opens it.
    let ours = budgets(&scene).await?.pop().context("no budget")?;
    let mighty = "--as=system:serviceaccount:kube-system:generic-garbage-collector";
    scene.kubectl(&["delete", "poddisruptionbudget", &ours.name_any(), mighty])?;
    let api = scene.api::<PodDisruptionBudget>();
    let is_back = |budget: Option<&PodDisruptionBudget>| budget.is_some_and(|budget| budget.uid() != ours.uid());
    let again = until(&api, &ours.name_any(), "made anew", is_back).await?.context("no budget")?;
    let open = r#"{"spec":{"minAvailable":0}}"#;
    scene.kubectl(&["patch", "poddisruptionbudget", &ours.name_any(), "--type=merge", "-p", open, mighty])?;
    until(&api, &ours.name_any(), "closed again", |budget| budget.is_some_and(|budget| budget.uid() != again.uid())).await?;
    Ok(())
}

/// The operator and its policies are gone while pods are protected: the way out of the guide works.
async fn nothing_is_stuck_without_the_operator(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let operators = cluster.start_operators(&localkube::OperatorOptions::default()).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "uninstalled").await?);
    let (_server, _) = serve_sessions(&scene, true).await?;
    let game = Game::apply(&scene, "door", &protected(2))?;
    let pods = game.until_protected().await?;
    operators.stop().await;
    // Without the operator nobody agrees, so nobody goes.
    let name = pods.first().context("no pod")?.name_any();
    let said = scene.refusal(&["delete", "pod", &name, "--wait=false"])?;
    ensure!(said.contains("it is protected by"), "{said}");
    for kind in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        scene.kubectl(&["delete", kind, "gameplane-protected-pods", "gameplane-protecting-workloads"])?;
    }
    eventually("pods can be deleted", || scene.kubectl(&["delete", "pod", &name]).is_ok()).await?;
    // As the guide says.
    scene.kubectl(&["delete", "poddisruptionbudgets", "--selector", PROTECTED_BY])?;
    let other = pods.last().context("no pod")?.name_any();
    ensure!(evict(&scene, &other).is_err_and(|error| error.to_string().contains("was evicted")), "evictions are still refused");
    scene.kubectl(&["delete", "gamedeployment", "door", "--wait=false"])?;
    let object = game.api().get("door").await?;
    ensure!(object.finalizers().iter().any(|finalizer| finalizer == FINALIZER), "nothing holds it");
    scene.kubectl(&["patch", "gamedeployment", "door", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    until_gone(&game.api(), "door").await?;
    for pod in &pods {
        until_gone(&scene.pods(), &pod.name_any()).await?;
    }
    Ok(())
}
