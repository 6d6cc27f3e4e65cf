//! Keeps threads on one core, so that the times of a thread are steadier, or so that two threads
//! share the core.

use std::io;

/// Keeps the calling thread, and threads that it starts later, on its current core.
///
/// # Errors
/// If the operating system does not allow it.
pub fn to_one_core() -> io::Result<()> {
    to(this_core()?)
}

/// Returns the calling thread's core.
///
/// # Errors
/// If the operating system does not report it.
#[cfg(target_os = "linux")]
pub fn this_core() -> io::Result<usize> {
    // SAFETY: the call takes no arguments and has no conditions.
    let core = unsafe { libc::sched_getcpu() };
    usize::try_from(core).map_err(|_| io::Error::last_os_error())
}

/// Moves the calling thread to this core, and keeps it there.
///
/// # Errors
/// If the operating system does not allow it.
#[cfg(target_os = "linux")]
pub fn to(core: usize) -> io::Result<()> {
    // SAFETY: all bits zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours; the call panics if the core is not in its range.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: 0 is the calling thread, and the set has the size given.
    let failed = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Fails, since pinning is implemented only for Linux.
#[cfg(not(target_os = "linux"))]
pub fn this_core() -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails, since pinning is implemented only for Linux.
#[cfg(not(target_os = "linux"))]
pub fn to(_core: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_core() {
        // A separate thread is pinned, so that the other tests keep their cores.
        let cores = std::thread::spawn(|| {
            to_one_core().unwrap();
            std::thread::available_parallelism().unwrap().get()
        });
        assert_eq!(cores.join().unwrap(), 1);
    }

    #[test]
    fn two_threads_share_the_core_that_is_named() {
        let core = this_core().unwrap();
        let seen = std::thread::spawn(move || {
            to(core).unwrap();
            this_core().unwrap()
        });
        assert_eq!(seen.join().unwrap(), core);
    }
}
