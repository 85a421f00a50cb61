//! The yardstick: a client that creates pods as fast as the API server takes them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use localkube::Cluster;
use serde_json::json;

/// How long each part took, from the first request.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) created: Duration,
    pub(crate) ready: Duration,
    pub(crate) deleted: Duration,
}

pub(crate) async fn measure(cluster: &Cluster, count: usize, workers: usize) -> Result<Raw> {
    let client = cluster.client();
    let name = format!("raw-{count}");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": name } }))?).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
    kube::runtime::wait::await_condition(accounts, "default", |account: Option<&ServiceAccount>| account.is_some()).await?;
    let pods: Api<Pod> = Api::namespaced(client, &name);
    let started = Instant::now();
    let create = async {
        let all = futures::stream::iter((0..count).map(|number| create(&pods, number)));
        all.buffer_unordered(workers).try_collect::<Vec<()>>().await?;
        anyhow::Ok(started.elapsed())
    };
    let ready = async {
        count_until(&pods, |ready| ready >= count).await?;
        anyhow::Ok(started.elapsed())
    };
    let (created, ready) = tokio::try_join!(create, ready)?;
    let started = Instant::now();
    let all = futures::stream::iter((0..count).map(|number| delete(&pods, number)));
    all.buffer_unordered(workers).try_collect::<Vec<()>>().await?;
    Ok(Raw { created, ready, deleted: started.elapsed() })
}

fn pod_name(number: usize) -> String {
    format!("pod-{number}")
}

async fn create(pods: &Api<Pod>, number: usize) -> Result<()> {
    let pod = json!({
        "metadata": { "name": pod_name(number) },
        "spec": { "containers": [{ "name": "game", "image": "game:1" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}

async fn delete(pods: &Api<Pod>, number: usize) -> Result<()> {
    pods.delete(&pod_name(number), &DeleteParams::default()).await?;
    Ok(())
}

/// Returns when the number of Ready pods satisfies `enough`.
async fn count_until(pods: &Api<Pod>, enough: impl Fn(usize) -> bool) -> Result<()> {
    use kube::runtime::WatchStreamExt;
    let mut changes = std::pin::pin!(watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects());
    let mut ready = BTreeSet::new();
    while !enough(ready.len()) {
        let pod = changes.next().await.context("the watch ended")??;
        if is_ready(&pod) {
            ready.insert(pod.name_any());
        }
    }
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}
