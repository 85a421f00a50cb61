//! Large answers take a place, so that few are held in memory at once and the hooks of one namespace do not take all places.

use std::sync::Arc;

use crate::fair::{Place, Places};

/// The largest answer, in bytes, that needs no place.
pub(crate) const SMALL: usize = 16 * 1024;
/// Large answers at once. The last half is for namespaces that have none.
const TOTAL: usize = 16;
/// The same, to HookRuns of one namespace.
const PER_NAMESPACE: usize = 8;

#[derive(Debug)]
pub(crate) struct LargeAnswers(Arc<Places>);

impl Default for LargeAnswers {
    fn default() -> Self {
        Self(Places::with_reserve(TOTAL, PER_NAMESPACE))
    }
}

impl LargeAnswers {
    /// Waits for a place.
    pub(crate) async fn place(&self, namespace: &str) -> Place {
        self.0.take(namespace).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_namespace_does_not_take_all_places() {
        let answers = LargeAnswers::default();
        let mut held = Vec::new();
        for _ in 0..PER_NAMESPACE {
            held.push(answers.place("one").await);
        }
        let waits = async |namespace: &str| tokio::time::timeout(Duration::from_secs(1), answers.place(namespace)).await.is_err();
        assert!(waits("one").await);
        let two = answers.place("two").await;
        assert!(waits("two").await, "two namespaces do not take all places either");
        assert!(!waits("three").await);
        drop(held);
        assert!(!waits("one").await && !waits("two").await);
        drop(two);
    }
}
