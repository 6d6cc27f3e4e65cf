//! The operating system below the heap: address space and memory ([`Os`]), notification of threads
//! that end ([`ThreadEnds`]) and of forks ([`Forks`]), and a way to print a last line.
//!
//! Memory is a trait, so that tests can run the whole heap on a system that refuses chosen calls.
//! To support a new system, add a file here with exactly these names:
//!
//! * `Native`, its [`Os`]; the constant `FIRST_ARENA_BYTES`;
//! * `Key` with `make_key` and `set_key`; `watch_forks`; `say` and `abort`.
//!
//! `futex` waits for locks, `pin` keeps a library from being unloaded, `environment` reads
//! variables, `clock` reads the time, `proc` reads files of the kernel, `group` reads the files of
//! control groups, `stack` walks stacks, `fault` reports faults, and `peak` returns the peak
//! memory. No call here changes `errno` (`errno`).

// A system without a purge thread ticks in slow paths.
#[cfg_attr(not(all(unix, not(miri))), path = "no_background.rs")]
pub(crate) mod background;
#[cfg(all(target_os = "linux", target_pointer_width = "64", not(miri)))]
mod clock;
#[cfg(unix)]
pub(crate) mod environment;
#[cfg(unix)]
pub(crate) mod errno;
pub(crate) mod fault;
mod futex;
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
mod group;
#[cfg(miri)]
mod miri;
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) mod peak;
#[cfg(all(target_os = "linux", not(miri)))]
mod pin;
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
mod proc;
#[cfg_attr(any(not(target_os = "linux"), miri), path = "no_stack.rs")]
pub(crate) mod stack;
#[cfg(miri)]
use miri as system;
#[cfg(all(unix, not(miri)))]
mod unix;
#[cfg(all(unix, not(miri)))]
use unix as system;
#[cfg(all(windows, not(miri)))]
mod windows;
#[cfg(all(windows, not(miri)))]
use windows as system;

pub(crate) use futex::{WAKES, sleep_while, wake_all, wake_one};
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) use pin::pin_library;
pub(crate) use system::{
    FIRST_ARENA_BYTES, Key, Native, abort, make_key, say, set_key, watch_forks,
};

use core::ptr::NonNull;

/// The heap's action when a thread ends.
pub(crate) trait ThreadEnds {
    /// Ends the calling thread's part; some of its destructors may still run afterwards.
    ///
    /// # Safety
    /// Called by the system between two calls of the program.
    unsafe fn end_of_thread();
}

/// The heap's actions around a fork, on systems that fork.
pub(crate) trait Forks {
    /// Runs before the calling thread forks the process.
    ///
    /// # Safety
    /// Called by the system between two calls of the program, and followed by one of the other two
    /// functions, in the same thread.
    unsafe fn before_fork();

    /// Runs after the fork, in the parent.
    ///
    /// # Safety
    /// After [`before_fork`](Self::before_fork).
    unsafe fn after_fork();

    /// Runs after the fork, in the child, on its only thread.
    ///
    /// # Safety
    /// After [`before_fork`](Self::before_fork).
    unsafe fn in_child();
}

/// Waits for a moment. Used where the system cannot wake a thread that waits for a word.
#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
fn nap() {
    background::sleep_ns(50_000);
}

/// The result of [`Os::move_pages`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    /// All pages have moved.
    Whole,
    /// Nothing has moved, because these pages belong to several mappings or the program has locked
    /// them. The target is unchanged.
    Unfit,
    /// Nothing has moved, and no later call can move anything. The target is usable, with any
    /// contents.
    Refused,
    /// Nothing has moved, and the target may now belong to other code: it must never be used again.
    Lost,
}

/// Address space and memory. Calls are rare and thread-safe; none allocates.
///
/// # Safety
/// An implementation promises:
/// 1. ranges from `reserve` are exclusive until they are released;
/// 2. a committed range is valid for reads and writes, and reads as zero where nothing has been
///    written since it was reserved, decommitted or discarded.
pub(crate) unsafe trait Os: Sync + 'static {
    /// Returns the bytes of a page; all lengths below are multiples of it.
    fn page_bytes(&self) -> usize;

    /// Returns the number of processors on which the process may run; called once.
    fn processors(&self) -> usize;

    /// Returns the time in milliseconds from a clock that is read in a few nanoseconds.
    fn coarse_ms(&self) -> u64 {
        background::coarse_ms()
    }

    /// Returns an unpredictable number, or `None` if the system has none.
    fn secret(&self) -> Option<usize> {
        None
    }

    /// Makes every running thread of the process execute a barrier. Returns whether the system can.
    fn barrier(&self) -> bool {
        false
    }

    /// Returns whether committed memory counts as used before it is touched; called once.
    fn counts_commits(&self) -> bool {
        false
    }

    /// Returns whether a system call that few programs make may end the process. Reads a file once
    /// or twice.
    fn is_filtered(&self) -> bool {
        false
    }

    /// Returns whether advice for huge pages may have an effect. Reads a file.
    fn has_huge_pages(&self) -> bool {
        true
    }

    /// Returns the number of bytes that the process may have in memory, together with other
    /// processes under the same limit; `None` if there is no limit, or it is not known. Reads some
    /// files.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Reserves addresses without memory, at a multiple of `align`. If the system supports it,
    /// dumps of the process exclude them until they are committed.
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// Reserves addresses that read as zero and are written only where they are committed. A system
    /// without such addresses commits all of them.
    fn reserve_zeros(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.map(bytes, align)
    }

    /// Releases a reserved range permanently.
    ///
    /// # Safety
    /// The range is the whole range of one `reserve`, and is no longer used.
    unsafe fn release(&self, start: *mut u8, bytes: usize);

    /// Maps usable memory that reads as zero, in a range of its own. [`release`](Self::release)
    /// frees it.
    fn map(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let start = self.reserve(bytes, align)?;
        // SAFETY: reserved just now.
        if unsafe { self.commit(start.as_ptr(), bytes) } {
            return Some(start);
        }
        // SAFETY: reserved just now, not used.
        unsafe { self.release(start.as_ptr(), bytes) };
        None
    }

    /// Resizes the range of a `map` and keeps its contents; moves it if necessary and an alignment
    /// is given. Returns the address. Returns `None` and changes nothing if the system cannot
    /// resize the range. Added memory reads as zero.
    ///
    /// # Safety
    /// The range is the whole range of one `map` or `remap`, and a part that is cut off is unused.
    unsafe fn remap(
        &self,
        _start: *mut u8,
        _bytes: usize,
        _new_bytes: usize,
        _align: Option<usize>,
    ) -> Option<NonNull<u8>> {
        None
    }

    /// Makes a reserved range usable. Returns whether that succeeded.
    ///
    /// # Safety
    /// The range lies in a reserved one.
    unsafe fn commit(&self, start: *mut u8, bytes: usize) -> bool;

    /// Makes a range unusable and takes its memory away; the addresses stay reserved. Returns
    /// whether that succeeded; if not, nothing has changed.
    ///
    /// # Safety
    /// The range lies in a reserved one, and nothing in it is used.
    unsafe fn decommit(&self, start: *mut u8, bytes: usize) -> bool;

    /// Takes the memory away; the range stays usable and reads as zero. Returns whether that
    /// succeeded.
    ///
    /// # Safety
    /// The range is committed, and nothing in it is used.
    unsafe fn discard(&self, start: *mut u8, bytes: usize) -> bool;

    /// Moves all or none of the pages of one range to the addresses of another range of the same
    /// length, whose own pages are dropped. The first range stays usable and reads as zero.
    ///
    /// # Safety
    /// Both ranges are committed and do not overlap, and the page behind the first is reserved. The
    /// first is the caller's, and nothing in the second is used. No thread advises the system about
    /// either during the call.
    unsafe fn move_pages(&self, _from: *mut u8, _to: *mut u8, _bytes: usize) -> Moved {
        Moved::Refused
    }

    /// Advises the system to use huge pages for a range when it is touched. Returns whether the
    /// system took the advice.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn advise_huge(&self, _start: *mut u8, _bytes: usize) -> bool {
        false
    }

    /// Advises the system against huge pages for a range, both at a touch and later. Returns
    /// whether the system took the advice.
    ///
    /// # Safety
    /// The range is reserved.
    unsafe fn advise_short(&self, _start: *mut u8, _bytes: usize) -> bool {
        false
    }

    /// Makes the system split the huge pages that the range covers in part. A huge page that is
    /// discarded in part stays in memory as a whole until it is split.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn split(&self, _start: *mut u8, _bytes: usize) {}

    /// Returns how many bytes of a range are in memory; `None` if the system does not report it.
    /// Makes a system call for each 2 MiB.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn resident_bytes(&self, _start: *mut u8, _bytes: usize) -> Option<usize> {
        None
    }
}
