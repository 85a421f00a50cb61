//! The cluster's own certificate authority, the certificates it signs, and kubeconfigs that use them.

use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};

use crate::error::Result;
use crate::rundir::RunDir;

/// The certificate authority of one cluster.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    folder: PathBuf,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Authority").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// A certificate and its key, as files and as text.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    certificate_pem: String,
    key_pem: String,
}

/// The user and group of a client certificate.
pub(crate) struct Subject<'a> {
    pub(crate) user: &'a str,
    pub(crate) group: Option<&'a str>,
}

impl Authority {
    pub(crate) fn create(run: &RunDir) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "localkube");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        run.file("pki/ca.crt", &certificate)?;
        run.file("pki/ca.key", key.serialize_pem())?;
        let signing = KeyPair::generate()?;
        run.file("pki/service-accounts.key", signing.serialize_pem())?;
        run.file("pki/service-accounts.pub", signing.public_key_pem())?;
        Ok(Self { issuer: Issuer::new(params, key), certificate, folder: run.path().join("pki") })
    }

    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn client(&self, run: &RunDir, name: &str, subject: &Subject<'_>) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, subject.user);
        if let Some(group) = subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(run, name, params)
    }

    pub(crate) fn server(&self, run: &RunDir, name: &str, names: &[String]) -> Result<Identity> {
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(run, name, params)
    }

    fn sign(&self, run: &RunDir, name: &str, mut params: CertificateParams) -> Result<Identity> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let key = KeyPair::generate()?;
        let certificate_pem = params.signed_by(&key, &self.issuer)?.pem();
        let key_pem = key.serialize_pem();
        Ok(Identity {
            certificate: run.file(format!("pki/{name}.crt"), &certificate_pem)?,
            key: run.file(format!("pki/{name}.key"), &key_pem)?,
            certificate_pem,
            key_pem,
        })
    }
}

/// How a kubeconfig authenticates.
pub(crate) enum Credential<'a> {
    Certificate(&'a Identity),
    Token(&'a str),
}

/// A self-contained kubeconfig (JSON is YAML).
pub(crate) fn kubeconfig(server: &str, authority: &str, credential: &Credential<'_>) -> String {
    let user = match credential {
        Credential::Certificate(identity) => json!({
            "client-certificate-data": base64(&identity.certificate_pem),
            "client-key-data": base64(&identity.key_pem),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "localkube",
        "clusters": [{ "name": "localkube", "cluster": { "server": server, "certificate-authority-data": base64(authority) } }],
        "users": [{ "name": "localkube", "user": user }],
        "contexts": [{ "name": "localkube", "context": { "cluster": "localkube", "user": "localkube" } }],
    });
    format!("{config:#}\n")
}

fn base64(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

/// Writes a new file that only its owner can read.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<()> {
    use crate::error::Doing;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .doing(|| format!("cannot write {}", path.display()))?;
    file.write_all(content.as_bytes()).doing(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_carries_its_certificates() {
        let config = kubeconfig("https://127.0.0.1:1", "CA", &Credential::Token("secret"));
        let config: Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["certificate-authority-data"], "Q0E=");
        assert_eq!(config["users"][0]["user"]["token"], "secret");
    }
}
