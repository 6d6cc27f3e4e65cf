//! The kind of the memory at an address.

use larder_core::BlockAllocator;
use larder_cuda::runtime::{GpuKind, GpuOptions, MemoryKind, Node, Place, RuntimeConfig};

use crate::common::{MIB, alone_and_clean};
use crate::runtime::rig::{runtime, take};

#[test]
fn ps_8_what_nobody_knows_is_plain_host_memory() {
    let runtime = runtime(RuntimeConfig::default());
    let here = 5;
    let unknown = [0, 1, u64::MAX, &raw const here as u64];
    for address in unknown {
        let kind = runtime.memory_kind(address);
        assert_eq!(kind, MemoryKind::default());
        assert_eq!(kind.to_string(), "CPU 0, dma: 0, nic: 0");
    }
    assert_eq!(runtime.regions(), 0);
}

#[test]
fn ps_8_regions_of_the_host_are_known_while_they_are_held() {
    let runtime = runtime(RuntimeConfig {
        cpu_bfc: Some(true),
        ..RuntimeConfig::default()
    });
    let memory = runtime.cpu_allocator(None).unwrap();
    let block = take(&memory, 1000);
    assert_eq!(runtime.regions(), 1);
    assert_eq!(
        runtime.memory_kind(block.addr().get()),
        MemoryKind::default()
    );
    memory.free(block).unwrap();
    memory.trim();
    assert_eq!(runtime.regions(), 0);
}

#[test]
fn ps_8_base_interior_and_freed_addresses_of_each_gpu_allocator() {
    alone_and_clean(|_| {
        let kinds = [
            GpuKind::Default,
            GpuKind::CudaMalloc,
            GpuKind::CudaMallocAsync,
            GpuKind::TensorPool,
        ];
        for gpu_kind in kinds {
            let runtime = runtime(RuntimeConfig {
                gpu_kind,
                vmem: false,
                ..RuntimeConfig::default()
            });
            let options = GpuOptions {
                allow_growth: true,
                ..GpuOptions::default()
            };
            let gpu = runtime
                .gpu_allocator(1, &options, 64 * MIB)
                .unwrap()
                .allocator;
            let stream = gpu.context().cudarc().new_stream().unwrap();
            let block = gpu.alloc(&stream, 3 * MIB).unwrap();
            let start = block.addr().get();
            let wanted = MemoryKind::gpu(1);
            for address in [start, start + 1, start + MIB, start + 3 * MIB - 1] {
                let kind = runtime.memory_kind(address);
                assert_eq!(kind, wanted, "{gpu_kind:?}");
                assert_eq!(kind.to_string(), "GPU 1, dma: 0, nic: 1");
            }
            assert_eq!(runtime.memory_kind(0), MemoryKind::default());
            gpu.free(&stream, block).unwrap();
            stream.synchronize().unwrap();
            if let Some(memory) = gpu.device_allocator() {
                memory.release(u64::MAX);
            }
            let freed = runtime.memory_kind(start);
            assert_eq!(freed, MemoryKind::default(), "{gpu_kind:?}: it went back");
            drop(gpu);
            assert!(runtime.shutdown().unwrap().is_clean());
        }
    });
}

#[test]
fn ps_8_pinned_memory_is_the_hosts_and_registered() {
    alone_and_clean(|_| {
        let runtime = runtime(RuntimeConfig::default());
        let gpu = runtime
            .gpu_allocator(0, &GpuOptions::default(), 8 * MIB)
            .unwrap();
        let pinned = runtime.pinned_allocator(Some(Node::new(3))).unwrap();
        let block = take(&pinned, 3 * MIB);
        let start = block.addr().get();
        for address in [start, start + 1, start + 3 * MIB - 1] {
            let kind = runtime.memory_kind(address);
            assert_eq!(kind, MemoryKind::pinned());
            assert_eq!((kind.place, kind.index), (Place::Cpu, 0));
            assert_eq!(kind.to_string(), "CPU 0, dma: 1, nic: 0");
        }
        pinned.free(block).unwrap();
        pinned.trim();
        assert_eq!(runtime.memory_kind(start), MemoryKind::default());
        drop((gpu, pinned));
        assert!(runtime.shutdown().unwrap().is_clean());
    });
}
