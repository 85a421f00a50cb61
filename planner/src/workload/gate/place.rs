//! Where the hooks of a workload are, and what they are asked.

use api::names::{RUN_TYPE_LABEL, RUN_TYPE_POST_INPLACE, RUN_TYPE_PRE_DELETE, RUN_TYPE_PRE_INPLACE};
use api::tkex::{HookRun, HookStep};

use super::run::label;

/// The place of a hook in a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Before a pod is deleted.
    PreDelete,
    /// Before a pod is updated in place.
    PreInplace,
    /// After a pod was updated in place.
    PostInplace,
}

impl Place {
    /// All places.
    pub const ALL: [Self; 3] = [Self::PreDelete, Self::PreInplace, Self::PostInplace];

    /// Its field.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::PreDelete => "preDeleteUpdateStrategy",
            Self::PreInplace => "preInplaceUpdateStrategy",
            Self::PostInplace => "postInplaceUpdateStrategy",
        }
    }

    /// A word for metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::PreDelete => "preDelete",
            Self::PreInplace => "preInplace",
            Self::PostInplace => "postInplace",
        }
    }

    /// The place of the hook that a HookRun is of, if it is about a pod.
    #[must_use]
    pub fn of(run: &HookRun) -> Option<Self> {
        let kind = label(run, RUN_TYPE_LABEL);
        Self::ALL.into_iter().find(|place| kind == Some(place.label()))
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::PreDelete => RUN_TYPE_PRE_DELETE,
            Self::PreInplace => RUN_TYPE_PRE_INPLACE,
            Self::PostInplace => RUN_TYPE_POST_INPLACE,
        }
    }

    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::PreDelete => "predelete",
            Self::PreInplace => "preinplace",
            Self::PostInplace => "postinplace",
        }
    }
}

/// A hook of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Hook<'a> {
    /// Where it is.
    pub place: Place,
    /// What it asks.
    pub step: &'a HookStep,
    /// Whether pods whose hook has denied are asked about again at once.
    pub retry: bool,
}

/// What is wanted of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intent<'a> {
    /// That it goes.
    Delete,
    /// That it gets this revision and stays.
    Update(&'a str),
    /// That it serves on this revision, which it got in place.
    Updated(&'a str),
}

impl<'a> Intent<'a> {
    /// The revision that the pod gets or got.
    pub(super) fn target(self) -> Option<&'a str> {
        match self {
            Self::Delete => None,
            Self::Update(revision) | Self::Updated(revision) => Some(revision),
        }
    }
}
