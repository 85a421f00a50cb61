//! Names of pods that are gone: they are not reused soon, because a scheduler that has missed the end of a pod could confuse it with a
//! new one of the same name.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many names are kept per owner.
const MOST_NAMES: usize = 1_000;
/// For how many owners of one namespace names are kept.
const MOST_OWNERS: usize = 200;

/// Names of one namespace, by the uid of the pods' owner.
type Owners = HashMap<String, VecDeque<String>>;

/// Names of pods that are gone.
#[derive(Debug, Default)]
pub struct GonePods {
    namespaces: Mutex<HashMap<String, Owners>>,
}

impl GonePods {
    fn namespaces(&self) -> MutexGuard<'_, HashMap<String, Owners>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod of this owner is gone.
    pub fn remember(&self, namespace: &str, owner: &str, pod: &str) {
        let mut namespaces = self.namespaces();
        let owners = namespaces.entry(namespace.to_owned()).or_default();
        // A namespace with too many owners loses its own names, not those of other namespaces.
        if owners.len() >= MOST_OWNERS && !owners.contains_key(owner) {
            owners.clear();
        }
        let names = owners.entry(owner.to_owned()).or_default();
        names.push_back(pod.to_owned());
        names.drain(..names.len().saturating_sub(MOST_NAMES));
    }

    /// The owner is gone too.
    pub fn forget(&self, namespace: &str, owner: &str) {
        let mut namespaces = self.namespaces();
        if let Some(owners) = namespaces.get_mut(namespace) {
            owners.remove(owner);
            if owners.is_empty() {
                namespaces.remove(namespace);
            }
        }
    }

    /// The names of an owner's pods that are gone.
    #[must_use]
    pub fn names(&self, namespace: &str, owner: &str) -> Vec<String> {
        let namespaces = self.namespaces();
        let names = namespaces.get(namespace).and_then(|owners| owners.get(owner));
        names.map(|names| names.iter().cloned().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_not_forgotten_because_of_another_namespace() {
        let gone = GonePods::default();
        gone.remember("play", "uid-game", "gone");
        for number in 0..3 * MOST_OWNERS {
            gone.remember("evil", &format!("uid-{number}"), "gone");
        }
        assert_eq!(gone.names("play", "uid-game"), ["gone"]);
        assert!(gone.namespaces()["evil"].len() <= MOST_OWNERS);
    }

    #[test]
    fn the_latest_names_of_an_owner_are_kept_until_it_is_gone() {
        let gone = GonePods::default();
        (0..=MOST_NAMES).for_each(|number| gone.remember("play", "uid-game", &number.to_string()));
        let names = gone.names("play", "uid-game");
        assert_eq!((names.len(), names.first().map(String::as_str)), (MOST_NAMES, Some("1")));
        gone.forget("play", "uid-game");
        assert!(gone.names("play", "uid-game").is_empty() && gone.namespaces().is_empty());
    }
}
