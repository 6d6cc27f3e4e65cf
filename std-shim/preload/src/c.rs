//! The functions of C and POSIX. Each says in `errno` why it gave nothing; a free leaves `errno` alone.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

use heap::Larder;
use libc::{EINVAL, ENOMEM, c_int, c_void, size_t};

use crate::HEAP;

// What is called most starts at a cache line: where it falls by chance, a program may take half as long again. The
// compiler puts each function into a section of its name, of equal ones a single function under either name; the
// section has the largest alignment that anybody asks for.
#[cfg(target_os = "linux")]
core::arch::global_asm!(
    ".irp name, malloc, __libc_malloc, free, __libc_free, calloc, __libc_calloc, realloc, __libc_realloc, \
     _Znwm, _Znam, _ZdlPv, _ZdaPv, _ZdlPvm, _ZdaPvm",
    ".pushsection .text.\\name, \"ax\", @progbits",
    ".p2align 6",
    ".popsection",
    ".endr",
);

/// Says why the calling thread was given nothing.
#[cold]
#[inline(never)]
pub(crate) fn refuse(reason: c_int) -> *mut c_void {
    // SAFETY: the calling thread's own variable.
    unsafe { *libc::__errno_location() = reason };
    ptr::null_mut()
}

/// A block that starts at a multiple of `align`, a power of two; null if there is none.
pub(crate) fn alloc_aligned(heap: &Larder, align: size_t, bytes: size_t) -> *mut u8 {
    match Layout::from_size_align(bytes.max(1), align.max(16)) {
        // SAFETY: the layout is not empty.
        Ok(layout) => unsafe { heap.alloc(layout) },
        Err(_) => ptr::null_mut(),
    }
}

/// At least `bytes` bytes at a multiple of 16. Of nothing, a block all the same.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: size_t) -> *mut c_void {
    HEAP.malloc(bytes).cast()
}

/// Frees a block of any function here; null is nothing.
///
/// # Safety
/// The block is the caller's, and given up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the block is the caller's, and given up.
    unsafe { HEAP.free(block.cast()) };
}

/// A zeroed block of `count` things of `bytes` bytes each.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: size_t, bytes: size_t) -> *mut c_void {
    match count.checked_mul(bytes) {
        Some(bytes) => HEAP.malloc_zeroed(bytes).cast(),
        None => refuse(ENOMEM),
    }
}

/// The block with another length and its contents, here or elsewhere. Null instead of a block asks for a
/// new one; a length of 0 frees, and gives null.
///
/// # Safety
/// The block is the caller's. It is given up if the answer is not null, or the length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, bytes: size_t) -> *mut c_void {
    if block.is_null() {
        return malloc(bytes);
    }
    if bytes == 0 {
        // SAFETY: the block is the caller's, and given up where the length is 0.
        unsafe { HEAP.free(block.cast()) };
        return ptr::null_mut();
    }
    // SAFETY: the block is the caller's, and given up for another.
    unsafe { HEAP.resize(block.cast(), bytes) }.cast()
}

/// Like `realloc`, for `count` things of `bytes` bytes each. A program that has a `realloc` of its own gets
/// its blocks, as with glibc.
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
        // SAFETY: the block is the caller's, and given up for another. By its symbol: it may be
        // the program's.
        Some(bytes) => unsafe { libc::realloc(block, bytes) },
        None => refuse(ENOMEM),
    }
}

/// A block that starts at a multiple of `align`, which must be a power of two.
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

/// Writes a block to `place` that starts at a multiple of `align`, a power of two that is a multiple of a
/// pointer's length. The answer is 0 or the reason; `errno` stays.
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

/// Frees a block of `malloc`, `calloc` or `realloc`. The length is looked at where the heap is hardened.
///
/// # Safety
/// The conditions of `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, bytes: size_t) {
    HEAP.check_layout(block.cast(), bytes, 16);
    // SAFETY: the block is the caller's, and given up.
    unsafe { free(block) };
}

/// Frees a block of `aligned_alloc`. Alignment and length are looked at where the heap is hardened.
///
/// # Safety
/// The conditions of `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, align: size_t, bytes: size_t) {
    HEAP.check_layout(block.cast(), bytes, align);
    // SAFETY: the block is the caller's, and given up.
    unsafe { free(block) };
}
