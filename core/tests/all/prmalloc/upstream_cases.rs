//! Upstream's own test cases, taken from the model, over each form of the pool.

use std::sync::atomic::Ordering;

use larder_core::prmalloc::PlannedPoolConfig;
use larder_model::prmalloc::{Form, cases};

use crate::prmalloc::books::MIB;
use crate::prmalloc::rig::{OverMock, pool_with, upstream};

/// Runs a test on upstream's CPU form, on its GPU form with a device of 1 GiB, and on ours. Tells it whether sizes up
/// to 32 KiB are planned.
fn each_form(test: impl Fn(&dyn OverMock, bool)) {
    test(&upstream(Form::CPU, false), false);
    let device = upstream(Form::GPU, true);
    device
        .backend()
        .capacity_bytes
        .store(1 << 30, Ordering::SeqCst);
    test(&device, true);
    test(&pool_with(PlannedPoolConfig::new(), true, 1 << 13), true);
}

#[test]
fn upstream_single_blocks() {
    each_form(|pool, _| cases::single_blocks(pool));
}

#[test]
fn upstream_loop_of_sizes_on_one_thread_and_on_three() {
    each_form(|pool, _| cases::loops_on_threads(pool));
}

#[test]
fn upstream_2000_steps_then_other_sizes_then_again_after_reset() {
    each_form(|pool, small| cases::many_steps_then_other_sizes_then_again(pool, small));
}

#[test]
fn upstream_two_sizes_twice_and_huge_ones() {
    each_form(|pool, _| {
        cases::two_sizes_twice(pool, 300);
        pool.reset();
        let device = pool.backend().capacity_bytes.load(Ordering::SeqCst) < u64::MAX;
        let huge = if device { [16, 8] } else { [512, 64] };
        cases::huge_blocks_twice(pool, 300, huge.map(|mib| mib * MIB));
    });
}
