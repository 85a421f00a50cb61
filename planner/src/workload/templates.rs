//! Templates of revisions, read for one decision: text is kept, and what is read of it is dropped with the decision.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use api::template::{PodTemplate, TemplateMetadata};
use serde_json::Value;

use crate::facts::revision::RevisionFacts;

/// Templates that are kept as long as the decision takes; others are read again.
const MOST_READ: usize = 4;
/// Of how many revisions, the newest first, labels and annotations are remembered.
const MOST_REMEMBERED: usize = 64;
/// How many bytes of templates are read for that.
const MOST_BYTES: usize = 1024 * 1024;

/// Templates of revisions.
#[derive(Debug)]
pub struct Templates<'a> {
    revisions: &'a [Arc<RevisionFacts>],
    read: RefCell<BTreeMap<String, Arc<Value>>>,
    metadata: OnceCell<Vec<(&'a str, TemplateMetadata)>>,
}

impl<'a> Templates<'a> {
    /// Nothing is read yet.
    #[must_use]
    pub fn of(revisions: &'a [Arc<RevisionFacts>]) -> Self {
        Self { revisions, read: RefCell::default(), metadata: OnceCell::new() }
    }

    /// The template of a revision: the one that is given, or the one that is stored.
    pub fn read(&self, name: &str, given: Option<&PodTemplate>) -> Option<Arc<Value>> {
        if let Some(template) = self.read.borrow().get(name) {
            return Some(Arc::clone(template));
        }
        let stored = || self.revisions.iter().find(|revision| revision.name == name).map(|revision| &revision.template);
        let template = Arc::new(given.or_else(stored).filter(|template| template.too_large().is_none())?.value());
        let mut read = self.read.borrow_mut();
        if read.len() < MOST_READ {
            read.insert(name.to_owned(), Arc::clone(&template));
        }
        Some(template)
    }

    /// Labels and annotations of the newest revisions, except for one.
    pub fn metadata_of_others<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s TemplateMetadata> + Clone {
        let all = self.metadata.get_or_init(|| {
            let mut all: Vec<_> = self.revisions.iter().collect();
            all.sort_by_key(|revision| (std::cmp::Reverse(revision.number), &revision.name));
            all.truncate(MOST_REMEMBERED);
            let mut bytes = MOST_BYTES;
            all.retain(|revision| {
                bytes = bytes.saturating_sub(revision.template.text().len());
                bytes > 0
            });
            all.into_iter().map(|revision| (revision.name.as_str(), revision.template.metadata())).collect()
        });
        all.iter().filter(move |(other, _)| *other != name).map(|(_, metadata)| metadata)
    }
}
