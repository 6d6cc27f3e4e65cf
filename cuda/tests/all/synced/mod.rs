//! Values that the host and a device use in turn. Tests whose names begin with `sm_` are the conformance cases of
//! Caffe's `SyncedMemory`; those that begin with `synced_upstream_` are its own tests, ported.

mod adopt;
mod flight;
mod memory;
mod mock;
mod refused;
mod table;
mod upstream;

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtrMut, DeviceRepr, ValidAsZeroBits};
use larder_cuda::driver::StandIn;
use larder_cuda::synced::{Head, HostMemory};
use larder_cuda::{Context, DeviceAllocator, PinnedAllocator, PinnedConfig, SyncedMemory};

use crate::common::{alone_and_clean, fill, under_all_schedules};

/// Number of seeds for deferred schedules.
const SEEDS: u64 = 50;

const HEADS: [Head; 4] = [Head::Uninitialized, Head::Host, Head::Device, Head::Synced];

/// Number of values in most objects.
const LEN: usize = 1000;

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

    /// Returns an object in the state `head`; its values are `value`, unless none were written.
    fn in_state<'a>(&self, kind: &HostMemory, head: Head, value: u8) -> SyncedMemory<'a, u8> {
        let mut memory = self.make(kind, LEN);
        match head {
            Head::Uninitialized => {}
            Head::Host => memory.cpu_mut().unwrap().fill(value),
            Head::Device | Head::Synced => write_on(&self.other, &mut memory, value),
        }
        if head == Head::Synced {
            memory.cpu().unwrap();
        }
        assert_eq!(memory.head(), head);
        memory
    }

    /// Returns the device's values, copied on the other stream.
    fn seen(&self, memory: &mut SyncedMemory<'_, u8>) -> Vec<u8> {
        self.other.clone_dtoh(&memory.gpu().unwrap()).unwrap()
    }

    #[track_caller]
    fn assert_nothing_lives(&self) {
        self.context.synchronize().unwrap();
        self.device.release(u64::MAX);
        self.pinned.release();
        assert_eq!(self.device.stats().live_bytes, 0);
        assert_eq!(self.pinned.stats().live_bytes, 0);
    }
}

/// Fills the device's side with a value, on a stream.
fn write_on(stream: &CudaStream, memory: &mut SyncedMemory<'_, u8>, value: u8) {
    let bytes = memory.len() as u64;
    let mut view = memory.gpu_mut().unwrap();
    let (at, _guard) = view.device_ptr_mut(stream);
    fill(stream, at, bytes, value);
}

/// Runs a test with each kind of host memory, and checks each time that nothing is left.
#[track_caller]
fn each_kind(test: impl Fn(&'static StandIn, &Setup, &HostMemory)) {
    alone_and_clean(|control| {
        let setup = Setup::new();
        for kind in setup.kinds() {
            println!("{kind:?}");
            test(control, &setup, &kind);
            setup.assert_nothing_lives();
        }
        assert_eq!(control.findings(), Vec::<String>::new());
    });
}

/// Runs a test with each kind of host memory under every schedule.
#[track_caller]
fn under_all(test: impl Fn(&'static StandIn, &Setup, &HostMemory)) {
    each_kind(|control, setup, kind| {
        under_all_schedules(control, SEEDS, || test(control, setup, kind));
    });
}
