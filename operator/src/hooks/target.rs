//! The target of a measurement: the addresses of its url, each checked against the policy and, where needed, the namespace and pod.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use super::address::unwrapped;
use super::egress::{Denied, Refusal};
use super::http::NoAnswer;
use super::names::is_subdomain;
use super::{Asker, Measurement, prometheus, web};

/// The most addresses of a name that are tried.
const ADDRESSES: usize = 4;

/// The target of a measurement over the network.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) url: Url,
    /// The allowed addresses of the url, at least one.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The timeout of the whole request, for messages.
    pub(crate) timeout: Duration,
    /// When the timeout is over.
    pub(crate) deadline: Instant,
}

impl Target {
    /// The addresses that the limit per host counts, in one form each: names and notations do not matter.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|place| SocketAddr::new(unwrapped(place.ip()), place.port()))
    }
}

/// The url and timeout of a measurement over the network; none for other providers.
pub(crate) fn request(measurement: &Measurement) -> Result<Option<(Url, Duration)>, NoAnswer> {
    let provider = &measurement.metric.provider;
    match (&provider.web, &provider.prometheus) {
        (Some(web), _) => web::request(measurement, web).map(Some),
        (None, Some(prometheus)) => prometheus::request(prometheus).map(Some),
        (None, None) => Ok(None),
    }
}

#[derive(Deserialize)]
struct List<T> {
    items: Vec<T>,
}

impl Asker {
    /// The target of a measurement over the network; none for other providers. Names are resolved, but nothing is sent yet.
    pub(crate) async fn target(&self, measurement: &Measurement) -> Result<Option<Target>, NoAnswer> {
        let Some((url, timeout)) = request(measurement)? else { return Ok(None) };
        let deadline = Instant::now() + timeout;
        let addresses = tokio::time::timeout_at(deadline, self.allowed(measurement, &url)).await;
        let addresses = addresses.map_err(|_| NoAnswer::late(timeout))??;
        Ok(Some(Target { url, addresses, timeout, deadline }))
    }

    /// The addresses of a url that the measurement may connect to.
    pub(crate) async fn allowed(&self, measurement: &Measurement, url: &Url) -> Result<Vec<SocketAddr>, Refusal> {
        let (mut allowed, mut refused) = (Vec::new(), None);
        for place in self.egress.places(url).await?.into_iter().take(ADDRESSES) {
            let denied = match self.egress.check(place.ip()) {
                Ok(()) => None,
                Err(Denied::Node) if self.is_of_gated_pod(measurement, place).await? => None,
                Err(Denied::Foreign) if self.is_of_namespace(measurement, place.ip()).await? => None,
                Err(denied) => Some(denied.of(place.ip())),
            };
            match denied {
                None => allowed.push(place),
                Some(denied) => refused = Some(denied),
            }
        }
        match refused {
            Some(refused) if allowed.is_empty() => Err(refused),
            None if allowed.is_empty() => Err(Refusal::Unknown("the host has no address".to_owned())),
            Some(_) | None => Ok(allowed),
        }
    }

    /// Whether an address of a node is also that of the `hostNetwork` pod that the measurement is about, at a port that the pod declares.
    async fn is_of_gated_pod(&self, measurement: &Measurement, place: SocketAddr) -> Result<bool, Refusal> {
        let (Some(uid), Some(name)) = (&measurement.pod, measurement.arguments.get("PodName").filter(|name| is_subdomain(name))) else {
            return Ok(false);
        };
        match self.server.get::<Pod>(&format!("/api/v1/namespaces/{}/pods/{name}", measurement.namespace)).await {
            Ok(pod) => Ok(pod.uid().as_ref() == Some(uid) && is_on_host(&pod, place)),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => {
                let why = format!("{} is a node's, and it cannot be looked up whether it is pod {name}'s as well: {error}", place.ip());
                Err(Refusal::Unknown(why))
            }
        }
    }

    /// Whether an address belongs to a pod or a Service of the measurement's namespace: one request for each, nothing is cached.
    async fn is_of_namespace(&self, measurement: &Measurement, address: IpAddr) -> Result<bool, Refusal> {
        let (namespace, inner) = (&measurement.namespace, unwrapped(address));
        let unknown = |kind: &str, error| {
            Refusal::Unknown(format!("it cannot be looked up whether {address} belongs to a {kind} of this namespace: {error}"))
        };
        // The address in the status of a pod that has ended may belong to another pod by now.
        let running = format!("status.podIP%3D{inner},status.phase%21%3DSucceeded,status.phase%21%3DFailed");
        let pods = format!("/api/v1/namespaces/{namespace}/pods?limit=1&fieldSelector={running}");
        let pods = self.server.get::<List<Pod>>(&pods).await.map_err(|error| unknown("pod", error))?;
        if !pods.items.is_empty() {
            return Ok(true);
        }
        let services = format!("/api/v1/namespaces/{namespace}/services?limit=1&fieldSelector=spec.clusterIP%3D{inner}");
        let services = self.server.get::<List<Service>>(&services).await.map_err(|error| unknown("Service", error))?;
        Ok(services.items.iter().any(has_selector))
    }
}

/// Users write the EndpointSlices of a Service without a selector, so it could lead anywhere.
fn has_selector(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.selector.as_ref()).is_some_and(|selector| !selector.is_empty())
}

fn is_on_host(pod: &Pod, place: SocketAddr) -> bool {
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else { return false };
    let address = unwrapped(place.ip());
    let addresses = status.pod_ips.iter().flatten().map(|one| &one.ip).chain(&status.pod_ip);
    let mut ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    spec.host_network == Some(true)
        && addresses.filter_map(|text| text.parse().ok()).any(|one: IpAddr| unwrapped(one) == address)
        && ports.any(|port| port.container_port == i32::from(place.port()) && port.protocol.as_deref().unwrap_or("TCP") == "TCP")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::hooks::egress::{Policy, Reach};
    use crate::hooks::testing::{Api, measurement};

    fn asker(reach: Reach, answers: Vec<(&'static str, Value)>) -> (Asker, Api) {
        crate::hooks::testing::asker(Policy { reach, ..Policy::default() }, answers)
    }

    async fn said(asker: &Asker, measurement: &Measurement) -> Result<Vec<SocketAddr>, String> {
        asker.target(measurement).await.map(|target| target.unwrap().addresses).map_err(|error| error.message)
    }

    fn pod(host_network: bool) -> Value {
        json!({
            "metadata": { "name": "game-0", "uid": "pod-7" },
            "spec": {
                "hostNetwork": host_network,
                "containers": [{ "name": "game", "ports": [{ "containerPort": 8000 }, { "containerPort": 9000, "protocol": "UDP" }] }],
            },
            "status": { "podIP": "10.1.0.7", "podIPs": [{ "ip": "10.1.0.7" }] },
        })
    }

    #[tokio::test]
    async fn a_node_is_reached_only_as_the_gated_pod_and_at_its_ports() {
        let (asker, api) = asker(Reach::Cluster, vec![("/namespaces/play/pods/game-0", pod(true))]);
        let gated = |url: &str| measurement(url, Some("pod-7"));
        assert_eq!(said(&asker, &gated("http://10.1.0.7:8000/")).await, Ok(vec!["10.1.0.7:8000".parse().unwrap()]));
        assert!(said(&asker, &gated("http://[::ffff:10.1.0.7]:8000/")).await.is_ok());
        api.asked();
        for (url, uid, asked) in [
            ("http://10.1.0.7:10250/", Some("pod-7"), 1),
            ("http://10.1.0.7:9000/", Some("pod-7"), 1),
            ("http://10.1.0.7:8000/", Some("pod-6"), 1),
            ("http://10.1.0.7:8000/", None, 0),
        ] {
            let refused = said(&asker, &measurement(url, uid)).await.unwrap_err();
            assert_eq!(refused, "10.1.0.7 is refused: it is a node's; --hook-allow-cidr 10.1.0.7/32 would allow it", "{url} {uid:?}");
            assert_eq!(api.asked().len(), asked, "{url} {uid:?}");
        }
        let (asker, _) = super::tests::asker(Reach::Open, vec![("/namespaces/play/pods/game-0", pod(false))]);
        assert!(said(&asker, &gated("http://10.1.0.7:8000/")).await.is_err(), "it does not use its node's network");
    }

    #[tokio::test]
    async fn own_pods_and_services_are_looked_up_in_the_namespace_alone() {
        let service = |selector: Value| json!({ "items": [{ "spec": { "selector": selector } }] });
        let none = json!({ "items": [] });
        let answers = vec![
            ("/namespaces/play/pods?limit=1&fieldSelector=status.podIP%3D10.244.0.7,status.phase%21%3DSucceeded", json!({ "items": [{}] })),
            ("/namespaces/play/pods?", none.clone()),
            ("/namespaces/play/services?limit=1&fieldSelector=spec.clusterIP%3D10.96.0.7", service(json!({ "app": "game" }))),
            ("/namespaces/play/services?limit=1&fieldSelector=spec.clusterIP%3D10.96.0.8", service(json!({}))),
            ("/namespaces/play/services?", none),
        ];
        let (asker, api) = asker(Reach::OwnPods, answers);
        for url in ["http://10.244.0.7:8000/", "http://[::ffff:10.244.0.7]/", "http://10.96.0.7/"] {
            assert!(said(&asker, &measurement(url, None)).await.is_ok(), "{url}");
        }
        for url in ["http://10.244.0.8:8000/", "http://10.96.0.8/", "http://1.1.1.1/"] {
            let refused = said(&asker, &measurement(url, None)).await.unwrap_err();
            assert!(refused.contains("it belongs neither to a pod of this namespace nor to a Service"), "{url}: {refused}");
        }
        assert!(api.asked().iter().all(|asked| asked.contains("/namespaces/play/")));
        for url in ["http://10.1.0.7/", "http://169.254.169.254/", "http://10.96.0.1/"] {
            api.asked();
            assert!(said(&asker, &measurement(url, None)).await.is_err(), "{url}");
            assert!(api.asked().is_empty(), "{url}: the answer would change nothing");
        }
        let (lost, _) = super::tests::asker(Reach::OwnPods, Vec::new());
        let unknown = said(&lost, &measurement("http://10.244.0.7/", None)).await.unwrap_err();
        assert!(unknown.contains("it cannot be looked up whether 10.244.0.7 belongs to a pod of this namespace"), "{unknown}");
    }
}
