//! Namespaces for measurements, and waiting until their pods are ready.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// A new namespace whose name starts with `name`. A name is not used twice: for 30 seconds after a namespace was deleted, the API server
/// looks one of the same name up at every write in it.
pub(crate) async fn fresh_namespace(client: &Client, name: &str) -> Result<String> {
    static NUMBER: AtomicUsize = AtomicUsize::new(1);
    let name = format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    namespace(client, &name).await?;
    Ok(name)
}

/// A namespace with a ServiceAccount, so that pods can be created in it.
pub(crate) async fn namespace(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": name } }))?).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
    kube::runtime::wait::await_condition(accounts, "default", |account: Option<&ServiceAccount>| account.is_some()).await?;
    Ok(())
}

/// Deletes the namespace and everything in it, and waits for that.
pub(crate) async fn remove_namespace(client: &Client, name: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), name);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.delete(name, &DeleteParams::background()).await?;
    // Not measured: without a grace period it takes seconds instead of minutes.
    let _ = pods.delete_collection(&DeleteParams::default().grace_period(0), &kube::api::ListParams::default()).await;
    kube::runtime::wait::await_condition(namespaces, name, |namespace: Option<&Namespace>| namespace.is_none()).await?;
    Ok(())
}

/// What was observed until all pods were ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// When `count` pods existed.
    pub(crate) exist: Duration,
    /// When `count` pods were ready.
    pub(crate) ready: Duration,
    /// The most pods that existed at once, those being deleted not counted.
    pub(crate) most: usize,
    /// When each tenth of the pods was ready for the first time.
    pub(crate) tenths: [Duration; 10],
}

#[derive(Clone, Copy)]
struct State {
    present: bool,
    wanted: bool,
    ready: bool,
}

/// Watches until exactly `count` pods exist, all on `image` and ready. Time runs from `started`.
pub(crate) async fn until_ready(pods: &Api<Pod>, image: &str, count: usize, started: Instant) -> Result<Seen> {
    use watcher::Event;
    let mut changes = std::pin::pin!(watcher(pods.clone(), watcher::Config::default()).default_backoff());
    let mut known: BTreeMap<String, State> = BTreeMap::new();
    let (mut exist, mut most) = (None, 0);
    let mut tenths = [None; 10];
    let (mut present, mut wanted, mut ready) = (0_usize, 0_usize, 0_usize);
    loop {
        let (name, state) = match changes.next().await.context("the watch ended")?? {
            Event::Init | Event::InitDone => continue,
            Event::Apply(pod) | Event::InitApply(pod) => (pod.name_any(), Some(state(&pod, image))),
            Event::Delete(pod) => (pod.name_any(), None),
        };
        let old = match state {
            Some(state) => known.insert(name, state),
            None => known.remove(&name),
        };
        for (state, sign) in [(old, -1), (state, 1)] {
            let Some(state) = state else { continue };
            present = present.saturating_add_signed(if state.present { sign } else { 0 });
            wanted = wanted.saturating_add_signed(if state.present && state.wanted { sign } else { 0 });
            ready = ready.saturating_add_signed(if state.present && state.wanted && state.ready { sign } else { 0 });
        }
        most = most.max(present);
        for (_, tenth) in (1_usize..).zip(tenths.iter_mut()).filter(|(number, _)| ready * 10 >= count * number) {
            tenth.get_or_insert_with(|| started.elapsed());
        }
        if wanted >= count {
            exist.get_or_insert_with(|| started.elapsed());
        }
        if ready == count && present == count {
            let ready = started.elapsed();
            return Ok(Seen { exist: exist.unwrap_or(ready), ready, most, tenths: tenths.map(|tenth| tenth.unwrap_or(ready)) });
        }
    }
}

fn state(pod: &Pod, image: &str) -> State {
    let spec = pod.spec.iter().flat_map(|spec| &spec.containers).all(|container| container.image.as_deref() == Some(image));
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let ready = conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"));
    State { present: pod.metadata.deletion_timestamp.is_none(), wanted: spec, ready }
}
