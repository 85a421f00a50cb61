//! Pods of workloads, and pods without a controller.

use std::sync::Arc;

use api::names::{INSTANCE_ID_LABEL, PROTECTED_LABEL, REVISION_LABEL};
use planner::facts::object::OwnerReference;
use planner::facts::pod::{Container, PodFacts};
use planner::facts::text::{Strings, Text, Texts};

use super::is_ours;
use crate::allowance::{weight, weight_of};
use crate::store::{Cached, Index};

/// A pod of a GameDeployment, or without a controller.
#[derive(Debug)]
pub struct Pod {
    /// What decisions see.
    pub facts: Arc<PodFacts>,
    /// Its controller.
    pub controller: Option<OwnerReference>,
    /// Why its labels, annotations and containers are not kept.
    pub too_large: Option<String>,
    size: usize,
}

/// The first bytes of each pod, which do not count against the namespace's memory.
const FREE: usize = 8 * 1024;

/// The bytes that a container needs besides its strings.
const PER_CONTAINER: usize = 512;

/// The bytes that the facts of a pod need at most.
fn size(facts: &PodFacts) -> usize {
    let of = |container: &Container| {
        let resources = weight_of(&container.resources) + container.actual_resources.as_ref().map_or(0, weight_of);
        PER_CONTAINER + container.name.len() + container.image.len() + container.actual_image.len() + container.image_id.len() + resources
    };
    let update = facts.update.as_ref().and_then(|update| serde_json::to_string(update).ok()).map_or(0, |update| weight(&update));
    let spec = facts.spec.as_ref().map_or(0, |spec| spec.len());
    weight_of(&facts.labels) + weight_of(&facts.annotations) + facts.containers.iter().map(of).sum::<usize>() + update + spec
}

impl Cached for Pod {
    const KIND: &'static str = "Pod";
    const PATH: &'static str = "/api/v1/pods";
    const IS_CORE: bool = true;

    fn decode(json: &str) -> Result<Self, serde_json::Error> {
        let (mut facts, controller) = PodFacts::read_of(json, is_ours)?;
        if facts.revision().is_none() && controller.as_ref().is_none_or(is_ours) {
            facts.read_spec(json)?;
        }
        let size = size(&facts);
        Ok(Self { facts: Arc::new(facts), controller, too_large: None, size })
    }

    fn share(&mut self, strings: &mut Strings) {
        if let Some(facts) = Arc::get_mut(&mut self.facts) {
            facts.share(strings);
        }
        if let Some(OwnerReference { api_version, kind, name, uid, .. }) = &mut self.controller {
            [api_version, kind, name, uid].into_iter().for_each(|text| strings.share(text));
        }
    }

    fn name(&self) -> &str {
        &self.facts.name
    }

    fn namespace(&self) -> &str {
        &self.facts.namespace
    }

    fn uid(&self) -> &str {
        &self.facts.uid
    }

    fn version(&self) -> u64 {
        self.facts.resource_version
    }

    fn index(&self) -> Option<Index> {
        Some(super::index(self.controller.as_ref(), &self.facts.namespace))
    }

    fn matters(&self) -> bool {
        // Without its labels it is not known whether an orphan is to be adopted, so one that is cut is not kept.
        self.controller.as_ref().map_or(self.too_large.is_none(), is_ours)
    }

    fn size(&self) -> usize {
        self.size.saturating_sub(FREE)
    }

    fn too_large(&self) -> Option<&str> {
        self.too_large.as_deref()
    }

    fn cut(&mut self, why: String) {
        let facts = Arc::make_mut(&mut self.facts);
        let is_read = |key: &str, _: &Text| [REVISION_LABEL, INSTANCE_ID_LABEL, PROTECTED_LABEL].contains(&key);
        facts.labels.retain(is_read);
        facts.annotations = Texts::default();
        facts.containers = Vec::new();
        facts.spec = None;
        facts.update = None;
        self.size = 0;
        self.too_large = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Key;

    #[test]
    fn a_pod_that_does_not_say_what_it_was_made_from_is_kept_with_its_spec() {
        let of = |labels: &str, env: &str| {
            let metadata =
                format!(r#"{{"name":"p","uid":"u","resourceVersion":"1","creationTimestamp":"2026-11-15T10:00:00Z","labels":{labels}}}"#);
            let spec =
                Pod::decode(&format!(r#"{{"metadata":{metadata},"spec":{{"containers":[],"env":"{env}"}}}}"#)).unwrap().facts.spec.clone();
            spec.as_deref().map(str::to_owned)
        };
        assert_eq!(of("{}", "a").as_deref(), Some(r#"{"containers":[],"env":"a"}"#));
        assert_eq!(of(r#"{"controller-revision-hash":"game-1"}"#, "a"), None);
        assert_eq!(of("{}", &"a".repeat(32 * 1024)), None, "long specs do not fill the memory");
    }

    #[test]
    fn pods_of_other_controllers_are_not_kept() {
        let pod = |api_version: &str, kind: &str| {
            let json = serde_json::json!({
                "metadata": {
                    "name": "p", "namespace": "play", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-11-15T10:00:00Z",
                    "ownerReferences": [{ "apiVersion": api_version, "kind": kind, "name": "game", "uid": "o", "controller": true }],
                },
            });
            Pod::decode(&json.to_string()).unwrap()
        };
        assert!(!pod("apps/v1", "ReplicaSet").matters());
        let ours = pod("tkex.tencent.com/v1alpha1", "GameDeployment");
        let key = Key { namespace: "play".to_owned(), name: "game".to_owned() };
        let owner = crate::store::OwnerKey { kind: "GameDeployment".to_owned(), key, uid: "o".to_owned() };
        assert!(ours.matters());
        assert_eq!(ours.index(), Some(Index::Owner(owner)));
    }
}
