//! [`Context`]: a device's context, current where it is needed and alive for as long as anything
//! lives in it.

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaStream};
use larder_cuda_abi::{Code, ContextHandle, StreamHandle};

use super::deferred_free::DeferredFree;
use super::owed::{self, Owed, Unwaited};
use super::{DeviceInfo, Driver, DriverError, LoadError, load, locked};
use crate::limits::Charge;

/// How often the last owner of a context tries to give back what the driver refused.
const LAST_ROUNDS: usize = 3;

/// How many deferred frees are tried with each thing that is given back: after an error that ends
/// the context all are refused, and giving back n things must not cost n * n calls.
const TRIED_ON_THE_WAY: usize = 4;

/// A context of a device, shared with cudarc. A clone is the same context; it ends when the last
/// one is gone, and everything that lives in it holds one.
///
/// What the driver refuses to take back is kept here and tried again: by the next thing that is
/// given back, when memory is short, and at the end. [`deferred_frees`](Self::deferred_frees) counts
/// it.
///
/// `cuDevicePrimaryCtxReset` ends all that lives in a primary context. Drop what is here first: an
/// address that is given back later may be somebody else's by then.
#[derive(Clone)]
pub struct Context(Arc<ContextInner>);

struct ContextInner {
    driver: &'static Driver,
    cuda: Arc<CudaContext>,
    handle: ContextHandle,
    /// The driver's number of the device.
    device: i32,
    ordinal: i32,
    /// Refused frees, each with the charge that is held until it has gone.
    deferred_frees: Mutex<VecDeque<(DeferredFree, Option<Charge>)>>,
    /// Frees of memory that work may still use (OWED1).
    owed: Mutex<Vec<Owed>>,
    /// Behind `cuda`, so that it is dropped later.
    at_end: PreviousContext,
}

impl Context {
    /// The primary context of a device, which cudarc makes current for this thread. The driver is
    /// loaded as [`Choice::from_env`](super::Choice::from_env) says if none is, and without a word
    /// there it is the real one.
    ///
    /// # Errors
    /// If no driver can be loaded, there is no such device, or the driver refuses.
    pub fn new(ordinal: usize) -> Result<Self, LoadError> {
        let driver = load::loaded_or_from_env()?;
        // What is no ordinal at all is one of no device.
        driver.device(i32::try_from(ordinal).unwrap_or(-1))?;
        let cuda = CudaContext::new(ordinal).map_err(|error| start_error(error.0 as u32))?;
        Self::over(driver, cuda)
    }

    /// The primary context of a device, which leaves current what was current for this thread: for a library
    /// inside of a program that has contexts of its own.
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

    /// A context that the program has already.
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
            deferred_frees: Mutex::default(),
            owed: Mutex::default(),
            at_end: PreviousContext {
                driver,
                before: None,
            },
        })))
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    /// This context for cudarc's interface.
    pub fn cudarc(&self) -> &Arc<CudaContext> {
        &self.0.cuda
    }

    /// The driver's own number of the device.
    pub fn device(&self) -> i32 {
        self.0.device
    }

    /// The device's place among the devices, which names it in virtual memory and pools.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// What the device has and can do.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn device_info(&self) -> Result<DeviceInfo, DriverError> {
        self.driver().device_info(self.device())
    }

    /// Runs `act` with this context current for the calling thread, and puts back what was current,
    /// also after a panic. One driver call if the context is current already, else three.
    ///
    /// `act` leaves current what it finds: if that is changed there, as by cudarc's `bind_to_thread`
    /// of another context, it may stay so.
    ///
    /// # Errors
    /// If the context could not be made current; `act` did not run then.
    pub fn with_current<R>(
        &self,
        act: impl FnOnce(&'static Driver) -> R,
    ) -> Result<R, DriverError> {
        let entered = self.0.enter()?;
        let answer = act(self.driver());
        drop(entered);
        Ok(answer)
    }

    /// Runs `act`, which may fail itself, with this context current for the calling thread, and puts
    /// back what was current.
    ///
    /// # Errors
    /// If the context could not be made current, and the errors of `act`.
    pub fn try_current<R>(
        &self,
        act: impl FnOnce(&'static Driver) -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        self.with_current(act)?
    }

    /// Runs a call that is given a stream, with the stream's own context current: a default stream
    /// has no handle of its own, and is that of whatever context is current.
    pub(crate) fn try_on<R>(
        &self,
        stream: &CudaStream,
        act: impl FnOnce(&'static Driver, StreamHandle) -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        on_stream(self.driver(), stream, act)
    }

    /// Waits until all work of this context is done.
    ///
    /// # Errors
    /// If the driver refuses, or work failed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.try_current(Driver::synchronize_context)
    }

    /// How many things the driver did not take back yet, or were not given to it since work may use them.
    pub fn deferred_frees(&self) -> usize {
        let owed: usize = locked(&self.0.owed).iter().map(Owed::len).sum();
        locked(&self.0.deferred_frees).len() + owed
    }

    /// Tries again to give back all that the driver refused; waits for work that memory of allocators that
    /// are gone is kept for, but for streams that capture. Returns how many frees are still deferred. Call it while
    /// no stream captures: memory that waits for the whole context, as of a [`FixedBlock`](crate::FixedBlock), is
    /// waited for all the same, which spoils captures.
    pub fn settle(&self) -> usize {
        self.0.pay(true);
        self.0.settle(usize::MAX);
        self.deferred_frees()
    }

    /// Tries again to give back all that the driver refused, and what is out of use by now, for whoever is
    /// short of memory. Nothing is waited for.
    pub(crate) fn settle_at_once(&self) {
        self.0.pay(false);
        self.0.settle(usize::MAX);
    }

    /// Gives a thing back, now or later. Frees that were deferred before go first.
    pub(crate) fn give_back(&self, thing: DeferredFree) {
        self.give_back_charged(thing, None);
    }

    /// Ends an allocator whose work was not waited for: what `end` gives back on this thread is given back
    /// once that work is over (OWED1).
    pub(crate) fn owe(&self, unwaited: Vec<Unwaited>, end: impl FnOnce()) {
        if unwaited.is_empty() {
            return end();
        }
        let mut frees = owed::collect(end);
        let events = unwaited.iter().filter_map(Unwaited::event);
        frees.extend(events.map(|event| (DeferredFree::Event(event), None)));
        locked(&self.0.owed).push(Owed { unwaited, frees });
    }

    /// Gives back memory, now or later; `charge` is held until the driver has taken it.
    pub(crate) fn give_back_charged(&self, thing: DeferredFree, charge: Option<Charge>) {
        let Some((thing, charge)) = owed::take((thing, charge)) else {
            return;
        };
        if self.try_give_back(thing).is_err() {
            self.defer_free_charged(thing, charge);
        }
    }

    /// Gives a thing back now, or leaves it with the caller. Frees that were deferred before go
    /// first.
    pub(crate) fn try_give_back(&self, thing: DeferredFree) -> Result<(), DriverError> {
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

    /// Defers a free that the driver refused: it is tried again later.
    pub(crate) fn defer_free_charged(&self, thing: DeferredFree, charge: Option<Charge>) {
        locked(&self.0.deferred_frees).push_back((thing, charge));
    }
}

fn start_error(code: u32) -> LoadError {
    LoadError::Call(DriverError::Call {
        function: "cuDevicePrimaryCtxRetain",
        code: Code(code),
    })
}

/// The driver's handle of a context.
fn handle_of(cuda: &CudaContext) -> ContextHandle {
    ContextHandle(cuda.cu_ctx().addr())
}

/// Runs a call that is given a stream, with the stream's own context current.
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

/// Makes a context current until the answer is dropped. The caller holds it until then.
fn enter(driver: &'static Driver, context: ContextHandle) -> Result<Entered, DriverError> {
    let before = driver.current_context()?;
    let pushed = before != context;
    if pushed {
        // SAFETY: whoever enters a context keeps it until the answer is dropped: `ContextInner`, or
        // a reference to one of its streams.
        unsafe { driver.push_context(context) }?;
    }
    Ok(Entered {
        driver,
        before,
        pushed,
    })
}

impl ContextInner {
    fn enter(&self) -> Result<Entered, DriverError> {
        enter(self.driver, self.handle)
    }

    /// Lets the frees go that wait for work which is over; `may_wait` if the host may wait for it.
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
        locked(&self.deferred_frees).extend(paid.into_iter().flat_map(|owed| owed.frees));
    }

    /// Tries once each of the first `max` deferred frees; refused ones queue up again, so that each
    /// has its turn.
    fn settle(&self, max: usize) {
        let things: Vec<(DeferredFree, Option<Charge>)> = {
            let mut deferred_frees = locked(&self.deferred_frees);
            let count = max.min(deferred_frees.len());
            deferred_frees.drain(..count).collect()
        };
        if things.is_empty() {
            return;
        }
        let entered = self.enter();
        let refused = |(thing, _): &(DeferredFree, _)| {
            entered.is_err() || thing.give_back(self.driver).is_err()
        };
        // What has gone is credited here, without the lock.
        let left: Vec<_> = things.into_iter().filter(refused).collect();
        locked(&self.deferred_frees).extend(left);
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

/// cudarc makes a context current to give it up; what was current before is so again when this is
/// dropped.
struct PreviousContext {
    driver: &'static Driver,
    before: Option<ContextHandle>,
}

impl Drop for PreviousContext {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: it was current, so it existed; a thread whose context ends under it has the
            // same with or without us. There is nobody to tell.
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

/// A context is current; dropping this puts back what was.
struct Entered {
    driver: &'static Driver,
    before: ContextHandle,
    pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.pushed || self.driver.pop_context().is_ok() || self.driver.pop_context().is_ok() {
            return;
        }
        // The driver refused twice: the stack of contexts keeps one entry too many, but what was
        // current is so again, if it takes this. There is nobody to tell.
        // SAFETY: it was current, so it existed; a thread whose context ends under it has the same
        // with or without us.
        let _ = unsafe { self.driver.set_context(self.before) };
    }
}

impl Driver {
    /// The current context of the calling thread, null for none.
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

    /// Waits until all work of the current context is done.
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

    /// Makes a context current, on top of what is.
    ///
    /// # Safety
    /// The context exists.
    unsafe fn push_context(&self, context: ContextHandle) -> Result<(), DriverError> {
        let entry = self.api.cuCtxPushCurrent_v2;
        // SAFETY: DRIVER1; the context exists.
        let code = unsafe { (entry.call)(context) };
        entry.check(code)
    }

    /// Makes current what was before the last push.
    fn pop_context(&self) -> Result<(), DriverError> {
        let entry = self.api.cuCtxPopCurrent_v2;
        let mut popped = ContextHandle::NULL;
        // SAFETY: DRIVER1; the handle outlives the call.
        let code = unsafe { (entry.call)(&raw mut popped) };
        entry.check(code)
    }

    /// Makes a context current in place of what is.
    ///
    /// # Safety
    /// The context exists, or the handle is null.
    unsafe fn set_context(&self, context: ContextHandle) -> Result<(), DriverError> {
        let entry = self.api.cuCtxSetCurrent;
        // SAFETY: DRIVER1; the context exists, or is none.
        let code = unsafe { (entry.call)(context) };
        entry.check(code)
    }
}
