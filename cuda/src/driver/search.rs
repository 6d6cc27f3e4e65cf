//! Finds the libraries of drivers. The choice between them is made in `load`.
//!
//! Opening a library runs its start-up code, so only files with a driver's name are opened.

use core::error::Error as _;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use larder_cuda_abi::functions;
use libloading::Library;

use super::error::LoadError;
use super::stand_in::is_stand_in;

/// The variable with the stand-in's path.
const STAND_IN_PATH: &str = "LARDER_CUDA_STAND_IN";

/// Path of the stand-in that the program carries.
static CARRIED: OnceLock<PathBuf> = OnceLock::new();

/// Sets the path of the stand-in, for a program that carries one. The path is used unless
/// `LARDER_CUDA_STAND_IN` names another. Call this before [`load`](super::load()); only the first call counts.
/// The file may be deleted once it is loaded.
pub fn carry_stand_in(path: PathBuf) {
    let _ = CARRIED.set(path);
}

/// The name that cudarc tries first.
const FIRST_NAME: &str = if cfg!(windows) {
    "nvcuda.dll"
} else {
    "libcuda.so"
};

/// The names of the real driver, in the order in which they are tried: its own name, then [`FIRST_NAME`]. As
/// long as a library is loaded, it is found by every name under which it was opened. A broken library may stay
/// loaded, so it must not have been opened under the name by which the stand-in is found.
const REAL_NAMES: &[&str] = if cfg!(windows) {
    &[FIRST_NAME]
} else {
    &["libcuda.so.1", FIRST_NAME]
};

/// An open library.
pub(super) struct OpenLibrary {
    pub(super) library: Library,
    pub(super) path: PathBuf,
}

impl OpenLibrary {
    /// Returns whether the library has the stand-in's mark.
    pub(super) fn is_stand_in(&self) -> bool {
        is_stand_in(&self.library)
    }
}

/// Returns the driver that the program is linked with, if any. cudarc calls that driver.
pub(super) fn linked() -> Option<OpenLibrary> {
    let library = program()?;
    let present = function_in(&library).is_some();
    present.then(|| OpenLibrary {
        library,
        path: PathBuf::from("the library linked with the program"),
    })
}

#[cfg(unix)]
fn program() -> Option<Library> {
    Some(libloading::os::unix::Library::this().into())
}

#[cfg(not(unix))]
fn program() -> Option<Library> {
    None
}

/// Opens the real driver by its names.
///
/// A stand-in under the first name hides the real driver from cudarc, and is refused here or in
/// [`before`].
pub(super) fn real() -> Result<OpenLibrary, LoadError> {
    let mut tried = Vec::new();
    let mut posing = None;
    for name in REAL_NAMES {
        match open_real(name) {
            Err(error) => tried.push(((*name).to_owned(), words_without(name, &reason(&error)))),
            Ok(found) => match not_posing(found) {
                Ok(found) => return Ok(found),
                Err(error) => posing = Some(error),
            },
        }
    }
    Err(posing.unwrap_or(LoadError::NoReal { tried }))
}

/// Returns the library that cudarc will call now that the real driver has `started`, if it is another library.
pub(super) fn before(started: &Library) -> Result<Option<OpenLibrary>, LoadError> {
    let Ok(first) = open_real(FIRST_NAME) else {
        return Ok(None);
    };
    let first = not_posing(first)?;
    let is_same = function_in(&first.library) == function_in(started);
    Ok((!is_same).then_some(first))
}

fn open_real(name: &str) -> Result<OpenLibrary, libloading::Error> {
    // SAFETY: the driver's start-up code may run in any program.
    let library = unsafe { Library::new(name) }?;
    let path = PathBuf::from(name);
    Ok(OpenLibrary { library, path })
}

fn not_posing(found: OpenLibrary) -> Result<OpenLibrary, LoadError> {
    if found.is_stand_in() {
        let path = mapped_file(&found).unwrap_or(found.path);
        return Err(LoadError::Posing { path });
    }
    Ok(found)
}

/// Opens the stand-in at the first of its possible paths that is a file.
pub(super) fn stand_in() -> Result<OpenLibrary, LoadError> {
    let looked = stand_in_paths();
    let Some(path) = looked.iter().find(|path| path.is_file()) else {
        return Err(LoadError::NoStandIn { looked });
    };
    open_stand_in(path)
}

fn open_stand_in(path: &Path) -> Result<OpenLibrary, LoadError> {
    // SAFETY: the stand-in does nothing when it is opened. A path that names another library is the user's
    // mistake, refused below.
    let outcome = unsafe { Library::new(path) };
    let library = outcome.map_err(|error| LoadError::Open {
        path: path.to_owned(),
        reason: reason(&error),
    })?;
    let path = path.to_owned();
    let found = OpenLibrary { library, path };
    if found.is_stand_in() {
        Ok(found)
    } else {
        Err(LoadError::NotStandIn { path: found.path })
    }
}

/// Removes the name from the beginning of the system's message, since our message begins with it too.
fn words_without(name: &str, words: &str) -> String {
    let rest = words
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix(": "));
    rest.unwrap_or(words).to_owned()
}

/// Returns the system's message, which is the source of libloading's error.
fn reason(error: &libloading::Error) -> String {
    match error.source() {
        Some(words) => words.to_string(),
        None => error.to_string(),
    }
}

/// Reads an environment variable; an empty one counts as unset.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|text| !text.is_empty())
}

/// Returns the stand-in's possible paths: the one in the environment; if there is none, the one that the
/// program carries; if there is none either, those next to the program.
fn stand_in_paths() -> Vec<PathBuf> {
    if let Some(path) = variable(STAND_IN_PATH) {
        let path = PathBuf::from(path);
        return vec![std::path::absolute(&path).unwrap_or(path)];
    }
    if let Some(path) = CARRIED.get() {
        return vec![path.clone()];
    }
    let Some(folder) = std::env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.to_owned()))
    else {
        return Vec::new();
    };
    let file = format!("{DLL_PREFIX}larder_cuda_stand_in{DLL_SUFFIX}");
    let mut paths = vec![folder.join(&file), folder.join("deps").join(&file)];
    if let Some(above) = folder.parent() {
        paths.push(above.join(&file));
        paths.push(above.join("deps").join(&file));
    }
    paths
}

/// Returns the file that a library found by name was loaded from, if the system reports it.
pub(super) fn mapped_file(found: &OpenLibrary) -> Option<PathBuf> {
    let address = function_in(&found.library)? as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| file_over(line, address))
}

/// Returns the address of a function that every driver has.
fn function_in(library: &Library) -> Option<usize> {
    // SAFETY: the function is only looked up, not called.
    let symbol = unsafe { library.get::<functions::cuInit>("cuInit") };
    Some(*symbol.ok()? as usize)
}

/// Returns the path in a line of the table of mappings, if the line's range contains the address.
fn file_over(line: &str, address: u64) -> Option<PathBuf> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let path = &rest[rest.find('/')?..];
    (start <= address && address < end).then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mappings_gives_its_file() {
        let line = "7f00-7f10 r-xp 00000000 08:01 42                 /lib/a b/libcuda.so.1";
        let path = file_over(line, 0x7f00).unwrap();
        assert_eq!(path, PathBuf::from("/lib/a b/libcuda.so.1"));
        assert_eq!(file_over(line, 0x7f10), None);
        assert_eq!(file_over("7f00-7f10 rw-p 00000000 00:00 0", 0x7f00), None);
    }
}
