//! Objects of our own kinds in the cache.

use std::sync::Arc;

use api::names::{INDEX_ON_ANNOTATION, INDEX_RANGE_ANNOTATION, PAUSED_FOR_ANNOTATION};
use api::tkex::{GameDeployment, HookRun, HookTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use planner::manifest::Owner;
use serde::de::DeserializeOwned;

use crate::queue::Queue;
use crate::store::{Change, Index, Kept, Key};

/// A kind of ours.
pub trait OurKind: Resource + DeserializeOwned + Send + Sync + 'static {
    /// Its name.
    const KIND: &'static str;
    /// The path of all its objects.
    const PATH: &'static str;
    /// Whether its objects are found by their owner, if they have one.
    const OWNED: bool = false;
}

impl OurKind for GameDeployment {
    const KIND: &'static str = "GameDeployment";
    const PATH: &'static str = "/apis/tkex.tencent.com/v1alpha1/gamedeployments";
}

impl OurKind for HookRun {
    const KIND: &'static str = "HookRun";
    const PATH: &'static str = "/apis/tkex.tencent.com/v1alpha1/hookruns";
    const OWNED: bool = true;
}

impl OurKind for HookTemplate {
    const KIND: &'static str = "HookTemplate";
    const PATH: &'static str = "/apis/tkex.tencent.com/v1alpha1/hooktemplates";
}

/// An object and its version.
#[derive(Debug)]
pub struct Custom<K> {
    /// The object.
    pub object: Arc<K>,
    version: u64,
}

impl<K: OurKind> Kept for Custom<K> {
    const KIND: &'static str = K::KIND;
    const PATH: &'static str = K::PATH;

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let mut object: K = serde_json::from_str(json)?;
        object.meta_mut().managed_fields = None;
        // People's notes are long, and nobody's business here.
        if let Some(annotations) = &mut object.meta_mut().annotations {
            annotations.retain(|key, _| [INDEX_ON_ANNOTATION, INDEX_RANGE_ANNOTATION, PAUSED_FOR_ANNOTATION].contains(&key.as_str()));
        }
        let version = object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default();
        Ok(Self { object: Arc::new(object), version })
    }

    fn key(&self) -> Key {
        let metadata = self.object.meta();
        Key { namespace: metadata.namespace.clone().unwrap_or_default(), name: metadata.name.clone().unwrap_or_default() }
    }

    fn uid(&self) -> &str {
        self.object.meta().uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn index(&self) -> Option<Index> {
        let metadata = self.object.meta();
        let controller = controller(metadata).filter(|_| K::OWNED);
        controller.map(|owner| Index::Owner(owner.uid.clone())).or_else(|| metadata.namespace.clone().map(Index::Namespace))
    }
}

/// Who controls an object.
pub(crate) fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// How others refer to an object.
pub(crate) fn owner<K: OurKind>(object: &K) -> Owner {
    let metadata = object.meta();
    Owner {
        api_version: "tkex.tencent.com/v1alpha1".to_owned(),
        kind: K::KIND.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
    }
}

/// The path of one object.
pub(crate) fn path<K: OurKind>(object: &K) -> String {
    let metadata = object.meta();
    let (start, plural) = K::PATH.rsplit_once('/').unwrap_or_default();
    let (namespace, name) = (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default());
    format!("{start}/namespaces/{namespace}/{plural}/{name}")
}

/// An object changed: look at it, at once if a person changed it.
pub fn object_changed<K: OurKind>(queue: &Queue, change: &Change<Custom<K>>) {
    let Some(entry) = change.new.as_ref().or(change.old.as_ref()) else { return };
    let generation = |entry: &Arc<Custom<K>>| (entry.object.meta().generation, entry.object.meta().deletion_timestamp.is_some());
    if change.old.as_ref().map(generation) == change.new.as_ref().map(generation) {
        queue.add(entry.key());
    } else {
        queue.add_now(entry.key());
    }
}
