//! Writes what is generated, and gets the tools for it.

mod cache;
mod helm;
mod prometheus;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;

/// Write generated files.
#[derive(Debug, Parser)]
enum Cli {
    /// Write chart/crds from the types in api/, and deploy/ from the chart
    Gen {
        /// Where the repository is
        #[arg(default_value = ".")]
        root: PathBuf,
        /// Write into this folder instead, to compare
        #[arg(long, value_name = "FOLDER")]
        into: Option<PathBuf>,
    },
    /// Print where helm is; gets it first if needed
    Helm,
    /// Print where a Prometheus is; gets it first if needed
    Prometheus,
}

/// The files of deploy/ and the templates that they show.
const DEPLOY: [(&str, &str); 5] = [
    ("02-namespace.yaml", "namespace"),
    ("03-rbac.yaml", "rbac"),
    ("04-operator-deployment.yaml", "deployment"),
    ("05-pod-protection.yaml", "pod-protection"),
    ("06-hook-approvals.yaml", "hook-approvals"),
];

fn main() -> Result<()> {
    match Cli::parse() {
        Cli::Helm => println!("{}", helm::binary()?.display()),
        Cli::Prometheus => println!("{}", prometheus::binary()?.display()),
        Cli::Gen { root, into } => generate(&root, into.as_deref().unwrap_or(&root))?,
    }
    Ok(())
}

fn generate(root: &Path, into: &Path) -> Result<()> {
    let (crds, deploy) = (into.join("chart/crds"), into.join("deploy"));
    std::fs::create_dir_all(&crds)?;
    std::fs::create_dir_all(&deploy)?;
    let mut resources = Vec::new();
    for (file, crd) in api::schema::crds() {
        let text = api::schema::to_yaml(&crd)?;
        std::fs::write(crds.join(file), &text)?;
        resources.push(text);
    }
    std::fs::write(deploy.join("01-resources.yaml"), resources.join("---\n"))?;
    for (file, template) in DEPLOY {
        let text = helm::render(&root.join("chart"), template).with_context(|| format!("cannot render {file}"))?;
        std::fs::write(deploy.join(file), text)?;
    }
    Ok(())
}
