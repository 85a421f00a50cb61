//! Scenarios that can be read without Rust: tests/scenarios/<kind>/*.yaml.

use std::collections::BTreeMap;
use std::path::Path;

use crate::world::{GameWorld, hook_template, make_ready, pod, template};
use api::selector::LabelSelector;
use api::tkex::GameDeploymentStatus;
use jiff::{SignedDuration, Timestamp};
use planner::facts::pdb::PdbFacts;
use planner::facts::pod::{Gate, Phase, PodFacts};
use planner::facts::revision::RevisionFacts;
use planner::hold::Hold;
use planner::plan::{Action, DeleteReason, NewPod, PatchReason, Plan, PodPart, PodPatch};
use planner::refusal::Outcome;
use planner::workload::Unlisted;
use planner::workload::inplace::Update;
use planner::workload::protect;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    replicas: usize,
    #[serde(default)]
    strategy: Value,
    /// The stable revision: `old`, `updated`, or `none` for an object that never had one.
    #[serde(default)]
    current: Option<String>,
    #[serde(default)]
    min_ready_seconds: i32,
    /// Other fields of the spec.
    #[serde(default)]
    spec: BTreeMap<String, Value>,
    /// `<revision> <state> [young] [x<count>]`, in the order of their names p0, p1, …
    pods: Vec<String>,
    /// Pods that the user wants deleted.
    #[serde(default)]
    named: Vec<String>,
    #[serde(default)]
    deletes: BTreeMap<String, usize>,
    #[serde(default)]
    deleted: Option<Vec<String>>,
    #[serde(default)]
    creates: BTreeMap<String, usize>,
    /// The numbers that new pods get.
    #[serde(default)]
    numbers: Option<Vec<i32>>,
    /// Other fields of the status.
    #[serde(default)]
    status: Value,
    /// HookRuns of the step, by the end of their name, with their phase: `4-test: Failed`.
    #[serde(default)]
    runs: BTreeMap<String, String>,
    /// HookRuns about pods, by pod and intent, with their phase and how many seconds ago they finished: `p0 delete: Failed 5`,
    /// `p1 updated: Running`.
    #[serde(default)]
    asked: BTreeMap<String, String>,
    /// How the object is protected, and whether it is being deleted: `finalizer`, `budget`, `wide budget`, `other budget`, `stolen budget`, `deleting`, `orphan`.
    #[serde(default)]
    guards: Vec<String>,
    /// Whether most nodes are silent.
    #[serde(default)]
    braked: bool,
    /// The step for which the operator has paused the rollout.
    #[serde(default)]
    paused_for: Option<usize>,
    /// Writes that were refused, with how many seconds ago: `p0 delete_pod 2`, `updated create_pod`.
    #[serde(default)]
    refused: Vec<String>,
    /// Revisions that are being deleted.
    #[serde(default)]
    leaving: Vec<String>,
    /// Kinds that have not been listed, with the reason if it is known.
    #[serde(default)]
    unlisted: Vec<Unlisted>,
    /// Whether the HookTemplate `test` exists.
    #[serde(default)]
    hook_template: bool,
    /// Every other action, by its word.
    #[serde(default)]
    does: BTreeMap<String, usize>,
    /// The step that the rollout is at afterwards.
    #[serde(default)]
    step: Option<i32>,
    /// The reason of the pause afterwards; empty for none.
    #[serde(default)]
    pause: Option<String>,
    #[serde(default)]
    holds: Vec<String>,
    #[serde(default)]
    conditions: BTreeMap<String, String>,
    #[serde(default)]
    wakes: bool,
    /// Whether the status stays as it was.
    #[serde(default)]
    quiet: bool,
}

/// Lost, silent and cordoned nodes, and kinds that have not been listed.
fn see_others(world: &mut GameWorld, scenario: &Scenario) {
    world.cluster.nodes = if scenario.braked { 2 } else { 10 };
    world.cluster.lost.insert("lost".to_owned(), world.cluster.now - SignedDuration::from_secs(400));
    world.cluster.lost.insert("silent".to_owned(), world.cluster.now - SignedDuration::from_secs(100));
    world.cluster.cordoned.insert("cordoned".to_owned());
    world.cluster.unlisted.clone_from(&scenario.unlisted);
}

fn build(scenario: &Scenario) -> GameWorld {
    let named: Vec<String> = scenario.named.iter().map(|name| format!("game-{name}")).collect();
    let mut spec = json!({
        "replicas": scenario.replicas,
        "template": template(1),
        "minReadySeconds": scenario.min_ready_seconds,
        "scaleStrategy": { "podsToDelete": named },
    });
    if !scenario.strategy.is_null() {
        spec["updateStrategy"] = scenario.strategy.clone();
    }
    for (key, value) in &scenario.spec {
        spec[key] = value.clone();
    }
    let mut world = GameWorld::new(&spec);
    let current = scenario.current.as_deref().unwrap_or("old");
    if current != "none" {
        for (number, name) in ["stray", "old", "updated"].into_iter().enumerate() {
            let revision = RevisionFacts {
                name: format!("game-{name}"),
                uid: format!("uid-{name}"),
                controller: Some("uid-game".to_owned()),
                number: i64::try_from(number).unwrap() + 1,
                template: template([2, 0, 1][number]).into(),
                deleting: scenario.leaving.iter().any(|leaving| leaving == name),
            };
            world.cluster.revisions.insert(revision.name.clone(), revision);
        }
        let mut status = json!({ "currentRevision": format!("game-{current}"), "updateRevision": "game-updated" });
        for (key, value) in scenario.status.as_object().into_iter().flatten() {
            status[key] = value.clone();
        }
        world.object.status = serde_json::from_value(status).unwrap();
    }
    if scenario.hook_template {
        world.cluster.hook_templates.push(hook_template("test"));
    }
    for (end, phase) in &scenario.runs {
        run_of_step(&mut world, end, phase);
    }
    world.cluster.pass(3600);
    for line in &scenario.pods {
        add(&mut world, line);
    }
    see_others(&mut world, scenario);
    for guard in &scenario.guards {
        put_up(&mut world, guard);
    }
    for (question, answer) in &scenario.asked {
        ask(&mut world, question, answer);
    }
    if let Some(step) = scenario.paused_for {
        pause_for(&mut world, step);
    }
    for line in &scenario.refused {
        refuse(&mut world, line);
    }
    world
}

/// The operator has paused the rollout for a step. The mark of such a pause is taken from its own plan.
fn pause_for(world: &mut GameWorld, step: usize) {
    let mut resumed = world.clone();
    resumed.object.spec.update_strategy.paused = false;
    resumed.object.status.as_mut().unwrap().current_step_index = i32::try_from(step).ok();
    let plan = resumed.decide();
    let marks = plan.actions().find_map(|action| if let Action::Pause { mark, .. } = action { mark.clone() } else { None });
    world.object.metadata.annotations.get_or_insert_default().insert("gameplane.dev/paused-for".to_owned(), marks.unwrap());
}

/// The API server has refused a write.
fn refuse(world: &mut GameWorld, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ago = words.get(2).map_or(0, |seconds| seconds.parse().unwrap());
    let (name, revision) = (format!("game-{}", words[0]), Some("game-updated".to_owned()));
    let uid = format!("uid-{name}");
    let patch = |why, part, revision| {
        Action::PatchPod(PodPatch {
            name: name.clone(),
            uid: uid.clone(),
            why,
            part,
            revision,
            body: json!({ "metadata": { "uid": uid } }),
        })
    };
    let action = match words[1] {
        "delete_pod" => Action::DeletePod { name: name.clone(), uid: uid.clone(), why: DeleteReason::Update, version: None },
        "update_pod_inplace" => patch(PatchReason::InPlace, PodPart::Main, revision),
        "mark_pod" => patch(PatchReason::Mark, PodPart::Main, None),
        "create_pod" => {
            let (id, template) = (name.clone(), template(1).into());
            Action::CreatePod(NewPod {
                name: id.clone(),
                id,
                revision: name.clone(),
                template,
                gated: false,
                index: None,
                protected: false,
                successor: false,
            })
        }
        other => panic!("{other} cannot be refused"),
    };
    let refused = Outcome::Refused { reason: "Forbidden".to_owned(), message: "so it is".to_owned() };
    world.refusals.note(&action, &refused, world.cluster.now - SignedDuration::from_secs(ago));
}

/// Adds a HookRun of a canary step.
fn run_of_step(world: &mut GameWorld, end: &str, phase: &str) {
    let step = end.split('-').next().unwrap();
    let labels = json!({ "workload-revision": "game-updated", "hookrun-type": "canary-step", "canary-step-index": step });
    let name = format!("game-updated-{end}");
    let run = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": { "name": name, "uid": name, "labels": labels, "ownerReferences": [world.owner().reference()] },
        "spec": { "metrics": hook_template("test").spec.metrics }, "status": { "phase": phase },
    });
    world.cluster.hook_runs.insert(name, serde_json::from_value(run).unwrap());
}

/// Adds what protects the pods, or deletes the object.
fn put_up(world: &mut GameWorld, guard: &str) {
    let mut budget = |controller: Option<&str>, is_closed: bool, selector: LabelSelector| {
        let name = if guard == "stolen budget" { "gameplane-uid-game" } else { guard }.to_owned();
        let controller = controller.map(str::to_owned);
        world.cluster.budgets.insert(name.clone(), PdbFacts { uid: name.clone(), name, controller, selector: Some(selector), is_closed });
    };
    match guard {
        "finalizer" => world.object.metadata.finalizers.get_or_insert_default().push("gameplane.dev/protected-pods".to_owned()),
        "orphan" => world.object.metadata.finalizers.get_or_insert_default().push("orphan".to_owned()),
        "deleting" => world.delete(),
        "budget" => budget(Some("uid-game"), true, protect::selector("uid-game")),
        "stolen budget" => budget(None, true, protect::selector("uid-game")),
        "wide budget" => budget(Some("uid-game"), false, protect::selector("uid-game")),
        "other budget" => budget(None, false, serde_json::from_value(json!({ "matchLabels": { "app": "game" } })).unwrap()),
        other => panic!("{other} is no guard"),
    }
}

/// Adds a HookRun about a pod.
fn ask(world: &mut GameWorld, question: &str, answer: &str) {
    let (pod, intent) = question.split_once(' ').unwrap();
    let pod = &world.cluster.pods[&format!("game-{pod}")];
    let (kind, prefix, target) = match intent {
        "delete" => ("pre-delete-step", "predelete", None),
        "update" => ("pre-inplace-step", "preinplace", Some("game-updated")),
        "update by delete" => ("pre-delete-step", "predelete", Some("game-updated")),
        "updated" => ("post-inplace-step", "postinplace", Some("game-updated")),
        other => panic!("{other} is no intent"),
    };
    let mut labels = json!({ "hookrun-type": kind, "hook-template": "test", "pod-uid": pod.uid, "attempt": "1" });
    if let Some(target) = target {
        labels["target-revision"] = json!(target);
    }
    let name = format!("{prefix}-{}-{}-test", pod.revision().unwrap(), pod.name);
    let mut words = answer.split_whitespace();
    let phase = words.next().unwrap();
    let ago = words.next().map_or(0, |seconds| seconds.parse().unwrap());
    let run = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
        "metadata": {
            "name": name, "uid": name, "labels": labels, "creationTimestamp": world.cluster.now - SignedDuration::from_secs(600),
            "ownerReferences": [world.owner().reference()],
        },
        "spec": { "metrics": hook_template("test").spec.metrics },
        "status": { "phase": phase, "message": "so it is", "finishedAt": world.cluster.now - SignedDuration::from_secs(ago) },
    });
    world.cluster.hook_runs.insert(name, serde_json::from_value(run).unwrap());
}

fn add(world: &mut GameWorld, line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let count = words.iter().find_map(|word| word.strip_prefix('x')?.parse().ok()).unwrap_or(1);
    for _ in 0..count {
        let name = format!("game-p{}", world.cluster.pods.len());
        let mut labels = json!({ "app": "game" });
        if words[0] != "unlabelled" {
            labels["controller-revision-hash"] = json!(format!("game-{}", words[0]));
        }
        let young = words.contains(&"young");
        let under_way = ["draining", "due", "restarting"].iter().find(|word| words.contains(word));
        // A pod that is being updated has the image of the stable revision until then.
        let made_from = if under_way.is_some() { "old" } else { words[0] };
        let image = world
            .cluster
            .revisions
            .get(&format!("game-{made_from}"))
            .map_or(json!(null), |revision| revision.template.value()["spec"].clone());
        let gates = if words.contains(&"gated") || words.contains(&"new") || under_way.is_some() {
            json!([{ "conditionType": "InPlaceUpdateReady" }])
        } else {
            json!([])
        };
        let mut spec = image;
        spec["readinessGates"] = gates;
        let body = json!({ "metadata": { "labels": labels }, "spec": spec });
        let mut pod = pod(&name, 1, &body, world.cluster.now - SignedDuration::from_secs(if young { 1 } else { 1800 }));
        pod.uid = format!("uid-{name}");
        pod.node = Some("node".into());
        pod.phase = Phase::Running;
        if pod.gate == Gate::Unset && !words.contains(&"new") {
            pod.gate = Gate::Up;
        }
        match words[1] {
            "ready" => make_ready(&mut pod, world.cluster.now - SignedDuration::from_secs(900)),
            "fresh" => make_ready(&mut pod, world.cluster.now - SignedDuration::from_secs(5)),
            "unready" => {}
            "failed" => pod.phase = Phase::Failed,
            "deleting" => pod.deleting = true,
            other => panic!("{other} is no state"),
        }
        note(&mut pod, &words);
        if words.contains(&"crashing") {
            pod.trouble = Some("CrashLoopBackOff".to_owned());
            pod.containers.iter_mut().for_each(|container| container.running = false);
        }
        if words.contains(&"sidecar-crashing") {
            pod.trouble = Some("CrashLoopBackOff".to_owned());
        }
        if let Some(node) = ["lost", "silent", "cordoned"].iter().find(|node| words.contains(node)) {
            pod.node = Some((*node).into());
        }
        if words.contains(&"done") {
            let state = json!({ "revision": pod.revision().unwrap(), "lastContainerStatuses": {}, "askAfter": true });
            pod.update = Update::read(Some(&state.to_string()), None);
        }
        if let Some(word) = under_way {
            set_out(&mut pod, word, world.cluster.now);
        }
        world.cluster.pods.insert(name, pod);
    }
}

/// What the operator has written on a pod.
fn note(pod: &mut PodFacts, words: &[&str]) {
    if words.contains(&"marked") {
        pod.annotations.insert("io.tencent.bcs.dev/game-pod-deleting".to_owned(), "true".to_owned());
    }
    if let Some(number) = words.iter().find_map(|word| word.strip_prefix('#')) {
        pod.annotations.insert("tkex.bkbcs.tencent.com/gamedeployment-index-id".to_owned(), number.to_owned());
    }
    if words.contains(&"relabelled") {
        pod.labels.insert("app".to_owned(), "other".to_owned());
    }
    if words.contains(&"protected") {
        pod.labels.insert("gameplane.dev/protected-by".to_owned(), "uid-game".to_owned());
    }
}

/// Starts the update of a pod: within its grace period of a minute, after it, or after its change.
fn set_out(pod: &mut PodFacts, word: &str, now: Timestamp) {
    let revision = pod.revision().unwrap().to_owned();
    let since = now - SignedDuration::from_secs(if word == "draining" { 5 } else { 90 });
    let state = json!({ "revision": revision, "lastRevision": "game-old", "lastContainerStatuses": { "game": { "imageID": "sha256:game:0", "restartCount": 0 } } });
    let pending = json!({ "revision": revision, "containerImages": {}, "graceSeconds": 60 });
    let waits = word != "restarting";
    pod.update = Update::read(Some(&state.to_string()), waits.then(|| pending.to_string()).as_deref());
    (pod.gate, pod.ready_since) = (Gate::Down(since), None);
    if !waits {
        pod.containers[0].image = "game:1".into();
        pod.containers[0].running = false;
    }
}

fn word(hold: &Hold) -> &'static str {
    match hold {
        Hold::PausedByUser => "paused",
        Hold::Partition { .. } => "partition",
        Hold::Budget { .. } => "budget",
        Hold::OnDelete { .. } => "on delete",
        Hold::EndedTooSoon { .. } => "ended",
        Hold::NotInThisVersion(_) => "not in this version",
        Hold::PausedByStep { .. } => "paused by step",
        Hold::HookFailed { .. } => "hook failed",
        Hold::HookRunning { .. } => "hook running",
        Hold::HookNotPossible { .. } => "hook not possible",
        Hold::WaitingForHook { .. } => "waiting for hook",
        Hold::GateNotPossible { .. } => "gate not possible",
        Hold::Cordoned { .. } => "cordoned",
        Hold::NodesSilent { .. } => "nodes silent",
        Hold::OtherBudget { .. } => "other budget",
        Hold::NoIndex { .. } => "no index",
        Hold::Step { .. } => "step",
        Hold::NotInPlace { .. } => "not in place",
        Hold::Refused { .. } => "refused",
        Hold::Ignored { .. } => "ignored",
        Hold::Invalid { .. } => "invalid",
        Hold::RevisionLeaving { .. } => "revision leaving",
        Hold::TooLarge { .. } => "too large",
        Hold::NotListed { .. } => "not listed",
        Hold::Clamped { .. } => "clamped",
    }
}

fn group(world: &GameWorld, pod: &str) -> String {
    let revision = world.cluster.pods[pod].revision().map(|revision| revision.trim_start_matches("game-").to_owned());
    revision.unwrap_or_else(|| "unlabelled".to_owned())
}

fn differ(what: &str, wanted: &dyn std::fmt::Debug, seen: &dyn std::fmt::Debug) -> Result<(), String> {
    Err(format!("{what}: wanted {wanted:?}, seen {seen:?}"))
}

fn check(scenario: &Scenario) -> Result<(), String> {
    let world = build(scenario);
    let plan = world.decide();
    let (mut deletes, mut creates, mut deleted, mut does) = (BTreeMap::new(), BTreeMap::new(), Vec::new(), BTreeMap::new());
    let mut numbers = Vec::new();
    for action in plan.actions() {
        if let Action::DeletePod { name, .. } = action {
            *deletes.entry(group(&world, name)).or_insert(0) += 1;
            deleted.push(name.trim_start_matches("game-").to_owned());
        } else if let Action::CreatePod(new) = action {
            assert!(!world.cluster.pods.contains_key(&new.name), "{} exists", new.name);
            numbers.extend(new.index);
            let which = if new.revision == plan.status.update_revision { "update" } else { "current" };
            *creates.entry(which.to_owned()).or_insert(0) += 1;
        } else {
            *does.entry(action.word().to_owned()).or_insert(0) += 1;
        }
    }
    let wanted = |numbers: &BTreeMap<String, usize>| {
        numbers.iter().filter(|(_, count)| **count > 0).map(|(key, count)| (key.clone(), *count)).collect::<BTreeMap<_, _>>()
    };
    if wanted(&scenario.deletes) != deletes {
        return differ("deletes", &scenario.deletes, &deletes);
    }
    if wanted(&scenario.creates) != creates {
        return differ("creates", &scenario.creates, &creates);
    }
    if let Some(wanted) = scenario.numbers.as_ref().filter(|wanted| **wanted != numbers) {
        return differ("numbers", wanted, &numbers);
    }
    // Revisions have tests of their own.
    does.retain(|word: &String, _| !word.ends_with("_revision"));
    if scenario.does != does {
        return differ("does", &scenario.does, &does);
    }
    if let Some(names) = scenario.deleted.as_ref().filter(|names| **names != deleted) {
        return differ("deleted", names, &deleted);
    }
    check_report(scenario, &world, &plan)
}

/// Checks what a plan says, besides its writes.
fn check_report(scenario: &Scenario, world: &GameWorld, plan: &Plan<GameDeploymentStatus>) -> Result<(), String> {
    if scenario.step.is_some() && scenario.step != plan.status.current_step_index {
        return differ("step", &scenario.step, &plan.status.current_step_index);
    }
    let pause = plan.status.pause_conditions.first().map_or("", |pause| pause.reason.as_str());
    if let Some(wanted) = scenario.pause.as_deref().filter(|wanted| *wanted != pause) {
        return differ("pause", &wanted, &pause);
    }
    let holds: Vec<&str> = plan.holds.iter().map(word).collect();
    if let Some(missing) = scenario.holds.iter().find(|hold| !holds.contains(&hold.as_str())) {
        return differ("holds", missing, &holds);
    }
    for (kind, text) in &scenario.conditions {
        let seen =
            plan.status.conditions.iter().find(|condition| condition.type_ == *kind).map(|one| format!("{} {}", one.status, one.reason));
        if seen.as_ref() != Some(text) {
            return differ(kind, text, &seen);
        }
    }
    let is_quiet = plan.holds.is_empty() && plan.status_delay.is_some() && Some(&plan.status) == world.object.status.as_ref();
    if scenario.quiet && !is_quiet {
        return differ("quiet", &scenario.quiet, &plan.status);
    }
    if scenario.wakes != plan.wake.is_some_and(|wake| wake > world.cluster.now) && scenario.wakes {
        return differ("wakes", &scenario.wakes, &plan.wake);
    }
    Ok(())
}

/// Checks every scenario of a kind; there must be at least `least`.
pub(crate) fn hold<S: DeserializeOwned>(kind: &str, least: usize, name: impl Fn(&S) -> &str, check: impl Fn(&S) -> Result<(), String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios").join(kind);
    let (mut count, mut failures) = (0, Vec::new());
    for file in std::fs::read_dir(folder).unwrap() {
        let file = file.unwrap().path();
        let scenarios: Vec<S> = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for scenario in &scenarios {
            count += 1;
            if let Err(error) = check(scenario) {
                failures.push(format!("{}: {}\n    {error}", file.file_name().unwrap().display(), name(scenario)));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count} scenarios fail:\n{}", failures.len(), failures.join("\n"));
    assert!(count >= least, "only {count} scenarios were read");
}

#[test]
fn every_scenario_holds() {
    hold("gamedeployment", 60, |scenario: &Scenario| &scenario.name, check);
}
