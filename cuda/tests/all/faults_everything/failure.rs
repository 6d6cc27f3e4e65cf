//! The reason why a part of the scenario stopped.

use larder_core::AllocError;
use larder_core::prmalloc::PlanError;
use larder_cuda::driver::abi::Code;
use larder_cuda::synced::CopyError;
use larder_cuda::{AdoptError, DeviceAllocError, DriverError};

/// An error of this crate, or of cudarc.
#[derive(Debug)]
pub(crate) enum Failure {
    Alloc(DeviceAllocError),
    Driver(DriverError),
    Synced(DeviceAllocError),
    Copy(CopyError<DeviceAllocError>),
    Raw(AdoptError),
    Tensor(DeviceAllocError),
    Plan(PlanError),
    Cudarc(cudarc::driver::DriverError),
}

/// Returns whether a refusal with this code is named.
fn names(error: Option<DriverError>, code: Code) -> bool {
    error.and_then(DriverError::code) == Some(code)
}

fn is_of(error: &DeviceAllocError, code: Code) -> bool {
    match error {
        // Without the driver's word where an event was refused: what it stood for is pending still.
        DeviceAllocError::Memory {
            reason: AllocError::OutOfMemory(out),
            driver,
        } => names(*driver, code) || driver.is_none() && out.pending_bytes > 0,
        DeviceAllocError::Driver(error) => names(Some(*error), code),
        _ => false,
    }
}

impl Failure {
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Alloc(DeviceAllocError::Memory { .. }))
    }

    /// Returns whether the error names a refusal of the driver with this code.
    pub(crate) fn is_refusal(&self, code: Code) -> bool {
        match self {
            Self::Alloc(error)
            | Self::Raw(AdoptError::Alloc(error))
            | Self::Tensor(error)
            | Self::Synced(error)
            | Self::Copy(CopyError::Backend(error)) => is_of(error, code),
            Self::Driver(error) => names(Some(*error), code),
            Self::Cudarc(error) => error.0 as u32 == code.0,
            // The pool's own error has no room for the driver's.
            Self::Plan(PlanError::OutOfMemory { .. }) => true,
            _ => false,
        }
    }
}

impl From<DeviceAllocError> for Failure {
    fn from(error: DeviceAllocError) -> Self {
        Self::Alloc(error)
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<CopyError<DeviceAllocError>> for Failure {
    fn from(error: CopyError<DeviceAllocError>) -> Self {
        Self::Copy(error)
    }
}

impl From<AdoptError> for Failure {
    fn from(error: AdoptError) -> Self {
        Self::Raw(error)
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

impl From<cudarc::driver::DriverError> for Failure {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::Cudarc(error)
    }
}
