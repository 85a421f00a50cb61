//! The baseline: a client that creates pods as fast as the API server accepts them.

use std::time::Instant;

use anyhow::Result;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use localkube::Cluster;
use serde_json::json;

use crate::pods::{self, Seen};
use crate::process;

pub(crate) async fn measure(cluster: &Cluster, count: usize, workers: usize) -> Result<Seen> {
    let client = cluster.client();
    let name = format!("raw-{count}");
    pods::namespace(&client, &name).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &name);
    process::idle(cluster).await?;
    let started = Instant::now();
    let create = async {
        let all = futures::stream::iter((0..count).map(|number| create(&pods, number)));
        all.buffer_unordered(workers).try_collect::<Vec<()>>().await
    };
    let (_, seen) = tokio::try_join!(create, pods::until_ready(&pods, "game:1", count, started))?;
    eprintln!("plain client, {count} pods: created in {:.1} s", seen.ready.as_secs_f64());
    pods::remove_namespace(&client, &name).await?;
    Ok(seen)
}

async fn create(pods: &Api<Pod>, number: usize) -> Result<()> {
    let pod = json!({
        "metadata": { "name": format!("pod-{number}"), "labels": { "app": "bench" } },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "game", "image": "game:1" }] },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}
