//! Where the API server is. Hooks have no business there: what it tells depends on who asks, and some of it on where from.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::egress::Egress;
use crate::client::Server;

/// How often it is looked for again: API servers come and go.
const AGAIN: Duration = Duration::from_secs(60);
/// How long looking may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The API server writes its own addresses here.
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

/// Keeps the policy of hooks up to date.
pub(crate) struct ApiServer {
    server: Server,
    egress: Arc<Egress>,
    /// What this process connects to, and what pods know.
    hosts: Vec<String>,
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

impl ApiServer {
    pub(crate) fn new(server: Server, config: &kube::Config, egress: Arc<Egress>) -> Self {
        let in_pods = std::env::var("KUBERNETES_SERVICE_HOST").ok();
        let hosts = config.cluster_url.host().map(str::to_owned).into_iter().chain(in_pods).collect();
        Self { server, egress, hosts }
    }

    /// Looks once and tells the policy. What cannot be found out now is logged, and what was known of it still counts.
    pub(crate) async fn look(&self) {
        let mut all = BTreeSet::new();
        let mut trouble = Vec::new();
        for host in &self.hosts {
            match tokio::time::timeout(PATIENCE, self.egress.find(host)).await {
                Ok(Ok(found)) => all.extend(found),
                Ok(Err(why)) => trouble.push(why.to_string()),
                Err(_) => trouble.push(format!("nobody says where {host} is")),
            }
        }
        match tokio::time::timeout(PATIENCE, self.server.get::<EndpointSlice>(SLICE)).await {
            Ok(Ok(slice)) => all.extend(slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses)),
            Ok(Err(error)) if error.is_not_found() => {}
            Ok(Err(error)) => trouble.push(format!("its EndpointSlice cannot be read: {}", error.message)),
            Err(_) => trouble.push("its EndpointSlice is not answered for".to_owned()),
        }
        if !trouble.is_empty() {
            tracing::warn!(why = trouble.join("; "), "where the API server is, is not fully known; hooks could reach it");
            all.extend(self.egress.api_server());
        }
        self.egress.api_server_is_at(all.into_iter().collect());
    }

    /// Looks again and again. Never ends.
    pub(crate) async fn keep_looking(self) {
        loop {
            tokio::time::sleep(AGAIN).await;
            self.look().await;
        }
    }
}
