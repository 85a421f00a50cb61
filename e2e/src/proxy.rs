//! A proxy between the operator and the API server that counts writes, refuses them, cuts or stalls watches, and kills
//! the operator.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use futures::StreamExt;
use kube::Client;
use localkube::Cluster;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The proxy. Dropping it closes it.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    kubeconfig: PathBuf,
    server: JoinHandle<()>,
}

struct Shared {
    upstream: Client,
    writes: AtomicUsize,
    /// Kill after every so many writes; never if 0.
    kill_every: AtomicUsize,
    pid_file: PathBuf,
    /// How often watches were cut.
    cuts: watch::Sender<usize>,
    /// How often watches were stalled: a watch of pods that was open then delivers no further events.
    stalls: watch::Sender<usize>,
    /// By how many milliseconds lists are delayed.
    list_takes: AtomicU64,
    lists: AtomicUsize,
    /// Requests that are still to be refused with 429.
    overload: AtomicUsize,
    refused: AtomicUsize,
    /// The body of the last pod that was created.
    last_pod: std::sync::Mutex<String>,
    /// Writes that are refused.
    rule: std::sync::Mutex<Option<Rule>>,
}

/// Writes with this method whose path contains this text are answered with this code; 0 means that they are carried out
/// and never answered.
#[derive(Debug, Clone)]
struct Rule {
    method: Method,
    part: String,
    code: u16,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Shared").field("writes", &self.writes).finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Proxy {
    /// Listens on a free port. Requests through its kubeconfig have the rights of the operator's ServiceAccount.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let account = cluster.service_account_kubeconfig(localkube::operator::NAMESPACE, localkube::operator::SERVICE_ACCOUNT).await?;
        let config = kube::Config::from_custom_kubeconfig(kube::config::Kubeconfig::read_from(account)?, &Default::default()).await?;
        let shared = Arc::new(Shared {
            upstream: Client::try_from(config)?,
            writes: AtomicUsize::new(0),
            kill_every: AtomicUsize::new(0),
            pid_file: cluster.folder().join("operator-1.pid"),
            cuts: watch::Sender::new(0),
            stalls: watch::Sender::new(0),
            list_takes: AtomicU64::new(0),
            lists: AtomicUsize::new(0),
            overload: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            last_pod: std::sync::Mutex::default(),
            rule: std::sync::Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let kubeconfig = cluster.folder().join(format!("proxy-{}.kubeconfig", address.port()));
        let cluster = serde_json::json!({ "name": "c", "cluster": { "server": format!("http://{address}") } });
        let context = serde_json::json!({ "name": "c", "context": { "cluster": "c", "user": "u" } });
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster], "contexts": [context], "users": [{ "name": "u", "user": {} }],
        });
        std::fs::write(&kubeconfig, text.to_string())?;
        let router = axum::Router::new().fallback(forward).with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            // Ends with the task.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { shared, kubeconfig, server })
    }

    /// The kubeconfig with which the operator reaches the API server through this proxy.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Kills the operator after every `count`th write from now on; 0 stops that.
    pub fn kill_every(&self, count: usize) {
        self.shared.kill_every.store(count, Ordering::SeqCst);
    }

    /// Ends every open watch.
    pub fn cut_watches(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Open watches of pods deliver no further events.
    pub fn stall_watches(&self) {
        self.shared.stalls.send_modify(|stalls| *stalls += 1);
    }

    /// Delays lists by this much from now on.
    pub fn slow_lists(&self, take: Duration) {
        self.shared.list_takes.store(u64::try_from(take.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// How many lists were requested.
    #[must_use]
    pub fn lists(&self) -> usize {
        self.shared.lists.load(Ordering::SeqCst)
    }

    /// Refuses the next `count` writes with 429 and Retry-After.
    pub fn refuse(&self, count: usize) {
        self.shared.overload.store(count, Ordering::SeqCst);
    }

    /// From now on answers writes with this method whose path contains `part` with `code`; with 0 they are carried out and
    /// never answered.
    pub fn refuse_all(&self, method: Method, part: &str, code: u16) {
        let rule = Rule { method, part: part.to_owned(), code };
        *self.shared.rule.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(rule);
    }

    /// Ends what [`Proxy::refuse_all`] refuses.
    pub fn allow(&self) {
        *self.shared.rule.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }

    /// How many requests were refused.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// The body of the last pod that was created.
    #[must_use]
    pub fn last_pod(&self) -> String {
        self.shared.last_pod.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

async fn forward(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let write = request.method() != Method::GET;
    let pod = request.method() == Method::POST && request.uri().path().ends_with("/pods");
    if write && shared.overload.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
        shared.refused.fetch_add(1, Ordering::SeqCst);
        return answer(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.");
    }
    let rule = shared.rule.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let rule = rule.filter(|rule| rule.method == request.method() && request.uri().path().contains(&rule.part));
    if let Some(code) = rule.as_ref().and_then(|rule| StatusCode::from_u16(rule.code).ok()) {
        shared.refused.fetch_add(1, Ordering::SeqCst);
        let status = serde_json::json!({ "kind": "Status", "status": "Failure", "code": code.as_u16(), "message": "refused by the proxy" });
        let mut response = Response::new(Body::from(status.to_string()));
        *response.status_mut() = code;
        return response;
    }
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let is_list = parts.method == Method::GET && (query.contains("sendInitialEvents=true") || query.contains("limit="));
    let is_pod_watch = query.contains("watch=1") && parts.uri.path() == "/api/v1/pods";
    let Ok(bytes) = to_bytes(body, usize::MAX).await else { return answer(StatusCode::BAD_REQUEST, "no body") };
    if pod {
        *shared.last_pod.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = String::from_utf8_lossy(&bytes).into_owned();
    }
    let mut upstream = axum::http::Request::new(kube::client::Body::from(bytes.to_vec()));
    *upstream.method_mut() = parts.method;
    *upstream.uri_mut() = parts.uri;
    for name in ["accept", "content-type"] {
        if let Some(value) = parts.headers.get(name) {
            upstream.headers_mut().insert(axum::http::HeaderName::from_static(name), value.clone());
        }
    }
    let mut cuts = shared.cuts.subscribe();
    let Ok(response) = shared.upstream.send(upstream).await else {
        return answer(StatusCode::BAD_GATEWAY, "the API server does not answer");
    };
    if write {
        kill_if_due(&shared);
    }
    if rule.is_some() {
        shared.refused.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<()>().await;
    }
    let (parts, body) = response.into_parts();
    let pause = Duration::from_millis(if is_list { shared.list_takes.load(Ordering::SeqCst) } else { 0 });
    shared.lists.fetch_add(usize::from(is_list), Ordering::SeqCst);
    let (stalls, stalled_before) = (shared.stalls.subscribe(), *shared.stalls.borrow());
    let passed = move |chunk| std::future::ready((!is_pod_watch || *stalls.borrow() == stalled_before).then_some(chunk));
    let delay = futures::stream::once(tokio::time::sleep(pause)).filter_map(|()| std::future::ready(None));
    let data = delay.chain(Body::new(body).into_data_stream().filter_map(passed));
    let cut = async move { drop(cuts.changed().await) };
    Response::from_parts(parts, Body::from_stream(data.take_until(Box::pin(cut))))
}

/// Counts a write and kills the operator if that is due: the API server has carried the write out, and the operator never
/// learns of it.
fn kill_if_due(shared: &Shared) {
    let number = shared.writes.fetch_add(1, Ordering::SeqCst) + 1;
    let every = shared.kill_every.load(Ordering::SeqCst);
    if every == 0 || !number.is_multiple_of(every) {
        return;
    }
    let pid = std::fs::read_to_string(&shared.pid_file).ok().and_then(|pid| pid.trim().parse::<i32>().ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn answer(code: StatusCode, text: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = code;
    response.headers_mut().insert(axum::http::header::RETRY_AFTER, axum::http::HeaderValue::from_static("1"));
    response
}
