//! A chart of the in-place table: how many pods are updated and ready after how many seconds.

use std::fmt::Write as _;

/// The size of one panel, and of the plot inside it.
const PANEL: (f64, f64) = (430.0, 320.0);
const PLOT: (f64, f64) = (340.0, 230.0);
/// Where the plot starts inside its panel.
const ORIGIN: (f64, f64) = (60.0, 40.0);
const COLOURS: [&str; 4] = ["#888888", "#0b6e4f", "#c8553d", "#3d5a80"];
/// A contender that takes this many times as long as the plain client would make the others unreadable.
const MOST_TIMES: f64 = 4.0;

/// One row of the table.
struct Curve {
    contender: String,
    pods: String,
    /// When each tenth of the pods was ready.
    tenths: Vec<f64>,
}

/// The curves of a table whose first columns are contender and pods, and whose last one is the tenths.
fn curves(table: &[String]) -> Vec<Curve> {
    let read = |line: &String| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let tenths: Vec<f64> = cells.last()?.split(' ').filter_map(|second| second.parse().ok()).collect();
        Some(Curve { contender: (*cells.first()?).to_owned(), pods: (*cells.get(1)?).to_owned(), tenths })
    };
    table.iter().filter_map(read).filter(|curve| curve.tenths.len() == 10).collect()
}

/// The chart, with a panel for each number of pods.
pub(crate) fn svg(table: &[String]) -> String {
    let curves = curves(table);
    let mut sizes: Vec<&str> = curves.iter().map(|curve| &*curve.pods).collect();
    sizes.dedup();
    sizes.sort_by_key(|pods| pods.parse::<u64>().unwrap_or_default());
    sizes.dedup();
    let mut text = String::new();
    for (number, pods) in (0_u8..).zip(&sizes) {
        let of_size: Vec<&Curve> = curves.iter().filter(|curve| curve.pods == **pods).collect();
        let plain = of_size.first().and_then(|curve| curve.tenths.last()).copied().unwrap_or_default();
        let shown: Vec<&Curve> =
            of_size.into_iter().filter(|one| one.tenths.last().is_some_and(|last| *last <= plain * MOST_TIMES)).collect();
        panel(&mut text, f64::from(number) * PANEL.0, pods, &shown);
    }
    let width = f64::from(u8::try_from(sizes.len()).unwrap_or(u8::MAX)) * PANEL.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{text}</svg>\n",
        PANEL.1
    )
}

fn panel(text: &mut String, left: f64, pods: &str, curves: &[&Curve]) {
    let end = curves.iter().filter_map(|curve| curve.tenths.last()).copied().fold(1.0, f64::max);
    let x = |second: f64| left + ORIGIN.0 + second / end * PLOT.0;
    let y = |percent: f64| ORIGIN.1 + PLOT.1 * (1.0 - percent / 100.0);
    let (bottom, right) = (y(0.0), x(end));
    let mut add = |line: String| writeln!(text, "{line}").unwrap_or_default();
    add(format!("<text x=\"{}\" y=\"24\">{pods} pods: % updated in place and ready, by seconds</text>", left + ORIGIN.0));
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let at = y(percent);
        add(format!("<line x1=\"{:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>", x(0.0)));
        add(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{percent}</text>", x(0.0) - 6.0, at + 4.0));
    }
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        add(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>", x(end * part), bottom + 18.0, end * part));
    }
    for (number, (curve, colour)) in (0_u8..).zip(curves.iter().zip(COLOURS)) {
        let points =
            std::iter::once((0.0, 0.0)).chain((1_u8..).map(|tenth| f64::from(tenth) * 10.0).zip(&curve.tenths).map(|(y, x)| (*x, y)));
        let points: Vec<String> = points.map(|(second, percent)| format!("{:.1},{:.1}", x(second), y(percent))).collect();
        add(format!("<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>", points.join(" ")));
        let at = bottom - 12.0 - 16.0 * f64::from(number);
        add(format!("<text x=\"{right:.1}\" y=\"{at:.1}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>", curve.contender));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_panel_for_each_size_and_a_line_for_each_contender_that_is_not_far_slower() {
        let row = |contender: &str, pods: u32, slow: u32| {
            let tenths: Vec<String> = (1..=10).map(|tenth| format!("{}.0", tenth * slow)).collect();
            format!("| {contender} | {pods} | 1 | {} |", tenths.join(" "))
        };
        let table = ["| contender | pods | s | tenths |".to_owned(), "|---|---|---|---|".to_owned()];
        let rows = [row("plain", 1000, 1), row("ours", 1000, 1), row("plain", 5000, 5), row("peer", 1000, 3), row("slow", 1000, 9)];
        let chart = svg(&[&table[..], &rows].concat());
        assert_eq!((chart.matches("pods: %").count(), chart.matches("<polyline").count()), (2, 4));
        assert!(chart.contains(">peer<") && !chart.contains(">slow<"), "{chart}");
        assert!(chart.starts_with("<svg") && chart.ends_with("</svg>\n"));
    }
}
