//! Scopes by single calls, over scripted allocators. One test at a time: nodes are counted.

use std::alloc::System;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{panic, thread};

use larder_core::sync::{AtomicU32, Ordering};

use super::node::EXISTING;
use super::*;

static TURN: Mutex<()> = Mutex::new(());
static REFUSES: AtomicU32 = AtomicU32::new(0);

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `System`, which refuses on request, and moves every block that changes its size.
struct Moving;

// SAFETY: `System`'s blocks.
unsafe impl GlobalAlloc for Moving {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if REFUSES.load(Ordering::Relaxed) != 0 {
            return std::ptr::null_mut();
        }
        // SAFETY: the layout is not empty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is `System`'s, has this layout, and the caller gives it up.
        unsafe { System.dealloc(block, layout) };
    }
}

/// An allocator whose blocks stay in place up to 4096 bytes.
struct InPlace;

const ROOM: Layout = match Layout::from_size_align(4096, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

// SAFETY: `System`'s blocks, all of one layout.
unsafe impl GlobalAlloc for InPlace {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        // SAFETY: a size that is not 0.
        unsafe { System.alloc(ROOM) }
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: from `alloc`.
        unsafe { System.dealloc(block, ROOM) };
    }

    unsafe fn realloc(&self, block: *mut u8, _: Layout, _: usize) -> *mut u8 {
        block
    }
}

static HEAP: Tracking<Moving> = Tracking::new(Moving);
static FIXED: Tracking<InPlace> = Tracking::new(InPlace);

#[derive(Clone, Copy)]
struct Block(*mut u8, Layout);

// SAFETY: the owner of the value may use the memory.
unsafe impl Send for Block {}

fn alloc_in(heap: &impl GlobalAlloc, bytes: usize, align: usize) -> Block {
    let layout = Layout::from_size_align(bytes, align).unwrap();
    // SAFETY: no test asks for zero bytes.
    let block = unsafe { heap.alloc(layout) };
    assert!(block.is_null() || block.addr().is_multiple_of(align));
    Block(block, layout)
}

fn alloc(bytes: usize) -> Block {
    alloc_in(&HEAP, bytes, 8)
}

fn free_in(heap: &impl GlobalAlloc, block: Block) {
    // SAFETY: each test frees its blocks once.
    unsafe { heap.dealloc(block.0, block.1) };
}

fn free(block: Block) {
    free_in(&HEAP, block);
}

fn resize_in(heap: &impl GlobalAlloc, block: Block, bytes: usize) -> Block {
    // SAFETY: each test uses the newest value of a block only.
    let moved = unsafe { heap.realloc(block.0, block.1, bytes) };
    Block(
        moved,
        Layout::from_size_align(bytes, block.1.align()).unwrap(),
    )
}

fn live(report: ScopeReport) -> (u64, u64) {
    (report.total.live_blocks, report.total.live_bytes)
}

#[test]
fn st_1_one_thread_allocates_and_frees() {
    let _turn = turn();
    let scope = Scope::begin();
    let (small, large) = (alloc(100), alloc(200));
    free(small);
    let total = scope.report().total;
    assert_eq!((total.allocations, total.allocated_bytes), (2, 300));
    assert_eq!((total.high_water_bytes, total.live_bytes), (300, 200));
    assert_eq!(scope.report().own, total);
    free(large);
    assert_eq!(live(scope.report()), (0, 0));
}

#[test]
fn st_2_nested_scopes_have_their_own_numbers_and_roll_up() {
    let _turn = turn();
    let outer = Scope::begin();
    let first = alloc(100);
    let inner = Scope::begin();
    let second = alloc(40);
    free(first);
    let report = inner.report();
    assert_eq!((report.own.live_bytes, report.total.live_bytes), (40, 40));
    assert_eq!(report.total.foreign_frees, 0);
    let report = outer.report();
    assert_eq!((report.own.live_bytes, report.total.live_bytes), (0, 40));
    assert_eq!(
        (report.own.allocated_bytes, report.total.allocated_bytes),
        (100, 140)
    );
    assert_eq!(
        (report.own.high_water_bytes, report.total.high_water_bytes),
        (100, 140)
    );
    drop(inner);
    let third = alloc(7);
    assert_eq!(outer.report().own.allocations, 2);
    free(second);
    free(third);
    assert_eq!(live(outer.report()), (0, 0));
    assert!(!outer.report().cut_short);
}

#[test]
fn st_3_two_threads_at_once_have_disjoint_numbers() {
    let _turn = turn();
    let barrier = std::sync::Barrier::new(2);
    let section = |bytes: usize, count: u64| {
        let scope = Scope::begin();
        barrier.wait();
        for _ in 0..count {
            free(alloc(bytes));
        }
        barrier.wait();
        let total = scope.report().total;
        assert_eq!(total.allocations, count);
        assert_eq!(total.allocated_bytes, count * bytes as u64);
        assert_eq!(total.high_water_bytes, bytes as u64);
    };
    thread::scope(|threads| {
        threads.spawn(|| section(10, 3000));
        threads.spawn(|| section(1000, 5000));
    });
}

#[test]
fn st_4_a_free_on_another_thread_after_the_end_counts_and_frees_the_books() {
    let _turn = turn();
    let before = EXISTING.load(Ordering::Relaxed);
    let scope = Scope::begin();
    let handle = scope.handle();
    let (one, two) = (alloc(64), alloc(36));
    drop(scope);
    assert_eq!(live(handle.report()), (2, 100));
    thread::spawn(move || free(one)).join().unwrap();
    let report = handle.report();
    assert_eq!(live(report), (1, 36));
    assert_eq!(
        (report.total.freed_after_end_bytes, report.ended),
        (64, true)
    );
    drop(handle);
    // The last block keeps them alive.
    assert_eq!(EXISTING.load(Ordering::Relaxed), before + 1);
    thread::spawn(move || free(two)).join().unwrap();
    assert_eq!(EXISTING.load(Ordering::Relaxed), before);
    assert!(!blocks::any());
}

#[test]
fn st_5_a_panic_inside_a_scope_restores_the_one_around_it() {
    let _turn = turn();
    let outer = Scope::begin();
    let caught = panic::catch_unwind(|| {
        let _inner = Scope::begin();
        let _deeper = Scope::begin();
        panic::resume_unwind(Box::new(()));
    });
    assert!(caught.is_err());
    free(alloc(11));
    assert_eq!(outer.report().own.allocated_bytes, 11);
    drop(outer);
    assert!(!stack::is_inside());
}

#[test]
fn st_6_what_the_code_of_a_report_allocates_is_not_counted() {
    let _turn = turn();
    let scope = Scope::begin();
    let counted = alloc(8);
    let kept = uncounted(|| {
        let kept = alloc(1000);
        free(counted);
        kept
    });
    let total = scope.report().total;
    assert_eq!((total.allocated_bytes, total.live_bytes), (8, 0));
    free(kept);
    assert_eq!(scope.report().total.foreign_frees, 1);
    let caught = panic::catch_unwind(|| uncounted(|| panic::resume_unwind(Box::new(()))));
    assert!(caught.is_err());
    free(alloc(5));
    assert_eq!(scope.report().total.allocations, 2);
}

#[test]
fn scopes_that_end_in_the_wrong_order_are_cut_short_and_harm_no_other() {
    let _turn = turn();
    let before = EXISTING.load(Ordering::Relaxed);
    let around = Scope::begin();
    let outer = Scope::begin();
    let inner = Scope::begin();
    free(alloc(1));
    drop(outer);
    free(alloc(10));
    assert_eq!(around.report().total.allocated_bytes, 11);
    assert!(inner.report().cut_short && !around.report().cut_short);
    let newer = Scope::begin();
    drop(inner);
    free(alloc(100));
    assert_eq!(newer.report().total.allocated_bytes, 100);
    drop(newer);
    free(alloc(1000));
    assert_eq!(around.report().own.allocated_bytes, 1010);
    drop(around);
    assert!(!stack::is_inside());
    assert_eq!(EXISTING.load(Ordering::Relaxed), before);
}

#[test]
fn a_forgotten_scope_ends_with_the_one_around_it() {
    let _turn = turn();
    let outer = Scope::begin();
    let inner = Scope::begin();
    let handle = inner.handle();
    std::mem::forget(inner);
    std::mem::forget(handle.enter());
    free(alloc(3));
    drop(outer);
    assert!(!stack::is_inside() && handle.report().cut_short);
    assert_eq!(handle.report().total.allocated_bytes, 3);
}

#[test]
fn a_handle_counts_on_a_worker_to_its_scope_and_those_around_it() {
    let _turn = turn();
    let outer = Scope::begin();
    let inner = Scope::begin();
    let handle = inner.handle();
    let block = thread::spawn(move || {
        let own = Scope::begin();
        let entered = handle.enter();
        let block = alloc(50);
        let nested = Scope::begin();
        free(alloc(5));
        assert_eq!(nested.report().total.allocations, 1);
        drop(nested);
        drop(entered);
        free(alloc(500));
        assert_eq!(own.report().total.allocated_bytes, 500);
        block
    });
    let block = block.join().unwrap();
    assert_eq!(inner.report().total.allocated_bytes, 55);
    assert_eq!(inner.report().own.allocated_bytes, 50);
    assert_eq!(outer.report().total.live_bytes, 50);
    free(block);
    assert_eq!(outer.report().total.live_bytes, 0);
}

#[test]
fn a_realloc_is_a_new_block_here_and_a_free_there() {
    let _turn = turn();
    let outside = alloc(10);
    let first = Scope::begin();
    let block = resize_in(&HEAP, outside, 30);
    let total = first.report().total;
    assert_eq!((total.foreign_frees, total.live_bytes), (1, 30));
    let second = Scope::begin();
    let block = resize_in(&HEAP, block, 50);
    assert_eq!(second.report().own.live_bytes, 50);
    let report = first.report();
    assert_eq!((report.own.live_bytes, report.total.live_bytes), (0, 50));
    // Both are live during the move.
    assert_eq!(report.total.high_water_bytes, 80);
    drop(second);
    drop(first);
    let scope = Scope::begin();
    let block = resize_in(&HEAP, block, 60);
    drop(scope);
    let block = resize_in(&HEAP, block, 70);
    assert!(!blocks::any());
    free(block);
}

#[test]
fn a_realloc_in_place_never_has_both_live() {
    let _turn = turn();
    let scope = Scope::begin();
    let block = alloc_in(&FIXED, 1000, 1);
    let block = resize_in(&FIXED, block, 3000);
    let total = scope.report().total;
    assert_eq!((total.high_water_bytes, total.live_bytes), (3000, 3000));
    free_in(&FIXED, block);
    assert_eq!(live(scope.report()), (0, 0));
}

#[test]
fn what_fails_is_counted_and_leaves_the_block_whose_it_was() {
    let _turn = turn();
    let scope = Scope::begin();
    let block = alloc(10);
    let inner = Scope::begin();
    REFUSES.store(1, Ordering::Relaxed);
    assert!(alloc(10).0.is_null());
    assert!(resize_in(&HEAP, block, 20).0.is_null());
    REFUSES.store(0, Ordering::Relaxed);
    assert_eq!(inner.report().own.failures, 2);
    assert_eq!(scope.report().own.failures, 0);
    assert_eq!(live(scope.report()), (1, 10));
    free(block);
    let total = scope.report().total;
    assert_eq!(
        (total.live_bytes, total.foreign_frees, total.failures),
        (0, 0, 2)
    );
}

#[test]
fn any_alignment_is_passed_on() {
    let _turn = turn();
    let scope = Scope::begin();
    for shift in 0..=12 {
        let heap = Tracking::new(System);
        free_in(&heap, alloc_in(&heap, 3, 1 << shift));
    }
    assert_eq!(scope.report().total.allocated_bytes, 39);
    assert_eq!(live(scope.report()), (0, 0));
}

#[test]
fn one_decorator_inside_another_counts_once() {
    let _turn = turn();
    let twice = Tracking::new(Tracking::new(System));
    let outside = alloc_in(&twice, 9, 1);
    let scope = Scope::begin();
    let block = alloc_in(&twice, 100, 8);
    let block = resize_in(&twice, block, 200);
    free_in(&twice, block);
    free_in(&twice, outside);
    let total = scope.report().total;
    assert_eq!(
        (total.allocations, total.foreign_frees, total.live_blocks),
        (2, 1, 0)
    );
}

#[test]
fn blocks_cross_threads_and_scopes_and_none_is_lost() {
    let _turn = turn();
    let before = EXISTING.load(Ordering::Relaxed);
    let shelf: Vec<Mutex<Option<Block>>> = (0..64).map(|_| Mutex::new(None)).collect();
    let work = |seed: u64| -> Vec<ScopeHandle> {
        let mut state = seed;
        let mut handles = Vec::new();
        for round in 0..200_usize {
            let scope = Scope::begin();
            handles.push(scope.handle());
            for step in 0..50_usize {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let place = &shelf[(state >> 40) as usize % shelf.len()];
                let new = alloc(1 + (round * step) % 300);
                let old = place.lock().unwrap().replace(new);
                if let Some(old) = old {
                    free(if step % 3 == 0 {
                        resize_in(&HEAP, old, 77)
                    } else {
                        old
                    });
                }
            }
        }
        handles
    };
    let mut handles: Vec<ScopeHandle> = Vec::new();
    thread::scope(|threads| {
        let running: Vec<_> = (1..4)
            .map(|seed| {
                let work = &work;
                threads.spawn(move || work(seed))
            })
            .collect();
        handles.extend(
            running
                .into_iter()
                .flat_map(|thread| thread.join().unwrap()),
        );
    });
    for block in shelf
        .iter()
        .filter_map(|place| place.lock().unwrap().take())
    {
        free(block);
    }
    for handle in &handles {
        let report = handle.report();
        assert_eq!(live(report), (0, 0));
        assert!(report.total.allocations >= 50 && report.total.lost_blocks == 0);
    }
    drop(handles);
    assert_eq!(EXISTING.load(Ordering::Relaxed), before);
    assert!(!blocks::any());
}
