//! An admission webhook that prefixes every image with the name of a mirror, as companies with their own registry do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::scene::{Scene, run};

/// The prefix of rewritten images.
pub const MIRROR: &str = "mirror.test/";

/// The webhook of one namespace. [`Mirror::stop`] removes it; dropping it only closes the server.
#[derive(Debug)]
pub struct Mirror {
    name: String,
    reviews: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Mirror {
    /// Rewrites images of pods of the scene's namespace when they are created or updated.
    pub async fn start(scene: &Scene) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress(std::net::Ipv4Addr::LOCALHOST.into())];
        let certificate = params.self_signed(&key)?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?.with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate.der().clone()], private)?));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, reviews) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&reviews);
        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
                connections.spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        // The API server retries if it gets no response.
                        let _ = serve(stream, &count).await;
                    }
                });
            }
        });
        let mirror = Self { name: scene.namespace().to_owned(), reviews, server };
        run(scene.cluster().kubectl().args(["apply", "-f", "-"]), &mirror.configuration(address, &certificate.pem()).to_string())?;
        // The API server takes a moment until it calls the webhook.
        let words = ["run", "probe", "--image=probe:1", "--dry-run=server", "-o", "jsonpath={.spec.containers[0].image}"];
        for _ in 0..300 {
            if scene.kubectl(&words)?.starts_with(MIRROR) {
                return Ok(mirror);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the webhook is not in force")
    }

    fn configuration(&self, address: SocketAddr, certificate: &str) -> Value {
        let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"] });
        let webhook = json!({
            "name": "images.mirror.test", "admissionReviewVersions": ["v1"], "sideEffects": "None", "rules": [rule], "failurePolicy": "Fail",
            "clientConfig": { "url": format!("https://{address}/"), "caBundle": ByteString(certificate.as_bytes().to_vec()) },
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": self.name } },
        });
        let kind = "MutatingWebhookConfiguration";
        json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": { "name": self.name }, "webhooks": [webhook] })
    }

    /// How many requests it has reviewed.
    #[must_use]
    pub fn reviews(&self) -> usize {
        self.reviews.load(Ordering::SeqCst)
    }

    /// Removes the webhook from the API server.
    pub fn stop(self, scene: &Scene) -> Result<()> {
        run(scene.cluster().kubectl().args(["delete", "mutatingwebhookconfiguration", &self.name]), "").map(drop)
    }
}

/// Answers one review.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, count: &AtomicUsize) -> Result<()> {
    let mut request = Vec::new();
    let body = loop {
        ensure!(stream.read_buf(&mut request).await? > 0, "the client left");
        if let Some(head) = request.windows(4).position(|end| end == b"\r\n\r\n") {
            let (head, body) = request.split_at(head + 4);
            let head = String::from_utf8_lossy(head).to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            if body.len() >= length.context("no length")? {
                break body.to_vec();
            }
        }
    };
    count.fetch_add(1, Ordering::SeqCst);
    let review: Value = serde_json::from_slice(&body)?;
    let containers = review["request"]["object"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let rewritten = containers.iter().enumerate().filter_map(|(place, container)| {
        let image = container["image"].as_str().filter(|image| !image.starts_with(MIRROR))?;
        Some(json!({ "op": "replace", "path": format!("/spec/containers/{place}/image"), "value": format!("{MIRROR}{image}") }))
    });
    let patch = ByteString(Value::Array(rewritten.collect()).to_string().into_bytes());
    let response = json!({ "uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch });
    let answer = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }).to_string();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
    stream.write_all(format!("{head}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len()).as_bytes()).await?;
    stream.shutdown().await?;
    Ok(())
}
