//! A scripted API server for unit tests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};

use crate::client::Server;
use crate::metrics::Metrics;

/// One answer.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// 200 with a body.
    Ok(String),
    /// An error with a Status: code, reason and message.
    Error(u16, &'static str, &'static str),
    /// An error with any body.
    Raw(u16, &'static str),
    /// 429, and for how many seconds to wait.
    Overloaded(&'static str),
    /// None at all.
    Silence,
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Method and path.
    pub(crate) line: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    /// Null if there is none.
    pub(crate) body: Value,
}

/// The rest of the script, after which nothing is answered, and the requests so far.
#[derive(Clone)]
pub(crate) struct Scripted(Arc<Mutex<(VecDeque<Answer>, Vec<Asked>)>>);

impl Scripted {
    /// A server that gives these answers, one per request.
    pub(crate) fn new(answers: impl IntoIterator<Item = Answer>) -> (Server, Self) {
        let script = Self(Arc::new(Mutex::new((answers.into_iter().collect(), Vec::new()))));
        let router = Router::new().fallback(answer).with_state(script.clone());
        (Server::new(kube::Client::new(router, "play"), Arc::<Metrics>::default()), script)
    }

    /// The requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.0.lock().unwrap().1.clone()
    }

    /// Their queries.
    pub(crate) fn queries(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.query).collect()
    }
}

async fn answer(State(script): State<Scripted>, request: axum::extract::Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let asked = Asked {
        line: format!("{} {}", parts.method, parts.uri.path()),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let next = {
        let mut script = script.0.lock().unwrap();
        script.1.push(asked);
        script.0.pop_front()
    };
    let status = |code: u16| StatusCode::from_u16(code).unwrap();
    match next.unwrap_or(Answer::Silence) {
        Answer::Ok(body) => body.into_response(),
        Answer::Error(code, reason, message) => {
            (status(code), json!({ "kind": "Status", "reason": reason, "message": message }).to_string()).into_response()
        }
        Answer::Raw(code, body) => (status(code), body).into_response(),
        Answer::Overloaded(seconds) => {
            (status(429), [(header::RETRY_AFTER, seconds)], json!({ "reason": "TooManyRequests" }).to_string()).into_response()
        }
        Answer::Silence => std::future::pending().await,
    }
}
