//! Hook servers, well-behaved and hostile. They listen on an address of this machine that is not loopback, so that the
//! operator's check of addresses stays on.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::scene::Scene;
use crate::wait::until;

/// An address of this machine that is not loopback. Nothing is sent to find it.
pub fn own_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9").context("this machine has no address but loopback")?;
    let address = socket.local_addr()?.ip();
    ensure!(!address.is_loopback() && !address.is_unspecified(), "this machine has no address but loopback");
    Ok(address)
}

/// How a server answers.
#[derive(Debug, Clone)]
pub enum Manner {
    /// With this status line and headers, and this body.
    Says(&'static str, Vec<u8>),
    /// Not at all.
    Hangs,
    /// One byte a second.
    Drips,
    /// With a body that never ends.
    Floods,
    /// With the number of sessions of the game server that the path names.
    Counts(Sessions),
}

/// Which game servers still have a session, and how often each was asked about.
#[derive(Debug, Clone, Default)]
pub struct Sessions(Arc<std::sync::Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    ended: BTreeSet<String>,
    all_ended: bool,
    asked: BTreeMap<String, usize>,
}

impl Sessions {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The last session of a server ends.
    pub fn end(&self, server: &str) {
        self.known().ended.insert(server.to_owned());
    }

    /// A server has a session again.
    pub fn start(&self, server: &str) {
        self.known().ended.remove(server);
    }

    /// All sessions end, and game servers that start later have none.
    pub fn end_all(&self) {
        self.known().all_ended = true;
    }

    /// How often each game server was asked about.
    #[must_use]
    pub fn asked(&self) -> BTreeMap<String, usize> {
        self.known().asked.clone()
    }

    fn answer(&self, request: &str) -> String {
        let server = request.split_whitespace().nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
        let mut known = self.known();
        *known.asked.entry(server.clone()).or_default() += 1;
        let sessions = i32::from(!known.all_ended && !known.ended.contains(&server));
        json!({ "sessions": sessions }).to_string()
    }
}

/// A server that answers every request in the same manner.
#[derive(Debug)]
pub struct HookServer {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    last: Arc<std::sync::Mutex<String>>,
    task: JoinHandle<()>,
}

impl Drop for HookServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HookServer {
    /// Listens until it is dropped.
    pub async fn start(manner: Manner) -> Result<Self> {
        Self::start_at(manner, 0).await
    }

    /// Listens at a port until it is dropped.
    pub async fn start_at(manner: Manner, port: u16) -> Result<Self> {
        let listener = TcpListener::bind((own_address()?, port)).await?;
        let address = listener.local_addr()?;
        let (requests, last) = (Arc::new(AtomicUsize::new(0)), Arc::new(std::sync::Mutex::default()));
        let (count, seen) = (Arc::clone(&requests), Arc::clone(&last));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (manner, count, seen) = (manner.clone(), Arc::clone(&count), Arc::clone(&seen));
                connections.spawn(async move {
                    // Some tests have clients that disconnect: that is no error here.
                    let _ = serve(stream, &manner, &count, &seen).await;
                });
            }
        });
        Ok(Self { address, requests, last, task })
    }

    /// Starts a server that answers with a JSON value.
    pub async fn json(value: &Value) -> Result<Self> {
        Self::start(Manner::Says("200 OK\r\nContent-Type: application/json", value.to_string().into_bytes())).await
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Requests so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// The last request, as it came.
    #[must_use]
    pub fn last_request(&self) -> String {
        self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

async fn serve(mut stream: TcpStream, manner: &Manner, count: &AtomicUsize, seen: &std::sync::Mutex<String>) -> Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        ensure!(stream.read_buf(&mut request).await? > 0, "the client left");
    }
    count.fetch_add(1, Ordering::Relaxed);
    *seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = String::from_utf8_lossy(&request).into_owned();
    match manner {
        Manner::Says(head, body) => {
            stream.write_all(format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len()).as_bytes()).await?;
            stream.write_all(body).await?;
        }
        Manner::Counts(sessions) => {
            let body = sessions.answer(&String::from_utf8_lossy(&request));
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length";
            stream.write_all(format!("{head}: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
        }
        Manner::Hangs => std::future::pending().await,
        Manner::Drips => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n").await?;
            loop {
                stream.write_all(b" ").await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        Manner::Floods => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n").await?;
            let chunk = vec![b' '; 64 * 1024];
            loop {
                stream.write_all(&chunk).await?;
            }
        }
    }
    Ok(())
}

/// A name server for three names: `good.test` is this machine, `home.test` is loopback, and `fickle.test` is this machine
/// in the first answer and loopback in all later ones. No other name exists.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NameServer {
    /// Answers until it is dropped.
    pub async fn start() -> Result<Self> {
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let IpAddr::V4(own) = own_address()? else { bail!("this machine has no IPv4 address") };
        let task = tokio::spawn(async move {
            let (mut asked, mut buffer) = (0, [0; 512]);
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                let question = buffer.get(..length).unwrap_or_default();
                let known = |name: &str| question.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name.as_bytes()));
                // The type is the two bytes before the class: 1 asks for an IPv4 address.
                let is_v4 = question_end(question).and_then(|end| question.get(end - 4..end - 2)).is_some_and(|kind| kind == [0, 1]);
                let address = if known("good") {
                    Some(own)
                } else if known("home") {
                    Some(Ipv4Addr::LOCALHOST)
                } else if known("fickle") {
                    asked += i32::from(is_v4);
                    Some(if asked <= 1 { own } else { Ipv4Addr::LOCALHOST })
                } else {
                    None
                };
                if let Some(answer) = reply(question, address, is_v4) {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Ok(Self { address, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Where the question of a DNS message ends.
fn question_end(message: &[u8]) -> Option<usize> {
    let mut at = 12;
    while *message.get(at)? > 0 {
        at += usize::from(*message.get(at)?) + 1;
    }
    Some(at + 5)
}

/// A response with one address, with no address of the asked type, or with NXDOMAIN.
fn reply(question: &[u8], address: Option<Ipv4Addr>, is_v4: bool) -> Option<Vec<u8>> {
    let asked = question.get(12..question_end(question)?)?;
    let answers = u8::from(is_v4 && address.is_some());
    let code = if address.is_some() { 0 } else { 3 };
    let mut message = question.get(..2)?.to_vec();
    message.extend([0x81, 0x80 | code, 0, 1, 0, answers, 0, 0, 0, 0]);
    message.extend(asked);
    if let Some(address) = address.filter(|_| is_v4) {
        // A pointer to the name, type A, class IN, no caching, four bytes.
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        message.extend(address.octets());
    }
    Some(message)
}

/// A HookRun of one metric.
#[must_use]
pub fn hook_run(name: &str, metric: &Value) -> Value {
    let mut metric = metric.clone();
    if metric.get("name").is_none() {
        metric["name"] = json!("webtest");
    }
    json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun", "metadata": { "name": name }, "spec": { "metrics": [metric] } })
}

/// Waits until a HookRun is complete and returns its status.
pub async fn verdict(scene: &Scene, name: &str) -> Result<Value> {
    let complete = |run: &DynamicObject| run.data["status"]["conditions"][0]["status"] == "True";
    let run = until(&scene.custom("HookRun"), name, "a verdict", |run| run.is_some_and(complete)).await?;
    Ok(run.context("the HookRun vanished")?.data["status"].clone())
}

/// The metric of the walk-through.
#[must_use]
pub fn webtest(url: &str, condition: &str, interval: &str) -> Value {
    json!({
        "name": "webtest", "count": 2, "interval": interval, "successCondition": condition,
        "provider": { "web": { "jsonPath": "{$.age}", "url": url } },
    })
}

/// A metric that is measured once, with a timeout of two seconds.
#[must_use]
pub fn impatient(web: Value) -> Value {
    let mut web = web;
    web["timeoutSeconds"] = json!(2);
    json!({ "name": "webtest", "consecutiveErrorLimit": 0, "provider": { "web": web } })
}

/// A HookTemplate `drained` that approves when a pod has no session any more. A patient one measures every second until
/// then, any other denies at once.
#[must_use]
pub fn sessions_template(server: &HookServer, patient: bool) -> Value {
    let mut metric = json!({
        "name": "sessions", "successCondition": "asInt(result) == 0", "successfulLimit": 1,
        "provider": { "web": { "url": format!("{}/{{{{ args.PodName }}}}", server.url()), "jsonPath": "{$.sessions}" } },
    });
    if patient {
        metric["interval"] = json!("1s");
        metric["failureLimit"] = json!(1_000_000);
    }
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": { "name": "drained" },
        "spec": { "args": [{ "name": "PodName" }], "metrics": [metric] },
    })
}

/// Starts a server that counts sessions, and applies the HookTemplate that asks it.
pub async fn serve_sessions(scene: &Scene, patient: bool) -> Result<(HookServer, Sessions)> {
    let sessions = Sessions::default();
    let server = HookServer::start(Manner::Counts(sessions.clone())).await?;
    scene.apply(&sessions_template(&server, patient))?;
    Ok((server, sessions))
}

/// An update strategy with the hook of [`sessions_template`].
#[must_use]
pub fn sessions_hook() -> Value {
    json!({ "hook": { "templateName": "drained" } })
}

/// Lets the operator impersonate the ServiceAccount `default` of the namespace.
pub async fn lend(scene: &Scene) -> Result<()> {
    scene.kubectl(&["create", "role", "speak", "--verb=impersonate", "--resource=serviceaccounts", "--resource-name=default"])?;
    scene.kubectl(&["create", "rolebinding", "speak", "--role=speak", "--serviceaccount=bcs-system:gameplane"])?;
    scene.until_allowed(&["impersonate", "serviceaccounts/default", "--as=system:serviceaccount:bcs-system:gameplane"]).await
}
