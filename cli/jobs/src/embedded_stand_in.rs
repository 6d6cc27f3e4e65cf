//! The stand-in driver, embedded in the program, so that all commands work in a copy of the program
//! alone.

use std::io::Write;

use larder_cuda::driver::{self, Choice, Driver, LoadError};
use rust_embed::Embed;
use tempfile::NamedTempFile;

/// The stand-in's shared object, which cargo links before it compiles this package. There are
/// several files if it was linked with several settings, and none if nothing is linked, as in
/// `cargo check`. A file's name has a hash unless it was built in this repository.
#[derive(Embed)]
#[folder = "$LARDER_LINKED"]
#[include = "*larder_cuda_stand_in*.{so,dylib,dll}"]
struct Linked;

/// Loads a driver. The stand-in is the embedded one, unless `LARDER_CUDA_STAND_IN` names another.
///
/// The stand-in is written to a temporary file, which is removed once it is loaded. If that fails,
/// the stand-in next to the program is used.
///
/// # Errors
/// The errors of [`driver::load`].
pub fn load(choice: Choice) -> Result<&'static Driver, LoadError> {
    let written = (choice != Choice::Real).then(write).flatten();
    if let Some(file) = &written {
        driver::carry_stand_in(file.path().to_owned());
    }
    driver::load(choice)
}

fn write() -> Option<NamedTempFile> {
    let linked = Linked::iter().filter_map(|name| Linked::get(&name));
    let newest = linked.max_by_key(|file| file.metadata.last_modified())?;
    let mut file = tempfile::Builder::new()
        .prefix("larder-stand-in-")
        .tempfile()
        .ok()?;
    file.write_all(&newest.data).ok()?;
    Some(file)
}
