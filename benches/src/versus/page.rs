//! Results to keep: a page for people and the rows as lines of JSON.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::rounds::Settings;
use super::summary::Row;
use super::table::table;

/// What a page says besides the tables.
#[derive(Debug, Clone)]
pub struct Origin {
    /// How to measure again.
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
pub fn page(rows: &[Row], settings: &Settings, origin: &Origin) -> String {
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
    let tables = table(rows);
    let _ = write!(text, "\n```text\n{}\n```\n", tables.trim_end());
    text
}

/// Writes `DATE-versus.md` and `.jsonl` into a folder and gives their paths. Earlier results of
/// the same day stay: the new ones get a number.
///
/// # Errors
/// The folder or a file cannot be written.
pub fn write(
    folder: &Path,
    rows: &[Row],
    settings: &Settings,
    origin: &Origin,
) -> io::Result<[PathBuf; 2]> {
    fs::create_dir_all(folder)?;
    let [markdown, lines] = free_names(folder, &origin.date);
    let mut json = String::new();
    for row in rows {
        json.push_str(&serde_json::to_string(row)?);
        json.push('\n');
    }
    fs::write(&markdown, page(rows, settings, origin))?;
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
