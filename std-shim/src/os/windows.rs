//! Windows: memory from `VirtualAlloc`, fibre-local storage for the ends of threads. Nothing forks.
//!
//! Here committed memory is charged immediately, touched or not, so the tables of an arena cost
//! their whole length. The first arena is therefore shorter than on Unix, and more arenas follow.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use super::{Forks, Os, ThreadEnds};

/// The running kernel.
pub(crate) struct Native;

/// Bytes of addresses to reserve at first. Their tables are 1/256 as long, and are charged.
pub(crate) const FIRST_ARENA_BYTES: usize = if usize::BITS >= 64 {
    4 << 30
} else {
    256 << 20
};

/// Alignment of reserved addresses.
const SYSTEM_ALIGN: usize = 64 << 10;
/// Maximum number of attempts to reserve addresses that another thread may take in between.
const TRIES: usize = 16;
/// Maximum number of attempts to commit memory that was decommitted just before.
const COMMITS: usize = 10_000;

const MEM_COMMIT: u32 = 0x1000;
const MEM_RESERVE: u32 = 0x2000;
const MEM_DECOMMIT: u32 = 0x4000;
const MEM_RELEASE: u32 = 0x8000;
const PAGE_NOACCESS: u32 = 1;
const PAGE_READWRITE: u32 = 4;
const STD_ERROR_HANDLE: u32 = -12_i32 as u32;
const FLS_OUT_OF_INDEXES: u32 = u32::MAX;

/// `SYSTEM_INFO`.
#[repr(C)]
struct SystemInfo {
    architecture: u32,
    page_bytes: u32,
    least_address: *mut c_void,
    max_address: *mut c_void,
    processors: usize,
    processor_count: u32,
    processor_type: u32,
    reserve_align: u32,
    processor_level: u16,
    processor_revision: u16,
}

type AtEnd = unsafe extern "system" fn(*const c_void);

#[link(name = "kernel32")]
unsafe extern "system" {
    fn VirtualAlloc(at: *mut c_void, bytes: usize, kind: u32, access: u32) -> *mut c_void;
    fn VirtualFree(at: *mut c_void, bytes: usize, kind: u32) -> i32;
    fn GetSystemInfo(info: *mut SystemInfo);
    fn FlsAlloc(at_end: Option<AtEnd>) -> u32;
    fn FlsSetValue(index: u32, value: *const c_void) -> i32;
    fn GetStdHandle(which: u32) -> *mut c_void;
    fn WriteFile(
        file: *mut c_void,
        bytes: *const u8,
        count: u32,
        written: *mut u32,
        overlapped: *mut c_void,
    ) -> i32;
}

fn system_info() -> SystemInfo {
    let mut info = MaybeUninit::<SystemInfo>::uninit();
    // SAFETY: fills a variable of ours.
    unsafe { GetSystemInfo(info.as_mut_ptr()) };
    // SAFETY: filled just now.
    unsafe { info.assume_init() }
}

fn reserve_at(at: *mut u8, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: unused addresses, chosen by the system or at a place that is free.
    let start = unsafe { VirtualAlloc(at.cast(), bytes, MEM_RESERVE, PAGE_NOACCESS) };
    NonNull::new(start.cast())
}

fn release(start: *mut u8) {
    // SAFETY: the callers own the reserved range and no longer use it. A refusal does no harm.
    unsafe { VirtualFree(start.cast(), 0, MEM_RELEASE) };
}

// SAFETY: 1: reserved addresses are ours until they are released; 2: newly committed memory reads
// as zero.
unsafe impl Os for Native {
    fn page_bytes(&self) -> usize {
        system_info().page_bytes as usize
    }

    fn processors(&self) -> usize {
        system_info().processor_count as usize
    }

    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if align <= SYSTEM_ALIGN {
            return reserve_at(ptr::null_mut(), bytes);
        }
        // A part of a reserved range cannot be released. So a place is searched for and then
        // reserved, unless another thread reserves it first.
        let padded = bytes.checked_add(align)?;
        (0..TRIES).find_map(|_| {
            let place = reserve_at(ptr::null_mut(), padded)?.as_ptr();
            release(place);
            reserve_at(place.wrapping_add(place.align_offset(align)), bytes)
        })
    }

    unsafe fn release(&self, start: *mut u8, _: usize) {
        release(start);
    }

    unsafe fn commit(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's range.
        let at = unsafe { VirtualAlloc(start.cast(), bytes, MEM_COMMIT, PAGE_READWRITE) };
        !at.is_null()
    }

    unsafe fn decommit(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's range.
        unsafe { VirtualFree(start.cast(), bytes, MEM_DECOMMIT) != 0 }
    }

    unsafe fn discard(&self, start: *mut u8, bytes: usize) -> bool {
        // Cheaper calls promise nothing about the contents.
        // SAFETY: the range is committed and not used during the call.
        if !unsafe { self.decommit(start, bytes) } {
            return false;
        }
        for _ in 0..COMMITS {
            // SAFETY: the caller's range, which is not used now.
            if unsafe { self.commit(start, bytes) } {
                return true;
            }
            std::thread::yield_now();
        }
        say(b"larder: the system refused to commit memory that was just decommitted\n");
        std::process::abort()
    }
}

/// The key that a thread sets for a call at its end.
pub(crate) type Key = u32;

/// Makes a fibre-local value that ends with the thread. Returns `None` if the system has no such
/// value left. Rust's own destructors may run before or after this end. Called once in the life of
/// a process.
pub(crate) fn make_key<E: ThreadEnds>() -> Option<Key> {
    // SAFETY: a function of this library, which is never unloaded while its heap is in use.
    let index = unsafe { FlsAlloc(Some(end_of_thread::<E>)) };
    (index != FLS_OUT_OF_INDEXES).then_some(index)
}

/// Does nothing: no process forks.
pub(crate) const fn watch_forks<F: Forks>() {}

/// Requests a call at the calling thread's end. Returns whether that was possible.
pub(crate) fn set_key(key: Key) -> bool {
    // Any value that is not null makes the function run.
    let some = NonNull::<c_void>::dangling().as_ptr();
    // SAFETY: the index exists.
    unsafe { FlsSetValue(key, some) != 0 }
}

unsafe extern "system" fn end_of_thread<E: ThreadEnds>(_: *const c_void) {
    // SAFETY: called by the system between two calls of the program.
    unsafe { E::end_of_thread() };
}

pub(crate) use std::process::abort;

/// Writes a line to standard error. Ignores failures.
pub(crate) fn say(line: &[u8]) {
    // SAFETY: the call has no conditions.
    let file = unsafe { GetStdHandle(STD_ERROR_HANDLE) };
    let mut written = 0;
    let count = line.len() as u32;
    // SAFETY: the bytes are readable. An invalid handle is refused.
    unsafe { WriteFile(file, line.as_ptr(), count, &mut written, ptr::null_mut()) };
}
