//! glibc's additions to the functions of C: older names, the length of a block, statistics, and a
//! way to return memory. There are also the aliases with which programs reach glibc's own
//! functions, because a block from one of them may be passed to the `free` in `c`.

use core::fmt::{self, Write};

use libc::{FILE, c_int, c_void, size_t};

use crate::HEAP;
use crate::c::{aligned_alloc, calloc, free, malloc, posix_memalign, realloc, refuse};

/// Allocates a block at a multiple of `align`, or of the next power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: size_t, bytes: size_t) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => aligned_alloc(align, bytes),
        None => refuse(libc::EINVAL),
    }
}

fn page_bytes() -> size_t {
    // SAFETY: reads a constant of the process.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Allocates a block that starts at the beginning of a page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(bytes: size_t) -> *mut c_void {
    aligned_alloc(page_bytes(), bytes)
}

/// Allocates a block of whole pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(bytes: size_t) -> *mut c_void {
    match bytes.max(1).checked_next_multiple_of(page_bytes()) {
        Some(bytes) => aligned_alloc(page_bytes(), bytes),
        None => refuse(libc::ENOMEM),
    }
}

/// Frees a block, under an old name of `free`.
///
/// # Safety
/// The conditions of `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: the block is the caller's, and the caller gives it up.
    unsafe { free(block) };
}

/// Returns how many bytes of a block the program may use; 0 for null, and if no block starts at
/// the address.
///
/// # Safety
/// None: any address may be passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *const c_void) -> size_t {
    HEAP.usable_size(block.cast()).unwrap_or(0)
}

/// Returns idle memory to the system. Returns 1 if there was any, otherwise 0. Ignores the pad,
/// because there is no single heap with a top to keep.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: size_t) -> c_int {
    c_int::from(HEAP.trim() > 0)
}

/// Returns the statistics of the heap: `arena` and `hblkhd` together are committed memory,
/// `uordblks` is live memory, `fordblks` is the rest, and `keepcost` is memory that a trim would
/// return.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    let stats = HEAP.stats();
    let number = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    libc::mallinfo2 {
        arena: number(stats.committed_bytes),
        ordblks: number(stats.heaps),
        smblks: 0,
        hblks: 0,
        hblkhd: 0,
        usmblks: 0,
        fsmblks: 0,
        uordblks: number(stats.live_bytes),
        fordblks: number(stats.committed_bytes.saturating_sub(stats.live_bytes)),
        keepcost: number(stats.retained_bytes),
    }
}

/// Returns `mallinfo2` in 32-bit numbers, saturated at the largest.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let long = mallinfo2();
    let number = |bytes: usize| c_int::try_from(bytes).unwrap_or(c_int::MAX);
    libc::mallinfo {
        arena: number(long.arena),
        ordblks: number(long.ordblks),
        smblks: 0,
        hblks: 0,
        hblkhd: 0,
        usmblks: 0,
        fsmblks: 0,
        uordblks: number(long.uordblks),
        fordblks: number(long.fordblks),
        keepcost: number(long.keepcost),
    }
}

/// Writes the statistics of the heap to a stream, as XML. The options must be 0.
///
/// # Safety
/// The stream is open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    c_int::from(write_xml(&mut CStream(stream)).is_err())
}

fn write_xml(stream: &mut CStream) -> fmt::Result {
    stream.write_str("<malloc version=\"larder-1\">\n")?;
    for (name, number) in HEAP.stats().fields() {
        writeln!(stream, "<{name}>{number}</{name}>")?;
    }
    stream.write_str("</malloc>\n")
}

/// A stream of the C library that is open for writing.
struct CStream(*mut FILE);

impl Write for CStream {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: as many bytes as the text has, and an open stream.
        match unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), self.0) } == text.len() {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}

/// Standard error.
struct StandardError;

impl Write for StandardError {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the bytes are readable. A failed write cannot be reported.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        Ok(())
    }
}

/// Writes the statistics of the heap to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    write!(StandardError, "{}", HEAP.stats()).ok();
}

/// Ignores a setting of glibc's heap: the environment tunes this heap.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// Allocates as `malloc` does, under glibc's own name.
#[unsafe(no_mangle)]
pub extern "C" fn __libc_malloc(bytes: size_t) -> *mut c_void {
    malloc(bytes)
}

/// Allocates as `calloc` does, under glibc's own name.
#[unsafe(no_mangle)]
pub extern "C" fn __libc_calloc(count: size_t, bytes: size_t) -> *mut c_void {
    calloc(count, bytes)
}

/// Resizes as `realloc` does, under glibc's own name.
///
/// # Safety
/// The conditions of `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_realloc(block: *mut c_void, bytes: size_t) -> *mut c_void {
    // SAFETY: the block is the caller's, and the caller gives it up for another.
    unsafe { realloc(block, bytes) }
}

/// Frees as `free` does, under glibc's own name.
///
/// # Safety
/// The conditions of `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_free(block: *mut c_void) {
    // SAFETY: the block is the caller's, and the caller gives it up.
    unsafe { free(block) };
}

/// Allocates as `memalign` does, under glibc's own name.
#[unsafe(no_mangle)]
pub extern "C" fn __libc_memalign(align: size_t, bytes: size_t) -> *mut c_void {
    memalign(align, bytes)
}

/// Allocates as `valloc` does, under glibc's own name.
#[unsafe(no_mangle)]
pub extern "C" fn __libc_valloc(bytes: size_t) -> *mut c_void {
    valloc(bytes)
}

/// Allocates as `pvalloc` does, under glibc's own name.
#[unsafe(no_mangle)]
pub extern "C" fn __libc_pvalloc(bytes: size_t) -> *mut c_void {
    pvalloc(bytes)
}

/// Allocates as `posix_memalign` does, under glibc's own name.
///
/// # Safety
/// The conditions of `posix_memalign`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __posix_memalign(
    place: *mut *mut c_void,
    align: size_t,
    bytes: size_t,
) -> c_int {
    // SAFETY: `place` is writable.
    unsafe { posix_memalign(place, align, bytes) }
}
