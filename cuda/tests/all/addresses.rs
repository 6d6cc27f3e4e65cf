//! Blocks that are kept under their addresses.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::FreeError;
use larder_cuda::driver::Rule;
use larder_cuda::{ArenaPolicy, Context, DeviceAllocator, DeviceConfig, DeviceFreeError};

use crate::common::{MIB, alone_and_clean, streams};

fn setup() -> (Context, DeviceAllocator, Vec<Arc<CudaStream>>) {
    let context = Context::new(0).unwrap();
    let mut config = DeviceConfig::new();
    config.arenas = ArenaPolicy::Always;
    let memory = DeviceAllocator::with_config(&context, config).unwrap();
    let streams = streams(&context, 3);
    (context, memory, streams)
}

/// Keeps blocks of every part of the allocator: core, arena, step and window.
#[test]
fn blocks_come_back_by_their_first_address_only_and_once() {
    alone_and_clean(|control| {
        let (context, memory, streams) = setup();
        for seed in 0..8 {
            control.schedule_deferred(seed);
            let window = memory.prime(&streams[2], 4 * MIB).unwrap();
            let step = memory.step(&streams[1]).unwrap();
            let mut kept = HashMap::new();
            for round in 0..200_u64 {
                let stream = &streams[(round % 3) as usize];
                let bytes = 1 + (round * 7919) % 10_000;
                let block = memory.alloc(stream, bytes).unwrap();
                let granted = block.bytes();
                let address = memory.keep_addr(block).unwrap();
                assert!(kept.insert(address, (granted, round)).is_none());
                if round % 3 == 2 {
                    // An arbitrary one.
                    let address = *kept.keys().next().unwrap();
                    kept.remove(&address);
                    memory
                        .free_addr(&streams[(round % 2) as usize], address)
                        .unwrap();
                    assert_eq!(memory.bytes_at(address), None);
                }
            }
            for (address, (granted, round)) in kept {
                assert_eq!(memory.bytes_at(address), Some(granted));
                for inside in [address + 1, address + granted - 1] {
                    assert_eq!(memory.bytes_at(inside), None);
                    assert_eq!(memory.take_addr(inside), None);
                }
                let stream = &streams[(round % 3) as usize];
                if round % 2 == 0 {
                    let block = memory.take_addr(address).unwrap();
                    assert_eq!((block.addr().get(), block.bytes()), (address, granted));
                    memory.free(stream, block).unwrap();
                } else {
                    memory.free_addr(stream, address).unwrap();
                }
                let again = memory.free_addr(stream, address);
                assert_eq!(again, Err(DeviceFreeError::Block(FreeError::Unknown)));
                assert_eq!(memory.take_addr(address), None);
            }
            drop((step, window));
            context.synchronize().unwrap();
            control.schedule_eagerly();
            memory.release(u64::MAX);
            assert_eq!(memory.stats().live_bytes, 0);
        }
    });
}

#[test]
fn a_block_of_another_allocator_is_not_kept() {
    alone_and_clean(|_| {
        let (context, memory, streams) = setup();
        let other = DeviceAllocator::new(&context).unwrap();
        let block = other.alloc(&streams[0], MIB).unwrap();
        let address = block.addr().get();
        let refused = memory.keep_addr(block).unwrap_err();
        assert_eq!(refused.error, DeviceFreeError::Block(FreeError::Unknown));
        assert_eq!(memory.bytes_at(address), None);
        other.free(&streams[0], refused.value).unwrap();
    });
}

/// A free on a stream of another context has to wait; if the wait is refused, the block stays kept.
#[test]
fn a_refused_free_keeps_the_block_under_its_address() {
    alone_and_clean(|control| {
        let (_context, memory, streams) = setup();
        let elsewhere = Context::new(1).unwrap();
        let stranger = elsewhere.cudarc().new_stream().unwrap();
        let block = memory.alloc(&streams[0], MIB).unwrap();
        let address = memory.keep_addr(block).unwrap();
        control.fail(Rule::of("cuStreamSynchronize")).unwrap();
        let refused = memory.free_addr(&stranger, address).unwrap_err();
        assert!(matches!(refused, DeviceFreeError::Driver(_)), "{refused}");
        control.clear_failures();
        assert_eq!(memory.bytes_at(address), Some(MIB));
        memory.free_addr(&stranger, address).unwrap();
        assert_eq!(memory.stats().live_bytes, 0);
    });
}
