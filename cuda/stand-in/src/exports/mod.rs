//! The exported functions, named as in the driver, with one file for each family. Each checks its arguments and calls
//! the other modules for the work.
//!
//! Their types make them safe functions, since only C can make an [`Out`](crate::ffi::Out), an [`In`](crate::ffi::In)
//! or a [`CallerText`](crate::ffi::CallerText), and FFI1 and FFI2 say what C must guarantee.
#![allow(non_snake_case, reason = "the driver's names")]

mod capture;
mod context;
mod control;
mod copy;
mod device;
mod event;
mod graph;
mod host;
mod init;
mod launch;
mod lookup;
mod managed;
mod memory;
mod module;
mod occupancy;
mod pointer;
mod pool;
mod prototypes;
mod stream;
mod vmm;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, Location};

use crate::driver::SimDriver;

/// Returns the device of a location. Locations on the host exist but are not supported.
fn device_of(driver: &SimDriver, location: Location) -> Result<usize, Code> {
    match location.kind {
        c::MEM_LOCATION_DEVICE => Ok(driver.device(location.id)?.ordinal),
        c::MEM_LOCATION_HOST | c::MEM_LOCATION_HOST_NUMA => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}
