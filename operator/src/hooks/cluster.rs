//! What the egress policy has to know of the cluster besides its nodes: the addresses of the API server, which are refused to hooks
//! (some of its answers depend on the client's address), and for `--hook-policy=cluster` the networks of Services.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ipnet::IpNet;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::egress::Egress;
use crate::client::Server;

/// How often it is looked up again, because API servers are added and removed.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(60);
/// The same while something is not known.
const RETRY_DELAY: Duration = Duration::from_secs(3);
/// Timeout of one lookup.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The API server writes its own addresses here.
const ENDPOINT_SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// Keeps the policy of hooks up to date.
pub(crate) struct ClusterLookup {
    server: Server,
    egress: Arc<Egress>,
    /// The API server's hosts: the one that this process connects to, and the one that pods know.
    hosts: Vec<String>,
    /// What the last lookup could not find out.
    trouble: String,
}

#[derive(Deserialize)]
struct EndpointSlice {
    #[serde(default)]
    endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<IpAddr>,
}

#[derive(Deserialize)]
struct ServiceCidrs {
    items: Vec<ServiceCidr>,
}

#[derive(Deserialize)]
struct ServiceCidr {
    spec: ServiceCidrSpec,
}

#[derive(Deserialize)]
struct ServiceCidrSpec {
    #[serde(default)]
    cidrs: Vec<IpNet>,
}

impl ClusterLookup {
    pub(crate) fn new(server: &Server, config: &kube::Config, egress: Arc<Egress>) -> Self {
        let in_pods = std::env::var("KUBERNETES_SERVICE_HOST").ok();
        let hosts = config.cluster_url.host().map(str::to_owned).into_iter().chain(in_pods).collect();
        // With its own timeout, so that an API server that asks for a delay holds up no more than one lookup.
        Self { server: server.with_deadline(TIMEOUT), egress, hosts, trouble: String::new() }
    }

    /// Looks everything up once and updates the policy.
    async fn look(&mut self) {
        let (api_server, services) = tokio::join!(self.api_server(), self.services());
        let trouble: Vec<String> = [api_server, services].into_iter().filter_map(Result::err).collect();
        let trouble = trouble.join("; ");
        if !trouble.is_empty() && trouble != self.trouble {
            tracing::warn!(
                why = trouble,
                "what the egress policy of hooks needs to know is not known; hooks are refused what depends on it"
            );
        }
        self.trouble = trouble;
    }

    /// Repeats the lookup for ever. `looked` is sent after the first one.
    pub(crate) async fn keep_looking(mut self, looked: oneshot::Sender<()>) {
        self.look().await;
        // The receiver may be gone.
        let _ = looked.send(());
        loop {
            tokio::time::sleep(if self.trouble.is_empty() { LOOKUP_INTERVAL } else { RETRY_DELAY }).await;
            self.look().await;
        }
    }

    /// Looks up the API server's addresses. They count as known once every lookup has succeeded; later, a failed one only adds addresses.
    async fn api_server(&self) -> Result<(), String> {
        let hosts = self.hosts.iter().map(|host| async move {
            let found = tokio::time::timeout(TIMEOUT, self.egress.find(host)).await;
            found.map_err(|_| format!("no name server says where {host} is"))?.map_err(|why| why.to_string())
        });
        let (hosts, slice) = tokio::join!(join_all(hosts), self.slice());
        let mut all = HashSet::new();
        let mut trouble = Vec::new();
        for found in hosts.into_iter().chain([slice]) {
            match found {
                Ok(addresses) => all.extend(addresses),
                Err(why) => trouble.push(why),
            }
        }
        if trouble.is_empty() {
            self.egress.api_server_is_at(all);
            return Ok(());
        }
        if let Some(known) = self.egress.api_server() {
            self.egress.api_server_is_at(all.into_iter().chain(known));
        }
        Err(format!("the API server's addresses: {}", trouble.join("; ")))
    }

    async fn slice(&self) -> Result<Vec<IpAddr>, String> {
        match tokio::time::timeout(TIMEOUT, self.server.get::<EndpointSlice>(ENDPOINT_SLICE)).await {
            Ok(Ok(slice)) => Ok(slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect()),
            // Some API servers are configured not to write it.
            Ok(Err(error)) if error.is_not_found() => Ok(Vec::new()),
            Ok(Err(error)) => Err(format!("its EndpointSlice cannot be read: {}", error.message)),
            Err(_) => Err("its EndpointSlice could not be read in time".to_owned()),
        }
    }

    async fn services(&self) -> Result<(), String> {
        if !self.egress.needs_services() {
            return Ok(());
        }
        let found = tokio::time::timeout(TIMEOUT, self.server.get::<ServiceCidrs>(SERVICE_CIDRS)).await;
        let found = found.map_err(|_| "ServiceCIDRs could not be listed in time".to_owned())?;
        let found = found.map_err(|error| format!("ServiceCIDRs cannot be listed: {}", error.message))?;
        self.egress.services_are_in(found.items.into_iter().flat_map(|one| one.spec.cidrs));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::Router;
    use axum::routing::get;
    use http::StatusCode;

    use super::*;
    use crate::hooks::egress::{Policy, Reach};

    fn lookup(router: Router, reach: Reach) -> (ClusterLookup, Arc<Egress>) {
        let egress = Egress::new(Policy { reach, ..Policy::default() }, Some("127.0.0.1:1".parse().unwrap())).unwrap();
        let egress = Arc::new(egress);
        let server = Server::new(kube::Client::new(router, "play"), Arc::default());
        let config = kube::Config::new("https://10.1.0.1:6443".parse().unwrap());
        (ClusterLookup::new(&server, &config, Arc::clone(&egress)), egress)
    }

    fn is_allowed(egress: &Egress, address: &str) -> bool {
        egress.check(address.parse().unwrap()).is_ok()
    }

    #[tokio::test]
    async fn hooks_are_refused_until_the_api_server_has_been_found() {
        let works = Arc::new(AtomicBool::new(false));
        let answers = Arc::clone(&works);
        let slice = r#"{ "endpoints": [{ "addresses": ["10.1.0.2"] }, {}] }"#;
        let answer =
            move || async move { if answers.load(Ordering::Relaxed) { (StatusCode::OK, slice) } else { (StatusCode::FORBIDDEN, "{}") } };
        let (mut lookup, egress) = lookup(Router::new().route(ENDPOINT_SLICE, get(answer)), Reach::Open);
        lookup.look().await;
        assert!(!is_allowed(&egress, "1.1.1.1") && lookup.trouble.contains("its EndpointSlice cannot be read"), "{}", lookup.trouble);
        works.store(true, Ordering::Relaxed);
        lookup.look().await;
        assert!(is_allowed(&egress, "1.1.1.1") && !is_allowed(&egress, "10.1.0.1") && !is_allowed(&egress, "10.1.0.2"));
        works.store(false, Ordering::Relaxed);
        lookup.look().await;
        assert!(is_allowed(&egress, "1.1.1.1") && !is_allowed(&egress, "10.1.0.2"), "what was known still counts");
    }

    #[tokio::test]
    async fn services_are_looked_up_where_they_count() {
        let cidrs = r#"{ "items": [{ "spec": { "cidrs": ["10.96.0.0/16", "fd00:1::/112"] } }] }"#;
        let (mut lookup, egress) = lookup(Router::new().route(SERVICE_CIDRS, get(move || async move { cidrs })), Reach::Cluster);
        lookup.look().await;
        assert!(is_allowed(&egress, "10.96.0.9") && is_allowed(&egress, "fd00:1::9") && !is_allowed(&egress, "10.97.0.9"));
        assert!(lookup.trouble.is_empty(), "{}", lookup.trouble);
        let (mut lookup, _) = super::tests::lookup(Router::new(), Reach::Open);
        lookup.look().await;
        assert!(lookup.trouble.is_empty(), "{}", lookup.trouble);
    }
}
