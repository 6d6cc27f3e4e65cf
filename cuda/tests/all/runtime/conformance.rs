//! The conformance suite of `larder-model`, run on every allocator of host memory in a runtime.

use std::sync::Arc;

use larder_core::{
    AccessError, Addr, AddrRange, BlockAllocator, MemoryAccess, Pattern, StreamId, StreamPoint,
};
use larder_cuda::runtime::{HostAllocator, RuntimeConfig};
use larder_model::conformance::{Expect, run};

use crate::runtime::rig::{end, gpu, host_kind, numa, on_gpus, pinned, runtime, take};

/// Access to the host memory of blocks that the suite holds.
struct Host;

fn pointer(at: Addr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(at.get() as usize)
}

impl MemoryAccess for Host {
    fn read(&self, _: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError> {
        // SAFETY: the suite holds the block, and has filled it.
        unsafe { into.as_mut_ptr().copy_from(pointer(addr), into.len()) };
        Ok(())
    }

    fn write(&self, _: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError> {
        // SAFETY: the suite holds the block.
        unsafe { pointer(addr).copy_from(from.as_ptr(), from.len()) };
        Ok(())
    }

    fn fill(
        &self,
        stream_id: StreamId,
        range: AddrRange,
        pattern: Pattern,
    ) -> Result<(), AccessError> {
        let bytes: Vec<u8> = (0..range.bytes())
            .map(|offset| pattern.at(offset))
            .collect();
        self.write(stream_id, range.start(), &bytes)
    }

    /// Does nothing, because the host's accesses are in order.
    fn wait(&self, _: StreamId, _: StreamPoint) -> Result<(), AccessError> {
        Ok(())
    }
}

/// Expectations of the pool and the global allocator: all but stream points, which they do not know, so that they
/// refuse a free after one.
const NO_STREAMS: Expect = Expect {
    streams: false,
    ..Expect::strict()
};

fn cleared(allocator: &impl BlockAllocator) {
    assert!(allocator.stats().allocations > 0);
    allocator.clear_stats();
    let stats = allocator.stats();
    assert_eq!((stats.allocations, stats.largest_bytes), (0, 0));
    assert_eq!(stats.peak_live_bytes, stats.live_bytes);
}

#[test]
fn ps_2_each_allocator_of_the_host_keeps_the_promises_of_the_trait() {
    for (name, cpu_bfc, numa, expect) in [
        ("bfc_cpu_allocator_for_gpu", true, false, Expect::strict()),
        ("bfc_cpu_allocator_for_gpu", true, true, Expect::strict()),
        ("cpu_pool", false, true, NO_STREAMS),
        ("cpu", false, false, NO_STREAMS),
    ] {
        for log_memory in [false, true] {
            let runtime = runtime(RuntimeConfig {
                log_memory,
                ..host_kind(cpu_bfc, numa)
            });
            let host = runtime.cpu_allocator(None).unwrap();
            assert_eq!(host.name(), name);
            // Some blocks are small and one is larger than a region. None shares a cache line with another.
            let blocks = [1, 100, 3 << 20].map(|bytes| take(&host, bytes));
            assert_eq!(host.live_blocks(), 3, "{name}");
            for block in blocks {
                assert!(block.addr().get().is_multiple_of(64), "{name}");
                host.free(block).unwrap();
            }
            assert_eq!(host.live_blocks(), 0, "{name}");
            host.trim();
            assert_eq!(host.stats().reserved_bytes, 0, "{name}");
            for _ in 0..2 {
                run(&host, &Host, expect);
            }
            assert_eq!(host.live_blocks(), 0, "{name}");
            cleared(&host);
            drop(host);
            end(runtime);
        }
    }
}

#[test]
fn ps_6_pinned_memory_of_a_node_keeps_the_promises_of_the_trait() {
    on_gpus(numa(), |runtime| {
        let plain = pinned(runtime, 1);
        assert!(!plain.is_pinned());
        run(&plain, &Host, NO_STREAMS);
        let _gpu = gpu(runtime, 0, 8);
        let pinned = pinned(runtime, 1);
        assert!(pinned.is_pinned());
        run(&pinned, &Host, Expect::strict());
        // Each allocator refuses the other's blocks, even when it is used through an `Arc`.
        let shared: Arc<HostAllocator> = Arc::new(pinned.clone());
        let block = take(&*shared, 100);
        assert!(pinned.owns(&block) && !plain.owns(&block));
        let rejected = plain.free(block).unwrap_err();
        pinned.free(rejected.value).unwrap();
        cleared(&pinned);
    });
}
