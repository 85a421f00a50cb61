//! Secrets whose values become headers of a request, and the hosts that they may be sent to.

use std::collections::{BTreeMap, HashMap};

use api::names::HOOK_HOSTS_ANNOTATION;
use api::tkex::SecretKey;
use serde::Deserialize;

use super::http::NoAnswer;
use super::names::{checked, is_key, is_subdomain};
use super::{Asker, Measurement, target};
use crate::client::CallError;

#[derive(Deserialize)]
struct Secret {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    data: HashMap<String, k8s_openapi::ByteString>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The value of a Secret's key, if the operator may read the Secret and it may be sent to the measurement's host.
pub(crate) async fn value(asker: &Asker, measurement: &Measurement, source: &SecretKey) -> Result<Vec<u8>, NoAnswer> {
    let name = checked("secretKeyRef.name", &source.name, "a Secret", is_subdomain)?;
    let key = checked("secretKeyRef.key", &source.key, "a key of a Secret", is_key)?;
    let found: Result<Secret, CallError> = asker.server.get(&format!("/api/v1/namespaces/{}/secrets/{name}", measurement.namespace)).await;
    let mut secret = found.map_err(|error| {
        let hint = if error.code == 403 { "; a Role of this namespace must allow the operator's ServiceAccount to get it" } else { "" };
        NoAnswer::because(format!("the Secret {name} cannot be read: {}{hint}", error.message))
    })?;
    if let Some(hosts) = secret.metadata.annotations.get(HOOK_HOSTS_ANNOTATION) {
        let to = host(measurement)?;
        if !may_go_to(hosts, &to) {
            return Err(NoAnswer::because(format!(
                "the Secret {name} is not for {to}: its annotation {HOOK_HOSTS_ANNOTATION} names the hosts that it may be sent to"
            )));
        }
    }
    // A newline after a value is hardly ever intended.
    let trimmed = |value: k8s_openapi::ByteString| value.0.trim_ascii_end().to_vec();
    secret.data.remove(key).map(trimmed).ok_or_else(|| NoAnswer::because(format!("the Secret {name} has no key {key}")))
}

/// The host and port of a measurement's url.
fn host(measurement: &Measurement) -> Result<String, NoAnswer> {
    let url = target::request(measurement)?.map(|(url, _)| url);
    let place = url.and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)));
    Ok(place.unwrap_or_default())
}

/// Whether `hosts`, separated by commas, include this host and port. A host without a port matches every port,
/// `*.example.com` every host below example.com.
fn may_go_to(hosts: &str, to: &str) -> bool {
    let Some((name, _)) = to.rsplit_once(':') else { return false };
    hosts.split(',').map(|host| host.trim().to_ascii_lowercase()).any(|host| match host.strip_prefix('*') {
        Some(below) if below.starts_with('.') => [name, to].iter().any(|to| to.len() > below.len() && to.ends_with(below)),
        Some(_) => false,
        None => host == name || host == to,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_goes_only_where_its_annotation_says() {
        let hosts = "a.example.com, *.B.example.com,c.example.com:8443,[2001:db8::1]";
        for yes in [
            "a.example.com:80",
            "a.example.com:443",
            "x.b.example.com:443",
            "x.y.b.example.com:1",
            "c.example.com:8443",
            "[2001:db8::1]:80",
        ] {
            assert!(may_go_to(hosts, yes), "{yes}");
        }
        for no in ["b.example.com:443", "xb.example.com:443", "a.example.com.evil.org:443", "c.example.com:443", "evil.org:80", ""] {
            assert!(!may_go_to(hosts, no), "{no}");
        }
        assert!(!may_go_to("", "a.example.com:443"), "an empty annotation names no host");
        assert!(!may_go_to("*", "a.example.com:443") && !may_go_to("*example.com", "a.example.com:443"), "a star stands for whole labels");
        assert!(may_go_to("*.example.com:8443", "a.example.com:8443") && !may_go_to("*.example.com:8443", "a.example.com:443"));
    }
}
