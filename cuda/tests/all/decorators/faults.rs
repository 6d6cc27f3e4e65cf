//! Every driver call of checked memory is refused once. Nothing panics, each answer is a block or a reason, a check
//! that could not be made is reported, the same scenario then succeeds, and no memory is left in use.

use larder_core::decorate::{CheckError, QuarantineConfig};
use larder_core::{AllocError, Block, BlockAllocator, EventNumber, Request, StreamId, StreamPoint};
use larder_cuda::{CheckedConfig, CheckedMemory, Context, PinnedAllocator, StreamMemory};

use super::{Setup, alloc};
use crate::common::fill;
use crate::common::refusal::{Refusal, SWEEP, Sweep};

const EACH_CODE: Sweep = Sweep {
    each_code: true,
    ..SWEEP
};

fn is_reason(error: AllocError) -> bool {
    matches!(error, AllocError::Access(_) | AllocError::OutOfMemory(_))
}

/// Allocates, writes, checks, frees and drains. Returns whether all of it succeeded.
fn run(setup: &Setup, memory: &CheckedMemory, refusal: &Refusal) -> bool {
    let mut well = true;
    let mut blocks: Vec<Block> = Vec::new();
    for bytes in [100, 3000, 64 << 10] {
        match refusal.around(|| memory.alloc(&Request::new(bytes))) {
            Ok(grant) => blocks.push(grant.block),
            Err(error) => {
                assert!(is_reason(error), "{error}");
                well = false;
            }
        }
    }
    for block in &blocks {
        let requested = memory.requested_bytes(block).unwrap();
        fill(&setup.stream, block.addr().get(), requested, 3);
        match refusal.around(|| memory.check(block)) {
            Ok(()) => {}
            Err(CheckError::Access { .. }) => well = false,
            Err(other) => panic!("{other}"),
        }
    }
    for block in blocks {
        refusal.around(|| memory.free(block)).unwrap();
    }
    let count = |find| match find {
        CheckError::Access { .. } => {}
        other => panic!("{other}"),
    };
    well &= refusal.around(|| memory.check_all(count)) == 0;
    refusal.around(|| memory.drain());
    while let Some(find) = memory.take_finding() {
        count(find);
        well = false;
    }
    well
}

#[test]
fn every_call_of_checked_memory_is_refused_once() {
    EACH_CODE.run(30, |refusal| {
        let setup = Setup::new();
        let memory = setup.checked(CheckedConfig {
            quarantine: QuarantineConfig::new(32 << 10),
            blocks: 8,
            waiting_blocks: 2,
            ..CheckedConfig::new()
        });
        let well = run(&setup, &memory, refusal);
        let resets = memory.reset_failures();
        let happened = refusal.happened();
        assert!(happened || (well && resets == 0), "without a refusal");
        assert_eq!(setup.memory.stats().live_bytes, 0);
        // The same scenario without a refusal succeeds.
        assert!(run(&setup, &memory, &Refusal::none(refusal.control)));
        assert_eq!(memory.reset_failures(), resets);
        let below = memory.memory().last_error();
        assert!(well || memory.last_error().is_some() || below.is_some());
        // The memory is dropped while a freed block may still be waiting.
        memory.free(alloc(&memory, 100)).unwrap();
        drop(memory);
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

fn run_pinned(memory: &StreamMemory<PinnedAllocator>, refusal: &Refusal) {
    for bytes in [100, 3 << 20] {
        match refusal.around(|| memory.alloc(&Request::new(bytes))) {
            Ok(grant) => {
                let block = grant.block;
                let point = StreamPoint {
                    stream: StreamId::MAIN,
                    event: EventNumber::new(1),
                };
                refusal.around(|| memory.free_after(block, point)).unwrap();
            }
            Err(error) => {
                assert!(is_reason(error), "{error}");
                assert!(memory.last_error().is_some());
            }
        }
    }
}

#[test]
fn every_call_of_pinned_memory_for_a_stream_is_refused_once() {
    EACH_CODE.run(1, |refusal| {
        let context = Context::new(0).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let pool = PinnedAllocator::new(&context).unwrap();
        let memory = pool.on(&stream).unwrap();
        run_pinned(&memory, refusal);
        run_pinned(&memory, &Refusal::none(refusal.control));
        context.wait_for(&stream).unwrap();
        pool.release();
        assert_eq!(memory.stats().live_bytes, 0);
    });
}
