//! The kubelet and kube-proxy of a real node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::error::{Doing, Error, Result};
use crate::pki::Subject;
use crate::real::RealNode;
use crate::real::containerd::SOCKET;
use crate::real::node::Setup;
use crate::tools::Tool;

pub(crate) fn kubelet(node: &RealNode, setup: &Setup<'_>) -> Result<Command> {
    let name = node.name();
    let address = setup.network.node(node.number()).to_string();
    let user = format!("system:node:{name}");
    let kubeconfig = setup.plane.kubeconfig_for(setup.run, &name, &Subject { user: &user, group: Some("system:nodes") })?;
    let serving = setup.plane.authority.server(setup.run, &format!("{name}-serving"), &[name.clone(), address.clone()])?;
    let cgroup = format!("{}-{name}", setup.run.id());
    create_cgroups(Path::new("/sys/fs/cgroup"), &cgroup)?;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": setup.plane.authority.path("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": serving.certificate,
        "tlsPrivateKeyFile": serving.key,
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false,
        "clusterDNS": [setup.network.host()],
        "clusterDomain": "cluster.local",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "resolvConf": setup.run.file(Path::new(&name).join("resolv.conf"), "")?,
        // The machine's disk and memory are shared with other processes: never evict pods or garbage-collect images.
        "evictionHard": { "memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%" },
        "imageGCHighThresholdPercent": 100,
    });
    let config = setup.run.file(Path::new(&name).join("kubelet.json"), config.to_string())?;
    let mut command = node.namespaces().enter_all(setup.cache.binary(Tool::Kubelet)?);
    command
        .arg("--config")
        .arg(config)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg(format!("--hostname-override={name}"))
        .arg(format!("--node-ip={address}"));
    Ok(command)
}

pub(crate) fn proxy(node: &RealNode, setup: &Setup<'_>) -> Result<Command> {
    let name = node.name();
    let subject = Subject { user: "system:kube-proxy", group: None };
    let kubeconfig = setup.plane.kubeconfig_for(setup.run, &format!("{name}-proxy"), &subject)?;
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": name,
        "clientConnection": { "kubeconfig": kubeconfig },
        "clusterCIDR": setup.network.all_pods(),
        "conntrack": { "maxPerCore": 0, "min": 0 },
    });
    let config = setup.run.file(Path::new(&name).join("kube-proxy.json"), config.to_string())?;
    let mut command = node.namespaces().enter_all(setup.cache.binary(Tool::Proxy)?);
    command.arg("--config").arg(config);
    Ok(command)
}

/// Enables the controllers that the kubelet needs in the children of a v2 cgroup.
fn enable_controllers(folder: &Path) -> Result<()> {
    const NEEDED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "hugetlb"];
    let words = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let (available, enabled) = (words("cgroup.controllers"), words("cgroup.subtree_control"));
    let has = |list: &str, name: &str| list.split_whitespace().any(|word| word == name);
    for controller in NEEDED.iter().filter(|name| has(&available, name) && !has(&enabled, name)) {
        fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}")).map_err(|error| {
            Error::Invalid(format!(
                "cannot enable the {controller} controller in {} ({error}): real nodes need to manage cgroups; in a container, give it the host's cgroup namespace",
                folder.display()
            ))
        })?;
    }
    Ok(())
}

/// Creates the root cgroup, which the kubelet requires: with cgroup v2 in the one hierarchy, with its controllers
/// enabled; with v1 in each hierarchy.
fn create_cgroups(mount: &Path, name: &str) -> Result<()> {
    let create = |folder: PathBuf| fs::create_dir_all(&folder).doing(|| format!("cannot create {}", folder.display()));
    let controllers = mount.join("cgroup.controllers");
    if controllers.exists() {
        create(mount.join(name))?;
        return [mount.to_owned(), mount.join(name)].iter().try_for_each(|folder| enable_controllers(folder));
    }
    let hierarchies = fs::read_dir(mount).doing(|| format!("cannot read {}", mount.display()))?;
    for hierarchy in hierarchies.flatten().map(|entry| entry.path()) {
        if hierarchy.join("cgroup.procs").exists() && !hierarchy.join("cgroup.controllers").exists() {
            create(hierarchy.join(name))?;
        }
    }
    // A cpuset cgroup of v1 accepts no process before its CPUs and memory nodes are set.
    let cpuset = mount.join("cpuset");
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(cpuset.join(file)) {
            let target = cpuset.join(name).join(file);
            fs::write(&target, value).doing(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}
