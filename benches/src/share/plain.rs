//! The table of jobs: its columns, and how it looks as text.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use super::alive::Alive;
use super::view::{GpuView, JobView};

/// The headings of the columns; the first column is text, the others are aligned to the right.
pub const HEADINGS: [&str; 18] = [
    "job", "pid", "alive", "prio", "gpu", "used", "peak", "held", "stable", "limit", "target",
    "deferred", "host", "swap", "batch", "perf", "age", "problem",
];

/// One line of the table: a job on a GPU, or a job without any.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableLine {
    /// The index of the job in the jobs shown.
    pub job: usize,
    /// The index of the GPU in the job's GPUs.
    pub gpu: Option<usize>,
    /// The cells, one for each heading.
    pub cells: [String; HEADINGS.len()],
}

/// Lines for jobs, in their order.
#[must_use]
pub fn lines(jobs: &[JobView]) -> Vec<TableLine> {
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
    let memory = |get: fn(&GpuView) -> u64| of_gpu.map_or_else(none, |gpu| bytes(get(gpu)));
    let optional = |number: Option<u64>| number.map_or_else(none, bytes);
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
            match (view.alive, view.ended) {
                (_, true) => "ended",
                (Alive::Yes, _) => "yes",
                (Alive::No, _) => "dead",
                (Alive::Unknown, _) => "?",
            }
            .to_owned(),
            view.priority.map_or_else(none, |prio| prio.to_string()),
            of_gpu.map_or_else(none, |gpu| gpu.gpu.to_string()),
            memory(|gpu| gpu.device_live_bytes),
            memory(|gpu| gpu.device_peak_bytes),
            memory(|gpu| gpu.device_held_bytes),
            memory(|gpu| gpu.device_stable_bytes),
            optional(of_gpu.and_then(|gpu| gpu.limit_bytes)),
            optional(of_gpu.and_then(|gpu| gpu.target_limit_bytes)),
            optional(of_gpu.and_then(|gpu| gpu.deferred_bytes)),
            memory(|gpu| gpu.host_live_bytes),
            of_gpu.map_or("", |gpu| gpu.swap_reason).to_owned(),
            view.mini_batch_micros.map_or_else(none, micros),
            match other_target {
                Some(target) => format!("{perf}→{target}"),
                None => perf.to_string(),
            },
            view.age_ms
                .map_or_else(none, |ms| micros(ms.saturating_mul(1000))),
            view.problems.first().cloned().unwrap_or_default(),
        ],
    }
}

fn none() -> String {
    "-".to_owned()
}

/// A number of bytes with three digits at least, in the largest unit that leaves a whole number before the
/// point.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    if bytes >= u64::MAX / 2 {
        return "none".to_owned();
    }
    for (shift, unit) in UNITS {
        if bytes >> shift > 0 {
            let number = bytes as f64 / (1u64 << shift) as f64;
            let digits = if number >= 100.0 { 0 } else { 1 };
            return format!("{number:.digits$} {unit}");
        }
    }
    format!("{bytes} B")
}

/// A time as text, in the unit that suits it.
#[must_use]
pub fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        1_000_000..600_000_000 => format!("{:.1} s", micros as f64 / 1e6),
        _ => format!("{} min", micros / 60_000_000),
    }
}

/// A line under the headings, and no other.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::new('─', '─', '─', '─'));

/// The table as text, and below it what is wrong with whose files.
#[must_use]
pub fn table(jobs: &[JobView]) -> String {
    let mut table = Table::new();
    let columns = HEADINGS.len() - 1;
    table.load_style(STYLE).set_header(&HEADINGS[..columns]);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for line in lines(jobs) {
        table.add_row(&line.cells[..columns]);
    }
    let mut text = table.trim_fmt();
    for job in jobs {
        for problem in &job.problems {
            text.push_str(&format!("\n{}: {problem}", job.files.name));
        }
    }
    text
}
