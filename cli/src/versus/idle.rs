//! Memory given back: what a process holds that reached 1 GiB, freed fifteen
//! sixteenths of it and then does nothing, not even call its allocator.

use std::iter;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::process::{RunFault, printed};
use super::rounds::Settings;
use super::workers::Worker;
use crate::numbers::in_order;
use crate::numbers::mebibytes;
use crate::report::{Right, Table, decimals};

/// What the worker runs in place of a workload.
const NAME: &str = "idle";

/// One allocator: a line of JSON, a line of the table. The figures are missing where it failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Idle {
    /// Tells it from other lines.
    pub(crate) measure: &'static str,
    pub(crate) allocator: &'static str,
    pub(crate) profile: &'static str,
    #[serde(flatten)]
    pub(crate) seen: Option<IdleSample>,
    pub(crate) failed: Option<String>,
}

/// The figures of a worker that does nothing after a peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct IdleSample {
    /// Requested bytes that stay allocated.
    pub(crate) live_bytes: u64,
    pub(crate) peak_rss_bytes: Option<u64>,
    /// Seconds since the last free, and the memory that the process held then.
    pub(crate) looks: Vec<(f64, Option<u64>)>,
}

/// The line that a worker prints.
#[derive(Deserialize)]
struct IdleLine {
    allocator: String,
    #[serde(flatten)]
    seen: IdleSample,
}

/// Runs a worker that does nothing after a peak and reads its figures.
pub(crate) fn watch(worker: &Worker, settings: &Settings) -> Idle {
    let mut command = Command::new(&worker.program);
    command
        .arg(NAME)
        .args(["--scale", &settings.scale.to_string()]);
    let printed = printed(&mut command, settings.limit);
    let seen = printed.and_then(|printed| parse(&printed.out, worker.allocator.name));
    Idle {
        measure: NAME,
        allocator: worker.allocator.name,
        profile: worker.profile.name(),
        failed: seen.as_ref().err().map(ToString::to_string),
        seen: seen.ok(),
    }
}

fn parse(printed: &str, allocator: &str) -> Result<IdleSample, RunFault> {
    let line: IdleLine = serde_json::from_str(printed.trim())
        .map_err(|error| RunFault::NoSample(error.to_string()))?;
    if line.allocator != allocator || line.seen.live_bytes == 0 {
        let about = format!("{} bytes live on {}", line.seen.live_bytes, line.allocator);
        return Err(RunFault::NoSample(about));
    }
    Ok(line.seen)
}

/// All figures as text, a table for each profile.
pub(crate) fn idle_table(all: &[Idle], width: usize) -> String {
    let mut text = String::new();
    for profile in in_order(all.iter().map(|idle| idle.profile)) {
        let same: Vec<&Idle> = all.iter().filter(|idle| idle.profile == profile).collect();
        text.push_str(&profile_table(&same, profile, width));
    }
    for idle in all {
        if let Some(why) = &idle.failed {
            let (allocator, profile) = (idle.allocator, idle.profile);
            text.push_str(&format!("failed: idle on {allocator} ({profile}): {why}\n"));
        }
    }
    text
}

fn profile_table(all: &[&Idle], profile: &str, width: usize) -> String {
    let Some(first) = all.iter().find_map(|idle| idle.seen.as_ref()) else {
        return String::new();
    };
    let mut table = Table::new(["allocator", "peak MiB"]);
    for (seconds, _) in &first.looks {
        table.column(format!("{seconds} s"), Right);
    }
    for idle in all {
        let mut cells = vec![idle.allocator.to_owned()];
        match &idle.seen {
            Some(seen) => cells.extend(seen.cells()),
            None => cells.push("failed".to_owned()),
        }
        table.row(cells);
    }
    let live = mebibytes(first.live_bytes);
    let title = format!(
        "resident over live bytes after a peak, {live:.0} MiB live, nobody calling, profile {profile}"
    );
    table.titled(&title, width)
}

impl IdleSample {
    fn cells(&self) -> impl Iterator<Item = String> {
        let peak = decimals(self.peak_rss_bytes.map(mebibytes), 0);
        let over_live = |rss| rss as f64 / self.live_bytes as f64;
        let looks = self.looks.iter();
        iter::once(peak).chain(looks.map(move |(_, rss)| decimals(rss.map(over_live), 2)))
    }
}
