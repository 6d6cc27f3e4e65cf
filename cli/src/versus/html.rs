//! Results as a page on which each figure is a bar. The bars of a workload are below each other.

use super::allocators::{ALLOCATORS, LARDER};
use super::instructions::Count;
use super::markdown::summary_table;
use super::page::{Results, SUMMARY};
use super::summary::VersusRow;
use super::table::{means_table, time_mark};
use crate::numbers::{in_order, mebibytes};
use crate::report::bar::{Bar, swatch};
use crate::report::page::{escape, list, page};
use crate::report::{ANY_WIDTH, Left, Right, Table, TableCell};

/// Maximum length of a bar over the shortest bar of its workload. A bar ten times as long would
/// hide the differences between the others.
const LONGEST: f64 = 4.0;

/// The beginnings of lines in the text that give a reason for a missing figure.
const NOTES: [&str; 3] = ["failed: ", "skipped: ", "not counted: "];

/// A median of rounds, with the lowest and the highest round. A count has no such range.
struct Figure {
    middle: f64,
    range: Option<(f64, f64)>,
    /// Text in front of the figure.
    mark: &'static str,
}

/// One allocator on one workload, with its figure, if it has one, for each measure of the table.
struct HtmlLine {
    workload: &'static str,
    allocator: &'static str,
    failed: bool,
    figures: Vec<Option<Figure>>,
}

/// Returns the page, with `about` at its top.
pub(crate) fn html(results: &Results, about: &[String]) -> String {
    let mut body = list("What was measured", about);
    body.push_str(&legend(results));
    if !results.rows.is_empty() {
        let table = summary_table(&results.rows).html();
        body.push_str(&format!(
            "<p>{}</p>\n{table}",
            SUMMARY.replace("**bold**", "red")
        ));
    }
    for profile in in_order(results.rows.iter().map(|row| row.profile)) {
        let rows = results.rows.iter();
        let rows = rows.filter(|row| row.profile == profile && !row.is_of_frames());
        let lines: Vec<HtmlLine> = rows.map(timed).collect();
        body.push_str(&section(
            &format!("Time of an operation and peak of resident memory, profile {profile}"),
            &["ns", "MiB"],
            &lines,
        ));
        if let Some(means) = means_table(&results.rows, profile) {
            let means = means.html();
            body.push_str(&format!(
                "<h2>Geometric means of the ratios, profile {profile}</h2>\n{means}"
            ));
        }
    }
    for profile in in_order(results.counts.iter().map(|count| count.profile)) {
        let counts = results.counts.iter();
        let lines: Vec<HtmlLine> = counts
            .filter(|count| count.profile == profile)
            .map(counted)
            .collect();
        body.push_str(&section(
            &format!("Instructions of an operation, loop included, profile {profile}"),
            &["instructions"],
            &lines,
        ));
    }
    let text = results.text(ANY_WIDTH);
    let notes = text
        .lines()
        .filter(|line| NOTES.iter().any(|start| line.starts_with(start)));
    let notes: Vec<String> = notes.map(str::to_owned).collect();
    if !notes.is_empty() {
        body.push_str(&list("What has no figures", &notes));
    }
    let text = escape(text.trim_end());
    body.push_str(&format!(
        "<details><summary>All tables as text</summary><pre>{text}</pre></details>\n"
    ));
    page("Larder beside other global allocators", &body)
}

/// Returns the key to the bars, and an explanation of them.
fn legend(results: &Results) -> String {
    let key = in_order(results.names())
        .into_iter()
        .map(|name| format!("<span>{}{}</span> ", swatch(look(name)), escape(name)));
    let key: String = key.collect();
    format!(
        "<p class=\"key\">{key}</p>\n<p>A bar is the median of the rounds, the line on it goes from the lowest to the highest round; shorter is better. The bars of a workload have one scale. One with teeth is cut: it is more than {LONGEST:.0} times the shortest. A number with ~ is of rounds that differ by more than a tenth.</p>\n"
    )
}

/// Returns the index of an allocator's bar style, which is the same on every page. Larder's is the
/// first.
fn look(allocator: &str) -> usize {
    let larder = ALLOCATORS.iter().skip_while(|known| known.name != LARDER);
    let mut all = larder.chain(ALLOCATORS);
    all.position(|known| known.name == allocator).unwrap_or(0)
}

/// Formats a figure, with one decimal if it is below 1000.
fn short(figure: f64) -> String {
    let decimals = usize::from(figure < 1000.0);
    format!("{figure:.decimals$}")
}

fn timed(row: &VersusRow) -> HtmlLine {
    let time = row.ns_per_operation.map(|middle| Figure {
        middle,
        range: row.seconds.and_then(|seconds| {
            let unit = middle / seconds;
            Some((row.seconds_min? * unit, row.seconds_max? * unit))
        }),
        mark: time_mark(row),
    });
    let mib = |bytes: Option<u64>| bytes.map(mebibytes);
    let peak = mib(row.peak_rss_bytes).map(|middle| Figure {
        middle,
        range: mib(row.peak_rss_min_bytes).zip(mib(row.peak_rss_max_bytes)),
        mark: "",
    });
    HtmlLine {
        workload: row.workload,
        allocator: row.allocator,
        failed: row.failed.is_some(),
        figures: vec![time, peak],
    }
}

fn counted(count: &Count) -> HtmlLine {
    let figure = count.instructions_per_operation.map(|middle| Figure {
        middle,
        range: None,
        mark: "",
    });
    HtmlLine {
        workload: count.workload,
        allocator: count.allocator,
        failed: count.failed.is_some(),
        figures: vec![figure],
    }
}

/// Formats a table of bars. For each measure it has the bar, the figure in its unit, the figure's
/// range, and its ratio to the minimum.
fn section(heading: &str, units: &[&str], lines: &[HtmlLine]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut table = Table::words(["workload", "allocator"]);
    for unit in units {
        table.column("", Left);
        for heading in [unit, "range", "over the least"] {
            table.column(heading, Right);
        }
    }
    for line in lines {
        let mut cells: Vec<TableCell> = vec![line.workload.into(), line.allocator.into()];
        for (at, figure) in line.figures.iter().enumerate() {
            let same = lines.iter().filter(|other| other.workload == line.workload);
            let figures: Vec<&Figure> = same.filter_map(|line| line.figures[at].as_ref()).collect();
            match figure {
                Some(figure) => cells.extend(figure.cells(&figures, look(line.allocator))),
                None if line.failed => {
                    cells.extend(["failed", "", "", ""].map(TableCell::outstanding));
                }
                None => cells.extend(["-", "", "", ""].map(TableCell::from)),
            }
        }
        table.row(cells);
    }
    format!("<h2>{heading}</h2>\n{}", table.html())
}

impl Figure {
    /// Returns the end of the figure's range, or the figure if it has no range.
    fn high(&self) -> f64 {
        self.range.map_or(self.middle, |(_, high)| high)
    }

    /// Returns the cells of the figure. `all` has all figures of its workload, including this one.
    fn cells(&self, all: &[&Self], look: usize) -> [TableCell; 4] {
        let least = all
            .iter()
            .map(|other| other.middle)
            .fold(f64::INFINITY, f64::min);
        let most = all.iter().map(|other| other.high()).fold(0.0, f64::max);
        let longest = most.min(LONGEST * least);
        let bar = Bar {
            look,
            middle: self.middle / longest,
            range: self
                .range
                .map(|(low, high)| (low / longest, high / longest)),
        };
        let range = self
            .range
            .map(|(low, high)| format!("{} to {}", short(low), short(high)));
        [
            bar.into(),
            (self.mark.to_owned() + &short(self.middle)).into(),
            range.unwrap_or_default().into(),
            format!("{:.2}", self.middle / least).into(),
        ]
    }
}
