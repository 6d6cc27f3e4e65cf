//! Linux, Android, macOS, the BSDs: memory from the kernel, keys and fork handlers of POSIX threads.

use core::ptr::{self, NonNull};

#[cfg(target_os = "linux")]
use super::Moved;
use super::errno::KeepErrno;
use super::{Forks, Os, ThreadEnds};

#[cfg(target_os = "linux")]
mod moves;

/// The running kernel.
pub(crate) struct Native;

/// Bytes of addresses to reserve at first. Addresses cost nothing; if the system refuses, fewer are
/// reserved.
pub(crate) const FIRST_ARENA_BYTES: usize = if usize::BITS >= 64 {
    64 << 30
} else {
    256 << 20
};

/// Flags with which reserved addresses do not count as memory, and committed memory counts when it
/// is touched. A kernel with strict accounting ignores the flag and charges committed memory.
#[cfg(any(target_os = "linux", target_os = "android"))]
const RESERVE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const RESERVE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANON;

/// Flags of memory mapped for use. It counts immediately, so the kernel refuses a request that it
/// could never serve.
const COUNT: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANON;

/// Maximum number of pages examined in one call; each takes a byte of stack.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MAX_PAGES: usize = 256;

/// Page length assumed if the system does not report it: its multiples are multiples of every
/// shorter page.
const MOST_PAGE_BYTES: usize = 64 << 10;

const USABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Excludes a range from dumps of the process, or includes it again. Debuggers write whole ranges
/// of addresses, whether or not they have memory.
///
/// # Safety
/// The range is the caller's.
#[cfg(any(target_os = "linux", target_os = "android"))]
unsafe fn set_dumped(start: *mut u8, bytes: usize, dumped: bool) {
    let advice = match dumped {
        true => libc::MADV_DODUMP,
        false => libc::MADV_DONTDUMP,
    };
    // SAFETY: the caller's range; the advice changes no contents. If the advice is refused, dumps
    // are longer or shorter.
    unsafe { libc::madvise(start.cast(), bytes, advice) };
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
unsafe fn set_dumped(_: *mut u8, _: usize, _: bool) {}

/// Reserves addresses with this access, excluded from dumps.
fn reserve(bytes: usize, align: usize, access: libc::c_int) -> Option<NonNull<u8>> {
    let start = aligned(bytes, align, |padded| {
        map(ptr::null_mut(), padded, access, RESERVE)
    })?;
    // SAFETY: reserved just now.
    unsafe { set_dumped(start.as_ptr(), bytes, false) };
    Some(start)
}

fn map(at: *mut u8, bytes: usize, access: libc::c_int, flags: libc::c_int) -> Option<NonNull<u8>> {
    // SAFETY: an anonymous mapping, at a place that the kernel chooses or that the caller owns.
    let start = unsafe { libc::mmap(at.cast(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(start.cast())
}

/// Calls `mremap`.
///
/// # Safety
/// The range is the caller's. A part that is cut off is unused, and so is `place` if the flags use
/// it.
#[cfg(any(target_os = "linux", target_os = "android"))]
unsafe fn remap(
    start: *mut u8,
    bytes: usize,
    new_bytes: usize,
    flags: libc::c_int,
    place: *mut u8,
) -> Option<NonNull<u8>> {
    let place = place.cast::<libc::c_void>();
    // SAFETY: the range is the caller's mapping, and nothing is used where it moves.
    let moved = unsafe { libc::mremap(start.cast(), bytes, new_bytes, flags, place) };
    if moved == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(moved.cast())
}

/// Maps more than `bytes` and unmaps what lies outside two multiples of `align`.
fn aligned(
    bytes: usize,
    align: usize,
    map: impl FnOnce(usize) -> Option<NonNull<u8>>,
) -> Option<NonNull<u8>> {
    let start = map(bytes.checked_add(align)?)?.as_ptr();
    let skip = start.align_offset(align);
    let aligned = start.wrapping_add(skip);
    unmap(start, skip);
    unmap(aligned.wrapping_add(bytes), align - skip);
    NonNull::new(aligned)
}

fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the callers own the range and no longer use it. A refusal leaves it mapped, and
        // its addresses unused.
        unsafe { libc::munmap(start.cast(), bytes) };
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn processors() -> usize {
    let mut set = core::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    let (bytes, place) = (size_of_val(&set), set.as_mut_ptr());
    // Not the C library's function, because a program may replace that with one that allocates.
    // SAFETY: writes at most that many bytes of a variable of ours.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, bytes, place) };
    if answer < 0 {
        // More processors than the set has room for.
        return size_of_val(&set) * 8;
    }
    // SAFETY: zeros, which are a set, or written by the kernel.
    let set = unsafe { set.assume_init() };
    // SAFETY: all of it was initialised.
    usize::try_from(unsafe { libc::CPU_COUNT(&set) }).unwrap_or(1)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn processors() -> usize {
    // SAFETY: reads a number of the system.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(count).unwrap_or(1)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn barrier() -> bool {
    // SAFETY: changes no memory.
    let ask =
        |command: libc::c_int| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 };
    ask(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        // Registers the process, at its first barrier.
        || ask(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
            && ask(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn barrier() -> bool {
    false
}

// SAFETY: 1: a mapping is ours until it is unmapped; 2: anonymous memory reads as zero.
unsafe impl Os for Native {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn page_bytes(&self) -> usize {
        // Not `sysconf`, because a program may replace that with one that allocates.
        // SAFETY: reads a number of the process.
        match unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize {
            0 => MOST_PAGE_BYTES,
            bytes => bytes,
        }
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn page_bytes(&self) -> usize {
        // SAFETY: reads a constant of the process.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).unwrap_or(MOST_PAGE_BYTES)
    }

    fn processors(&self) -> usize {
        let _keep = KeepErrno::new();
        processors()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn secret(&self) -> Option<usize> {
        let _keep = KeepErrno::new();
        let mut secret = 0_usize;
        let (place, bytes) = (&raw mut secret, size_of::<usize>());
        // SAFETY: a variable of ours, that long.
        let got = unsafe { libc::syscall(libc::SYS_getrandom, place, bytes, libc::GRND_NONBLOCK) };
        (got == bytes as libc::c_long).then_some(secret)
    }

    fn barrier(&self) -> bool {
        let _keep = KeepErrno::new();
        barrier()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn counts_commits(&self) -> bool {
        let _keep = KeepErrno::new();
        let mut policy = [0; 8];
        // 2 is the strict policy. A policy that cannot be read counts as not strict.
        super::proc::read(c"/proc/sys/vm/overcommit_memory", &mut policy)
            .is_some_and(|policy| policy.starts_with(b"2"))
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn is_filtered(&self) -> bool {
        let _keep = KeepErrno::new();
        super::proc::is_filtered()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn has_huge_pages(&self) -> bool {
        let _keep = KeepErrno::new();
        super::proc::has_huge_pages()
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn memory_limit(&self) -> Option<u64> {
        let _keep = KeepErrno::new();
        super::group::limit()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let _keep = KeepErrno::new();
        reserve(bytes, align, libc::PROT_NONE)
    }

    fn reserve_zeros(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let _keep = KeepErrno::new();
        // Like unreadable memory, unwritable memory does not count.
        reserve(bytes, align, libc::PROT_READ)
    }

    fn map(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let _keep = KeepErrno::new();
        if align <= self.page_bytes() {
            return map(ptr::null_mut(), bytes, USABLE, COUNT);
        }
        aligned(bytes, align, |padded| {
            map(ptr::null_mut(), padded, USABLE, COUNT)
        })
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    unsafe fn remap(
        &self,
        start: *mut u8,
        bytes: usize,
        new_bytes: usize,
        align: Option<usize>,
    ) -> Option<NonNull<u8>> {
        let _keep = KeepErrno::new();
        // SAFETY: the caller's range; a part that is cut off is unused.
        let stays = unsafe { remap(start, bytes, new_bytes, 0, ptr::null_mut()) };
        let (None, Some(align)) = (stays, align) else {
            return stays;
        };
        if align <= self.page_bytes() {
            // SAFETY: the caller's range; a part that is cut off is unused.
            return unsafe {
                remap(
                    start,
                    bytes,
                    new_bytes,
                    libc::MREMAP_MAYMOVE,
                    ptr::null_mut(),
                )
            };
        }
        let place = self.reserve(new_bytes, align)?.as_ptr();
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // If the move is refused, the place stays reserved: it may no longer be ours.
        // SAFETY: the caller's range; a part that is cut off is unused, and the place was reserved
        // just now.
        unsafe { remap(start, bytes, new_bytes, flags, place) }
    }

    unsafe fn release(&self, start: *mut u8, bytes: usize) {
        let _keep = KeepErrno::new();
        unmap(start, bytes);
    }

    unsafe fn commit(&self, start: *mut u8, bytes: usize) -> bool {
        let _keep = KeepErrno::new();
        // SAFETY: the caller's range.
        let usable = unsafe { libc::mprotect(start.cast(), bytes, USABLE) == 0 };
        if usable {
            // SAFETY: the caller's range.
            unsafe { set_dumped(start, bytes, true) };
        }
        usable
    }

    unsafe fn decommit(&self, start: *mut u8, bytes: usize) -> bool {
        let _keep = KeepErrno::new();
        // A fresh mapping in its place also ends the kernel's charge for it.
        let gone = map(start, bytes, libc::PROT_NONE, RESERVE | libc::MAP_FIXED).is_some();
        if gone {
            // SAFETY: the caller's range.
            unsafe { set_dumped(start, bytes, false) };
        }
        gone
    }

    unsafe fn discard(&self, start: *mut u8, bytes: usize) -> bool {
        let _keep = KeepErrno::new();
        if cfg!(any(target_os = "linux", target_os = "android")) {
            // SAFETY: the caller's range. On Linux private anonymous memory reads as zero after
            // this advice.
            return unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 };
        }
        // Elsewhere the advice promises nothing about the contents; a fresh mapping does.
        map(start, bytes, USABLE, RESERVE | libc::MAP_FIXED).is_some()
    }

    #[cfg(target_os = "linux")]
    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, bytes: usize) -> Moved {
        let _keep = KeepErrno::new();
        if super::proc::is_filtered() {
            return Moved::Unfit;
        }
        // SAFETY: both ranges are committed, and nothing in the second is used.
        unsafe { moves::move_pages(from, to, bytes, self.page_bytes()) }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    unsafe fn advise_huge(&self, start: *mut u8, bytes: usize) -> bool {
        let _keep = KeepErrno::new();
        // SAFETY: the caller's range; the advice changes no contents.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) == 0 }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    unsafe fn split(&self, start: *mut u8, bytes: usize) {
        let _keep = KeepErrno::new();
        // SAFETY: the caller's range; the advice changes no contents. Linux splits the huge pages
        // that the range covers in part.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_COLD) };
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    unsafe fn advise_short(&self, start: *mut u8, bytes: usize) -> bool {
        let _keep = KeepErrno::new();
        // SAFETY: the caller's range; the advice changes no contents.
        unsafe { libc::madvise(start.cast(), bytes, libc::MADV_NOHUGEPAGE) == 0 }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    unsafe fn resident_bytes(&self, start: *mut u8, bytes: usize) -> Option<usize> {
        let _keep = KeepErrno::new();
        let page = self.page_bytes();
        let window = MAX_PAGES * page;
        let mut resident = 0;
        for at in (0..bytes).step_by(window) {
            let mut pages = [0_u8; MAX_PAGES];
            let length = window.min(bytes - at);
            let here = start.wrapping_add(at).cast();
            // SAFETY: inside the caller's range; the answer is a byte for each page.
            if unsafe { libc::mincore(here, length, pages.as_mut_ptr()) } != 0 {
                return None;
            }
            let looked_at = pages.iter().take(length.div_ceil(page));
            resident += looked_at.map(|page| usize::from(page & 1)).sum::<usize>() * page;
        }
        Some(resident)
    }
}

/// The key that a thread sets so that it is called at its end.
pub(crate) type Key = libc::pthread_key_t;

/// Makes a key whose destructor is `E`'s end of a thread; it runs after Rust's destructors. Returns
/// `None` if the system has no key left. Called once in the life of a process.
pub(crate) fn make_key<E: ThreadEnds>() -> Option<Key> {
    let _keep = KeepErrno::new();
    let mut key = 0;
    // SAFETY: the key is written to a variable of ours; the destructor is a function of this
    // library, which is never unloaded while its heap is in use.
    let refused = unsafe { libc::pthread_key_create(&mut key, Some(end_of_thread::<E>)) };
    (refused == 0).then_some(key)
}

/// Registers `F` to be called around each fork. Called once in the life of a process.
pub(crate) fn watch_forks<F: Forks>() {
    let _keep = KeepErrno::new();
    let (before, after, child) = (before_fork::<F>, after_fork::<F>, in_child::<F>);
    // SAFETY: the handlers are functions of this library, which is never unloaded while its heap is
    // in use. If they cannot be registered, a child of a threaded process may hang; nothing here
    // can prevent that.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(child)) };
}

/// Requests a call at the calling thread's end. Returns whether that was possible.
pub(crate) fn set_key(key: Key) -> bool {
    let _keep = KeepErrno::new();
    // Any value that is not null makes the destructor run.
    let some = NonNull::<u8>::dangling().as_ptr();
    // SAFETY: the key exists.
    unsafe { libc::pthread_setspecific(key, some.cast()) == 0 }
}

extern "C" fn end_of_thread<E: ThreadEnds>(_: *mut libc::c_void) {
    // SAFETY: called by the C library between two calls of the program.
    unsafe { E::end_of_thread() };
}

/// The lock of glibc's list of streams. `fork` takes it after all handlers, while `fflush(NULL)` may
/// hold it and wait for a stream whose holder allocates. So it comes before the locks of the heap.
/// The lock counts how often its thread has taken it.
#[cfg(target_env = "gnu")]
mod streams {
    unsafe extern "C" {
        #[link_name = "_IO_list_lock"]
        pub(super) safe fn lock();
        #[link_name = "_IO_list_unlock"]
        pub(super) safe fn unlock();
        /// Makes the lock free, as glibc does in a child of a process with threads.
        #[link_name = "_IO_list_resetlock"]
        pub(super) safe fn reset();
    }
}

extern "C" fn before_fork<F: Forks>() {
    #[cfg(target_env = "gnu")]
    streams::lock();
    // SAFETY: called by the C library inside `fork`, like the two below.
    unsafe { F::before_fork() };
}

extern "C" fn after_fork<F: Forks>() {
    // SAFETY: called by the C library inside `fork`.
    unsafe { F::after_fork() };
    #[cfg(target_env = "gnu")]
    streams::unlock();
}

extern "C" fn in_child<F: Forks>() {
    // SAFETY: called by the C library inside `fork`.
    unsafe { F::in_child() };
    #[cfg(target_env = "gnu")]
    streams::reset();
}

/// Ends the process as a signal would.
pub(crate) fn abort() -> ! {
    // SAFETY: the call has no conditions.
    unsafe { libc::abort() }
}

/// Writes a line to standard error. Ignores failures.
pub(crate) fn say(line: &[u8]) {
    let _keep = KeepErrno::new();
    // A cancelled thread must not end here, as it might in the C library's function.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: the bytes are readable.
    unsafe {
        libc::syscall(
            libc::SYS_write,
            libc::STDERR_FILENO,
            line.as_ptr(),
            line.len(),
        )
    };
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    // SAFETY: the bytes are readable.
    unsafe {
        libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len())
    };
}
