//! The kind of the memory at an address. The unit tests of `kind.rs` cover the names of kinds.

use larder_core::BlockAllocator;
use larder_cuda::runtime::{GpuKind, MemoryKind};

use crate::common::MIB;
use crate::runtime::rig::{
    each, gpu, host_kind, kinds, on_gpus, pinned, runtime, stream_of, take, with,
};

#[test]
fn ps_8_what_nobody_knows_is_plain_host_memory() {
    let runtime = runtime(with(|_| ()));
    let here = 5;
    for address in [0, 1, u64::MAX, &raw const here as u64] {
        assert_eq!(runtime.memory_kind(address), MemoryKind::default());
    }
    assert_eq!(runtime.regions(), 0);
}

#[test]
fn ps_8_regions_of_the_host_are_known_while_they_are_held() {
    let runtime = runtime(host_kind(true, false));
    let memory = runtime.cpu_allocator(None).unwrap();
    let block = take(&memory, 1000);
    let at = block.addr().get();
    assert_eq!(
        (runtime.regions(), runtime.memory_kind(at)),
        (1, MemoryKind::default())
    );
    memory.free(block).unwrap();
    memory.trim();
    assert_eq!(runtime.regions(), 0);
}

#[test]
fn ps_8_base_interior_and_freed_addresses_of_each_gpu_allocator() {
    let mut ways = kinds();
    ways.retain(|way| way.kind != GpuKind::MemoryGuard);
    each(ways, |way, runtime| {
        let gpu = way.gpu(runtime, 1, 64);
        let stream = stream_of(&gpu);
        let block = gpu.alloc(&stream, 3 * MIB).unwrap();
        let start = block.addr().get();
        for address in [start, start + 1, start + MIB, start + 3 * MIB - 1] {
            assert_eq!(runtime.memory_kind(address), MemoryKind::gpu(1));
        }
        assert_eq!(runtime.memory_kind(0), MemoryKind::default());
        gpu.free(&stream, block).unwrap();
        stream.synchronize().unwrap();
        if let Some(memory) = gpu.device_allocator() {
            memory.release(u64::MAX);
        }
        let freed = runtime.memory_kind(start);
        assert_eq!(freed, MemoryKind::default(), "it went back");
    });
}

#[test]
fn ps_8_pinned_memory_is_the_hosts_and_registered() {
    on_gpus(with(|_| ()), |runtime| {
        let _gpu = gpu(runtime, 0, 8);
        let pinned = pinned(runtime, 3);
        let block = take(&pinned, 3 * MIB);
        let start = block.addr().get();
        for address in [start, start + 1, start + 3 * MIB - 1] {
            assert_eq!(runtime.memory_kind(address), MemoryKind::pinned());
        }
        pinned.free(block).unwrap();
        pinned.trim();
        assert_eq!(runtime.memory_kind(start), MemoryKind::default());
    });
}
