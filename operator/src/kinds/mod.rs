//! What is watched, and how `Observed` is filled from it.

pub mod budget;
pub mod custom;
pub mod gamedeployment;
pub mod hookrun;
pub mod hooktemplate;
pub mod node;
pub mod pod;
pub mod revision;

use serde::Deserialize;

use crate::store::{Index, Key, OwnerKey};

/// An owner in an object's metadata.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// For example `apps/v1`.
    pub api_version: String,
    /// For example `ReplicaSet`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Whether it is the controller.
    #[serde(default)]
    controller: bool,
}

impl OwnerReference {
    /// The controller among owners.
    fn controller(owners: Vec<Self>) -> Option<Self> {
        let mut controller = owners.into_iter().find(|owner| owner.controller)?;
        if !is_short(&controller.api_version, &controller.kind, &controller.name, &controller.uid) {
            // Too long for any object: nobody's, and not an orphan either.
            controller =
                Self { api_version: String::new(), kind: String::new(), name: String::new(), uid: String::new(), controller: true };
        }
        Some(controller)
    }

    /// Whether the owner is of one of our kinds.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.kind == "GameDeployment" && self.api_version.starts_with("tkex.tencent.com/")
    }

    /// The owner of an object in this namespace: owners are never elsewhere.
    fn of_object_in(&self, namespace: &str) -> OwnerKey {
        let key = Key { namespace: namespace.to_owned(), name: self.name.clone() };
        OwnerKey { kind: self.kind.clone(), key, uid: self.uid.clone() }
    }
}

/// Whether an owner reference is no longer than those of objects that exist: the API server does not look.
fn is_short(api_version: &str, kind: &str, name: &str, uid: &str) -> bool {
    api_version.len() <= 317 && kind.len() <= 63 && name.len() <= 253 && uid.len() <= 128
}

/// What an object in this namespace is found by: its controller, or that it has none.
fn index(controller: Option<&OwnerReference>, namespace: &str) -> Index {
    controller.map_or_else(|| Index::Orphan(namespace.to_owned()), |owner| Index::Owner(owner.of_object_in(namespace)))
}
