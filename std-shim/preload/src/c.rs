//! The functions of C and POSIX. Each sets `errno` if it fails; frees leave `errno` unchanged.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

use heap::Larder;
use libc::{EINVAL, ENOMEM, c_int, c_void, size_t};

use crate::HEAP;

// Aligns the most frequently called functions to cache lines: with functions at arbitrary offsets,
// a program may take 1.5 times as long. The compiler puts each function into a section that has the
// function's name, and merges equal functions under either name; the section gets the largest
// alignment requested.
#[cfg(target_os = "linux")]
core::arch::global_asm!(
    ".irp name, malloc, __libc_malloc, free, __libc_free, calloc, __libc_calloc, realloc, __libc_realloc, \
     _Znwm, _Znam, _ZdlPv, _ZdaPv, _ZdlPvm, _ZdaPvm",
    ".pushsection .text.\\name, \"ax\", @progbits",
    ".p2align 6",
    ".popsection",
    ".endr",
);

/// Sets `errno`. Returns null.
#[cold]
#[inline(never)]
pub(crate) fn refuse(reason: c_int) -> *mut c_void {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() = reason };
    ptr::null_mut()
}

/// Allocates a block that starts at a multiple of `align`, a power of two. Returns null if there is
/// no memory.
pub(crate) fn alloc_aligned(heap: &Larder, align: size_t, bytes: size_t) -> *mut u8 {
    match Layout::from_size_align(bytes.max(1), align.max(16)) {
        // SAFETY: the layout is not empty.
        Ok(layout) => unsafe { heap.alloc(layout) },
        Err(_) => ptr::null_mut(),
    }
}

/// Allocates at least `bytes` bytes at a multiple of 16. A request for 0 bytes gets a block, too.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: size_t) -> *mut c_void {
    HEAP.malloc(bytes).cast()
}

/// Frees a block from any function here. Does nothing with null.
///
/// # Safety
/// The block is the caller's, and the caller gives it up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the block is the caller's, and the caller gives it up.
    unsafe { HEAP.free(block.cast()) };
}

/// Allocates a zeroed block of `count` elements of `bytes` bytes each.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: size_t, bytes: size_t) -> *mut c_void {
    match count.checked_mul(bytes) {
        Some(bytes) => HEAP.malloc_zeroed(bytes).cast(),
        None => refuse(ENOMEM),
    }
}

/// Resizes a block, in place or elsewhere, and keeps its contents. Allocates a block if `block` is
/// null. Frees the block and returns null if the length is 0.
///
/// # Safety
/// The block belongs to the caller, who gives it up if the result is not null or the length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, bytes: size_t) -> *mut c_void {
    if block.is_null() {
        return malloc(bytes);
    }
    if bytes == 0 {
        // SAFETY: the block belongs to the caller, who gives it up because the length is 0.
        unsafe { HEAP.free(block.cast()) };
        return ptr::null_mut();
    }
    // SAFETY: the block is the caller's, and the caller gives it up for another.
    unsafe { HEAP.resize(block.cast(), bytes) }.cast()
}

/// Resizes as `realloc` does, to `count` elements of `bytes` bytes each. Calls a program's own
/// `realloc`, as glibc does.
///
/// # Safety
/// The conditions of `realloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(
    block: *mut c_void,
    count: size_t,
    bytes: size_t,
) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the block belongs to the caller, who gives it up for another. The call goes
        // through the symbol: it may be the program's function.
        Some(bytes) => unsafe { libc::realloc(block, bytes) },
        None => refuse(ENOMEM),
    }
}

/// Allocates a block that starts at a multiple of `align`, which must be a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: size_t, bytes: size_t) -> *mut c_void {
    match align.is_power_of_two() {
        true => match alloc_aligned(&HEAP, align, bytes) {
            block if block.is_null() => refuse(ENOMEM),
            block => block.cast(),
        },
        false => refuse(EINVAL),
    }
}

/// Allocates a block that starts at a multiple of `align`, a power of two that is a multiple of a
/// pointer's length, and writes its address to `place`. Returns 0 or an error number; leaves
/// `errno` unchanged.
///
/// # Safety
/// `place` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    place: *mut *mut c_void,
    align: size_t,
    bytes: size_t,
) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return EINVAL;
    }
    let block = alloc_aligned(&HEAP, align, bytes);
    if block.is_null() {
        return ENOMEM;
    }
    // SAFETY: `place` is writable.
    unsafe { *place = block.cast() };
    0
}

/// Frees a block from `malloc`, `calloc` or `realloc`. Checks the length if the heap is hardened.
///
/// # Safety
/// The conditions of `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, bytes: size_t) {
    HEAP.check_layout(block.cast(), bytes, 16);
    // SAFETY: the block is the caller's, and the caller gives it up.
    unsafe { free(block) };
}

/// Frees a block from `aligned_alloc`. Checks the alignment and the length if the heap is hardened.
///
/// # Safety
/// The conditions of `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, align: size_t, bytes: size_t) {
    HEAP.check_layout(block.cast(), bytes, align);
    // SAFETY: the block is the caller's, and the caller gives it up.
    unsafe { free(block) };
}
