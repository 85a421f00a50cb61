//! Large answers take a place: few are held in memory at once, and a namespace's hooks do not take them all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::locked;

/// An answer that has no more bytes needs no place.
pub(crate) const SMALL: usize = 16 * 1024;
/// Large answers at once.
const TOTAL: usize = 16;
/// The same, to HookRuns of one namespace.
const PER_NAMESPACE: usize = 8;

#[derive(Debug)]
pub(crate) struct LargeAnswers {
    total: Arc<Semaphore>,
    namespaces: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// What one large answer holds as long as it is needed.
pub(crate) type Place = [OwnedSemaphorePermit; 2];

impl Default for LargeAnswers {
    fn default() -> Self {
        Self { total: Arc::new(Semaphore::new(TOTAL)), namespaces: Mutex::default() }
    }
}

impl LargeAnswers {
    /// Waits for a place. Nothing if there will be none any more.
    pub(crate) async fn place(&self, namespace: &str) -> Option<Place> {
        let own = self.of(namespace);
        // The namespace's first: what waits for it takes nothing from others.
        let own = own.acquire_owned().await.ok()?;
        Some([own, Arc::clone(&self.total).acquire_owned().await.ok()?])
    }

    fn of(&self, namespace: &str) -> Arc<Semaphore> {
        let mut namespaces = locked(&self.namespaces);
        if let Some(known) = namespaces.get(namespace).and_then(Weak::upgrade) {
            return known;
        }
        namespaces.retain(|_, places| places.strong_count() > 0);
        let new = Arc::new(Semaphore::new(PER_NAMESPACE));
        namespaces.insert(namespace.to_owned(), Arc::downgrade(&new));
        new
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
        for number in 0..TOTAL {
            held.push(answers.place(["one", "two"][number % 2]).await.unwrap());
        }
        let waits = async |namespace: &str| tokio::time::timeout(Duration::from_secs(1), answers.place(namespace)).await.is_err();
        assert!(waits("one").await && waits("three").await);
        held.truncate(TOTAL - 1);
        assert!(waits("one").await, "another's place was given back");
        assert!(!waits("two").await && !waits("three").await);
        drop(held);
        assert!(!waits("one").await);
        assert_eq!(locked(&answers.namespaces).len(), 1, "namespaces without large answers are forgotten");
    }
}
