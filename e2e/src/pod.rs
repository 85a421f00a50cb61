//! What a pod's spec and status say.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use kube::ResourceExt;

/// One of its conditions.
#[must_use]
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|one| one.type_ == kind)
}

/// The condition of its readiness gate for in-place updates.
#[must_use]
pub fn gate(pod: &Pod) -> Option<&PodCondition> {
    condition(pod, "InPlaceUpdateReady")
}

/// Whether its Ready condition is True and it is not being deleted.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True") && pod.metadata.deletion_timestamp.is_none()
}

/// Whether it is being deleted, or gone.
#[must_use]
pub fn is_leaving(pod: Option<&Pod>) -> bool {
    pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
}

/// The name of its node.
pub fn node_of(pod: &Pod) -> Result<String> {
    pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).context("no node")
}

/// Its address.
pub fn ip(pod: &Pod) -> Result<String> {
    pod.status.as_ref().and_then(|status| status.pod_ip.clone()).context("no pod IP")
}

/// The image of its first container.
#[must_use]
pub fn image(pod: &Pod) -> String {
    pod.spec.iter().flat_map(|spec| &spec.containers).find_map(|container| container.image.clone()).unwrap_or_default()
}

/// The status of one of its containers, also of an ephemeral one.
#[must_use]
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.ephemeral_container_statuses).flatten();
    all.into_iter().find(|status| status.name == name)
}

/// Why a container waits.
#[must_use]
pub fn waits_for<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    container(pod, name)?.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

/// How many pods there are for each number of restarts of the first container.
#[must_use]
pub fn restarts(pods: &[Pod]) -> BTreeMap<i32, usize> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let first = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
        *all.entry(first.map_or(-1, |container| container.restart_count)).or_insert(0) += 1;
    }
    all
}

/// The uids of pods.
#[must_use]
pub fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(ResourceExt::uid).collect()
}
