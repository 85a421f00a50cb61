//! The document with the tables: each table is replaced when it is measured again, and the text around it stays.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// Where tables are saved.
pub(crate) struct Report {
    file: Option<PathBuf>,
}

impl Report {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file }
    }

    /// Replaces the table under the heading `title`.
    pub(crate) fn part(&self, title: &str, table: &[String]) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(std::fs::write(file, replaced(&text, title, table)?)?)
    }
}

/// The document with a new table under the heading `title`.
fn replaced(text: &str, title: &str, table: &[String]) -> Result<String> {
    let mut lines = Vec::new();
    let (mut inside, mut done) = (false, false);
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            inside = heading == title;
        }
        if inside && line.starts_with('|') {
            if !done {
                lines.extend(table.iter().map(String::as_str));
                done = true;
            }
            continue;
        }
        lines.push(line);
    }
    anyhow::ensure!(done, "the document has no table under \"## {title}\"");
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_replaced_and_the_rest_stays() {
        let text = "# B\n\n## One\n\nWords.\n\n| a |\n| b |\n\n## Two\n\n| c |\n";
        assert_eq!(replaced(text, "One", &["| x |".to_owned()]).unwrap(), "# B\n\n## One\n\nWords.\n\n| x |\n\n## Two\n\n| c |\n");
        assert!(replaced(text, "Three", &[]).is_err());
    }
}
