//! Where and when something was measured, as far as the system tells.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind of machine: processor, cores, kernel, compiler.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let mut parts = vec![
        processor(&read("/proc/cpuinfo")),
        format!("{cores} cores"),
        format!("{} {}", std::env::consts::OS, major_and_minor(&kernel)),
    ];
    let huge_pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
    if let Some(chosen) = in_brackets(&huge_pages) {
        parts.push(format!("transparent huge pages: {chosen}"));
    }
    parts.extend(said(Command::new("rustc").arg("--version")));
    parts.join(", ")
}

/// The commit of a checkout, and whether files were changed since.
#[must_use]
pub fn commit(checkout: &Path) -> String {
    let git = |arguments: &[&str]| said(Command::new("git").current_dir(checkout).args(arguments));
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain"]) {
        Some(changes) if !changes.is_empty() => format!("{commit} with local changes"),
        _ => commit,
    }
}

/// Today in UTC, as 2026-11-21.
#[must_use]
pub fn today() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date(since.map_or(0, |since| since.as_secs() / SECONDS_PER_DAY))
}

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// The date so many days after 1970-01-01.
fn date(mut days: u64) -> String {
    let mut year = 1970;
    while days >= days_of(year) {
        days -= days_of(year);
        year += 1;
    }
    let february = days_of(year) - 337;
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02}", month + 1, days + 1)
}

const fn days_of(year: u64) -> u64 {
    let leaps = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leaps { 366 } else { 365 }
}

fn processor(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| Some(line.split_once(':')?.1.trim()));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

/// What follows differs from one update to the next.
fn major_and_minor(release: &str) -> String {
    let numbers: Vec<&str> = release.trim().split('.').take(2).collect();
    numbers.join(".")
}

fn in_brackets(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// What a program prints, if it is there and succeeds.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates_through_leap_years() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (789, "1972-02-29"),
            (11_016, "2000-02-29"),
            (20_778, "2026-11-21"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
    }

    #[test]
    fn the_processor_and_the_chosen_setting_are_found() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Zen: the fifth\n";
        assert_eq!(processor(cpuinfo), "Zen: the fifth");
        assert_eq!(major_and_minor("6.18.44-cloud\n"), "6.18");
        assert_eq!(processor(""), std::env::consts::ARCH);
        assert_eq!(in_brackets("always [madvise] never"), Some("madvise"));
    }

    #[test]
    fn a_folder_without_commits_is_unknown() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(commit(folder.path()), "unknown");
    }
}
