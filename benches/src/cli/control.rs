//! `larder control`: changes one job's control file, and ends.

use std::path::PathBuf;
use std::time::SystemTime;
use std::{fs, io};

use clap::{Args, Subcommand};
use larder_control::{BusId, PerfControl};

use super::{Failure, complain};
use crate::share::alive::Alive;
use crate::share::files::{JobFiles, default_folder, find_named};
use crate::share::order::{Order, OrderError};
use crate::share::view::JobView;
use crate::units::parse_bytes;

/// Changes a job's control file: its limit, its share of the time.
#[derive(Debug, Args)]
pub(super) struct ControlArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Sets a limit, a share of the time, or both
    Set {
        #[command(flatten)]
        job: JobSelector,
        /// Bytes of device memory that the job may hold, such as 512MiB; 0 takes all
        #[arg(long, value_name = "N", value_parser = parse_limit, allow_hyphen_values = true)]
        limit: Option<u64>,
        /// Which GPU the limit is for, such as 00:1e.0; not needed where the job has one
        #[arg(long, value_name = "ID", requires = "limit")]
        gpu: Option<BusId>,
        /// The share of the time in percent, 0 to 100
        #[arg(long, value_name = "P", value_parser = parse_perf, allow_hyphen_values = true)]
        perf: Option<PerfControl>,
    },
    /// Suspends a job: a share of 0
    Pause(JobSelector),
    /// Gives a job all of the time: a share of 100
    Resume(JobSelector),
    /// Says that a job whose process was killed is gone: removes its files, so that its memory counts no
    /// more. Refused while the process is there
    Forget(JobSelector),
}

#[derive(Debug, Args)]
struct JobSelector {
    /// The job's name, or one of its two files
    #[arg(value_name = "JOB")]
    job: String,
    /// Where its files are; without it, `antman` in the temporary directory
    #[arg(long = "in", value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl JobSelector {
    /// A name in the folder, or a path by its ending.
    fn find(&self) -> Result<JobFiles, Failure> {
        let as_path = PathBuf::from(&self.job);
        if self.folder.is_none()
            && let Some(job) = JobFiles::of(&as_path)
        {
            if !job.status.exists() && !job.control.exists() {
                let error = format!("there is no {}", as_path.display());
                return Err(Failure::Arguments(error));
            }
            return Ok(job);
        }
        let folder = self.folder.clone().unwrap_or_else(default_folder);
        find_named(&folder, &self.job).map_err(|error| Failure::Arguments(error.to_string()))
    }
}

/// Reads a byte count as [`parse_bytes`] does, or 0.
pub(super) fn parse_limit(text: &str) -> Result<u64, String> {
    if text.trim() == "0" {
        return Ok(0);
    }
    parse_bytes(text).map_err(|error| error.to_string())
}

/// A share of the time in percent.
pub(super) fn parse_perf(text: &str) -> Result<PerfControl, String> {
    let percent: u64 = text
        .parse()
        .map_err(|_| format!("`{text}` is not a whole number from 0 to 100"))?;
    PerfControl::new(percent).map_err(|error| error.to_string())
}

/// Runs the command. Wrong arguments change nothing and end with 2.
pub(super) fn run(args: &ControlArgs) -> Result<(), Failure> {
    let share = |perf| Order {
        perf: Some(perf),
        ..Order::default()
    };
    let (job, order) = match &args.what {
        What::Set {
            job,
            limit,
            gpu,
            perf,
        } => {
            let order = Order {
                limit_bytes: *limit,
                gpu: *gpu,
                perf: *perf,
            };
            (job, order)
        }
        What::Pause(job) => (job, share(PerfControl::SUSPENDED)),
        What::Resume(job) => (job, share(PerfControl::FULL)),
        What::Forget(job) => return forget(&job.find()?),
    };
    match order.give(&job.find()?) {
        Ok(dropped) => {
            for value in dropped {
                complain(&format_args!("removed {value}"));
            }
            Ok(())
        }
        Err(OrderError::File(error)) => Err(Failure::Failed(error.to_string())),
        Err(error) => Err(Failure::Arguments(error.to_string())),
    }
}

fn forget(job: &JobFiles) -> Result<(), Failure> {
    let view = JobView::look(job, SystemTime::now());
    if view.alive == Alive::Yes {
        let pid = view.pid.unwrap_or(0);
        let error = format!("{} is there, process {pid}: end it first", job.name);
        return Err(Failure::Arguments(error));
    }
    for path in [&job.status, &job.control] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let error = format!("cannot remove {}: {error}", path.display());
                return Err(Failure::Failed(error));
            }
            _ => {}
        }
    }
    Ok(())
}
