//! [`NextDriver`]: the driver's own functions, from the library of the program's first call.

use core::ptr;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use larder_cuda::driver::Code;
use larder_cuda::driver::abi::{ContextHandle, PoolHandle, StreamHandle, constants};

use super::table::Functions;
use super::{Library, lookup};

/// INTERDRV: each function has the prototype that belongs to the name by which it was looked up, from the
/// same row of the table in `larder_cuda_abi`, and the library stays loaded.
pub(super) struct NextDriver {
    base: usize,
    pub(super) functions: Functions,
}

static DRIVER: OnceLock<NextDriver> = OnceLock::new();

impl NextDriver {
    /// Returns the driver that the program uses; if no call has determined it yet, the driver with which the
    /// program is linked.
    pub(super) fn get() -> Option<&'static Self> {
        if let Some(driver) = DRIVER.get() {
            return Some(driver);
        }
        let linked = lookup::symbol(libc::RTLD_NEXT, c"cuInit")?;
        let driver = Self::in_library_of(linked.as_ptr())?;
        Some(DRIVER.get_or_init(|| driver))
    }

    /// Returns whether a function that the program is about to get belongs to the driver. The first such
    /// function determines the driver.
    pub(super) fn has(function: *const c_void) -> bool {
        if let Some(driver) = DRIVER.get() {
            let library = Library::of(function);
            return library.is_some_and(|library| library.base == driver.base);
        }
        let Some(driver) = Self::in_library_of(function) else {
            return false;
        };
        let base = driver.base;
        DRIVER.get_or_init(|| driver).base == base
    }

    fn in_library_of(function: *const c_void) -> Option<Self> {
        let library = Library::of(function)?;
        if Library::own().is_none_or(|own| own.base == library.base) {
            return None;
        }
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the path is the loader's own text, and the flag prevents loading.
        let handle = unsafe { libc::dlopen(library.path.as_ptr(), flags) };
        (!handle.is_null()).then(|| Self {
            base: library.base,
            functions: Functions::of(handle),
        })
    }

    /// Returns the number of the current context's device; `None` without a context.
    pub(super) fn device(&self) -> Option<c_int> {
        let mut device = 0;
        // SAFETY: INTERDRV; the number outlives the call.
        let code = unsafe { (self.functions.cuCtxGetDevice?)(&raw mut device) };
        (code == Code::SUCCESS).then_some(device)
    }

    /// Returns whether a device exists.
    pub(super) fn has_device(&self, ordinal: c_int) -> bool {
        let mut device = 0;
        self.functions.cuDeviceGet.is_none_or(|get| {
            // SAFETY: INTERDRV; the number outlives the call.
            let code = unsafe { get(&raw mut device, ordinal) };
            code == Code::SUCCESS
        })
    }

    /// Returns the current context; null if there is none.
    pub(super) fn context(&self) -> ContextHandle {
        let mut context = ContextHandle::NULL;
        if let Some(current) = self.functions.cuCtxGetCurrent {
            // SAFETY: INTERDRV; the handle outlives the call. A refusal leaves null.
            let _ = unsafe { current(&raw mut context) };
        }
        context
    }

    /// Returns a stream's context. For a default stream, or if the driver does not report the context, this
    /// is the current one.
    pub(super) fn context_of(&self, stream: StreamHandle) -> ContextHandle {
        let default = [
            StreamHandle::NULL,
            StreamHandle::LEGACY,
            StreamHandle::PER_THREAD,
        ];
        let ask = self
            .functions
            .cuStreamGetCtx
            .filter(|_| !default.contains(&stream));
        let mut context = ContextHandle::NULL;
        // SAFETY: INTERDRV; the stream is the program's; the handle outlives the call.
        let asked = ask.map(|ask| unsafe { ask(stream, &raw mut context) });
        match asked {
            Some(Code::SUCCESS) => context,
            _ => self.context(),
        }
    }

    /// Returns the number of a stream's device.
    pub(super) fn device_of(&self, stream: StreamHandle) -> Option<c_int> {
        self.within(self.context_of(stream), Self::device)
    }

    /// Runs `act` with an existing context made current, if the driver can make it current.
    fn within<R>(&self, context: ContextHandle, act: impl FnOnce(&Self) -> R) -> R {
        let (Some(push), Some(pop)) = (
            self.functions.cuCtxPushCurrent_v2,
            self.functions.cuCtxPopCurrent_v2,
        ) else {
            return act(self);
        };
        if context == self.context() {
            return act(self);
        }
        // SAFETY: INTERDRV; the context exists.
        let pushed = unsafe { push(context) };
        let answer = act(self);
        if pushed == Code::SUCCESS {
            let mut context = context;
            // SAFETY: INTERDRV; the context was just pushed.
            let _ = unsafe { pop(&raw mut context) };
        }
        answer
    }

    /// Returns whether work queued on a stream becomes part of a graph.
    pub(super) fn is_capturing(&self, stream: StreamHandle) -> bool {
        let mut status = constants::CAPTURE_STATUS_NONE;
        if let Some(capturing) = self.functions.cuStreamIsCapturing {
            // SAFETY: INTERDRV; the number outlives the call. A refusal leaves "no".
            let _ = unsafe { capturing(stream, &raw mut status) };
        }
        status != constants::CAPTURE_STATUS_NONE
    }

    /// Waits for the work of a stream of a context without invalidating a capture of another stream.
    pub(super) fn drain(&self, context: ContextHandle, stream: StreamHandle) {
        let (Some(exchange), Some(synchronize)) = (
            self.functions.cuThreadExchangeStreamCaptureMode,
            self.functions.cuStreamSynchronize,
        ) else {
            return;
        };
        let mut mode = constants::CAPTURE_MODE_RELAXED;
        // SAFETY: INTERDRV; the number outlives the call.
        if unsafe { exchange(&raw mut mode) } != Code::SUCCESS {
            return;
        }
        // The program learns of errors of the work from its own calls.
        // SAFETY: INTERDRV; the stream exists.
        let _ = self.within(context, |_| unsafe { synchronize(stream) });
        // SAFETY: INTERDRV; the mode is the previous one.
        let _ = unsafe { exchange(&raw mut mode) };
    }

    /// Returns whether a device's primary context is active.
    pub(super) fn is_primary_active(&self, device: c_int) -> bool {
        let (mut flags, mut active) = (0, 0);
        let Some(state) = self.functions.cuDevicePrimaryCtxGetState else {
            return true;
        };
        // SAFETY: INTERDRV; the numbers outlive the call.
        let code = unsafe { state(device, &raw mut flags, &raw mut active) };
        code != Code::SUCCESS || active != 0
    }

    /// Returns the pool from which a device's allocations come.
    pub(super) fn pool_of(&self, device: c_int) -> Option<PoolHandle> {
        let mut pool = PoolHandle::NULL;
        // SAFETY: INTERDRV; the handle outlives the call.
        let code = unsafe { (self.functions.cuDeviceGetMemPool?)(&raw mut pool, device) };
        (code == Code::SUCCESS).then_some(pool)
    }

    /// Returns the bytes that a pool holds from the device; `None` if the driver does not report them.
    pub(super) fn held_by(&self, pool: PoolHandle) -> Option<u64> {
        let mut bytes = 0_u64;
        let place = (&raw mut bytes).cast();
        // SAFETY: INTERDRV; this attribute is a 64-bit number, which outlives the call.
        let code = unsafe {
            (self.functions.cuMemPoolGetAttribute?)(pool, constants::POOL_RESERVED_CURRENT, place)
        };
        (code == Code::SUCCESS).then_some(bytes)
    }

    /// Releases a pool's idle memory.
    pub(super) fn trim(&self, pool: PoolHandle) {
        if let Some(trim) = self.functions.cuMemPoolTrimTo {
            // SAFETY: INTERDRV; the pool is the program's.
            let _ = unsafe { trim(pool, 0) };
        }
    }

    /// Returns a device's PCI bus id, as the driver spells it.
    pub(super) fn bus_id_of(&self, device: c_int) -> Option<String> {
        let mut text = [0 as c_char; 32];
        let (place, room) = (text.as_mut_ptr(), text.len() as c_int);
        // SAFETY: INTERDRV; the buffer has `room` bytes.
        let code = unsafe { (self.functions.cuDeviceGetPCIBusId?)(place, room, device) };
        if code != Code::SUCCESS {
            return None;
        }
        // SAFETY: the driver ended the text within the buffer.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Some(text.to_str().ok()?.to_owned())
    }

    /// Returns the function with a name among those that a version of CUDA has.
    pub(super) fn function(
        &self,
        name: *const c_char,
        version: c_int,
        flags: u64,
    ) -> Option<*const c_void> {
        let (mut found, mut status) = (ptr::null(), 0);
        let (place, said) = (&raw mut found, &raw mut status);
        // SAFETY: INTERDRV; the program passed this string to the driver (INTER6); both places outlive the
        // call.
        let code = unsafe {
            match self.functions.cuGetProcAddress_v2 {
                Some(get) => get(name, place, version, flags, said),
                None => self.functions.cuGetProcAddress?(name, place, version, flags),
            }
        };
        (code == Code::SUCCESS).then_some(found)
    }
}
