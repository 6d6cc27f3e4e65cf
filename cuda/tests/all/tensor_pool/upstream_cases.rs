//! Upstream's GPU tests, which the model has too, on a device of 1 GiB. The core's tests of the same cases show
//! upstream's own form.

use larder_core::prmalloc::Window;
use larder_cuda::TensorPoolConfig;

use crate::tensor_pool::rig::{AnyPool, GIB, MIB, Tested, cases, on_a_device};

/// Runs a test over our pool with upstream's window.
fn upstreams(test: impl Fn(&Tested<'_>)) {
    let mut config = TensorPoolConfig::new();
    config.pool.planner.window = Window {
        start: 10,
        stable: 10,
        max: 100,
    };
    on_a_device(GIB, config, test);
}

#[test]
fn pr_gpu_single_blocks() {
    upstreams(|pool| cases::single_blocks(pool));
}

#[test]
fn pr_gpu_loop_of_sizes_on_one_thread_and_on_three() {
    upstreams(|pool| cases::loops_on_threads(pool));
}

#[test]
fn pr_gpu_2000_steps_then_other_sizes_then_again_after_reset() {
    upstreams(|pool| cases::many_steps_then_other_sizes_then_again(pool, true));
}

#[test]
fn pr_gpu_two_sizes_twice() {
    upstreams(|pool| cases::two_sizes_twice(pool, 120));
}

#[test]
fn pr_gpu_huge_blocks_of_16_and_8_mib_twice() {
    upstreams(|pool| {
        cases::huge_blocks_twice(pool, 120, [16 * MIB, 8 * MIB]);
        assert!(pool.counts().slab_bytes >= 48 * MIB);
    });
}
