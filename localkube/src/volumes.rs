//! The default StorageClass: each claim gets a folder on the node that its pod was scheduled to, removed with the
//! claim.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::error::{Asking, Error, Result};

const PROVISIONER: &str = "localkube/folder";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER_ANNOTATION: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The folder of all volumes on a node, each of which has its own /var/lib.
const FOLDER: &str = "/var/lib/localkube-volumes";

/// Creates the StorageClass and provisions its claims until the result is dropped.
pub(crate) async fn start(client: &Client, run: PathBuf) -> Result<Provisioner> {
    let class = json!({
        "metadata": { "name": "local", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": PROVISIONER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
    });
    let class: StorageClass = serde_json::from_value(class).map_err(|error| Error::Invalid(error.to_string()))?;
    Api::all(client.clone()).create(&PostParams::default(), &class).await.asking("cannot create the StorageClass")?;
    let (provide, reclaim) = (provide(client.clone(), run.clone()), reclaim(client.clone(), run));
    Ok(Provisioner(tokio::spawn(async { tokio::join!(provide, reclaim) })))
}

/// The running provisioner.
#[derive(Debug)]
pub(crate) struct Provisioner(tokio::task::JoinHandle<((), ())>);

impl Drop for Provisioner {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn provide(client: Client, run: PathBuf) {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client);
    let mut changes = std::pin::pin!(watcher(claims, watcher::Config::default()).default_backoff().applied_objects());
    while let Some(change) = changes.next().await {
        let Some(volume) = change.ok().and_then(|claim| volume_for(&claim)) else { continue };
        // The kubelet would create the folder for root only; a game server may run as another user.
        if let Some(folder) = folder_of(&volume, &run).filter(|folder| folder.ancestors().nth(2).is_some_and(Path::is_dir)) {
            let _ = std::fs::create_dir_all(&folder);
            let _ = std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777));
        }
        // The claim may be seen twice: then the volume exists already. After other errors the claim stays Pending.
        if let Err(error) = volumes.create(&PostParams::default(), &volume).await
            && !matches!(&error, kube::Error::Api(status) if status.code == 409)
        {
            eprintln!("localkube: cannot create volume {}: {error}", volume.name_any());
        }
    }
}

/// The volume that a claim waits for, once the scheduler has chosen a node.
fn volume_for(claim: &PersistentVolumeClaim) -> Option<PersistentVolume> {
    let annotations = claim.metadata.annotations.as_ref()?;
    let spec = claim.spec.as_ref()?;
    if annotations.get(PROVISIONER_ANNOTATION)? != PROVISIONER || spec.volume_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return None;
    }
    let node = annotations.get(SELECTED_NODE)?;
    let name = format!("pvc-{}", claim.uid()?);
    let storage = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let volume = json!({
        "metadata": { "name": name, "annotations": { PROVISIONED_BY: PROVISIONER } },
        "spec": {
            "capacity": { "storage": storage },
            "accessModes": spec.access_modes,
            "volumeMode": "Filesystem",
            "storageClassName": spec.storage_class_name,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(), "name": claim.name_any(), "uid": claim.uid() },
            "hostPath": { "path": format!("{FOLDER}/{name}"), "type": "DirectoryOrCreate" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] },
            ]}]}},
        },
    });
    serde_json::from_value(volume).ok()
}

async fn reclaim(client: Client, run: PathBuf) {
    let volumes: Api<PersistentVolume> = Api::all(client);
    let mut changes = std::pin::pin!(watcher(volumes.clone(), watcher::Config::default()).default_backoff().applied_objects());
    while let Some(change) = changes.next().await {
        let Ok(volume) = change else { continue };
        let ours = volume.annotations().get(PROVISIONED_BY).is_some_and(|by| by == PROVISIONER);
        let released = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released");
        if !ours || !released || volume.metadata.deletion_timestamp.is_some() {
            continue;
        }
        if let Some(folder) = folder_of(&volume, &run) {
            let _ = std::fs::remove_dir_all(folder);
        }
        // If this fails, the volume stays Released.
        let _ = volumes.delete(&volume.name_any(), &DeleteParams::default()).await;
    }
}

/// Where a volume's folder is on the host: below the /var/lib of its node.
fn folder_of(volume: &PersistentVolume, run: &Path) -> Option<PathBuf> {
    let spec = volume.spec.as_ref()?;
    let terms = &spec.node_affinity.as_ref()?.required.as_ref()?.node_selector_terms;
    let node = terms.first()?.match_expressions.as_ref()?.first()?.values.as_ref()?.first()?;
    let inside = spec.host_path.as_ref()?.path.strip_prefix("/var/lib/")?;
    Some(run.join(node).join("lib").join(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(annotations: &serde_json::Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "data", "namespace": "games", "uid": "7", "annotations": annotations },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_waits_until_the_scheduler_has_chosen_a_node() {
        assert!(volume_for(&claim(&json!({ PROVISIONER_ANNOTATION: PROVISIONER }))).is_none());
        assert!(volume_for(&claim(&json!({ PROVISIONER_ANNOTATION: "other", SELECTED_NODE: "real-1" }))).is_none());
        let volume = volume_for(&claim(&json!({ PROVISIONER_ANNOTATION: PROVISIONER, SELECTED_NODE: "real-1" }))).unwrap();
        assert_eq!(volume.name_any(), "pvc-7");
        let folder = folder_of(&volume, std::path::Path::new("/run-1")).unwrap();
        assert_eq!(folder, PathBuf::from("/run-1/real-1/lib/localkube-volumes/pvc-7"));
    }
}
