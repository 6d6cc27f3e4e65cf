//! [`Context`]: a device's context. It is current while a call needs it, and lives as long as anything in it.

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaStream};
use larder_cuda_abi::{Code, ContextHandle, StreamHandle};

use super::owed::{self, Owed, Unwaited};
use super::refused_free::RefusedFree;
use super::{DeviceInfo, Driver, DriverError, LoadError, load, locked};
use crate::limits::Charge;

/// Number of rounds in which the last owner of a context retries refused frees.
const LAST_ROUNDS: usize = 3;

/// Maximum number of refused frees that each free retries. After an error that ends the context the driver
/// refuses every free, and n frees must not cost n * n calls.
const TRIED_ON_THE_WAY: usize = 4;

/// A device's context, shared with cudarc. Clones share the context, and everything that lives in it holds a
/// clone; it ends with the last clone.
///
/// The context keeps each free that the driver refuses, and retries it at the next free, when memory is short,
/// and when the context ends. [`refused_frees`](Self::refused_frees) counts these frees.
///
/// `cuDevicePrimaryCtxReset` ends everything that lives in a primary context. Drop everything of this crate
/// before that call: an address that is freed after it may already belong to another owner.
#[derive(Clone)]
pub struct Context(Arc<ContextInner>);

struct ContextInner {
    driver: &'static Driver,
    cuda: Arc<CudaContext>,
    handle: ContextHandle,
    /// The driver's number for the device.
    device: i32,
    ordinal: i32,
    /// Refused frees, each with the charge that is held until the driver accepts the free.
    refused_frees: Mutex<VecDeque<(RefusedFree, Option<Charge>)>>,
    /// Frees of memory that work may still use (OWED1).
    owed: Mutex<Vec<Owed>>,
    /// Declared after `cuda`, so that it is dropped later.
    at_end: PreviousContext,
}

impl Context {
    /// Returns the primary context of a device and makes it current for this thread. If no driver is loaded,
    /// loads the one that [`Choice::from_env`](super::Choice::from_env) chooses, by default the real one.
    ///
    /// # Errors
    /// If no driver can be loaded, there is no such device, or the driver refuses.
    pub fn new(ordinal: usize) -> Result<Self, LoadError> {
        let driver = load::loaded_or_from_env()?;
        // No device has an ordinal beyond `i32`.
        driver.device(i32::try_from(ordinal).unwrap_or(-1))?;
        let cuda = CudaContext::new(ordinal).map_err(|error| start_error(error.0 as u32))?;
        Self::over(driver, cuda)
    }

    /// Returns the primary context of a device without changing the thread's current context. This is for a
    /// library in a program that has contexts of its own.
    ///
    /// # Errors
    /// If no driver can be loaded, there is no such device, or the driver refuses.
    pub fn primary(ordinal: usize) -> Result<Self, LoadError> {
        let driver = load::loaded_or_from_env()?;
        let _put_back = PreviousContext {
            driver,
            before: Some(driver.current_context()?),
        };
        Self::new(ordinal)
    }

    /// Wraps a context that the program already has.
    ///
    /// # Errors
    /// If no driver can be loaded, or it is not the one that cudarc uses.
    pub fn from_cudarc(cuda: Arc<CudaContext>) -> Result<Self, LoadError> {
        Self::over(load::loaded_or_from_env()?, cuda)
    }

    fn over(driver: &'static Driver, cuda: Arc<CudaContext>) -> Result<Self, LoadError> {
        let ordinal =
            i32::try_from(cuda.ordinal()).map_err(|_| start_error(Code::INVALID_DEVICE.0))?;
        Ok(Self(Arc::new(ContextInner {
            driver,
            handle: handle_of(&cuda),
            device: cuda.cu_device(),
            ordinal,
            cuda,
            refused_frees: Mutex::default(),
            owed: Mutex::default(),
            at_end: PreviousContext {
                driver,
                before: None,
            },
        })))
    }

    /// Returns the driver.
    pub fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    /// Returns cudarc's context.
    pub fn cudarc(&self) -> &Arc<CudaContext> {
        &self.0.cuda
    }

    /// Returns the driver's own number for the device.
    pub fn device(&self) -> i32 {
        self.0.device
    }

    /// Returns the device's ordinal, which identifies the device in calls for virtual memory and pools.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// Returns the properties of the device.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn device_info(&self) -> Result<DeviceInfo, DriverError> {
        self.driver().device_info(self.device())
    }

    /// Runs `act` with this context current for the calling thread, then restores the previous context, even
    /// after a panic. Costs one driver call if the context is already current, otherwise three.
    ///
    /// `act` should not change the current context: a change, such as cudarc's `bind_to_thread` on another
    /// context, may persist.
    ///
    /// # Errors
    /// If the context cannot be made current, in which case `act` does not run.
    pub fn with_current<R>(
        &self,
        act: impl FnOnce(&'static Driver) -> R,
    ) -> Result<R, DriverError> {
        let entered = self.0.enter()?;
        let answer = act(self.driver());
        drop(entered);
        Ok(answer)
    }

    /// Runs a fallible `act` with this context current for the calling thread, then restores the previous
    /// context.
    ///
    /// # Errors
    /// If the context cannot be made current; the errors of `act`.
    pub fn try_current<R>(
        &self,
        act: impl FnOnce(&'static Driver) -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        self.with_current(act)?
    }

    /// Runs a call that takes a stream, with the stream's own context current, since the handle of a default
    /// stream means the default stream of the current context.
    pub(crate) fn try_on<R>(
        &self,
        stream: &CudaStream,
        act: impl FnOnce(&'static Driver, StreamHandle) -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        on_stream(self.driver(), stream, act)
    }

    /// Waits for all work in this context.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.try_current(Driver::synchronize_context)
    }

    /// Returns the number of frees that the driver refused or that are waiting for work.
    pub fn refused_frees(&self) -> usize {
        let owed: usize = locked(&self.0.owed).iter().map(Owed::len).sum();
        locked(&self.0.refused_frees).len() + owed
    }

    /// Waits for the work that uses memory of dropped allocators, except on streams that are being captured,
    /// and retries all refused frees. Returns the number of frees that are still deferred. Call this while no
    /// stream is being captured: some memory, such as that of a [`FixedBlock`](crate::FixedBlock), waits for
    /// the whole context, and that wait invalidates captures.
    pub fn settle(&self) -> usize {
        self.0.pay(true);
        self.0.settle(usize::MAX);
        self.refused_frees()
    }

    /// Retries all refused frees, and frees whose work is over, for a caller that is short of memory. Does not
    /// wait.
    pub(crate) fn settle_at_once(&self) {
        self.0.pay(false);
        self.0.settle(usize::MAX);
    }

    /// Frees `thing` now, or later if the driver refuses. Retries a few earlier refused frees first.
    pub(crate) fn give_back(&self, thing: RefusedFree) {
        self.give_back_charged(thing, None);
    }

    /// Calls `end`, which ends an allocator whose work was not waited for. The memory that `end` frees on this
    /// thread is freed once that work is over (OWED1).
    pub(crate) fn owe(&self, unwaited: Vec<Unwaited>, end: impl FnOnce()) {
        if unwaited.is_empty() {
            return end();
        }
        let mut frees = owed::collect(end);
        let events = unwaited.iter().filter_map(Unwaited::event);
        frees.extend(events.map(|event| (RefusedFree::Event(event), None)));
        locked(&self.0.owed).push(Owed { unwaited, frees });
    }

    /// Frees `thing` now, or later if the driver refuses; `charge` is held until the driver accepts the free.
    pub(crate) fn give_back_charged(&self, thing: RefusedFree, charge: Option<Charge>) {
        let Some((thing, charge)) = owed::take((thing, charge)) else {
            return;
        };
        if self.try_give_back(thing).is_err() {
            self.defer_free_charged(thing, charge);
        }
    }

    /// Frees `thing` now, or leaves it to the caller if the driver refuses. Retries a few earlier refused frees
    /// first.
    pub(crate) fn try_give_back(&self, thing: RefusedFree) -> Result<(), DriverError> {
        if owed::is_collecting() {
            return Err(DriverError::Call {
                function: "cuStreamSynchronize",
                code: Code::NOT_READY,
            });
        }
        self.0.pay(false);
        self.0.settle(TRIED_ON_THE_WAY);
        self.try_current(|driver| thing.give_back(driver))
    }

    /// Defers a free that the driver refused.
    pub(crate) fn defer_free_charged(&self, thing: RefusedFree, charge: Option<Charge>) {
        locked(&self.0.refused_frees).push_back((thing, charge));
    }
}

fn start_error(code: u32) -> LoadError {
    LoadError::Call(DriverError::Call {
        function: "cuDevicePrimaryCtxRetain",
        code: Code(code),
    })
}

/// Returns the driver's handle for a context.
fn handle_of(cuda: &CudaContext) -> ContextHandle {
    ContextHandle(cuda.cu_ctx().addr())
}

/// Runs a call that takes a stream, with the stream's own context current.
pub(super) fn on_stream<R>(
    driver: &'static Driver,
    stream: &CudaStream,
    act: impl FnOnce(&'static Driver, StreamHandle) -> Result<R, DriverError>,
) -> Result<R, DriverError> {
    let entered = enter(driver, handle_of(stream.context()))?;
    let answer = act(driver, StreamHandle(stream.cu_stream().addr()));
    drop(entered);
    answer
}

/// Makes a context current until the returned value is dropped. The caller keeps the context alive until
/// then.
fn enter(driver: &'static Driver, context: ContextHandle) -> Result<CurrentGuard, DriverError> {
    let before = driver.current_context()?;
    let pushed = before != context;
    if pushed {
        // SAFETY: the caller, which is `ContextInner` or borrows one of its streams, keeps the context alive
        // until `CurrentGuard` is dropped.
        unsafe { driver.push_context(context) }?;
    }
    Ok(CurrentGuard {
        driver,
        before,
        pushed,
    })
}

impl ContextInner {
    fn enter(&self) -> Result<CurrentGuard, DriverError> {
        enter(self.driver, self.handle)
    }

    /// Moves the owed frees whose work is over to the refused frees; waits for the work if `may_wait`.
    fn pay(&self, may_wait: bool) {
        let mut owed = core::mem::take(&mut *locked(&self.owed));
        if owed.is_empty() {
            return;
        }
        let entered = self.enter();
        let is_over = |owed: &mut Owed| entered.is_ok() && owed.is_over(self.driver, may_wait);
        let paid: Vec<Owed> = owed.extract_if(.., is_over).collect();
        drop(entered);
        locked(&self.owed).extend(owed);
        locked(&self.refused_frees).extend(paid.into_iter().flat_map(|owed| owed.frees));
    }

    /// Retries each of the first `max` refused frees once. A free that is refused again goes to the end of the
    /// queue, so that every free gets its turn.
    fn settle(&self, max: usize) {
        let things: Vec<(RefusedFree, Option<Charge>)> = {
            let mut refused_frees = locked(&self.refused_frees);
            let count = max.min(refused_frees.len());
            refused_frees.drain(..count).collect()
        };
        if things.is_empty() {
            return;
        }
        let entered = self.enter();
        let refused = |(thing, _): &(RefusedFree, _)| {
            entered.is_err() || thing.give_back(self.driver).is_err()
        };
        // Accepted frees drop their charges here, without the lock.
        let left: Vec<_> = things.into_iter().filter(refused).collect();
        locked(&self.refused_frees).extend(left);
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        for _ in 0..LAST_ROUNDS {
            self.pay(true);
            self.settle(usize::MAX);
        }
        let before = self.driver.current_context().ok();
        self.at_end.before = before.filter(|before| *before != self.handle);
    }
}

/// Restores the previous context when dropped, since cudarc makes a context current to release it.
struct PreviousContext {
    driver: &'static Driver,
    before: Option<ContextHandle>,
}

impl Drop for PreviousContext {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the context was current, so it existed. If it has ended since, the thread is in the same
            // state with or without this call. A refusal cannot be reported.
            let _ = unsafe { self.driver.set_context(before) };
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("ordinal", &self.0.ordinal)
            .field("driver", &self.0.driver)
            .finish_non_exhaustive()
    }
}

/// Keeps a context current; restores the previous one when dropped.
struct CurrentGuard {
    driver: &'static Driver,
    before: ContextHandle,
    pushed: bool,
}

impl Drop for CurrentGuard {
    fn drop(&mut self) {
        if !self.pushed || self.driver.pop_context().is_ok() || self.driver.pop_context().is_ok() {
            return;
        }
        // The driver refused twice, so the stack of contexts keeps one entry too many, but the previous
        // context is current again if this call succeeds. A refusal cannot be reported.
        // SAFETY: the context was current, so it existed. If it has ended since, the thread is in the same
        // state with or without this call.
        let _ = unsafe { self.driver.set_context(self.before) };
    }
}

impl Driver {
    /// Returns the current context of the calling thread, or null if there is none.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn current_context(&self) -> Result<ContextHandle, DriverError> {
        let entry = self.api.cuCtxGetCurrent;
        let mut context = ContextHandle::NULL;
        // SAFETY: DRIVER1; the handle outlives the call.
        let code = unsafe { (entry.call)(&raw mut context) };
        entry.check(code)?;
        Ok(context)
    }

    /// Waits for all work in the current context.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub fn synchronize_context(&self) -> Result<(), DriverError> {
        let entry = self.api.cuCtxSynchronize;
        let code = self.relaxed(|| {
            // SAFETY: DRIVER1; the call takes no arguments.
            Ok(unsafe { (entry.call)() })
        })?;
        entry.check(code)
    }

    /// Pushes a context onto the thread's stack of contexts.
    ///
    /// # Safety
    /// The context exists.
    unsafe fn push_context(&self, context: ContextHandle) -> Result<(), DriverError> {
        let entry = self.api.cuCtxPushCurrent_v2;
        // SAFETY: DRIVER1; the context exists, as the caller promises.
        let code = unsafe { (entry.call)(context) };
        entry.check(code)
    }

    /// Pops the current context, which makes the context below it on the stack current.
    fn pop_context(&self) -> Result<(), DriverError> {
        let entry = self.api.cuCtxPopCurrent_v2;
        let mut popped = ContextHandle::NULL;
        // SAFETY: DRIVER1; the handle outlives the call.
        let code = unsafe { (entry.call)(&raw mut popped) };
        entry.check(code)
    }

    /// Replaces the current context.
    ///
    /// # Safety
    /// The context exists, or the handle is null.
    unsafe fn set_context(&self, context: ContextHandle) -> Result<(), DriverError> {
        let entry = self.api.cuCtxSetCurrent;
        // SAFETY: DRIVER1; the context exists or is null, as the caller promises.
        let code = unsafe { (entry.call)(context) };
        entry.check(code)
    }
}
