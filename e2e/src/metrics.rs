//! An external metrics API of our own: one metric, `players`, that a test raises and lowers.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::Result;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::scene::{Scene, run};

const API_SERVICE: &str = "v1beta1.external.metrics.k8s.io";

/// The metric's API, registered with the API server. Dropping it removes it.
#[derive(Debug)]
pub struct Metrics {
    players: Arc<AtomicI64>,
    server: JoinHandle<()>,
    /// Removes the registration.
    unregister: Command,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // An API that does not answer blocks the deletion of every namespace in the cluster. If the cluster is gone, there
        // is nothing to remove.
        let _ = self.unregister.output();
        self.server.abort();
    }
}

impl Metrics {
    /// Serves the metric and registers it for the scene's cluster.
    pub async fn start(scene: &Scene) -> Result<Self> {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let config =
            rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certified.cert.der().clone()], key.into())?;
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        let port = tcp.local_addr()?.port();
        let players = Arc::new(AtomicI64::new(0));
        let router = Router::new()
            .route("/apis/external.metrics.k8s.io/v1beta1", get(resources))
            .route("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/players", get(value))
            .with_state(Arc::clone(&players));
        let listener = Tls { tcp, acceptor: TlsAcceptor::from(Arc::new(config)) };
        let server = tokio::spawn(async move {
            // Ends with the task.
            let _ = axum::serve(listener, router).await;
        });
        let mut unregister = scene.cluster().kubectl();
        unregister.args(["delete", "apiservice", API_SERVICE, "--ignore-not-found"]);
        let metrics = Self { players, server, unregister };
        metrics.register(scene, port)?;
        Ok(metrics)
    }

    fn register(&self, scene: &Scene, port: u16) -> Result<()> {
        // The API server reaches this server by name; there is no pod to route to.
        scene.apply(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "metrics" },
            "spec": { "type": "ExternalName", "externalName": "localhost", "ports": [{ "port": port }] },
        }))?;
        scene.apply(&json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": API_SERVICE },
            "spec": {
                "group": "external.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true, "service": { "namespace": scene.namespace(), "name": "metrics", "port": port },
            },
        }))?;
        let wait = ["wait", "--for=condition=Available", "apiservice", API_SERVICE, "--timeout=60s"];
        run(scene.cluster().kubectl().args(wait), "").map(drop)
    }

    /// How many players there are from now on.
    pub fn set(&self, players: i64) {
        self.players.store(players, Ordering::SeqCst);
    }
}

struct Tls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            if let Ok((stream, address)) = self.tcp.accept().await
                && let Ok(stream) = self.acceptor.accept(stream).await
            {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

async fn resources() -> Json<Value> {
    let players = json!({ "name": "players", "singularName": "", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": ["get"] });
    Json(
        json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "external.metrics.k8s.io/v1beta1", "resources": [players] }),
    )
}

async fn value(State(players): State<Arc<AtomicI64>>) -> Json<Value> {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let item =
        json!({ "metricName": "players", "metricLabels": {}, "timestamp": now, "value": players.load(Ordering::SeqCst).to_string() });
    Json(json!({ "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {}, "items": [item] }))
}

/// An autoscaler that wants a pod for every ten players.
#[must_use]
pub fn autoscaler(name: &str) -> Value {
    let metric = json!({ "type": "External", "external": { "metric": { "name": "players" }, "target": { "type": "AverageValue", "averageValue": "10" } } });
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": name },
        "spec": {
            "scaleTargetRef": { "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": name },
            "minReplicas": 1, "maxReplicas": 20, "metrics": [metric],
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 0 } },
        },
    })
}
