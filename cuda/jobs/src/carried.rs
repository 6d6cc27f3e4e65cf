//! The stand-in driver, inside the program, so that a copy of the program alone has all its commands.

use std::io::Write;

use larder_cuda::driver::{self, Choice, Driver, LoadError};
use tempfile::NamedTempFile;

/// The shared object; empty where nothing was linked, as in `cargo check`.
const STAND_IN: &[u8] = include_bytes!(env!("LARDER_STAND_IN"));

/// Loads a driver; as stand-in the carried one, unless `LARDER_CUDA_STAND_IN` names another.
///
/// It is written into a temporary file that is gone once it is loaded. Where that cannot be, the one beside the
/// program is looked for.
///
/// # Errors
/// Those of [`driver::load`].
pub fn load(choice: Choice) -> Result<&'static Driver, LoadError> {
    let written = (choice != Choice::Real).then(write).flatten();
    if let Some(file) = &written {
        driver::carry_stand_in(file.path().to_owned());
    }
    driver::load(choice)
}

fn write() -> Option<NamedTempFile> {
    let mut file = tempfile::Builder::new()
        .prefix("larder-stand-in-")
        .tempfile()
        .ok()?;
    let written = !STAND_IN.is_empty() && file.write_all(STAND_IN).is_ok();
    written.then_some(file)
}
