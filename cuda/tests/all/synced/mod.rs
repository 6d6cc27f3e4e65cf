//! Values that the host and a device use in turn. Names with `sm_` and a number state the conformance cases
//! of Caffe's `SyncedMemory`; `synced_upstream_` are its own tests, retold.

mod adopt;
mod flight;
mod memory;
mod mock;
mod refused;
mod table;
mod upstream;

use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr, ValidAsZeroBits};
use larder_cuda::synced::HostMemory;
use larder_cuda::{Context, DeviceAllocator, PinnedAllocator, PinnedConfig, SyncedMemory};

/// Seeds of deferred schedules.
const SEEDS: u64 = 50;

struct Setup {
    context: Context,
    device: DeviceAllocator,
    pinned: PinnedAllocator,
    stream: Arc<CudaStream>,
    other: Arc<CudaStream>,
}

impl Setup {
    fn new() -> Self {
        let context = Context::new(0).unwrap();
        Self {
            device: DeviceAllocator::new(&context).unwrap(),
            pinned: PinnedAllocator::new(&context).unwrap(),
            stream: context.cudarc().new_stream().unwrap(),
            other: context.cudarc().new_stream().unwrap(),
            context,
        }
    }

    /// Each kind of host memory.
    fn kinds(&self) -> [HostMemory; 3] {
        let none = PinnedAllocator::with_limit(&self.context, PinnedConfig::default(), 1).unwrap();
        [
            HostMemory::Pageable,
            HostMemory::Pinned(self.pinned.clone()),
            HostMemory::PinnedOrPageable(none),
        ]
    }

    fn make<'a, T: DeviceRepr + ValidAsZeroBits + Copy>(
        &self,
        host: &HostMemory,
        len: usize,
    ) -> SyncedMemory<'a, T> {
        SyncedMemory::new(&self.device, &self.stream, host.clone(), len).unwrap()
    }

    /// Nothing is held any more.
    #[track_caller]
    fn assert_nothing_lives(&self) {
        self.context.synchronize().unwrap();
        self.device.release(u64::MAX);
        self.pinned.release();
        assert_eq!(self.device.stats().live_bytes, 0);
        assert_eq!(self.pinned.stats().live_bytes, 0);
    }
}
