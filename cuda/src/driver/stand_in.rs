//! [`StandIn`]: the control of the stand-in driver, for tests: counts, refusals and findings.
//!
//! Invariant DRIVER2: each field has the name of a function of the stand-in's control interface, under which it
//! is looked up, and that function's C prototype, since both come from one row of the table in
//! `larder_cuda_abi`; and the library stays loaded as long as the fields live.

use core::ffi::c_char;
use core::fmt;
use core::ptr::{null, null_mut};
use std::ffi::CString;
use std::path::Path;
use std::time::Duration;

use larder_cuda_abi::stand_in::{KernelBody, VERSION};
use larder_cuda_abi::{Code, for_each_control_function};
use libloading::Library;

use super::error::{DriverError, LoadError};

/// Name of a function that only a stand-in has.
pub(super) const MARK: &str = "larder_stand_in_version";

type Text = unsafe extern "C" fn(*mut u8, u64) -> u64;

/// A rule for refusing calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule<'a> {
    /// The function, by its name in the driver's library; `None` for any.
    pub function: Option<&'a str>,
    /// Number of calls that are let through first.
    pub skip: u64,
    /// Number of calls that are refused after those.
    pub times: u64,
    /// The answer of refused calls.
    pub code: Code,
}

impl<'a> Rule<'a> {
    /// Answers the next call of any function with [`Code::UNKNOWN`].
    pub const fn any() -> Self {
        Self {
            function: None,
            skip: 0,
            times: 1,
            code: Code::UNKNOWN,
        }
    }

    /// Answers the next call of this function with [`Code::UNKNOWN`].
    pub const fn of(function: &'a str) -> Self {
        Self {
            function: Some(function),
            ..Self::any()
        }
    }

    /// Lets `skip` calls through first.
    #[must_use]
    pub const fn after(self, skip: u64) -> Self {
        Self { skip, ..self }
    }

    /// Refuses `times` calls.
    #[must_use]
    pub const fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    /// Answers refused calls with `code`.
    #[must_use]
    pub const fn with(self, code: Code) -> Self {
        Self { code, ..self }
    }
}

/// Existing objects of one kind.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Alive {
    /// The kind: `device`, `pinned`, `event`, …
    pub kind: String,
    /// Number of objects.
    pub count: u64,
    /// Total bytes of the objects.
    pub bytes: u64,
}

/// Declares [`StandIn`]: each function is looked up by its name, with its prototype (DRIVER2).
macro_rules! control {
    ($(fn $name:ident($($parameter:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {
        /// The control of the stand-in driver. It acts on the whole process, so tests that use it must take
        /// turns.
        pub struct StandIn {
            $($name: unsafe extern "C" fn($($kind),*) $(-> $answer)?,)*
        }

        impl Control<'_> {
            /// Looks up every function.
            fn resolve(&self) -> Result<StandIn, LoadError> {
                Ok(StandIn {
                    $($name: self.find(stringify!($name))?,)*
                })
            }
        }
    };
}

for_each_control_function!(control);

impl StandIn {
    /// Looks up the control. Returns `None` if the library is not a stand-in.
    pub(super) fn of(library: &Library, path: &Path) -> Result<Option<Self>, LoadError> {
        if !is_stand_in(library) {
            return Ok(None);
        }
        let control = Control { library, path };
        let version = control.version()?;
        if version != VERSION {
            return Err(LoadError::StandInVersion {
                path: path.to_owned(),
                version,
            });
        }
        control.resolve().map(Some)
    }

    /// Resets everything, except the settings from the environment, to `devices` devices with `bytes` of memory
    /// each. Earlier handles and addresses become invalid, so the program must hold none.
    pub fn reset(&self, devices: u32, bytes: u64) {
        // SAFETY: DRIVER2; the stand-in checks every handle it is given later.
        unsafe { (self.larder_stand_in_reset)(devices, bytes) }
    }

    /// Sets the memory size of a device. Memory in use stays in use, even if it is more.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn set_memory(&self, device: i32, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: DRIVER2; the call takes no pointers.
        let code = unsafe { (self.larder_stand_in_set_memory)(device, bytes) };
        checked("larder_stand_in_set_memory", code)
    }

    /// Sets the version that the driver reports, such as 12080. A [`Driver`](super::Driver) that is already
    /// loaded keeps the version that it read.
    pub fn set_driver_version(&self, version: u32) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_set_driver_version)(version) }
    }

    /// Returns the number of calls of a function, by its name in the library, or of all functions for `None`.
    pub fn calls(&self, function: Option<&str>) -> u64 {
        let name = Name::of(function);
        // SAFETY: DRIVER2; the name outlives the call.
        unsafe { (self.larder_stand_in_calls)(name.pointer()) }
    }

    /// Returns each function called so far, with the number of its calls.
    pub fn call_table(&self) -> Vec<(String, u64)> {
        let rows = self.lines(self.larder_stand_in_call_table);
        rows.iter().filter_map(|row| named_number(row)).collect()
    }

    /// Resets the counts of calls.
    pub fn reset_calls(&self) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_reset_calls)() }
    }

    /// Refuses calls by a rule, from now on. Several rules may be active at the same time.
    ///
    /// # Errors
    /// If there is no such function, or no such code.
    pub fn fail(&self, rule: Rule<'_>) -> Result<(), DriverError> {
        let name = Name::of(rule.function);
        // SAFETY: DRIVER2; the name outlives the call.
        let code = unsafe {
            (self.larder_stand_in_fail)(name.pointer(), rule.skip, rule.times, rule.code)
        };
        checked("larder_stand_in_fail", code)
    }

    /// Removes all rules.
    pub fn clear_failures(&self) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_clear_failures)() }
    }

    /// Runs queued work as soon as its dependencies allow. This is the default.
    pub fn schedule_eagerly(&self) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_schedule)(0, 0) }
    }

    /// Runs queued work only when a call forces it, or at random, in an order drawn from the seed.
    pub fn schedule_deferred(&self, seed: u64) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_schedule)(1, seed) }
    }

    /// Returns the bytes of a device in use by this process.
    pub fn used(&self, device: i32) -> u64 {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_used)(device) }
    }

    /// Returns all existing objects, by kind.
    pub fn alive(&self) -> Vec<Alive> {
        let rows = self.lines(self.larder_stand_in_alive);
        let kind_of = |row: &String| {
            let mut words = row.split_whitespace();
            Some(Alive {
                kind: words.next()?.to_owned(),
                count: words.next()?.parse().ok()?,
                bytes: words.next()?.parse().ok()?,
            })
        };
        rows.iter().filter_map(kind_of).collect()
    }

    /// Returns the text of each misuse found so far.
    pub fn findings(&self) -> Vec<String> {
        self.lines(self.larder_stand_in_findings)
    }

    /// Clears the findings.
    pub fn clear_findings(&self) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_clear_findings)() }
    }

    /// Gives kernels with this name a body that runs on the host, once per launch.
    ///
    /// The module that declares the kernel and its parameters is loaded as usual, from PTX text; the
    /// instructions in the text are ignored.
    ///
    /// ```no_run
    /// use larder_cuda::driver::{HostLaunch, abi::stand_in::KernelCall, load_from_env};
    ///
    /// /// `.entry add_one(.param .u64 numbers, .param .u32 count)`
    /// unsafe extern "C" fn add_one(call: *const KernelCall) {
    ///     // SAFETY: the stand-in gives a call with these two parameters.
    ///     let launch = unsafe { HostLaunch::of(call) };
    ///     let Some(numbers) = launch.write::<u32>(0, launch.count(1)) else {
    ///         return; // no access: the launch fails as on a device
    ///     };
    ///     for number in numbers {
    ///         *number += 1;
    ///     }
    /// }
    /// if let Some(stand_in) = load_from_env()?.stand_in() {
    ///     // SAFETY: every `add_one` of this program has these parameters.
    ///     unsafe { stand_in.register_kernel("add_one", add_one) }?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// The body is sound for every launch of a kernel with this name, and makes no driver calls.
    ///
    /// # Errors
    /// If the stand-in refuses.
    pub unsafe fn register_kernel(&self, name: &str, body: KernelBody) -> Result<(), DriverError> {
        let name = Name::of(Some(name));
        // SAFETY: DRIVER2; the name outlives the call. The stand-in will call the body for launches of
        // kernels with this name; the caller promises that the body is sound for them.
        let code = unsafe { (self.larder_stand_in_kernel)(name.pointer(), Some(body)) };
        checked("larder_stand_in_kernel", code)
    }

    /// Sets whether new device and pinned memory is filled with a pattern.
    pub fn poison(&self, on: bool) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_poison)(u32::from(on)) }
    }

    /// Sets whether unmapping memory and setting access to it wait for queued work that may use it. By
    /// default they do not, and work whose memory was unmapped fails. Returns the previous setting. A
    /// [reset](Self::reset) keeps the setting.
    pub fn mapping_waits(&self, on: bool) -> bool {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_mapping_waits)(u32::from(on)) != 0 }
    }

    /// Sets whether virtual-memory calls are unsafe while a stream is being captured: they are then refused as
    /// `cuMemAlloc` is, and invalidate the captures. They are safe by default and after a [reset](Self::reset).
    pub fn mapping_spoils(&self, on: bool) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_mapping_spoils)(u32::from(on)) }
    }

    /// Sets whether the devices have virtual memory, as they have by default and after a
    /// [reset](Self::reset). Existing objects stay.
    pub fn virtual_memory(&self, on: bool) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_virtual_memory)(u32::from(on)) }
    }

    /// Sets the maximum bytes of addresses in all reservations together. There is no maximum by default and
    /// after a [reset](Self::reset). Existing reservations stay.
    pub fn set_addresses(&self, bytes: u64) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_set_addresses)(bytes) }
    }

    /// Sets the maximum bytes of host memory that may be pinned or registered, counted in whole pages. By
    /// default and after a [reset](Self::reset) this is all memory of the host. Pinned memory stays pinned.
    pub fn set_pinned(&self, bytes: u64) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_set_pinned)(bytes) }
    }

    /// Sets whether host and devices may use managed memory at the same time, as they may by default. If they
    /// may, managed memory may exceed the device's memory; otherwise managed memory allocated from now on
    /// counts against its device.
    pub fn managed_concurrently(&self, on: bool) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_managed_concurrently)(u32::from(on)) }
    }

    /// Counts the devices' memory in this file from now on, together with other processes that share the file.
    ///
    /// # Errors
    /// If the file cannot be used, or its path is not UTF-8.
    pub fn share(&self, path: &Path) -> Result<(), DriverError> {
        let name = Name::of(path.to_str());
        // SAFETY: DRIVER2; the name outlives the call.
        let code = unsafe { (self.larder_stand_in_share)(name.pointer()) };
        checked("larder_stand_in_share", code)
    }

    /// Sets the device time that each kernel with this name takes from now on. The devices then stop following
    /// the system's clock: their time moves through [`advance`](Self::advance), and when a thread waits for
    /// work. Use this with the eager schedule.
    ///
    /// # Errors
    /// If the stand-in refuses.
    pub fn set_kernel_time(&self, name: &str, takes: Duration) -> Result<(), DriverError> {
        let name = Name::of(Some(name));
        // SAFETY: DRIVER2; the name outlives the call.
        let code = unsafe { (self.larder_stand_in_kernel_time)(name.pointer(), nanos(takes)) };
        checked("larder_stand_in_kernel_time", code)
    }

    /// Advances the devices' time. Returns the new time.
    pub fn advance(&self, time: Duration) -> Duration {
        // SAFETY: DRIVER2; the call takes no pointers.
        Duration::from_nanos(unsafe { (self.larder_stand_in_advance)(nanos(time)) })
    }

    /// Returns the time during which a device ran kernels.
    pub fn busy(&self, device: i32) -> Duration {
        // SAFETY: DRIVER2; the call takes no pointers.
        Duration::from_nanos(unsafe { (self.larder_stand_in_busy)(device) })
    }

    /// Reads a text and returns its lines. Reads the text again if it has grown since its length was read.
    fn lines(&self, text: Text) -> Vec<String> {
        let mut buffer = Vec::new();
        loop {
            let room = buffer.len() as u64;
            let place = if buffer.is_empty() {
                null_mut()
            } else {
                buffer.as_mut_ptr()
            };
            // SAFETY: DRIVER2; the buffer is `room` bytes long and outlives the call.
            let bytes = unsafe { text(place, room) };
            let Ok(length) = usize::try_from(bytes) else {
                return Vec::new();
            };
            if length <= buffer.len() {
                buffer.truncate(length);
                break;
            }
            buffer.resize(length, 0);
        }
        let text = String::from_utf8_lossy(&buffer);
        text.lines().map(str::to_owned).collect()
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn")
            .field("alive", &self.alive())
            .finish_non_exhaustive()
    }
}

/// Returns whether a library is a stand-in. Calls nothing.
pub(super) fn is_stand_in(library: &Library) -> bool {
    // SAFETY: DRIVER2; the function is only looked up, not called.
    unsafe { library.get::<unsafe extern "C" fn() -> u32>(MARK) }.is_ok()
}

/// A library in which the control is looked up.
struct Control<'a> {
    library: &'a Library,
    path: &'a Path,
}

impl Control<'_> {
    fn version(&self) -> Result<u32, LoadError> {
        let version = self.find::<unsafe extern "C" fn() -> u32>(MARK)?;
        // SAFETY: DRIVER2; every version of the interface has this function.
        Ok(unsafe { version() })
    }

    /// Looks up a function. Only `version` and `resolve` call this, with the function's own prototype
    /// (DRIVER2).
    fn find<F: Copy>(&self, name: &'static str) -> Result<F, LoadError> {
        // SAFETY: DRIVER2: `F` is the prototype of the function `name`.
        let symbol = unsafe { self.library.get::<F>(name) };
        symbol.map(|symbol| *symbol).map_err(|_| LoadError::Symbol {
            path: self.path.to_owned(),
            function: name,
        })
    }
}

/// A C string, or none. A name with a NUL inside becomes the empty name, which no function has.
struct Name(Option<CString>);

impl Name {
    fn of(name: Option<&str>) -> Self {
        Self(name.map(|name| CString::new(name).unwrap_or_default()))
    }

    fn pointer(&self) -> *const c_char {
        self.0.as_ref().map_or(null(), |name| name.as_ptr())
    }
}

/// Returns a duration in whole nanoseconds, or the maximum if it is longer than 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn named_number(row: &str) -> Option<(String, u64)> {
    let (name, number) = row.rsplit_once(' ')?;
    Some((name.to_owned(), number.parse().ok()?))
}

fn checked(function: &'static str, code: Code) -> Result<(), DriverError> {
    code.check()
        .map_err(|code| DriverError::Call { function, code })
}
