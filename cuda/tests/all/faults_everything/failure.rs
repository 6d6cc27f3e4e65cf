//! Errors of the scenario's parts.

use std::error::Error;

use larder_core::AllocError;
use larder_core::prmalloc::PlanError;
use larder_cuda::driver::abi::Code;
use larder_cuda::synced::CopyError;
use larder_cuda::{AdoptError, DeviceAllocError, DriverError};

pub(crate) type Failure = Box<dyn Error>;

/// Returns the allocator's error, even if another error contains it.
pub(crate) fn of_allocator(error: &Failure) -> Option<&DeviceAllocError> {
    if let Some(CopyError::Backend(error)) = error.downcast_ref() {
        return Some(error);
    }
    if let Some(AdoptError::Alloc(error)) = error.downcast_ref() {
        return Some(error);
    }
    error.downcast_ref()
}

pub(crate) fn is_out_of_memory(error: &Failure) -> bool {
    matches!(of_allocator(error), Some(DeviceAllocError::Memory { .. }))
}

/// Returns whether the error is due to the driver's refusal with this code.
pub(crate) fn names(error: &Failure, code: Code) -> bool {
    let is_code = |error: DriverError| error.code() == Some(code);
    match of_allocator(error) {
        // If an event was refused the error has no driver error, but the event's bytes are still pending.
        Some(DeviceAllocError::Memory {
            reason: AllocError::OutOfMemory(out),
            driver,
        }) => driver.map_or(out.pending_bytes > 0, is_code),
        Some(DeviceAllocError::Driver(error)) => is_code(*error),
        Some(_) => false,
        None => {
            let own = error.downcast_ref::<DriverError>();
            let cudarcs = error.downcast_ref::<cudarc::driver::DriverError>();
            own.is_some_and(|error| is_code(*error))
                || cudarcs.is_some_and(|error| error.0 as u32 == code.0)
                // The pool's own error cannot hold the driver's.
                || matches!(error.downcast_ref(), Some(PlanError::OutOfMemory { .. }))
        }
    }
}
