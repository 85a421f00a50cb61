//! Real nodes: a kubelet and containerd each, in namespaces of their own.
//!
//! Each node is a process (`pause`) that holds a network, a mount and a pid namespace; the node's daemons and
//! containers run inside. A further network namespace is the switch between them. None of these namespaces has a name
//! in the file system: their processes die with localkube, and the kernel then removes the mounts, interfaces, routes
//! and firewall rules. On the host there is one interface, the end of a veth pair to the switch.
//!
//! ```text
//!   host: API server, registry, DNS  10.N.255.1 ──┐
//!                                                 ├─ switch ─┬─ real-1  10.N.255.11, pods 10.N.1.0/24
//!                                                            └─ real-2  10.N.255.12, pods 10.N.2.0/24
//! ```

mod containerd;
mod dns;
mod kubelet;
mod network;
mod node;

use std::path::Path;
use std::time::Duration;

pub(crate) use network::Network;
pub use node::RealNode;

use crate::cache::{Cache, cache_root};
use crate::controlplane::{ControlPlane, within};
use crate::doctor;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::process::Daemon;
use crate::registry::{Registry, static_program};
use crate::rundir::{RunDir, runs_root};

/// The most real nodes of a cluster.
pub(crate) const MOST_NODES: u32 = 8;

/// Fails if this machine cannot run real nodes.
pub(crate) fn check(options: &Options) -> Result<()> {
    if options.real_nodes > MOST_NODES {
        return Err(Error::Invalid(format!("--real-nodes {} is too many: at most {MOST_NODES}", options.real_nodes)));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Error::NeedsRoot);
    }
    doctor::check_packages()?;
    let places = [runs_root(), cache_root(), static_program("pause")?, static_program("game-server")?];
    places.iter().try_for_each(|place| check_place(place))
}

/// Each node has its own of these folders and cannot see the host's.
const COVERED: [&str; 3] = ["/var/lib", "/var/log", "/run"];

fn check_place(place: &Path) -> Result<()> {
    let place = std::fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
    match COVERED.iter().find(|covered| place.starts_with(covered)) {
        None => Ok(()),
        Some(covered) => Err(Error::Invalid(format!(
            "{} is below {covered}, which real nodes cannot see: move it (LOCALKUBE_RUNS, LOCALKUBE_CACHE, the checkout)",
            place.display()
        ))),
    }
}

/// The running nodes of a cluster, and the daemons that they share.
#[derive(Debug)]
pub(crate) struct RealNodes {
    pub(crate) nodes: Vec<RealNode>,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) registry: Registry,
}

impl RealNodes {
    pub(crate) async fn start(run: &RunDir, cache: &Cache, plane: &ControlPlane, network: &Network, options: &Options) -> Result<Self> {
        let registry = Registry::create(run)?;
        registry.fill()?;
        let port = network.registry_port()?;
        let daemons = vec![registry.serve(run, (network.host(), port).into())?, dns::start(run, cache, plane, network).await?];
        let mut nodes = Vec::new();
        for number in 1..=options.real_nodes {
            nodes.push(RealNode::create(run, network, number)?);
        }
        network.connect_pods(&nodes)?;
        let setup = node::Setup { run, cache, plane, network, registry_port: port };
        for node in &mut nodes {
            node.start_containerd(&setup)?;
        }
        for node in &mut nodes {
            node.wait_containerd().await?;
            node.start_kubelet(&setup)?;
            node.start_proxy(&setup)?;
        }
        options.progress.say("real nodes started");
        Ok(Self { nodes, daemons, registry })
    }
}

/// Waits for a file that a daemon of a node creates when it is ready.
async fn wait_for_file(path: &Path, what: &str, daemon: &Daemon) -> Result<()> {
    let there = async {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    within(Duration::from_secs(60), what, daemon.ended(), there).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_a_node_cannot_see_are_refused() {
        check_place(Path::new("/tmp/localkube-0")).unwrap();
        check_place(Path::new("/var/library")).unwrap();
        let error = check_place(Path::new("/var/lib/build-agent/target")).unwrap_err().to_string();
        assert!(error.contains("/var/lib, which real nodes cannot see"), "{error}");
    }
}
