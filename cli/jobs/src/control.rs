//! `larder control`: changes one job's control file.

use std::path::PathBuf;
use std::time::SystemTime;
use std::{fs, io};

use clap::{Args, Subcommand};
use larder_control::{BusId, FileLock, Life, PerfControl, Sharing};

use crate::alive::{Liveness, alive};
use crate::coordinate::running_coordinator;
use crate::files::{JobPaths, default_folder, find_named};
use crate::order::{self, ControlChange};
use crate::view::{JobView, read_status};
use crate::{Failure, complain, note};

/// Changes a job's control file: its limit, its share of the time, its sleep.
#[derive(Debug, Args)]
pub struct ControlArgs {
    #[command(subcommand)]
    change: ControlAction,
}

#[derive(Debug, Subcommand)]
enum ControlAction {
    /// Sets a limit, a share of the time, or both
    Set {
        #[command(flatten)]
        job: JobSelector,
        #[command(flatten)]
        order: ControlChange,
    },
    /// Suspends a job: a share of 0
    Pause(JobSelector),
    /// Gives a job all of the time: a share of 100
    Resume(JobSelector),
    /// Puts a job to sleep: at the end of its run it copies its GPU memory to the host, releases
    /// all of it, and stops
    Sleep(JobSelector),
    /// Wakes a job, as soon as its GPUs have the memory that it needs
    Wake(JobSelector),
    /// Removes the files of a job whose process was killed, so that its memory no longer counts.
    /// Refused while the process exists
    Forget(JobSelector),
}

#[derive(Debug, Args)]
struct JobSelector {
    /// The job's name, or one of its two files
    #[arg(value_name = "JOB")]
    job: PathBuf,
    /// Where its files are; without it, `antman` in the temporary directory
    #[arg(long = "in", value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl JobSelector {
    /// Finds the job: by its name in the folder, or by the path of one of its files.
    fn find(&self) -> Result<JobPaths, Failure> {
        // A job's name is always UTF-8, but its folder's may not be.
        let name = self.job.to_string_lossy();
        if let Some(folder) = &self.folder {
            return Ok(find_named(folder, &name)?);
        }
        match JobPaths::of(&self.job) {
            Some(job) if job.status.exists() || job.control.exists() => Ok(job),
            Some(_) => Err(Failure::Arguments(format!("there is no {name}"))),
            None => Ok(find_named(&default_folder(), &name)?),
        }
    }
}

/// Runs the command. With wrong arguments, it changes nothing and the exit code is 2.
pub(crate) fn run(args: &ControlArgs) -> Result<(), Failure> {
    let (job, order) = match &args.change {
        ControlAction::Set { job, order } => (job, *order),
        ControlAction::Pause(job) => (job, ControlChange::share(PerfControl::SUSPENDED)),
        ControlAction::Resume(job) => (job, ControlChange::share(PerfControl::FULL)),
        ControlAction::Sleep(job) => (job, ControlChange::asleep(true)),
        ControlAction::Wake(job) => (job, ControlChange::asleep(false)),
        ControlAction::Forget(job) => return forget(&job.find()?),
    };
    let files = job.find()?;
    for value in order.give(&files)? {
        complain(&format_args!("removed {value}"));
    }
    if order.limit_bytes.is_some() {
        warn_of_coordinator(&files, order.gpu);
    }
    Ok(())
}

/// Says that a limit will not last, if a coordinator sets the limits of the job.
fn warn_of_coordinator(job: &JobPaths, gpu: Option<BusId>) {
    let view = JobView::look(job, SystemTime::now());
    // Coordinators ignore a job that does not confirm limits.
    if view.gpus.iter().all(|gpu| gpu.limit_bytes.is_none()) {
        return;
    }
    let gpu = gpu.or_else(|| view.gpus.first().map(|gpu| gpu.gpu));
    if let Some(taken) = running_coordinator(&job.control, gpu) {
        note(&format_args!(
            "{}: this limit will not last, because a coordinator sets the limits in this folder (its lock: {}); to set \
             your own, end the coordinator first (the jobs keep their limits), or run the job in another folder and \
             lower `coordinate --total` by its limit",
            job.name, taken.source
        ));
    }
}

/// Removes the files of a job whose process is gone. The job's names are locked during the removal,
/// so that no process starts under them.
fn forget(job: &JobPaths) -> Result<(), Failure> {
    let mut locks = Vec::new();
    for path in [&job.status, &job.control] {
        match FileLock::take(path, Sharing::Nobody) {
            Err(error) if error.source.kind() == io::ErrorKind::WouldBlock => {
                return Err(Failure::Arguments(format!("{error}; end it first")));
            }
            // If the lock file was left by another user, it is not locked.
            lock => locks.push(lock),
        }
    }
    let view = JobView::look(job, SystemTime::now());
    // The status may be gone while the job still runs.
    let said = read_status(&job.status).ok().flatten();
    let ordered = order::read(job, said.and_then(|(_, user)| user)).ok();
    let ordered = ordered.and_then(|(file, _)| file.life);
    let pids = [
        (view.alive == Liveness::Yes).then_some(view.pid.unwrap_or(0)),
        ordered
            .filter(|life| alive(None, Some(*life)) == Liveness::Yes)
            .map(Life::pid),
    ];
    if let Some(pid) = pids.into_iter().flatten().next() {
        let error = format!("{} still runs as process {pid}: end it first", job.name);
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
