//! Objects of the operator's own kinds in the cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::names::{
    INDEX_ON_ANNOTATION, INDEX_RANGE_ANNOTATION, PAUSED_FOR_ANNOTATION, RUN_ATTEMPT_LABEL, RUN_INSTANCE_LABEL, RUN_POD_UID_LABEL,
    RUN_REVISION_LABEL, RUN_STEP_LABEL, RUN_TARGET_LABEL, RUN_TEMPLATE_LABEL, RUN_TYPE_LABEL, condition,
};
use api::template::{MAX_BYTES as MAX_TEMPLATE_BYTES, MOST_VALUES as MOST_TEMPLATE_VALUES, values};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference as Owned, Time};
use kube::Resource;
use planner::facts::object::{OwnerReference, is_short};
use planner::facts::text::Text;
use planner::workload::manifest::Owner;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};
use serde_json::value::RawValue;

use super::{is_ours, owner_in};
use crate::allowance::weight;
use crate::controller::Basis;
use crate::queue::Queue;
use crate::store::{Cached, Change, Index, Key, Store};

/// A kind of the operator's API group.
pub trait OurKind: Resource<DynamicType = ()> + Clone + Send + Sync + 'static {
    /// Its spec.
    type Spec: DeserializeOwned;
    /// Its status.
    type Status: DeserializeOwned;
    /// Its name.
    const KIND: &'static str;
    /// The path of the collection in all namespaces.
    const PATH: &'static str;
    /// Whether its objects are indexed by their owner, if they have one.
    const OWNED: bool = false;
    /// The longest spec, its pod template apart, in bytes of JSON.
    const MAX_SPEC_BYTES: usize;
    /// The most values of a spec, its pod template apart.
    const MOST_VALUES: usize;
    /// The spec that replaces one that is too large.
    const NOTHING: &'static str;
    /// Builds an object from its parts.
    fn assemble(metadata: ObjectMeta, spec: Self::Spec, status: Option<Self::Status>) -> Self;
    /// Its spec.
    fn spec_mut(&mut self) -> &mut Self::Spec;
    /// Drops the parts of the status that do not decide whether it has to be written.
    fn shorten_status(&mut self);
}

/// Conditions that the operator writes. An object that is cut keeps only these.
const OWN_CONDITIONS: [&str; 7] = [
    condition::PROGRESSING,
    condition::AVAILABLE,
    condition::PAUSED,
    condition::DEGRADED,
    condition::PROTECTED,
    condition::COMPLETE,
    condition::ACCEPTED,
];
/// The longest message and reason of a condition that is kept.
const MAX_MESSAGE_BYTES: usize = 1024;
/// The bytes that every object needs, however small it is.
const PER_OBJECT: usize = 1024;
/// The longest annotation that is read.
const MAX_ANNOTATION_BYTES: usize = 1024;
/// An object with a longer status is not served, because its last status is not known.
const MAX_STATUS_BYTES: usize = 1024 * 1024;
/// An object with more finalizers is not served.
const MAX_FINALIZERS: usize = 64;

pub(super) fn some_of(mut conditions: Vec<Condition>) -> Vec<Condition> {
    let is_short = |one: &Condition| one.message.len() <= MAX_MESSAGE_BYTES && one.reason.len() <= MAX_MESSAGE_BYTES;
    conditions.retain(|one| OWN_CONDITIONS.contains(&one.type_.as_str()) && is_short(one));
    conditions
}

/// An object and its version.
#[derive(Debug)]
pub struct Custom<K> {
    /// The object.
    pub object: Arc<K>,
    /// Why its spec is not kept.
    pub too_large: Option<String>,
    /// Whether its spec is not kept because its namespace has no room now.
    pub has_no_room: bool,
    version: u64,
    size: usize,
}

#[derive(Deserialize)]
struct Wire<'a> {
    metadata: Meta,
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

/// What is kept of an object's metadata.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    #[serde(default)]
    namespace: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    generation: Option<i64>,
    #[serde(default)]
    creation_timestamp: Option<Time>,
    #[serde(default)]
    deletion_timestamp: Option<Time>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    owner_references: Option<Vec<Owned>>,
    #[serde(default)]
    finalizers: Option<Vec<String>>,
}

/// Labels and annotations that are read. Others can be long, and are not needed here.
const LABELS: [&str; 8] = [
    RUN_TYPE_LABEL,
    RUN_POD_UID_LABEL,
    RUN_TEMPLATE_LABEL,
    RUN_TARGET_LABEL,
    RUN_ATTEMPT_LABEL,
    RUN_INSTANCE_LABEL,
    RUN_REVISION_LABEL,
    RUN_STEP_LABEL,
];
const ANNOTATIONS: [&str; 3] = [INDEX_ON_ANNOTATION, INDEX_RANGE_ANNOTATION, PAUSED_FOR_ANNOTATION];

fn only(texts: Option<BTreeMap<String, String>>, read: &[&str]) -> Option<BTreeMap<String, String>> {
    let mut texts = texts?;
    texts.retain(|key, value| read.contains(&key.as_str()) && value.len() <= MAX_ANNOTATION_BYTES);
    Some(texts)
}

impl From<Meta> for ObjectMeta {
    fn from(meta: Meta) -> Self {
        let controller = |owners: &Vec<Owned>| {
            let owner = owners.iter().find(|owner| owner.controller == Some(true)).or(owners.first())?;
            // Longer than any object's can be: no object owns it, but it is no orphan either.
            let is_short = is_short(&owner.api_version, &owner.kind, &owner.name, &owner.uid);
            Some(if is_short { owner.clone() } else { Owned::default() })
        };
        Self {
            name: Some(meta.name),
            namespace: Some(meta.namespace),
            uid: Some(meta.uid),
            resource_version: Some(meta.resource_version),
            generation: meta.generation,
            creation_timestamp: meta.creation_timestamp,
            deletion_timestamp: meta.deletion_timestamp,
            labels: only(meta.labels, &LABELS),
            annotations: only(meta.annotations, &ANNOTATIONS),
            owner_references: meta.owner_references.as_ref().and_then(controller).map(|owner| vec![owner]),
            finalizers: meta.finalizers,
            ..Self::default()
        }
    }
}

/// A spec as the API server sends it, which may be too large to be read.
struct SpecText<'a> {
    text: &'a str,
    template: &'a str,
}

impl<'a> SpecText<'a> {
    fn of(text: &'a str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Templated<'a> {
            #[serde(borrow, default)]
            template: Option<&'a RawValue>,
        }
        let Templated { template } = serde_json::from_str(text)?;
        Ok(Self { text, template: template.map_or("", RawValue::get) })
    }

    /// What it needs in memory: a template is kept as text, unless it is too large.
    fn size(&self) -> usize {
        let is_kept = self.template.len() <= MAX_TEMPLATE_BYTES && values(self.template) <= MOST_TEMPLATE_VALUES;
        weight(self.text).saturating_sub(weight(self.template)).saturating_add(if is_kept { self.template.len() } else { 0 })
    }

    /// Why it is not read.
    fn too_large<K: OurKind>(&self) -> Option<String> {
        let bytes = self.text.len().saturating_sub(self.template.len());
        let values = values(self.text).saturating_sub(values(self.template));
        let apart = if self.template.is_empty() { "" } else { ", its template apart," };
        if bytes > K::MAX_SPEC_BYTES {
            return Some(format!("spec{apart} has {bytes} bytes of JSON, at most {} are allowed", K::MAX_SPEC_BYTES));
        }
        (values > K::MOST_VALUES).then(|| format!("spec{apart} has {values} values, at most {} are allowed", K::MOST_VALUES))
    }
}

impl<K: OurKind> Cached for Custom<K> {
    const KIND: &'static str = K::KIND;
    const PATH: &'static str = K::PATH;

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let Wire { metadata, spec, status } = serde_json::from_str(json)?;
        let status = status.map_or("null", RawValue::get);
        let finalizers = metadata.finalizers.as_ref().map_or(0, Vec::len);
        if status.len() > MAX_STATUS_BYTES || finalizers > MAX_FINALIZERS {
            return Err(serde_json::Error::custom(format!(
                "its status has {} bytes and it has {finalizers} finalizers; at most {MAX_STATUS_BYTES} and {MAX_FINALIZERS} are read",
                status.len()
            )));
        }
        let spec = SpecText::of(spec.map_or(K::NOTHING, RawValue::get))?;
        let too_large = spec.too_large::<K>();
        let text = if too_large.is_some() { K::NOTHING } else { spec.text };
        let version = metadata.resource_version.parse().unwrap_or_default();
        let mut object = K::assemble(metadata.into(), serde_json::from_str(text)?, serde_json::from_str(status)?);
        if too_large.is_some() {
            object.shorten_status();
        }
        let size = if too_large.is_some() { 0 } else { PER_OBJECT + spec.size().saturating_add(weight(status)) };
        Ok(Self { object: Arc::new(object), too_large, has_no_room: false, version, size })
    }

    fn name(&self) -> &str {
        self.object.meta().name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.object.meta().namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.object.meta().uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn index(&self) -> Option<Index> {
        let metadata = self.object.meta();
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let owner = controller(metadata).filter(|_| K::OWNED).map(|owner| owner_in(&namespace, &owner));
        Some(owner.map_or(Index::Namespace(namespace), Index::Owner))
    }

    fn size(&self) -> usize {
        self.size
    }

    fn too_large(&self) -> Option<&str> {
        self.too_large.as_deref()
    }

    fn cut(&mut self, why: String) {
        let nothing = serde_json::from_str(K::NOTHING);
        if let Ok(nothing) = nothing {
            // Not cloned: the object is not shared before it is in a store.
            let object = Arc::make_mut(&mut self.object);
            *object.spec_mut() = nothing;
            object.shorten_status();
        }
        self.size = 0;
        self.has_no_room = true;
        self.too_large = Some(why);
    }
}

/// The controller of an object, if it is of one of our kinds that own pods.
pub(crate) fn controller(metadata: &ObjectMeta) -> Option<OwnerReference> {
    let controller = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let (api_version, kind) = (controller.api_version.clone(), controller.kind.clone());
    let [api_version, kind, name, uid] = [api_version, kind, controller.name.clone(), controller.uid.clone()].map(Text::from);
    let owner = OwnerReference { api_version, kind, name, uid, controller: true };
    Some(owner).filter(is_ours)
}

/// The reference to an object for its dependents and events.
pub(crate) fn owner<K: OurKind>(object: &K) -> Owner {
    let metadata = object.meta();
    Owner {
        api_version: K::api_version(&()).into_owned(),
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

/// What decisions about an object in a cache rest on.
pub(super) fn basis<K: OurKind>(objects: &Store<Custom<K>>, key: &Key) -> Option<Basis> {
    let object = objects.get(key)?;
    let meta = object.object.meta();
    Some(Basis {
        uid: meta.uid.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        annotations: meta.annotations.clone().unwrap_or_default(),
    })
}

/// An object changed: reconciles it, without pause or backoff if its spec or annotations changed or its deletion was requested.
pub fn object_changed<K: OurKind>(queue: &Queue, change: &Change<Custom<K>>) {
    let Some(entry) = change.new.as_ref().or(change.old.as_ref()) else { return };
    let wish = |entry: &Arc<Custom<K>>| {
        let meta = entry.object.meta();
        (meta.generation, meta.annotations.clone(), meta.deletion_timestamp.is_some())
    };
    if change.old.as_ref().map(wish) == change.new.as_ref().map(wish) {
        queue.add(entry.key());
    } else {
        queue.add_now(entry.key());
    }
}
