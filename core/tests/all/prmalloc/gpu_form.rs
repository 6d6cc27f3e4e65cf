//! Upstream's GPU form alone: virtual blocks take turns, and a block of the backend may be released when the next
//! step begins.

use std::sync::atomic::Ordering;

use larder_core::{Addr, FreeError};
use larder_model::prmalloc::{Form, Window};

use crate::prmalloc::books::align;
use crate::prmalloc::rig::{AnyPool, CountedBackend, InUse, OverMock, Upstream, planned, upstream};

/// Upstream's GPU form with its asynchronous free, planned from one step.
fn soon() -> Upstream {
    let form = Form {
        window: Window::EachStart { start: 0, stop: 1 },
        late_frees: true,
        ..Form::GPU
    };
    upstream(form, false)
}

/// The GPU form, but it has no plan for a while.
fn never_planned() -> Upstream {
    let form = Form {
        late_frees: true,
        ..Form::GPU
    };
    upstream(form, false)
}

fn next_step(pool: &Upstream) {
    pool.in_step(&mut || ()).unwrap();
}

#[test]
fn pr_gpu_presets_are_those_of_the_forms() {
    let of = |form: Form| (form.late_frees, form.one_slab, form.unit);
    assert_eq!(of(Form::CPU), (false, false, align(64)));
    assert_eq!(of(Form::GPU), (false, true, align(256)));
    assert_eq!(Form::GPU.window, Window::EACH_START);
}

#[test]
fn pr_gpu_a_block_of_the_backend_goes_back_when_the_next_step_begins() {
    let pool = never_planned();
    let blocks = [50_000, 60_000].map(|bytes| pool.alloc(bytes, align(256)).unwrap());
    let held = pool.counts().direct_bytes;
    pool.free(blocks[0]).unwrap();
    assert_eq!(pool.free(blocks[0]), Err(FreeError::Unknown), "once");
    assert_eq!(
        (pool.backend().calls(), pool.counts().direct_bytes),
        ((2, 0), held)
    );
    next_step(&pool);
    assert_eq!(pool.backend().calls(), (2, 1));
    assert_eq!(pool.counts().direct_bytes, pool.backend().out_bytes());
    assert_eq!(pool.free(blocks[0]), Err(FreeError::Unknown));
    pool.free(blocks[1]).unwrap();
    next_step(&pool);
    assert_eq!(
        (pool.backend().out_bytes(), pool.counts().direct_bytes),
        (0, 0)
    );
}

#[test]
fn pr_gpu_a_queued_block_that_is_refused_is_offered_with_the_step_after() {
    let pool = never_planned();
    let blocks = [1, 2, 3].map(|_| pool.alloc(50_000, align(256)).unwrap());
    blocks
        .into_iter()
        .for_each(|block| pool.free(block).unwrap());
    pool.backend().refuse_releases.store(2, Ordering::SeqCst);
    next_step(&pool);
    assert_eq!(pool.backend().calls(), (3, 1));
    assert_eq!(pool.counts().direct_bytes, pool.backend().out_bytes());
    next_step(&pool);
    assert_eq!(
        (pool.backend().out_bytes(), pool.counts().direct_bytes),
        (0, 0)
    );
}

#[test]
fn pr_gpu_a_queued_block_counts_as_freed_when_it_was() {
    // Freed one before the other's beginning: one block of the plan serves both.
    let ops = "0=50000@256 -0 1=50000@256 -1";
    let pool = planned(soon(), ops);
    assert_eq!(pool.counts().slab_bytes, 53_248, "50,000 in steps of 4 KiB");
}

/// Two blocks of 50,000 bytes alive at once: the older borrows from 100,000, the newer from 200,000.
const BORROWERS: &str = "0=200000 1=100000 -0 -1 2=50000 3=50000 -2 -3";

/// A pool with that plan, and where its two blocks lie: the larger, the smaller.
fn borrowers() -> (Upstream, Addr, Addr) {
    let pool = planned(soon(), BORROWERS);
    let large = pool.alloc(200_000, align(64)).unwrap();
    let small = pool.alloc(100_000, align(64)).unwrap();
    pool.free(large).unwrap();
    pool.free(small).unwrap();
    next_step(&pool);
    (pool, large, small)
}

#[test]
fn pr_gpu_virtual_blocks_take_turns_from_the_oldest_in_each_step() {
    let (pool, large, small) = borrowers();
    let once = || {
        let block = pool.alloc(50_000, align(64)).unwrap();
        pool.free(block).unwrap();
        block
    };
    assert_eq!([once(), once(), once()], [small, large, small]);
    next_step(&pool);
    assert_eq!([once(), once()], [small, large], "from the oldest again");
}

#[test]
fn pr_gpu_a_turn_whose_block_is_in_use_is_a_miss() {
    let (pool, _, small) = borrowers();
    let mut in_use = InUse::default();
    assert_eq!(in_use.alloc(&pool, 0, 100_000, 64), small);
    let before = pool.counts();
    in_use.alloc(&pool, 1, 50_000, 64);
    assert_eq!(pool.counts().missed, before.missed + 1, "only one is tried");
    in_use.alloc(&pool, 2, 50_000, 64);
    assert_eq!(
        pool.counts().hits,
        before.hits + 1,
        "the next turn's is free"
    );
    in_use.free_all(&pool);
}

#[test]
fn pr_gpu_a_bin_may_borrow_more_than_was_planned() {
    let ops = "0=100000 1=100000 -0 -1 2=50000 -2";
    let pool = planned(soon(), ops);
    let hits = pool.counts().hits;
    let mut in_use = InUse::default();
    in_use.alloc(&pool, 0, 50_000, 64);
    in_use.alloc(&pool, 1, 50_000, 64);
    assert_eq!(pool.counts().hits, hits + 2, "one was planned");
    in_use.free_all(&pool);
}
