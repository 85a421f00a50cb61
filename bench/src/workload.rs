//! A workload of one kind: created, then updated to a new image.

use std::time::Instant;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use localkube::Cluster;
use serde_json::{Value, json};

use crate::audit;
use crate::median;
use crate::pods::{self, Seen};
use crate::process::{CpuTime, idle, peak_memory};

/// A kind of workload, with its controller.
#[derive(Debug, Clone)]
pub(crate) struct Contender {
    /// Its name in the table.
    pub(crate) label: &'static str,
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    /// Its update strategy: 25 % and 25 %.
    pub(crate) strategy: Value,
    /// The file with its pid, in the run's folder.
    pub(crate) pid_file: &'static str,
    /// Its controller's users in the audit log.
    pub(crate) users: &'static [&'static str],
}

/// The template of all pods.
pub(crate) fn template() -> Value {
    json!({
        "metadata": { "labels": { "app": "bench" } },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "game", "image": "game:1" }] },
    })
}

/// What creating or updating cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) seen: Seen,
    pub(crate) cpu: f64,
    /// Creates, deletes and patches of pods, per pod.
    pub(crate) pod_writes: f64,
    /// All other writes, per pod.
    pub(crate) other_writes: f64,
}

/// What a workload of one size cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    pub(crate) create: Cost,
    pub(crate) roll: Cost,
    pub(crate) peak_memory: u64,
}

impl Costs {
    /// The median of several rounds, and the least memory, which is that of the first round: a process rarely returns
    /// memory.
    pub(crate) fn median(rounds: &[Self]) -> Result<Self> {
        let create = median(rounds.iter().map(|round| round.create).collect(), |cost| cost.seen.ready)?;
        let roll = median(rounds.iter().map(|round| round.roll).collect(), |cost| cost.seen.ready)?;
        let peak_memory = rounds.iter().map(|round| round.peak_memory).min().unwrap_or_default();
        Ok(Self { create, roll, peak_memory })
    }
}

impl Contender {
    pub(crate) fn ours() -> Self {
        Self {
            label: "Gameplane",
            api_version: "tkex.tencent.com/v1alpha1",
            kind: "GameDeployment",
            plural: "gamedeployments",
            strategy: json!({ "updateStrategy": { "maxUnavailable": "25%", "maxSurge": "25%" } }),
            pid_file: "operator-1.pid",
            users: &["system:serviceaccount:bcs-system:gameplane"],
        }
    }

    pub(crate) fn deployment() -> Self {
        Self {
            label: "Deployment, unlimited",
            api_version: "apps/v1",
            kind: "Deployment",
            plural: "deployments",
            strategy: json!({ "strategy": { "rollingUpdate": { "maxUnavailable": "25%", "maxSurge": "25%" } } }),
            pid_file: "kube-controller-manager.pid",
            users: &["system:serviceaccount:kube-system:deployment-controller", "system:serviceaccount:kube-system:replicaset-controller"],
        }
    }

    pub(crate) fn deployment_as_shipped() -> Self {
        Self { label: "Deployment, as shipped", ..Self::deployment() }
    }

    pub(crate) fn clone_set() -> Self {
        Self {
            label: "CloneSet, unlimited",
            api_version: "apps.kruise.io/v1alpha1",
            kind: "CloneSet",
            plural: "clonesets",
            strategy: json!({ "updateStrategy": { "type": "ReCreate", "maxUnavailable": "25%", "maxSurge": "25%" } }),
            pid_file: "kruise-manager.pid",
            users: &["system:serviceaccount:kruise-system:kruise-manager"],
        }
    }

    pub(crate) fn ours_in_place() -> Self {
        let strategy = json!({ "updateStrategy": { "type": "InplaceUpdate", "maxUnavailable": "25%" } });
        Self { strategy, ..Self::ours() }
    }

    pub(crate) fn clone_set_in_place(label: &'static str) -> Self {
        let strategy = json!({ "updateStrategy": { "type": "InPlaceOnly", "maxUnavailable": "25%" } });
        Self { label, strategy, ..Self::clone_set() }
    }

    pub(crate) fn manifest(&self, count: usize) -> Value {
        let mut spec = json!({ "replicas": count, "selector": { "matchLabels": { "app": "bench" } }, "template": template() });
        if let (Some(spec), Some(strategy)) = (spec.as_object_mut(), self.strategy.as_object()) {
            spec.extend(strategy.clone());
        }
        json!({ "apiVersion": self.api_version, "kind": self.kind, "metadata": { "name": "bench" }, "spec": spec })
    }

    pub(crate) fn pid(&self, cluster: &Cluster) -> Result<u32> {
        let file = cluster.folder().join(self.pid_file);
        let text = std::fs::read_to_string(&file).with_context(|| format!("{} does not run", self.label))?;
        Ok(text.trim().parse()?)
    }

    /// Creates `count` pods, updates them all, and deletes them.
    pub(crate) async fn measure(&self, cluster: &Cluster, count: usize) -> Result<Costs> {
        let client = cluster.client();
        let namespace = pods::fresh_namespace(&client, &format!("{}-{count}", self.plural)).await?;
        let (api, pods) = self.apis(cluster, &namespace)?;
        let object = serde_json::from_value(self.manifest(count))?;
        let create = self
            .part(cluster, &namespace, count, &pods, "game:1", async { api.create(&PostParams::default(), &object).await.map(drop) })
            .await?;
        let image = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "game", "image": "game:2" }] } } } });
        let params = PatchParams::default();
        let roll = self
            .part(cluster, &namespace, count, &pods, "game:2", async { api.patch("bench", &params, &Patch::Merge(&image)).await.map(drop) })
            .await?;
        let peak_memory = peak_memory(self.pid(cluster)?)?;
        eprintln!(
            "{}, {count} pods: created in {:.1} s, rolled in {:.1} s",
            self.label,
            create.seen.ready.as_secs_f64(),
            roll.seen.ready.as_secs_f64()
        );
        pods::remove_namespace(&client, &namespace).await?;
        Ok(Costs { create, roll, peak_memory })
    }

    /// The median of several rounds.
    pub(crate) async fn median(&self, cluster: &Cluster, count: usize, rounds: usize) -> Result<Costs> {
        let mut all = Vec::new();
        for _ in 0..rounds {
            all.push(self.measure(cluster, count).await?);
        }
        Costs::median(&all)
    }

    /// Objects of the kind and pods in a namespace.
    pub(crate) fn apis(&self, cluster: &Cluster, namespace: &str) -> Result<(Api<DynamicObject>, Api<Pod>)> {
        let (group, version) = self.api_version.split_once('/').context("a group")?;
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: self.api_version.to_owned(),
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
        };
        let client = cluster.client();
        Ok((Api::namespaced_with(client.clone(), namespace, &resource), Api::namespaced(client, namespace)))
    }

    /// Creates `count` pods and deletes them.
    pub(crate) async fn create_only(&self, cluster: &Cluster, count: usize) -> Result<Seen> {
        let client = cluster.client();
        let namespace = pods::fresh_namespace(&client, &format!("{}-{count}", self.plural)).await?;
        let (api, pods) = self.apis(cluster, &namespace)?;
        let object = serde_json::from_value(self.manifest(count))?;
        let create = async { api.create(&PostParams::default(), &object).await.map(drop) };
        let Cost { seen, cpu, .. } = self.part(cluster, &namespace, count, &pods, "game:1", create).await?;
        eprintln!("{}, {count} pods: created in {:.1} s, {cpu:.2} s of processor time", self.label, seen.ready.as_secs_f64());
        pods::remove_namespace(&client, &namespace).await?;
        Ok(seen)
    }

    async fn part(
        &self,
        cluster: &Cluster,
        namespace: &str,
        count: usize,
        pods: &Api<Pod>,
        image: &str,
        start: impl Future<Output = kube::Result<()>>,
    ) -> Result<Cost> {
        let pid = self.pid(cluster)?;
        idle(cluster).await?;
        let (cpu, writes) = (CpuTime::of(pid)?, audit::writes(cluster, namespace, self.users)?);
        let started = Instant::now();
        start.await?;
        let seen = pods::until_ready(pods, image, count, started).await?;
        let cpu = CpuTime::of(pid)?.since(cpu).as_secs_f64();
        let after = audit::writes(cluster, namespace, self.users)?;
        let per_pod = |after: usize, before: usize| (after - before) as f64 / count as f64;
        Ok(Cost { seen, cpu, pod_writes: per_pod(after.pods, writes.pods), other_writes: per_pod(after.others, writes.others) })
    }
}
