//! Waiting for something to become true, on a watch.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::watch_object;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::pod::is_ready;
use crate::suite::node_silence;

/// The timeout of a wait: far above what a slow machine needs, and longer than a node is silent in any test, so that only a
/// failing test reaches it.
fn limit() -> Duration {
    Duration::from_secs(140) + 2 * node_silence()
}

/// The number of such timeouts after which a wait fails although the object still changes.
const MOST_TIMEOUTS: u32 = 5;

/// Waits until `holds` is true of the object (or of its absence) and returns it. It fails when the object has not changed for the
/// length of the timeout; the error contains what was seen last.
pub async fn until<K>(api: &Api<K>, name: &str, what: &str, mut holds: impl FnMut(Option<&K>) -> bool) -> Result<Option<K>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize + Send + 'static,
{
    let version = |object: Option<&K>| object.and_then(|object| object.meta().resource_version.clone());
    let (mut last, started): (Option<K>, _) = (None, Instant::now());
    let mut changed = started;
    let mut changes = std::pin::pin!(watch_object(api.clone(), name));
    // An error here is a broken watch; the stream opens a new one.
    while let Ok(Some(change)) = timeout_at((changed + limit()).min(started + limit() * MOST_TIMEOUTS), changes.next()).await {
        let Ok(seen) = change else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        if version(seen.as_ref()) != version(last.as_ref()) {
            changed = Instant::now();
        }
        last = seen;
        if holds(last.as_ref()) {
            return Ok(last);
        }
    }
    let (waited, still) = (started.elapsed().as_secs(), changed.elapsed().as_secs());
    let seen = serde_json::to_string(&last)?;
    bail!("{name}: not seen within {waited} s, of which nothing changed in the last {still}: {what}. Last seen: {seen}")
}

/// Waits until the object does not exist.
pub async fn until_gone<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize + Send + 'static,
{
    until(api, name, "gone", |object| object.is_none()).await.map(drop)
}

/// Waits until a pod is Ready and returns it.
pub async fn until_pod_ready(pods: &Api<Pod>, name: &str) -> Result<Pod> {
    let pod = until(pods, name, "Ready", |pod| pod.is_some_and(is_ready)).await?;
    pod.ok_or_else(|| anyhow::anyhow!("{name} vanished"))
}

/// Waits until some pod satisfies `holds` and returns it.
pub async fn until_some_pod(pods: &Api<Pod>, what: &str, mut holds: impl FnMut(&Pod) -> bool) -> Result<Pod> {
    let watching = async {
        let mut changes = std::pin::pin!(watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects());
        loop {
            // The stream opens a new watch after an error and never ends by itself.
            if let Some(Ok(pod)) = changes.next().await
                && holds(&pod)
            {
                return pod;
            }
        }
    };
    tokio::time::timeout(limit(), watching).await.map_err(|_| anyhow::anyhow!("no pod was seen within {} s: {what}", limit().as_secs()))
}

/// Polls until `holds` is true, for what cannot be watched: processes, files, logs, responses. On timeout `failure` is the
/// error.
pub async fn eventually(failure: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    eventually_says(failure, || std::future::ready(Ok(holds()))).await
}

/// The same for an asynchronous check.
pub async fn eventually_says<Fut: Future<Output = Result<bool>>>(failure: &str, mut holds: impl FnMut() -> Fut) -> Result<()> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60) + 2 * node_silence();
    while !holds().await? {
        if tokio::time::Instant::now() >= deadline {
            bail!("{failure}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Repeats a request until this is the response: kube-proxy and DNS give no signal when they have caught up.
pub async fn until_answer(wanted: &str, mut attempt: impl FnMut() -> Result<String>) -> Result<()> {
    let mut last = None;
    let is_it = || {
        let answer = attempt();
        let is_it = answer.as_ref().is_ok_and(|answer| answer.trim() == wanted);
        last = Some(answer);
        is_it
    };
    eventually(&format!("{wanted:?} was not answered"), is_it).await.with_context(|| format!("{last:?}"))
}
