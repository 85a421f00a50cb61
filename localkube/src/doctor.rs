//! What is missing on this machine, and how to get it.

use std::path::PathBuf;

use crate::cache::{Cache, cache_root};
use crate::error::{Error, Result};
use crate::process::{find_program, system_path};
use crate::registry::static_program;
use crate::rundir::runs_root;
use crate::tools::Tool;

/// A program and the Debian package that brings it.
struct Program {
    name: &'static str,
    package: &'static str,
}

/// What real nodes need from Debian.
const REAL_NODE_PROGRAMS: [Program; 8] = [
    Program { name: "containerd", package: "containerd" },
    Program { name: "runc", package: "runc" },
    Program { name: "docker-registry", package: "docker-registry" },
    Program { name: "iptables", package: "iptables" },
    Program { name: "nft", package: "nftables" },
    Program { name: "ip", package: "iproute2" },
    Program { name: "nsenter", package: "util-linux" },
    Program { name: "mount", package: "mount" },
];

const CNI_PACKAGE: &str = "containernetworking-plugins";
const CNI_FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Debian packages that real nodes need and that are not installed.
#[must_use]
pub fn missing_packages() -> Vec<&'static str> {
    let there = |program: &Program| find_system_program(program.name).is_some();
    let mut packages: Vec<_> = REAL_NODE_PROGRAMS.iter().filter(|program| !there(program)).map(|program| program.package).collect();
    if cni_plugins().is_err() {
        packages.push(CNI_PACKAGE);
    }
    packages
}

fn find_system_program(name: &str) -> Option<PathBuf> {
    find_program(name, &system_path())
}

/// The folder with the CNI plugins.
pub(crate) fn cni_plugins() -> Result<PathBuf> {
    let found = CNI_FOLDERS.map(PathBuf::from).into_iter().find(|folder| folder.join("ptp").is_file());
    found.ok_or_else(|| missing(&[CNI_PACKAGE]))
}

fn missing(packages: &[&str]) -> Error {
    let list = packages.join(" ");
    Error::Missing { what: format!("Debian package {list}"), remedy: format!("apt-get install --no-install-recommends {list}") }
}

/// Fails if a Debian package is missing.
pub(crate) fn check_packages() -> Result<()> {
    let packages = missing_packages();
    if packages.is_empty() { Ok(()) } else { Err(missing(&packages)) }
}

/// One finding.
#[derive(Debug)]
pub struct Finding {
    /// What was checked.
    pub subject: String,
    /// What is wrong and what to do; none if it is fine.
    pub problem: Option<String>,
    /// Whether only real nodes need it.
    pub only_real_nodes: bool,
}

impl Finding {
    fn new(subject: impl Into<String>, problem: Option<String>) -> Self {
        Self { subject: subject.into(), problem, only_real_nodes: false }
    }

    fn for_real_nodes(self) -> Self {
        Self { only_real_nodes: true, ..self }
    }
}

/// Checks everything that a cluster needs.
#[must_use]
pub fn examine(cache: &Cache) -> Vec<Finding> {
    let mut findings = vec![
        Finding::new(
            "setpriv (util-linux)",
            find_system_program("setpriv").is_none().then(|| "install the Debian package util-linux".to_owned()),
        ),
        Finding::new(format!("runs are kept in {}", runs_root().display()), None),
        Finding::new(format!("binaries are kept in {}", cache_root().display()), None),
    ];
    findings.extend(Tool::all().map(|tool| examine_tool(cache, tool)));
    let root = rustix::process::geteuid().is_root();
    findings.push(Finding::new("root", (!root).then(|| Error::NeedsRoot.to_string())).for_real_nodes());
    findings.push(Finding::new("Debian packages", check_packages().err().map(|error| error.to_string())).for_real_nodes());
    for name in ["pause", "game-server"] {
        let problem = static_program(name).err().map(|error| error.to_string());
        findings.push(Finding::new(format!("static {name}"), problem).for_real_nodes());
    }
    findings
}

fn examine_tool(cache: &Cache, tool: Tool) -> Finding {
    let problem = match cache.inspect(tool) {
        Ok(Some(true)) => None,
        Ok(Some(false)) => Some(format!("the cached binary is damaged: run `localkube build --again {}`", tool.name())),
        Ok(None) => Some("not built yet: run `localkube build` (it is also built when first needed)".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    let finding = Finding::new(tool.name(), problem);
    if Tool::REAL_NODES.contains(&tool) { finding.for_real_nodes() } else { finding }
}
