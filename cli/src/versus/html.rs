//! Results as a page on which each figure is a bar. The bars of a workload are below each other.

use super::allocators::{self, LARDER};
use super::instructions::Count;
use super::markdown::summary_table;
use super::page::Results;
use super::peers::{Measure, contest};
use super::summary::{VersusRow, means};
use super::table::{enters_means, time_mark};
use super::workers::Profile;
use crate::numbers::{AS_MUCH, in_order, less, mebibytes, thousands};
use crate::report::bar::Bar;
use crate::report::page::{details, escape, list, page};
use crate::report::{ANY_WIDTH, Left, Right, Table, TableCell, decimals, none};

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

/// The explanation of all figures, in front of them.
const LEAD: &str = "<p>Programs that differ only in their memory allocator run the same workloads in turn. <em>Time</em> is that of one operation, usually an allocation and its free; <em>peak</em> is the most memory that the process had resident. Less is better.</p>\n";

/// The explanation of the summary.
const SUMMARY: &str = "<p>Each figure is Larder's over that of the best other allocator on the workload: 0.80 is 20 % less, 1.25 is 25 % more. <span class=\"bad\">Red</span> is more than 5 % more. <em>default</em>, <em>speed</em> and <em>memory</em> are Larder's configurations; <em>time</em> is with fat LTO, <em>plain build</em> the time with cargo's release profile.</p>\n";

/// The explanation of the means.
const MEANS: &str = "<p>Geometric means of each allocator's figures over the best of the workload, which has 1. <em>End</em> is resident memory once all is freed; <em>of</em> is the number of workloads.</p>\n";

/// Returns the page, with `about` at its end.
pub(crate) fn html(results: &Results, about: &[String]) -> String {
    let rows = results.rows.as_slice();
    let mut body = LEAD.to_owned();
    if let Some(verdict) = verdict(rows) {
        body.push_str(&format!("<p><strong>{verdict}</strong></p>\n"));
    }
    if !rows.is_empty() {
        let table = summary_table(rows).html();
        body.push_str(&format!(
            "<h2>Larder beside the best other allocator</h2>\n{SUMMARY}{table}"
        ));
    }
    let mut explanation = MEANS;
    for profile in in_order(rows.iter().map(|row| row.profile)) {
        if let Some(means) = means_of(rows, profile) {
            let (build, means) = (build(profile), means.grouped_html());
            body.push_str(&format!(
                "<h2>All allocators on average, {build}</h2>\n{explanation}{means}"
            ));
            explanation = "";
        }
    }
    body.push_str(&bars(results));
    let text = results.text(ANY_WIDTH);
    let notes = text
        .lines()
        .filter(|line| NOTES.iter().any(|start| line.starts_with(start)));
    let notes: Vec<String> = notes.map(str::to_owned).collect();
    if !notes.is_empty() {
        body.push_str(&list("What has no figures", &notes));
    }
    let about: Vec<String> = about.iter().map(|line| line.replace('`', "")).collect();
    body.push_str(&list("How it was measured", &about));
    let text = escape(text.trim_end());
    body.push_str(&details(
        "All tables as text",
        &format!("<pre>{text}</pre>\n"),
    ));
    page("Larder beside other memory allocators", &body)
}

/// Returns the sentence on Larder's default configuration and the best peers, over all workloads.
fn verdict(rows: &[VersusRow]) -> Option<String> {
    let profile = rows.first()?.profile;
    let mean = |measure| {
        let contest = contest(rows, profile, measure);
        let mut scores = contest.scores.into_iter();
        let score = scores.find(|score| score.allocator == LARDER)?;
        Some((score.mean?, score.workloads))
    };
    let ((time, workloads), (peak, _)) = mean(Measure::Time).zip(mean(Measure::Peak))?;
    let than = |mean, what: &str| match less(1.0, mean) {
        same if same == AS_MUCH => format!("as much {what} as"),
        less => format!("{less} {what} than"),
    };
    let s = if workloads == 1 { "" } else { "s" };
    Some(format!(
        "Over {workloads} workload{s} Larder takes {} the best other allocator of each, and {} the one with the least memory (geometric means, {}).",
        than(time, "time"),
        than(peak, "memory at its peak"),
        build(profile)
    ))
}

/// Returns the words for a profile.
fn build(profile: &str) -> &'static str {
    if profile == Profile::Plain.name() {
        "cargo's release profile"
    } else {
        "fat LTO"
    }
}

/// Returns the means of all allocators: a group of rows for one thread, and one for more.
fn means_of(rows: &[VersusRow], profile: &'static str) -> Option<Table> {
    if !enters_means(rows, profile) {
        return None;
    }
    let mut table = Table::words(["threads", "allocator"]);
    for heading in ["time", "peak", "end", "of"] {
        table.column(heading, Right);
    }
    for mean in means(rows, profile) {
        let threads = match mean.one_thread {
            true => "One thread",
            false => "More threads",
        };
        // Means over different sets of workloads are not comparable.
        let of: TableCell = match mean.workloads == mean.of {
            true => mean.of.to_string().into(),
            false => TableCell::bad(format!("only {} of {}", mean.workloads, mean.of)),
        };
        table.row([
            threads.into(),
            mean.allocator.into(),
            decimals(mean.time, 2).into(),
            decimals(mean.peak_rss, 2).into(),
            decimals(mean.end_rss, 2).into(),
            of,
        ]);
    }
    Some(table)
}

/// Returns the tables of bars, with an explanation of the bars.
fn bars(results: &Results) -> String {
    let mut tables = String::new();
    for profile in in_order(results.rows.iter().map(|row| row.profile)) {
        let rows = results.rows.iter();
        let rows = rows.filter(|row| row.profile == profile && !row.is_of_frames());
        let lines: Vec<HtmlLine> = rows.map(timed).collect();
        let heading = format!("Each workload, {}", build(profile));
        tables.push_str(&section(
            &heading,
            &[("time", "ns"), ("peak", "MiB")],
            &lines,
        ));
    }
    for profile in in_order(results.counts.iter().map(|count| count.profile)) {
        let counts = results.counts.iter();
        let counts = counts.filter(|count| count.profile == profile);
        let lines: Vec<HtmlLine> = counts.map(counted).collect();
        let heading = format!(
            "Instructions of an operation, loop included, {}",
            build(profile)
        );
        tables.push_str(&section(&heading, &[("instructions", "number")], &lines));
    }
    if tables.is_empty() {
        return tables;
    }
    let explanation = format!(
        "<p>A bar is the median of the rounds, and the line on it goes from the lowest to the highest round. Larder's bars are green. The bars of a workload have one scale; a bar with teeth is cut, at {LONGEST:.0} times the shortest. A number with ~ is of rounds that differ by more than a tenth.</p>\n"
    );
    tables.replacen("</h2>\n", &format!("</h2>\n{explanation}"), 1)
}

/// Formats a figure, with one decimal if it is below 1000.
fn short(figure: f64) -> String {
    let decimals = usize::from(figure < 1000.0);
    thousands(&format!("{figure:.decimals$}"))
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

/// Formats a table of bars, with a group of rows for each workload. Each measure has a name and a
/// unit, and columns for the bar, the figure, the figure's range, and its ratio to the minimum.
fn section(heading: &str, measures: &[(&str, &str)], lines: &[HtmlLine]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut table = Table::words(["workload", "allocator"]);
    for (measure, unit) in measures {
        table.column(*measure, Left);
        for heading in [unit, "range", "over the least"] {
            table.column(heading, Right);
        }
    }
    for line in lines {
        let mut cells: Vec<TableCell> = vec![line.workload.into(), line.allocator.into()];
        for (at, figure) in line.figures.iter().enumerate() {
            let same = lines.iter().filter(|other| other.workload == line.workload);
            let figures: Vec<&Figure> = same.filter_map(|line| line.figures[at].as_ref()).collect();
            let ours = allocators::find(line.allocator).is_some_and(|allocator| allocator.ours);
            match figure {
                Some(figure) => cells.extend(figure.cells(&figures, ours)),
                None if line.failed => {
                    cells.extend(["failed", "", "", ""].map(TableCell::bad));
                }
                None => cells.extend([none(), none(), none(), none()].map(TableCell::from)),
            }
        }
        table.row(cells);
    }
    format!("<h2>{heading}</h2>\n{}", table.grouped_html())
}

impl Figure {
    /// Returns the end of the figure's range, or the figure if it has no range.
    fn high(&self) -> f64 {
        self.range.map_or(self.middle, |(_, high)| high)
    }

    /// Returns the cells of the figure. `all` has all figures of its workload, including this one.
    fn cells(&self, all: &[&Self], ours: bool) -> [TableCell; 4] {
        let least = all
            .iter()
            .map(|other| other.middle)
            .fold(f64::INFINITY, f64::min);
        let most = all.iter().map(|other| other.high()).fold(0.0, f64::max);
        let longest = most.min(LONGEST * least);
        let bar = Bar {
            ours,
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
