//! Allocations before `main`.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::thread;

use crate::HEAP;
use crate::known::{self, exercise};
use crate::runner::Case;

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "blocks allocated before main live on and can be freed in main",
        blocks_live_on,
    ),
    Case::new("threads started before main allocate", threads_ran),
    Case::new("keys made before the first allocation exist", keys_exist),
];

/// Sizes of the blocks that are allocated before `main`.
const EARLY: [usize; 4] = [24, 3000, 100_000, 1_000_000];

static BLOCKS: [AtomicPtr<u8>; 4] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 4];
static LIVE_BEFORE_MAIN: AtomicU64 = AtomicU64::new(0);
static THREAD_RAN: AtomicU32 = AtomicU32::new(0);

/// A key created before the first allocation, so older than the heap's own.
pub(crate) static OLD_KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// The function that the destructor of [`OLD_KEY`] calls; set by the case.
pub(crate) static OLD_KEY_ACTS: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn old_key_acts(value: *mut libc::c_void) {
    let act = OLD_KEY_ACTS.load(Ordering::Relaxed);
    if !act.is_null() {
        // SAFETY: only functions of this type are stored.
        let act: fn(*mut libc::c_void) = unsafe { std::mem::transmute(act) };
        act(value);
    }
}

/// The C library calls this before `main`.
#[used]
#[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
#[cfg_attr(
    target_vendor = "apple",
    unsafe(link_section = "__DATA,__mod_init_func")
)]
static BEFORE_MAIN: extern "C" fn(c_int, *const *const u8, *const *const u8) = before_main;

extern "C" fn before_main(_: c_int, _: *const *const u8, _: *const *const u8) {
    let mut key = 0;
    // SAFETY: our variable for the key.
    let result = unsafe { libc::pthread_key_create(&mut key, Some(old_key_acts)) };
    assert_eq!(result, 0);
    OLD_KEY.set(key).unwrap();
    for (slot, size) in BLOCKS.iter().zip(EARLY) {
        slot.store(known::make(size), Ordering::Relaxed);
    }
    LIVE_BEFORE_MAIN.store(HEAP.stats().live_bytes, Ordering::Relaxed);
    thread::spawn(|| {
        exercise();
        THREAD_RAN.store(1, Ordering::Relaxed);
    })
    .join()
    .unwrap();
}

fn blocks_live_on() {
    assert!(LIVE_BEFORE_MAIN.load(Ordering::Relaxed) > 1_000_000);
    for (slot, size) in BLOCKS.iter().zip(EARLY) {
        known::free(slot.load(Ordering::Relaxed), size);
    }
    exercise();
}

fn threads_ran() {
    assert_eq!(THREAD_RAN.load(Ordering::Relaxed), 1);
}

fn keys_exist() {
    let key = *OLD_KEY.get().unwrap();
    // SAFETY: the key exists.
    let result = unsafe { libc::pthread_setspecific(key, std::ptr::null()) };
    assert_eq!(result, 0);
}
