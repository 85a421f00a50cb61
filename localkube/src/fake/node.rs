//! A fake node is Ready as long as its lease is held, also after it came back from silence.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::Log;
use super::life::NODE_ADDRESS;
use crate::cache::go_architecture;

const LEASE_SECONDS: u32 = 40;
const BEAT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// Holds the node's lease until it is aborted.
pub(super) async fn hold_lease(client: Client, node: Node, log: Log) {
    let name = node.name_any();
    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid() });
    loop {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "ownerReferences": [owner] },
            "spec": { "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": MicroTime(Timestamp::now()) },
        });
        let held = leases.patch(&name, &PatchParams::apply("fake-nodes").force(), &Patch::Apply(&lease)).await;
        if let Err(error) = &held {
            log.say(&format!("lease of {name}: {error}"));
        }
        tokio::time::sleep(if held.is_ok() { BEAT } else { RETRY }).await;
    }
}

/// Reports the node Ready, however often it takes.
pub(super) async fn report_ready(client: Client, name: String, log: Log) {
    let nodes: Api<Node> = Api::all(client);
    let mut status = json!({ "status": status(&name) });
    loop {
        match nodes.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&status)).await {
            Ok(_) => return,
            Err(kube::Error::Api(answer)) if answer.code == 404 => return,
            Err(error) => log.say(&format!("status of {name}: {error}")),
        }
        tokio::time::sleep(RETRY).await;
        status = json!({ "status": self::status(&name) });
    }
}

fn status(name: &str) -> Value {
    let now = Time(Timestamp::now());
    let condition = |kind: &str, status: &str, reason: &str| json!({ "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": now, "lastTransitionTime": now });
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
