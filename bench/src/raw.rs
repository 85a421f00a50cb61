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

use crate::cpu::CpuTime;

/// How long each part took, from the first request.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) created: Duration,
    pub(crate) ready: Duration,
    pub(crate) kwok_cpu: Duration,
    pub(crate) gone: Duration,
}

pub(crate) async fn measure(cluster: &Cluster, count: usize, workers: usize) -> Result<Raw> {
    let client = cluster.client();
    let name = format!("raw-{count}");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(json!({ "metadata": { "name": name } }))?).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &name);
    kube::runtime::wait::await_condition(accounts, "default", |account: Option<&ServiceAccount>| account.is_some()).await?;
    let pods: Api<Pod> = Api::namespaced(client, &name);
    let kwok = cluster.kwok().context("no fake nodes")?.pid();
    let cpu = CpuTime::of(kwok)?;
    let started = Instant::now();
    let create = async {
        let all = futures::stream::iter((0..count).map(|number| create(&pods, number)));
        all.buffer_unordered(workers).try_collect::<Vec<()>>().await?;
        anyhow::Ok(started.elapsed())
    };
    let ready = async {
        watch_until(&pods, |ready| ready >= count).await?;
        anyhow::Ok(started.elapsed())
    };
    let (created, ready) = tokio::try_join!(create, ready)?;
    let kwok_cpu = CpuTime::of(kwok)?.since(cpu);
    let started = Instant::now();
    let delete = async {
        let all = futures::stream::iter((0..count).map(|number| delete(&pods, number)));
        all.buffer_unordered(workers).try_collect::<Vec<()>>().await.map(drop)
    };
    tokio::try_join!(delete, watch_until(&pods, |ready| ready == 0))?;
    Ok(Raw { created, ready, kwok_cpu, gone: started.elapsed() })
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

/// Returns when the number of Ready pods satisfies `enough`; it is asked only after a first list.
async fn watch_until(pods: &Api<Pod>, enough: impl Fn(usize) -> bool) -> Result<()> {
    use kube::runtime::WatchStreamExt;
    use watcher::Event;
    let mut changes = std::pin::pin!(watcher(pods.clone(), watcher::Config::default()).default_backoff());
    let mut ready = BTreeSet::new();
    let mut listed = false;
    while !listed || !enough(ready.len()) {
        match changes.next().await.context("the watch ended")?? {
            Event::Init => listed = false,
            Event::InitDone => listed = true,
            Event::Apply(pod) | Event::InitApply(pod) if is_ready(&pod) => drop(ready.insert(pod.name_any())),
            Event::Apply(_) | Event::InitApply(_) => {}
            Event::Delete(pod) => drop(ready.remove(&pod.name_any())),
        }
    }
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}
