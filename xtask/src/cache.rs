//! A cache of tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A file in a folder of the cache. `make` fills the folder first if it is not there.
pub(crate) fn kept(name: &str, file: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let base =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("gameplane").join(name);
    let wanted = folder.join(file);
    if wanted.exists() {
        return Ok(wanted);
    }
    // Complete or absent: everything happens in a temporary folder, which is then renamed.
    let parent = folder.parent().context("the cache has no parent")?;
    std::fs::create_dir_all(parent)?;
    let work = parent.join(format!("{name}.{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let made = make(&work);
    let moved = made.and_then(|()| {
        std::fs::rename(&work, &folder).or_else(|error| if wanted.exists() { Ok(()) } else { Err(error) }).map_err(Into::into)
    });
    if work.exists() {
        std::fs::remove_dir_all(&work)?;
    }
    moved.map(|()| wanted)
}

/// Runs a command to its end. The error is what it printed to standard error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {program}: install it"))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
