//! The process as a job. It joins if the environment names a control file or a status file.
//!
//! A coordinator promises memory to jobs that begin with none, so a process with a control file begins with a
//! limit of 0, or of `LARDER_CUDA_LIMIT`. Python programs cannot wait until they may have memory, so an
//! allocation waits for them: as long as the limit, and not the device, is the reason for the refusal, and
//! the job's [`Patience`] lasts.

use std::env;
use std::ffi::c_int;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use larder_core::{AllocError, ByteCount};
use larder_cuda::job::{Apply, Job, JobConfig, JobFiles, LaunchPacer, larder_control::Ceiling};
use larder_cuda::{DeviceAllocError, DeviceAllocator};

use crate::device::DeviceState;
use crate::outcome::{Refusal, not_obeyed, status};

/// Maximum time that an allocation waits for a higher limit if `LARDER_CUDA_PATIENCE` is not set.
const PATIENCE: Duration = Duration::from_secs(30);

/// Smallest unit of a device's memory. Rounding may add up to this much, and a limit below it allows nothing.
pub(crate) const PAGE_BYTES: u64 = 2 << 20;

/// Time between two polls.
const LOOK: Duration = Duration::from_millis(2);

/// Outcome of joining; `Ok(None)` if the environment names no file.
static JOINED: OnceLock<Result<Option<Joined>, String>> = OnceLock::new();

/// The process as a job.
pub(crate) struct Joined {
    /// The job, which is taken out when the process ends.
    job: RwLock<Option<Arc<Job>>>,
    /// The process that joined. Its children are not part of the job.
    process: u32,
    pacer: LaunchPacer,
    patience: Duration,
    /// Whether the environment sets the patience.
    is_patient: bool,
    listens: bool,
}

/// Returns the job; `None` before the process joins, or if the process is not a job.
pub(crate) fn job() -> Option<Arc<Job>> {
    has_joined()?.job()
}

/// Returns the outcome of joining, without trying to join.
fn has_joined() -> Option<&'static Joined> {
    JOINED.get()?.as_ref().ok()?.as_ref()
}

/// Joins if that has not been tried yet. Returns the outcome.
pub(crate) fn joined() -> Result<Option<&'static Joined>, Refusal> {
    match JOINED.get_or_init(join) {
        Ok(joined) => Ok(joined.as_ref()),
        Err(words) => Err(Refusal::Start(words.clone())),
    }
}

fn join() -> Result<Option<Joined>, String> {
    let files = JobFiles::from_env();
    let listens = files.control.is_some();
    if !listens && files.status.is_none() {
        return Ok(None);
    }
    let patience = number("LARDER_CUDA_PATIENCE")?;
    let priority = number("LARDER_CUDA_PRIORITY")?.and_then(|number| i64::try_from(number).ok());
    let file = files.status.as_ref().or(files.control.as_ref());
    let file = file.and_then(|file| file.file_name()?.to_str());
    let name = file.map_or("cuda", |file| file.split('.').next().unwrap_or(file));
    let job = Job::new(JobConfig {
        priority,
        // The initial limit is not a ceiling.
        ceiling: Ceiling::None,
        // An allocation that waits for a higher limit does so inside a step.
        apply: Apply::AtOnce,
        ..JobConfig::new(name, files.clone())
    });
    let job = job.map_err(|error| not_obeyed(&error))?;
    // SAFETY: `end` takes no arguments, as `atexit` requires, and is code of this library, which stays loaded
    // until the process ends.
    let registered = unsafe { libc::atexit(end) };
    debug_assert_eq!(registered, 0, "there is room for at least 32");
    Ok(Some(Joined {
        pacer: job.pacer(),
        job: RwLock::new(Some(Arc::new(job))),
        process: std::process::id(),
        is_patient: patience.is_some(),
        patience: patience.map_or(PATIENCE, Duration::from_secs),
        listens,
    }))
}

/// Returns the limit before the first order of the control file.
pub(crate) fn first_limit_bytes() -> Result<u64, Refusal> {
    let listens = JobFiles::from_env().control.is_some();
    let otherwise = if listens { 0 } else { u64::MAX };
    let wanted = "a size of at least 2 MiB, such as 1.5GiB, or to 0 for nothing";
    let said = variable("LARDER_CUDA_LIMIT", wanted, |text| {
        let bytes = ByteCount::parse(text)?.0;
        holds_a_page(bytes).then_some(bytes)
    });
    let said = said.map_err(Refusal::Start)?;
    Ok(said.unwrap_or(otherwise))
}

/// Returns whether a limit is 0 or holds at least one page; a smaller limit is probably missing its unit.
pub(crate) const fn holds_a_page(limit_bytes: u64) -> bool {
    limit_bytes == 0 || limit_bytes >= PAGE_BYTES
}

/// Ends the job at the process's end, and reports the end in the status.
extern "C" fn end() {
    let Some(joined) = has_joined().filter(|joined| joined.process == std::process::id()) else {
        return;
    };
    let job = joined
        .job
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let Some(mut job) = job else { return };
    // Delayed threads continue and drop their clones.
    job.cancel();
    for _ in 0..100 {
        match Arc::try_unwrap(job) {
            Ok(last) => return drop(last),
            Err(held) => job = held,
        }
        thread::sleep(LOOK);
    }
}

fn number(name: &str) -> Result<Option<u64>, String> {
    variable(name, "a whole number", |text| text.trim().parse().ok())
}

/// Reads an environment variable. Returns `None` if it is unset or empty.
pub(crate) fn variable(
    name: &str,
    what: &str,
    parse: fn(&str) -> Option<u64>,
) -> Result<Option<u64>, String> {
    let Some(text) = env::var_os(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let parsed = text.to_str().and_then(parse);
    let wrong = || format!("{name} is {text:?}: set it to {what}");
    parsed.ok_or_else(wrong).map(Some)
}

impl Joined {
    fn job(&self) -> Option<Arc<Job>> {
        self.job
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sets the job's limit for this allocator.
    pub(crate) fn manage(&self, memory: &DeviceAllocator) -> Result<(), Refusal> {
        match self.job() {
            Some(job) => Ok(job.manage(memory)?),
            None => Ok(()),
        }
    }
}

/// Returns whether launches are delayed. Joins the job if that has not been tried yet and `may_join` allows
/// it.
pub(crate) fn is_paced(may_join: impl FnOnce() -> bool) -> bool {
    let joined = match JOINED.get() {
        Some(joined) => joined,
        None if may_join() => JOINED.get_or_init(join),
        None => return false,
    };
    matches!(joined, Ok(Some(joined)) if joined.pacer.holds_back())
}

/// Pauses after launches that kept the device busy for `took`.
pub(crate) fn end_slice(took: Duration) {
    if let Some(job) = job() {
        // Failing to record a run does not change the pause.
        let _ = job.end_run(0, took);
    }
}

/// Waits here if the job is suspended.
pub(crate) fn before_launch() {
    if let Some(joined) = has_joined() {
        joined.pacer.launch();
    }
}

/// Returns whether the environment sets how long allocations wait for the job's limit.
pub(crate) fn is_patient() -> bool {
    has_joined().is_some_and(|joined| joined.is_patient)
}

/// Waits briefly for a sleeping job to wake. Returns false if there is no job that could wake.
pub(crate) fn waits_for_waking() -> bool {
    thread::sleep(LOOK);
    job().is_some()
}

/// The time for which one allocation has waited for the job's limit.
#[derive(Default)]
pub(crate) struct Patience {
    began: Option<Instant>,
}

impl Patience {
    /// Waits briefly if a higher limit could serve the refused request. Returns false if a retry is useless.
    pub(crate) fn waits_for(
        &mut self,
        device: &DeviceState,
        error: &DeviceAllocError,
        bytes: u64,
    ) -> bool {
        let own = device.limits.process().usage().config.hard_bytes;
        // The limit at the time of the refusal, which may have risen since.
        let (of_job, held) = match error {
            DeviceAllocError::Memory {
                reason: AllocError::OutOfMemory(out),
                ..
            } => (out.limit_bytes, out.reserved_bytes),
            _ => {
                let held = device.memory.stats().reserved_bytes;
                (device.memory.limit_bytes(), held)
            }
        };
        let wanted = held.saturating_add(bytes.saturating_add(PAGE_BYTES));
        of_job < own && wanted > of_job && self.waits()
    }

    /// Waits briefly for a higher limit. Returns false if there is no job whose limit could rise, or if the
    /// allocation has waited long enough.
    pub(crate) fn waits(&mut self) -> bool {
        let Some(joined) = has_joined().filter(|joined| joined.listens) else {
            return false;
        };
        let began = *self.began.get_or_insert_with(Instant::now);
        if began.elapsed() >= joined.patience {
            return false;
        }
        // The status shows the coordinator that the job is short of memory.
        if let Some(job) = joined.job() {
            job.poll();
        }
        thread::sleep(LOOK);
        true
    }

    pub(crate) const fn has_waited(&self) -> bool {
        self.began.is_some()
    }
}

/// Sets the memory of each device that the job would like to hold.
// SAFETY: no other function of the process has this name, which begins with the library's own.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_want(bytes: u64) -> c_int {
    status(|| {
        joined()?;
        if let Some(job) = job() {
            job.want(bytes);
        }
        Ok(())
    })
}
