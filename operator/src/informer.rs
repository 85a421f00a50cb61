//! One list and watch per kind. A fresh list also reports objects that were deleted between two watches.

use std::sync::Arc;
use std::time::Duration;

use futures::{AsyncBufReadExt, TryStreamExt};
use rand::RngExt;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::client::{CallError, Server};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::store::{Cached, Change, Fresh, Key, Store};
use crate::wire::{Bookmark, ErrorStatus, Frame, Named, Page, broken, http_body, read};

/// Objects per page of a list.
const PAGE: u32 = 500;
/// A larger page, in bytes, is aborted and requested again with half as many objects.
const LARGEST_PAGE: usize = 8 * 1024 * 1024;
/// The server ends a watch after this time at the latest; the next one resumes from its last version.
const WATCH_SECONDS: u64 = 290;
/// The server sends a bookmark about once a minute: a stream that is silent for longer counts as broken.
const SILENCE: Duration = Duration::from_secs(100);
/// Timeouts until the response to a watch, and to a list, starts. By default an API server itself limits a list to 60 s.
const WATCH_DEADLINE: Duration = Duration::from_secs(15);
const LIST_DEADLINE: Duration = Duration::from_secs(60);
/// A watch that ends sooner counts as failed.
const SHORT: Duration = Duration::from_secs(1);
/// How long to wait after a failure, at least and at most.
const BACKOFF: Backoff = Backoff { least: Duration::from_millis(200), most: Duration::from_secs(10) };

/// How often objects that were cut are read again if their namespace has room, and how many at most.
const RESTORE_EVERY: Duration = Duration::from_secs(5);
const MOST_RESTORED: usize = 32;

/// Called with changes that were seen together.
type Reaction<T> = Arc<dyn Fn(&[Change<T>]) + Send + Sync>;

/// Follows one kind for as long as the process leads.
pub struct Informer<T: Cached> {
    server: Server,
    store: Arc<Store<T>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    changed: Reaction<T>,
    /// Whether lists are streamed (WatchList), which not every API server supports.
    streaming: bool,
}

impl<T: Cached> std::fmt::Debug for Informer<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Informer").field("kind", &T::KIND).finish_non_exhaustive()
    }
}

/// Why a watch ended.
enum End {
    /// The watch timed out or the connection broke: resume from the last version.
    Resume,
    /// A fresh list is needed.
    Relist,
}

impl<T: Cached> Informer<T> {
    /// An informer that fills `store` and reports every change.
    pub fn new(
        server: Server,
        store: Arc<Store<T>>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        streaming: bool,
        changed: impl Fn(&[Change<T>]) + Send + Sync + 'static,
    ) -> Self {
        health.expect(T::KIND, T::IS_CORE);
        Self { server, store, metrics, health, changed: Arc::new(changed), streaming }
    }

    /// Runs until it is dropped.
    pub async fn run(self) {
        let restored = restore(self.server.clone(), Arc::clone(&self.store), Arc::clone(&self.changed));
        tokio::select! { () = restored => {}, () = self.follow() => {} }
    }

    async fn follow(mut self) {
        let mut failures = 0_u32;
        loop {
            match self.list_and_watch(&mut failures).await {
                // The list has expired and a fresh one is needed. One that expires at once counts as a failure.
                Ok(lasted) if lasted >= SHORT => failures = 0,
                Ok(_) => self.wait(&mut failures).await,
                Err(error) if self.streaming && (error.code == 400 || error.code == 422) => {
                    tracing::info!(kind = T::KIND, %error, "the server has no streaming lists; listing in pages");
                    self.streaming = false;
                }
                Err(error) => {
                    self.failed(&error);
                    self.wait(&mut failures).await;
                }
            }
            self.metrics.count_watch_restart(T::KIND);
        }
    }

    /// The kind cannot be listed or watched. Only the first of several equal errors is a warning.
    fn failed(&self, error: &CallError) {
        let hint = hint(error);
        if self.health.failed(T::KIND, error, hint) {
            tracing::warn!(kind = T::KIND, code = error.code, %error, "cannot list or watch{hint}");
        } else {
            tracing::debug!(kind = T::KIND, code = error.code, %error, "still cannot list or watch");
        }
    }

    async fn wait(&self, failures: &mut u32) {
        let pause = BACKOFF.after(*failures);
        *failures = failures.saturating_add(1);
        tokio::time::sleep(pause).await;
    }

    /// Lists, then watches until a fresh list is needed. Returns how long that took.
    async fn list_and_watch(&self, failures: &mut u32) -> Result<Duration, CallError> {
        let started = Instant::now();
        let mut version = if self.streaming {
            // A streaming list is the first part of a watch.
            match self.watch(None).await? {
                (End::Relist, _) => return Ok(started.elapsed()),
                (End::Resume, version) => version,
            }
        } else {
            self.list().await?
        };
        loop {
            let opened = Instant::now();
            match self.watch(Some(version)).await? {
                (End::Relist, _) => return Ok(started.elapsed()),
                (End::Resume, last) => version = last,
            }
            self.metrics.count_watch_restart(T::KIND);
            // A watch that ends as soon as it is opened would otherwise be opened in a hot loop.
            if opened.elapsed() >= SHORT {
                *failures = 0;
            } else {
                self.wait(failures).await;
            }
        }
    }

    async fn list(&self) -> Result<u64, CallError> {
        let (mut fresh, mut token, mut limit) = (Fresh::new(), String::new(), PAGE);
        loop {
            let token_query = if token.is_empty() { String::new() } else { format!("&continue={token}") };
            let Some(body) = self.page(&format!("{}?limit={limit}{token_query}", T::PATH), limit).await? else {
                limit /= 2;
                continue;
            };
            let page: Page = read(&body)?;
            for item in page.items {
                if let Some(object) = self.decode(item.get()) {
                    fresh.insert(object, self.store.allowance());
                }
            }
            // Large objects are often adjacent: after them the page size grows again.
            limit = (limit * 2).min(PAGE);
            token = page.metadata.r#continue;
            if token.is_empty() {
                let version = page.metadata.resource_version.parse().unwrap_or_default();
                self.replace(fresh, version);
                return Ok(version);
            }
        }
    }

    /// A page of a list, without a timeout as long as data arrives. None if it is too large: the caller then halves the limit.
    async fn page(&self, path: &str, limit: u32) -> Result<Option<String>, CallError> {
        let mut body = std::pin::pin!(http_body(self.server.stream(path, LIST_DEADLINE).await?));
        let mut text = Vec::new();
        while let Some(bytes) = tokio::time::timeout(SILENCE, body.try_next())
            .await
            .map_err(|_| broken("the list broke off"))?
            .map_err(|error| broken(&error.to_string()))?
        {
            text.extend_from_slice(&bytes);
            if text.len() > LARGEST_PAGE && limit > 1 {
                return Ok(None);
            }
        }
        String::from_utf8(text).map(Some).map_err(|error| broken(&error.to_string()))
    }

    /// Follows changes from `version`; without one, a streaming list comes first.
    async fn watch(&self, version: Option<u64>) -> Result<(End, u64), CallError> {
        let jitter = rand::rng().random_range(0..WATCH_SECONDS / 5);
        let start = version.map_or_else(
            || "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
            |version| format!("&resourceVersion={version}"),
        );
        let path = format!("{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={}{start}", T::PATH, WATCH_SECONDS - jitter);
        let deadline = if version.is_some() { WATCH_DEADLINE } else { LIST_DEADLINE };
        let response = match self.server.stream(&path, deadline).await {
            Err(error) if error.is_expired() => return Ok(too_old::<T>()),
            // No change was missed yet: the next try resumes from the same version.
            Err(error) if !matches!(error.code, 400 | 404 | 422) && version.is_some() => {
                self.failed(&error);
                return Ok((End::Resume, version.unwrap_or_default()));
            }
            response => response?,
        };
        // A streaming list has to be complete first.
        if version.is_some() {
            self.health.watched(T::KIND);
        }
        let body = http_body(response);
        let mut lines = std::pin::pin!(body.into_async_read());
        let mut initial = version.is_none().then(Fresh::new);
        let mut version = version.unwrap_or_default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = tokio::select! {
                read = tokio::time::timeout(SILENCE, lines.read_until(b'\n', &mut line)) => read,
                () = self.store.watch_is_stalled(), if initial.is_none() => return Ok((End::Resume, version)),
            };
            match read {
                // A line without a newline was cut off.
                Ok(Ok(_)) if line.ends_with(b"\n") => {}
                // An incomplete list is discarded.
                _ if initial.is_some() => return Err(broken("the list broke off")),
                Ok(Ok(_) | Err(_)) | Err(_) => return Ok((End::Resume, version)),
            }
            let text = std::str::from_utf8(&line).map_err(|error| broken(&error.to_string()))?;
            match self.take(text, &mut initial)? {
                Step::Seen(seen) => version = version.max(seen),
                Step::Listed(seen) => {
                    version = seen;
                    self.replace(initial.take().unwrap_or_else(Fresh::new), seen);
                }
                Step::Expired => return Ok(too_old::<T>()),
            }
        }
    }

    fn take(&self, line: &str, initial: &mut Option<Fresh<T>>) -> Result<Step, CallError> {
        let (kind, json) = Frame::of(line)?;
        match &*kind {
            "BOOKMARK" => {
                let bookmark: Bookmark = read(json)?;
                let version = bookmark.metadata.resource_version.parse().unwrap_or_default();
                let ends_list = bookmark.metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true");
                if ends_list && initial.is_some() {
                    return Ok(Step::Listed(version));
                }
                self.store.advance(version);
                Ok(Step::Seen(version))
            }
            "ERROR" => {
                let status: ErrorStatus = read(json)?;
                if status.code == 410 {
                    return Ok(Step::Expired);
                }
                Err(CallError { code: status.code, reason: status.reason, message: status.message, overloaded: false })
            }
            kind => self.object(json, kind == "DELETED", initial),
        }
    }

    fn object(&self, json: &str, deleted: bool, initial: &mut Option<Fresh<T>>) -> Result<Step, CallError> {
        let object = if deleted { None } else { self.decode(json) };
        let Some(object) = object else {
            let named: Named = read(json)?;
            let version = named.metadata.resource_version.parse().unwrap_or_default();
            let key = Key { namespace: named.metadata.namespace, name: named.metadata.name };
            if let Some(initial) = initial {
                initial.remove(&key);
            } else {
                self.put(&key, None, version);
            }
            return Ok(Step::Seen(version));
        };
        let (key, version) = (object.key(), object.version());
        if let Some(initial) = initial {
            initial.insert(object, self.store.allowance());
        } else {
            self.put(&key, Some(object), version);
        }
        Ok(Step::Seen(version))
    }

    /// Decodes an object. One that cannot be decoded is logged and not served.
    fn decode(&self, json: &str) -> Option<T> {
        T::decode(json)
            .inspect_err(|error| {
                let named =
                    serde_json::from_str::<Named>(json).map(|named| format!("{}/{}", named.metadata.namespace, named.metadata.name));
                tracing::error!(kind = T::KIND, object = named.unwrap_or_default(), %error, "an object cannot be read and is not served");
                self.metrics.count_unreadable(T::KIND);
            })
            .ok()
            .filter(T::matters)
    }

    fn put(&self, key: &Key, new: Option<T>, version: u64) {
        let change = self.store.put(key, new);
        self.store.advance(version);
        self.metrics.set_cached(T::KIND, self.store.len());
        (self.changed)(std::slice::from_ref(&change));
    }

    fn replace(&self, fresh: Fresh<T>, version: u64) {
        let changes = self.store.replace(fresh, version);
        self.metrics.set_cached(T::KIND, self.store.len());
        (self.changed)(&changes);
        self.health.listed(T::KIND);
        tracing::debug!(kind = T::KIND, objects = self.store.len(), version, "listed");
    }
}

/// Reads objects again that were cut, once their namespace has room for them.
async fn restore<T: Cached>(server: Server, store: Arc<Store<T>>, changed: Reaction<T>) {
    loop {
        tokio::time::sleep(RESTORE_EVERY).await;
        for key in store.to_restore(MOST_RESTORED) {
            let Ok(json) = server.get::<Box<RawValue>>(&crate::settle::path::<T>(&key)).await else { continue };
            if let Ok(whole) = T::decode(json.get())
                && let Some(change) = store.restore(whole)
            {
                changed(std::slice::from_ref(&change));
            }
        }
    }
}

/// The API server's history does not reach back to the last version seen here (410 Gone).
fn too_old<T: Cached>() -> (End, u64) {
    tracing::info!(kind = T::KIND, "the server's history begins after the last version seen here; listing afresh");
    (End::Relist, 0)
}

enum Step {
    Seen(u64),
    Listed(u64),
    Expired,
}

/// What to check when a list or watch fails.
fn hint(error: &CallError) -> &'static str {
    match error.code {
        401 => ": the token is not valid (any more); it is read again on the next try",
        403 => ": the ServiceAccount lacks rights; install the chart's RBAC",
        404 => ": the CustomResourceDefinition is missing; install the chart's CRDs",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::kinds::pod::Pod;
    use crate::testing::{Answer, Scripted};

    fn metadata(name: &str, version: u64) -> serde_json::Value {
        json!({
            "name": name, "namespace": "play", "uid": name, "resourceVersion": version.to_string(), "creationTimestamp": "2026-11-15T10:00:00Z",
        })
    }

    fn event(kind: &str, name: &str, version: u64) -> String {
        format!("{}\n", json!({ "type": kind, "object": { "metadata": metadata(name, version) } }))
    }

    fn end_of_list(version: u64) -> String {
        let metadata = json!({ "resourceVersion": version.to_string(), "annotations": { "k8s.io/initial-events-end": "true" } });
        format!("{}\n", json!({ "type": "BOOKMARK", "object": { "metadata": metadata } }))
    }

    fn page(names: &[&str], version: u64, token: &str) -> String {
        let items: Vec<_> = names.iter().map(|name| json!({ "metadata": metadata(name, 4) })).collect();
        json!({ "metadata": { "resourceVersion": version.to_string(), "continue": token }, "items": items }).to_string()
    }

    fn stream(events: &[String]) -> Answer {
        Answer::Ok(events.concat())
    }

    /// An informer of pods that has run through a script.
    struct Run {
        script: Scripted,
        store: Arc<Store<Pod>>,
        health: Arc<Health>,
        /// `+name` for each object that is there after a change, `-name` for each that is not.
        changes: Vec<String>,
    }

    /// Runs until the store has seen `version`.
    async fn run_until(version: u64, streaming: bool, answers: Vec<Answer>) -> Run {
        let (server, script) = Scripted::new(answers);
        let (metrics, store): (Arc<Metrics>, Arc<Store<Pod>>) = (Arc::default(), Arc::default());
        let health = Arc::new(Health::new(Arc::clone(&metrics)));
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&seen);
        let note = move |changes: &[Change<Pod>]| {
            let word = |change: &Change<Pod>| match (&change.old, &change.new) {
                (_, Some(new)) => Some(format!("+{}", new.facts.name)),
                (Some(old), None) => Some(format!("-{}", old.facts.name)),
                (None, None) => None,
            };
            noted.lock().unwrap().extend(changes.iter().filter_map(word));
        };
        let task = tokio::spawn(Informer::new(server, Arc::clone(&store), metrics, Arc::clone(&health), streaming, note).run());
        let arrived = async {
            while store.progress() < version {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), arrived).await.unwrap();
        task.abort();
        let changes = seen.lock().unwrap().clone();
        Run { script, store, health, changes }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_in_the_middle_of_a_line_goes_on_from_the_last_whole_one() {
        let broken = event("MODIFIED", "b", 7);
        let first = [event("ADDED", "a", 4), end_of_list(5), event("ADDED", "b", 6), broken[..broken.len() / 2].to_owned()];
        let run = run_until(7, true, vec![stream(&first), stream(&[event("MODIFIED", "b", 7)])]).await;
        let asked = run.script.queries();
        assert!(asked[0].contains("sendInitialEvents=true") && asked[1].ends_with("&resourceVersion=6"), "{asked:?}");
        assert_eq!((run.store.len(), run.changes), (2, ["+a", "+b", "+b"].map(str::to_owned).to_vec()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_is_too_large_is_asked_for_again_by_halves() {
        let large = || {
            let mut page: serde_json::Value = serde_json::from_str(&page(&["a"], 7, "")).unwrap();
            page["items"][0]["metadata"]["annotations"] = json!({ "note": "x".repeat(LARGEST_PAGE) });
            Answer::Ok(page.to_string())
        };
        let answers = vec![large(), large(), Answer::Ok(page(&["a"], 7, "more")), Answer::Ok(page(&["b"], 7, ""))];
        let run = run_until(7, false, answers).await;
        assert_eq!(run.script.queries()[..4], ["limit=500", "limit=250", "limit=125", "limit=250&continue=more"]);
        assert_eq!((run.store.len(), run.store.progress()), (2, 7));
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_expired_watch_a_fresh_list_tells_what_has_disappeared() {
        let expired = json!({ "type": "ERROR", "object": { "code": 410, "reason": "Expired", "message": "too old resource version" } });
        let answers = vec![
            Answer::Ok(page(&["a", "b"], 5, "")),
            stream(&[format!("{expired}\n")]),
            Answer::Ok(page(&["b", "c"], 8, "")),
            Answer::Error(410, "Expired", "too old resource version"),
            Answer::Ok(page(&["c"], 9, "")),
        ];
        let run = run_until(9, false, answers).await;
        assert_eq!((run.store.len(), run.store.progress()), (1, 9));
        let mut changes = run.changes;
        changes.retain(|change| change != "+b" && change != "+c");
        assert_eq!(changes, ["+a", "-a", "-b"]);
        assert!(run.script.queries()[1].contains("resourceVersion=5"), "{:?}", run.script.queries());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_breaks_off_is_discarded() {
        let half = [event("ADDED", "a", 4), event("ADDED", "b", 4)];
        let whole = [event("ADDED", "b", 4), end_of_list(6)];
        let run = run_until(6, true, vec![stream(&half), stream(&whole)]).await;
        assert_eq!((run.store.len(), run.changes), (1, vec!["+b".to_owned()]), "nothing is known before a list is complete");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_streaming_lists_is_asked_for_pages() {
        let no = Answer::Error(422, "Invalid", "sendInitialEvents: Forbidden: not supported");
        let run = run_until(7, true, vec![no, Answer::Ok(page(&["a"], 7, ""))]).await;
        assert_eq!((run.script.queries()[1].as_str(), run.store.len()), ("limit=500", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_may_not_be_listed_is_told_and_tried_again_less_and_less_often() {
        let no = || Answer::Error(403, "Forbidden", "pods is forbidden");
        let started = Instant::now();
        let run = run_until(7, false, vec![no(), no(), no(), no(), Answer::Ok(page(&["a"], 7, ""))]).await;
        let waited = started.elapsed();
        assert!(waited >= Duration::from_millis(200 + 400 + 800 + 1600) / 2 && waited < Duration::from_secs(10), "{waited:?}");
        assert_eq!((run.script.asked()[0].line.as_str(), run.store.len()), ("GET /api/v1/pods", 1));
        assert!(run.health.is_ready(), "it is listed now");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_cannot_be_read_is_left_out_and_one_that_is_deleted_is_gone() {
        let odd = json!({ "type": "ADDED", "object": { "metadata": { "name": "odd", "namespace": "play", "resourceVersion": "6", "labels": 7 } } });
        let events = [event("ADDED", "a", 4), end_of_list(5), format!("{odd}\n"), event("ADDED", "b", 7), event("DELETED", "a", 8)];
        let run = run_until(8, true, vec![stream(&events)]).await;
        assert_eq!((run.store.len(), run.changes), (1, ["+a", "+b", "-a"].map(str::to_owned).to_vec()));
    }
}
