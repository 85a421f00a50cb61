//! Access to the API server that impersonates a ServiceAccount of the run's namespace: `kubernetes` and `exec` act with its rights,
//! not with the operator's.

use std::collections::VecDeque;
use std::sync::Mutex;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

use super::http::NoAnswer;
use super::names::{checked, is_subdomain};
use super::{Asker, Measurement, locked};
use crate::client::{CallError, Server};

/// The most clients that are cached.
const MOST_CLIENTS: usize = 64;

/// A cache of clients that impersonate ServiceAccounts, by user name, least recently used first. Each keeps its own connections
/// open for later measurements.
#[derive(Default)]
pub struct Clients(Mutex<VecDeque<(String, Pooled)>>);

impl std::fmt::Debug for Clients {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Clients").finish_non_exhaustive()
    }
}

/// A cached client.
#[derive(Clone)]
struct Pooled {
    client: Client,
    server: Server,
}

impl Clients {
    /// The client for a user, created if there is none.
    fn of(&self, user: &str, make: impl FnOnce() -> Result<Pooled, NoAnswer>) -> Result<Pooled, NoAnswer> {
        let mut all = locked(&self.0);
        let known = all.iter().position(|(known, _)| known == user).and_then(|place| all.remove(place));
        let found = match known {
            Some((_, found)) => found,
            None => make()?,
        };
        while all.len() >= MOST_CLIENTS {
            all.pop_front();
        }
        all.push_back((user.to_owned(), found.clone()));
        Ok(found)
    }
}

/// An impersonated ServiceAccount.
pub(crate) struct Account {
    namespace: String,
    name: String,
    client: Client,
    server: Server,
}

impl std::fmt::Display for Account {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "the ServiceAccount {} of namespace {}", self.name, self.namespace)
    }
}

impl Account {
    pub(crate) fn of(asker: &Asker, measurement: &Measurement, name: Option<&String>) -> Result<Self, NoAnswer> {
        let name = name.filter(|name| !name.is_empty()).map_or("default", String::as_str);
        let name = checked("serviceAccountName", name, "a ServiceAccount", is_subdomain)?.to_owned();
        let namespace = measurement.namespace.clone();
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let Pooled { client, server } = asker.clients.of(&user, || {
            let mut config = asker.config.clone();
            config.auth_info.impersonate = Some(user.clone());
            let client = Client::try_from(config).map_err(|error| NoAnswer::because(format!("no client can be made: {error}")))?;
            let server = Server::new(client.clone(), asker.metrics.clone());
            Ok(Pooled { client, server })
        })?;
        Ok(Self { namespace, name, client, server })
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The API server's error, with a hint what to grant.
    pub(crate) fn refused(&self, error: &CallError) -> NoAnswer {
        let hint = match error.code {
            403 if error.message.contains("cannot impersonate") => {
                format!("; a Role of this namespace must allow the operator to impersonate {self}")
            }
            403 => format!("; a Role of this namespace must allow it to {self}"),
            _ => String::new(),
        };
        NoAnswer::because(format!("{}{hint}", error.message))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn the_clients_used_last_are_kept() {
        let clients = Clients::default();
        let mut made = 0;
        let mut use_one = |user: &str| {
            clients
                .of(user, || {
                    made += 1;
                    let client = Client::try_from(kube::Config::new("http://192.0.2.1".parse().unwrap())).unwrap();
                    Ok(Pooled { server: Server::new(client.clone(), Arc::new(Metrics::default())), client })
                })
                .unwrap();
            made
        };
        assert_eq!((use_one("first"), use_one("first"), use_one("second")), (1, 1, 2));
        for number in 0..MOST_CLIENTS - 2 {
            use_one(&number.to_string());
        }
        let all = use_one("first");
        assert_eq!(all, MOST_CLIENTS, "none is dropped as long as there is room");
        assert_eq!(use_one("new"), all + 1);
        assert_eq!(use_one("first"), all + 1, "the one used last is kept");
        assert_eq!(use_one("second"), all + 2, "the one not used for longest is dropped");
    }
}
