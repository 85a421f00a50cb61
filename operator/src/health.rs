//! Which kinds are listed and watched, and why others are not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::client::CallError;
use crate::metrics::Metrics;

/// The state of the watch of one kind.
#[derive(Debug, Clone, Default)]
struct Watch {
    /// Whether every workload needs it.
    is_core: bool,
    /// Whether a list of it was complete in this term. That stays so if it cannot be watched any more.
    is_listed: bool,
    /// Why the kind cannot be listed or watched now.
    trouble: Option<Trouble>,
}

#[derive(Debug, Clone)]
struct Trouble {
    message: String,
    /// Whether a CustomResourceDefinition or a right is missing, so that retries alone do not help.
    is_refusal: bool,
    /// Since when the kind cannot be listed or watched.
    since: Instant,
}

/// A missing CustomResourceDefinition or right counts as lasting after this time: an API server that has just started answers so too.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// Other errors count as lasting after this time.
const FAILING_FOR: Duration = Duration::from_secs(30);

/// The state of every watch of this process.
#[derive(Debug, Default)]
pub struct Health {
    metrics: Arc<Metrics>,
    watches: Mutex<BTreeMap<&'static str, Watch>>,
}

impl Health {
    /// Nothing is watched yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, watches: Mutex::default() }
    }

    fn watches(&self) -> MutexGuard<'_, BTreeMap<&'static str, Watch>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A term starts or has ended.
    pub fn reset(&self) {
        self.watches().clear();
        self.metrics.forget_watches();
    }

    /// A kind will be watched.
    pub(crate) fn expect(&self, kind: &'static str, is_core: bool) {
        self.watches().entry(kind).or_default().is_core = is_core;
    }

    /// A list of the kind is complete.
    pub(crate) fn listed(&self, kind: &'static str) {
        self.watches().entry(kind).or_default().is_listed = true;
        self.watched(kind);
    }

    /// The kind can be watched again.
    pub(crate) fn watched(&self, kind: &'static str) {
        self.watches().entry(kind).or_default().trouble = None;
        self.metrics.set_watch_failing(kind, false);
    }

    /// The kind cannot be listed or watched. Returns whether that is news.
    pub(crate) fn failed(&self, kind: &'static str, error: &CallError, hint: &str) -> bool {
        let (message, is_refusal) = (format!("{error}{hint}"), matches!(error.code, 403 | 404));
        let mut watches = self.watches();
        let known = &mut watches.entry(kind).or_default().trouble;
        let is_new = known.as_ref().is_none_or(|known| known.message != message);
        let since = known.as_ref().filter(|known| known.is_refusal == is_refusal).map_or_else(Instant::now, |known| known.since);
        *known = Some(Trouble { message, is_refusal, since });
        drop(watches);
        self.metrics.set_watch_failing(kind, true);
        is_new
    }

    /// Whether at least one kind is listed, and every kind that is not lacks a CustomResourceDefinition or a right and is not needed by
    /// all workloads.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let watches = self.watches();
        let is_refused = |watch: &Watch| !watch.is_core && watch.trouble.as_ref().is_some_and(|trouble| trouble.is_refusal);
        watches.values().all(|watch| watch.is_listed || is_refused(watch)) && watches.values().any(|watch| watch.is_listed)
    }

    /// Why a kind cannot be listed, if that lasts. A kind that was listed once counts as known as long as it may be watched.
    #[must_use]
    pub fn lasting(&self, kind: &str, is_listed: bool) -> Option<String> {
        let watches = self.watches();
        let trouble = watches.get(kind)?.trouble.as_ref()?;
        let lasts = match trouble.is_refusal {
            true => trouble.since.elapsed() >= REFUSED_FOR,
            false => !is_listed && trouble.since.elapsed() >= FAILING_FOR,
        };
        lasts.then(|| trouble.message.clone())
    }

    /// A line for each kind that cannot be listed or watched.
    #[must_use]
    pub fn troubles(&self) -> String {
        let watches = self.watches();
        let lines = watches.iter().filter_map(|(kind, watch)| Some(format!("{kind}: {}\n", watch.trouble.as_ref()?.message)));
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16) -> CallError {
        CallError { code, reason: String::new(), message: "no".to_owned(), overloaded: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_refused_holds_up_no_other() {
        let health = Health::new(Arc::default());
        assert!(!health.is_ready(), "nothing is watched");
        health.expect("Pod", true);
        health.expect("HookRun", false);
        assert!(health.failed("HookRun", &error(404), ": the CustomResourceDefinition is missing"));
        assert!(!health.failed("HookRun", &error(404), ": the CustomResourceDefinition is missing"), "it is known already");
        assert!(!health.is_ready(), "Pods are not listed");
        health.listed("Pod");
        assert!(health.is_ready());
        assert!(health.troubles().starts_with("HookRun: ") && health.troubles().ends_with("is missing\n"), "{}", health.troubles());
        // A failure that retries can solve is waited for.
        health.failed("HookRun", &error(503), "");
        assert!(!health.is_ready());
        health.listed("HookRun");
        health.failed("Pod", &error(503), "");
        assert!(health.is_ready() && health.troubles().starts_with("Pod: "), "what was listed is known");
        health.watched("Pod");
        assert_eq!(health.troubles(), "");
    }

    #[test]
    fn what_every_workload_needs_has_to_be_listed() {
        let health = Health::new(Arc::default());
        health.expect("Pod", true);
        health.expect("GameDeployment", false);
        health.listed("GameDeployment");
        health.failed("Pod", &error(403), "");
        assert!(!health.is_ready(), "the right to list Pods is missing");
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_is_reported_when_it_lasts() {
        let health = Health::new(Arc::default());
        let (refused, failing) = (|| health.lasting("Pod", true), || health.lasting("Pod", false));
        health.failed("Pod", &error(403), "");
        assert_eq!((refused(), failing()), (None, None), "an API server that has just started answers so too");
        tokio::time::advance(REFUSED_FOR).await;
        health.failed("Pod", &error(403), ": as before");
        assert!(refused().is_some_and(|why| why.ends_with("as before")) && failing().is_some());
        health.failed("Pod", &error(503), "");
        tokio::time::advance(REFUSED_FOR).await;
        assert_eq!((refused(), failing()), (None, None));
        tokio::time::advance(FAILING_FOR).await;
        assert!(refused().is_none() && failing().is_some(), "what was listed is known");
        health.watched("Pod");
        assert_eq!(failing(), None);
    }
}
