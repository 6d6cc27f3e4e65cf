//! Comparison of samples: medians, ratios to the best, geometric means.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::allocators;
use super::frames::Frames;
use super::process::{RunFault, Sample};
use super::rounds::Runs;
use super::workers::Profile;
use super::workloads::{self, Kind, Workload};
use crate::numbers::{geometric_mean, in_order, median};

/// A name from one of the lists. Parsing looks it up there.
pub(crate) type Name = &'static str;

/// The result of one allocator on one workload: one line of JSON and one cell of each table. Figures are medians over
/// the rounds. They are `None` if the allocator failed, or if the operating system or the workload does not report
/// them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct VersusRow {
    #[serde(deserialize_with = "workload_name")]
    pub(crate) workload: Name,
    #[serde(deserialize_with = "allocator_name")]
    pub(crate) allocator: Name,
    #[serde(deserialize_with = "profile_name")]
    pub(crate) profile: Name,
    /// Number of threads that use the allocator concurrently.
    pub(crate) threads: u32,
    /// Number of runs that count.
    pub(crate) rounds: usize,
    pub(crate) seconds: Option<f64>,
    pub(crate) seconds_min: Option<f64>,
    pub(crate) seconds_max: Option<f64>,
    /// Difference between the slowest and the fastest time, over the median.
    pub(crate) spread: Option<f64>,
    /// Operations of one run.
    pub(crate) operations: Option<u64>,
    pub(crate) ns_per_operation: Option<f64>,
    /// Minor page faults.
    pub(crate) faults_per_operation: Option<f64>,
    pub(crate) peak_rss_bytes: Option<u64>,
    pub(crate) peak_rss_min_bytes: Option<u64>,
    pub(crate) peak_rss_max_bytes: Option<u64>,
    /// Resident bytes after everything has been freed.
    pub(crate) end_rss_bytes: Option<u64>,
    /// Live bytes at the time when the workload measures its memory; the workload's entry in the list says when that
    /// is.
    pub(crate) live_bytes: Option<u64>,
    /// Resident bytes at that time over the live bytes.
    pub(crate) rss_over_live: Option<f64>,
    /// Times of single frames.
    pub(crate) frames: Option<Frames>,
    /// Ratios to the best row of the workload and profile, for the time, the peak and the end.
    pub(crate) ratio_to_best: Option<f64>,
    pub(crate) peak_rss_ratio_to_best: Option<f64>,
    pub(crate) end_rss_ratio_to_best: Option<f64>,
    /// The workload's checksum, which is the same for every allocator that works.
    pub(crate) answer: Option<u64>,
    /// The reason for missing figures; absent from the JSON if the row has figures.
    pub(crate) failed: Option<String>,
    /// The reason for which the system did not allow the run; absent from the JSON if the system did.
    pub(crate) skipped: Option<String>,
}

impl VersusRow {
    /// Returns whether the row's workload times single frames. The time and memory of such rows are not compared.
    pub(crate) fn is_of_frames(&self) -> bool {
        self.is_of(Kind::Frames)
    }

    /// Returns whether the row enters the means.
    pub(super) fn is_of_means(&self) -> bool {
        !self.is_of(Kind::Frames) && !self.is_of(Kind::Memory)
    }

    fn is_of(&self, kind: Kind) -> bool {
        workloads::find(self.workload).is_some_and(|workload| workload.kind == kind)
    }
}

/// Parses a name, which must be in the list.
fn name<'a, D: Deserializer<'a>>(
    input: D,
    what: &str,
    known: fn(&str) -> Option<&'static str>,
) -> Result<&'static str, D::Error> {
    let name = String::deserialize(input)?;
    known(&name).ok_or_else(|| D::Error::custom(format!("no {what} is called `{name}`")))
}

fn workload_name<'a, D: Deserializer<'a>>(input: D) -> Result<&'static str, D::Error> {
    name(input, "workload", |name| Some(workloads::find(name)?.name))
}

fn allocator_name<'a, D: Deserializer<'a>>(input: D) -> Result<&'static str, D::Error> {
    name(input, "allocator", |name| {
        Some(allocators::find(name)?.name)
    })
}

fn profile_name<'a, D: Deserializer<'a>>(input: D) -> Result<&'static str, D::Error> {
    name(input, "profile", |name| {
        let known = [Profile::Fat.name(), Profile::Plain.name()];
        known.into_iter().find(|known| *known == name)
    })
}

/// Geometric means of one allocator's ratios to the best.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VersusMean {
    pub(crate) allocator: &'static str,
    /// Whether the mean is over the workloads with one thread; otherwise it is over the others.
    pub(crate) one_thread: bool,
    pub(crate) time: Option<f64>,
    pub(crate) peak_rss: Option<f64>,
    pub(crate) end_rss: Option<f64>,
    /// The number of workloads in the mean.
    pub(crate) workloads: usize,
    pub(crate) of: usize,
}

/// Returns the rows of one workload, in the order of the runs.
pub(crate) fn rows(workload: &Workload, all: &[Runs]) -> Vec<VersusRow> {
    let mut rows: Vec<VersusRow> = all.iter().map(|runs| row(workload, runs)).collect();
    if workload.kind == Kind::Frames {
        return rows;
    }
    for profile in in_order(rows.iter().map(|row| row.profile)) {
        let same: Vec<&mut VersusRow> = rows
            .iter_mut()
            .filter(|row| row.profile == profile)
            .collect();
        add_ratios(same);
    }
    rows
}

fn row(workload: &Workload, runs: &Runs) -> VersusRow {
    // If a worker has failed once, none of its figures count.
    let samples: &[Sample] = match runs.fault {
        Some(_) => &[],
        None => &runs.samples,
    };
    // A time that is fixed beforehand is not a figure.
    let timed = match workload.kind {
        Kind::Memory => &[],
        _ => samples,
    };
    let seconds = || timed.iter().map(|sample| sample.seconds);
    let middle = median(seconds().collect());
    let min = seconds().reduce(f64::min);
    let max = seconds().reduce(f64::max);
    let bytes = |figure: fn(&Sample) -> Option<u64>| {
        let figures = samples.iter().filter_map(figure);
        median(figures.map(|bytes| bytes as f64).collect()).map(|bytes| bytes as u64)
    };
    let peaks = || samples.iter().filter_map(|sample| sample.peak_rss_bytes);
    let first = samples.first();
    let skipped = match &runs.fault {
        Some(RunFault::Skipped(why)) => Some(why.clone()),
        _ => None,
    };
    let fault = runs.fault.as_ref().filter(|_| skipped.is_none());
    VersusRow {
        workload: workload.name,
        allocator: runs.allocator,
        profile: runs.profile.name(),
        threads: workload.threads,
        rounds: samples.len(),
        seconds: middle,
        seconds_min: min,
        seconds_max: max,
        spread: ratio(max.zip(min).map(|(max, min)| max - min), middle),
        operations: first.map(|sample| sample.operations),
        ns_per_operation: ratio(middle, first.map(|sample| sample.operations as f64 / 1e9)),
        faults_per_operation: median(samples.iter().filter_map(faults).collect()),
        peak_rss_bytes: bytes(|sample| sample.peak_rss_bytes),
        peak_rss_min_bytes: peaks().min(),
        peak_rss_max_bytes: peaks().max(),
        end_rss_bytes: bytes(|sample| sample.end_rss_bytes),
        live_bytes: first.and_then(|sample| sample.live_bytes),
        rss_over_live: median(samples.iter().filter_map(rss_over_live).collect()),
        frames: Frames::of(samples),
        ratio_to_best: None,
        peak_rss_ratio_to_best: None,
        end_rss_ratio_to_best: None,
        answer: first.map(|sample| sample.answer),
        failed: fault.map(ToString::to_string),
        skipped,
    }
}

fn faults(sample: &Sample) -> Option<f64> {
    Some(sample.faults? as f64 / sample.operations as f64)
}

fn rss_over_live(sample: &Sample) -> Option<f64> {
    let (rss, live) = sample.live_rss_bytes.zip(sample.live_bytes)?;
    (live > 0).then(|| rss as f64 / live as f64)
}

/// Sets the ratios to the best of these rows, which are comparable.
fn add_ratios(mut rows: Vec<&mut VersusRow>) {
    let best = |figure: fn(&VersusRow) -> Option<f64>| {
        let figures = rows.iter().filter_map(|row| figure(row));
        figures.reduce(f64::min)
    };
    let (time, peak, end) = (best(|row| row.seconds), best(peak_rss), best(end_rss));
    for row in &mut rows {
        row.ratio_to_best = ratio(row.seconds, time);
        row.peak_rss_ratio_to_best = ratio(peak_rss(row), peak);
        row.end_rss_ratio_to_best = ratio(end_rss(row), end);
    }
}

fn peak_rss(row: &VersusRow) -> Option<f64> {
    row.peak_rss_bytes.map(|bytes| bytes as f64)
}

fn end_rss(row: &VersusRow) -> Option<f64> {
    row.end_rss_bytes.map(|bytes| bytes as f64)
}

fn ratio(figure: Option<f64>, to: Option<f64>) -> Option<f64> {
    let (figure, to) = figure.zip(to)?;
    (to > 0.0).then(|| figure / to)
}

/// Returns the means of one profile: first those over the workloads with one thread, then those over the others, each
/// in the order of the allocators' first rows. Workloads of frames and of memory are excluded.
pub(crate) fn means(rows: &[VersusRow], profile: &str) -> Vec<VersusMean> {
    let mut means = Vec::new();
    for one_thread in [true, false] {
        let counted = || {
            let of_profile = rows.iter().filter(|row| row.profile == profile);
            of_profile.filter(|row| (row.threads == 1) == one_thread && row.is_of_means())
        };
        for allocator in in_order(counted().map(|row| row.allocator)) {
            let of: Vec<&VersusRow> = counted().filter(|row| row.allocator == allocator).collect();
            let over = |figure: fn(&VersusRow) -> Option<f64>| {
                geometric_mean(of.iter().filter_map(|row| figure(row)))
            };
            means.push(VersusMean {
                allocator,
                one_thread,
                time: over(|row| row.ratio_to_best),
                peak_rss: over(|row| row.peak_rss_ratio_to_best),
                end_rss: over(|row| row.end_rss_ratio_to_best),
                workloads: of.iter().filter(|row| row.failed.is_none()).count(),
                of: of.len(),
            });
        }
    }
    means
}
