//! The document with the tables: each table is replaced when it is measured again, and the text around it stays.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use jiff::Zoned;

/// Where tables are saved.
pub(crate) struct Report {
    file: Option<PathBuf>,
}

impl Report {
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self { file }
    }

    /// Replaces the table under the heading `title`, and says when and of which commit it is.
    pub(crate) fn part(&self, title: &str, table: &[String]) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let stamp = format!("{STAMP}{} at {}.", Zoned::now().date(), commit()?);
        Ok(std::fs::write(file, replaced(&text, title, table, &stamp)?)?)
    }

    /// Writes the chart beside the document.
    pub(crate) fn chart(&self, svg: &str) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        Ok(std::fs::write(file.with_file_name("benchmarks.svg"), svg)?)
    }
}

/// How the line under a table starts.
const STAMP: &str = "Measured on ";

/// The commit that is checked out, and whether there are changes.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| -> Result<String> {
        let ended = Command::new("git").args(arguments).output().context("git did not start")?;
        ensure!(ended.status.success(), "git {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&ended.stderr));
        Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs"])?.is_empty();
    Ok(if is_changed { format!("{commit} with changes") } else { commit })
}

/// The document with a new table under the heading `title`.
fn replaced(text: &str, title: &str, table: &[String], stamp: &str) -> Result<String> {
    let mut lines = Vec::new();
    let (mut inside, mut done) = (false, false);
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            inside = heading == title;
        }
        if inside && line.starts_with('|') {
            if !done {
                lines.extend(table.iter().map(String::as_str));
                lines.extend(["", stamp]);
                done = true;
            }
            continue;
        }
        if inside && done && line.starts_with(STAMP) {
            // The old one, with the empty line before it.
            lines.pop();
            continue;
        }
        lines.push(line);
    }
    ensure!(done, "the document has no table under \"## {title}\"");
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_replaced_and_the_rest_stays() {
        let text = "# B\n\n## One\n\nWords.\n\n| a |\n| b |\n\n## Two\n\n| c |\n";
        let new = |text: &str, day: &str| replaced(text, "One", &["| x |".to_owned()], &format!("{STAMP}{day}.")).unwrap();
        let once = new(text, "Monday");
        assert_eq!(once, "# B\n\n## One\n\nWords.\n\n| x |\n\nMeasured on Monday.\n\n## Two\n\n| c |\n");
        assert_eq!(new(&once, "Tuesday"), once.replace("Monday", "Tuesday"));
        assert!(replaced(text, "Three", &[], "").is_err());
    }
}
