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
        owners.into_iter().find(|owner| owner.controller)
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

/// What an object in this namespace is found by: its controller, or that it has none.
fn index(controller: Option<&OwnerReference>, namespace: &str) -> Index {
    controller.map_or_else(|| Index::Orphan(namespace.to_owned()), |owner| Index::Owner(owner.of_object_in(namespace)))
}
