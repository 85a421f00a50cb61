//! Installation in the ways that the walk-throughs show, on real nodes.

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::command::{finish, localkube, program, tool};
use e2e::walkthrough::set_image;
use e2e::{Game, Place, Scene, Suite, root, run, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(the_demo_plays_to_its_end_without_a_terminal);
    suite.alone(localkube_runs_operators_and_starts_them_again);
    suite.bare(Place::Real, by_helm_and_by_four_files_it_runs_and_survives_its_leader);
}

/// Waits until both operators are ready.
async fn until_two(scene: &Scene, name: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(scene.client(), "bcs-system");
    let ready = |deployment: Option<&Deployment>| deployment.and_then(|one| one.status.as_ref()?.ready_replicas) == Some(2);
    until(&deployments, name, "2/2 ready", ready).await.map(drop)
}

/// Runs the walk-through; in the middle of it the leading pod is deleted.
async fn play(scene: &Arc<Scene>, lease: &str) -> Result<()> {
    scene.apply_file("examples/tkex/rolling-update.yaml")?;
    let game = Game::named(scene, "test-gamedeployment");
    game.until_rest("Complete").await?;
    game.patch(json!({ "spec": { "updateStrategy": { "partition": 0 } } })).await?;
    set_image(scene, "python:latest")?;
    game.until("under way", |status| status["updatedReplicas"].as_i64() >= Some(1)).await?;
    let leases: Api<Lease> = Api::namespaced(scene.client(), "bcs-system");
    let leader = leases.get(lease).await?.spec.and_then(|spec| spec.holder_identity).context("no operator leads")?;
    run(scene.cluster().kubectl().args(["-n", "bcs-system", "delete", "pod", &leader, "--wait=false"]), "")?;
    let status = game.until_rest("Complete").await?;
    Game::expect_counts(&status, 8, 8, 8)?;
    let holder = until(&leases, lease, "another leader", |lease| {
        lease.and_then(|lease| lease.spec.as_ref()?.holder_identity.as_deref()).is_some_and(|holder| !holder.is_empty() && holder != leader)
    });
    holder.await?;
    scene.kubectl(&["delete", "gd/test-gamedeployment", "--cascade=foreground", "--wait"]).map(drop)
}

async fn by_helm_and_by_four_files_it_runs_and_survives_its_leader(scene: Arc<Scene>) -> Result<()> {
    scene.cluster().push_image("gameplane/operator:0.1.0", &localkube::operator_image()?)?;
    let kubectl = |words: &[&str]| run(scene.cluster().kubectl().args(words), "");
    let deploy = |file: &str| root().join("deploy").join(file).display().to_string();
    let files = ["01-resources.yaml", "02-namespace.yaml", "03-rbac.yaml", "04-operator-deployment.yaml"];
    for file in files {
        kubectl(&["create", "-f", &deploy(file)])?;
    }
    until_two(&scene, "gameplane").await?;
    play(&scene, "gameplane-operator").await?;
    for file in files.iter().rev() {
        kubectl(&["delete", "-f", &deploy(file), "--wait"])?;
    }
    // A namespace that enforces the restricted Pod Security Standard, as 02-namespace.yaml does too.
    kubectl(&["create", "namespace", "bcs-system"])?;
    kubectl(&["label", "namespace", "bcs-system", "pod-security.kubernetes.io/enforce=restricted"])?;
    let helm = tool("helm")?;
    let chart = root().join("chart").display().to_string();
    let mut install = Command::new(&helm);
    install.env("KUBECONFIG", scene.cluster().kubeconfig());
    run(install.args(["upgrade", "bcs-gamedeployment-operator", &chart, "-n", "bcs-system", "--install"]), "")?;
    until_two(&scene, "bcs-gamedeployment-operator-gameplane").await?;
    ensure!(
        kubectl(&["get", "crd", "gamedeployments.tkex.tencent.com", "-o", "name"])?.contains("gamedeployments"),
        "helm installed no CRD"
    );
    play(&scene, "gameplane-operator").await?;
    let mut remove = Command::new(&helm);
    remove.env("KUBECONFIG", scene.cluster().kubeconfig());
    run(remove.args(["uninstall", "bcs-gamedeployment-operator", "-n", "bcs-system", "--wait"]), "")?;
    kubectl(&["delete", "namespace", "bcs-system", "--wait"]).map(drop)
}

async fn the_demo_plays_to_its_end_without_a_terminal(suite: Arc<Suite>) -> Result<()> {
    let hook_server = program()?.with_file_name("hook-server");
    for (script, rows) in
        [("demo.sh", ["4 1 1 4 4", "4 2 2 4 4", "4 4 4 4 4"]), ("demo-rolling.sh", ["8 8 8 8 8", "8 5 5 8 8", "8 8 8 8 8"])]
    {
        let mut command = localkube(&suite)?;
        command.args(["run", "--fake-nodes", "3", "--operator", "--"]).arg(root().join("examples/tkex").join(script));
        command.env("HOOK_SERVER", &hook_server).env("PAUSE", "2").env("GRACE", "2");
        let ended = finish(command).await?;
        ensure!(ended.code == Some(0), "{script}: {:?}: {} {}", ended.code, ended.stdout, ended.stderr);
        let has = |numbers: &&str| {
            ended.stdout.lines().any(|line| line.split_whitespace().skip(1).take(5).collect::<Vec<_>>().join(" ") == **numbers)
        };
        ensure!(rows.iter().all(has), "{}", ended.stdout);
        ensure!(!ended.stdout.contains('\u{1b}'), "colours without a terminal");
    }
    Ok(())
}

async fn localkube_runs_operators_and_starts_them_again(suite: Arc<Suite>) -> Result<()> {
    let script = r#"
        first=$(cat "$LOCALKUBE_DIR/operator-1.pid"); [ -s "$LOCALKUBE_DIR/operator-2.pid" ] || exit 3
        kill -9 "$first"
        for _ in $(seq 300); do [ "$(cat "$LOCALKUBE_DIR/operator-1.pid")" != "$first" ] && break; sleep 0.1; done
        [ "$(cat "$LOCALKUBE_DIR/operator-1.pid")" != "$first" ] || exit 4
        kubectl get crd gamedeployments.tkex.tencent.com && kubectl -n bcs-system get serviceaccount gameplane || exit 5
        tr '\\0' ' ' < "/proc/$(cat "$LOCALKUBE_DIR/operator-2.pid")/cmdline" | grep -- --workers=3 || exit 6
    "#;
    let mut command = localkube(&suite)?;
    command.args(["run", "--fake-nodes", "1", "--operator=2", "--operator-args=--workers=3 --log-level=debug", "--", "sh", "-c", script]);
    let ended = finish(command).await?;
    ensure!(ended.code == Some(0), "{:?}: {} {}", ended.code, ended.stdout, ended.stderr);
    Ok(())
}
