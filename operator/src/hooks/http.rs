//! One HTTP request of a hook: a new connection to a checked address, with a deadline, a limit on the answer, and without any
//! credentials of the operator. Messages name the kind of failure, never what the server sent.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use url::Url;

use super::egress::Refusal;
use super::large::SMALL;
use super::target::Target;
use super::{Asker, Measurement};

/// The largest answer, in bytes.
pub(crate) const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// The most redirects that are followed.
const REDIRECTS: usize = 5;
/// Timeout of connecting to one address, after which the next is tried.
const CONNECT: Duration = Duration::from_secs(3);
/// Content encodings that messages name.
const ENCODINGS: [&str; 6] = ["gzip", "x-gzip", "deflate", "compress", "br", "zstd"];

/// A request.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) target: Target,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<String>,
    pub(crate) ca_bundle: Option<String>,
    pub(crate) follow_redirects: bool,
}

/// Why there is no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    pub(crate) message: String,
    /// Whether the egress policy refused it.
    pub(crate) refused: bool,
}

impl NoAnswer {
    pub(crate) fn because(message: impl Into<String>) -> Self {
        Self { message: message.into(), refused: false }
    }

    pub(crate) fn late(timeout: Duration) -> Self {
        Self::because(format!("no answer within {} s", timeout.as_secs()))
    }
}

impl From<Refusal> for NoAnswer {
    fn from(refusal: Refusal) -> Self {
        Self { refused: matches!(refusal, Refusal::Policy(_)), message: refusal.to_string() }
    }
}

/// Parses a url.
pub(crate) fn url(text: &str) -> Result<Url, NoAnswer> {
    let url = Url::parse(text).map_err(|error| NoAnswer::because(format!("the url cannot be read: {error}")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(NoAnswer::because("the url carries a user name or a password: use a header with secretKeyRef"));
    }
    Ok(url)
}

/// Sends a request, and returns the body of a 2xx answer.
pub(crate) async fn ask(asker: &Asker, measurement: &Measurement, ask: Ask) -> Result<Vec<u8>, NoAnswer> {
    let (deadline, timeout) = (ask.target.deadline, ask.target.timeout);
    tokio::time::timeout_at(deadline, follow(asker, measurement, ask)).await.unwrap_or_else(|_| Err(NoAnswer::late(timeout)))
}

async fn follow(asker: &Asker, measurement: &Measurement, mut ask: Ask) -> Result<Vec<u8>, NoAnswer> {
    // A slot of each address of the first url is held already.
    let mut counted: BTreeSet<SocketAddr> = ask.target.hosts().collect();
    let mut places = Vec::new();
    for _ in 0..=REDIRECTS {
        let response = once(asker, &ask).await?;
        let status = response.status();
        if status.is_success() {
            return body(asker, measurement, response).await;
        }
        if !status.is_redirection() {
            return Err(NoAnswer::because(format!("received non 2xx response code: {}", status.as_u16())));
        }
        if !ask.follow_redirects {
            return Err(NoAnswer::because(format!("received a redirect ({}); followRedirects is not set", status.as_u16())));
        }
        let to = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let next = ask.target.url.join(to).map_err(|error| NoAnswer::because(format!("redirected to what is no url: {error}")))?;
        if ask.body.is_some() && matches!(status.as_u16(), 301..=303) {
            ask.method = Method::GET;
            ask.body = None;
        }
        // Headers and body are not sent to another server.
        if next.origin() != ask.target.url.origin() {
            ask.headers.clear();
            if ask.body.is_some() {
                return Err(NoAnswer::because("redirected to another server: the body is not for it"));
            }
        }
        ask.target.addresses = asker.allowed(measurement, &next).await?;
        ask.target.url = next;
        let hosts: Vec<SocketAddr> = ask.target.hosts().filter(|host| counted.insert(*host)).collect();
        for host in hosts {
            places.push(asker.hosts.of(host).take(&measurement.namespace).await);
        }
    }
    Err(NoAnswer::because(format!("more than {REDIRECTS} redirects")))
}

async fn once(asker: &Asker, ask: &Ask) -> Result<http::Response<Incoming>, NoAnswer> {
    let stream = connect(&ask.target.addresses).await?;
    if ask.target.url.scheme() == "https" {
        let host = ask.target.url.host_str().unwrap_or_default();
        return send(asker.tls.connect(host, ask.ca_bundle.as_deref(), stream).await?, ask).await;
    }
    send(stream, ask).await
}

async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, NoAnswer> {
    let mut last = NoAnswer::because("the host has no address");
    for address in addresses {
        match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = NoAnswer::because(format!("cannot connect to {address}: {}", trouble(error.kind()))),
            Err(_) => last = NoAnswer::because(format!("cannot connect to {address} within {} s", CONNECT.as_secs())),
        }
    }
    Err(last)
}

fn trouble(kind: io::ErrorKind) -> &'static str {
    if kind == io::ErrorKind::ConnectionRefused {
        "connection refused"
    } else if matches!(kind, io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) {
        "no route to it"
    } else {
        "no connection"
    }
}

/// The message for a connection that broke.
fn broken(error: &hyper::Error) -> NoAnswer {
    NoAnswer::because(if error.is_parse() { "the connection broke: the answer is no HTTP" } else { "the connection broke" })
}

async fn send(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, ask: &Ask) -> Result<http::Response<Incoming>, NoAnswer> {
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(64 * 1024)
        .max_headers(100)
        .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| broken(&error))?;
    // Drives the connection until the answer is read or dropped.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let url = &ask.target.url;
    let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let host = match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (host, _) => host.unwrap_or_default().to_owned(),
    };
    let mut request = Request::builder().method(ask.method.clone()).uri(path).header(header::HOST, host);
    request =
        request.header(header::USER_AGENT, concat!("gameplane/", env!("CARGO_PKG_VERSION"))).header(header::ACCEPT, "application/json");
    if ask.body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    if let Some(headers) = request.headers_mut() {
        headers.extend(ask.headers.clone());
    }
    let body = Full::new(Bytes::from(ask.body.clone().unwrap_or_default()));
    let request = request.body(body).map_err(|error| NoAnswer::because(format!("the request cannot be made: {error}")))?;
    sender.send_request(request).await.map_err(|error| broken(&error))
}

async fn body(asker: &Asker, measurement: &Measurement, response: http::Response<Incoming>) -> Result<Vec<u8>, NoAnswer> {
    if let Some(encoding) = response.headers().get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let known = ENCODINGS.iter().find(|known| encoding == **known).map_or_else(String::new, |known| format!(" as {known:?}"));
        return Err(NoAnswer::because(format!("the answer is encoded{known}, which was not asked for")));
    }
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| NoAnswer::because("the answer broke off"))?;
        if let Some(data) = frame.data_ref() {
            let length = bytes.len().saturating_add(data.len());
            if length > MAX_ANSWER_BYTES {
                return Err(NoAnswer::because(format!("the answer has more than {MAX_ANSWER_BYTES} bytes")));
            }
            if length > SMALL && measurement.large.get().is_none() {
                // Held until the answer is evaluated.
                let _ = measurement.large.set(asker.large.place(&measurement.namespace).await);
            }
            bytes.extend_from_slice(data);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::tkex::Web;
    use serde_json::Value;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::hooks::egress::Policy;
    use crate::hooks::testing::{asker, measurement};
    use crate::hooks::web;

    /// The address of a server that sends this to its first client, and its task, which ends after that.
    async fn serve(says: Vec<u8>) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(&says).await;
        });
        (address, served)
    }

    fn local() -> Asker {
        asker(Policy { allow: vec!["127.0.0.0/8".parse().unwrap()], ..Policy::default() }, Vec::new()).0
    }

    /// The result of a request to a server that sends this, and whether the answer took a place.
    async fn asked(scheme: &str, says: Vec<u8>, web: Web) -> (Result<(), String>, bool) {
        let (address, _) = serve(says).await;
        let (asker, measurement) = (local(), measurement(&format!("{scheme}://{address}/"), None));
        let target = asker.target(&measurement).await.unwrap().unwrap();
        let answer = web::measure(&asker, &measurement, &web, target).await.and_then(|reading| reading());
        (answer.map(drop).map_err(|error| error.message), measurement.large.get().is_some())
    }

    fn http(head: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len()).into_bytes()
    }

    #[tokio::test]
    async fn what_a_server_says_is_not_in_the_messages() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let follow = Web { follow_redirects: Some(true), ..Web::default() };
        let cases = [
            ("http", b"220 password ESMTP\r\n".to_vec(), Web::default(), "the connection broke: the answer is no HTTP"),
            ("http", Vec::new(), Web::default(), "the connection broke"),
            ("https", b"220 password ESMTP\r\n".to_vec(), Web::default(), "no trusted connection: no TLS that both sides speak"),
            ("http", http("200 OK\r\nContent-Encoding: password", ""), Web::default(), "the answer is encoded, which was not asked for"),
            (
                "http",
                http("302 Found\r\nLocation: http://password/", ""),
                Web::default(),
                "received a redirect (302); followRedirects is not set",
            ),
            (
                "http",
                http("302 Found\r\nLocation: http://pass word/", ""),
                follow,
                "redirected to what is no url: invalid international domain name",
            ),
            ("http", http("503 password", "password"), Web::default(), "received non 2xx response code: 503"),
            ("http", http("200 OK", "password"), Web::default(), "the answer is no JSON: expected value at line 1 column 1"),
        ];
        for (scheme, says, web, words) in cases {
            let said = asked(scheme, says, web).await.0.unwrap_err();
            assert_eq!(said, words);
        }
    }

    #[tokio::test]
    async fn a_redirect_waits_for_a_place_at_the_address_that_it_leads_to() {
        let (second, mut served) = serve(http("200 OK", "1")).await;
        let (first, _) = serve(http(&format!("302 Found\r\nLocation: http://{second}/"), "")).await;
        let (asker, measurement) = (local(), measurement(&format!("http://{first}/"), None));
        let follow = Web { follow_redirects: Some(true), ..Web::default() };
        let places = asker.hosts.of(second);
        let held = places.take("another").await;
        let target = asker.target(&measurement).await.unwrap().unwrap();
        let mut answer = std::pin::pin!(web::measure(&asker, &measurement, &follow, target));
        let another_waits = async {
            while Arc::strong_count(&places) < 3 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = another_waits => drop(held),
            _ = &mut served => panic!("it did not wait"),
            _ = &mut answer => panic!("it did not wait"),
        }
        assert!(answer.await.is_ok());
    }

    #[tokio::test]
    async fn a_large_answer_takes_a_place_and_a_small_one_does_not() {
        let text = |length: usize| http("200 OK", &Value::String("x".repeat(length)).to_string());
        let (answer, took) = asked("http", text(SMALL - 2), Web::default()).await;
        assert!(answer.is_ok() && !took);
        let (answer, took) = asked("http", text(SMALL), Web::default()).await;
        assert!(answer.is_ok() && took);
    }
}
