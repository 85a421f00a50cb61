//! Documents that must not drift from the tests.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::Suite;

/// To be called last: it checks the tests that were added before.
pub(crate) fn add(suite: &Arc<Suite>) {
    let names = suite.names();
    suite.named("documents::every_behaviour_names_its_test", |_| every_behaviour_names_its_test(names));
}

/// All code of each package that has unit tests.
fn sources() -> Result<BTreeMap<&'static str, String>> {
    let mut sources = BTreeMap::new();
    for folder in ["api", "planner", "operator", "localkube", "bench", "examples/game-server"] {
        let package = folder.rsplit('/').next().unwrap_or_default();
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder)];
        let source: &mut String = sources.entry(package).or_default();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    source.push_str(&std::fs::read_to_string(path)?);
                }
            }
        }
    }
    Ok(sources)
}

async fn every_behaviour_names_its_test(names: Vec<String>) -> Result<()> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/behaviours.md"))?;
    let sources = sources()?;
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| id")).collect();
    for row in &rows {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or_default();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        ensure!(!named.is_empty(), "no test in {row}");
        for test in named.iter().filter(|test| test.contains("::")) {
            let known = names.iter().any(|name| test.strip_suffix('*').map_or(name == test, |prefix| name.starts_with(prefix)));
            ensure!(known, "{test} is named in docs/behaviours.md and does not exist");
        }
        for test in named.iter().filter(|test| !test.contains("::")) {
            let known = test.split_once(": ").and_then(|(place, name)| Some((sources.get(place)?, name)));
            let known = test.starts_with("make ") || known.is_some_and(|(source, name)| source.contains(&format!("fn {name}(")));
            ensure!(known, "{test} is named in docs/behaviours.md and does not exist");
        }
    }
    for name in &names {
        let area = name.rsplit_once("::").map_or("", |(area, _)| area);
        let covered = text.contains(&format!("`{name}`")) || text.contains(&format!("`{area}::*`"));
        ensure!(covered, "{name} proves nothing that docs/behaviours.md promises");
    }
    ensure!(rows.len() > 30, "only {} rows were read", rows.len());
    Ok(())
}
