//! Pinned memory as a block allocator, and decorators over it.

use larder_core::decorate::{GuardConfig, Guarded, Poisoned};
use larder_core::{
    Addr, AddrRange, AllocError, BlockAllocator, EventNumber, FreeError, MemoryAccess, Pattern,
    Request, StreamId, StreamPoint,
};
use larder_cuda::{Context, DeviceAccess, DeviceAllocError, PinnedAllocator, PinnedConfig};
use larder_model::conformance::{Expect, run};

use super::alloc;
use crate::common::{MIB, alone_and_clean, fill};

/// A freed block counts as live until its stream has finished with it.
const LATER: Expect = Expect {
    frees_at_once: false,
    refuses_far_events: false,
    ..Expect::strict()
};

fn host_byte(at: u64) -> u8 {
    let place: *const u8 = std::ptr::with_exposed_provenance(at as usize);
    // SAFETY: the test holds the block.
    unsafe { place.read() }
}

#[test]
fn pinned_memory_and_decorators_over_it_keep_the_promises_of_the_trait() {
    alone_and_clean(|_| {
        let context = Context::new(0).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let pool = PinnedAllocator::new(&context).unwrap();
        let memory = pool.on(&stream).unwrap();
        // SAFETY: the suite accesses only blocks that it holds.
        let access = unsafe { DeviceAccess::new(&context, &stream) };
        run(&memory, &access, LATER);
        let guarded = Guarded::new(&memory, &access, GuardConfig::new(), 32).unwrap();
        let reset = Poisoned::new(&guarded, &access, Pattern::F64_NAN).unwrap();
        run(&reset, &access, LATER);
        assert_eq!(guarded.take_finding(), None);
        let block = alloc(&memory, 100);
        let other = PinnedAllocator::new(&context).unwrap();
        assert!(memory.owns(&block) && !other.on(&stream).unwrap().owns(&block));
        memory.free(block).unwrap();
        memory.clear_stats();
        assert_eq!(memory.stats().allocations, 0);
        pool.release();
        assert_eq!(memory.stats().live_bytes, 0);
    });
}

#[test]
fn what_an_access_of_its_own_filled_is_there_for_the_host() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let pool = PinnedAllocator::new(&context).unwrap();
        let memory = pool.on(&stream).unwrap();
        // SAFETY: the test accesses only blocks that it holds.
        let access = unsafe { DeviceAccess::new(&context, &stream) };
        for seed in 0..16 {
            control.schedule_deferred(seed);
            let block = alloc(&memory, 1000);
            let at = block.addr().get();
            let range = AddrRange::new(Addr::new(at), 1000).unwrap();
            access
                .fill(StreamId::MAIN, range, Pattern::of_u8(seed as u8))
                .unwrap();
            assert_eq!(host_byte(at + 999), seed as u8);
            memory.free(block).unwrap();
        }
        control.schedule_eagerly();
    });
}

#[test]
fn a_free_after_a_point_waits_for_what_the_stream_has_queued() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let pool = PinnedAllocator::with_limit(&context, PinnedConfig::default(), 2 * MIB).unwrap();
        let memory = pool.on(&stream).unwrap();
        let point = |stream_id| StreamPoint {
            stream: stream_id,
            event: EventNumber::new(1),
        };
        for seed in 0..16 {
            control.schedule_deferred(seed);
            let block = alloc(&memory, 3 * MIB / 2);
            let at = block.addr().get();
            fill(&stream, at, 1000, 7);
            let rejected = memory
                .free_after(block, point(StreamId::new(3)))
                .unwrap_err();
            assert_eq!(rejected.error, FreeError::OtherStream);
            memory
                .free_after(rejected.value, point(StreamId::MAIN))
                .unwrap();
            // No other memory is large enough, so the allocation waits for the stream, and the host may access the
            // block at once.
            let block = alloc(&memory, 3 * MIB / 2);
            assert_eq!((block.addr().get(), host_byte(at + 999)), (at, 7));
            memory.free(block).unwrap();
            // Clears the value, so that the next round cannot find it.
            fill(&stream, at, 1000, 0);
            context.wait_for(&stream).unwrap();
        }
        control.schedule_eagerly();
        let refused = memory.alloc(&Request::new(MIB).on(StreamId::new(1)));
        assert_eq!(refused, Err(AllocError::OtherStream));
        let elsewhere = Context::new(1).unwrap();
        let other = elsewhere.cudarc().new_stream().unwrap();
        for stranger in [&other, &context.cudarc().per_thread_stream()] {
            let error = pool.on(stranger).unwrap_err();
            assert_eq!(error, DeviceAllocError::Stream);
        }
    });
}
