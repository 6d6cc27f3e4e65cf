//! Finds, loads and calls the driver, and reports every failure as an error.
//!
//! A process has one driver, the real one or the [stand-in](StandIn), and shares it with cudarc; [`load()`]
//! ensures this. [`Driver`] makes single calls and keeps no record of them; other types own the objects that
//! calls create ([`Event`](crate::Event), [`DeviceMemory`](crate::DeviceMemory), …).
//!
//! # Files
//! `api` the functions, by name · `search` the paths of libraries · `load` the choice of the driver · `error` ·
//! `device`, `context`, `stream`, `memory`, `transfers`, `pages`, `pool` the calls · `relaxed_capture` calls
//! during captures · `event` events · `refused_free` frees that the driver refused · `owed` frees that wait for
//! work · `stand_in` the control of the stand-in · `host_launch` the launches that its kernels see.
//!
//! # Calls
//! Most calls use the current context of the calling thread, which
//! [`Context::with_current`](crate::Context::with_current) sets. A method is `unsafe` if a wrong argument could
//! harm other code, since the driver trusts handles and addresses.

mod api;
mod device;
mod error;
mod host_launch;
mod load;
mod memory;
mod pages;
mod pool;
mod relaxed_capture;
mod search;
mod stand_in;
mod stream;
mod transfers;

pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod owed;
pub(crate) mod refused_free;

/// The driver's own types and numbers: codes, handles, constants, and the record of a launch that a kernel's
/// body gets on the stand-in.
pub use larder_cuda_abi as abi;
pub use larder_cuda_abi::Code;

pub use device::DeviceInfo;
pub use error::{DriverError, LoadError};
pub use host_launch::HostLaunch;
pub use load::{Choice, load, load_from_env};
pub use memory::PointerKind;
pub use pages::MemoryUse;
pub use search::carry_stand_in;
pub use stand_in::{Alive, Rule, StandIn};
pub use stream::CaptureStatus;

use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::{Api, Optional, Required};
pub(crate) use api::{PAGES_SINCE, POOLS_SINCE};
use libloading::Library;
pub(crate) use load::loaded_or_from_env;

/// The loaded driver, for the rest of the process.
pub struct Driver {
    api: Api,
    version: u32,
    path: PathBuf,
    stand_in: Option<StandIn>,
    no_real: Option<LoadError>,
    /// Keeps the functions loaded.
    library: Library,
}

impl Driver {
    /// Returns the newest version of CUDA's interface that the driver has, such as 12080 for 12.8. The version
    /// is read once.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Returns the path of the file from which the driver was loaded, or the name by which it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the control of the stand-in, if the driver is the stand-in.
    pub const fn stand_in(&self) -> Option<&StandIn> {
        self.stand_in.as_ref()
    }

    /// Returns the reason why [`Choice::Auto`] did not load the real driver, if it loaded the stand-in.
    pub const fn no_real(&self) -> Option<&LoadError> {
        self.no_real.as_ref()
    }

    /// Returns a function, or an error if this driver is too old for it.
    fn optional<F: Copy>(&self, entry: &Optional<F>) -> Result<Required<F>, DriverError> {
        entry.of(self.version)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("path", &self.path)
            .field("version", &self.version)
            .field("stand_in", &self.stand_in.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.stand_in {
            Some(_) => "stand-in driver",
            None => "driver",
        };
        let version = error::DriverVersion(self.version);
        write!(f, "{kind} {}, CUDA {version}", self.path.display())
    }
}

/// Locks `mutex`, ignoring poison, since no change under these locks is ever left incomplete.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts `bytes` to the driver's type; zero is an error.
fn size(bytes: u64) -> Result<usize, DriverError> {
    match usize::try_from(bytes) {
        Ok(size) if size > 0 => Ok(size),
        _ => Err(DriverError::Size { bytes }),
    }
}
