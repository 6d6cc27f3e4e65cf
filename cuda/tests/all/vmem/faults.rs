//! Every driver call of a scenario over both sides is refused once. Nothing panics, each answer is memory or a reason,
//! every buffer keeps its values, the same scenario then succeeds with the same allocators, and nothing is left.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{Block, Placement};
use larder_cuda::{
    Context, DeviceAllocError, DeviceAllocator, DeviceConfig, HostSide, Movable, StreamAllocator,
    VmemAllocator, VmemBuffer, VmemConfig,
};
use larder_cuda_abi::Code;

use crate::common::refusal::{Refusal, SWEEP, Sweep};
use crate::common::{MIB, assert_filled, fill, streams};

const BUDGET: u64 = 4 * MIB;

/// Number of bytes of a block that are written and read.
const WRITTEN: u64 = 64;

struct Scenario<'a> {
    refusal: &'a Refusal,
    memory: VmemAllocator,
    streams: &'a [Arc<CudaStream>],
}

impl Scenario<'_> {
    fn alloc(&self, stream: usize, bytes: u64) -> Block {
        let stream = &self.streams[stream];
        let block = self.refusal.at_last(|| self.memory.alloc(stream, bytes));
        fill(stream, block.addr().get(), WRITTEN, 1);
        assert_filled(stream, block.addr().get(), WRITTEN, 1);
        block
    }

    fn free(&self, stream: usize, block: Block) {
        let ask = || self.memory.free(&self.streams[stream], block);
        self.refusal.around(ask).unwrap();
    }

    fn run(&self) {
        let all = self.alloc(0, BUDGET);
        // Pinned or managed memory: the first region, then memory of another stream after a wait.
        let block = self.alloc(0, MIB);
        fill(&self.streams[0], block.addr().get(), WRITTEN, 2);
        self.free(0, block);
        let block = self.alloc(1, MIB);
        let upload = || self.memory.upload(&self.streams[0], &[7; 5000]);
        let mut buffer = self.refusal.at_last(upload);
        // The freed block is in the way of this one, so the host waits.
        let large = self.alloc(1, 4 * MIB);
        assert_eq!(self.memory.placement(&large), Placement::Host);
        self.free(1, large);
        let whole = self
            .refusal
            .around(|| self.memory.alloc(&self.streams[0], 5 * MIB));
        match whole {
            Ok(whole) => self.free(0, whole),
            // There may be too little pinned memory in one piece.
            Err(DeviceAllocError::Both { .. }) => {}
            Err(error) => assert!(self.refusal.happened(), "{error}"),
        }
        self.refusal.around(|| self.memory.release_host());
        self.free(0, all);
        // Moves the buffer to the device. If that is refused, the values stay where they are.
        let migrate = |buffer: &mut VmemBuffer<u8>| {
            let migrated = self.memory.migrate([buffer as &mut dyn Movable]);
            assert_eq!(migrated.moved_bytes + migrated.left_bytes, 5000);
            migrated.left_bytes == 0
        };
        if buffer.placement() == Placement::Host {
            let moved = self.refusal.around(|| migrate(&mut buffer));
            assert!(moved || self.refusal.happened());
            let values = self.streams[0].clone_dtoh(&buffer.as_view()).unwrap();
            assert_eq!(values, [7; 5000]);
            assert!(moved || migrate(&mut buffer), "the second time");
        }
        assert_eq!(buffer.placement(), Placement::Device);
        let values = self.streams[0].clone_dtoh(&buffer.as_view()).unwrap();
        assert_eq!(values, [7; 5000]);
        self.refusal.around(|| drop(buffer));
        self.free(1, block);
        assert_eq!(self.memory.vmem_stats().joint_live_bytes, 0);
    }
}

fn sweep(host: HostSide, seed: fn(u64) -> Option<u64>) {
    let sweep = Sweep {
        codes: &[Code::OUT_OF_MEMORY, Code::INVALID_VALUE],
        each_code: true,
        seed,
        ..SWEEP
    };
    sweep.run(50, |refusal| {
        let context = Context::new(0).unwrap();
        let streams: Vec<_> = streams(&context, 2);
        let config = DeviceConfig::with_budget(BUDGET);
        let device = DeviceAllocator::with_config(&context, config).unwrap();
        let memory = refusal.at_last(|| VmemAllocator::new(&device, VmemConfig::new(host)));
        let scenario = Scenario {
            refusal,
            memory,
            streams: &streams,
        };
        scenario.run();
        if refusal.happened() {
            let again = Scenario {
                refusal: &Refusal::none(refusal.control),
                memory: scenario.memory.clone(),
                streams: &streams,
            };
            again.run();
        }
        refusal.around(|| drop(scenario));
        drop((device, streams));
        refusal.control.schedule_eagerly();
        assert_eq!(context.settle(), 0);
    });
}

#[test]
fn any_call_may_be_refused_with_pinned_memory_behind_the_device() {
    sweep(HostSide::Pinned(6 * MIB + 4096), |_| None);
}

#[test]
fn any_call_may_be_refused_while_work_is_queued() {
    // Regions that would touch take a little more memory, which counts towards the limit.
    sweep(HostSide::Pinned(6 * MIB + 4096), |_| Some(7));
}

#[test]
fn any_call_may_be_refused_with_managed_memory_behind_the_device() {
    sweep(HostSide::Managed, |_| None);
}
