//! A hostile tenant: what it does in its own namespace neither reaches another namespace, nor delays it, nor exhausts the
//! operator's memory. Each test has a cluster of its own, so that the operator's peak memory is that of the attack.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::hook::{HookServer, Manner, Sessions, hook_run, serve_sessions, sessions_hook};
use e2e::operator::{self, peak_memory};
use e2e::{Game, Scene, Suite, audit, audited, eventually, manifest, run, until};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, ResourceExt};
use localkube::{Cluster, OperatorOptions, Operators};
use serde_json::{Value, json};

pub(crate) fn add(suite: &Arc<Suite>) {
    suite.alone(forged_owners_change_nothing);
    suite.alone(a_revision_that_is_being_deleted_is_waited_for);
    suite.alone(a_junk_template_is_told_with_its_size);
    suite.alone(a_thousand_large_objects_harm_no_other_tenant);
    suite.alone(fat_pods_harm_no_other_tenant);
    suite.alone(large_hookruns_harm_no_other_tenant);
    suite.alone(expressions_and_answers_harm_no_other_tenant);
    suite.alone(a_thousand_hanging_hooks_harm_no_other_tenant);
    suite.alone(a_flood_of_events_harms_no_other_tenant);
}

/// The most memory that the operator may need, whatever the hostile tenant does, in KiB.
const MOST_MEMORY: u64 = 192 << 10;
/// How long a leader keeps a lease that it does not renew.
const LEASE: Duration = Duration::from_secs(15);
/// Pods of the victim.
const PODS: i64 = 20;
/// Concurrent requests of an attack.
const AT_ONCE: usize = 16;

/// A victim's namespace with a workload at rest, and the namespace of a hostile tenant.
struct Stage {
    cluster: Arc<Cluster>,
    _operators: Operators,
    victim: Arc<Scene>,
    evil: Arc<Scene>,
    game: Game,
    _server: HookServer,
    sessions: Sessions,
    lease: Lease,
    pid: String,
}

impl Stage {
    async fn set(suite: &Suite) -> Result<Self> {
        let cluster = suite.own_cluster().await?;
        let operators = cluster.start_operators(&OperatorOptions::default()).await?;
        let victim = Arc::new(Scene::open(Arc::clone(&cluster), "victim").await?);
        let evil = Arc::new(Scene::open(Arc::clone(&cluster), "evil").await?);
        let (server, sessions) = serve_sessions(&victim, true).await?;
        let strategy = json!({ "type": "InplaceUpdate" });
        let inplace = json!({ "hook": null });
        let spec = json!({
            "replicas": PODS, "updateStrategy": strategy, "preDeleteUpdateStrategy": sessions_hook(), "preInplaceUpdateStrategy": inplace,
        });
        let game = Game::apply(&victim, "victim", &spec)?;
        sessions.end_all();
        game.until_rest("Complete").await?;
        let pid = operator::pid(&cluster)?;
        let lease = lease(&cluster).await?;
        Ok(Self { cluster, _operators: operators, victim, evil, game, _server: server, sessions, lease, pid })
    }

    /// How many writes the operator has made in the victim's namespace.
    fn writes(&self) -> Writes {
        let count = |resource: &str, subresource: &str, verb: &str| audited(&self.victim, resource, subresource, verb);
        Writes {
            patches: count("pods", "", "patch"),
            statuses: count("pods", "status", "patch"),
            deletions: count("pods", "", "delete"),
            runs: count("hookruns", "", "create"),
        }
    }

    /// Creates objects in the hostile tenant's namespace, many at once.
    async fn attack(&self, kind: &str, objects: impl Iterator<Item = Value>) -> Result<()> {
        let all = self.evil.custom(kind);
        create(&all, objects).await
    }

    /// While the attack lasts, the victim is updated and scaled in with the approval of its hook; the operator keeps its
    /// lease, its process and its memory limit.
    async fn is_unharmed(&self) -> Result<()> {
        let before = self.writes();
        self.game.set_image("game:2").await?;
        let status = self.game.until_rest("Complete").await?;
        Game::expect_counts(&status, PODS, PODS, PODS)?;
        ensure!(self.game.images().await? == [("game:2".to_owned(), usize::try_from(PODS)?)].into(), "{:?}", self.game.images().await?);
        self.game.patch(json!({ "spec": { "replicas": PODS - 4 } })).await?;
        self.game.until("four pods are deleted", |status| status["replicas"].as_i64() == Some(PODS - 4)).await?;
        ensure!(self.sessions.asked().len() >= 4, "hooks were not asked: {:?}", self.sessions.asked());
        // As many writes as without the attack: a HookRun and three patches for each pod that is updated; a mark, a HookRun
        // and a deletion for each pod that is deleted.
        let expected = Writes { patches: 20 + 4, statuses: 2 * 20, deletions: 4, runs: 20 + 4 };
        let made = || self.writes() - before;
        eventually("writes are missing in the audit log", || made() >= expected).await?;
        ensure!(made() == expected, "{:?} instead of {expected:?}", made());
        ensure!(operator::ask(&self.cluster, "/healthz").await?.contains("200 OK"), "/healthz does not answer");
        let leases: Api<Lease> = Api::namespaced(self.cluster.client(), "bcs-system");
        let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        let before = renewed(&self.lease);
        let now = until(&leases, "gameplane-operator", "renewed", |lease| lease.is_some_and(|lease| renewed(lease) > before)).await?;
        let transitions = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        ensure!(now.as_ref().and_then(transitions) == transitions(&self.lease), "the lease was lost");
        let gap = longest_gap(&self.cluster)?;
        ensure!(gap < LEASE, "the lease was not renewed for {} s", gap.as_secs());
        ensure!(metric(&self.victim, "gameplane_leading").await? == 1.0, "the operator does not lead");
        let pid = operator::pid(&self.cluster)?;
        ensure!(pid == self.pid, "the operator has died");
        let peak = peak_memory(&pid)?;
        eprintln!("the operator needed {peak} KiB at most; its lease was renewed every {} ms or sooner", gap.as_millis());
        ensure!(peak <= MOST_MEMORY, "the operator needed {peak} KiB");
        Ok(())
    }
}

/// How many writes the operator has made in one namespace, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
struct Writes {
    patches: usize,
    statuses: usize,
    deletions: usize,
    runs: usize,
}

impl std::ops::Sub for Writes {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            patches: self.patches - before.patches,
            statuses: self.statuses - before.statuses,
            deletions: self.deletions - before.deletions,
            runs: self.runs - before.runs,
        }
    }
}

/// The longest time between two renewals of the lease, according to the audit log.
fn longest_gap(cluster: &Cluster) -> Result<Duration> {
    let renewals = audit(cluster)?.into_iter().filter(|entry| entry["objectRef"]["resource"] == "leases" && entry["verb"] != "get");
    let times = renewals.filter_map(|entry| entry["stageTimestamp"].as_str()?.parse().ok()).collect::<Vec<Timestamp>>();
    let gaps = times.iter().zip(times.iter().skip(1)).map(|(one, next)| next.duration_since(*one).unsigned_abs());
    gaps.max().context("the lease was not renewed")
}

/// One of the operator's metrics.
async fn metric(scene: &Scene, name: &str) -> Result<f64> {
    let all = operator::ask(scene.cluster(), "/metrics").await?;
    let line = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name}"))?.trim().parse()?)
}

async fn lease(cluster: &Cluster) -> Result<Lease> {
    Ok(Api::namespaced(cluster.client(), "bcs-system").get("gameplane-operator").await?)
}

async fn create<K>(all: &Api<K>, objects: impl Iterator<Item = Value>) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let create = |object: Value| async move {
        let object: K = serde_json::from_value(object)?;
        all.create(&PostParams::default(), &object).await?;
        anyhow::Ok(())
    };
    futures::stream::iter(objects).map(create).buffer_unordered(AT_ONCE).try_collect().await
}

/// Waits until a condition has this reason, and returns its message.
async fn message_of(scene: &Scene, kind: &str, name: &str, reason: &str) -> Result<String> {
    let find = |object: &DynamicObject| {
        let all = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["reason"] == reason).and_then(|one| Some(one["message"].as_str()?.to_owned()))
    };
    let object = until(&scene.custom(kind), name, reason, |object| object.is_some_and(|object| find(object).is_some())).await?;
    object.as_ref().and_then(find).context("no message")
}

async fn forged_owners_change_nothing(suite: Arc<Suite>) -> Result<()> {
    let stage = Stage::set(&suite).await?;
    let uid = stage.victim.kubectl(&["get", "gamedeployment", "victim", "-o", "jsonpath={.metadata.uid}"])?;
    let metadata = |name: &str| {
        let owner = json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "victim", "uid": uid, "controller": true,
        });
        // The garbage collector deletes objects whose owner is not in their namespace: a finalizer keeps them.
        json!({
            "name": name, "labels": { "app": "victim", "controller-revision-hash": "victim-evil" }, "ownerReferences": [owner],
            "finalizers": ["evil.example.com/stay"], "annotations": { "controller.kubernetes.io/pod-deletion-cost": "-2147483648" },
        })
    };
    let container = json!({ "name": "game", "image": "evil:1" });
    let pods: Api<Pod> = stage.evil.api();
    let pod = |number: i32| json!({ "metadata": metadata(&format!("aaa-{number}")), "spec": { "containers": [container] } });
    create(&pods, (0..10).map(pod)).await?;
    for number in [1, 1_000_000] {
        let template = json!({ "metadata": { "labels": { "app": "victim" } }, "spec": { "containers": [container] } });
        stage.evil.apply(&json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata(&format!("aaa-{number}")),
            "revision": number, "data": { "spec": { "template": template } },
        }))?;
    }
    // A HookRun that looks like the operator's own is refused.
    let forged = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": metadata("aaa"),
        "spec": { "metrics": [{ "name": "a", "provider": { "web": { "url": "http://192.0.2.1/" } } }] },
    });
    ensure!(stage.evil.apply(&forged).is_err(), "a HookRun with a forged owner was accepted");
    stage.is_unharmed().await?;
    for (resource, subresource) in [("pods", ""), ("pods", "status"), ("controllerrevisions", ""), ("hookruns", "")] {
        let written = audited(&stage.evil, resource, subresource, "");
        ensure!(written == 0, "the operator sent {written} requests for {resource} {subresource} of the hostile tenant");
    }
    let status = stage.game.until("a current status", |_| true).await?;
    ensure!(!status["updateRevision"].as_str().unwrap_or_default().starts_with("aaa"), "{status}");
    // The forged objects can be deleted.
    let gone = json!({ "metadata": { "finalizers": null } }).to_string();
    for kind in ["pods", "controllerrevisions"] {
        let names = stage.evil.kubectl(&["get", kind, "-o", "name"])?;
        for name in names.lines() {
            // The garbage collector may be first.
            let _ = stage.evil.kubectl(&["patch", name, "--type=merge", "-p", &gone]);
        }
    }
    Ok(())
}

async fn a_revision_that_is_being_deleted_is_waited_for(suite: Arc<Suite>) -> Result<()> {
    let stage = Stage::set(&suite).await?;
    let before = stage.game.until_rest("Complete").await?;
    let revision = before["updateRevision"].as_str().context("no revision")?.to_owned();
    let name = format!("controllerrevision/{revision}");
    let finalizers = |names: Value| json!({ "metadata": { "finalizers": names } }).to_string();
    stage.victim.kubectl(&["patch", &name, "--type=merge", "-p", &finalizers(json!(["example.com/stay"]))])?;
    stage.victim.kubectl(&["delete", &name, "--wait=false"])?;
    stage.game.patch(json!({ "spec": { "replicas": PODS + 4 } })).await?;
    let message = stage.game.until_condition("Degraded", "True", "RevisionBeingDeleted").await?;
    ensure!(message.contains(&revision) && message.contains("remove its finalizers"), "{message}");
    Game::expect_counts(&stage.game.until("a current status", |_| true).await?, PODS, PODS, PODS)?;
    stage.victim.kubectl(&["patch", &name, "--type=merge", "-p", &finalizers(Value::Null)])?;
    stage.game.until("more pods", |status| status["readyReplicas"].as_i64() == Some(PODS + 4)).await?;
    let after = stage.game.until_rest("Complete").await?;
    ensure!(after["updateRevision"] == before["updateRevision"], "another name was taken: {after}");
    Ok(())
}

/// A GameDeployment whose template has junk in it.
fn with_junk(name: &str, junk: Value) -> Value {
    let mut whole = manifest(name, &json!({ "replicas": 2 }));
    whole["spec"]["template"]["spec"]["junk"] = junk;
    whole
}

async fn a_junk_template_is_told_with_its_size(suite: Arc<Suite>) -> Result<()> {
    let stage = Stage::set(&suite).await?;
    let values = |count: usize| json!((0..count).map(|_| json!({ "a": 0 })).collect::<Vec<_>>());
    stage
        .attack("GameDeployment", [with_junk("long", json!("x".repeat(600 << 10))), with_junk("junk", values(60_000))].into_iter())
        .await?;
    let long = message_of(&stage.evil, "GameDeployment", "long", "InvalidSpec").await?;
    ensure!(long.contains("spec.template: has 61") && long.contains("bytes of JSON, at most 524288 are allowed"), "{long}");
    let junk = message_of(&stage.evil, "GameDeployment", "junk", "InvalidSpec").await?;
    ensure!(junk.contains("values, at most 20000 are allowed"), "{junk}");
    // One that becomes too large keeps its pods, and is scaled.
    let game = Game::apply(&stage.evil, "grown", &json!({ "replicas": 2 }))?;
    game.until_rest("Complete").await?;
    game.patch(json!({ "spec": { "replicas": 3, "template": { "spec": { "junk": "x".repeat(600 << 10) } } } })).await?;
    let status = game.until("three pods", |status| status["readyReplicas"].as_i64() == Some(3)).await?;
    Game::expect_counts(&status, 3, 3, 3)?;
    message_of(&stage.evil, "GameDeployment", "grown", "InvalidSpec").await?;
    game.patch(json!({ "spec": { "template": { "spec": { "junk": null } } } })).await?;
    game.until_rest("Complete").await?;
    stage.is_unharmed().await
}

/// How many objects of a megabyte are created: a thousand with SOAK=1. The API server needs several times their size, the
/// operator hardly more for each.
fn large_objects() -> usize {
    if std::env::var_os("SOAK").is_some() { 1000 } else { 150 }
}

async fn a_thousand_large_objects_harm_no_other_tenant(suite: Arc<Suite>) -> Result<()> {
    const MANY: usize = 200;
    let stage = Stage::set(&suite).await?;
    let of = |name: String, size: usize| {
        let mut whole = with_junk(&name, json!("x".repeat(size)));
        whole["spec"]["replicas"] = json!(0);
        whole
    };
    stage.attack("GameDeployment", (0..large_objects()).map(|number| of(format!("large-{number}"), 1 << 20))).await?;
    // Each of these is within the limit of one object, together they exceed that of a namespace.
    stage.attack("GameDeployment", (0..MANY).map(|number| of(format!("many-{number}"), 500 << 10))).await?;
    stage.attack("GameDeployment", std::iter::once(of("last".to_owned(), 500 << 10))).await?;
    let last = message_of(&stage.evil, "GameDeployment", "last", "TooLarge").await?;
    ensure!(last.contains("the objects of namespace evil need more than the 64 MiB"), "{last}");
    stage.is_unharmed().await?;
    // When there is room, the last object is read again.
    let all = stage.evil.custom("GameDeployment");
    for number in 0..MANY {
        all.delete(&format!("many-{number}"), &DeleteParams::default()).await?;
    }
    Game::named(&stage.evil, "last").until_rest("Complete").await.map(drop)
}

async fn fat_pods_harm_no_other_tenant(suite: Arc<Suite>) -> Result<()> {
    let stage = Stage::set(&suite).await?;
    let fat = Game::apply(&stage.evil, "fat", &json!({ "replicas": 0 }))?;
    fat.until_rest("Complete").await?;
    let uid = stage.evil.kubectl(&["get", "gamedeployment", "fat", "-o", "jsonpath={.metadata.uid}"])?;
    let pod = |number: usize| {
        let owner =
            json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "fat", "uid": uid, "controller": true });
        let owners = if number.is_multiple_of(2) { json!([owner]) } else { json!([]) };
        json!({
            "metadata": {
                "name": format!("fat-{number}"), "labels": { "app": "fat" }, "ownerReferences": owners, "annotations": { "fat": "x".repeat(40 << 10) },
            },
            "spec": { "schedulingGates": [{ "name": "example.com/never" }], "containers": [{ "name": "game", "image": "game:1" }] },
        })
    };
    // No surplus pod is deleted, because not all pods are known.
    fat.patch(json!({ "spec": { "updateStrategy": { "paused": true }, "replicas": 5000 } })).await?;
    create(&stage.evil.api::<Pod>(), (0..5000).map(pod)).await?;
    let why = message_of(&stage.evil, "GameDeployment", "fat", "TooLarge").await?;
    ensure!(why.contains("nothing is done: Pod ") && why.contains("namespace evil"), "{why}");
    stage.is_unharmed().await
}

async fn large_hookruns_harm_no_other_tenant(suite: Arc<Suite>) -> Result<()> {
    let stage = Stage::set(&suite).await?;
    let large = |size: usize| {
        let metric = |number: usize| {
            let web = json!({ "url": "http://192.0.2.1/", "method": "POST", "body": "x".repeat(size) });
            json!({ "name": format!("m{number}"), "initialDelay": "1h", "provider": { "web": web } })
        };
        (0..15).map(metric).collect::<Vec<_>>()
    };
    let run = |name: String, size: usize| json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": { "name": name }, "spec": { "metrics": large(size) } });
    stage.attack("HookRun", (0..400).map(|number| run(format!("large-{number:03}"), 16_000))).await?;
    let last = run("last".to_owned(), 16_000);
    stage.attack("HookRun", std::iter::once(last)).await?;
    let why = message_of(&stage.evil, "HookRun", "last", "TooLarge").await?;
    ensure!(why.contains("the objects of namespace evil need more than"), "{why}");
    stage.is_unharmed().await
}

async fn expressions_and_answers_harm_no_other_tenant(suite: Arc<Suite>) -> Result<()> {
    let stage = Stage::set(&suite).await?;
    // Large answers: many small values, nested lists, and one long text.
    let junk = HookServer::json(&json!((0..150_000).map(|_| json!({})).collect::<Vec<_>>())).await?;
    let nested = json!((0..200).map(|_| json!({ "a": (0..200).map(|_| json!({ "b": 1 })).collect::<Vec<_>>() })).collect::<Vec<_>>());
    let nested = HookServer::json(&nested).await?;
    let text = HookServer::json(&json!({ "age": "a".repeat(1_000_000) })).await?;
    let pattern = "(a|b|ab)*c{50}".repeat(8);
    let condition = (0..4).map(|_| format!("result matches '{pattern}'")).collect::<Vec<_>>().join(" or ");
    let metric = |number: usize| match number % 4 {
        0 => json!({ "provider": { "web": { "url": junk.url(), "jsonPath": "{[*]}" } } }),
        1 => json!({ "provider": { "web": { "url": nested.url(), "jsonPath": "{[?(@.a[?(@.b==1)].b==1)]}" } } }),
        2 => json!({ "provider": { "web": { "url": text.url(), "jsonPath": "{.age}{.age}{.age}" } }, "successCondition": condition }),
        _ => {
            json!({ "provider": { "web": { "url": nested.url() } }, "successCondition": "len(map(1..1000, {# ** #})) > 1 and result matches 'a{1000}'" })
        }
    };
    stage.attack("HookRun", (0..200).map(|number| hook_run(&format!("run-{number}"), &metric(number)))).await?;
    let huge = (0..10).map(|_| "result matches '(\\\\w{99}){9}'").collect::<Vec<_>>().join(" or ");
    let template = |number: usize| {
        let metric = |name: &str| json!({ "name": name, "provider": { "web": { "url": "http://192.0.2.1/" } }, "successCondition": huge });
        json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": { "name": format!("t-{number}") }, "spec": { "metrics": [metric("a"), metric("b"), metric("c")] } })
    };
    stage.attack("HookTemplate", (0..100).map(template)).await?;
    let why = message_of(&stage.evil, "HookTemplate", "t-99", "InvalidSpec").await?;
    ensure!(why.contains("the pattern is too large"), "{why}");
    stage.is_unharmed().await?;
    let runs = stage.evil.custom("HookRun");
    for number in 0..200 {
        let judged = |run: &DynamicObject| !matches!(run.data["status"]["phase"].as_str(), None | Some("Running" | "Pending"));
        let name = format!("run-{number}");
        until(&runs, &name, "a verdict", |run| run.is_some_and(|run| judged(run) || run.data["status"]["metricResults"][0]["error"] == 1))
            .await?;
    }
    let peak = peak_memory(&stage.pid)?;
    ensure!(peak <= MOST_MEMORY, "the operator needed {peak} KiB");
    Ok(())
}

async fn a_thousand_hanging_hooks_harm_no_other_tenant(suite: Arc<Suite>) -> Result<()> {
    let stage = Stage::set(&suite).await?;
    let other = Scene::open(Arc::clone(&stage.cluster), "evil-too").await?;
    // Many servers, so that the limit per host holds back none of the hooks.
    let servers: Vec<HookServer> = futures::future::try_join_all((0..60).map(|_| HookServer::start(Manner::Hangs))).await?;
    for scene in [&stage.evil, &other] {
        let run = |number: usize| {
            let web = json!({ "url": servers[number % servers.len()].url(), "timeoutSeconds": 60 });
            hook_run(&format!("hangs-{number}"), &json!({ "consecutiveErrorLimit": 100, "provider": { "web": web } }))
        };
        create(&scene.custom("HookRun"), (0..1000).map(run)).await?;
    }
    let asked = || servers.iter().map(HookServer::requests).sum::<usize>() >= 256;
    eventually("the hanging hooks are not asked", asked).await?;
    stage.is_unharmed().await?;
    // They still hang, in half of the 512 places: of the other half a namespace gets only what completes its share, which is
    // a sixteenth of all.
    let hanging = metric(&stage.victim, "gameplane_hook_measurements_in_flight").await?;
    ensure!((128.0..=256.0 + 32.0).contains(&hanging), "{hanging} hooks are under way");
    Ok(())
}

async fn a_flood_of_events_harms_no_other_tenant(suite: Arc<Suite>) -> Result<()> {
    let stage = Stage::set(&suite).await?;
    stage.evil.apply(
        &json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } }),
    )?;
    let flood = |number: usize| manifest(&format!("flood-{number}"), &json!({ "replicas": 10 }));
    stage.attack("GameDeployment", (0..300).map(flood)).await?;
    message_of(&stage.evil, "GameDeployment", "flood-299", "FailedCreate").await?;
    stage.is_unharmed().await?;
    let events: Api<Event> = stage.victim.api();
    let all = events.list(&ListParams::default()).await?;
    let updated = all.iter().filter(|event| event.reason.as_deref() == Some("SuccessfulUpdatePodInPlace")).count();
    let names: Vec<String> = all.iter().map(|event| format!("{} {:?}", event.name_any(), event.reason)).collect();
    ensure!(updated >= 10, "only {updated} updates have an event: {names:?}");
    run(stage.cluster.kubectl().args(["delete", "namespace", stage.evil.namespace(), "--wait=false"]), "").map(drop)
}
