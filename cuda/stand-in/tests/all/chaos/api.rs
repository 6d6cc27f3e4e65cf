//! The stand-in's functions, linked in, and short helpers for tests.

use std::ffi::c_void;
use std::ptr::{from_ref, null_mut};
use std::sync::MutexGuard;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{AccessDesc, AllocFlags, AllocationProp, Location, PoolProps};

pub(crate) use crate::common::{GRANULARITY, alive, alone, findings, made, ok, read};
pub(crate) use crate::driver::*;
use crate::numbers::Random;

pub(crate) type HostFunction = extern "C" fn(*mut c_void);

/// The driver for one test: two devices, with a context of the first one current.
pub(crate) struct Gpu {
    pub(crate) context: usize,
    _one: MutexGuard<'static, ()>,
}

/// Resets the driver for a test.
pub(crate) fn gpu() -> Gpu {
    let one = alone();
    larder_stand_in_clear_failures();
    larder_stand_in_reset(2, 16 << 30);
    ok(cuInit(0));
    ok(cuCtxSetCurrent(0));
    Gpu {
        context: made(|context| cuCtxCreate_v2(context, 0, 0)),
        _one: one,
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        larder_stand_in_schedule(0, 0);
        cuCtxSetCurrent(0);
    }
}

/// Creates a stream that does not wait for the legacy default stream.
#[track_caller]
pub(crate) fn stream() -> usize {
    made(|stream| cuStreamCreate(stream, c::STREAM_NON_BLOCKING))
}

#[track_caller]
pub(crate) fn event() -> usize {
    made(|event| cuEventCreate(event, 0))
}

#[track_caller]
pub(crate) fn memory(bytes: usize) -> u64 {
    made(|at| cuMemAlloc_v2(at, bytes))
}

pub(crate) fn device(id: i32) -> Location {
    Location {
        kind: c::MEM_LOCATION_DEVICE,
        id,
    }
}

/// Properties of physical memory.
pub(crate) fn physical(id: i32) -> AllocationProp {
    AllocationProp {
        kind: c::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: c::MEM_HANDLE_TYPE_NONE,
        location: device(id),
        win32_meta_data: null_mut(),
        flags: AllocFlags::default(),
    }
}

pub(crate) fn pool_props(id: i32) -> PoolProps {
    PoolProps {
        kind: c::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: 0,
        location: device(id),
        win32_security_attributes: null_mut(),
        max_bytes: 0,
        usage: 0,
        reserved: [0; 54],
    }
}

/// Sets the release threshold of a pool.
#[track_caller]
pub(crate) fn keep(pool: usize, bytes: u64) {
    let place = from_ref(&bytes) as usize;
    ok(cuMemPoolSetAttribute(
        pool,
        c::POOL_RELEASE_THRESHOLD,
        place,
    ));
}

/// Maps a handle at new addresses, which device 0 may read and write.
#[track_caller]
pub(crate) fn map(handle: u64, bytes: usize) -> u64 {
    let at = made(|at| cuMemAddressReserve(at, bytes, 0, 0, 0));
    ok(cuMemMap(at, bytes, 0, handle, 0));
    let right = AccessDesc {
        location: device(0),
        flags: c::MEM_ACCESS_READ_WRITE,
    };
    ok(cuMemSetAccess(at, bytes, &right, 1));
    at
}

#[derive(Clone, Debug)]
pub(crate) struct Draw(Random);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    pub(crate) fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns true once in `times` calls on average.
    pub(crate) fn rarely(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}
