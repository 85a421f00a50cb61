//! Helpers for tests of hooks: a scripted API server, and an asker in its cluster.

use std::sync::{Arc, Mutex, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::egress::{Egress, Policy};
use super::{Asker, Limits, Measurement};
use crate::client::Server;
use crate::kinds::node::Node;
use crate::leader::Leadership;
use crate::store::{Cached as _, Store};

/// A scripted API server.
#[derive(Clone, Default)]
pub(crate) struct Api {
    asked: Arc<Mutex<Vec<String>>>,
    /// Answers to requests whose url contains the text.
    answers: Arc<Vec<(&'static str, Value)>>,
}

impl Api {
    /// The requests since the last call.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

async fn answer(State(api): State<Api>, request: axum::extract::Request) -> (StatusCode, String) {
    let uri = request.uri().to_string();
    let found = api.answers.iter().find(|(words, _)| uri.contains(words)).map(|(_, answer)| answer.to_string());
    api.asked.lock().unwrap().push(uri);
    found.map_or((StatusCode::NOT_FOUND, "{}".to_owned()), |answer| (StatusCode::OK, answer))
}

/// An asker in a cluster with a node at 10.1.0.7 and an API server with these answers. Two measurements of a namespace run at
/// once, one per host.
pub(crate) fn asker(policy: Policy, answers: Vec<(&'static str, Value)>) -> (Asker, Api) {
    let api = Api { answers: Arc::new(answers), ..Api::default() };
    let client = kube::Client::new(Router::new().fallback(answer).with_state(api.clone()), "play");
    let egress = Egress::new(policy, Some("127.0.0.1:1".parse().unwrap())).unwrap();
    egress.api_server_is_at(["10.96.0.1".parse().unwrap()]);
    let nodes = Store::default();
    let status = json!({ "addresses": [{ "type": "InternalIP", "address": "10.1.0.7" }] });
    let node = json!({ "metadata": { "name": "n", "uid": "u", "resourceVersion": "1" }, "status": status });
    let node = Node::decode(&node.to_string()).unwrap();
    nodes.put(&node.key(), Some(node));
    egress.see_nodes(&nodes);
    let asker = Asker {
        server: Server::new(client, Arc::default()),
        config: kube::Config::new("https://10.96.0.1".parse().unwrap()),
        clients: super::Clients::default(),
        leadership: Arc::new(Leadership::unquestioned()),
        metrics: Arc::default(),
        egress: Arc::new(egress),
        limits: Limits { total: 4, per_namespace: 2, per_host: 1 },
        hosts: super::hosts::Hosts::new(1),
        tls: Arc::default(),
        large: Arc::default(),
    };
    (asker, api)
}

/// A measurement of a web server, about the pod game-0 if it has a uid.
pub(crate) fn measurement(url: &str, pod: Option<&str>) -> Measurement {
    let metric = json!({ "name": "web", "provider": { "web": { "url": url } } });
    let arguments = [("PodName".to_owned(), "game-0".to_owned())].into();
    let (metric, pod) = (serde_json::from_value(metric).unwrap(), pod.map(str::to_owned));
    Measurement { namespace: "play".to_owned(), metric, arguments, pod, large: OnceLock::new() }
}
