//! The jobs as OpenMetrics text, which Prometheus reads.
//!
//! A job that has ended, or whose process is gone, has no samples, so it disappears from the next
//! answer.

use std::fmt::Write;

use larder_control::SleepState;

use crate::alive::Liveness;
use crate::view::{GpuView, JobView};

/// A gauge: its name after `larder_job_`, its help, and its value, which is `None` if the job does
/// not report it.
type Gauge<Of> = (&'static str, &'static str, fn(&Of) -> Option<f64>);

/// The gauges of a job on a GPU, named as the columns of `top`.
const OF_GPU: [Gauge<GpuView>; 8] = [
    ("used_bytes", "In blocks on the device.", |gpu| {
        Some(gpu.device_live_bytes as f64)
    }),
    ("peak_bytes", "At most in blocks on the device.", |gpu| {
        Some(gpu.device_peak_bytes as f64)
    }),
    ("held_bytes", "Held from the device.", |gpu| {
        Some(gpu.device_held_bytes as f64)
    }),
    (
        "stable_bytes",
        "Held in regions with a block in use.",
        |gpu| Some(gpu.device_stable_bytes as f64),
    ),
    ("limit_bytes", "The limit in force.", |gpu| {
        limit(gpu.limit_bytes)
    }),
    ("target_bytes", "The limit in the control file.", |gpu| {
        limit(gpu.target_limit_bytes)
    }),
    ("deferred_bytes", "Held above the limit.", |gpu| {
        Some(gpu.deferred_bytes? as f64)
    }),
    ("host_bytes", "In blocks on the host.", |gpu| {
        Some(gpu.host_live_bytes as f64)
    }),
];

/// The gauges of a job.
const OF_JOB: [Gauge<JobView>; 6] = [
    ("share_ratio", "Share of the time in force.", |job| {
        Some(f64::from(job.perf?) / 100.0)
    }),
    ("priority", "Higher is more important.", |job| {
        Some(job.priority? as f64)
    }),
    ("asleep", "1 if it sleeps.", |job| {
        Some(f64::from(job.sleep? == SleepState::Asleep))
    }),
    ("batch_seconds", "Time of a run.", |job| {
        Some(job.mini_batch_micros? as f64 / 1e6)
    }),
    ("age_seconds", "Since its status was written.", |job| {
        Some(job.age_ms? as f64 / 1e3)
    }),
    (
        "problems",
        "How many things are wrong with its files.",
        |job| Some(job.problems.len() as f64),
    ),
];

/// Returns a limit; a limit out of reach is `None`.
fn limit(bytes: Option<u64>) -> Option<f64> {
    let bytes = bytes.filter(|bytes| *bytes < u64::MAX / 2)?;
    Some(bytes as f64)
}

/// Formats the figures of the jobs that are alive, or may be.
pub(crate) fn open_metrics(jobs: &[JobView]) -> String {
    let lives = |job: &&JobView| !job.ended && job.alive != Liveness::No;
    let jobs: Vec<&JobView> = jobs.iter().filter(lives).collect();
    let mut text = String::new();
    for (name, help, number) in OF_GPU {
        let on_gpus = jobs
            .iter()
            .flat_map(|job| job.gpus.iter().map(move |gpu| (job, gpu)));
        let samples = on_gpus.filter_map(|(job, gpu)| {
            let labels = format!("{},device=\"{}\"", labels(job), gpu.gpu);
            Some((labels, number(gpu)?))
        });
        family(&mut text, name, help, samples);
    }
    for (name, help, number) in OF_JOB {
        let samples = jobs
            .iter()
            .filter_map(|job| Some((labels(job), number(job)?)));
        family(&mut text, name, help, samples);
    }
    text.push_str("# EOF\n");
    text
}

/// Returns the labels that identify a job. Jobs in different folders may have the same name.
fn labels(job: &JobView) -> String {
    let folder = job.files.status.parent().unwrap_or(&job.files.status);
    let folder = escaped(&folder.to_string_lossy());
    let pid = job.pid.map_or_else(String::new, |pid| pid.to_string());
    format!(
        "job=\"{}\",pid=\"{pid}\",folder=\"{folder}\"",
        escaped(&job.files.name)
    )
}

fn family(text: &mut String, name: &str, help: &str, samples: impl Iterator<Item = (String, f64)>) {
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "# TYPE larder_job_{name} gauge\n# HELP larder_job_{name} {help}"
    );
    for (labels, number) in samples {
        let _ = writeln!(text, "larder_job_{name}{{{labels}}} {number}");
    }
}

/// Escapes a label: names come from file names and may contain any character.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
