//! Calls to the API server: each has a timeout, is counted, and waits as long as the server asks for (Retry-After).

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// The field manager of writes.
const FIELD_MANAGER: &str = "gameplane";
/// Accepts replies to writes that have only the object's metadata.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// Timeout of calls other than lists and watches.
const DEADLINE: Duration = Duration::from_secs(15);
/// Timeout of dry runs.
const DRY_DEADLINE: Duration = Duration::from_secs(3);

/// The API server.
#[derive(Clone)]
pub struct Server {
    client: Client,
    metrics: Arc<Metrics>,
    pause_until: Arc<Mutex<Option<Instant>>>,
    deadline: Duration,
    /// Whether writes are dry runs.
    is_dry: bool,
    /// Whether calls wait while the server is overloaded.
    is_patient: bool,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server").finish_non_exhaustive()
    }
}

/// A call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The HTTP status; 0 if there was no answer.
    pub code: u16,
    /// The reason of the server's status, for example AlreadyExists.
    pub reason: String,
    /// The error message.
    pub message: String,
    /// The server is overloaded: it answered 429 and said for how long to wait.
    pub overloaded: bool,
}

impl CallError {
    /// There was no answer, or none that can be read.
    pub fn no_answer(message: impl Into<String>) -> Self {
        Self { code: 0, reason: "NoAnswer".to_owned(), message: message.into(), overloaded: false }
    }

    /// The reason, or the HTTP status if there is none.
    #[must_use]
    pub fn kind(&self) -> String {
        if self.reason.is_empty() { self.code.to_string() } else { self.reason.clone() }
    }

    /// The object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// The object exists already.
    #[must_use]
    pub fn is_already_there(&self) -> bool {
        self.code == 409 && self.reason == "AlreadyExists"
    }

    /// A conflict: the object has changed since it was observed, or is another one.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.code == 409 && self.reason != "AlreadyExists"
    }

    /// The object has another uid than the request. The API server reports that as an invalid change of the uid, or as a failed precondition.
    #[must_use]
    pub fn is_other_uid(&self) -> bool {
        self.code == 422 && self.message.contains("metadata.uid") || self.code == 409 && self.message.contains("UID in precondition")
    }

    /// The object has another resourceVersion than the precondition of the deletion.
    #[must_use]
    pub fn is_other_version(&self) -> bool {
        self.code == 409 && self.message.contains("ResourceVersion in precondition")
    }

    /// A webhook does not support dry runs.
    #[must_use]
    pub fn is_no_dry_run(&self) -> bool {
        self.code == 400 && self.message.contains("does not support dry run")
    }

    /// It is unknown whether the request was executed.
    #[must_use]
    pub fn is_without_answer(&self) -> bool {
        self.code == 0 || self.code == 504
    }

    /// The API server itself fails, or rejects the token; the request is not the cause.
    #[must_use]
    pub fn is_trouble(&self) -> bool {
        self.overloaded || matches!(self.code, 0 | 401 | 502..=504)
    }

    /// The requested resourceVersion is no longer available.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.code == 410
    }
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Option<StatusDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusDetails {
    #[serde(default)]
    retry_after_seconds: Option<u64>,
}

/// The part of a reply to a write that is read.
#[derive(Debug, Default, Deserialize)]
pub struct Written {
    /// The object's metadata.
    #[serde(default)]
    pub metadata: WrittenMeta,
}

/// The metadata of a written object, as far as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WrittenMeta {
    /// Its uid.
    #[serde(default)]
    pub uid: String,
    /// The resourceVersion after the write.
    #[serde(default)]
    pub resource_version: String,
    /// Its owners.
    #[serde(default)]
    pub owner_references: Vec<WrittenOwner>,
    /// Whether it is being deleted.
    #[serde(default)]
    pub deletion_timestamp: Option<String>,
}

/// An owner reference of a written object.
#[derive(Debug, Default, Deserialize)]
pub struct WrittenOwner {
    /// The owner's kind.
    #[serde(default)]
    pub kind: String,
    /// The owner's name.
    #[serde(default)]
    pub name: String,
    /// The owner's uid.
    pub uid: String,
    /// Whether it is the controller.
    #[serde(default)]
    pub controller: Option<bool>,
}

impl WrittenMeta {
    /// The resourceVersion as a number.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.resource_version.parse().unwrap_or_default()
    }
}

/// The type of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patch {
    /// JSON merge patch (RFC 7386).
    Merge,
    /// Strategic merge patch: lists are merged by their keys.
    Strategic,
}

impl Server {
    /// Calls through a client.
    #[must_use]
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self { client, metrics, pause_until: Arc::default(), deadline: DEADLINE, is_dry: false, is_patient: true }
    }

    /// The same server with another timeout, and without waiting for overload that other callers met.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, pause_until: Arc::default(), ..self.clone() }
    }

    /// The same server, for dry runs.
    #[must_use]
    pub fn dry(&self) -> Self {
        Self { deadline: DRY_DEADLINE, is_dry: true, ..self.clone() }
    }

    /// The same server, for calls that do not wait while it is overloaded: the caller waits first, and then checks whether the call is still
    /// wanted.
    #[must_use]
    pub fn at_once(&self) -> Self {
        Self { is_patient: false, ..self.clone() }
    }

    fn dry_query(&self) -> &'static str {
        if self.is_dry { "&dryRun=All" } else { "" }
    }

    /// Reads an object or a list.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CallError> {
        self.call("get", Method::GET, path, None, None).await
    }

    /// Creates an object; the reply is its metadata.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Written, CallError> {
        let path = format!("{path}?fieldManager={FIELD_MANAGER}&fieldValidation=Ignore{}", self.dry_query());
        self.call("create", Method::POST, &path, Some(("application/json", object)), Some(METADATA_ONLY)).await
    }

    /// Creates an object; the reply is all of it.
    pub async fn create_whole<T: DeserializeOwned>(&self, path: &str, object: &Value) -> Result<T, CallError> {
        self.call("create", Method::POST, path, Some(("application/json", object)), None).await
    }

    /// Replaces an object; the reply is all of it.
    pub async fn replace<T: DeserializeOwned>(&self, path: &str, object: &Value) -> Result<T, CallError> {
        self.call("update", Method::PUT, path, Some(("application/json", object)), None).await
    }

    /// Patches an object; the reply is its metadata.
    pub async fn patch(&self, path: &str, patch: Patch, body: &Value) -> Result<Written, CallError> {
        let content = match patch {
            Patch::Merge => "application/merge-patch+json",
            Patch::Strategic => "application/strategic-merge-patch+json",
        };
        let path = format!("{path}?fieldManager={FIELD_MANAGER}{}", self.dry_query());
        self.call("patch", Method::PATCH, &path, Some((content, body)), Some(METADATA_ONLY)).await
    }

    /// Deletes an object, on condition that it has this uid and, if given, this resourceVersion.
    pub async fn delete(&self, path: &str, uid: &str, version: Option<u64>) -> Result<Written, CallError> {
        let version = version.map(|version| version.to_string());
        let mut options =
            json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": uid, "resourceVersion": version } });
        if let (true, Some(options)) = (self.is_dry, options.as_object_mut()) {
            options.insert("dryRun".to_owned(), json!(["All"]));
        }
        self.call("delete", Method::DELETE, path, Some(("application/json", &options)), Some(METADATA_ONLY)).await
    }

    /// Opens a stream: a watch or a list. The response has to start before the deadline.
    pub async fn stream(&self, path: &str, deadline: Duration) -> Result<Response<Body>, CallError> {
        let request = build(Method::GET, path, None, None)?;
        let answer = tokio::time::timeout(deadline, self.client.send(request)).await;
        let response = answer.map_err(|_| CallError::no_answer("no answer in time"))?.map_err(|error| describe(&error))?;
        self.metrics.count_call("watch", response.status().as_u16());
        if response.status().is_success() {
            return Ok(response);
        }
        let refused = tokio::time::timeout(self.deadline, self.refused(response)).await;
        Err(refused.unwrap_or_else(|_| CallError::no_answer("the server's words did not arrive in time")))
    }

    async fn call<T: DeserializeOwned>(
        &self,
        verb: &'static str,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
        accept: Option<&str>,
    ) -> Result<T, CallError> {
        if self.is_patient {
            self.wait_while_overloaded().await;
        }
        let request = build(method, path, body, accept)?;
        let answer = tokio::time::timeout(self.deadline, async {
            let response = self.client.send(request).await.map_err(|error| describe(&error))?;
            self.metrics.count_call(verb, response.status().as_u16());
            if !response.status().is_success() {
                return Err(self.refused(response).await);
            }
            let bytes = response.into_body().collect_bytes().await.map_err(|error| describe(&error))?;
            serde_json::from_slice(&bytes).map_err(|error| CallError::no_answer(format!("the reply cannot be read: {error}")))
        });
        let answer = answer.await.unwrap_or_else(|_| Err(CallError::no_answer(format!("no answer within {} s", self.deadline.as_secs()))));
        if answer.as_ref().is_err_and(|error| error.code == 0) {
            self.metrics.count_call(verb, 0);
        }
        answer
    }

    async fn refused(&self, response: Response<Body>) -> CallError {
        let code = response.status();
        let header = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let bytes = response.into_body().collect_bytes().await.unwrap_or_default();
        let status: Status = serde_json::from_slice(&bytes).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&bytes).chars().take(1000).collect::<String>().trim().to_owned(),
            ..Status::default()
        });
        // A webhook may answer 429 too: only one with a time to wait is taken for overload of the server.
        let seconds = header.or_else(|| status.details.as_ref()?.retry_after_seconds).filter(|_| code == StatusCode::TOO_MANY_REQUESTS);
        if let Some(seconds) = seconds {
            let pause = Duration::from_secs(seconds.min(60));
            *self.pause_until.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Instant::now() + pause);
        }
        let message = if status.message.is_empty() { format!("HTTP status {code}") } else { status.message };
        CallError { code: code.as_u16(), reason: status.reason, message, overloaded: seconds.is_some() }
    }

    /// Returns when the time that an overloaded server asked for is over, and whether that took any.
    pub async fn wait_while_overloaded(&self) -> bool {
        let mut has_waited = false;
        loop {
            let until = *self.pause_until.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let Some(until) = until.filter(|until| *until > Instant::now()) else { return has_waited };
            tokio::time::sleep_until(until).await;
            has_waited = true;
        }
    }
}

fn build(method: Method, path: &str, body: Option<(&str, &Value)>, accept: Option<&str>) -> Result<Request<Body>, CallError> {
    let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept.unwrap_or("application/json"));
    if let Some((content, _)) = body {
        request = request.header(header::CONTENT_TYPE, content);
    }
    let bytes = body.map(|(_, value)| value.to_string().into_bytes()).unwrap_or_default();
    request.body(Body::from(bytes)).map_err(|error| CallError::no_answer(error.to_string()))
}

fn describe(error: &kube::Error) -> CallError {
    // The outermost message ("service error") says little, so the causes are appended.
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = inner.source();
    }
    CallError::no_answer(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Answer, Scripted};

    fn written() -> Answer {
        Answer::Ok(json!({ "metadata": { "uid": "u", "resourceVersion": "8" } }).to_string())
    }

    #[tokio::test]
    async fn a_write_names_its_manager_and_wants_only_metadata_back() {
        let (server, script) = Scripted::new([written(), written(), written()]);
        let object = json!({ "metadata": { "name": "a" } });
        assert_eq!(server.create("/api/v1/pods", &object).await.unwrap().metadata.version(), 8);
        server.patch("/api/v1/pods/a", Patch::Strategic, &object).await.unwrap();
        server.patch("/api/v1/pods/a", Patch::Merge, &object).await.unwrap();
        let asked = script.asked();
        let [create, strategic, merge] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!((create.line.as_str(), create.query.as_str()), ("POST /api/v1/pods", "fieldManager=gameplane&fieldValidation=Ignore"));
        assert_eq!((strategic.line.as_str(), strategic.query.as_str()), ("PATCH /api/v1/pods/a", "fieldManager=gameplane"));
        assert_eq!(strategic.headers[header::CONTENT_TYPE], "application/strategic-merge-patch+json");
        assert_eq!(merge.headers[header::CONTENT_TYPE], "application/merge-patch+json");
        assert!(asked.iter().all(|one| one.headers[header::ACCEPT] == METADATA_ONLY && one.body == object));
    }

    #[tokio::test]
    async fn a_deletion_is_for_one_object_and_a_dry_run_says_so_in_each_request() {
        let (server, script) = Scripted::new([written(), written(), written(), written()]);
        server.delete("/a", "u", None).await.unwrap();
        let dry = server.dry();
        dry.delete("/a", "u", Some(7)).await.unwrap();
        dry.create("/a", &json!({})).await.unwrap();
        dry.patch("/a", Patch::Merge, &json!({})).await.unwrap();
        let asked = script.asked();
        let [plain, delete, create, patch] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!((&plain.body["preconditions"]["uid"], &plain.body["dryRun"]), (&json!("u"), &Value::Null));
        assert_eq!(delete.body["preconditions"], json!({ "uid": "u", "resourceVersion": "7" }));
        assert_eq!(delete.body["dryRun"], json!(["All"]));
        assert!([create, patch].iter().all(|one| one.query.ends_with("&dryRun=All")), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn each_call_has_a_timeout_and_a_dry_run_a_shorter_one() {
        let (server, _) = Scripted::new([]);
        for (server, limit) in [(server.clone(), 15), (server.dry(), 3), (server.with_deadline(Duration::from_secs(5)), 5)] {
            let started = Instant::now();
            let error = server.get::<Written>("/a").await.unwrap_err();
            assert_eq!((started.elapsed().as_secs(), error.message), (limit, format!("no answer within {limit} s")));
            assert!(error.code == 0);
        }
        let started = Instant::now();
        let error = server.stream("/a", Duration::from_secs(9)).await.unwrap_err();
        assert!(error.is_without_answer() && started.elapsed().as_secs() == 9, "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_overloaded_server_is_left_alone_for_as_long_as_it_asks() {
        for (asks, waits) in [("7", 7), ("9999", 60)] {
            let (server, script) = Scripted::new([Answer::Overloaded(asks), written(), written()]);
            assert!(server.get::<Written>("/a").await.unwrap_err().overloaded);
            let started = Instant::now();
            server.with_deadline(DEADLINE).get::<Written>("/lease").await.unwrap();
            assert_eq!(started.elapsed().as_secs(), 0, "the lease does not wait");
            server.get::<Written>("/b").await.unwrap();
            assert_eq!((started.elapsed().as_secs(), script.asked().len()), (waits, 3));
        }
        let (server, _) = Scripted::new([Answer::Error(429, "TooManyRequests", "says a webhook"), written()]);
        let error = server.get::<Written>("/a").await.unwrap_err();
        assert!(!error.overloaded && error.message == "says a webhook");
        let started = Instant::now();
        server.get::<Written>("/a").await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 0, "without a time to wait it is not the server that is overloaded");
    }

    #[tokio::test]
    async fn an_error_says_what_the_server_said() {
        let long = Answer::Raw(502, "<html>bad gateway</html>\n");
        let refused = Answer::Error(403, "Forbidden", "exceeded quota: pods");
        let (server, _) = Scripted::new([refused, long, Answer::Raw(500, ""), Answer::Ok("not JSON".to_owned())]);
        let mut said = Vec::new();
        for _ in 0..4 {
            let error = server.get::<Written>("/a").await.unwrap_err();
            said.push((error.code, error.kind(), error.message.clone(), error.is_trouble()));
        }
        let expected = [
            (403, "Forbidden", "exceeded quota: pods", false),
            (502, "502", "<html>bad gateway</html>", true),
            (500, "500", "HTTP status 500 Internal Server Error", false),
        ];
        for (said, (code, kind, message, is_trouble)) in said.iter().zip(expected) {
            assert_eq!(said, &(code, kind.to_owned(), message.to_owned(), is_trouble));
        }
        assert!(said[3].2.starts_with("the reply cannot be read: ") && said[3].3, "it is not known what became of it: {said:?}");
    }

    #[test]
    fn conflicts_are_told_apart() {
        let error = |code: u16, reason: &str, message: &str| CallError {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            overloaded: false,
        };
        let uid = "Operation cannot be fulfilled on pods \"a\": Precondition failed: UID in precondition: 1, UID in object meta: 2";
        let version = "Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: 2";
        let is = |one: CallError| [one.is_already_there(), one.is_conflict(), one.is_other_uid(), one.is_other_version()];
        assert_eq!(is(error(409, "AlreadyExists", "pods \"a\" already exists")), [true, false, false, false]);
        assert_eq!(is(error(409, "Conflict", "the object has been modified")), [false, true, false, false]);
        assert_eq!(is(error(409, "Conflict", uid)), [false, true, true, false]);
        assert_eq!(is(error(409, "Conflict", version)), [false, true, false, true]);
        assert_eq!(is(error(422, "Invalid", "metadata.uid: Invalid value: field is immutable")), [false, false, true, false]);
        assert_eq!(is(error(422, "Invalid", "spec.containers: Required value")), [false, false, false, false]);
    }
}
