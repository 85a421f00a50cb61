//! A GameDeployment under test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::pod;
use crate::scene::{Scene, merge};
use crate::service::Services;
use crate::wait::until;

/// A manifest with one container `game` on image `game:1`, changed by `spec` (a merge patch).
#[must_use]
pub fn manifest(name: &str, spec: &Value) -> Value {
    let mut whole = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1",
        "kind": "GameDeployment",
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "game", "image": "game:1" }] },
            },
        },
    });
    merge(&mut whole, &json!({ "spec": spec }));
    whole
}

/// A spec for in-place updates of two pods at a time, with this grace in seconds.
#[must_use]
pub fn in_place(replicas: i32, grace: i32) -> Value {
    json!({
        "replicas": replicas,
        "updateStrategy": { "type": "InplaceUpdate", "maxUnavailable": 2, "inPlaceUpdateStrategy": { "gracePeriodSeconds": grace } },
    })
}

/// An expected result of [`Game::images`]: how many pods run each image.
#[must_use]
pub fn counts(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
    pairs.iter().map(|(image, count)| ((*image).to_owned(), *count)).collect()
}

/// The words of the last line of `kubectl get gamedeployment`, without the age.
pub fn row(scene: &Scene) -> Result<Vec<String>> {
    let table = scene.kubectl(&["get", "gamedeployment"])?;
    let line = table.lines().last().context("an empty table")?;
    Ok(line.split_whitespace().take(6).map(str::to_owned).collect())
}

/// Whether the message of a condition contains these words.
#[must_use]
pub fn says(status: &Value, kind: &str, words: &str) -> bool {
    find(status, kind).and_then(|one| one["message"].as_str()).is_some_and(|message| message.contains(words))
}

/// The label of protected pods.
pub const PROTECTED_BY: &str = "gameplane.dev/protected-by";

/// One GameDeployment in a test's namespace.
#[derive(Debug, Clone)]
pub struct Game {
    scene: Arc<Scene>,
    name: String,
}

impl Game {
    /// Applies a manifest made by [`manifest`].
    pub fn apply(scene: &Arc<Scene>, name: &str, spec: &Value) -> Result<Self> {
        scene.apply(&manifest(name, spec))?;
        Ok(Self::named(scene, name))
    }

    /// A GameDeployment that exists already or is created later.
    #[must_use]
    pub fn named(scene: &Arc<Scene>, name: &str) -> Self {
        Self { scene: Arc::clone(scene), name: name.to_owned() }
    }

    /// The objects of its kind.
    #[must_use]
    pub fn api(&self) -> Api<DynamicObject> {
        self.scene.custom("GameDeployment")
    }

    /// Changes it with a merge patch.
    pub async fn patch(&self, change: Value) -> Result<()> {
        self.api().patch(&self.name, &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    /// Sets the image of its only container.
    pub async fn set_image(&self, image: &str) -> Result<()> {
        self.patch(json!({ "spec": { "template": { "spec": { "containers": [{ "name": "game", "image": image }] } } } })).await
    }

    /// Waits until `holds` is true of a status that belongs to the current spec, and returns that status.
    pub async fn until(&self, what: &str, mut holds: impl FnMut(&Value) -> bool) -> Result<Value> {
        let api = self.api();
        let seen = until(&api, &self.name, what, |object| object.is_some_and(|object| is_current(object) && holds(&object.data["status"])));
        Ok(seen.await?.map(|object| object.data["status"].clone()).unwrap_or_default())
    }

    /// Waits until Progressing is False with this reason: the operator has nothing left to do.
    pub async fn until_rest(&self, reason: &str) -> Result<Value> {
        self.until(&format!("at rest: {reason}"), |status| condition(status, "Progressing") == Some(("False", reason))).await
    }

    /// Waits until a condition has this status and reason, and returns its message.
    pub async fn until_condition(&self, kind: &str, status: &str, reason: &str) -> Result<String> {
        let seen = self.until(&format!("{kind}={status}, {reason}"), |seen| condition(seen, kind) == Some((status, reason))).await?;
        Ok(find(&seen, kind).and_then(|one| one["message"].as_str()).unwrap_or_default().to_owned())
    }

    /// Waits until this many pods are drained for their update.
    pub async fn until_drained(&self, count: i64) -> Result<()> {
        let drained = |status: &Value| {
            status["readyReplicas"].as_i64() == status["replicas"].as_i64().map(|all| all - count) && status["updatedReplicas"] == count
        };
        self.until(&format!("{count} drained"), drained).await.map(drop)
    }

    /// Waits until `count` pods wait for a hook, according to this field of the status, and returns their names.
    pub async fn until_waiting(&self, field: &str, count: usize) -> Result<BTreeSet<String>> {
        let waiting = |status: &Value| status[field].as_array().map_or(0, Vec::len);
        let status = self.until(&format!("{count} in {field}"), |status| waiting(status) == count).await?;
        let all = status[field].as_array().into_iter().flatten();
        Ok(all.filter_map(|one| one["podName"].as_str().map(str::to_owned)).collect())
    }

    /// Waits until every pod is protected and nothing is left to do, and returns the pods.
    pub async fn until_protected(&self) -> Result<Vec<Pod>> {
        self.until_rest("Complete").await?;
        self.until_condition("Protected", "True", "HookDecides").await?;
        let pods = self.pods().await?;
        ensure!(!pods.is_empty() && pods.iter().all(|pod| pod.labels().contains_key(PROTECTED_BY)), "a pod is not protected");
        Ok(pods)
    }

    /// Its pods that are not being deleted.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let all = self.scene.pods().list(&ListParams::default().labels(&format!("app={}", self.name))).await?;
        Ok(all.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
    }

    /// How many of its pods run each image.
    pub async fn images(&self) -> Result<BTreeMap<String, usize>> {
        let mut images = BTreeMap::new();
        for pod in self.pods().await? {
            *images.entry(pod::image(&pod)).or_insert(0) += 1;
        }
        Ok(images)
    }

    /// Fails unless the status counts this many pods: replicas, ready, updated.
    pub fn expect_counts(status: &Value, replicas: i64, ready: i64, updated: i64) -> Result<()> {
        let count = |field: &str| status[field].as_i64().unwrap_or(-1);
        let seen = (count("replicas"), count("readyReplicas"), count("updatedReplicas"));
        ensure!(seen == (replicas, ready, updated), "replicas, ready and updated are {seen:?}, not {:?}", (replicas, ready, updated));
        Ok(())
    }
}

fn is_current(object: &DynamicObject) -> bool {
    object.data["status"]["observedGeneration"].as_i64() == object.metadata.generation
}

fn find<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|one| one["type"] == kind)
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<(&'a str, &'a str)> {
    let found = find(status, kind)?;
    Some((found["status"].as_str()?, found["reason"].as_str()?))
}

/// What a watch of pods has seen.
#[derive(Debug, Clone, Default)]
pub struct PodCount {
    /// The most pods that existed at once without being deleted.
    pub most: usize,
    /// The fewest pods that were ready at once.
    pub fewest_ready: usize,
    /// Names of all pods that ever existed.
    pub names: BTreeSet<String>,
    /// How long each pod was out of service.
    pub services: Services,
}

/// Watches pods until the returned closure is called, which returns what was seen over all events.
pub async fn watch_pods(pods: &Api<Pod>, label: &str) -> Result<impl FnOnce() -> PodCount + use<>> {
    let mut known: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    let list = pods.list(&ListParams::default().labels(label)).await?;
    let state = |pod: &Pod| (pod.metadata.deletion_timestamp.is_none(), pod::is_ready(pod));
    known.extend(list.items.iter().map(|pod| (pod.name_any(), state(pod))));
    let count = |known: &BTreeMap<String, (bool, bool)>| {
        (known.values().filter(|(present, _)| *present).count(), known.values().filter(|(_, ready)| *ready).count())
    };
    let (most, fewest_ready) = count(&known);
    let seen = Arc::new(Mutex::new(PodCount { most, fewest_ready, names: known.keys().cloned().collect(), services: Services::default() }));
    let (shared, pods, label) = (Arc::clone(&seen), pods.clone(), label.to_owned());
    let task = tokio::spawn(async move {
        let mut changes = std::pin::pin!(watcher(pods, watcher::Config::default().labels(&label)).default_backoff());
        let mut listed = BTreeMap::new();
        while let Some(change) = changes.next().await {
            if let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = &change {
                shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).services.saw(pod, Instant::now());
            }
            match change {
                Ok(watcher::Event::Apply(pod)) => {
                    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).names.insert(pod.name_any());
                    known.insert(pod.name_any(), state(&pod));
                }
                Ok(watcher::Event::Delete(pod)) => drop(known.remove(&pod.name_any())),
                // A new list replaces what is known only when it is complete.
                Ok(watcher::Event::InitApply(pod)) => {
                    listed.insert(pod.name_any(), state(&pod));
                    continue;
                }
                Ok(watcher::Event::InitDone) => {
                    known = std::mem::take(&mut listed);
                    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).names.extend(known.keys().cloned());
                }
                Ok(watcher::Event::Init) | Err(_) => {
                    listed.clear();
                    continue;
                }
            }
            let (most, ready) = count(&known);
            let mut seen = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            seen.most = seen.most.max(most);
            seen.fewest_ready = seen.fewest_ready.min(ready);
        }
    });
    Ok(move || {
        task.abort();
        seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    })
}
