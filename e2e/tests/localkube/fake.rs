//! Fake nodes: every scripted behaviour, and that pods behave as on a kubelet where it matters to a controller.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::pod::{condition, container, ip, is_ready, node_of, waits_for};
use e2e::{Place, Scene, Suite, until, until_gone, until_pod_ready};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use localkube::nodes::ready_status;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    let fake = Place::Fake;
    suite.sharing(fake, readiness_follows_the_gate_both_ways);
    suite.sharing(fake, a_new_image_restarts_only_its_container);
    suite.sharing(fake, a_slow_start_is_slow);
    suite.sharing(fake, readiness_can_come_late);
    suite.sharing(fake, a_failing_pull_is_mended_by_a_new_image);
    suite.sharing(fake, a_failing_pull_keeps_the_restart_count);
    suite.sharing(fake, a_crash_loop_is_mended_by_its_annotation);
    suite.sharing(fake, a_running_container_can_begin_to_crash);
    suite.sharing(fake, updates_do_not_put_off_what_is_due);
    suite.sharing(fake, never_ready_until_the_annotation_goes);
    suite.sharing(fake, slow_termination_ends_with_the_grace_period);
    suite.sharing(fake, a_silent_node_is_unknown_and_comes_back);
    suite.sharing(fake, a_deleted_node_takes_its_pods_along);
    suite.sharing(fake, a_claim_is_bound_where_its_pod_runs);
    suite.sharing(fake, a_service_account_has_only_its_own_rights);
    suite.sharing(fake, the_audit_log_counts_requests_exactly);
}

async fn annotate(scene: &Scene, pod: &str, name: &str, value: Value) -> Result<()> {
    scene.patch_pod(pod, json!({ "metadata": { "annotations": { name: value } } })).await
}

async fn set_gate(scene: &Scene, pod: &str, status: &str) -> Result<()> {
    let change = json!({ "status": { "conditions": [{ "type": "example/gate", "status": status }] } });
    scene.pods().patch_status(pod, &PatchParams::default(), &Patch::Strategic(change)).await?;
    Ok(())
}

async fn readiness_follows_the_gate_both_ways(scene: Arc<Scene>) -> Result<()> {
    scene.pod("gated", "game:1", &json!({ "spec": { "readinessGates": [{ "conditionType": "example/gate" }] } }))?;
    let pods = scene.pods();
    let running = until(&pods, "gated", "containers ready", |pod| {
        pod.and_then(|pod| container(pod, "game")).is_some_and(|container| container.ready)
    });
    let pod = running.await?.context("vanished")?;
    ensure!(!is_ready(&pod), "Ready although the gate is not set");
    set_gate(&scene, "gated", "True").await?;
    until_pod_ready(&pods, "gated").await?;
    set_gate(&scene, "gated", "False").await?;
    until(&pods, "gated", "not Ready", |pod| pod.is_some_and(|pod| !is_ready(pod))).await?;
    set_gate(&scene, "gated", "True").await?;
    until_pod_ready(&pods, "gated").await.map(drop)
}

async fn a_new_image_restarts_only_its_container(scene: Arc<Scene>) -> Result<()> {
    let two = json!([{ "name": "game", "image": "game:1" }, { "name": "log", "image": "log:1" }]);
    scene.pod("two", "game:1", &json!({ "spec": { "containers": two } }))?;
    let pods = scene.pods();
    let before = until_pod_ready(&pods, "two").await?;
    scene.set_image("two", "game", "game:2").await?;
    until(&pods, "two", "not ready while the container restarts", |pod| pod.is_some_and(|pod| !is_ready(pod))).await?;
    let after = until_pod_ready(&pods, "two").await?;
    let (game, log) = (container(&after, "game").context("game")?, container(&after, "log").context("log")?);
    ensure!(game.restart_count == 1 && game.image == "game:2" && game.image_id == "sha256:game:2", "{game:?}");
    ensure!(game.last_state.as_ref().is_some_and(|state| state.terminated.is_some()), "no last state: {game:?}");
    ensure!(Some(log) == container(&before, "log"), "the other container was touched: {log:?}");
    ensure!(before.uid() == after.uid(), "it is another pod");
    ensure!(ip(&before)? == ip(&after)?, "it has another address");
    Ok(())
}

fn seconds_between(from: Option<&Time>, to: Option<&Time>) -> Result<i64> {
    let (from, to) = (from.context("no first time")?, to.context("no second time")?);
    Ok((to.0 - from.0).total(jiff::Unit::Second)? as i64)
}

async fn a_slow_start_is_slow(scene: Arc<Scene>) -> Result<()> {
    scene.pod("slow", "game:1", &json!({ "metadata": { "annotations": { "localkube/start-after": "4s" } } }))?;
    let pod = until_pod_ready(&scene.pods(), "slow").await?;
    let status = pod.status.as_ref().context("no status")?;
    // Kubernetes' times have whole seconds: one may be lost to rounding.
    let waited = seconds_between(pod.metadata.creation_timestamp.as_ref(), status.start_time.as_ref())?;
    ensure!(waited >= 3, "started after {waited} s");
    Ok(())
}

async fn readiness_can_come_late(scene: Arc<Scene>) -> Result<()> {
    scene.pod("late", "game:1", &json!({ "metadata": { "annotations": { "localkube/ready-after": "4s" } } }))?;
    let pod = until_pod_ready(&scene.pods(), "late").await?;
    let status = pod.status.as_ref().context("no status")?;
    let ready = condition(&pod, "Ready").context("no condition")?;
    let waited = seconds_between(status.start_time.as_ref(), ready.last_transition_time.as_ref())?;
    ensure!(waited >= 3, "ready after {waited} s");
    Ok(())
}

async fn a_failing_pull_is_mended_by_a_new_image(scene: Arc<Scene>) -> Result<()> {
    scene.pod("pull", "game:9", &json!({ "metadata": { "annotations": { "localkube/pull-failure": "game:8,game:9" } } }))?;
    let pods = scene.pods();
    let failing = until(&pods, "pull", "ErrImagePull", |pod| pod.and_then(|pod| waits_for(pod, "game")) == Some("ErrImagePull"));
    let pod = failing.await?.context("vanished")?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    ensure!(phase == Some("Pending"), "phase {phase:?}");
    scene.set_image("pull", "game", "game:1").await?;
    let pod = until_pod_ready(&pods, "pull").await?;
    let game = container(&pod, "game").context("game")?;
    ensure!(game.restart_count == 0, "a container that never ran was not restarted: {game:?}");
    ensure!(pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running"), "not Running");
    Ok(())
}

async fn a_failing_pull_keeps_the_restart_count(scene: Arc<Scene>) -> Result<()> {
    scene.pod("pull", "game:1", &json!({ "metadata": { "annotations": { "localkube/pull-failure": "game:9" } } }))?;
    let pods = scene.pods();
    until_pod_ready(&pods, "pull").await?;
    scene.set_image("pull", "game", "game:9").await?;
    let failing = until(&pods, "pull", "ErrImagePull", |pod| pod.and_then(|pod| waits_for(pod, "game")) == Some("ErrImagePull"));
    let pod = failing.await?.context("vanished")?;
    let game = container(&pod, "game").context("game")?;
    ensure!(game.restart_count == 0 && !game.ready, "not started yet: {game:?}");
    ensure!(game.image == "game:1" && game.image_id == "sha256:game:1", "a kubelet reports the image that ran last: {game:?}");
    ensure!(pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running"), "a pod that ran is not Pending again");
    annotate(&scene, "pull", "localkube/pull-failure", Value::Null).await?;
    let pod = until_pod_ready(&pods, "pull").await?;
    let game = container(&pod, "game").context("game")?;
    ensure!(game.restart_count == 1 && game.image == "game:9", "{game:?}");
    Ok(())
}

async fn a_crash_loop_is_mended_by_its_annotation(scene: Arc<Scene>) -> Result<()> {
    scene.pod("crash", "game:1", &json!({ "metadata": { "annotations": { "localkube/crash-loop": "*" } } }))?;
    let pods = scene.pods();
    let crashing = until(&pods, "crash", "CrashLoopBackOff", |pod| pod.and_then(|pod| waits_for(pod, "game")) == Some("CrashLoopBackOff"));
    let pod = crashing.await?.context("vanished")?;
    ensure!(!is_ready(&pod), "a crashing pod is not ready");
    annotate(&scene, "crash", "localkube/crash-loop", Value::Null).await?;
    let pod = until_pod_ready(&pods, "crash").await?;
    ensure!(container(&pod, "game").context("game")?.restart_count >= 1, "a crash is a restart");
    Ok(())
}

async fn a_running_container_can_begin_to_crash(scene: Arc<Scene>) -> Result<()> {
    scene.pod("crash", "game:1", &json!({}))?;
    let pods = scene.pods();
    until_pod_ready(&pods, "crash").await?;
    annotate(&scene, "crash", "localkube/crash-loop", json!("game:1")).await?;
    let crashing = until(&pods, "crash", "CrashLoopBackOff", |pod| pod.and_then(|pod| waits_for(pod, "game")) == Some("CrashLoopBackOff"));
    let pod = crashing.await?.context("vanished")?;
    let game = container(&pod, "game").context("game")?;
    let ended = game.last_state.as_ref().and_then(|state| state.terminated.as_ref()).context("no last state")?;
    ensure!(ended.exit_code == 1 && game.restart_count == 1 && !is_ready(&pod), "{game:?}");
    Ok(())
}

async fn updates_do_not_put_off_what_is_due(scene: Arc<Scene>) -> Result<()> {
    scene.pod(
        "busy",
        "game:1",
        &json!({ "metadata": { "annotations": { "localkube/ready-after": "4s", "localkube/terminate-after": "4s" } } }),
    )?;
    let pods = scene.pods();
    // Updates at intervals shorter than the delay: a delay that started again with each update would never end.
    let updates = async {
        for count in 0_u32.. {
            if annotate(&scene, "busy", "example/count", json!(count.to_string())).await.is_err() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
        std::future::pending::<Result<()>>().await
    };
    let life = async {
        until_pod_ready(&pods, "busy").await?;
        pods.delete("busy", &DeleteParams::default().grace_period(60)).await?;
        until_gone(&pods, "busy").await
    };
    tokio::select! {
        result = life => result,
        result = updates => result,
    }
}

async fn never_ready_until_the_annotation_goes(scene: Arc<Scene>) -> Result<()> {
    scene.pod("never", "game:1", &json!({ "metadata": { "annotations": { "localkube/never-ready": "game:1" } } }))?;
    scene.pod("witness", "game:2", &json!({ "metadata": { "annotations": { "localkube/ready-after": "3s" } } }))?;
    let pods = scene.pods();
    until_pod_ready(&pods, "witness").await?;
    let pod = pods.get("never").await?;
    let game = container(&pod, "game").context("game")?;
    ensure!(game.state.as_ref().is_some_and(|state| state.running.is_some()) && !game.ready, "running and not ready: {game:?}");
    annotate(&scene, "never", "localkube/never-ready", Value::Null).await?;
    until_pod_ready(&pods, "never").await?;
    annotate(&scene, "never", "localkube/never-ready", json!("*")).await?;
    until(&pods, "never", "not ready again", |pod| pod.is_some_and(|pod| !is_ready(pod))).await.map(drop)
}

async fn slow_termination_ends_with_the_grace_period(scene: Arc<Scene>) -> Result<()> {
    let slow = json!({ "metadata": { "annotations": { "localkube/terminate-after": "1h" } } });
    let soon = json!({ "metadata": { "annotations": { "localkube/terminate-after": "2s" } } });
    let pods = scene.pods();
    for (name, with) in [("patient", &slow), ("impatient", &slow), ("soon", &soon)] {
        scene.pod(name, "game:1", with)?;
        until_pod_ready(&pods, name).await?;
    }
    pods.delete("patient", &DeleteParams::default().grace_period(3600)).await?;
    pods.delete("impatient", &DeleteParams::default().grace_period(3)).await?;
    pods.delete("soon", &DeleteParams::default().grace_period(3600)).await?;
    until_gone(&pods, "soon").await?;
    until_gone(&pods, "impatient").await?;
    let patient = pods.get("patient").await.context("it was gone before its grace period ended")?;
    ensure!(patient.metadata.deletion_timestamp.is_some(), "not being deleted");
    pods.delete("patient", &DeleteParams::default().grace_period(0)).await?;
    until_gone(&pods, "patient").await
}

/// A node of the test's own, which takes only pods that name it.
async fn own_node(scene: &Scene, name: &str) -> Result<Api<Node>> {
    scene.apply(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { "localkube/fake": "on", "kubernetes.io/hostname": name } },
        "spec": { "unschedulable": true },
    }))?;
    let nodes: Api<Node> = Api::all(scene.client());
    until(&nodes, name, "Ready", |node| node.and_then(ready_status) == Some("True")).await?;
    Ok(nodes)
}

async fn a_silent_node_is_unknown_and_comes_back(scene: Arc<Scene>) -> Result<()> {
    let nodes = own_node(&scene, "silent").await?;
    scene.pod("on-silent", "game:1", &json!({ "spec": { "nodeName": "silent" } }))?;
    let pods = scene.pods();
    until_pod_ready(&pods, "on-silent").await?;
    scene.kubectl(&["label", "node", "silent", "localkube/fake=silent", "--overwrite"])?;
    until(&nodes, "silent", "Unknown", |node| node.and_then(ready_status) == Some("Unknown")).await?;
    until(&pods, "on-silent", "not Ready", |pod| pod.is_some_and(|pod| !is_ready(pod))).await?;
    scene.kubectl(&["label", "node", "silent", "localkube/fake=on", "--overwrite"])?;
    until(&nodes, "silent", "Ready again", |node| node.and_then(ready_status) == Some("True")).await?;
    until_pod_ready(&pods, "on-silent").await?;
    nodes.delete("silent", &DeleteParams::default()).await?;
    Ok(())
}

async fn a_deleted_node_takes_its_pods_along(scene: Arc<Scene>) -> Result<()> {
    let nodes = own_node(&scene, "doomed").await?;
    scene.pod("on-doomed", "game:1", &json!({ "spec": { "nodeName": "doomed" } }))?;
    let pods = scene.pods();
    until_pod_ready(&pods, "on-doomed").await?;
    nodes.delete("doomed", &DeleteParams::default()).await?;
    until_gone(&nodes, "doomed").await?;
    until_gone(&pods, "on-doomed").await
}

async fn a_claim_is_bound_where_its_pod_runs(scene: Arc<Scene>) -> Result<()> {
    scene.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }))?;
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    scene.pod("user", "game:1", &json!({ "spec": { "volumes": volumes } }))?;
    let pod = until_pod_ready(&scene.pods(), "user").await?;
    let claims: Api<PersistentVolumeClaim> = scene.api();
    let claim = claims.get("data").await?;
    let name = claim.spec.and_then(|spec| spec.volume_name).context("not bound")?;
    let volume = scene.kubectl(&["get", "pv", &name, "-o", "json"])?;
    let node = node_of(&pod)?;
    ensure!(volume.contains(&format!("\"{node}\"")), "the volume is not on {node}: {volume}");
    Ok(())
}

async fn a_service_account_has_only_its_own_rights(scene: Arc<Scene>) -> Result<()> {
    let config = scene.cluster().service_account_kubeconfig(scene.namespace(), "default").await?;
    let as_account = |words: &[&str]| {
        let mut command = scene.kubectl_command();
        e2e::run(command.env("KUBECONFIG", &config).args(words), "")
    };
    let user = as_account(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])?;
    ensure!(user == format!("system:serviceaccount:{}:default", scene.namespace()), "{user}");
    let refused = as_account(&["get", "pods"]).err().context("it may list pods without a role")?;
    ensure!(refused.to_string().contains("Forbidden"), "{refused:#}");
    scene.kubectl(&["create", "role", "list", "--verb=list", "--resource=pods"])?;
    scene.kubectl(&["create", "rolebinding", "list", "--role=list", &format!("--serviceaccount={}:default", scene.namespace())])?;
    // The API server learns of the binding by a watch of its own.
    e2e::eventually("the binding has no effect", || as_account(&["get", "pods"]).is_ok()).await
}

async fn the_audit_log_counts_requests_exactly(scene: Arc<Scene>) -> Result<()> {
    let user = format!("system:serviceaccount:{}:default", scene.namespace());
    let config = scene.cluster().service_account_kubeconfig(scene.namespace(), "default").await?;
    for _ in 0..3 {
        let mut command = scene.kubectl_command();
        // Forbidden requests count as well.
        let _ = e2e::run(command.env("KUBECONFIG", &config).args(["get", "--raw", "/api/v1/namespaces/default/pods"]), "");
    }
    let is = |entry: &Value, pointer: &str, wanted: &str| entry.pointer(pointer).and_then(Value::as_str) == Some(wanted);
    let count = || {
        let log = std::fs::read_to_string(scene.cluster().audit_log()).unwrap_or_default();
        let entries = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        entries.filter(|entry| is(entry, "/user/username", &user) && is(entry, "/verb", "list")).count()
    };
    // An entry is written after its response.
    e2e::eventually("requests are missing in the log", || count() >= 3).await?;
    ensure!(count() == 3, "{} requests in the log", count());
    Ok(())
}
