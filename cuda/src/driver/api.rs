//! The driver's functions, looked up by name when the driver is loaded.
//!
//! The wrappers of a binding would not do: they panic if a function is missing, and a code newer than the
//! binding is undefined behavior. Here a missing function is a value, and a code is a number.
//!
//! Invariant DRIVER1: each field has the name of a function, under which it is looked up, and that function's C
//! prototype, since the macro `api` takes both from one row of the table in `larder_cuda_abi`; and the library
//! stays loaded as long as the fields live. All calls of the driver cite this invariant.

use std::path::Path;

use larder_cuda_abi::{Code, functions, functions::since};
use libloading::Library;

use super::error::{DriverError, LoadError};

/// A function that every driver has.
#[derive(Clone, Copy)]
pub(super) struct Required<F> {
    name: &'static str,
    pub(super) call: F,
}

impl<F> Required<F> {
    /// Returns `Ok` for success, otherwise an error that names the function.
    pub(super) fn check(&self, code: Code) -> Result<(), DriverError> {
        let function = self.name;
        code.check()
            .map_err(|code| DriverError::Call { function, code })
    }
}

/// A function that only newer drivers have.
#[derive(Clone, Copy)]
pub(super) struct Optional<F> {
    name: &'static str,
    needs_version: u32,
    call: Option<F>,
}

impl<F: Copy> Optional<F> {
    /// Returns the function if a driver of this version has it.
    pub(super) fn of(&self, version: u32) -> Result<Required<F>, DriverError> {
        match self.call {
            Some(call) if version >= self.needs_version => Ok(Required {
                name: self.name,
                call,
            }),
            _ => Err(DriverError::Missing {
                function: self.name,
                needs_version: self.needs_version,
                version,
            }),
        }
    }
}

/// A library in which functions are looked up.
#[derive(Clone, Copy)]
struct Symbols<'a> {
    library: &'a Library,
    path: &'a Path,
}

impl Symbols<'_> {
    /// Looks up a function. Only [`Api::resolve`] calls this, with the function's own prototype (DRIVER1).
    fn find<F: Copy>(self, name: &'static str) -> Option<F> {
        // SAFETY: DRIVER1: `F` is the prototype of the function `name`.
        let symbol = unsafe { self.library.get::<F>(name) };
        symbol.ok().map(|symbol| *symbol)
    }

    fn required<F: Copy>(self, name: &'static str) -> Result<Required<F>, LoadError> {
        let call = self.find(name).ok_or_else(|| LoadError::Symbol {
            path: self.path.to_owned(),
            function: name,
        })?;
        Ok(Required { name, call })
    }

    fn since<F: Copy>(self, needs_version: u32, name: &'static str) -> Optional<F> {
        Optional {
            name,
            needs_version,
            call: self.find(name),
        }
    }
}

/// Declares [`Api`]: each function is looked up by its name, with its prototype in the table of
/// `larder_cuda_abi` (DRIVER1).
macro_rules! api {
    (
        required: $($required:ident)*;
        optional: $($(#[$condition:meta])? $optional:ident)*;
    ) => {
        /// The driver functions that this crate calls.
        #[expect(non_snake_case, reason = "the driver's names")]
        pub(super) struct Api {
            $(pub(super) $required: Required<functions::$required>,)*
            $($(#[$condition])? pub(super) $optional: Optional<functions::$optional>,)*
        }

        impl Api {
            /// Looks up every function: about sixty look-ups.
            pub(super) fn resolve(library: &Library, path: &Path) -> Result<Self, LoadError> {
                let all = Symbols { library, path };
                Ok(Self {
                    $($required: all.required(stringify!($required))?,)*
                    $($(#[$condition])?
                    $optional: all.since(since::$optional, stringify!($optional)),)*
                })
            }
        }
    };
}

api! {
    required:
        cuInit cuDriverGetVersion cuDeviceGetCount cuDeviceGet cuDeviceGetAttribute
        cuDeviceGetPCIBusId cuDeviceTotalMem_v2 cuDeviceCanAccessPeer cuCtxGetCurrent
        cuCtxSetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxSynchronize
        cuStreamSynchronize cuStreamQuery cuStreamWaitEvent cuStreamIsCapturing cuStreamGetCtx
        cuThreadExchangeStreamCaptureMode cuEventCreate cuEventDestroy_v2 cuEventRecord
        cuEventQuery cuEventSynchronize cuEventElapsedTime cuMemGetInfo_v2 cuMemAlloc_v2
        cuMemFree_v2 cuMemHostAlloc cuMemFreeHost cuMemHostRegister_v2 cuMemHostUnregister
        cuMemHostGetDevicePointer_v2 cuMemAllocManaged cuPointerGetAttribute
        cuMemcpyDtoHAsync_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoDAsync_v2 cuMemsetD8Async
        cuMemsetD16Async cuMemsetD32Async;
    optional:
        cuStreamGetId cuStreamGetCaptureInfo_v2 cuMemAddressReserve cuMemAddressFree cuMemCreate
        cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess cuMemGetAccess
        cuMemGetAllocationGranularity cuMemAllocAsync cuMemAllocFromPoolAsync cuMemFreeAsync
        cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolSetAttribute
        cuMemPoolGetAttribute cuDeviceGetMemPool
        #[cfg(unix)] cuMemExportToShareableHandle
        #[cfg(unix)] cuMemImportFromShareableHandle;
}

/// The first version of CUDA's interface with virtual memory.
pub(crate) const PAGES_SINCE: u32 = since::cuMemMap;

/// The first version of CUDA's interface with pools.
pub(crate) const POOLS_SINCE: u32 = since::cuMemPoolCreate;
