//! [`DeviceState`]: a device, found by its number, with its allocator, the caller's streams and the streams
//! recorded for its blocks.
//!
//! A device's state is created on the device's first use and stays until the process ends, because its
//! memory may be used until then.
//!
//! # Streams
//! The null stream and the legacy stream are one stream. The per-thread default stream has one handle for
//! all threads, so no event could be recorded on the right one. An allocation for it counts as one for the
//! legacy stream, whose earlier work the driver orders before it. A free on it waits for the device on the
//! host, and is refused while a known stream is being captured. A stream of another context is refused, even
//! a stream of a green context, which the driver reports as a context of its own; a free on such a stream
//! waits for that stream on the host.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use larder_core::FreeError;
use larder_core::pages::Backing;
use larder_core::sync::{AtomicU64, AtomicUsize, Ordering};
use larder_cuda::driver::abi::StreamHandle;
use larder_cuda::{
    Context, CudaStream, DeviceAllocError, DeviceAllocator, DeviceConfig, DeviceFreeError,
    DriverError, Limits,
};

use crate::backing;
use crate::history::{self, Action};
use crate::job;
use crate::outcome::Refusal;

/// Maximum number of devices: more than any machine has.
pub(crate) const MAX_DEVICES: usize = 64;

/// The caller's handle of a stream: `cudaStream_t`, `CUstream`.
pub(crate) type Handle = usize;

/// A device in use.
pub(crate) struct DeviceState {
    pub(crate) ordinal: c_int,
    pub(crate) memory: DeviceAllocator,
    /// The caller's own limit, on top of the allocator's limit, which is that of the job.
    pub(crate) limits: Limits,
    /// Known streams, searched linearly because they are few.
    streams: RwLock<Vec<(Handle, Arc<CudaStream>)>>,
    /// For each block address, the streams that use the block besides the stream on which it is freed.
    recorded: Mutex<HashMap<u64, Vec<Handle>>>,
    /// Number of blocks in `recorded`, so that most frees see without a lock that there are none.
    recorded_blocks: AtomicUsize,
    pub(crate) counts: CallerCounts,
}

/// Counts of the caller's calls, since the device was first used.
#[derive(Default)]
pub(crate) struct CallerCounts {
    pub(crate) allocations: AtomicU64,
    pub(crate) frees: AtomicU64,
    pub(crate) out_of_memory: AtomicU64,
}

static DEVICES: [OnceLock<DeviceState>; MAX_DEVICES] = [const { OnceLock::new() }; MAX_DEVICES];

/// The program's choices for devices whose state does not exist yet. Locked while a state is created.
static CHOSEN: Mutex<BTreeMap<c_int, Backing>> = Mutex::new(BTreeMap::new());

/// Locks `mutex` and ignores poison, because every change under these locks is complete.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the slot of a device.
fn slot(ordinal: c_int) -> Result<&'static OnceLock<DeviceState>, Refusal> {
    let place = usize::try_from(ordinal).ok();
    let slot = place.and_then(|place| DEVICES.get(place));
    slot.ok_or(Refusal::Device(ordinal))
}

/// Returns the device, whose state is created on its first use.
pub(crate) fn device(ordinal: c_int) -> Result<&'static DeviceState, Refusal> {
    let slot = slot(ordinal)?;
    if let Some(device) = slot.get() {
        return Ok(device);
    }
    let chosen = locked(&CHOSEN);
    match slot.get() {
        Some(device) => Ok(device),
        None => {
            let backing = match chosen.get(&ordinal) {
                Some(backing) => *backing,
                None => backing::from_env()?,
            };
            let made = DeviceState::new(ordinal, backing)?;
            Ok(slot.get_or_init(|| made))
        }
    }
}

/// Chooses when pages of a device move, before its first use.
pub(crate) fn choose(ordinal: c_int, backing: Backing) -> Result<(), Refusal> {
    let slot = slot(ordinal)?;
    let mut chosen = locked(&CHOSEN);
    if slot.get().is_some() {
        return Err(Refusal::InUse(ordinal));
    }
    chosen.insert(ordinal, backing);
    Ok(())
}

/// Returns the stream of a handle, if it is known.
fn find(known: &[(Handle, Arc<CudaStream>)], handle: Handle) -> Option<Arc<CudaStream>> {
    let mut known = known.iter();
    let (_, stream) = known.find(|(own, _)| *own == handle)?;
    Some(stream.clone())
}

/// Returns the devices that have been used.
pub(crate) fn used() -> impl Iterator<Item = &'static DeviceState> {
    DEVICES.iter().filter_map(OnceLock::get)
}

impl DeviceState {
    fn new(ordinal: c_int, backing: Backing) -> Result<Self, Refusal> {
        let place = usize::try_from(ordinal).map_err(|_| Refusal::Device(ordinal))?;
        let context = Context::primary(place)?;
        let job = job::joined()?;
        let limit_bytes = match job {
            Some(_) => job::first_limit_bytes()?,
            None => u64::MAX,
        };
        let budget_bytes = match backing {
            Backing::Budget(bytes) => bytes,
            Backing::Billed | Backing::InPlace => u64::MAX,
        };
        let config = DeviceConfig {
            backing,
            limit_bytes: limit_bytes.min(budget_bytes),
            ..DeviceConfig::new()
        };
        let limits = Limits::new(u64::MAX).map_err(DeviceAllocError::Budgets)?;
        let memory = DeviceAllocator::in_budget(&context, config, limits.process())?;
        if let Some(job) = job {
            job.manage(&memory)?;
        }
        Ok(Self {
            ordinal,
            memory,
            limits,
            streams: RwLock::default(),
            recorded: Mutex::default(),
            recorded_blocks: AtomicUsize::new(0),
            counts: CallerCounts::default(),
        })
    }

    pub(crate) fn context(&self) -> &Context {
        self.memory.context()
    }

    /// Returns the smaller of the caller's limit and the job's.
    pub(crate) fn limit_bytes(&self) -> u64 {
        let own = self.limits.process().usage().config.hard_bytes;
        own.min(self.memory.limit_bytes())
    }

    /// Returns the stream of a handle (CAPI3).
    ///
    /// # Errors
    /// If the stream belongs to another context, or if the driver refuses the query.
    pub(crate) fn stream(&self, handle: Handle) -> Result<Arc<CudaStream>, Refusal> {
        let own = self.own_stream(handle)?;
        own.ok_or(Refusal::Stream(self.ordinal))
    }

    /// Returns the stream of a handle; `None` if it belongs to another context. Queries the driver once, for
    /// a new handle.
    fn own_stream(&self, handle: Handle) -> Result<Option<Arc<CudaStream>>, DriverError> {
        let handle = match StreamHandle(handle) {
            StreamHandle::LEGACY | StreamHandle::PER_THREAD => StreamHandle::NULL.0,
            StreamHandle(own) => own,
        };
        let known = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = find(&known, handle) {
            return Ok(Some(stream));
        }
        drop(known);
        let context = self.context().cudarc();
        if handle != StreamHandle::NULL.0 {
            let driver = self.context().driver();
            // SAFETY: CAPI3: a program passes streams that exist.
            let of = unsafe { driver.stream_context(StreamHandle(handle)) }?;
            if of.0 != context.cu_ctx().addr() {
                return Ok(None);
            }
        }
        let mut known = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have added the stream first.
        if let Some(stream) = find(&known, handle) {
            return Ok(Some(stream));
        }
        // SAFETY: CAPI3: a program passes streams that exist, and calls `forget_stream` before one ends.
        let stream = unsafe { context.wrap_borrowed_stream(handle as *mut _) };
        known.push((handle, stream.clone()));
        Ok(Some(stream))
    }

    /// Removes a stream that the caller is about to destroy.
    pub(crate) fn forget_stream(&self, handle: Handle) -> Result<(), Refusal> {
        let mut known = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = known.iter().position(|(own, _)| *own == handle) else {
            return Ok(());
        };
        let (_, stream) = known.swap_remove(place);
        let kept = Arc::downgrade(&stream);
        self.memory.forget_stream(stream).map_err(|error| {
            if let Some(stream) = kept.upgrade() {
                known.push((handle, stream));
            }
            error.into()
        })
    }

    /// Allocates a block for work that is queued on a stream from now on.
    pub(crate) fn alloc(&self, bytes: u64, handle: Handle) -> Result<u64, Refusal> {
        let stream = self.stream(handle)?;
        let block = self.patiently(bytes, || self.memory.alloc(&stream, bytes));
        let block = block.inspect_err(|refused| self.record_refusal(refused, bytes, handle))?;
        let (address, granted) = (block.addr().get(), block.bytes());
        self.keep(block)?;
        if history::is_on() {
            history::record(self.ordinal, Action::Alloc, address, granted, handle);
        }
        self.counts.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(address)
    }

    /// Requests memory until it is given, as long as a higher limit or the end of the job's sleep may help.
    pub(crate) fn patiently<T>(
        &self,
        bytes: u64,
        mut request: impl FnMut() -> Result<T, DeviceAllocError>,
    ) -> Result<T, Refusal> {
        job::before_launch();
        let mut patience = job::Patience::default();
        loop {
            let error = match request() {
                Ok(given) => return Ok(given),
                Err(error @ (DeviceAllocError::Memory { .. } | DeviceAllocError::Budget(_))) => {
                    error
                }
                Err(DeviceAllocError::Asleep) if job::waits_for_waking() => continue,
                Err(error) => return Err(error.into()),
            };
            if !patience.waits_for(self, &error, bytes) {
                self.counts.out_of_memory.fetch_add(1, Ordering::Relaxed);
                return Err(Refusal::OutOfMemory {
                    device: self.ordinal,
                    bytes,
                    error,
                    waited: patience.has_waited(),
                });
            }
        }
    }

    /// Frees a block whose work is queued on the stream and on the streams that were recorded for the block.
    pub(crate) fn free(&self, address: u64, handle: Handle) -> Result<(), Refusal> {
        // Relaxed: a recording of a stream for this block is ordered before its free.
        let others = match self.recorded_blocks.load(Ordering::Relaxed) {
            0 => Vec::new(),
            _ => self.take_recorded(address),
        };
        let is_plain = others.is_empty() && handle != StreamHandle::PER_THREAD.0;
        let stream = match is_plain {
            true => self.own_stream(handle),
            false => Ok(None),
        };
        // Before the free, after which another thread may allocate and record the address.
        let recorded = self.record_free(address, handle);
        let freed = match stream {
            Ok(Some(stream)) => self.memory.free_addr(&stream, address),
            Ok(None) => self.free_used_on(address, handle, &others),
            Err(error) => Err(DeviceFreeError::Driver(error)),
        };
        if let Err(error) = freed {
            if let Some(bytes) = recorded {
                history::record(self.ordinal, Action::Alloc, address, bytes, handle);
            }
            return Err(Refusal::Free {
                device: self.ordinal,
                address,
                error,
            });
        }
        self.counts.frees.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn free_used_on(
        &self,
        address: u64,
        handle: Handle,
        others: &[Handle],
    ) -> Result<(), DeviceFreeError> {
        let unknown = DeviceFreeError::Block(FreeError::Unknown);
        let block = self.memory.take_addr(address).ok_or(unknown)?;
        let handles = core::iter::once(&handle).chain(others).copied();
        let (block, error) = match self.streams_still_used(handles) {
            Err(error) => (block, DeviceFreeError::Driver(error)),
            Ok(streams) => match self.memory.free_used_on(&streams, block) {
                Ok(()) => return Ok(()),
                Err(refused) => (refused.value, refused.error),
            },
        };
        // CAPI2: the refused block stays kept.
        let _ = self.memory.keep_addr(block);
        for handle in others {
            self.record(address, *handle);
        }
        Err(error)
    }

    /// Returns the streams whose work can be tracked with events. The host waits for all other streams:
    /// per-thread default streams and streams of other contexts.
    ///
    /// # Errors
    /// If the driver refuses, or, for a per-thread default stream, while a known stream is being captured.
    pub(crate) fn streams_still_used(
        &self,
        handles: impl Iterator<Item = Handle> + Clone,
    ) -> Result<Vec<Arc<CudaStream>>, DriverError> {
        let mut streams = Vec::new();
        for handle in handles.clone() {
            match self.own_stream(handle)? {
                Some(stream) => streams.push(stream),
                None => {
                    let driver = self.context().driver();
                    // SAFETY: CAPI3: a program passes streams that exist.
                    unsafe { driver.synchronize_stream(StreamHandle(handle)) }?;
                }
            }
        }
        if { handles }.any(|handle| handle == StreamHandle::PER_THREAD.0) {
            self.memory.synchronize()?;
            streams.clear();
        }
        Ok(streams)
    }

    /// Records one more stream whose work uses a block; the block's free waits for that work.
    pub(crate) fn record(&self, address: u64, handle: Handle) {
        let mut recorded = locked(&self.recorded);
        let handles = recorded.entry(address).or_default();
        if !handles.contains(&handle) {
            handles.push(handle);
        }
        self.recorded_blocks
            .store(recorded.len(), Ordering::Relaxed);
    }

    fn take_recorded(&self, address: u64) -> Vec<Handle> {
        let mut recorded = locked(&self.recorded);
        let handles = recorded.remove(&address).unwrap_or_default();
        self.recorded_blocks
            .store(recorded.len(), Ordering::Relaxed);
        handles
    }

    fn keep(&self, block: larder_core::Block) -> Result<(), Refusal> {
        let address = block.addr().get();
        let kept = self.memory.keep_addr(block);
        kept.map(drop).map_err(|refused| Refusal::Free {
            device: self.ordinal,
            address,
            error: refused.error,
        })
    }
}
