//! Larder's additions to malloc, for programs that include `larder.h`: statistics, trim, settings,
//! steps, and heaps as values. The header documents each function.

use core::alloc::Layout;
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};
use core::time::Duration;

use allocator_api2::alloc::Allocator;
use heap::{Heap, OnMisuse, Step};
use libc::{c_char, c_int, size_t};

use crate::HEAP;
use crate::c::refuse;

/// `larder_counters`: new numbers are appended only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Counters {
    live_bytes: u64,
    large_bytes: u64,
    span_bytes: u64,
    committed_bytes: u64,
    resident_bytes: u64,
    reserved_bytes: u64,
    retained_bytes: u64,
    purged_bytes: u64,
    heaps: u64,
    steps: u64,
    known_steps: u64,
    kept_bytes: u64,
}

/// Writes as many of the statistics as fit into `bytes` bytes. Returns the length of all of them.
///
/// # Safety
/// `into` is writable for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_stats(into: *mut Counters, bytes: size_t) -> size_t {
    let now = HEAP.stats();
    let numbers = Counters {
        live_bytes: now.live_bytes,
        large_bytes: now.large_bytes,
        span_bytes: now.span_bytes,
        committed_bytes: now.committed_bytes,
        resident_bytes: now.resident_bytes,
        reserved_bytes: now.reserved_bytes,
        retained_bytes: now.retained_bytes,
        purged_bytes: now.purged_bytes,
        heaps: now.heaps,
        steps: now.steps.steps,
        known_steps: now.steps.known_steps,
        kept_bytes: now.kept_bytes,
    };
    let known = bytes.min(size_of::<Counters>());
    let from = (&raw const numbers).cast::<u8>();
    // SAFETY: `into` is writable for this many bytes; the numbers are plain, and at least as
    // long.
    unsafe { ptr::copy_nonoverlapping(from, into.cast::<u8>(), known) };
    size_of::<Counters>()
}

/// Returns idle memory to the system. Returns how many bytes of it were resident.
#[unsafe(no_mangle)]
pub extern "C" fn larder_trim() -> u64 {
    HEAP.trim()
}

/// Sets after how many milliseconds freed memory returns to the system; `u64::MAX` for never.
/// Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn larder_set_purge_after(milliseconds: u64) -> c_int {
    HEAP.set_purge_after(Duration::from_millis(milliseconds));
    0
}

/// Sets how many bytes the heap should hold at most; `u64::MAX` for no limit. Returns 0, or
/// `EINVAL` for 0 bytes.
#[unsafe(no_mangle)]
pub extern "C" fn larder_set_memory_limit(bytes: u64) -> c_int {
    if bytes == 0 {
        return libc::EINVAL;
    }
    HEAP.set_memory_limit(bytes);
    0
}

/// A C function that receives reports of misuse.
type Hook = extern "C" fn(*const c_char, size_t);

/// A [`Hook`], or null.
static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

fn tell(report: &str) {
    // Relaxed: a function exists from the program's start.
    let hook = HOOK.load(Ordering::Relaxed);
    // SAFETY: null or a function of this type.
    let hook = unsafe { mem::transmute::<*mut (), Option<Hook>>(hook) };
    if let Some(hook) = hook {
        hook(report.as_ptr().cast(), report.len());
    }
}

/// Sets how the heap reacts to misuse: it calls `hook`, or ends the process if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn larder_on_misuse(hook: Option<Hook>) {
    let word = hook.map_or(ptr::null_mut(), |hook| hook as *mut ());
    HOOK.store(word, Ordering::Relaxed);
    HEAP.on_misuse(match hook {
        Some(_) => OnMisuse::Call(tell),
        None => OnMisuse::Abort,
    });
}

/// Begins a step of the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn larder_step_begin(key: u64) {
    // `larder_step_end` ends it.
    core::mem::forget(heap::step_keyed(key));
}

/// Ends the step that the calling thread began last. Does nothing if there is no step.
#[unsafe(no_mangle)]
pub extern "C" fn larder_step_end() {
    drop(Step::resume());
}

/// Creates a separate heap. Returns null if there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn larder_heap_new() -> *mut Heap {
    let place = HEAP.malloc(size_of::<Heap>()).cast::<Heap>();
    if !place.is_null() {
        // SAFETY: a block of ours, that long; the alignment of a heap is at most 16.
        unsafe { place.write(Heap::new()) };
    }
    place
}

const _: () = assert!(align_of::<Heap>() <= 16);

/// Frees a heap with all its blocks. Does nothing with null.
///
/// # Safety
/// The heap and its blocks belong to the caller, who gives them up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_heap_delete(heap: *mut Heap) {
    if heap.is_null() {
        return;
    }
    // SAFETY: a heap of `larder_heap_new`, in a block of its own; the caller gives it up with all
    // its blocks.
    unsafe {
        heap.drop_in_place();
        HEAP.free(heap.cast());
    }
}

/// Frees all blocks of a heap.
///
/// # Safety
/// The heap is the caller's, and its blocks are given up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_heap_reset(heap: *mut Heap) {
    // SAFETY: the heap is the caller's, and its blocks are given up.
    unsafe { (*heap).reset() };
}

fn layout(bytes: size_t, align: size_t) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), align).ok()
}

/// Refuses an invalid layout: the alignment is not a power of two, or the length exceeds that of
/// any block.
fn no_layout(align: size_t) -> *mut u8 {
    let reason = match align.is_power_of_two() {
        true => libc::ENOMEM,
        false => libc::EINVAL,
    };
    refuse(reason).cast()
}

/// Allocates a block. Returns null with `errno` set on failure.
///
/// # Safety
/// The heap is the caller's, and used by no other thread during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_heap_alloc(
    heap: *const Heap,
    bytes: size_t,
    align: size_t,
) -> *mut u8 {
    let Some(layout) = layout(bytes, align) else {
        return no_layout(align);
    };
    // SAFETY: the heap is the caller's, used by no other thread during the call.
    match unsafe { &*heap }.allocate(layout) {
        Ok(block) => block.cast().as_ptr(),
        Err(_) => refuse(libc::ENOMEM).cast(),
    }
}

/// Frees a block. Does nothing with null.
///
/// # Safety
/// The heap is the caller's, and used by no other thread during the call; the block is one of
/// this heap, with this length and alignment, and the caller gives it up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_heap_free(
    heap: *const Heap,
    block: *mut u8,
    bytes: size_t,
    align: size_t,
) {
    if let (Some(block), Some(layout)) = (NonNull::new(block), layout(bytes, align)) {
        // SAFETY: the heap is the caller's, used by no other thread during the call; the block is
        // one of this heap, with this layout, and the caller gives it up.
        unsafe { (&*heap).deallocate(block, layout) };
    }
}

/// Resizes a block and keeps its contents. On failure, returns null with `errno` set and leaves
/// the block unchanged.
///
/// # Safety
/// The heap is the caller's, and used by no other thread during the call; the block is one of
/// this heap, with this length and alignment. The caller gives it up if the result is not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_heap_resize(
    heap: *const Heap,
    block: *mut u8,
    bytes: size_t,
    align: size_t,
    new_bytes: size_t,
) -> *mut u8 {
    let (Some(old), Some(new)) = (layout(bytes, align), layout(new_bytes, align)) else {
        return no_layout(align);
    };
    let Some(block) = NonNull::new(block) else {
        // SAFETY: the heap is the caller's, used by no other thread during the call.
        return unsafe { larder_heap_alloc(heap, new_bytes, align) };
    };
    // SAFETY: the heap is the caller's, used by no other thread during the call; the block is one
    // of this heap, with the old layout, and the caller gives it up for another.
    let resized = unsafe {
        match new.size() >= old.size() {
            true => (&*heap).grow(block, old, new),
            false => (&*heap).shrink(block, old, new),
        }
    };
    match resized {
        Ok(block) => block.cast().as_ptr(),
        Err(_) => refuse(libc::ENOMEM).cast(),
    }
}

/// Returns the live bytes of a heap.
///
/// # Safety
/// The heap is the caller's, and used by no other thread during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_heap_live_bytes(heap: *const Heap) -> u64 {
    // SAFETY: the heap is the caller's, used by no other thread during the call.
    unsafe { &*heap }.stats().live_bytes
}
