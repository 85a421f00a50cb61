//! A real Prometheus, from Debian's package: unpacked, not installed, so that nothing is started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::{kept, run};

/// Its path. It is downloaded into the cache first if it is missing.
pub(crate) fn binary() -> Result<PathBuf> {
    kept(&format!("prometheus-{}", release()?), "usr/bin/prometheus", make)
}

/// Each release of Debian has a Prometheus of its own.
fn release() -> Result<String> {
    let text = std::fs::read_to_string("/etc/os-release").context("this is no Debian")?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release names no release")?.trim_matches('"').to_owned())
}

fn make(work: &Path) -> Result<()> {
    let download = || run(Command::new("apt-get").args(["download", "prometheus"]).current_dir(work));
    // The list of packages may be missing or old; only root can renew it.
    let got = download().or_else(|first| match run(Command::new("apt-get").args(["update", "-qq"])) {
        Ok(()) => download(),
        Err(_) => Err(first),
    });
    got.context("cannot get the package prometheus from Debian")?;
    let package =
        std::fs::read_dir(work)?.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|end| end == "deb"));
    let package = package.context("the download holds no package")?;
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(work))?;
    Ok(std::fs::remove_file(package)?)
}
