//! In front of the driver: where the library is preloaded, calls that a program makes to the driver come here
//! first, whether it is linked with the driver or looks its functions up. For programs that cannot be changed,
//! and whose own allocators stay as they are.
//!
//! Memory is charged before the driver is asked for it, questions about memory are answered by the limit, and
//! launches obey the job's share of the time (from AntMan, which does this inside of frameworks).
//!
//! * INTER1 nothing happens unless the library is preloaded and a limit or a job's files are named: else every
//!   call goes on to the driver. What is not known here does so always.
//! * INTER2 memory is charged from before the driver is asked until after it took the memory back. What is freed
//!   leaves the tables before the driver is asked, as its address may be another's as soon as it answers. A pool stays,
//!   marked, until the driver has answered, as it may refuse.
//! * INTER3 no lock is held while the driver is called, but that of a pool, which is asked how much it holds.
//! * INTER4 calls that this library makes itself are not seen: its allocators charge them.
//! * INTER5 a child of fork is not the job: its calls go on to the driver.
//! * INTER6 what is done in place of a call has the arguments of that call, from the table. A
//!   pointer among them is null, or valid for what the driver documents that the call reads or
//!   writes by it; it is not null where the driver has answered success and documents that it
//!   refuses null.
//!
//! # Files
//! `table` what stands in front of what · `lookup` functions by name · `driver` what the driver is
//! asked · `charged` what each device is charged · `memory` plain and managed memory, contexts ·
//! `pools` the driver's pools · `pages` virtual memory · `launch` kernels and graphs

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

use driver::Driver;

/// What the loader was told to preload.
const PRELOADED: &str = "LD_PRELOAD";

/// The process whose calls are charged; 0 for none.
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

/// INTER1.
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

/// Whether calls are to be charged and paced, in the process that began (INTER1). One load.
fn is_meant() -> bool {
    // Relaxed: set before the program began.
    PROCESS.load(Ordering::Relaxed) != 0
}

/// Whether calls of this process are charged and paced (INTER1, INTER5). Asks the system.
fn acts() -> bool {
    is_meant() && PROCESS.load(Ordering::Relaxed) == process::id()
}

/// Runs what a call does here, with the driver's own function. A panic becomes an answer (CAPI1).
fn in_front_of<F>(
    of: impl FnOnce(&Driver) -> Option<F>,
    act: impl FnOnce(&'static Driver, F) -> Code,
) -> Code {
    let run = || {
        let driver = Driver::get()?;
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
    /// The one that an address lies in. It stays loaded.
    fn of(address: *const c_void) -> Option<Self> {
        let mut place = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `dladdr` looks the address up, and writes to the local, of which all zeroes is a
        // value too.
        let (found, info) = unsafe {
            let found = libc::dladdr(address, place.as_mut_ptr());
            (found, place.assume_init())
        };
        if found == 0 || info.dli_fname.is_null() {
            return None;
        }
        let path: *const c_char = info.dli_fname;
        Some(Self {
            // SAFETY: the loader's own text, which stays as long as the library.
            path: unsafe { CStr::from_ptr(path) },
            base: info.dli_fbase.addr(),
        })
    }

    fn name(&self) -> Option<&std::ffi::OsStr> {
        Path::new(std::str::from_utf8(self.path.to_bytes()).ok()?).file_name()
    }

    /// This library.
    fn own() -> Option<&'static Self> {
        static OWN: OnceLock<Option<Library>> = OnceLock::new();
        let own = OWN.get_or_init(|| Self::of(begin as extern "C" fn() as *const c_void));
        own.as_ref()
    }
}
