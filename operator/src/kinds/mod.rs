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
use planner::facts::object::OwnerReference;

use crate::store::{Index, Key, OwnerKey};

/// Whether an owner is of one of our kinds that own pods: the dependents of others are not kept.
fn is_ours(owner: &OwnerReference) -> bool {
    is::<GameDeployment>(owner)
}

fn is<K: Resource<DynamicType = ()>>(owner: &OwnerReference) -> bool {
    *owner.kind == *K::kind(&()) && owner.api_version.split_once('/').is_some_and(|(group, _)| group == K::group(&()))
}

/// The key of the owner of an object in this namespace: an owner is always in the namespace of what it owns.
fn owner_in(namespace: &str, owner: &OwnerReference) -> OwnerKey {
    let key = Key { namespace: namespace.to_owned(), name: owner.name.to_string() };
    OwnerKey { kind: owner.kind.to_string(), key, uid: owner.uid.to_string() }
}

/// The index entry of an object in this namespace: its controller, or that it is an orphan.
fn index(controller: Option<&OwnerReference>, namespace: &str) -> Index {
    controller.map_or_else(|| Index::Orphan(namespace.to_owned()), |owner| Index::Owner(owner_in(namespace, owner)))
}
