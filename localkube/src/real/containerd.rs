//! containerd's configuration: its own state (it is alone in its mount namespace), pods on routed veth pairs, every
//! image from localkube's registry.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::doctor;
use crate::error::Result;
use crate::real::RealNode;
use crate::real::node::Setup;
use crate::registry::{PAUSE_IMAGE, hosts_file};

pub(crate) const SOCKET: &str = "/run/containerd/containerd.sock";

pub(crate) fn configure(node: &RealNode, setup: &Setup<'_>) -> Result<PathBuf> {
    let name = node.name();
    let inside = |file: &str| Path::new(&name).join(file);
    setup.run.folder(inside("certs.d/_default"))?;
    let hosts = hosts_file(setup.network.host(), setup.registry_port);
    setup.run.file(inside("certs.d/_default/hosts.toml"), hosts)?;
    setup.run.file(inside("cni/10-pods.conflist"), pod_network(&setup.network.pods(node.number())))?;
    let folder = node.folder().display();
    let plugins = doctor::cni_plugins()?;
    // AppArmor profiles would be loaded into the host's kernel and stay there. Without restrict_oom_score_adj no
    // sandbox starts if root lacks CAP_SYS_RESOURCE, as in many virtual machines and containers.
    let config = format!(
        r#"version = 2
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{folder}/certs.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"#,
        plugins = plugins.display(),
    );
    setup.run.file(inside("containerd.toml"), config)
}

/// A routed veth pair per pod (`ptp`): traffic between two pods of a node is routed and so passes kube-proxy's rules,
/// which a bridge would bypass.
fn pod_network(subnet: &str) -> String {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            { "type": "ptp", "ipMasq": false, "ipam": { "type": "host-local", "subnet": subnet, "routes": [{ "dst": "0.0.0.0/0" }] } },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
    .to_string()
}
