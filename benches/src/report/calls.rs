//! Calls of a driver by name, as lines of text below the table.

use super::{ReplayRow, Report};
use crate::replay::CallsByName;

/// The heading and a line for each row whose calls are known; nothing if none are.
pub(super) fn lines(report: &Report) -> Option<(&'static str, Vec<String>)> {
    let lines: Vec<String> = report.rows().iter().filter_map(line).collect();
    let on = |driver| report.rows().iter().any(|row| row.driver == Some(driver));
    // A process has one driver.
    let heading = if on("stand-in") {
        "calls of the stand-in driver, whose own work is in these ns/op and whose pool is below cudarc and cuda-async: they say nothing of a GPU"
    } else {
        "calls of the driver, those that are counted"
    };
    (!lines.is_empty()).then_some((heading, lines))
}

fn line(row: &ReplayRow) -> Option<String> {
    let all = row.calls_by_name.as_ref()?;
    let mut line = format!("{} {}: {}", row.trace, row.allocator, listed(all));
    let last = row.calls_by_name_by_pass.as_ref().and_then(|by| by.last());
    if let Some(last) = last.filter(|_| row.passes > 1 && row.completed) {
        line.push_str(&format!("; last pass: {}", listed(last)));
    }
    Some(line)
}

fn listed(calls: &CallsByName) -> String {
    if calls.is_empty() {
        return "none".to_owned();
    }
    let each = calls.iter().map(|(name, calls)| format!("{name} {calls}"));
    each.collect::<Vec<_>>().join(", ")
}
