//! The API in the name of a ServiceAccount of the run's namespace: the operator's own rights are never lent to a hook.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

use super::http::NoAnswer;
use super::{Asker, Errand};
use crate::client::{CallError, Server};

/// A ServiceAccount in whose name the API is asked.
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
    pub(crate) fn of(asker: &Asker, errand: &Errand, name: Option<&String>) -> Result<Self, NoAnswer> {
        let (namespace, name) =
            (errand.namespace.clone(), name.filter(|name| !name.is_empty()).map_or("default", String::as_str).to_owned());
        let mut config = asker.config.clone();
        config.auth_info.impersonate = Some(format!("system:serviceaccount:{namespace}:{name}"));
        let client = Client::try_from(config).map_err(|error| NoAnswer::because(format!("no client can be made: {error}")))?;
        let server = Server::new(client.clone(), asker.metrics.clone());
        Ok(Self { namespace, name, client, server })
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The server's words, and what a person can do about them.
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
