//! Which kinds are listed and watched, and why others are not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::client::CallError;
use crate::metrics::Metrics;

/// The state of the watch of one kind.
#[derive(Debug, Clone, Default)]
struct Watch {
    /// Whether it has been listed in this term.
    is_listed: bool,
    /// Why the kind cannot be listed or watched now.
    trouble: Option<Trouble>,
}

#[derive(Debug, Clone)]
struct Trouble {
    message: String,
    /// Whether retries do not help: a CustomResourceDefinition or a right is missing.
    is_lasting: bool,
}

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
    pub(crate) fn expect(&self, kind: &'static str) {
        self.watches().entry(kind).or_default();
    }

    /// A list of the kind is complete.
    pub(crate) fn listed(&self, kind: &'static str) {
        *self.watches().entry(kind).or_default() = Watch { is_listed: true, trouble: None };
        self.metrics.set_watch_failing(kind, false);
    }

    /// The kind can be watched again.
    pub(crate) fn watched(&self, kind: &'static str) {
        self.watches().entry(kind).or_default().trouble = None;
        self.metrics.set_watch_failing(kind, false);
    }

    /// The kind cannot be listed or watched.
    pub(crate) fn failed(&self, kind: &'static str, error: &CallError, hint: &str) {
        let trouble = Trouble { message: format!("{error}{hint}"), is_lasting: matches!(error.code, 403 | 404) };
        self.watches().entry(kind).or_default().trouble = Some(trouble);
        self.metrics.set_watch_failing(kind, true);
    }

    /// Whether at least one kind is listed, and every kind that is not lacks a CustomResourceDefinition or a right.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let watches = self.watches();
        let is_refused = |watch: &Watch| watch.trouble.as_ref().is_some_and(|trouble| trouble.is_lasting);
        watches.values().all(|watch| watch.is_listed || is_refused(watch)) && watches.values().any(|watch| watch.is_listed)
    }

    /// Why a kind cannot be listed or watched.
    #[must_use]
    pub fn trouble(&self, kind: &str) -> Option<String> {
        self.watches().get(kind)?.trouble.as_ref().map(|trouble| trouble.message.clone())
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

    #[test]
    fn a_kind_that_is_refused_holds_up_no_other() {
        let health = Health::new(Arc::default());
        assert!(!health.is_ready(), "nothing is watched");
        health.expect("Pod");
        health.expect("HookRun");
        health.failed("HookRun", &error(404), ": the CustomResourceDefinition is missing");
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
}
