//! `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::health::Health;
use crate::metrics::Metrics;

/// The state that the endpoints report.
#[derive(Debug, Clone)]
pub struct Condition {
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Whether this process leads.
    pub leading: watch::Receiver<bool>,
    /// Which kinds a leader can list and watch.
    pub health: Arc<Health>,
}

/// Serves until it is dropped.
pub async fn serve(address: SocketAddr, condition: Condition) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving /healthz, /readyz and /metrics");
    let router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(condition);
    axum::serve(listener, router).await
}

/// Ready is a process that stands by, and a leader that has listed every kind that it may list. The body has a line for each kind that
/// cannot be listed or watched.
async fn ready(State(condition): State<Condition>) -> (StatusCode, String) {
    if !*condition.leading.borrow() {
        return (StatusCode::OK, "standing by\n".to_owned());
    }
    let troubles = condition.health.troubles();
    if condition.health.is_ready() {
        (StatusCode::OK, format!("leading\n{troubles}"))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("leading; the caches are not complete yet\n{troubles}"))
    }
}

async fn metrics(State(condition): State<Condition>) -> ([(axum::http::HeaderName, &'static str); 1], String) {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(axum::http::header::CONTENT_TYPE, kind)], condition.metrics.text())
}
