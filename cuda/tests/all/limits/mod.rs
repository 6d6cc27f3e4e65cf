//! Limits at run time over the stand-in: budgets of a process, its tenants and their pools are lowered and raised while
//! blocks are allocated and freed.

use crate::common;

mod budgets;
mod faults;
mod foreign;
mod one_pool;
mod random;

use std::sync::Arc;

use common::MIB;
use cudarc::driver::CudaStream;
use larder_core::Block;
use larder_cuda::{ArenaPolicy, Context, DeviceConfig};
use larder_model::Random;

fn stream(context: &Context) -> Arc<CudaStream> {
    context.cudarc().new_stream().unwrap()
}

/// Pages of the device only, and no arenas.
fn plain() -> DeviceConfig {
    DeviceConfig {
        arenas: ArenaPolicy::Never,
        check_captures: false,
        ..DeviceConfig::new()
    }
}

/// Number of bytes that are written and read at each end of a block.
const WRITTEN: u64 = 64;

fn ends(block: &Block) -> [u64; 2] {
    let (start, bytes) = (block.addr().get(), block.bytes());
    [start, start + bytes - WRITTEN]
}

fn fill(stream: &CudaStream, block: &Block, value: u8) {
    for at in ends(block) {
        common::fill(stream, at, WRITTEN, value);
    }
}

#[track_caller]
fn check(stream: &CudaStream, block: &Block, value: u8) {
    for at in ends(block) {
        common::assert_filled(stream, at, WRITTEN, value);
    }
}

/// Draws the size of a block: small, up to a page, or several pages.
fn size(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => 1 + random.below(64 << 10),
        1 | 2 => 1 + random.below(2 * MIB),
        _ => 1 + random.below(6 * MIB),
    }
}
