//! Leader election with a Lease, as in client-go.
//!
//! A candidate uses only its own clock: a lease has expired when the candidate has seen no change of it for the lease's duration.
//! Every write of the lease carries its resourceVersion. The leader stops writing before another candidate could take over.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{CallError, Server};

/// The durations of the election.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// How long the lease is valid without a renewal.
    pub lease: Duration,
    /// A leader that could not renew the lease for this long stops.
    pub renew: Duration,
    /// How often the lease is renewed or tried.
    pub retry: Duration,
}

/// The lease, and this process's name in it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The lease's namespace.
    pub namespace: String,
    /// The lease's name.
    pub name: String,
    /// This process's name in the lease.
    pub identity: String,
    /// The durations of the election.
    pub times: Times,
}

/// Whether this process may write.
#[derive(Debug, Default)]
pub struct Leadership {
    until: Mutex<Option<Instant>>,
}

impl Leadership {
    /// Leadership without a lease.
    #[must_use]
    pub fn unquestioned() -> Self {
        let far = Instant::now() + Duration::from_secs(100 * 365 * 24 * 3600);
        Self { until: Mutex::new(Some(far)) }
    }

    fn set(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = until;
    }

    /// Until when writes are allowed.
    fn until(&self) -> Option<Instant> {
        *self.until.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether writes are allowed now; checked before every write.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
struct Lease {
    metadata: Value,
    #[serde(default)]
    spec: LeaseSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}

impl LeaseSpec {
    fn is_held_by(&self, identity: &str) -> bool {
        self.holder_identity.as_deref() == Some(identity)
    }

    fn is_free(&self) -> bool {
        self.holder_identity.as_deref().is_none_or(str::is_empty)
    }
}

/// Takes part in the election.
#[derive(Debug)]
pub struct Election {
    server: Server,
    candidate: Candidate,
    leadership: Arc<Leadership>,
    /// The lease as it was last seen, and when it last changed.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Election {
    /// A candidate that leads nothing yet.
    #[must_use]
    pub fn new(server: &Server, candidate: Candidate) -> Self {
        let server = server.with_deadline(candidate.times.retry.max(Duration::from_secs(2)));
        Self { server, candidate, leadership: Arc::default(), seen: None }
    }

    /// Whether this process may write.
    #[must_use]
    pub fn leadership(&self) -> Arc<Leadership> {
        Arc::clone(&self.leadership)
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.candidate.namespace)
    }

    /// Returns when this process leads.
    pub async fn won(&mut self) {
        let mut told = None;
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {
                    let holder = self.seen.as_ref().and_then(|(spec, _)| spec.holder_identity.clone());
                    if told != Some(holder.clone()) {
                        tracing::info!(leader = holder.as_deref().unwrap_or("none"), "another process leads; standing by");
                        told = Some(holder);
                    }
                }
                Err(error) => tracing::warn!(%error, code = error.code, "cannot read or write the lease"),
            }
            let jitter = rand::rng().random_range(1.0..1.2);
            tokio::time::sleep(self.candidate.times.retry.mul_f64(jitter)).await;
        }
    }

    /// Keeps the lease; returns when it is lost.
    pub async fn lost(&mut self) {
        let times = self.candidate.times;
        loop {
            tokio::time::sleep(times.retry).await;
            // The attempt ends when writes are no longer allowed, so that a slow API server does not prolong the term.
            let deadline = self.leadership.until().unwrap_or_else(Instant::now);
            let attempt = tokio::time::timeout_at(deadline, self.attempt()).await;
            match attempt {
                Ok(Ok(true)) => continue,
                // A conflict: another client wrote the lease. Only if it took the lease, the term ends.
                Ok(Ok(false)) if self.seen.as_ref().is_some_and(|(spec, _)| spec.is_held_by(&self.candidate.identity)) => {}
                Ok(Ok(false)) => {
                    tracing::warn!("another process took the lease");
                    break;
                }
                Ok(Err(error)) => tracing::warn!(%error, code = error.code, "cannot renew the lease"),
                Err(_) => {}
            }
            if Instant::now() >= deadline {
                tracing::warn!("the lease could not be renewed in time; this process no longer leads");
                break;
            }
        }
        self.leadership.set(None);
    }

    /// Releases the lease, so that another process does not have to wait until it expires.
    pub async fn release(&mut self) {
        self.leadership.set(None);
        let Ok(mut lease) = self.server.get::<Lease>(&format!("{}/{}", self.path(), self.candidate.name)).await else { return };
        if !lease.spec.is_held_by(&self.candidate.identity) {
            return;
        }
        let now = now();
        lease.spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: lease.spec.lease_transitions,
        };
        match self.replace(&lease).await {
            Ok(_) => tracing::info!("gave the lease up"),
            Err(error) => tracing::warn!(%error, "cannot give the lease up"),
        }
    }

    /// Acquires or renews the lease, if it is free, expired or held by this process.
    async fn attempt(&mut self) -> Result<bool, CallError> {
        // Measured before the write, because a late answer does not prolong the lease.
        let started = Instant::now();
        let mut lease = match self.server.get::<Lease>(&format!("{}/{}", self.path(), self.candidate.name)).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => return self.create(started).await,
            Err(error) => return Err(error),
        };
        let held = lease.spec.is_held_by(&self.candidate.identity);
        if self.seen.as_ref().is_none_or(|(spec, _)| *spec != lease.spec) {
            self.seen = Some((lease.spec.clone(), Instant::now()));
        }
        let age = self.seen.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        let duration = lease.spec.lease_duration_seconds.map_or(self.candidate.times.lease, Duration::from_secs);
        if !held && !lease.spec.is_free() && age < duration {
            return Ok(false);
        }
        let transitions = lease.spec.lease_transitions.unwrap_or_default() + i64::from(!held);
        let acquired = if held { lease.spec.acquire_time.clone() } else { None };
        lease.spec = self.spec(acquired, transitions);
        match self.replace(&lease).await {
            Ok(written) => {
                self.take(written.spec, started);
                Ok(true)
            }
            // Another process was faster.
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn create(&mut self, started: Instant) -> Result<bool, CallError> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": self.candidate.name, "namespace": self.candidate.namespace },
            "spec": self.spec(None, 0),
        });
        match self.server.create_whole::<Lease>(&self.path(), &lease).await {
            Ok(lease) => {
                self.take(lease.spec, started);
                Ok(true)
            }
            Err(error) if error.is_already_there() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn take(&mut self, spec: LeaseSpec, started: Instant) {
        self.seen = Some((spec, Instant::now()));
        self.leadership.set(Some(started + self.candidate.times.renew));
    }

    fn spec(&self, acquired: Option<String>, transitions: i64) -> LeaseSpec {
        let now = now();
        LeaseSpec {
            holder_identity: Some(self.candidate.identity.clone()),
            lease_duration_seconds: Some(self.candidate.times.lease.as_secs_f64().ceil().max(1.0) as u64),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
        }
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, CallError> {
        let body = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": lease.metadata, "spec": lease.spec });
        self.server.replace(&format!("{}/{}", self.path(), self.candidate.name), &body).await
    }
}

fn now() -> String {
    format!("{:.6}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::State;
    use http::{Method, StatusCode};

    use super::*;

    /// A lease as the API server keeps it, and whether the server answers at all.
    #[derive(Clone, Default)]
    struct Stored(Arc<Mutex<(Option<Value>, u64, bool)>>);

    impl Stored {
        fn spec(&self) -> Value {
            self.0.lock().unwrap().0.as_ref().unwrap()["spec"].clone()
        }

        fn fail(&self, fails: bool) {
            self.0.lock().unwrap().2 = fails;
        }

        /// Another process writes the lease.
        fn write(&self, spec: &Value) {
            let mut stored = self.0.lock().unwrap();
            stored.1 += 1;
            let metadata = json!({ "name": "lease", "uid": "u", "resourceVersion": stored.1.to_string() });
            stored.0 = Some(json!({ "metadata": metadata, "spec": spec }));
        }
    }

    async fn answer(State(stored): State<Stored>, request: axum::extract::Request) -> (StatusCode, String) {
        let method = request.method().clone();
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let (lease, version, fails) = stored.0.lock().unwrap().clone();
        let refused = |code: StatusCode, reason: &str| (code, json!({ "reason": reason, "message": "no" }).to_string());
        if fails {
            return refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
        }
        if method == Method::GET {
            return lease.map_or_else(|| refused(StatusCode::NOT_FOUND, "NotFound"), |lease| (StatusCode::OK, lease.to_string()));
        }
        let written: Value = serde_json::from_slice(&body).unwrap();
        if method == Method::PUT && written["metadata"]["resourceVersion"].as_str() != Some(&version.to_string()) {
            return refused(StatusCode::CONFLICT, "Conflict");
        }
        stored.write(&written["spec"]);
        let lease = stored.0.lock().unwrap().0.clone().unwrap();
        (StatusCode::OK, lease.to_string())
    }

    const TIMES: Times = Times { lease: Duration::from_secs(15), renew: Duration::from_secs(10), retry: Duration::from_secs(2) };

    fn election(stored: &Stored, identity: &str) -> Election {
        let router = Router::new().fallback(answer).with_state(stored.clone());
        let server = Server::new(kube::Client::new(router, "play"), Arc::default());
        let [namespace, name, identity] = ["play", "lease", identity].map(str::to_owned);
        Election::new(&server, Candidate { namespace, name, identity, times: TIMES })
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_leader_is_replaced_after_the_duration_of_its_lease_on_our_own_clock() {
        let stored = Stored::default();
        // Its clock is years behind, which says nothing.
        stored.write(
            &json!({ "holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2001-01-01T00:00:00.000000Z", "leaseTransitions": 3 }),
        );
        let mut election = election(&stored, "b");
        assert!(!election.attempt().await.unwrap());
        tokio::time::advance(Duration::from_secs(14)).await;
        assert!(!election.attempt().await.unwrap() && !election.leadership().may_write());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(election.attempt().await.unwrap() && election.leadership().may_write());
        let spec = stored.spec();
        assert_eq!((&spec["holderIdentity"], &spec["leaseTransitions"]), (&json!("b"), &json!(4)));
        assert!(election.attempt().await.unwrap());
        assert_eq!(stored.spec()["acquireTime"], spec["acquireTime"], "renewing is not acquiring");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_stops_writing_before_another_may_start() {
        let stored = Stored::default();
        let (mut leader, mut other) = (election(&stored, "a"), election(&stored, "b"));
        leader.won().await;
        let started = Instant::now();
        assert!(!other.attempt().await.unwrap());
        stored.fail(true);
        leader.lost().await;
        assert!(started.elapsed() >= TIMES.renew && started.elapsed() < TIMES.lease, "{:?}", started.elapsed());
        assert!(!leader.leadership().may_write());
        stored.fail(false);
        assert!(!other.attempt().await.unwrap(), "the lease has not expired");
        other.won().await;
        assert!(started.elapsed() >= TIMES.lease && other.leadership().may_write());
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_whose_lease_is_taken_stops_and_a_conflict_alone_ends_nothing() {
        let stored = Stored::default();
        let mut leader = election(&stored, "a");
        leader.won().await;
        let leadership = leader.leadership();
        // Another tool writes the lease and leaves the holder as it is.
        let mut spec = stored.spec();
        spec["renewTime"] = json!("2026-11-15T10:00:00.000000Z");
        stored.write(&spec);
        assert!(leader.attempt().await.unwrap() && leadership.may_write());
        spec["holderIdentity"] = json!("b");
        stored.write(&spec);
        let started = Instant::now();
        leader.lost().await;
        assert!(started.elapsed() <= TIMES.retry + Duration::from_secs(1) && !leadership.may_write());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_was_given_up_is_taken_at_once() {
        let stored = Stored::default();
        let (mut leader, mut other) = (election(&stored, "a"), election(&stored, "b"));
        leader.won().await;
        leader.release().await;
        assert!(!leader.leadership().may_write());
        assert_eq!(stored.spec()["holderIdentity"], "");
        assert!(other.attempt().await.unwrap());
        leader.release().await;
        assert_eq!(stored.spec()["holderIdentity"], "b", "what is another's is not given up");
    }
}
