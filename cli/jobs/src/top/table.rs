//! The table of jobs: its columns, and its text.

use larder_control::SleepState;

use crate::alive::Liveness;
use crate::arguments::{show_bytes, show_micros};
use crate::layout::{Column, lay_out, wrapped};
use crate::view::{GpuView, JobView};
use crate::visible::visible;

/// The headings of the columns; the first column is text, the others are aligned to the right.
pub(crate) const HEADINGS: [&str; 16] = [
    "job", "pid", "state", "prio", "gpu", "used", "peak", "held", "stable", "limit", "target",
    "deferred", "host", "batch", "perf", "age",
];

/// One line of the table: a job on a GPU, or a job without a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TableLine {
    /// Index of the job among the jobs shown.
    pub(super) job: usize,
    /// Index of the GPU among the job's GPUs.
    pub(super) gpu: Option<usize>,
    pub(super) cells: [String; HEADINGS.len()],
}

/// Returns the lines of the jobs, in the order of the jobs.
pub(crate) fn lines(jobs: &[JobView]) -> Vec<TableLine> {
    let mut lines = Vec::new();
    for (job, view) in jobs.iter().enumerate() {
        if view.gpus.is_empty() {
            lines.push(line(job, view, None));
        }
        for gpu in 0..view.gpus.len() {
            lines.push(line(job, view, Some(gpu)));
        }
    }
    lines
}

fn line(job: usize, view: &JobView, gpu: Option<usize>) -> TableLine {
    let of_gpu = gpu.and_then(|gpu| view.gpus.get(gpu));
    let memory = |get: fn(&GpuView) -> u64| of_gpu.map_or_else(none, |gpu| show_bytes(get(gpu)));
    // Memory last held by a job that has ended is free for the others.
    let now = |get: fn(&GpuView) -> u64| match view.ended {
        true => none(),
        false => memory(get),
    };
    let optional = |number: Option<u64>| number.map_or_else(none, show_bytes);
    let perf = view.shown_perf();
    let other_target = view.target_perf.filter(|target| *target != perf);
    let first = gpu.unwrap_or(0) == 0;
    TableLine {
        job,
        gpu,
        cells: [
            if first {
                view.files.name.clone()
            } else {
                String::new()
            },
            view.pid.map_or_else(none, |pid| pid.to_string()),
            state(view, of_gpu).to_owned(),
            view.priority.map_or_else(none, |prio| prio.to_string()),
            of_gpu.map_or_else(none, |gpu| gpu.gpu.to_string()),
            now(|gpu| gpu.device_live_bytes),
            memory(|gpu| gpu.device_peak_bytes),
            now(|gpu| gpu.device_held_bytes),
            now(|gpu| gpu.device_stable_bytes),
            optional(of_gpu.and_then(|gpu| gpu.limit_bytes)),
            optional(of_gpu.and_then(|gpu| gpu.target_limit_bytes)),
            optional(of_gpu.and_then(|gpu| gpu.deferred_bytes)),
            now(|gpu| gpu.host_live_bytes),
            view.mini_batch_micros.map_or_else(none, show_micros),
            match other_target {
                Some(target) => format!("{perf}→{target}"),
                None => perf.to_string(),
            },
            view.age_ms
                .map_or_else(none, |ms| show_micros(ms.saturating_mul(1000))),
        ]
        .map(|cell| visible(&cell)),
    }
}

/// Describes what a job does, on a GPU if it has one, by the first of these that applies.
fn state(view: &JobView, of_gpu: Option<&GpuView>) -> &'static str {
    let is = |so: fn(&GpuView) -> bool| of_gpu.is_some_and(so);
    match (view.alive, view.sleep) {
        _ if view.ended => "ended",
        (Liveness::No, _) => "dead",
        (_, Some(SleepState::Asleep)) => "asleep",
        (_, Some(SleepState::Waking)) => "waking",
        _ if view.shown_perf() == 0 => "paused",
        _ if is(|gpu| gpu.deferred_bytes > Some(0)) => "limit lowered",
        _ if is(|gpu| gpu.host_live_bytes > 0) => "blocks on the host",
        _ if is(|gpu| gpu.limit_bytes == Some(0)) => "waits for memory",
        (Liveness::Yes, _) => "runs",
        (Liveness::Unknown, _) => "unknown",
    }
}

fn none() -> String {
    "-".to_owned()
}

/// The columns that `--once` prints by default.
const USUAL: [&str; 7] = ["state", "gpu", "used", "held", "limit", "target", "perf"];

/// Formats the first column and the `named` ones, or with `all` every column, as text of `width`,
/// and below it the problems of the files. An error names the existing columns.
pub(crate) fn table(
    jobs: &[JobView],
    named: &[String],
    all: bool,
    width: usize,
) -> Result<String, String> {
    let known = &HEADINGS[1..];
    if let Some(wrong) = named.iter().find(|name| !known.contains(&name.as_str())) {
        let known = known.join(",");
        return Err(format!(
            "there is no column `{wrong}`; give some of: {known}"
        ));
    }
    let lines = lines(jobs);
    let shown = |heading: &str| {
        all || match named {
            [] => USUAL.contains(&heading),
            named => named.iter().any(|name| name == heading),
        }
    };
    let columns = (0..).zip(HEADINGS);
    let columns = columns.filter(|(at, heading)| *at == 0 || shown(heading));
    let columns = columns.map(|(at, heading)| Column {
        heading: heading.to_owned(),
        right: at > 0,
        cells: lines.iter().map(|line| line.cells[at].clone()).collect(),
    });
    let columns: Vec<Column> = columns.collect();
    let text = lay_out(&columns, None, width) + &problems(jobs);
    Ok(wrapped(&text, width))
}

/// Lists the problems of the jobs' files, one per line.
pub(super) fn problems<'a>(jobs: impl IntoIterator<Item = &'a JobView>) -> String {
    let mut text = String::new();
    for job in jobs {
        for problem in &job.problems {
            let problem = format!("{}: {problem}", job.files.name);
            text.push_str(&format!("{}\n", visible(&problem)));
        }
    }
    text
}
