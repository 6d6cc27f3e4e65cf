//! Samples by single calls. One test at a time: the marks are the process's.

#[cfg(feature = "pprof")]
mod pprof;

use std::alloc::System;
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_core::sync::AtomicUsize;

use super::*;

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static SEEN: Cell<(u64, f64, f64, i64)> = const { Cell::new((0, 0.0, 0.0, 0)) };
    static VICTIM: Cell<usize> = const { Cell::new(0) };
}

/// Samples, the blocks and bytes they stand for, and the live ones.
fn hook(sample: &Sample) {
    let (samples, blocks, bytes, live) = SEEN.get();
    match sample.event {
        SampleEvent::Allocated => SEEN.set((
            samples + 1,
            blocks + sample.weight,
            bytes + sample.weight * sample.bytes as f64,
            live + 1,
        )),
        SampleEvent::Freed => SEEN.set((samples, blocks, bytes, live - 1)),
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).unwrap()
}

fn alloc(heap: &impl GlobalAlloc, bytes: usize) -> *mut u8 {
    // SAFETY: no test asks for zero bytes.
    unsafe { heap.alloc(layout(bytes)) }
}

fn free(heap: &impl GlobalAlloc, block: *mut u8, bytes: usize) {
    // SAFETY: each test frees its blocks once.
    unsafe { heap.dealloc(block, layout(bytes)) };
}

#[test]
fn blocks_and_bytes_are_estimated_without_bias_at_any_size() {
    let _turn = turn();
    let heap = Profiled::new(System, 1000, hook);
    // The count is the process's, and another test drops some samples.
    let before = heap.dropped();
    for bytes in [8, 100, 1000, 5000, 100_000] {
        let rounds = 4_000_000 / bytes + 2000;
        SEEN.set((0, 0.0, 0.0, 0));
        for _ in 0..rounds {
            free(&heap, alloc(&heap, bytes), bytes);
        }
        let (samples, blocks, estimate, live) = SEEN.get();
        // Five standard deviations of this many samples are less than that.
        let off = blocks / rounds as f64 - 1.0;
        let sampled = 1.0 / countdown::weight(bytes as u64, 1000);
        let deviation = ((1.0 - sampled) / (sampled * rounds as f64)).sqrt();
        assert!(
            off.abs() <= 5.0 * deviation + 1e-9,
            "{bytes}: {samples} samples, {off}"
        );
        assert!((estimate / blocks - bytes as f64).abs() < 1e-6 * bytes as f64);
        assert_eq!(live, 0);
    }
    assert_eq!(heap.dropped(), before);
}

#[test]
fn a_mean_of_one_or_none_samples_every_block() {
    let _turn = turn();
    for mean in [0, 1] {
        std::thread::spawn(move || {
            let heap = Profiled::new(System, mean, hook);
            // The gaps of a mean of 1 are sometimes longer than a byte.
            for _ in 0..100 {
                free(&heap, alloc(&heap, 64), 64);
            }
            let (samples, blocks, ..) = SEEN.get();
            assert_eq!((samples, blocks), (100, 100.0));
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_realloc_frees_the_old_sample_and_one_that_fails_does_not() {
    let _turn = turn();
    let heap = Profiled::new(System, 0, hook);
    SEEN.set((0, 0.0, 0.0, 0));
    let block = alloc(&heap, 100);
    // SAFETY: a block of that layout.
    let block = unsafe { heap.realloc(block, layout(100), 5000) };
    assert_eq!(SEEN.get().0, 2);
    assert_eq!(SEEN.get().3, 1);
    // SAFETY: a block of that layout, which stays if there is no memory.
    let none = unsafe { heap.realloc(block, layout(5000), isize::MAX as usize - 4096) };
    assert!(none.is_null());
    assert_eq!((SEEN.get().0, SEEN.get().3), (2, 1));
    free(&heap, block, 5000);
    assert_eq!(SEEN.get().3, 0);
}

static EVERY: Profiled<System> = Profiled::new(System, 0, allocating_hook);

/// Allocates and frees a block of its own, and frees the one that was left for it.
fn allocating_hook(sample: &Sample) {
    free(&EVERY, alloc(&EVERY, 10), 10);
    let victim = VICTIM.replace(0);
    if victim != 0 {
        free(&EVERY, std::ptr::with_exposed_provenance_mut(victim), 30);
    }
    hook(sample);
}

#[test]
fn a_hook_may_allocate_and_free_and_is_told_of_that_free_afterwards() {
    let _turn = turn();
    SEEN.set((0, 0.0, 0.0, 0));
    let victim = alloc(&EVERY, 30);
    assert_eq!(SEEN.get().3, 1);
    VICTIM.set(victim.expose_provenance());
    let block = alloc(&EVERY, 20);
    assert_eq!((SEEN.get().0, SEEN.get().3), (2, 1));
    free(&EVERY, block, 20);
    assert_eq!((SEEN.get().0, SEEN.get().3), (2, 0));
}

#[test]
fn a_section_without_samples_takes_none_and_tells_of_frees_at_its_end() {
    let _turn = turn();
    SEEN.set((0, 0.0, 0.0, 0));
    let heap = Profiled::new(System, 0, hook);
    let block = alloc(&heap, 10);
    unsampled(|| {
        free(&heap, alloc(&heap, 10), 10);
        free(&heap, block, 10);
        assert_eq!(SEEN.get().3, 1);
    });
    assert_eq!((SEEN.get().0, SEEN.get().3), (1, 0));
    let caught = std::panic::catch_unwind(|| unsampled(|| std::panic::resume_unwind(Box::new(()))));
    assert!(caught.is_err());
    free(&heap, alloc(&heap, 10), 10);
    assert_eq!(SEEN.get().0, 2);
}

#[test]
fn samples_for_which_there_is_no_place_are_dropped_whole_and_counted() {
    let _turn = turn();
    SEEN.set((0, 0.0, 0.0, 0));
    let heap = Profiled::new(System, 0, hook);
    let before = heap.dropped();
    let blocks: Vec<_> = (0..60_000).map(|_| alloc(&heap, 16)).collect();
    let told = SEEN.get().0;
    assert_eq!(told + heap.dropped() - before, 60_000);
    assert!(told <= 32_768 && told > 20_000, "{told}");
    for block in blocks {
        free(&heap, block, 16);
    }
    assert_eq!(SEEN.get().3, 0);
}

#[test]
fn threads_that_free_each_others_samples_lose_none() {
    let _turn = turn();
    static TOLD: AtomicU64 = AtomicU64::new(0);
    static FREED: AtomicU64 = AtomicU64::new(0);
    fn count(sample: &Sample) {
        let counter = match sample.event {
            SampleEvent::Allocated => &TOLD,
            SampleEvent::Freed => &FREED,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
    let heap = Profiled::new(System, 0, count);
    let shelf: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
    let swap = |place: &AtomicUsize, new: *mut u8| {
        let old = place.swap(new.expose_provenance(), Ordering::AcqRel);
        if old != 0 {
            free(&heap, std::ptr::with_exposed_provenance_mut(old), 24);
        }
    };
    let before = heap.dropped();
    std::thread::scope(|threads| {
        for thread in 1..4 {
            let (shelf, swap) = (&shelf, &swap);
            threads.spawn(move || {
                for round in 0..20_000 {
                    swap(&shelf[round * thread % 64], alloc(&heap, 24));
                }
            });
        }
    });
    for place in &shelf {
        swap(place, std::ptr::null_mut());
    }
    let told = TOLD.load(Ordering::Relaxed);
    assert_eq!(FREED.load(Ordering::Relaxed), told);
    assert_eq!(told + heap.dropped() - before, 60_000);
}
