//! Strings and small maps of objects that exist by the thousand. Most of their strings are the same: images, nodes, keys and values of
//! labels.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Index};
use std::sync::Arc;

use api::selector::Labels;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A string that objects share.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<str>);

impl Text {
    /// As a `str`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        *self.0 == **other
    }
}

impl PartialEq<Text> for str {
    fn eq(&self, other: &Text) -> bool {
        *self == *other.0
    }
}

impl PartialEq<Text> for &str {
    fn eq(&self, other: &Text) -> bool {
        **self == *other.0
    }
}

impl PartialEq<Text> for String {
    fn eq(&self, other: &Text) -> bool {
        **self == *other.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, out)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OfText;

        impl Visitor<'_> for OfText {
            type Value = Text;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(text.into())
            }
        }

        from.deserialize_str(OfText)
    }
}

/// A map of a few entries in the order of their keys. A `BTreeMap` has room for eleven from the first one on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Few<V>(Vec<(Text, V)>);

/// Labels, annotations, requests and limits.
pub type Texts = Few<Text>;

impl<V> Default for Few<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V> Few<V> {
    fn find(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.as_str().cmp(key))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&V> {
        self.0.get(self.find(key).ok()?).map(|(_, value)| value)
    }

    /// Whether it has a key.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.find(key).is_ok()
    }

    /// Whether it has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its entries.
    pub fn iter(&self) -> impl Iterator<Item = (&Text, &V)> {
        self.into_iter()
    }

    /// Its keys.
    pub fn keys(&self) -> impl Iterator<Item = &Text> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Its values.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Sets the value of a key, and returns the one that it had.
    pub fn insert(&mut self, key: impl Into<Text>, value: impl Into<V>) -> Option<V> {
        let (key, value) = (key.into(), value.into());
        match self.find(&key) {
            Ok(place) => self.0.get_mut(place).map(|(_, known)| std::mem::replace(known, value)),
            Err(place) => {
                self.0.insert(place, (key, value));
                None
            }
        }
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, key: &str) -> Option<V> {
        self.find(key).ok().map(|place| self.0.remove(place).1)
    }

    /// Keeps only these entries.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&str, &V) -> bool) {
        self.0.retain(|(key, value)| is_kept(key, value));
    }
}

impl Labels for Texts {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(Text::as_str)
    }
}

impl<V> Index<&str> for Few<V> {
    type Output = V;

    #[expect(clippy::panic, reason = "like that of any map")]
    fn index(&self, key: &str) -> &V {
        self.get(key).unwrap_or_else(|| panic!("{key} is missing"))
    }
}

impl<K: Into<Text>, V, W: Into<V>> FromIterator<(K, W)> for Few<V> {
    /// Of several values for a key the last one counts.
    fn from_iter<I: IntoIterator<Item = (K, W)>>(entries: I) -> Self {
        let mut all: Vec<(Text, V)> = entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        all.reverse();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all.dedup_by(|(later, _), (kept, _)| later == kept);
        all.shrink_to_fit();
        Self(all)
    }
}

impl<K: Into<Text>, V, W: Into<V>, const N: usize> From<[(K, W); N]> for Few<V> {
    fn from(entries: [(K, W); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<'f, V> IntoIterator for &'f Few<V> {
    type Item = (&'f Text, &'f V);
    type IntoIter = std::iter::Map<std::slice::Iter<'f, (Text, V)>, fn(&'f (Text, V)) -> Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

impl<V: Serialize> Serialize for Few<V> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Few<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OfFew<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for OfFew<V> {
            type Value = Few<V>;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Few<V>, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry::<Text, V>()? {
                    all.push(entry);
                }
                Ok(all.into_iter().collect())
            }
        }

        from.deserialize_map(OfFew(PhantomData))
    }
}

/// Strings that objects of one kind have in common, each kept once.
#[derive(Debug, Default)]
pub struct Strings {
    known: BTreeSet<Text>,
    /// At this many they are looked through.
    full: usize,
}

/// Fewer strings are not worth looking through.
const FEW_STRINGS: usize = 1_024;
/// Longer ones are rarely the same, and would be kept for a while after the last object that has them.
const LONGEST: usize = 256;

impl Strings {
    /// Replaces a string by the one that other objects have.
    pub fn share(&mut self, text: &mut Text) {
        if text.len() > LONGEST {
            return;
        }
        if let Some(known) = self.known.get(&**text) {
            text.clone_from(known);
            return;
        }
        if self.known.len() >= self.full.max(FEW_STRINGS) {
            // Those that no object has any more.
            self.known.retain(|text| Arc::strong_count(&text.0) > 1);
            self.full = self.known.len() * 2;
        }
        self.known.insert(text.clone());
    }

    /// The same for all strings of a map.
    pub fn share_all(&mut self, texts: &mut Texts) {
        for (key, value) in &mut texts.0 {
            self.share(key);
            self.share(value);
        }
    }

    /// The same for the keys of a map.
    pub fn share_keys<V>(&mut self, map: &mut Few<V>) {
        map.0.iter_mut().for_each(|(key, _)| self.share(key));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_map_reads_and_writes_like_any_map() {
        let mut texts: Texts = serde_json::from_str(r#"{"b":"2","a":"1","c":"3","a":"0"}"#).unwrap();
        assert_eq!(serde_json::to_string(&texts).unwrap(), r#"{"a":"0","b":"2","c":"3"}"#);
        assert_eq!((texts.insert("b", "x"), texts.insert("bb", "y"), texts.remove("c")), (Some("2".into()), None, Some("3".into())));
        assert_eq!((texts.get("bb").map(Text::as_str), texts.get("c"), &texts["b"]), (Some("y"), None, &"x".into()));
        texts.retain(|key, _| key != "b");
        assert_eq!(texts, [("bb", "y"), ("a", "0")].into());
        assert!(serde_json::from_str::<Texts>(r#"{"a":1}"#).is_err() && serde_json::from_str::<Texts>("[]").is_err());
    }

    #[test]
    fn equal_strings_are_kept_once_and_those_that_no_object_has_any_more_are_dropped() {
        let mut strings = Strings::default();
        let mut text = |text: String| {
            let mut text = Text::from(text);
            strings.share(&mut text);
            text
        };
        let (one, other) = (text("game:1".to_owned()), text("game:1".to_owned()));
        assert!(Arc::ptr_eq(&one.0, &other.0));
        (0..100_000).for_each(|number| drop(text(number.to_string())));
        assert!(strings.len() <= FEW_STRINGS, "{}", strings.len());
        assert!(strings.known.contains("game:1"), "an object has it");
        let known = strings.len();
        strings.share(&mut "x".repeat(LONGEST + 1).into());
        assert_eq!(strings.len(), known, "a long one");
    }
}
