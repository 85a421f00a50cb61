//! Which pods are ours.

use std::sync::Arc;

use api::selector::LabelSelector;

use crate::plan::Action;
use crate::pod::PodFacts;
use crate::protect;

/// Pods sorted by what becomes of their ownership.
#[derive(Debug, Default)]
pub struct Claim {
    /// Pods we own, or will own when the actions are done; deleted and ended ones included.
    pub ours: Vec<Arc<PodFacts>>,
    /// Adoptions and releases.
    pub actions: Vec<Action>,
}

/// Pods of other controllers are left alone. Owned pods that no longer match are released, unless the owner protects them; active pods without an owner that match are adopted.
#[must_use]
pub fn claim(owner_uid: &str, selector: &LabelSelector, protects: bool, pods: &[Arc<PodFacts>]) -> Claim {
    let mut claim = Claim::default();
    for pod in pods {
        let matches = selector.matches(&pod.labels);
        let named = || (pod.name.clone(), pod.uid.clone());
        match pod.controller.as_deref() {
            Some(uid) if uid != owner_uid => {}
            // Who has another label is as protected as before.
            Some(_) if matches || protects && protect::protector(pod) == Some(owner_uid) => claim.ours.push(Arc::clone(pod)),
            // A pod that is going away anyway is not worth a write.
            Some(_) if pod.deleting => {}
            Some(_) => {
                let (name, uid) = named();
                claim.actions.push(Action::ReleasePod { name, uid });
            }
            None if matches && pod.is_active() => {
                let (name, uid) = named();
                claim.actions.push(Action::AdoptPod { name, uid });
                claim.ours.push(Arc::clone(pod));
            }
            None => {}
        }
    }
    claim
}
