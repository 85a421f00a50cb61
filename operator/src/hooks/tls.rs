//! TLS for hooks: the trusted certificates. Messages about others name the kind of problem, never their content.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::http::NoAnswer;
use super::locked;

/// The largest caBundle, in bytes.
const MAX_BUNDLE_BYTES: usize = 64 * 1024;
/// The most caBundles that are cached.
const BUNDLES: usize = 32;

/// Configurations that requests share, because parsing the trusted certificates takes long.
#[derive(Debug, Default)]
pub(crate) struct Tls {
    public: OnceLock<Arc<ClientConfig>>,
    bundles: Mutex<HashMap<String, Arc<ClientConfig>>>,
}

impl Tls {
    /// The TLS handshake with a server, which must have a trusted certificate for the host.
    pub(crate) async fn connect(&self, host: &str, bundle: Option<&str>, stream: TcpStream) -> Result<TlsStream<TcpStream>, NoAnswer> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|error| NoAnswer::because(format!("the host's name cannot be verified: {error}")))?;
        let connected = TlsConnector::from(self.config(bundle)?).connect(name, stream).await;
        connected.map_err(|error| NoAnswer::because(format!("no trusted connection: {}", category(&error))))
    }

    fn config(&self, bundle: Option<&str>) -> Result<Arc<ClientConfig>, NoAnswer> {
        let Some(bundle) = bundle else {
            let public = || config(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect());
            return Ok(Arc::clone(self.public.get_or_init(public)));
        };
        if bundle.len() > MAX_BUNDLE_BYTES {
            return Err(NoAnswer::because(format!("caBundle has more than {MAX_BUNDLE_BYTES} bytes")));
        }
        if let Some(known) = locked(&self.bundles).get(bundle) {
            return Ok(Arc::clone(known));
        }
        let config = config(roots(bundle)?);
        let mut bundles = locked(&self.bundles);
        if bundles.len() >= BUNDLES
            && let Some(other) = bundles.keys().next().cloned()
        {
            bundles.remove(&other);
        }
        bundles.insert(bundle.to_owned(), Arc::clone(&config));
        Ok(config)
    }
}

fn roots(bundle: &str) -> Result<RootCertStore, NoAnswer> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        let added = certificate.map_err(|error| error.to_string()).and_then(|one| roots.add(one).map_err(|error| error.to_string()));
        added.map_err(|error| NoAnswer::because(format!("caBundle cannot be read: {error}")))?;
    }
    Ok(roots)
}

fn config(roots: RootCertStore) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    // Hooks of different namespaces share the configuration, so sessions are not resumed.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// The kind of failure, without any data of the server.
fn category(error: &io::Error) -> &'static str {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return "the connection broke";
    };
    let rustls::Error::InvalidCertificate(certificate) = error else { return "no TLS that both sides speak" };
    if matches!(certificate, CertificateError::UnknownIssuer) {
        "the certificate is not signed by an authority that is trusted (caBundle)"
    } else if matches!(certificate, CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) {
        "the certificate is for another name"
    } else if matches!(certificate, CertificateError::Expired | CertificateError::ExpiredContext { .. }) {
        "the certificate has expired"
    } else {
        "the certificate is not valid"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_certificate_is_not_told() {
        let expected = ServerName::try_from("game.example.com").unwrap();
        let presented = vec!["secret.internal".to_owned()];
        let certificate = CertificateError::NotValidForNameContext { expected, presented };
        let said = category(&io::Error::new(io::ErrorKind::InvalidData, rustls::Error::InvalidCertificate(certificate)));
        assert_eq!(said, "the certificate is for another name");
        let noise = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        assert_eq!(category(&io::Error::new(io::ErrorKind::InvalidData, noise)), "no TLS that both sides speak");
        assert_eq!(category(&io::Error::from(io::ErrorKind::UnexpectedEof)), "the connection broke");
    }

    #[test]
    fn configurations_are_shared_and_not_kept_without_end() {
        let tls = Tls::default();
        let same = |one: Option<&str>| Arc::ptr_eq(&tls.config(one).unwrap(), &tls.config(one).unwrap());
        assert!(same(None) && same(Some("# a bundle")));
        for number in 0..100 {
            tls.config(Some(&format!("# {number}"))).unwrap();
        }
        assert_eq!(locked(&tls.bundles).len(), BUNDLES);
        assert!(tls.config(Some(&"#".repeat(MAX_BUNDLE_BYTES + 1))).unwrap_err().message.contains("more than 65536 bytes"));
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(tls.config(Some(broken)).unwrap_err().message.contains("caBundle cannot be read"));
    }
}
