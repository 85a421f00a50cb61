//! The figures of both READMEs are those of docs/benchmarks.md, and the chart is that of its table.

use std::path::Path;

use crate::chart;

fn file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap()
}

/// The lines of the table under a heading.
fn table(title: &str) -> Vec<String> {
    let text = file("docs/benchmarks.md");
    let part = text.split("\n## ").find(|part| part.lines().next() == Some(title)).unwrap();
    part.lines().filter(|line| line.starts_with('|')).map(str::to_owned).collect()
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// What a table says of a contender with so many pods.
fn figure(title: &str, contender: &str, pods: u32, column: &str) -> String {
    let table = table(title);
    let place = cells(&table[0]).iter().position(|name| *name == column).unwrap();
    let row = table.iter().map(|line| cells(line)).find(|row| row[0] == contender && row[1] == pods.to_string());
    row.unwrap_or_else(|| panic!("{title} has no row of {contender} with {pods} pods"))[place].to_owned()
}

#[test]
fn both_readmes_quote_the_tables() {
    let rate = |title: &str, contender: &str, pods: u32| figure(title, contender, pods, "rate / plain");
    let memory = |title: &str, contender: &str, pods: u32| figure(title, contender, pods, "peak MiB");
    let rows = [
        vec![
            rate("Pods", "Gameplane", 1000),
            rate("Pods", "Deployment, unlimited", 1000),
            rate("Pods", "Deployment, as shipped", 1000),
            rate("Pods", "CloneSet, unlimited", 1000),
        ],
        vec![
            rate("Pods", "Gameplane", 5000),
            memory("Pods", "Gameplane", 5000),
            rate("Pods", "Deployment, unlimited", 5000),
            memory("Pods", "Deployment, unlimited", 5000),
        ],
        vec![
            rate("In place", "Gameplane", 1000),
            memory("In place", "Gameplane", 1000),
            rate("In place", "CloneSet, unlimited", 1000),
            rate("In place", "CloneSet, as shipped", 1000),
        ],
        vec![
            rate("In place", "Gameplane", 5000),
            memory("In place", "Gameplane", 5000),
            figure("In place", "Gameplane", 5000, "/ fewest pods"),
        ],
    ];
    for readme in ["README.md", "README.zh-CN.md"] {
        let text = file(readme);
        let quoted: Vec<Vec<&str>> = text.lines().filter(|line| line.contains("1,000") || line.contains("5,000")).map(cells).collect();
        let quoted: Vec<&Vec<&str>> = quoted.iter().filter(|row| row.len() == 4).collect();
        assert_eq!(quoted.len(), rows.len(), "{readme}: {quoted:?}");
        for (row, figures) in quoted.iter().zip(&rows) {
            let is_figure = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && *word != "1,000";
            let words = row[1..].iter().flat_map(|cell| cell.split(|one: char| !(one.is_ascii_digit() || ".,".contains(one))));
            let words: Vec<&str> = words.map(|word| word.trim_matches([',', '.'])).filter(is_figure).collect();
            assert_eq!(words, *figures, "{readme}: {}", row[0]);
        }
    }
}

#[test]
fn the_chart_is_that_of_the_table() {
    assert_eq!(file("docs/benchmarks.svg"), chart::svg(&table("In place")), "make bench SAVE=1 writes both");
}
