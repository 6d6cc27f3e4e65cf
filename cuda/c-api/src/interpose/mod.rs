//! Interposition: if the library is preloaded, a program's calls to the driver come here first, whether the
//! program is linked with the driver or looks the functions up. This is for programs that cannot be changed
//! and that keep their own allocators.
//!
//! Memory is charged before it is requested from the driver, queries of memory are answered within the limit,
//! and launches keep to the job's share of the time (as in AntMan, which does this inside of frameworks).
//!
//! * INTER1 nothing happens unless the library is preloaded and the environment names a limit or a job's
//!   files: otherwise every call goes on to the driver, as calls of unknown functions always do.
//! * INTER2 memory is charged from before it is requested from the driver until after it has been freed. A
//!   freed block leaves the tables before the driver is called, because its address may belong to another
//!   block as soon as the call returns. A pool stays in the tables, marked, until the driver has answered,
//!   because the driver may refuse.
//! * INTER3 no lock is held during a driver call, except that of a pool while its held bytes are queried.
//! * INTER4 calls that this library makes itself are not intercepted: its allocators charge their memory.
//! * INTER5 a child of fork is not the job: its calls go on to the driver.
//! * INTER6 the table passes the arguments of a call unchanged to its replacement. A pointer among them is
//!   null, or valid for the reads and writes that the driver documents for the call; it is not null if the
//!   driver has reported success and documents that it refuses null.
//!
//! # Files
//! `table` the interposed functions · `lookup` functions by name · `driver` the driver's functions ·
//! `charged` the charges of each device · `memory` plain and managed memory, contexts · `pools` the driver's
//! pools · `pages` virtual memory · `launch` kernels and graphs

mod charged;
mod driver;
mod launch;
mod lookup;
mod memory;
mod pages;
mod pools;
mod table;

use std::ffi::{CStr, OsString, c_char, c_void};
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process;
use std::sync::OnceLock;

use larder_core::sync::{AtomicU32, Ordering};
use larder_cuda::driver::Code;

use driver::NextDriver;

/// The loader's list of preloaded libraries.
const PRELOADED: &str = "LD_PRELOAD";

/// The process whose calls are charged; 0 if there is none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Runs when the library is loaded, before the program can change its environment.
// SAFETY: the loader calls each function of this section once; this one has the type that it expects.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    if is_asked_for() {
        PROCESS.store(process::id(), Ordering::Relaxed);
    }
}

/// Returns whether the library is preloaded and the environment names a limit or a job's files (INTER1).
fn is_asked_for() -> bool {
    let Some(own) = Library::own() else {
        return false;
    };
    let Some(preloaded) = std::env::var_os(PRELOADED) else {
        return false;
    };
    let preloaded = preloaded.into_vec();
    let mut names = preloaded.split(|byte| matches!(byte, b':' | b' '));
    let is_own =
        |name: &[u8]| Path::new(&OsString::from_vec(name.to_vec())).file_name() == own.name();
    let wants = ["LARDER_CUDA_LIMIT", "GPU_CONFIG_FILE", "GPU_STATUS_FILE"];
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    names.any(is_own) && wants.into_iter().any(is_set)
}

/// Returns whether the calls of the process that loaded the library should be charged and paced (INTER1).
/// Costs one load.
fn is_meant() -> bool {
    // Relaxed: set before the program begins.
    PROCESS.load(Ordering::Relaxed) != 0
}

/// Returns whether calls of this process are charged and paced (INTER1, INTER5). Costs one system call.
fn acts() -> bool {
    is_meant() && PROCESS.load(Ordering::Relaxed) == process::id()
}

/// Runs the replacement of a call with the driver's own function. A panic becomes an error code (CAPI1).
fn in_front_of<F>(
    of: impl FnOnce(&NextDriver) -> Option<F>,
    act: impl FnOnce(&'static NextDriver, F) -> Code,
) -> Code {
    let run = || {
        let driver = NextDriver::get()?;
        Some(act(driver, of(driver)?))
    };
    let ran = catch_unwind(AssertUnwindSafe(run));
    ran.map_or(Code::UNKNOWN, |code| code.unwrap_or(Code::NOT_FOUND))
}

/// A loaded library.
struct Library {
    path: &'static CStr,
    base: usize,
}

impl Library {
    /// Returns the library in which an address lies. The library stays loaded.
    fn of(address: *const c_void) -> Option<Self> {
        let mut place = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `dladdr` looks the address up and writes to the local variable, for which all zeros are
        // valid, too.
        let (found, info) = unsafe {
            let found = libc::dladdr(address, place.as_mut_ptr());
            (found, place.assume_init())
        };
        if found == 0 || info.dli_fname.is_null() {
            return None;
        }
        let path: *const c_char = info.dli_fname;
        Some(Self {
            // SAFETY: the string belongs to the loader, and lives as long as the library.
            path: unsafe { CStr::from_ptr(path) },
            base: info.dli_fbase.addr(),
        })
    }

    fn name(&self) -> Option<&std::ffi::OsStr> {
        Path::new(std::str::from_utf8(self.path.to_bytes()).ok()?).file_name()
    }

    /// Returns this library.
    fn own() -> Option<&'static Self> {
        static OWN: OnceLock<Option<Library>> = OnceLock::new();
        let own = OWN.get_or_init(|| Self::of(begin as extern "C" fn() as *const c_void));
        own.as_ref()
    }
}
