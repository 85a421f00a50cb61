//! A semaphore that is fair between namespaces: a namespace that wants many places does not hold up one that wants a single one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// A limited number of places, handed out round-robin by namespace.
#[derive(Debug)]
pub struct Places {
    limits: Limits,
    state: Mutex<State>,
}

/// How many places there are, and how many of them a namespace may have.
#[derive(Debug, Clone, Copy)]
struct Limits {
    total: usize,
    /// So many places go to any namespace; the others only to namespaces below their share.
    open: usize,
    share: usize,
    per_namespace: usize,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    namespaces: HashMap<String, Namespace>,
    /// Namespaces with waiting callers, the next one first.
    turns: VecDeque<String>,
}

#[derive(Debug, Default)]
struct Namespace {
    used: usize,
    waiting: VecDeque<oneshot::Sender<Place>>,
}

/// A place. Dropping it gives it to the next caller that waits.
#[derive(Debug)]
pub struct Place {
    places: Option<Arc<Places>>,
    namespace: String,
}

/// With a reserve, a namespace's share is the total divided by this.
const SHARES: usize = 16;

impl Places {
    /// `total` places. One namespace may have all of them while no other wants any.
    #[must_use]
    pub fn new(total: usize) -> Arc<Self> {
        Self::with(Limits { total, open: total, share: total, per_namespace: total })
    }

    /// `total` places, of which the last half goes only to namespaces below their share, a sixteenth of the total.
    #[must_use]
    pub fn with_reserve(total: usize, per_namespace: usize) -> Arc<Self> {
        Self::with(Limits { total, open: total / 2, share: (total / SHARES).max(1), per_namespace })
    }

    fn with(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place.
    pub async fn take(self: &Arc<Self>, namespace: &str) -> Place {
        loop {
            let (sender, receiver) = oneshot::channel();
            {
                let mut state = self.state();
                let waiting = &mut state.namespaces.entry(namespace.to_owned()).or_default().waiting;
                waiting.push_back(sender);
                let is_first = waiting.len() == 1;
                if is_first {
                    state.turns.push_back(namespace.to_owned());
                }
                self.hand_out(&mut state);
            }
            if let Ok(place) = receiver.await {
                return place;
            }
        }
    }

    /// Takes a place if one is free now.
    pub fn try_take(self: &Arc<Self>, namespace: &str) -> Option<Place> {
        let mut state = self.state();
        // Callers that wait although a place is free have reached their limit, so they are not overtaken.
        let may = self.may(&state, namespace);
        may.then(|| self.occupy(&mut state, namespace))
    }

    fn may(&self, state: &State, namespace: &str) -> bool {
        let Limits { total, open, share, per_namespace } = self.limits;
        let used = state.namespaces.get(namespace).map_or(0, |namespace| namespace.used);
        state.used < total && used < per_namespace && (state.used < open || used < share)
    }

    fn occupy(self: &Arc<Self>, state: &mut State, namespace: &str) -> Place {
        state.used += 1;
        state.namespaces.entry(namespace.to_owned()).or_default().used += 1;
        Place { places: Some(Arc::clone(self)), namespace: namespace.to_owned() }
    }

    /// Gives free places to waiting callers, round-robin between namespaces.
    fn hand_out(self: &Arc<Self>, state: &mut State) {
        let mut passed = 0;
        while passed < state.turns.len() && state.used < self.limits.total {
            let Some(namespace) = state.turns.pop_front() else { return };
            if !self.may(state, &namespace) {
                state.turns.push_back(namespace);
                passed += 1;
                continue;
            }
            let next = state.namespaces.get_mut(&namespace).and_then(|one| one.waiting.pop_front());
            if let Some(next) = next {
                let place = self.occupy(state, &namespace);
                // A caller that has given up waiting leaves the place to the next one.
                if let Err(place) = next.send(place) {
                    self.vacate(state, &place.given_back());
                } else {
                    passed = 0;
                }
            }
            if state.namespaces.get(&namespace).is_some_and(|one| !one.waiting.is_empty()) {
                state.turns.push_back(namespace);
            } else {
                state.forget_if_idle(&namespace);
            }
        }
    }

    fn vacate(&self, state: &mut State, namespace: &str) {
        state.used = state.used.saturating_sub(1);
        if let Some(one) = state.namespaces.get_mut(namespace) {
            one.used = one.used.saturating_sub(1);
        }
        state.forget_if_idle(namespace);
    }
}

impl State {
    fn forget_if_idle(&mut self, namespace: &str) {
        if self.namespaces.get(namespace).is_some_and(|one| one.used == 0 && one.waiting.is_empty()) {
            self.namespaces.remove(namespace);
        }
    }
}

impl Place {
    /// Takes the namespace out, so that dropping the place does nothing.
    fn given_back(mut self) -> String {
        self.places = None;
        std::mem::take(&mut self.namespace)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(places) = self.places.take() {
            let mut state = places.state();
            places.vacate(&mut state, &self.namespace);
            places.hand_out(&mut state);
        }
    }
}

/// A queue that is fair between namespaces: they take turns, and within one it is first in, first out.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    order: VecDeque<String>,
    waiting: HashMap<String, VecDeque<T>>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { order: VecDeque::new(), waiting: HashMap::new() }
    }
}

impl<T> Turns<T> {
    pub(crate) fn push(&mut self, namespace: &str, one: T) {
        match self.waiting.get_mut(namespace) {
            Some(waiting) => waiting.push_back(one),
            None => {
                self.order.push_back(namespace.to_owned());
                self.waiting.insert(namespace.to_owned(), VecDeque::from([one]));
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let namespace = self.order.pop_front()?;
        let waiting = self.waiting.get_mut(&namespace)?;
        let one = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&namespace);
        } else {
            self.order.push_back(namespace);
        }
        one
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many wait in a namespace.
    pub(crate) fn len_of(&self, namespace: &str) -> usize {
        self.waiting.get(namespace).map_or(0, VecDeque::len)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn namespaces_take_turns() {
        let mut turns = Turns::default();
        (0..5).for_each(|number| turns.push("many", ("many", number)));
        turns.push("one", ("one", 0));
        let order: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(order, [("many", 0), ("one", 0), ("many", 1), ("many", 2), ("many", 3), ("many", 4)]);
        assert!(turns.order.is_empty() && turns.waiting.is_empty());
    }

    #[tokio::test]
    async fn one_that_wants_one_place_does_not_wait_behind_one_that_wants_many() {
        let places = Places::new(2);
        let mut first = vec![places.take("many").await, places.take("many").await];
        let mut many: Vec<_> = (0..10).map(|_| Box::pin(places.take("many"))).collect();
        many.iter_mut().for_each(|waiting| assert!(waiting.now_or_never().is_none()));
        let mut one = Box::pin(places.take("one"));
        assert!((&mut one).now_or_never().is_none());
        drop(first.pop());
        drop(first.pop());
        let held = (&mut one).now_or_never();
        assert!(held.is_some(), "it is second, not eleventh");
        let placed: Vec<_> = many.iter_mut().filter_map(FutureExt::now_or_never).collect();
        assert_eq!(placed.len(), 1);
    }

    #[tokio::test]
    async fn one_namespace_may_use_what_no_other_wants_but_not_the_reserve() {
        let places = Places::with_reserve(32, 32);
        let taken: Vec<_> = std::iter::from_fn(|| places.try_take("greedy")).collect();
        assert_eq!(taken.len(), 16, "the last half is for others");
        let mut waiting = Box::pin(places.take("greedy"));
        assert!((&mut waiting).now_or_never().is_none());
        for name in ["a", "b", "c"] {
            let others: Vec<_> = std::iter::from_fn(|| places.try_take(name)).collect();
            assert_eq!(others.len(), 2, "a sixteenth");
            std::mem::forget(others);
        }
        drop(taken);
        assert!(waiting.now_or_never().is_some());
        assert_eq!(Places::with_reserve(32, 4).try_take("a").into_iter().count(), 1);
    }

    #[tokio::test]
    async fn one_that_gives_up_takes_no_place_with_it() {
        let places = Places::new(1);
        let held = places.take("a").await;
        let mut gives_up = Box::pin(places.take("b"));
        assert!((&mut gives_up).now_or_never().is_none());
        let mut stays = Box::pin(places.take("c"));
        assert!((&mut stays).now_or_never().is_none());
        drop(gives_up);
        drop(held);
        assert!(stays.now_or_never().is_some());
        // A caller that was given a place and has not been polled since.
        let held = places.take("a").await;
        let mut told_too_late = Box::pin(places.take("b"));
        assert!((&mut told_too_late).now_or_never().is_none());
        drop(held);
        drop(told_too_late);
        assert!(places.try_take("c").is_some());
        assert!(places.state().namespaces.is_empty(), "nothing is remembered of namespaces that have gone");
    }
}
