//! Which object is reconciled next. Each waits once, and one worker at a time has it. Namespaces take turns; within one, the
//! object that has waited longest comes first.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::fair::Turns;
use crate::metrics::Metrics;
use crate::store::Key;

/// Delays after failures: the first, and the longest.
const BACKOFF: Backoff = Backoff { least: Duration::from_millis(100), most: Duration::from_secs(4) };

/// How soon an object is checked again whose writes the caches have not seen.
const UNSETTLED: Duration = Duration::from_millis(20);

/// A queue of objects of one kind.
#[derive(Debug)]
pub struct Queue {
    kind: &'static str,
    state: Mutex<State>,
    changed: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct State {
    /// When each waiting object is due.
    due: HashMap<Key, Instant>,
    /// Waiting objects that no worker has, by when they are due.
    order: BTreeSet<(Instant, Key)>,
    /// Objects that are due, in the order in which workers take them.
    ready: Turns<(Instant, Key)>,
    working: HashSet<Key>,
    /// The earliest time of each object's next pass: the pause or delay after its last one.
    not_before: HashMap<Key, Instant>,
    /// Being worked on, and changed by a user meanwhile.
    hurried: HashSet<Key>,
    failures: HashMap<Key, u32>,
}

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more to do until something changes; no pass within the pause.
    Done { pause: Duration },
    /// It failed: retry with increasing delays.
    Failed,
    /// The caches have not seen its last writes: check again soon. Counts neither as success nor as failure.
    Unsettled,
    /// The object is gone.
    Gone,
}

impl State {
    /// The next object that is due by now.
    fn pop(&mut self, now: Instant) -> Option<(Instant, Key)> {
        while self.order.first().is_some_and(|(at, _)| *at <= now)
            && let Some((at, key)) = self.order.pop_first()
        {
            let namespace = key.namespace.clone();
            self.ready.push(&namespace, (at, key));
        }
        self.ready.pop()
    }

    /// Queues the object, unless it is due earlier. Returns whether a worker may have to wake up earlier for it.
    fn wait(&mut self, key: Key, at: Instant) -> bool {
        let at = self.not_before.get(&key).map_or(at, |not_before| at.max(*not_before));
        if let Some(due) = self.due.get(&key) {
            if *due <= at {
                return false;
            }
            if !self.order.remove(&(*due, key.clone())) && !self.working.contains(&key) {
                // It is ready already: a second entry would give it to a second worker.
                return false;
            }
        }
        let is_free = !self.working.contains(&key);
        if is_free {
            self.order.insert((at, key.clone()));
        }
        self.due.insert(key, at);
        is_free
    }
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new(kind: &'static str, metrics: Arc<Metrics>) -> Self {
        Self { kind, state: Mutex::default(), changed: Notify::new(), metrics }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Something about the object changed.
    pub fn add(&self, key: Key) {
        self.add_at(key, Instant::now());
    }

    /// Queues the object for that time, unless it is due earlier.
    pub fn add_at(&self, key: Key, at: Instant) {
        let mut state = self.state();
        let wakes = state.wait(key, at);
        self.metrics.set_queue_depth(self.kind, state.due.len());
        drop(state);
        // Not for each event of thousands of pods while their object is being worked on.
        if wakes {
            self.changed.notify_one();
        }
    }

    /// A user changed the object: reconcile it without pause or backoff.
    pub fn add_now(&self, key: Key) {
        let mut state = self.state();
        state.failures.remove(&key);
        state.not_before.remove(&key);
        if state.working.contains(&key) {
            state.hurried.insert(key.clone());
        }
        state.wait(key, Instant::now());
        drop(state);
        self.changed.notify_one();
    }

    /// Whether an object that is due waits because all workers are busy.
    pub fn is_crowded(&self, workers: usize) -> bool {
        let state = self.state();
        let is_due = || !state.ready.is_empty() || state.order.first().is_some_and(|(at, _)| *at <= Instant::now());
        state.working.len() >= workers && is_due()
    }

    /// The next object that is due. [`Queue::done`] must follow.
    pub async fn next(&self) -> Key {
        loop {
            let changed = self.changed.notified();
            let due = {
                let mut state = self.state();
                if let Some((at, key)) = state.pop(Instant::now()) {
                    state.due.remove(&key);
                    state.working.insert(key.clone());
                    self.metrics.set_queue_depth(self.kind, state.due.len());
                    self.metrics.observe_wait(self.kind, at.elapsed());
                    // Another object may be due: wake another worker.
                    self.changed.notify_one();
                    return key;
                }
                state.order.first().map(|(at, _)| *at)
            };
            match due {
                Some(at) => tokio::select! { () = changed => {}, () = tokio::time::sleep_until(at) => {} },
                None => changed.await,
            }
        }
    }

    /// A worker has finished with the object.
    pub fn done(&self, key: &Key, outcome: Outcome) {
        let mut state = self.state();
        state.working.remove(key);
        let (now, is_hurried) = (Instant::now(), state.hurried.remove(key));
        match outcome {
            // Neither a pause nor a backoff delays what a user wants.
            Outcome::Done { .. } | Outcome::Failed if is_hurried => {
                state.failures.remove(key);
                state.not_before.remove(key);
            }
            Outcome::Done { pause } => {
                state.failures.remove(key);
                state.not_before.insert(key.clone(), now + pause);
            }
            Outcome::Failed => {
                let failures = state.failures.entry(key.clone()).or_default();
                let pause = BACKOFF.after(*failures);
                *failures = failures.saturating_add(1);
                state.not_before.insert(key.clone(), now + pause);
                // A pass that is due later must not postpone the retry.
                let due = state.due.entry(key.clone()).or_insert(now);
                *due = (*due).min(now);
            }
            Outcome::Unsettled => {
                let due = state.due.entry(key.clone()).or_insert(now + UNSETTLED);
                *due = (*due).max(now + UNSETTLED);
            }
            Outcome::Gone => {
                state.failures.remove(key);
                state.not_before.remove(key);
            }
        }
        // Requests that came during the pass: the object waits again.
        if let Some(due) = state.due.remove(key) {
            state.wait(key.clone(), due);
        }
        drop(state);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { namespace: "play".to_owned(), name: name.to_owned() }
    }

    fn queue() -> Queue {
        Queue::new("GameDeployment", Arc::default())
    }

    const NO_PAUSE: Outcome = Outcome::Done { pause: Duration::ZERO };

    async fn is_quiet(queue: &Queue, time: Duration) -> bool {
        tokio::time::timeout(time, queue.next()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn no_worker_wakes_up_for_a_change_of_an_object_that_is_being_worked_on() {
        use futures::FutureExt as _;
        let queue = queue();
        let is_woken = || queue.changed.notified().now_or_never().is_some();
        queue.add(key("a"));
        queue.next().await;
        is_woken();
        queue.add(key("a"));
        assert!(!is_woken(), "it waits until the pass has ended");
        queue.add(key("b"));
        assert!(is_woken());
        queue.done(&key("a"), NO_PAUSE);
        assert!(is_woken());
    }

    #[tokio::test(start_paused = true)]
    async fn a_users_change_during_a_pass_is_followed_at_once() {
        for outcome in [Outcome::Done { pause: Duration::from_millis(250) }, Outcome::Failed] {
            let queue = queue();
            queue.add(key("a"));
            queue.next().await;
            queue.add_now(key("a"));
            queue.done(&key("a"), outcome);
            let before = Instant::now();
            queue.next().await;
            assert_eq!(before.elapsed(), Duration::ZERO, "{outcome:?}");
            queue.add(key("a"));
            queue.done(&key("a"), outcome);
            assert!(is_quiet(&queue, Duration::from_millis(20)).await, "only once: {outcome:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_has_one_worker_even_if_an_earlier_time_is_heard_of_later() {
        let (queue, earlier) = (queue(), Instant::now());
        tokio::time::advance(Duration::from_millis(1)).await;
        queue.add(key("a"));
        queue.add(key("b"));
        let first = queue.next().await;
        let second = key(if first == key("a") { "b" } else { "a" });
        queue.add_at(second.clone(), earlier);
        assert_eq!(queue.next().await, second);
        assert!(is_quiet(&queue, Duration::from_secs(9)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_waits_once_however_often_it_changed() {
        let queue = queue();
        (0..5).for_each(|_| queue.add(key("a")));
        assert_eq!(queue.next().await, key("a"));
        queue.done(&key("a"), NO_PAUSE);
        assert!(is_quiet(&queue, Duration::from_secs(600)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_during_a_pass_brings_another_pass_after_it() {
        let queue = queue();
        queue.add(key("a"));
        queue.next().await;
        queue.add(key("a"));
        assert!(is_quiet(&queue, Duration::from_secs(600)).await, "two passes at the same time");
        queue.done(&key("a"), NO_PAUSE);
        assert_eq!(queue.next().await, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_object_waits_behind_the_others() {
        let queue = queue();
        queue.add(key("busy"));
        tokio::time::advance(Duration::from_millis(1)).await;
        queue.add(key("calm"));
        assert_eq!(queue.next().await, key("busy"));
        tokio::time::advance(Duration::from_millis(1)).await;
        queue.add(key("busy"));
        queue.done(&key("busy"), NO_PAUSE);
        assert_eq!(queue.next().await, key("calm"));
        assert_eq!(queue.next().await, key("busy"));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_crowded_only_while_an_object_waits_for_a_worker() {
        let queue = queue();
        ["a", "b"].iter().for_each(|name| queue.add(key(name)));
        queue.next().await;
        assert!(!queue.is_crowded(2), "a second worker is free");
        queue.next().await;
        assert!(!queue.is_crowded(2), "nothing waits");
        queue.add_at(key("c"), Instant::now() + Duration::from_secs(1));
        assert!(!queue.is_crowded(2), "it is not due yet");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(queue.is_crowded(2));
        queue.done(&key("a"), NO_PAUSE);
        assert!(!queue.is_crowded(2));
        queue.add(key("d"));
        queue.next().await;
        assert!(queue.is_crowded(2), "one of the two is due");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_later_and_later() {
        let queue = queue();
        queue.add(key("a"));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let before = Instant::now();
            queue.next().await;
            pauses.push(before.elapsed());
            queue.done(&key("a"), Outcome::Failed);
        }
        assert!(pauses[3] > pauses[1] * 2, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(5)), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_person_does_not_wait_for_the_backoff() {
        let queue = queue();
        queue.add(key("a"));
        for _ in 0..10 {
            queue.next().await;
            queue.done(&key("a"), Outcome::Failed);
        }
        queue.add_now(key("a"));
        let before = Instant::now();
        queue.next().await;
        assert!(before.elapsed() < Duration::from_millis(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_kept() {
        let queue = queue();
        queue.add(key("a"));
        queue.next().await;
        queue.done(&key("a"), Outcome::Done { pause: Duration::from_millis(50) });
        queue.add(key("a"));
        let before = Instant::now();
        queue.next().await;
        assert!(before.elapsed() >= Duration::from_millis(49), "{:?}", before.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_does_not_wait_behind_those_of_another_namespace() {
        let queue = queue();
        (0..1000).for_each(|number| queue.add(key(&format!("flood-{number}"))));
        queue.next().await;
        queue.add(Key { namespace: "other".to_owned(), name: "a".to_owned() });
        let next = [queue.next().await.namespace, queue.next().await.namespace];
        assert!(next.contains(&"other".to_owned()), "{next:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_retried_soon_whatever_was_wished_for_later() {
        let queue = queue();
        queue.add(key("a"));
        queue.next().await;
        queue.add_at(key("a"), Instant::now() + Duration::from_secs(300));
        queue.done(&key("a"), Outcome::Failed);
        let before = Instant::now();
        queue.next().await;
        assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_caches_does_not_count_as_success() {
        let queue = queue();
        queue.add(key("a"));
        for _ in 0..8 {
            queue.next().await;
            queue.done(&key("a"), Outcome::Failed);
        }
        queue.next().await;
        queue.done(&key("a"), Outcome::Unsettled);
        queue.next().await;
        queue.done(&key("a"), Outcome::Failed);
        let before = Instant::now();
        queue.next().await;
        assert!(before.elapsed() > Duration::from_secs(3), "{:?}", before.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_wish_does_not_put_off_an_earlier_one() {
        let queue = queue();
        queue.add_at(key("a"), Instant::now() + Duration::from_secs(1));
        queue.add_at(key("a"), Instant::now() + Duration::from_secs(9));
        let before = Instant::now();
        queue.next().await;
        assert!(before.elapsed() < Duration::from_secs(2));
    }
}
