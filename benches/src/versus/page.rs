//! Results: as text, as a page for people to keep, as lines of JSON.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::idle::{Idle, idle_table};
use super::instructions::{Count, counts_table};
use super::markdown::summary;
use super::rounds::Settings;
use super::summary::VersusRow;
use super::table::table;

/// All figures of a measurement.
#[derive(Debug, Clone, Default)]
pub struct Results {
    /// Times and memory of workloads.
    pub rows: Vec<VersusRow>,
    /// Instructions of an operation.
    pub counts: Vec<Count>,
    /// Memory of processes that do nothing.
    pub idles: Vec<Idle>,
}

impl Results {
    /// All tables.
    #[must_use]
    pub fn text(&self) -> String {
        let tables = [
            table(&self.rows),
            counts_table(&self.counts),
            idle_table(&self.idles),
        ];
        tables.concat()
    }

    /// Figures that were asked for, and those among them that are not there. A peer that does not
    /// run under Valgrind has not failed.
    #[must_use]
    pub fn failed(&self) -> (usize, usize) {
        let rows = self.rows.iter().filter(|row| row.failed.is_some());
        let idles = self.idles.iter().filter(|idle| idle.failed.is_some());
        let counts = self.counts.iter();
        let counts = counts.filter(|count| count.failed.is_some() && count.is_ours());
        let all = self.rows.len() + self.idles.len() + self.counts.len();
        (rows.count() + idles.count() + counts.count(), all)
    }

    /// Names of the allocators, as often as they have figures.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let rows = self.rows.iter().map(|row| row.allocator);
        let counts = self.counts.iter().map(|count| count.allocator);
        rows.chain(counts)
            .chain(self.idles.iter().map(|idle| idle.allocator))
    }

    fn json(&self) -> serde_json::Result<String> {
        let lines = [
            json_lines(&self.rows)?,
            json_lines(&self.counts)?,
            json_lines(&self.idles)?,
        ];
        Ok(lines.concat())
    }
}

/// The figures as JSON, one object a line.
fn json_lines<T: Serialize>(rows: &[T]) -> serde_json::Result<String> {
    let mut text = String::new();
    for row in rows {
        text.push_str(&serde_json::to_string(row)?);
        text.push('\n');
    }
    Ok(text)
}

/// What a page says besides the tables.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The command that repeats the measurement.
    pub command: String,
    /// The commit that was measured.
    pub commit: String,
    /// The day.
    pub date: String,
    /// The kind of machine.
    pub machine: String,
    /// Crates of the peers with their versions.
    pub versions: String,
    /// Allocators that could not take part, and why.
    pub skipped: Vec<String>,
}

/// The page as Markdown.
#[must_use]
pub fn page(results: &Results, settings: &Settings, origin: &Origin) -> String {
    let Origin {
        command,
        commit,
        date,
        machine,
        versions,
        skipped,
    } = origin;
    let Settings { rounds, scale, .. } = settings;
    let mut text = format!(
        "# Larder beside other global allocators\n\n\
         * Command: `{command}`\n\
         * Commit: {commit}. Date: {date}. Machine: {machine}.\n\
         * Each run is a process of its own; {rounds} rounds in turns, medians, scale {scale}.\n\
         * Versions: {versions}.\n"
    );
    for skipped in skipped {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "* Left out: {skipped}");
    }
    if !results.rows.is_empty() {
        let summary = summary(&results.rows);
        let _ = write!(text, "\n{SUMMARY}\n\n{summary}");
    }
    let tables = results.text();
    let _ = write!(text, "\n```text\n{}\n```\n", tables.trim_end());
    text
}

const SUMMARY: &str = "Ours over the best peer of each workload (every other allocator is a peer), below 1 ahead, **bold** behind: time with fat LTO, time of a plain release build, peak of resident memory.";

/// Writes `DATE-versus.md` and `.jsonl` into a folder and gives their paths. Earlier results of
/// the same day stay: the new ones get a number.
///
/// # Errors
/// The folder or a file cannot be written.
pub fn write(
    folder: &Path,
    results: &Results,
    settings: &Settings,
    origin: &Origin,
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
