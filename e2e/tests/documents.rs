//! Documents that must not drift from the tests.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use e2e::Suite;

/// To be called last: it checks the tests that were added before.
pub(crate) fn add(suite: &Arc<Suite>) {
    let names = suite.names();
    suite.named("documents::every_behaviour_names_its_test", |_| every_behaviour_names_its_test(names));
}

async fn every_behaviour_names_its_test(names: Vec<String>) -> Result<()> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/behaviours.md"))?;
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| id")).collect();
    for row in &rows {
        let named: Vec<&str> = row.split('`').skip(1).step_by(2).filter(|word| word.contains("::") || word.contains(": ")).collect();
        ensure!(!named.is_empty(), "no test in {row}");
        for test in named.iter().filter(|test| test.contains("::")) {
            let known = names.iter().any(|name| test.strip_suffix('*').map_or(name == test, |prefix| name.starts_with(prefix)));
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
