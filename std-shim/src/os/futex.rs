//! Waiting for a word to change: Linux's futex. On other systems the wait is a short sleep.

use larder_core::sync::AtomicU32;

/// Whether a sleeping thread can be woken.
pub(crate) const WAKES: bool = cfg!(all(
    any(target_os = "linux", target_os = "android"),
    not(miri)
));

/// Sleeps while `word` is `seen`, until [`wake_one`] is called for that word. May return at any
/// time.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
pub(crate) fn sleep_while(word: &AtomicU32, seen: u32) {
    let _keep = super::errno::KeepErrno::new();
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let for_ever = core::ptr::null::<libc::timespec>();
    // SAFETY: a live word, which the kernel reads.
    let answer =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, for_ever) };
    let is_refused = |code| !matches!(code, libc::EAGAIN | libc::EINTR);
    if answer != 0 && is_refused(super::errno::last_errno()) {
        // A filter of system calls refuses the wait: at least yield the processor to the holder.
        // SAFETY: the call has no conditions.
        unsafe { libc::sched_yield() };
    }
}

/// Wakes one thread that sleeps for `word`.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
pub(crate) fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all threads that sleep for `word`.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
pub(crate) fn wake_all(word: &AtomicU32) {
    wake(word, libc::c_int::MAX);
}

#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
fn wake(word: &AtomicU32, threads: libc::c_int) {
    let _keep = super::errno::KeepErrno::new();
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a name, and reads nothing.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, threads) };
}

/// Sleeps briefly, since a lock's holder releases it soon.
#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
pub(crate) fn sleep_while(_: &AtomicU32, _: u32) {
    super::nap();
}

/// Does nothing: waiting threads wake by themselves.
#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
pub(crate) fn wake_one(_: &AtomicU32) {}

/// Does nothing, like [`wake_one`].
#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
pub(crate) fn wake_all(_: &AtomicU32) {}
