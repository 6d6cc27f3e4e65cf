//! The process's driver: chosen once, and shared with cudarc.
//!
//! cudarc opens "libcuda.so" at its first call. The stand-in's library has that name as its SONAME, so once
//! the stand-in is loaded, opening the name yields the stand-in. No search path has to be set, and no file
//! hides the real driver from other programs. A loaded stand-in is refused if it does not count a call made
//! through cudarc.

use core::ffi::c_int;
use std::io::Write as _;
use std::sync::{Mutex, Once};

use larder_cuda_abi::Code;

use super::api::Api;
use super::error::LoadError;
use super::search::{OpenLibrary, before, linked, mapped_file, real, stand_in, variable};
use super::{Driver, StandIn, locked};

/// The variable that chooses the driver.
const CHOICE: &str = "LARDER_CUDA_DRIVER";

/// The driver to load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// The stand-in, which needs no GPU.
    StandIn,
    /// NVIDIA's driver; a stand-in under its name is refused.
    Real,
    /// The real driver if it works and has a device, otherwise the stand-in.
    #[default]
    Auto,
}

impl Choice {
    /// Reads `LARDER_CUDA_DRIVER`: `stand-in`, `real` or `auto`. Returns `None` if it is unset or empty.
    ///
    /// # Errors
    /// [`LoadError::Choice`] for any other text.
    pub fn from_env() -> Result<Option<Self>, LoadError> {
        variable(CHOICE)
            .map(|text| Self::of(&text.to_string_lossy()))
            .transpose()
    }

    fn of(text: &str) -> Result<Self, LoadError> {
        match text {
            "stand-in" => Ok(Self::StandIn),
            "real" => Ok(Self::Real),
            "auto" => Ok(Self::Auto),
            other => Err(LoadError::Choice {
                value: other.to_owned(),
            }),
        }
    }
}

/// The process's driver, once loaded. The lock is held during loading.
static LOADED: Mutex<Option<&'static Driver>> = Mutex::new(None);

/// Loads the driver, or returns the loaded one. The first call makes about a hundred look-ups.
///
/// The real driver is opened by name. The stand-in is opened by its path: the one in `LARDER_CUDA_STAND_IN`, the
/// one that the program [carries](super::carry_stand_in), or one where cargo puts the stand-in for tests,
/// benchmarks and examples, next to the running program, one folder above, or in `deps` in either folder.
/// Doctests run elsewhere and need the variable. Call this before the first use of cudarc.
///
/// # Errors
/// [`LoadError`] if the driver is missing, does not start or has no device; if cudarc uses another driver; or
/// if the process has a driver of the other kind already.
pub fn load(choice: Choice) -> Result<&'static Driver, LoadError> {
    let mut loaded = locked(&LOADED);
    if let Some(driver) = *loaded {
        return agreed(driver, choice);
    }
    let driver: &'static Driver = Box::leak(Box::new(find(choice)?));
    *loaded = Some(driver);
    Ok(driver)
}

/// Loads the driver that the environment chooses, by default [`Choice::Auto`]. Reports the driver once on
/// stderr, even if a test harness captures the output. This is for tests and tools.
///
/// # Errors
/// The [`LoadError`]s of [`load`] and [`Choice::from_env`].
pub fn load_from_env() -> Result<&'static Driver, LoadError> {
    static SAID: Once = Once::new();
    let driver = load(Choice::from_env()?.unwrap_or_default())?;
    SAID.call_once(|| say(driver));
    Ok(driver)
}

fn say(driver: &Driver) {
    let mut said = format!("larder-cuda: {driver}\n");
    if let Some(reason) = driver.no_real() {
        said.push_str(&format!(
            "larder-cuda: not the real driver, because {reason}\n"
        ));
    }
    // A failure to write to stderr cannot be reported.
    let _ = std::io::stderr().write_all(said.as_bytes());
}

/// Returns the loaded driver, or loads the one that the environment chooses. If the environment chooses none,
/// the program gets the real driver or an error, never the stand-in.
pub(crate) fn loaded_or_from_env() -> Result<&'static Driver, LoadError> {
    let loaded = *locked(&LOADED);
    match loaded {
        Some(driver) => Ok(driver),
        None => load(Choice::from_env()?.unwrap_or(Choice::Real)),
    }
}

/// Returns the loaded driver if the choice allows it.
fn agreed(driver: &'static Driver, choice: Choice) -> Result<&'static Driver, LoadError> {
    let is_stand_in = driver.stand_in().is_some();
    match (choice, is_stand_in) {
        (Choice::Auto, _) | (Choice::StandIn, true) | (Choice::Real, false) => Ok(driver),
        (Choice::StandIn, false) | (Choice::Real, true) => Err(LoadError::Contradiction {
            loaded: driver.path.clone(),
        }),
    }
}

fn find(choice: Choice) -> Result<Driver, LoadError> {
    if let Some(found) = linked() {
        return take_linked(choice, found);
    }
    match choice {
        Choice::Real => start_real(),
        Choice::StandIn => start(stand_in()?),
        Choice::Auto => match start_real() {
            Ok(driver) => Ok(driver),
            Err(real) => match stand_in().and_then(start) {
                Ok(driver) => Ok(Driver {
                    no_real: Some(real),
                    ..driver
                }),
                Err(stand_in) => Err(LoadError::Neither {
                    real: Box::new(real),
                    stand_in: Box::new(stand_in),
                }),
            },
        },
    }
}

/// Starts the real driver that cudarc will call.
fn start_real() -> Result<Driver, LoadError> {
    let driver = start(real()?)?;
    match before(&driver.library)? {
        None => Ok(driver),
        Some(first) => start(first),
    }
}

/// Starts the driver that the program is linked with, since no other can be used; refuses if the choice is
/// another kind.
fn take_linked(choice: Choice, found: OpenLibrary) -> Result<Driver, LoadError> {
    let path = mapped_file(&found).unwrap_or_else(|| found.path.clone());
    match (choice, found.is_stand_in()) {
        (Choice::Real, true) => Err(LoadError::Posing { path }),
        (Choice::StandIn, false) => Err(LoadError::Contradiction { loaded: path }),
        _ => start(found),
    }
}

/// Returns whether a call made through cudarc reaches this stand-in.
fn cudarc_calls(control: &StandIn) -> bool {
    let function = Some("cuDriverGetVersion");
    let before = control.calls(function);
    let mut version: c_int = 0;
    // SAFETY: the number outlives the call; the call needs no state.
    let _ = unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut version) };
    control.calls(function) > before
}

/// Starts a driver and reads its version. Closes the library on failure.
fn start(found: OpenLibrary) -> Result<Driver, LoadError> {
    let path = mapped_file(&found).unwrap_or_else(|| found.path.clone());
    let control = StandIn::of(&found.library, &path)?;
    let mut driver = Driver {
        api: Api::resolve(&found.library, &path)?,
        version: 0,
        stand_in: control,
        path,
        no_real: None,
        library: found.library,
    };
    driver.init()?;
    driver.version = driver.newest_version()?;
    if driver.device_count()? < 1 {
        return Err(LoadError::NoDevice { path: driver.path });
    }
    match driver.stand_in() {
        Some(control) if !cudarc_calls(control) => {
            Err(LoadError::OtherDriver { path: driver.path })
        }
        _ => Ok(driver),
    }
}

impl Driver {
    fn init(&self) -> Result<(), LoadError> {
        let entry = self.api.cuInit;
        // SAFETY: DRIVER1; zero is the only value allowed.
        let code = unsafe { (entry.call)(0) };
        if code == Code::NO_DEVICE {
            let path = self.path.clone();
            return Err(LoadError::NoDevice { path });
        }
        Ok(entry.check(code)?)
    }

    fn newest_version(&self) -> Result<u32, LoadError> {
        let entry = self.api.cuDriverGetVersion;
        let mut version: c_int = 0;
        // SAFETY: DRIVER1; the number outlives the call.
        let code = unsafe { (entry.call)(&raw mut version) };
        entry.check(code)?;
        // No driver has a negative version; 0 makes every newer function unavailable.
        Ok(u32::try_from(version).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_one_of_three_words() {
        assert_eq!(Choice::of("stand-in"), Ok(Choice::StandIn));
        assert_eq!(Choice::of("real"), Ok(Choice::Real));
        assert_eq!(Choice::of("auto"), Ok(Choice::Auto));
        let error = Choice::of("Real").unwrap_err().to_string();
        for word in ["Real", "stand-in", "real", "auto"] {
            assert!(error.contains(word), "{error}");
        }
    }
}
