//! The baseline: a client that creates pods as fast as the API server accepts them.

use std::time::Instant;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Client};
use localkube::Cluster;
use planner::plan::NewPod;
use planner::workload::manifest::{self, Owner};
use serde_json::{Value, json};

use crate::pods::{self, Seen};
use crate::process;
use crate::workload::template;

/// The pods that the plain client creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pods {
    /// The template and a name.
    Bare,
    /// Those that the operator would create: with an owner, and labels for their revision and instance.
    Owned,
}

impl Pods {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Bare => "plain client, bare pods",
            Self::Owned => "plain client, the same pods",
        }
    }
}

pub(crate) async fn measure(cluster: &Cluster, kind: Pods, count: usize, workers: usize) -> Result<Seen> {
    let client = cluster.client();
    let name = pods::fresh_namespace(&client, &format!("raw-{count}")).await?;
    let owner = if kind == Pods::Owned { Some(owner(&client, &name).await?) } else { None };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &name);
    process::idle(cluster).await?;
    let started = Instant::now();
    let create = async {
        let all = futures::stream::iter((0..count).map(|number| create(&pods, pod(owner.as_ref(), number))));
        all.buffer_unordered(workers).try_collect::<Vec<()>>().await
    };
    let (_, seen) = tokio::try_join!(create, pods::until_ready(&pods, "game:1", count, started))?;
    eprintln!("{}, {count} pods: created in {:.1} s", kind.label(), seen.ready.as_secs_f64());
    pods::remove_namespace(&client, &name).await?;
    Ok(seen)
}

/// An owner of pods that no controller acts for, so that they are not garbage.
async fn owner(client: &Client, namespace: &str) -> Result<Owner> {
    let [group, version, api_version, kind, plural] =
        ["tkex.tencent.com", "v1alpha1", "tkex.tencent.com/v1alpha1", "HookTemplate", "hooktemplates"].map(str::to_owned);
    let resource = ApiResource { group, version, api_version: api_version.clone(), kind: kind.clone(), plural };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let metric = json!({ "name": "never", "provider": { "web": { "url": "http://example.com", "jsonPath": "{$}" } } });
    let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": "bench" }, "spec": { "metrics": [metric] } });
    let created = api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    let uid = created.metadata.uid.context("the owner has no uid")?;
    Ok(Owner { api_version, kind, name: "bench".to_owned(), namespace: namespace.to_owned(), uid })
}

fn pod(owner: Option<&Owner>, number: usize) -> Value {
    let Some(owner) = owner else {
        let mut pod = template();
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("name".to_owned(), json!(format!("pod-{number}")));
        }
        return pod;
    };
    let id = format!("{number:05}");
    let (name, revision, template) = (format!("bench-{id}"), "bench-5d9fbbcc7b".to_owned(), template().into());
    manifest::pod(owner, &NewPod { name, id, revision, template, gated: false, index: None, protected: false, successor: false })
}

async fn create(pods: &Api<Pod>, pod: Value) -> Result<()> {
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    Ok(())
}
