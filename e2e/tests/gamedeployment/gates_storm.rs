//! Hooks about pods while the operator dies and dies again.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use e2e::hook::{Sessions, serve_sessions, sessions_hook};
use e2e::operator::{Killer, single};
use e2e::{Game, Scene, Suite, until_gone};
use kube::ResourceExt;
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(kill_9_lets_nobody_go_unasked);
}

/// Everything that happens to pods, while the operator dies and dies again: by the API server's own log, nobody was deleted or changed whose hook had not agreed before.
async fn kill_9_lets_nobody_go_unasked(suite: Arc<Suite>) -> Result<()> {
    let cluster = suite.own_cluster().await?;
    let options = localkube::OperatorOptions { longest_pause: std::time::Duration::from_millis(300), ..single() };
    let _operators = cluster.start_operators(&options).await?;
    let scene = Arc::new(Scene::open(Arc::clone(&cluster), "gates-storm").await?);
    let (_server, sessions) = serve_sessions(&scene, true).await?;
    let killer = Killer::start(&cluster);
    let mut round = 0;
    while round < 2 || killer.kills() < 30 {
        round += 1;
        ordeal(&scene, &sessions, round).await.with_context(|| format!("round {round}"))?;
    }
    drop(killer);
    let log = std::fs::read_to_string(cluster.audit_log())?;
    let checked = hold_against_approvals(&log, scene.namespace())?;
    ensure!(checked >= 20, "only {checked} deletions and changes were seen");
    Ok(())
}

/// A life of scaling, aborting, rolling and changing, where every session ends sooner or later.
async fn ordeal(scene: &Arc<Scene>, sessions: &Sessions, round: usize) -> Result<()> {
    let name = format!("door-{round}");
    let kind = if round.is_multiple_of(2) { "RollingUpdate" } else { "InplaceUpdate" };
    let strategy = json!({ "type": kind, "maxUnavailable": 2, "inPlaceUpdateStrategy": { "gracePeriodSeconds": 1 } });
    let before = json!({ "protect": true, "hook": { "templateName": "drained" } });
    let spec = json!({ "replicas": 6, "updateStrategy": strategy, "preDeleteUpdateStrategy": before, "preInplaceUpdateStrategy": sessions_hook() });
    let game = Game::apply(scene, &name, &spec)?;
    game.until_rest("Complete").await?;
    let scale = |replicas: usize| scene.kubectl(&["scale", "gamedeployment", &name, &format!("--replicas={replicas}")]);
    // Asked, and then wanted again.
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
    // They are protected: the object waits for every one of them.
    scene.kubectl(&["delete", "gamedeployment", &name, "--wait=false"])?;
    for pod in game.pods().await? {
        sessions.end(&pod.name_any());
    }
    until_gone(&game.api(), &name).await
}

/// What the operator did, as the API server's log tells.
struct Deed<'a> {
    entry: &'a Value,
    began: jiff::Timestamp,
    ended: jiff::Timestamp,
}

impl Deed<'_> {
    fn is(&self, verb: &str, resource: &str, subresource: Option<&str>) -> bool {
        let about = &self.entry["objectRef"];
        self.entry["verb"] == verb && about["resource"] == resource && about["subresource"].as_str() == subresource
    }

    fn name(&self) -> &str {
        self.entry["objectRef"]["name"].as_str().unwrap_or_default()
    }

    fn asks(&self) -> &Value {
        &self.entry["requestObject"]
    }
}

/// What a hook agreed to: for which revision, or none if the pod may be deleted; since when, and until it was withdrawn.
struct Approval {
    pod: Option<String>,
    target: Option<String>,
    since: jiff::Timestamp,
    until: Option<jiff::Timestamp>,
}

/// Holds every deletion of a pod and every beginning of a change against what hooks had agreed to before; how many there were.
fn hold_against_approvals(log: &str, namespace: &str) -> Result<usize> {
    let entries: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ours = |entry: &&Value| {
        entry["user"]["username"] == "system:serviceaccount:bcs-system:gameplane" && entry["objectRef"]["namespace"] == namespace
    };
    let time = |entry: &Value, field: &str| entry[field].as_str().and_then(|text| text.parse().ok());
    let deed = |entry| Some(Deed { entry, began: time(entry, "requestReceivedTimestamp")?, ended: time(entry, "stageTimestamp")? });
    let deeds: Vec<Deed> = entries.iter().filter(ours).filter_map(deed).collect();
    let mut approvals = Vec::new();
    for yes in deeds.iter().filter(|deed| deed.is("patch", "hookruns", Some("status")) && deed.asks()["status"]["phase"] == "Successful") {
        let questions = deeds.iter().filter(|deed| deed.is("create", "hookruns", None) && deed.asks()["metadata"]["name"] == yes.name());
        let Some(asked) = questions.filter(|question| question.began < yes.ended).max_by_key(|question| question.began) else { continue };
        let label = |key: &str| asked.asks()["metadata"]["labels"][key].as_str().map(str::to_owned);
        let withdrawn =
            deeds.iter().filter(|deed| deed.is("delete", "hookruns", None) && deed.name() == yes.name() && deed.began > yes.ended);
        let until = withdrawn.map(|deed| deed.ended).min();
        approvals.push(Approval { pod: label("pod-uid"), target: label("target-revision"), since: yes.began, until });
    }
    let mut checked = 0;
    for deed in &deeds {
        let labels = &deed.asks()["metadata"]["labels"];
        let changes_image = deed.is("patch", "pods", None) && deed.asks()["spec"]["containers"][0]["image"].is_string();
        let (uid, target) = if deed.is("delete", "pods", None) {
            (&deed.asks()["preconditions"]["uid"], None)
        } else if deed.is("patch", "pods", Some("status")) && labels["controller-revision-hash"].is_string() {
            // The first write of an update: the pod leaves its services.
            (&deed.asks()["metadata"]["uid"], labels["controller-revision-hash"].as_str())
        } else if changes_image {
            (&deed.asks()["metadata"]["uid"], None)
        } else {
            continue;
        };
        // Who died before the answer came may have been heard all the same: that counts for what was agreed to, and not for what was done.
        if deed.entry["responseStatus"]["code"].as_i64().is_none_or(|code| code >= 300) {
            continue;
        }
        checked += 1;
        let uid = uid.as_str().with_context(|| format!("no uid in {}", deed.entry))?;
        let agreed = |approval: &Approval| {
            let is_about = approval.pod.as_deref() == Some(uid) && approval.since <= deed.began;
            // What was begun with an agreement is ended without one.
            let is_for = if changes_image { approval.target.is_some() } else { approval.target.as_deref() == target };
            is_about && is_for && (changes_image || approval.until.is_none_or(|until| until >= deed.began))
        };
        ensure!(approvals.iter().any(agreed), "nobody had agreed: {}", deed.entry);
    }
    Ok(checked)
}
