//! What the heap needs of an operating system: address space and memory behind it ([`Os`]), to be
//! told when threads end ([`ThreadEnds`]) and the process forks ([`Forks`]), and a way to say a last line.
//!
//! Memory is a trait, so that tests run the whole heap over a system that refuses at any call they
//! like. A new system is a new file here with the names of the list below and nothing else:
//!
//! * `Native`, its [`Os`]; the constant `FIRST_ARENA_BYTES`;
//! * `Key` with `make_key` and `set_key`; `watch_forks`; `say` and `abort`.
//!
//! `futex` has what threads wait with for locks, `pin` keeps a library from being unloaded, `environment` reads variables, `clock` has the time, `stack` walks stacks, `fault` tells of faults, `peak` of the most in memory, `proc` reads files of the kernel, `group` those of control groups. No call here
//! changes `errno` (`errno`).

// Who has no threads of the heap's own ticks in slow paths.
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
mod nothing;
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) mod peak;
#[cfg(all(target_os = "linux", not(miri)))]
mod pin;
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
mod proc;
#[cfg_attr(any(not(target_os = "linux"), miri), path = "no_stack.rs")]
pub(crate) mod stack;
#[cfg(miri)]
use nothing as system;
#[cfg(all(unix, not(miri)))]
mod unix;
#[cfg(all(unix, not(miri)))]
use unix as system;
#[cfg(all(windows, not(miri)))]
mod windows;
#[cfg(all(windows, not(miri)))]
use windows as system;

pub(crate) use futex::{WAKES, sleep_while, wake_one};
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) use pin::pin_library;
pub(crate) use system::{
    FIRST_ARENA_BYTES, Key, Native, abort, make_key, say, set_key, watch_forks,
};

use core::ptr::NonNull;

/// What the heap does when a thread ends.
pub(crate) trait ThreadEnds {
    /// The calling thread ends; some of its destructors may still run afterwards.
    ///
    /// # Safety
    /// Called by the system between two calls of the program.
    unsafe fn end_of_thread();
}

/// What the heap does around a fork, on systems that fork.
pub(crate) trait Forks {
    /// The calling thread is about to fork the process.
    ///
    /// # Safety
    /// Called by the system between two calls of the program, and followed by one of the other two, in the
    /// same thread.
    unsafe fn before_fork();

    /// It has, and goes on as the parent.
    ///
    /// # Safety
    /// After [`before_fork`](Self::before_fork).
    unsafe fn after_fork();

    /// It has, and goes on as the child's only thread.
    ///
    /// # Safety
    /// After [`before_fork`](Self::before_fork).
    unsafe fn in_child();
}

/// Waits for a moment, where the system cannot wake a thread that waits for a word.
#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
fn nap() {
    background::sleep_ns(50_000);
}

/// What came of [`Os::move_pages`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    /// All is where it was wanted.
    Whole,
    /// Nothing has moved, since these pages are not to be moved: they belong to several mappings, or
    /// the program wants them to stay in memory. The place for them is as it was.
    Unfit,
    /// Nothing has moved, and nothing ever will. The place is usable, with any contents.
    Refused,
    /// Nothing has moved, and the place may be somebody else's now: never to be used again.
    Lost,
}

/// Address space and memory. Calls are rare and thread-safe; none allocates.
///
/// # Safety
/// An implementation promises:
/// 1. ranges from `reserve` are nobody else's until they are released;
/// 2. a committed range is valid for reads and writes, and reads as zero where nothing was written
///    since it was reserved, decommitted or discarded.
pub(crate) unsafe trait Os: Sync + 'static {
    /// Bytes of a page; everything below is a multiple of it.
    fn page_bytes(&self) -> usize;

    /// How many processors the process may run on, as far as the system says; asked once.
    fn processors(&self) -> usize;

    /// The time by a clock that is read in a few nanoseconds, in milliseconds.
    fn coarse_ms(&self) -> u64 {
        background::coarse_ms()
    }

    /// A number that nobody can foretell; `None` if the system has none.
    fn secret(&self) -> Option<usize> {
        None
    }

    /// Has every thread of the process that runs execute a barrier; whether the system can do that.
    fn barrier(&self) -> bool {
        false
    }

    /// Whether committed memory counts as used before it is touched; asked once.
    fn counts_commits(&self) -> bool {
        false
    }

    /// Whether a call that only a few programs make may end the process. A call or two that read a file.
    fn is_filtered(&self) -> bool {
        false
    }

    /// Whether a wish for huge pages may be granted. A call or two that read a file.
    fn has_huge_pages(&self) -> bool {
        true
    }

    /// How many bytes the process may have in memory, with others that share the limit; `None` if there is no limit, or
    /// it is not known. Reads some files.
    fn memory_limit(&self) -> Option<u64> {
        None
    }

    /// Reserves addresses without memory, at a multiple of `align`. They are left out of dumps of the process, as far
    /// as the system can, until they are committed.
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// Reserves addresses that read as zero and are written only where they are committed. A system without such
    /// addresses commits all of them.
    fn reserve_zeros(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.map(bytes, align)
    }

    /// Gives a reserved range back for good.
    ///
    /// # Safety
    /// The whole range of one `reserve`, not used any more.
    unsafe fn release(&self, start: *mut u8, bytes: usize);

    /// Usable memory in a range of its own that reads as zero. Gone by [`release`](Self::release).
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

    /// Makes the range of a `map` longer or shorter with its contents, elsewhere if there is an alignment for
    /// that; where it is then. `None` if the system cannot; then nothing has changed. What is added reads as zero.
    ///
    /// # Safety
    /// The whole range of one `map` or `remap`; nothing that it loses is used.
    unsafe fn remap(
        &self,
        _start: *mut u8,
        _bytes: usize,
        _new_bytes: usize,
        _align: Option<usize>,
    ) -> Option<NonNull<u8>> {
        None
    }

    /// Makes a reserved range usable; whether that went well.
    ///
    /// # Safety
    /// The range lies in a reserved one.
    unsafe fn commit(&self, start: *mut u8, bytes: usize) -> bool;

    /// Takes memory and usability away; the addresses stay reserved. Whether that went well; if
    /// not, nothing has changed.
    ///
    /// # Safety
    /// The range lies in a reserved one, and nothing in it is used.
    unsafe fn decommit(&self, start: *mut u8, bytes: usize) -> bool;

    /// Takes the memory away; the range stays usable and reads as zero. Whether that went well.
    ///
    /// # Safety
    /// The range is committed, and nothing in it is used.
    unsafe fn discard(&self, start: *mut u8, bytes: usize) -> bool;

    /// Moves the pages of one range behind the addresses of another of the same length, whose own
    /// pages go, all or none. What is moved away from stays usable and reads as zero.
    ///
    /// # Safety
    /// Both ranges are committed and do not overlap, and the page behind the first is reserved. The
    /// first is the caller's, and nothing in the second is used. Nobody advises the system about
    /// either meanwhile.
    unsafe fn move_pages(&self, _from: *mut u8, _to: *mut u8, _bytes: usize) -> Moved {
        Moved::Refused
    }

    /// Wishes for huge pages behind a range when it is touched; whether the system heard it.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn advise_huge(&self, _start: *mut u8, _bytes: usize) -> bool {
        false
    }

    /// Wishes for no huge pages behind a range, neither at a touch nor later; whether the system heard it.
    ///
    /// # Safety
    /// The range is reserved.
    unsafe fn advise_short(&self, _start: *mut u8, _bytes: usize) -> bool {
        false
    }

    /// Has the system split the huge pages of which the range has a part: of one that is discarded in part it has all in
    /// memory until then.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn split(&self, _start: *mut u8, _bytes: usize) {}

    /// How many bytes of a range are in memory; `None` if the system does not say. A system call for each
    /// 2 MiB.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn resident_bytes(&self, _start: *mut u8, _bytes: usize) -> Option<usize> {
        None
    }
}
