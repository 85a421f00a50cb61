//! How long pods are out of service for an in-place update, and how much of that the restart of the container takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

/// One time that a pod was out of service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// From the readiness gate turning False until it is True again.
    pub whole: Duration,
    /// From the new image in the spec until the container runs it.
    pub restart: Duration,
}

/// What is known of one pod.
#[derive(Debug, Clone, Default)]
struct Service {
    down: Option<Instant>,
    patched: Option<Instant>,
    back: Option<Instant>,
    image: String,
    outages: Vec<Outage>,
}

/// When pods were out of service, event by event.
#[derive(Debug, Clone, Default)]
pub struct Services(BTreeMap<String, Service>);

impl Services {
    /// A pod was seen.
    pub(crate) fn saw(&mut self, pod: &Pod, now: Instant) {
        self.0.entry(pod.name_any()).or_default().saw(pod, now);
    }

    /// Every time that a pod was out of service and came back.
    #[must_use]
    pub fn outages(&self) -> BTreeMap<&str, &[Outage]> {
        self.0.iter().map(|(name, service)| (name.as_str(), service.outages.as_slice())).collect()
    }
}

impl Service {
    fn saw(&mut self, pod: &Pod, now: Instant) {
        let image = crate::pod::image(pod);
        if self.down.is_some() && self.image != image {
            self.patched = Some(now);
        }
        self.image = image;
        let status = pod.status.as_ref();
        let runs = |container: &ContainerStatus| container.ready && container.image == self.image;
        if self.patched.is_some() && status.and_then(|status| status.container_statuses.as_ref()).is_some_and(|all| all.iter().all(runs)) {
            self.back.get_or_insert(now);
        }
        match (crate::pod::gate(pod).map(|gate| gate.status.as_str()), self.down) {
            (Some("False"), None) => self.down = Some(now),
            (Some("True"), Some(down)) => {
                let restart = self.back.zip(self.patched).map(|(back, patched)| back - patched).unwrap_or_default();
                self.outages.push(Outage { whole: now - down, restart });
                (self.down, self.patched, self.back) = (None, None, None);
            }
            (Some(_) | None, _) => {}
        }
    }
}
