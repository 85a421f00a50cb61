//! Limits the operator's memory for the objects of each namespace, so that no tenant can take what others need.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use planner::facts::text::Text;

/// The bytes that a value needs at most besides its text, as a map entry, a string or a field.
const PER_VALUE: usize = 32;

/// The used bytes of each namespace, and their limit.
#[derive(Debug)]
pub struct Allowance {
    most: usize,
    used: Mutex<HashMap<String, usize>>,
}

impl Default for Allowance {
    fn default() -> Self {
        Self::of(usize::MAX)
    }
}

impl Allowance {
    /// Allows each namespace this many bytes.
    #[must_use]
    pub fn of(most: usize) -> Self {
        Self { most, used: Mutex::default() }
    }

    fn used(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes, unless the namespace has no room for them.
    pub(crate) fn take(&self, namespace: &str, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut used = self.used();
        let before = used.get(namespace).copied().unwrap_or_default();
        let is_room = before.saturating_add(bytes) <= self.most;
        if is_room {
            used.insert(namespace.to_owned(), before.saturating_add(bytes));
        }
        is_room
    }

    /// Returns bytes.
    pub(crate) fn give(&self, namespace: &str, bytes: usize) {
        let mut used = self.used();
        if let Some(before) = used.get_mut(namespace) {
            *before = before.saturating_sub(bytes);
            if *before == 0 {
                used.remove(namespace);
            }
        }
    }

    /// Whether the namespace has room for bytes.
    pub(crate) fn has_room(&self, namespace: &str, bytes: usize) -> bool {
        self.used().get(namespace).copied().unwrap_or_default().saturating_add(bytes) <= self.most
    }

    /// Whether this is more than the limit of a namespace.
    pub(crate) fn is_exceeded_by(&self, bytes: usize) -> bool {
        bytes > self.most
    }

    /// The message for an object that is cut.
    pub(crate) fn words(&self, namespace: &str) -> String {
        let most = self.most / 1024 / 1024;
        format!(
            "the objects of namespace {namespace} need more than the {most} MiB of the operator's memory that each namespace has (--namespace-memory); delete what is not needed, and it is read again"
        )
    }
}

/// The bytes that JSON needs at most when it is decoded.
pub(crate) fn weight(json: &str) -> usize {
    api::template::values(json).saturating_mul(PER_VALUE).saturating_add(json.len())
}

/// The bytes that an entry of a map of strings needs at most besides its text: its place in the map, and what is kept to
/// share the strings.
const PER_ENTRY: usize = 160;

/// The bytes that a map of strings needs.
pub(crate) fn weight_of<'a>(texts: impl IntoIterator<Item = (&'a Text, &'a Text)>) -> usize {
    texts.into_iter().map(|(key, value)| key.len() + value.len() + PER_ENTRY).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_full_takes_nothing_from_another() {
        let allowance = Allowance::of(100);
        assert!(allowance.take("a", 60) && !allowance.take("a", 41) && allowance.take("a", 40));
        assert!(allowance.take("b", 100), "another namespace");
        allowance.give("a", 60);
        assert!(allowance.has_room("a", 60) && !allowance.has_room("a", 61));
        allowance.give("a", 40);
        assert!(!allowance.used().contains_key("a"), "nothing is remembered of a namespace without objects");
        assert!(allowance.words("a").contains("namespace a"));
    }
}
