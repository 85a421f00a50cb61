//! Writes, counted in the API server's audit log.

use std::io::{BufRead, BufReader};

use anyhow::Result;
use localkube::Cluster;
use serde_json::Value;

/// Writes in one namespace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Writes {
    /// Of pods.
    pub(crate) pods: usize,
    /// Of HookRuns.
    pub(crate) hook_runs: usize,
    /// Of everything else.
    pub(crate) others: usize,
}

/// The writes of these users in a namespace so far.
pub(crate) fn writes(cluster: &Cluster, namespace: &str, users: &[&str]) -> Result<Writes> {
    let mut writes = Writes::default();
    for line in BufReader::new(std::fs::File::open(cluster.audit_log())?).lines() {
        let line = line?;
        // Most lines are about something else; a text search is cheaper than parsing.
        if !line.contains(namespace) || !users.iter().any(|user| line.contains(user)) {
            continue;
        }
        let Ok(entry) = serde_json::from_str::<Value>(&line) else { continue };
        let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let write = ["create", "update", "patch", "delete"].contains(&text("/verb")) && text("/stage") == "ResponseComplete";
        if write && text("/objectRef/namespace") == namespace && users.contains(&text("/user/username")) {
            match text("/objectRef/resource") {
                "pods" => writes.pods += 1,
                "hookruns" => writes.hook_runs += 1,
                _ => writes.others += 1,
            }
        }
    }
    Ok(writes)
}
