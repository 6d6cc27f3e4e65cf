//! Refusals, and how the caller learns of them: through a text for each thread, and one line on stderr if
//! the signature has no room for an error.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use larder_core::ByteCount;
use larder_cuda::job::JobError;
use larder_cuda::{DeviceAllocError, DeviceFreeError, DriverError, LoadError, OverBudget};

use crate::job::PAGE_BYTES;

/// A refused call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// No memory. The message begins with the words that programs search for in PyTorch's errors.
    #[error("CUDA out of memory. Larder gave none of {:#} on device {device}: {error}{}", ByteCount(*bytes), job_words(*.waited))]
    OutOfMemory {
        device: c_int,
        bytes: u64,
        error: DeviceAllocError,
        /// Whether the request has waited for the job's control file.
        waited: bool,
    },
    #[error("device {device} is out of memory within its limit: {over}")]
    OverLimit { device: c_int, over: OverBudget },
    #[error("{0}")]
    Alloc(#[from] DeviceAllocError),
    #[error("{0}")]
    Load(#[from] LoadError),
    #[error("{0}")]
    Driver(#[from] DriverError),
    #[error("there is no device {0}: devices are numbered from 0")]
    Device(c_int),
    #[error(
        "the stream is another context's or a green context's: use a stream of the primary context of device {0}, \
         whose memory this is"
    )]
    Stream(c_int),
    #[error("{0} bytes is not a valid size")]
    Size(i64),
    #[error("{address:#x} on device {device} is not freed: {error}")]
    Free {
        device: c_int,
        address: u64,
        error: DeviceFreeError,
    },
    #[error("{0:#x} is not where a block of this library begins")]
    Unknown(u64),
    #[error("no memory is available: {0}")]
    Start(String),
    #[error("a limit of {:#} is less than a page of {:#}: set 0, or a page or more", ByteCount(*.0), ByteCount(PAGE_BYTES))]
    Limit(u64),
    #[error("a budget of {:#} is less than a page: give {:#} or more", ByteCount(*.0), ByteCount(PAGE_BYTES))]
    Budget(u64),
    #[error("device {0} is in use: choose when its pages move before its first use")]
    InUse(c_int),
    #[error("the job did not record the end of a step: {0}")]
    Run(String),
    #[error("there is no current step on this stream: begin one first")]
    NoStep,
    #[error("there is no such window: it has ended, or was never opened")]
    NoWindow,
    #[error("there is no such reservation: it has ended, or was never made")]
    NoReservation,
    #[error("the reservation ends with its tensor: delete the tensor")]
    HasTensor,
    #[error(
        "{bytes} bytes at {offset} are outside of the reservation, which has {reserved_bytes} bytes"
    )]
    Range {
        offset: u64,
        bytes: u64,
        reserved_bytes: u64,
    },
    #[error("the reservation of the deleted tensor has not ended: {0}")]
    Deleter(Box<Self>),
    #[error("{0} is not a fraction of a device's memory: pass a number from 0 to 1")]
    Fraction(f64),
    #[error("there is no host memory for a history of {0} entries: record fewer")]
    History(usize),
    #[error("a null pointer was passed for {0}")]
    Null(&'static str),
    #[error("a mistake inside of Larder, please report it: {0}")]
    Panic(String),
}

impl From<JobError> for Refusal {
    fn from(error: JobError) -> Self {
        Self::Start(not_obeyed(&error))
    }
}

/// Returns the reason why a process is not a job although the environment names a job's files.
pub(crate) fn not_obeyed(error: &JobError) -> String {
    format!("the job's control file is not obeyed: {error}")
}

fn job_words(waited: bool) -> &'static str {
    match waited {
        true => {
            "; the job's control file was waited for: start `larder coordinate`, or set LARDER_CUDA_LIMIT to \
             begin with more"
        }
        false => "",
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text of a refusal for the thread.
fn note(refused: &Refusal) {
    let text = refused.to_string().replace('\0', " ");
    let text = CString::new(text).unwrap_or_default();
    // An ending thread cannot request the text.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Reports the first refusal of a kind on stderr.
pub(crate) fn say_once(once: &'static Once, refused: &Refusal) {
    once.call_once(|| {
        // A failure to write to stderr cannot be reported.
        let _ = writeln!(std::io::stderr(), "larder_cuda: {refused}");
    });
}

/// Runs the body of a C function. A refusal becomes the thread's last error, and so does a panic (CAPI1).
pub(crate) fn guard<R>(body: impl FnOnce() -> Result<R, Refusal>) -> Result<R, Refusal> {
    let answer = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Refusal::Panic(words.unwrap_or("without words").to_owned()))
    });
    answer.inspect_err(note)
}

/// Returns 0, or -1 for a refusal.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    match guard(body) {
        Ok(()) => 0,
        Err(_) => -1,
    }
}

/// Returns the text of the thread's last refusal.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn larder_cuda_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}
