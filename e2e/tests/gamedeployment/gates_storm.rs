//! Hooks while the operator is killed again and again.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::{Sessions, serve_sessions, sessions_hook};
use e2e::operator::{Killer, single};
use e2e::{Game, Scene, Suite, until_gone};
use kube::ResourceExt;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(kill_9_changes_no_pod_without_approval);
}

/// Scaling and updates while the operator is killed again and again: according to the API server's audit log, no pod was
/// deleted or updated before its hook had approved.
async fn kill_9_changes_no_pod_without_approval(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let options = localkube::OperatorOptions { longest_pause: std::time::Duration::from_millis(300), ..single() };
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "gates-storm").await?);
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let killer = Killer::start(&cluster);
    let mut round = 0;
    while round < 2 || killer.kills() < 30 {
        round += 1;
        lifecycle(&scene, &sessions, round).await.with_context(|| format!("round {round}"))?;
    }
    drop(killer);
    let log = std::fs::read_to_string(cluster.audit_log())?;
    let checked = check_approvals(&log, scene.namespace())?;
    ensure!(checked >= 20, "only {checked} deletions and updates were seen");
    Ok(())
}

/// A GameDeployment that is scaled in and out, updated and deleted; every session ends sooner or later.
async fn lifecycle(scene: &Arc<Scene>, sessions: &Sessions, round: usize) -> Result<()> {
    let name = format!("door-{round}");
    let kind = if round.is_multiple_of(2) { "RollingUpdate" } else { "InplaceUpdate" };
    let strategy = json!({ "type": kind, "maxUnavailable": 2, "inPlaceUpdateStrategy": { "gracePeriodSeconds": 1 } });
    let before = json!({ "protect": true, "hook": { "templateName": "drained" } });
    let spec = json!({ "replicas": 6, "updateStrategy": strategy, "preDeleteUpdateStrategy": before, "preInplaceUpdateStrategy": sessions_hook() });
    let game = Game::apply(scene, &name, &spec)?;
    game.until_rest("Complete").await?;
    let scale = |replicas: usize| scene.kubectl(&["scale", "gamedeployment", &name, &format!("--replicas={replicas}")]);
    // A scale-in that is taken back while its hooks are asked.
    scale(3)?;
    game.until_waiting("preDeleteHookCondition", 3).await?;
    scale(6)?;
    game.until_rest("Complete").await?;
    scale(4)?;
    for pod in game.until_waiting("preDeleteHookCondition", 2).await? {
        sessions.end(&pod);
    }
    game.until("four pods", |status| status["replicas"] == 4).await?;
    game.set_image("game:2").await?;
    for pod in game.pods().await? {
        sessions.end(&pod.name_any());
    }
    game.until_rest("Complete").await?;
    ensure!(game.images().await? == BTreeMap::from([("game:2".to_owned(), 4)]), "{:?}", game.images().await?);
    // The pods are protected: the object waits until all of them are gone.
    scene.kubectl(&["delete", "gamedeployment", &name, "--wait=false"])?;
    for pod in game.pods().await? {
        sessions.end(&pod.name_any());
    }
    until_gone(&game.api(), &name).await
}

/// A request of the operator, from the API server's audit log.
struct Request<'a> {
    entry: &'a Value,
    started: jiff::Timestamp,
    ended: jiff::Timestamp,
}

impl Request<'_> {
    fn is(&self, verb: &str, resource: &str, subresource: Option<&str>) -> bool {
        let about = &self.entry["objectRef"];
        self.entry["verb"] == verb && about["resource"] == resource && about["subresource"].as_str() == subresource
    }

    fn name(&self) -> &str {
        self.entry["objectRef"]["name"].as_str().unwrap_or_default()
    }

    fn body(&self) -> &Value {
        &self.entry["requestObject"]
    }
}

/// An approval by a hook: for an update to `target`, or for a deletion if that is none; since when, and until when if it
/// was withdrawn.
struct Approval {
    pod: Option<String>,
    target: Option<String>,
    since: jiff::Timestamp,
    until: Option<jiff::Timestamp>,
}

/// Checks that every deletion of a pod and every start of an update was approved before, and returns how many there were.
fn check_approvals(log: &str, namespace: &str) -> Result<usize> {
    let entries: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ours = |entry: &&Value| {
        entry["user"]["username"] == "system:serviceaccount:bcs-system:gameplane" && entry["objectRef"]["namespace"] == namespace
    };
    let time = |entry: &Value, field: &str| entry[field].as_str().and_then(|text| text.parse().ok());
    let request = |entry| Some(Request { entry, started: time(entry, "requestReceivedTimestamp")?, ended: time(entry, "stageTimestamp")? });
    let requests: Vec<Request> = entries.iter().filter(ours).filter_map(request).collect();
    let mut approvals = Vec::new();
    let is_verdict = |write: &&Request| write.is("patch", "hookruns", Some("status")) && write.body()["status"]["phase"] == "Successful";
    for verdict in requests.iter().filter(is_verdict) {
        let runs =
            requests.iter().filter(|write| write.is("create", "hookruns", None) && write.body()["metadata"]["name"] == verdict.name());
        let Some(run) = runs.filter(|run| run.started < verdict.ended).max_by_key(|run| run.started) else { continue };
        let label = |key: &str| run.body()["metadata"]["labels"][key].as_str().map(str::to_owned);
        let withdrawn = requests
            .iter()
            .filter(|write| write.is("delete", "hookruns", None) && write.name() == verdict.name() && write.started > verdict.ended);
        let until = withdrawn.map(|write| write.ended).min();
        approvals.push(Approval { pod: label("pod-uid"), target: label("target-revision"), since: verdict.started, until });
    }
    let mut checked = 0;
    for write in &requests {
        let labels = &write.body()["metadata"]["labels"];
        let changes_image = write.is("patch", "pods", None) && write.body()["spec"]["containers"][0]["image"].is_string();
        let (uid, target) = if write.is("delete", "pods", None) {
            (&write.body()["preconditions"]["uid"], None)
        } else if write.is("patch", "pods", Some("status")) && labels["controller-revision-hash"].is_string() {
            // The first write of an in-place update: the pod is drained.
            (&write.body()["metadata"]["uid"], labels["controller-revision-hash"].as_str())
        } else if changes_image {
            (&write.body()["metadata"]["uid"], None)
        } else {
            continue;
        };
        // A write whose response never arrived may still have been carried out: it counts as an approval, and is not checked
        // as a deletion or an update.
        if write.entry["responseStatus"]["code"].as_i64().is_none_or(|code| code >= 300) {
            continue;
        }
        checked += 1;
        let uid = uid.as_str().with_context(|| format!("no uid in {}", write.entry))?;
        let is_approved = |approval: &Approval| {
            let is_about = approval.pod.as_deref() == Some(uid) && approval.since <= write.started;
            // An update that was approved when it started needs no approval to finish.
            let is_for = if changes_image { approval.target.is_some() } else { approval.target.as_deref() == target };
            is_about && is_for && (changes_image || approval.until.is_none_or(|until| until >= write.started))
        };
        ensure!(approvals.iter().any(is_approved), "no hook had approved: {}", write.entry);
    }
    Ok(checked)
}
