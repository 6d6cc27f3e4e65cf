//! Keeps the process on one core, for steadier times of one thread.

use std::io;

/// Threads started later inherit it.
///
/// # Errors
/// The operating system does not allow it.
#[cfg(target_os = "linux")]
pub fn to_one_core() -> io::Result<()> {
    // SAFETY: the call has no arguments and always succeeds.
    let core = unsafe { libc::sched_getcpu() };
    let core = usize::try_from(core).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: all bits zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours, and the core is one that exists.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: process 0 is this one, and the set has the size given.
    let failed = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    if failed == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Only Linux is asked.
#[cfg(not(target_os = "linux"))]
pub fn to_one_core() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_core() {
        // In a thread of its own: the other tests keep their cores.
        let cores = std::thread::spawn(|| {
            to_one_core().unwrap();
            std::thread::available_parallelism().unwrap().get()
        });
        assert_eq!(cores.join().unwrap(), 1);
    }
}
