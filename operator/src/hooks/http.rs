//! One request to the outside: a fresh connection to a checked address, a deadline, a limit on the answer, and nothing of ours in it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::Url;

use super::egress::{Egress, Refusal};

/// The largest answer.
pub(crate) const LARGEST: usize = 1024 * 1024;
/// Redirects that are followed if they are at all.
const REDIRECTS: usize = 5;
/// How long one address may take to answer before the next is tried.
const CONNECT: Duration = Duration::from_secs(3);

/// What to ask.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) ca_bundle: Option<String>,
    pub(crate) follow_redirects: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    pub(crate) message: String,
    /// Whether the policy refused it.
    pub(crate) refused: bool,
}

impl NoAnswer {
    pub(crate) fn because(message: impl Into<String>) -> Self {
        Self { message: message.into(), refused: false }
    }
}

impl From<Refusal> for NoAnswer {
    fn from(refusal: Refusal) -> Self {
        Self { refused: matches!(refusal, Refusal::Policy(_)), message: refusal.to_string() }
    }
}

/// Reads a url; the problem says what is wrong with it.
pub(crate) fn url(text: &str) -> Result<Url, NoAnswer> {
    let url = Url::parse(text).map_err(|error| NoAnswer::because(format!("the url cannot be read: {error}")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(NoAnswer::because("the url carries a user name or a password: use a header with secretKeyRef"));
    }
    Ok(url)
}

/// Asks, and returns the body of a 2xx answer.
pub(crate) async fn ask(egress: &Egress, ask: Ask) -> Result<Vec<u8>, NoAnswer> {
    let seconds = ask.timeout.as_secs();
    let asked = tokio::time::timeout(ask.timeout, follow(egress, ask)).await;
    asked.unwrap_or_else(|_| Err(NoAnswer::because(format!("no answer within {seconds} s"))))
}

async fn follow(egress: &Egress, mut ask: Ask) -> Result<Vec<u8>, NoAnswer> {
    for _ in 0..=REDIRECTS {
        let response = once(egress, &ask).await?;
        let status = response.status();
        if status.is_success() {
            return body(response).await;
        }
        if !status.is_redirection() {
            return Err(NoAnswer::because(format!("received non 2xx response code: {}", status.as_u16())));
        }
        let target = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let next = ask.url.join(target).map_err(|error| NoAnswer::because(format!("redirected to what is no url: {error}")))?;
        if !ask.follow_redirects {
            let to = next.host_str().unwrap_or_default();
            return Err(NoAnswer::because(format!("received a redirect ({}) to {to}; followRedirects is not set", status.as_u16())));
        }
        if ask.body.is_some() && matches!(status.as_u16(), 301..=303) {
            ask.method = Method::GET;
            ask.body = None;
        }
        // What was meant for one server is not for another.
        if next.origin() != ask.url.origin() {
            ask.headers.clear();
            if ask.body.is_some() {
                return Err(NoAnswer::because("redirected to another server: the body is not for it"));
            }
        }
        ask.url = next;
    }
    Err(NoAnswer::because(format!("more than {REDIRECTS} redirects")))
}

async fn once(egress: &Egress, ask: &Ask) -> Result<http::Response<Incoming>, NoAnswer> {
    let stream = connect(egress, &ask.url).await?;
    if ask.url.scheme() == "https" {
        let host = ask.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|error| NoAnswer::because(format!("the host's name cannot be verified: {error}")))?;
        let connector = TlsConnector::from(tls(ask.ca_bundle.as_deref())?);
        let stream = connector.connect(name, stream).await.map_err(|error| NoAnswer::because(format!("no trusted connection: {error}")))?;
        return send(stream, ask).await;
    }
    send(stream, ask).await
}

async fn connect(egress: &Egress, url: &Url) -> Result<TcpStream, NoAnswer> {
    let mut last = NoAnswer::because("the host has no address");
    for address in egress.addresses(url).await? {
        match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = NoAnswer::because(format!("cannot connect to {address}: {error}")),
            Err(_) => last = NoAnswer::because(format!("cannot connect to {address} within {} s", CONNECT.as_secs())),
        }
    }
    Err(last)
}

fn tls(ca_bundle: Option<&str>) -> Result<Arc<rustls::ClientConfig>, NoAnswer> {
    let mut roots = rustls::RootCertStore::empty();
    match ca_bundle {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(bundle) => {
            for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
                let added =
                    certificate.map_err(|error| error.to_string()).and_then(|one| roots.add(one).map_err(|error| error.to_string()));
                added.map_err(|error| NoAnswer::because(format!("caBundle cannot be read: {error}")))?;
            }
        }
    }
    Ok(Arc::new(rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

async fn send(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, ask: &Ask) -> Result<http::Response<Incoming>, NoAnswer> {
    let broken = |error: hyper::Error| NoAnswer::because(format!("the connection broke: {error}"));
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(64 * 1024)
        .max_headers(100)
        .handshake::<_, Full<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    // Lives as long as the answer is being read.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let path = ask.url.query().map_or_else(|| ask.url.path().to_owned(), |query| format!("{}?{query}", ask.url.path()));
    let host = match (ask.url.host_str(), ask.url.port()) {
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
    sender.send_request(request).await.map_err(broken)
}

async fn body(response: http::Response<Incoming>) -> Result<Vec<u8>, NoAnswer> {
    if let Some(encoding) = response.headers().get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        return Err(NoAnswer::because(format!("the answer is encoded as {encoding:?}, which was not asked for")));
    }
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| NoAnswer::because(format!("the answer broke off: {error}")))?;
        if let Some(data) = frame.data_ref() {
            if bytes.len().saturating_add(data.len()) > LARGEST {
                return Err(NoAnswer::because(format!("the answer has more than {LARGEST} bytes")));
            }
            bytes.extend_from_slice(data);
        }
    }
    Ok(bytes)
}
