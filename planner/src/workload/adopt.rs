//! Orphan adoption: which pods belong to a workload.

use std::sync::Arc;

use api::selector::LabelSelector;

use crate::facts::pod::PodFacts;
use crate::plan::Action;
use crate::workload::protect;

/// Pods that the owner controls, or will once these adoptions and releases are made; deleted and ended ones included.
/// Also returns the adoptions and releases.
///
/// Pods of other controllers are ignored. Controlled pods that no longer match are released, unless the owner protects
/// them; active pods without a controller that match are adopted.
#[must_use]
pub fn adopt(owner_uid: &str, selector: &LabelSelector, protects: bool, pods: &[Arc<PodFacts>]) -> (Vec<Arc<PodFacts>>, Vec<Action>) {
    let (mut ours, mut actions) = (Vec::new(), Vec::new());
    for pod in pods {
        let matches = selector.matches(&pod.labels);
        let named = || (pod.name.clone(), pod.uid.clone());
        match pod.controller.as_deref() {
            Some(uid) if uid != owner_uid => {}
            // A changed label does not end the protection of a pod.
            Some(_) if matches || protects && protect::protector(pod) == Some(owner_uid) => ours.push(Arc::clone(pod)),
            // A pod that is being deleted anyway is not worth a write.
            Some(_) if pod.deleting => {}
            Some(_) => {
                let (name, uid) = named();
                actions.push(Action::ReleasePod { name, uid });
            }
            None if matches && pod.is_active() => {
                let (name, uid) = named();
                actions.push(Action::AdoptPod { name, uid });
                ours.push(Arc::clone(pod));
            }
            None => {}
        }
    }
    (ours, actions)
}
