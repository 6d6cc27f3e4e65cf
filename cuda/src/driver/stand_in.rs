//! [`StandIn`]: the control of the stand-in driver, for tests: what it counted, what it should
//! refuse, what it found.
//!
//! Invariant DRIVER2: the type of each field is the C prototype of the function of the stand-in's
//! control interface that it is looked up by, as both come from one row of the table in
//! `larder_cuda_abi`; and the library stays loaded for as long as the fields live.

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

/// The function that only a stand-in has.
pub(super) const MARK: &str = "larder_stand_in_version";

type Text = unsafe extern "C" fn(*mut u8, u64) -> u64;

/// Which calls are refused, how often, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule<'a> {
    /// The function, by its name in the driver's library; `None` for any.
    pub function: Option<&'a str>,
    /// Calls that are still made first.
    pub skip: u64,
    /// Calls that are refused then.
    pub times: u64,
    /// The answer.
    pub code: Code,
}

impl<'a> Rule<'a> {
    /// The next call of any function is answered with [`Code::UNKNOWN`].
    pub const fn any() -> Self {
        Self {
            function: None,
            skip: 0,
            times: 1,
            code: Code::UNKNOWN,
        }
    }

    /// The next call of this function is answered with [`Code::UNKNOWN`].
    pub const fn of(function: &'a str) -> Self {
        Self {
            function: Some(function),
            ..Self::any()
        }
    }

    /// So many calls are made first.
    #[must_use]
    pub const fn after(self, skip: u64) -> Self {
        Self { skip, ..self }
    }

    /// So many calls are refused.
    #[must_use]
    pub const fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    /// They are answered with this code.
    #[must_use]
    pub const fn with(self, code: Code) -> Self {
        Self { code, ..self }
    }
}

/// How much of one kind exists.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Alive {
    /// The kind: `device`, `pinned`, `event`, …
    pub kind: String,
    /// How many.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Declares [`StandIn`]: each function is looked up by its name, with its prototype (DRIVER2).
macro_rules! control {
    ($(fn $name:ident($($parameter:ident: $kind:ty),*) $(-> $answer:ty)?;)*) => {
        /// The control of the stand-in driver. It acts on the whole process: tests that use it take
        /// turns.
        pub struct StandIn {
            $($name: unsafe extern "C" fn($($kind),*) $(-> $answer)?,)*
        }

        impl Control<'_> {
            /// Looks every function up.
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
    /// Looks the control up; `None` if the library is not a stand-in.
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

    /// Forgets everything but what the environment says; so many devices of so much memory. Handles and
    /// addresses from before are nothing any more: only for when the program holds none.
    pub fn reset(&self, devices: u32, bytes: u64) {
        // SAFETY: DRIVER2; the stand-in checks every handle it is given later.
        unsafe { (self.larder_stand_in_reset)(devices, bytes) }
    }

    /// Sets the memory of a device.
    ///
    /// # Errors
    /// If there is no such device, or more is in use.
    pub fn set_memory(&self, device: i32, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: DRIVER2; the call takes no pointers.
        let code = unsafe { (self.larder_stand_in_set_memory)(device, bytes) };
        checked("larder_stand_in_set_memory", code)
    }

    /// Sets what the driver says its version is, like 12080. What was loaded before has read it
    /// already.
    pub fn set_driver_version(&self, version: u32) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_set_driver_version)(version) }
    }

    /// Calls of a function so far, by its name in the library; `None` for all functions.
    pub fn calls(&self, function: Option<&str>) -> u64 {
        let name = Name::of(function);
        // SAFETY: DRIVER2; the name outlives the call.
        unsafe { (self.larder_stand_in_calls)(name.pointer()) }
    }

    /// Each function called so far, with its calls.
    pub fn call_table(&self) -> Vec<(String, u64)> {
        let rows = self.lines(self.larder_stand_in_call_table);
        rows.iter().filter_map(|row| named_number(row)).collect()
    }

    /// Counts anew.
    pub fn reset_calls(&self) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_reset_calls)() }
    }

    /// Refuses calls from now on. Several rules may stand at once.
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

    /// Refuses nothing any more.
    pub fn clear_failures(&self) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_clear_failures)() }
    }

    /// Runs queued work as soon as it may run; the default.
    pub fn schedule_eagerly(&self) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_schedule)(0, 0) }
    }

    /// Runs queued work only when something forces it, or by chance, in an order drawn from the seed.
    pub fn schedule_deferred(&self, seed: u64) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_schedule)(1, seed) }
    }

    /// Bytes of a device in use by this process.
    pub fn used(&self, device: i32) -> u64 {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_used)(device) }
    }

    /// All that exists, by kind.
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

    /// Each misuse found so far, in words.
    pub fn findings(&self) -> Vec<String> {
        self.lines(self.larder_stand_in_findings)
    }

    /// Forgets what was found.
    pub fn clear_findings(&self) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_clear_findings)() }
    }

    /// Gives the kernels of that name a body that runs on the host, once a launch.
    ///
    /// A module that names the kernel and its parameters is loaded as usual, from PTX text; what the
    /// text says it does is not looked at.
    ///
    /// ```no_run
    /// use larder_cuda::driver::{HostLaunch, abi::stand_in::KernelCall, load_from_env};
    ///
    /// /// `.entry add_one(.param .u64 numbers, .param .u32 count)`
    /// unsafe extern "C" fn add_one(call: *const KernelCall) {
    ///     // SAFETY: the stand-in gives a call with these two parameters.
    ///     let launch = unsafe { HostLaunch::of(call) };
    ///     let Some(numbers) = launch.write::<u32>(0, launch.count(1)) else {
    ///         return; // not there: the launch fails as on a device
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
    /// The body is sound for every launch of a kernel of that name, and calls no driver.
    ///
    /// # Errors
    /// If the stand-in refuses.
    pub unsafe fn register_kernel(&self, name: &str, body: KernelBody) -> Result<(), DriverError> {
        let name = Name::of(Some(name));
        // SAFETY: DRIVER2; the name outlives the call. The stand-in will call the body for launches
        // of kernels of this name, for which the caller says that it is sound.
        let code = unsafe { (self.larder_stand_in_kernel)(name.pointer(), Some(body)) };
        checked("larder_stand_in_kernel", code)
    }

    /// Whether new device and pinned memory is filled with a pattern.
    pub fn poison(&self, on: bool) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_poison)(u32::from(on)) }
    }

    /// Sets whether unmapping memory and setting access to it wait for queued work that may use it. They do
    /// not at first, and work whose memory went fails. Says whether they did before; a [reset](Self::reset)
    /// changes nothing of it.
    pub fn mapping_waits(&self, on: bool) -> bool {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_mapping_waits)(u32::from(on)) != 0 }
    }

    /// Sets whether calls of virtual memory are unsafe while streams capture: refused as `cuMemAlloc` is, and the
    /// captures spoilt. They are not at first, and after a [reset](Self::reset).
    pub fn mapping_spoils(&self, on: bool) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_mapping_spoils)(u32::from(on)) }
    }

    /// Sets whether the devices have virtual memory, as they have at first, and after a [reset](Self::reset).
    /// What exists stays.
    pub fn virtual_memory(&self, on: bool) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_virtual_memory)(u32::from(on)) }
    }

    /// Sets how many bytes of addresses may be reserved at a time, by one reservation or by many: at first, and
    /// after a [reset](Self::reset), any number. What is reserved stays so.
    pub fn set_addresses(&self, bytes: u64) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_set_addresses)(bytes) }
    }

    /// Sets how much of the host's memory may be pinned or registered, in whole pages: at first, and after a
    /// [reset](Self::reset), as much as the host has. What is pinned already stays so.
    pub fn set_pinned(&self, bytes: u64) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_set_pinned)(bytes) }
    }

    /// Sets whether hosts and devices may use managed memory at once, as they may at first. Then there may be
    /// more of it than the device has; without, what is made from now on counts against its device.
    pub fn managed_concurrently(&self, on: bool) {
        // SAFETY: DRIVER2; the call takes no pointers.
        unsafe { (self.larder_stand_in_managed_concurrently)(u32::from(on)) }
    }

    /// Counts the devices' memory in this file, together with other processes.
    ///
    /// # Errors
    /// If the file cannot be used, or its path is not UTF-8.
    pub fn share(&self, path: &Path) -> Result<(), DriverError> {
        let name = Name::of(path.to_str());
        // SAFETY: DRIVER2; the name outlives the call.
        let code = unsafe { (self.larder_stand_in_share)(name.pointer()) };
        checked("larder_stand_in_share", code)
    }

    /// Kernels of that name take so long from now on, by the device's time. It is the system's no longer: it
    /// moves by [`advance`](Self::advance), and when a thread waits for work. For the eager schedule.
    ///
    /// # Errors
    /// If the name is not UTF-8.
    pub fn set_kernel_time(&self, name: &str, takes: Duration) -> Result<(), DriverError> {
        let name = Name::of(Some(name));
        // SAFETY: DRIVER2; the name outlives the call.
        let code = unsafe { (self.larder_stand_in_kernel_time)(name.pointer(), nanos(takes)) };
        checked("larder_stand_in_kernel_time", code)
    }

    /// Lets time pass on the devices; their time then.
    pub fn advance(&self, time: Duration) -> Duration {
        // SAFETY: DRIVER2; the call takes no pointers.
        Duration::from_nanos(unsafe { (self.larder_stand_in_advance)(nanos(time)) })
    }

    /// How much of its time a device ran kernels.
    pub fn busy(&self, device: i32) -> Duration {
        // SAFETY: DRIVER2; the call takes no pointers.
        Duration::from_nanos(unsafe { (self.larder_stand_in_busy)(device) })
    }

    /// A text, asked for until it has not grown meanwhile.
    fn lines(&self, text: Text) -> Vec<String> {
        let mut buffer = Vec::new();
        loop {
            let room = buffer.len() as u64;
            let place = if buffer.is_empty() {
                null_mut()
            } else {
                buffer.as_mut_ptr()
            };
            // SAFETY: DRIVER2; the buffer has that much room and outlives the call.
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

/// Whether a library is a stand-in. Calls nothing.
pub(super) fn is_stand_in(library: &Library) -> bool {
    // SAFETY: DRIVER2; it is only looked up.
    unsafe { library.get::<unsafe extern "C" fn() -> u32>(MARK) }.is_ok()
}

/// Where the control is looked up.
struct Control<'a> {
    library: &'a Library,
    path: &'a Path,
}

impl Control<'_> {
    fn version(&self) -> Result<u32, LoadError> {
        let version = self.find::<unsafe extern "C" fn() -> u32>(MARK)?;
        // SAFETY: DRIVER2; of every version of the interface.
        Ok(unsafe { version() })
    }

    /// Only `version` and `resolve` call it, with the prototype of the name (DRIVER2).
    fn find<F: Copy>(&self, name: &'static str) -> Result<F, LoadError> {
        // SAFETY: DRIVER2: `F` is the prototype of the function of this name.
        let symbol = unsafe { self.library.get::<F>(name) };
        symbol.map(|symbol| *symbol).map_err(|_| LoadError::Symbol {
            path: self.path.to_owned(),
            function: name,
        })
    }
}

/// A name for C, or none. One with a zero inside is that of no function.
struct Name(Option<CString>);

impl Name {
    fn of(name: Option<&str>) -> Self {
        Self(name.map(|name| CString::new(name).unwrap_or_default()))
    }

    fn pointer(&self) -> *const c_char {
        self.0.as_ref().map_or(null(), |name| name.as_ptr())
    }
}

/// Whole nanoseconds; the largest number for more than 584 years.
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
