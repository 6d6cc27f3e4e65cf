//! The machine, commit and date of a measurement, if the system reports them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

/// Describes the machine: processor, cores, kernel, compiler, huge pages.
pub(crate) fn machine() -> String {
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

/// Returns the commit of a checkout, and says if files have changed since.
pub(crate) fn commit(checkout: &Path) -> String {
    let git = |arguments: &[&str]| said(Command::new("git").current_dir(checkout).args(arguments));
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain"]) {
        Some(changes) if !changes.is_empty() => format!("{commit} with local changes"),
        _ => commit,
    }
}

/// Returns today's date in UTC, as 2026-11-21.
pub(crate) fn today() -> String {
    let date = said(Command::new("date").args(["-u", "+%F"]));
    date.unwrap_or_else(|| "undated".to_owned())
}

fn processor(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| Some(line.split_once(':')?.1.trim()));
    name.unwrap_or(std::env::consts::ARCH).to_owned()
}

/// Returns the first two numbers of a release. The other numbers change with each update.
fn major_and_minor(release: &str) -> String {
    let numbers: Vec<&str> = release.trim().split('.').take(2).collect();
    numbers.join(".")
}

fn in_brackets(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// Returns the output of a program, if the program exists and succeeds.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_year_month_and_day() {
        let date = today();
        let is_digit = |at: usize| date.as_bytes()[at].is_ascii_digit();
        assert_eq!((date.len(), &date[4..5], &date[7..8]), (10, "-", "-"));
        assert!([0, 1, 2, 3, 5, 6, 8, 9].into_iter().all(is_digit), "{date}");
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
