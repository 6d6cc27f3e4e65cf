//! The process as a job: joined where the environment names a control file or a status file.
//!
//! A coordinator promises memory to jobs that begin with none, so a process with a control file
//! begins with a limit of 0, or of `LARDER_CUDA_LIMIT`. Programs of Python cannot wait until they
//! may have memory, so an allocation waits for them: as long as the limit, and not the device,
//! refuses, and the job's [`Patience`] lasts.

use std::env;
use std::ffi::c_int;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use larder_core::{AllocError, ByteCount};
use larder_cuda::job::{Apply, Job, JobConfig, JobFiles, LaunchPacer, larder_control::Ceiling};
use larder_cuda::{DeviceAllocError, DeviceAllocator};

use crate::device::Device;
use crate::outcome::{Refused, not_obeyed, status};

/// How long an allocation waits for a higher limit, unless `LARDER_CUDA_PATIENCE` says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a device gives at least: rounding may take so much more, and a limit below it gives
/// nothing.
pub(crate) const PAGE_BYTES: u64 = 2 << 20;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(2);

/// What came of joining; none if the environment names no file.
static JOINED: OnceLock<Result<Option<Joined>, String>> = OnceLock::new();

/// The process as a job.
pub(crate) struct Joined {
    /// Taken when the process ends.
    job: RwLock<Option<Arc<Job>>>,
    /// The process that joined. A child of it is no job.
    process: u32,
    pacer: LaunchPacer,
    patience: Duration,
    /// The environment says how long to wait.
    is_patient: bool,
    listens: bool,
}

/// The job; none before the process joins, or if it is no job.
pub(crate) fn job() -> Option<Arc<Job>> {
    has_joined()?.job()
}

/// What was joined, without trying to.
fn has_joined() -> Option<&'static Joined> {
    JOINED.get()?.as_ref().ok()?.as_ref()
}

/// Joins if that was not tried yet. Returns what came of it.
pub(crate) fn joined() -> Result<Option<&'static Joined>, Refused> {
    match JOINED.get_or_init(join) {
        Ok(joined) => Ok(joined.as_ref()),
        Err(words) => Err(Refused::Start(words.clone())),
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
        // It begins with a limit that is no ceiling.
        ceiling: Ceiling::None,
        // An allocation that waits for a higher limit is inside of a step.
        apply: Apply::AtOnce,
        ..JobConfig::new(name, files.clone())
    });
    let job = job.map_err(|error| not_obeyed(&error))?;
    // SAFETY: `end` takes nothing, as `atexit` asks, and is code of this library, which is there
    // until the process ends.
    let registered = unsafe { libc::atexit(end) };
    debug_assert_eq!(registered, 0, "there is room for 32 at least");
    Ok(Some(Joined {
        pacer: job.pacer(),
        job: RwLock::new(Some(Arc::new(job))),
        process: std::process::id(),
        is_patient: patience.is_some(),
        patience: patience.map_or(PATIENCE, Duration::from_secs),
        listens,
    }))
}

/// What may be held before the control file says something.
pub(crate) fn first_limit_bytes() -> Result<u64, Refused> {
    let listens = JobFiles::from_env().control.is_some();
    let otherwise = if listens { 0 } else { u64::MAX };
    let wanted = "a size such as 1.5GiB, of 2 MiB at least, or to 0 for nothing";
    let said = variable("LARDER_CUDA_LIMIT", wanted, |text| {
        let bytes = ByteCount::parse(text)?.0;
        holds_a_page(bytes).then_some(bytes)
    });
    let said = said.map_err(Refused::Start)?;
    Ok(said.unwrap_or(otherwise))
}

/// Whether a limit is none by mistake: most likely it lacks its unit.
pub(crate) const fn holds_a_page(limit_bytes: u64) -> bool {
    limit_bytes == 0 || limit_bytes >= PAGE_BYTES
}

/// The process ends, and the status says so.
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
    // Threads that are held back go on, and let it go.
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

/// What a variable of the environment says; nothing there, or an empty text, is none.
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

    /// The job's limit holds for this allocator from now on.
    pub(crate) fn manage(&self, memory: &DeviceAllocator) -> Result<(), Refused> {
        match self.job() {
            Some(job) => Ok(job.manage(memory)?),
            None => Ok(()),
        }
    }
}

/// Whether launches are held back; joins the job if that was not tried yet and may be.
pub(crate) fn is_paced(may_join: impl FnOnce() -> bool) -> bool {
    let joined = match JOINED.get() {
        Some(joined) => joined,
        None if may_join() => JOINED.get_or_init(join),
        None => return false,
    };
    matches!(joined, Ok(Some(joined)) if joined.pacer.holds_back())
}

/// Launches of so long have been done by the device: makes the pause for them.
pub(crate) fn end_slice(took: Duration) {
    if let Some(job) = job() {
        // What cannot be noted changes no pause.
        let _ = job.end_run(0, took);
    }
}

/// A job that is suspended waits here.
pub(crate) fn before_launch() {
    if let Some(joined) = has_joined() {
        joined.pacer.launch();
    }
}

/// Whether the environment says how long allocations wait for the job's limit.
pub(crate) fn is_patient() -> bool {
    has_joined().is_some_and(|joined| joined.is_patient)
}

/// A job that sleeps wakes, and who wants memory meanwhile waits a little. False if nobody would
/// wake it.
pub(crate) fn waits_for_waking() -> bool {
    thread::sleep(LOOK);
    job().is_some()
}

/// How long one allocation has waited for the job's limit.
#[derive(Default)]
pub(crate) struct Patience {
    began: Option<Instant>,
}

impl Patience {
    /// Waits a little, where a higher limit could serve what was refused. False if it is no use to
    /// ask again.
    pub(crate) fn waits_for(
        &mut self,
        device: &Device,
        error: &DeviceAllocError,
        bytes: u64,
    ) -> bool {
        let own = device.limits.process().usage().config.hard_bytes;
        // As it was when it refused: it may have risen since.
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

    /// Waits a little for a higher limit. False if there is no job whose limit could rise, or it
    /// has waited long enough.
    pub(crate) fn waits(&mut self) -> bool {
        let Some(joined) = has_joined().filter(|joined| joined.listens) else {
            return false;
        };
        let began = *self.began.get_or_insert_with(Instant::now);
        if began.elapsed() >= joined.patience {
            return false;
        }
        // The coordinator hears of a job that is short by its status.
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

/// Says how much memory of each device the job would like to hold.
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
