//! Results as text, as a page in Markdown, and as lines of JSON.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::instructions::{Count, counts_table};
use super::markdown::summary;
use super::rounds::Settings;
use super::summary::VersusRow;
use super::table::table;
use super::tail::{TailRow, tail_table};
use crate::report::{ANY_WIDTH, json_line};

/// All figures of a measurement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Results {
    pub(crate) rows: Vec<VersusRow>,
    pub(crate) counts: Vec<Count>,
    pub(crate) tails: Vec<TailRow>,
}

impl Results {
    /// Formats all tables, each at most `width` wide if its columns allow it.
    pub(crate) fn text(&self, width: usize) -> String {
        let tables = [
            table(&self.rows, width),
            counts_table(&self.counts, width),
            tail_table(&self.tails, width),
        ];
        tables.concat()
    }

    /// Returns the numbers of failed and of requested figures. A peer that does not run under
    /// Valgrind does not count as failed.
    pub(crate) fn failed(&self) -> (usize, usize) {
        let rows = self.rows.iter().filter(|row| row.failed.is_some());
        let tails = self.tails.iter().filter(|row| row.failed.is_some());
        let counts = self.counts.iter();
        let counts = counts.filter(|count| count.failed.is_some() && count.is_ours());
        let failed = rows.count() + counts.count() + tails.count();
        (
            failed,
            self.rows.len() + self.counts.len() + self.tails.len(),
        )
    }

    /// Returns the allocator's name of each figure.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        let rows = self.rows.iter().map(|row| row.allocator);
        let counts = self.counts.iter().map(|count| count.allocator);
        rows.chain(counts)
            .chain(self.tails.iter().map(|row| row.allocator))
    }

    /// Formats the figures as JSON, with one object on each line.
    fn json(&self) -> io::Result<String> {
        let rows = self.rows.iter().map(json_line);
        let counts = self.counts.iter().map(json_line);
        let tails = self.tails.iter().map(json_line);
        rows.chain(counts).chain(tails).collect()
    }
}

/// The origin of the figures, which a page has in addition to the tables.
#[derive(Debug, Clone)]
pub(crate) struct ResultOrigin {
    /// The command that repeats the measurement.
    pub(crate) command: String,
    pub(crate) commit: String,
    pub(crate) date: String,
    pub(crate) machine: String,
    /// The peers' crates and their versions.
    pub(crate) versions: String,
    /// The allocators without a worker, with the reason.
    pub(crate) skipped: Vec<String>,
}

impl ResultOrigin {
    /// Returns the origin as lines of text.
    pub(crate) fn lines(&self, settings: &Settings) -> Vec<String> {
        let Self {
            command,
            commit,
            date,
            machine,
            versions,
            skipped,
        } = self;
        let Settings { rounds, scale, .. } = settings;
        let mut lines = vec![
            format!("Command: `{command}`"),
            format!("Commit: {commit}. Date: {date}. Machine: {machine}."),
            format!(
                "Each run is a process of its own; {rounds} rounds in turns, medians, scale {scale}."
            ),
            format!("Versions: {versions}."),
        ];
        lines.extend(skipped.iter().map(|skipped| format!("Left out: {skipped}")));
        lines
    }
}

/// Formats the page as Markdown.
pub(crate) fn page(results: &Results, settings: &Settings, origin: &ResultOrigin) -> String {
    let mut text = "# Larder beside other global allocators\n\n".to_owned();
    for line in origin.lines(settings) {
        text.push_str(&format!("* {line}\n"));
    }
    if !results.rows.is_empty() {
        let summary = summary(&results.rows);
        text.push_str(&format!("\n{SUMMARY}\n\n{summary}"));
    }
    let tables = results.text(ANY_WIDTH);
    text + &format!("\n```text\n{}\n```\n", tables.trim_end())
}

const SUMMARY: &str = "Ours over the best peer of each workload (every other allocator is a peer), below 1 ahead, **bold** more than 5 % behind: time with fat LTO, time of a plain release build, peak of resident memory.";

/// Writes `DATE-versus.md` and `DATE-versus.jsonl` into a folder. Returns their paths. If there are
/// results of the same day, they are kept, and the new names get a number.
pub(crate) fn write(
    folder: &Path,
    results: &Results,
    settings: &Settings,
    origin: &ResultOrigin,
) -> io::Result<[PathBuf; 2]> {
    fs::create_dir_all(folder)?;
    let [markdown, lines] = free_names(folder, &origin.date);
    let json = results.json()?;
    fs::write(&markdown, page(results, settings, origin))?;
    fs::write(&lines, json)?;
    Ok([markdown, lines])
}

fn free_names(folder: &Path, date: &str) -> [PathBuf; 2] {
    let names = |stem: &str| ["md", "jsonl"].map(|end| folder.join(format!("{stem}.{end}")));
    let mut chosen = names(&format!("{date}-versus"));
    let mut number = 2;
    while chosen.iter().any(|name| name.exists()) {
        chosen = names(&format!("{date}-versus-{number}"));
        number += 1;
    }
    chosen
}
