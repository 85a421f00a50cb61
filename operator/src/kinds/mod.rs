//! The watched kinds: how their objects are decoded, and how those of our own kinds are observed.

pub mod budget;
pub mod custom;
pub mod gamedeployment;
pub mod hookrun;
pub mod hooktemplate;
pub mod node;
pub mod pod;
pub mod revision;
pub mod workload;

use api::tkex::GameDeployment;
use kube::Resource;
use serde::Deserialize;

use crate::store::{Index, Key, OwnerKey};

/// Whether a controller is of a kind that owns pods: the dependents of others are not kept.
fn owns_pods(api_version: &str, kind: &str) -> bool {
    let is = |group: &str, name: &str| kind == name && api_version.split_once('/').is_some_and(|(one, _)| one == group);
    is(&GameDeployment::group(&()), &GameDeployment::kind(&()))
}

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
    /// The owner reference with `controller: true`.
    fn controller(owners: Vec<Self>) -> Option<Self> {
        let mut controller = owners.into_iter().find(|owner| owner.controller)?;
        if !is_short(&controller.api_version, &controller.kind, &controller.name, &controller.uid) {
            // Longer than any object's can be: no object owns it, but it is no orphan either.
            controller =
                Self { api_version: String::new(), kind: String::new(), name: String::new(), uid: String::new(), controller: true };
        }
        Some(controller)
    }

    /// Whether the owner is of one of our kinds that own pods.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        owns_pods(&self.api_version, &self.kind)
    }

    /// The key of the owner, which is always in the namespace of the object that it owns.
    fn of_object_in(&self, namespace: &str) -> OwnerKey {
        let key = Key { namespace: namespace.to_owned(), name: self.name.clone() };
        OwnerKey { kind: self.kind.clone(), key, uid: self.uid.clone() }
    }
}

/// Whether an owner reference can be that of an existing object: the API server does not limit its length.
fn is_short(api_version: &str, kind: &str, name: &str, uid: &str) -> bool {
    api_version.len() <= 317 && kind.len() <= 63 && name.len() <= 253 && uid.len() <= 128
}

/// The index entry of an object in this namespace: its controller, or that it is an orphan.
fn index(controller: Option<&OwnerReference>, namespace: &str) -> Index {
    controller.map_or_else(|| Index::Orphan(namespace.to_owned()), |owner| Index::Owner(owner.of_object_in(namespace)))
}
