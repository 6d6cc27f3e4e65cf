//! A long run: what a server's process holds beside what is live, over minutes in which threads come and go and
//! phases change.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::process::{RunFault, printed};
use super::rounds::Settings;
use super::workers::Worker;
use crate::numbers::{in_order, mebibytes};
use crate::report::bar::colour;
use crate::report::{Table, decimals};

/// What the worker runs in place of a workload; a minute at scale 1.
const NAME: &str = "long";
const MINUTE: f64 = 60.0;
/// Before this part of the run the store fills.
const FILLING: f64 = 0.1;

/// One allocator: a line of JSON, a line of the table, a curve. The figures are missing where it failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Long {
    /// Tells it from other lines.
    pub(crate) measure: &'static str,
    pub(crate) allocator: &'static str,
    pub(crate) profile: &'static str,
    #[serde(flatten)]
    pub(crate) seen: Option<LongSample>,
    pub(crate) failed: Option<String>,
}

/// The figures of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LongSample {
    pub(crate) peak_rss_bytes: Option<u64>,
    pub(crate) requests: u64,
    pub(crate) sessions: u64,
    /// Seconds since the start, bytes live then, and what the process held.
    pub(crate) looks: Vec<(f64, u64, Option<u64>)>,
}

/// The line that a worker prints.
#[derive(Deserialize)]
struct LongLine {
    allocator: String,
    #[serde(flatten)]
    seen: LongSample,
}

/// Runs a worker that goes on for minutes and reads its figures.
pub(crate) fn watch(worker: &Worker, settings: &Settings) -> Long {
    let mut command = Command::new(&worker.program);
    command
        .arg(NAME)
        .args(["--scale", &settings.scale.to_string()]);
    let run = Duration::from_secs_f64(MINUTE * settings.scale);
    let printed = printed(&mut command, settings.limit.saturating_add(run));
    let seen = printed.and_then(|printed| parse(&printed.out, worker.allocator.name));
    Long {
        measure: NAME,
        allocator: worker.allocator.name,
        profile: worker.profile.name(),
        failed: seen.as_ref().err().map(ToString::to_string),
        seen: seen.ok(),
    }
}

fn parse(printed: &str, allocator: &str) -> Result<LongSample, RunFault> {
    let line: LongLine = serde_json::from_str(printed.trim())
        .map_err(|error| RunFault::NoSample(error.to_string()))?;
    if line.allocator != allocator || line.seen.requests == 0 {
        let about = format!("{} requests on {}", line.seen.requests, line.allocator);
        return Err(RunFault::NoSample(about));
    }
    Ok(line.seen)
}

impl LongSample {
    /// Seconds, and resident over live bytes, once the store is full.
    fn ratios(&self) -> impl Iterator<Item = (f64, f64)> {
        let end = self.looks.last().map_or(0.0, |(seconds, ..)| *seconds);
        let looks = self.looks.iter();
        let full = looks.filter(move |(seconds, ..)| *seconds >= end * FILLING);
        full.filter_map(|&(seconds, live, rss)| Some((seconds, rss? as f64 / live as f64)))
    }

    /// The mean ratio from one part of the run to another.
    fn mean(&self, from: f64, to: f64) -> Option<f64> {
        let end = self.ratios().last()?.0;
        let within = self
            .ratios()
            .filter(|(seconds, _)| (end * from..=end * to).contains(seconds));
        let ratios: Vec<f64> = within.map(|(_, ratio)| ratio).collect();
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
    }

    fn cells(&self) -> Vec<String> {
        let most = self.ratios().map(|(_, ratio)| ratio).reduce(f64::max);
        vec![
            decimals(self.mean(0.0, 1.0), 3),
            decimals(self.mean(0.0, 0.5), 3),
            decimals(self.mean(0.5, 1.0), 3),
            decimals(most, 3),
            decimals(self.peak_rss_bytes.map(mebibytes), 0),
            self.requests.to_string(),
            self.sessions.to_string(),
        ]
    }
}

/// All figures as text, a table for each profile.
pub(crate) fn long_table(all: &[Long], width: usize) -> String {
    let mut text = String::new();
    for profile in in_order(all.iter().map(|long| long.profile)) {
        let heads = [
            "allocator",
            "mean",
            "1st half",
            "2nd half",
            "most",
            "peak MiB",
            "requests",
            "threads",
        ];
        let mut table = Table::new(heads);
        for long in all.iter().filter(|long| long.profile == profile) {
            let mut cells = vec![long.allocator.to_owned()];
            match &long.seen {
                Some(seen) => cells.extend(seen.cells()),
                None => cells.push("failed".to_owned()),
            }
            table.row(cells);
        }
        let title = format!("resident over live bytes of a server over minutes, profile {profile}");
        text.push_str(&table.titled(&title, width));
    }
    for long in all {
        if let Some(why) = &long.failed {
            let (allocator, profile) = (long.allocator, long.profile);
            text.push_str(&format!("failed: long on {allocator} ({profile}): {why}\n"));
        }
    }
    text
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 630.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 300.0;

/// Resident over live bytes over time as a picture, a curve for each allocator.
pub(crate) fn picture(all: &[Long]) -> String {
    let curves: Vec<(&str, Vec<(f64, f64)>)> = all
        .iter()
        .filter_map(|long| Some((long.allocator, long.seen.as_ref()?.ratios().collect())))
        .collect();
    let points = || curves.iter().flat_map(|(_, points)| points);
    let end = points().map(|(seconds, _)| *seconds).fold(1.0, f64::max);
    let most = points().map(|(_, ratio)| *ratio).fold(1.2, f64::max);
    let x = |seconds: f64| LEFT + (RIGHT - LEFT) * seconds / end;
    let y = |ratio: f64| BOTTOM - (BOTTOM - TOP) * (ratio - 1.0) / (most - 1.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#1d2127\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\">Memory held over memory in use, of a server</text>\n"
    );
    let step = if most > 2.0 { 0.5 } else { 0.1 };
    for tick in 0..=((most - 1.0) / step) as u32 {
        let ratio = 1.0 + step * f64::from(tick);
        let (at, label) = (y(ratio), y(ratio) + 4.0);
        svg.push_str(&format!(
            "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#e4e4e4\"/>\
             <text x=\"{:.0}\" y=\"{label:.1}\" text-anchor=\"end\">{ratio:.1}</text>\n",
            LEFT - 8.0
        ));
    }
    for tick in 0..=4 {
        let seconds = end * f64::from(tick) / 4.0;
        svg.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{seconds:.0} s</text>\n",
            x(seconds),
            BOTTOM + 20.0
        ));
    }
    for (number, (name, points)) in curves.iter().enumerate() {
        let colour = colour(number);
        let line: Vec<String> = points
            .iter()
            .map(|(seconds, ratio)| format!("{:.1},{:.1}", x(*seconds), y(*ratio)))
            .collect();
        let at = TOP + 20.0 * number as f64;
        svg.push_str(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <text x=\"{:.0}\" y=\"{at:.0}\" fill=\"{colour}\">{name}</text>\n",
            line.join(" "),
            RIGHT + 10.0
        ));
    }
    svg + "</svg>\n"
}
