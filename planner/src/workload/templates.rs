//! Templates of revisions, parsed for one decision: they are stored as text, and what is parsed is dropped after the
//! decision.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use api::template::{PodTemplate, TemplateMetadata};
use serde_json::Value;

use crate::facts::revision::RevisionFacts;

/// The most parsed templates that are kept for the decision; others are parsed again.
const MAX_PARSED: usize = 4;
/// The most revisions, newest first, whose labels and annotations are read.
const MAX_REVISIONS: usize = 64;
/// The most bytes of templates that are parsed for that.
const MAX_BYTES: usize = 1024 * 1024;

/// Templates of revisions.
#[derive(Debug)]
pub struct Templates<'a> {
    revisions: &'a [Arc<RevisionFacts>],
    read: RefCell<BTreeMap<String, Arc<Value>>>,
    metadata: OnceCell<Vec<(&'a str, TemplateMetadata)>>,
}

impl<'a> Templates<'a> {
    /// No template is parsed yet.
    #[must_use]
    pub fn of(revisions: &'a [Arc<RevisionFacts>]) -> Self {
        Self { revisions, read: RefCell::default(), metadata: OnceCell::new() }
    }

    /// The template of a revision: the given one, or else the stored one.
    pub fn read(&self, name: &str, given: Option<&PodTemplate>) -> Option<Arc<Value>> {
        if let Some(template) = self.read.borrow().get(name) {
            return Some(Arc::clone(template));
        }
        let stored = || self.revisions.iter().find(|revision| revision.name == name).map(|revision| &revision.template);
        let template = Arc::new(given.or_else(stored).filter(|template| template.too_large().is_none())?.value());
        let mut read = self.read.borrow_mut();
        if read.len() < MAX_PARSED {
            read.insert(name.to_owned(), Arc::clone(&template));
        }
        Some(template)
    }

    /// Labels and annotations of the newest revisions, except for one.
    pub fn metadata_of_others<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s TemplateMetadata> + Clone {
        let all = self.metadata.get_or_init(|| {
            let mut all: Vec<_> = self.revisions.iter().collect();
            all.sort_by_key(|revision| (std::cmp::Reverse(revision.number), &revision.name));
            all.truncate(MAX_REVISIONS);
            let mut bytes = MAX_BYTES;
            all.retain(|revision| {
                bytes = bytes.saturating_sub(revision.template.text().len());
                bytes > 0
            });
            all.into_iter().map(|revision| (revision.name.as_str(), revision.template.metadata())).collect()
        });
        all.iter().filter(move |(other, _)| *other != name).map(|(_, metadata)| metadata)
    }
}
