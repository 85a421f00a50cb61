//! A working fake node: it renews its lease and reports itself Ready, also after it had stopped reporting.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::life::NODE_ADDRESS;
use super::{Log, USER};
use crate::build::go_architecture;
use crate::nodes::is_ready;

const LEASE_SECONDS: u32 = 40;
const BEAT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// A node that works until it is dropped.
pub(super) struct WorkingNode {
    work: JoinHandle<((), ())>,
    not_ready: Arc<Notify>,
}

impl Drop for WorkingNode {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl WorkingNode {
    pub(super) fn new(client: Client, node: &Node, log: Log) -> Self {
        let not_ready = Arc::new(Notify::new());
        let report = report_ready(client.clone(), node.name_any(), Arc::clone(&not_ready), log.clone());
        let lease = hold_lease(client, node.name_any(), node.uid(), log);
        let working = Self { work: tokio::spawn(async { tokio::join!(lease, report) }), not_ready };
        working.seen(node);
        working
    }

    /// Takes note of the node as it is now: if it is not Ready, it is reported Ready.
    pub(super) fn seen(&self, node: &Node) {
        if !is_ready(node) {
            self.not_ready.notify_one();
        }
    }
}

async fn hold_lease(client: Client, name: String, uid: Option<String>, log: Log) {
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid });
    loop {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "ownerReferences": [owner] },
            "spec": { "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": MicroTime(Timestamp::now()) },
        });
        let held = leases.patch(&name, &PatchParams::apply(USER).force(), &Patch::Apply(&lease)).await;
        if let Err(error) = &held {
            log.say(&format!("lease of {name}: {error}"));
        }
        tokio::time::sleep(if held.is_ok() { BEAT } else { RETRY }).await;
    }
}

/// Reports the node Ready whenever it is not, and retries until that succeeds.
async fn report_ready(client: Client, name: String, not_ready: Arc<Notify>, log: Log) {
    let nodes: Api<Node> = Api::all(client);
    loop {
        not_ready.notified().await;
        let change = json!({ "status": status(&name) });
        if let Err(error) = nodes.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&change)).await {
            log.say(&format!("status of {name}: {error}"));
            tokio::time::sleep(RETRY).await;
            not_ready.notify_one();
        }
    }
}

fn status(name: &str) -> Value {
    let now = Time(Timestamp::now());
    let condition = |kind: &str, status: &str, reason: &str| json!({ "type": kind, "status": status, "reason": reason, "message": null, "lastHeartbeatTime": now, "lastTransitionTime": now });
    let room = json!({ "cpu": "1000", "memory": "2000Gi", "pods": "100000", "ephemeral-storage": "2000Gi" });
    json!({
        "addresses": [{ "type": "InternalIP", "address": NODE_ADDRESS }, { "type": "Hostname", "address": name }],
        "allocatable": room,
        "capacity": room,
        "conditions": [
            condition("Ready", "True", "KubeletReady"),
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        ],
        "nodeInfo": {
            "architecture": go_architecture(), "operatingSystem": "linux", "kubeletVersion": "fake", "bootID": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "osImage": "", "systemUUID": "",
        },
    })
}
