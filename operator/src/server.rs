//! `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// How this process is.
#[derive(Debug, Clone)]
pub struct Condition {
    /// What Prometheus may know.
    pub metrics: Arc<Metrics>,
    /// Whether this process leads.
    pub leading: watch::Receiver<bool>,
    /// Whether a leader's caches are complete.
    pub synced: watch::Receiver<bool>,
}

/// Answers until it is dropped.
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

/// Ready: a leader whose caches are complete, or a process that stands by.
async fn ready(State(condition): State<Condition>) -> (StatusCode, &'static str) {
    match (*condition.leading.borrow(), *condition.synced.borrow()) {
        (true, true) => (StatusCode::OK, "leading\n"),
        (true, false) => (StatusCode::SERVICE_UNAVAILABLE, "leading; the caches are not complete yet\n"),
        (false, _) => (StatusCode::OK, "standing by\n"),
    }
}

async fn metrics(State(condition): State<Condition>) -> ([(axum::http::HeaderName, &'static str); 1], String) {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(axum::http::header::CONTENT_TYPE, kind)], condition.metrics.text())
}
