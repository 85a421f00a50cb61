//! Writes what is generated: `cargo run -p xtask -- crds chart/crds`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Parser;

/// Write generated files.
#[derive(Debug, Parser)]
enum Cli {
    /// CustomResourceDefinitions, from the types in api/
    Crds {
        /// Where to
        folder: PathBuf,
    },
}

fn main() -> Result<()> {
    let Cli::Crds { folder } = Cli::parse();
    std::fs::create_dir_all(&folder)?;
    for (file, crd) in api::schema::crds() {
        std::fs::write(folder.join(file), api::schema::to_yaml(&crd)?)?;
    }
    Ok(())
}
