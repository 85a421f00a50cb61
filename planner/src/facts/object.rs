//! What every object has: its metadata and its controller.

use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::text::{Text, Texts};

/// The metadata of an object, as far as it is read.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// Its namespace; empty for a node.
    #[serde(default)]
    pub namespace: String,
    /// Its uid.
    pub uid: String,
    /// Its version as a number.
    #[serde(rename = "resourceVersion", deserialize_with = "version")]
    pub version: u64,
    /// How often its spec has changed.
    #[serde(default)]
    pub generation: i64,
    /// When it was created.
    #[serde(default)]
    pub creation_timestamp: Timestamp,
    /// Whether it is being deleted.
    #[serde(default, rename = "deletionTimestamp", deserialize_with = "is_set")]
    pub deleting: bool,
    /// Its labels.
    #[serde(default)]
    pub labels: Texts,
    /// Its annotations.
    #[serde(default)]
    pub annotations: Texts,
    /// Its controller.
    #[serde(default, rename = "ownerReferences", deserialize_with = "controller")]
    pub controller: Option<OwnerReference>,
}

/// An owner of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// For example `apps/v1`.
    pub api_version: Text,
    /// For example `ReplicaSet`.
    pub kind: Text,
    /// Its name.
    pub name: Text,
    /// Its uid.
    pub uid: Text,
    /// Whether it is the controller.
    #[serde(default)]
    pub controller: bool,
}

/// Whether an owner reference can be that of an existing object: the API server does not limit its length.
#[must_use]
pub fn is_short(api_version: &str, kind: &str, name: &str, uid: &str) -> bool {
    api_version.len() <= 317 && kind.len() <= 63 && name.len() <= 253 && uid.len() <= 128
}

fn controller<'de, D: Deserializer<'de>>(from: D) -> Result<Option<OwnerReference>, D::Error> {
    let owners = Vec::<OwnerReference>::deserialize(from)?;
    let controller = owners.into_iter().find(|owner| owner.controller);
    // Longer than any object's can be: no object owns it, but it is no orphan either.
    let kept = |owner: OwnerReference| {
        if is_short(&owner.api_version, &owner.kind, &owner.name, &owner.uid) { owner } else { OwnerReference::default() }
    };
    Ok(controller.map(kept))
}

fn version<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Ok(String::deserialize(from)?.parse().unwrap_or_default())
}

fn is_set<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(from)?.is_some())
}
