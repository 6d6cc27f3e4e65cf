//! The heap's own thread, and its clock.

use core::mem::MaybeUninit;
use core::ptr;

use super::errno::KeepErrno;

/// The function of a background thread.
pub(crate) type Run = extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;

/// Length of the thread's stack in bytes. It has room for several times the stack that a tick
/// needs, and for the program's thread-local values, which the C library places there, too. If
/// those do not fit, the system's default length is used.
const STACK_BYTES: usize = 256 << 10;

/// Starts a detached thread that receives no signals. Returns whether that was possible. Allocates
/// nothing through this heap; no lock of the heap may be held.
pub(crate) fn start_thread(run: Run) -> bool {
    let _keep = KeepErrno::new();
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: fills a set of ours.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // A thread inherits the signal mask of its creator.
    // SAFETY: two sets of ours, the first one filled.
    let masked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    if masked != 0 {
        return false;
    }
    let started = create(run, Some(STACK_BYTES)) || create(run, None);
    // SAFETY: the set from before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    started
}

fn create(run: Run, stack_bytes: Option<usize>) -> bool {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: a variable of ours.
    if unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) } != 0 {
        return false;
    }
    let detached = libc::PTHREAD_CREATE_DETACHED;
    // SAFETY: the attributes are initialised.
    unsafe { libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), detached) };
    let fits = stack_bytes.is_none_or(|bytes| {
        // SAFETY: the attributes are initialised.
        unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), bytes) == 0 }
    });
    let mut thread = MaybeUninit::uninit();
    let (place, with) = (thread.as_mut_ptr(), attributes.as_ptr());
    let started = fits && {
        // SAFETY: variables of ours, and a function that takes any argument.
        unsafe { libc::pthread_create(place, with, run, ptr::null_mut()) == 0 }
    };
    // SAFETY: initialised, and not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    started
}

/// Gives the calling thread the ordinary scheduling policy and the processors of the process. The
/// thread may have inherited both from a real-time thread that started it. A refused change is
/// skipped.
pub(crate) fn be_ordinary() {
    // SAFETY: zeros are a value of this struct of plain numbers.
    let priority = unsafe { core::mem::zeroed::<libc::sched_param>() };
    // SAFETY: the call has no conditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the calling thread, and a variable of ours.
    unsafe { libc::pthread_setschedparam(this, libc::SCHED_OTHER, &raw const priority) };
    #[cfg(any(target_os = "linux", target_os = "android"))]
    take_processors_of_main();
}

/// Gives the calling thread the processors of the main thread: those with which the process was
/// started.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn take_processors_of_main() {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the call has no conditions. The main thread has the number of its process.
    let main = unsafe { libc::getpid() };
    // SAFETY: writes at most that many bytes of a variable of ours.
    if unsafe { libc::sched_getaffinity(main, size_of_val(&set), set.as_mut_ptr()) } == 0 {
        // SAFETY: the calling thread, and as many bytes as the set has.
        unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr()) };
    }
}

/// Names the calling thread, where the system has names for threads.
pub(crate) fn name_thread() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: a NUL-terminated string, shorter than 16 bytes.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"larder-purge".as_ptr());
    }
}

/// Sleeps for `ns` nanoseconds. On Linux and Android this is not a cancellation point.
pub(crate) fn sleep_ns(ns: u64) {
    let time = libc::timespec {
        // The type differs by system, and its name is deprecated for musl.
        tv_sec: (ns / 1_000_000_000).try_into().unwrap_or(i32::MAX.into()),
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    let _keep = KeepErrno::new();
    let rest = ptr::null_mut::<libc::timespec>();
    #[cfg(all(
        any(target_os = "linux", target_os = "android"),
        target_pointer_width = "64"
    ))]
    // SAFETY: a variable of ours. A signal may shorten it.
    unsafe {
        libc::syscall(libc::SYS_nanosleep, &raw const time, rest)
    };
    #[cfg(not(all(
        any(target_os = "linux", target_os = "android"),
        target_pointer_width = "64"
    )))]
    // SAFETY: a variable of ours. A signal may shorten it.
    unsafe {
        libc::nanosleep(&raw const time, rest)
    };
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub(crate) use super::clock::coarse_ms;

/// Returns the time of a clock that is read in a few nanoseconds, exact to a few milliseconds.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub(crate) fn coarse_ms() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC_COARSE;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a variable of ours.
    unsafe { libc::clock_gettime(CLOCK, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
