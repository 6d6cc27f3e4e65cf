//! [`GpuBackend`]: the kinds of allocators behind a [`GpuAllocator`](super::GpuAllocator).
//!
//! M1 an allocator with blocks in use when it is dropped is left alone, and its context with it.

#![expect(
    clippy::result_large_err,
    reason = "an error has the numbers of both sides"
)]

use core::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use larder_core::lifetime::prmalloc::PoolConfig;
use larder_core::{
    Addr, AddrRange, Align, AllocError, Block, BlockAllocator, Cause, FreeError, Granule,
    GrowRequest, OutOfMemory, Placement, Request, Stats, SubAllocator,
};

use super::account::Account;
use super::best_fit::BestFit;
use super::gpu::GpuAllocError;
use super::guarded::Guarded;
use super::watch::{Watch, Watched};
use crate::driver::locked;
use crate::virtual_memory::RegionWatch;
use crate::{
    CheckedConfig, Context, CudaStream, DeviceAllocError, DeviceAllocator, DeviceFreeError,
    DeviceMemory, DeviceTensorPool, DriverError, DriverPool, ManagedMemory, TensorBlock,
    TensorPoolConfig, VmemAllocator, VmemBlock, VmemConfig,
};

/// Where a block is from.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum GpuPlace {
    /// The allocator in the order of streams, or managed memory.
    Block(Block),
    /// The device's memory or the host's behind it.
    Placed(VmemBlock),
    /// An allocation of the driver.
    Region(AddrRange),
    /// The tensor pool of that number.
    Tensor(usize, TensorBlock),
    /// The checked memory of that number.
    Checked(usize, Block),
}

pub(super) enum GpuBackend {
    Device(ManuallyDrop<DeviceAllocator>),
    /// With how many of our blocks are the host's.
    Vmem(ManuallyDrop<VmemAllocator>, AtomicU64),
    Managed(Box<BestFit<ManagedMemory>>),
    Single(ManuallyDrop<Watched<DeviceMemory>>, Account),
    Driver(ManuallyDrop<DriverPool>, Watch, Account),
    Tensor(Tensor),
    Guarded(Guarded),
}

/// A tensor pool for each stream that allocated, over one allocator.
pub(super) struct Tensor {
    memory: ManuallyDrop<DeviceAllocator>,
    config: TensorPoolConfig,
    /// None goes before all do, so a place is a name. Held for a look, and while a pool's tables are made.
    pools: Mutex<Vec<Arc<DeviceTensorPool>>>,
    account: Account,
}

pub(super) type Freed = Result<(), (GpuPlace, DeviceFreeError)>;

fn unknown(held: GpuPlace) -> Freed {
    Err((held, DeviceFreeError::Block(FreeError::Unknown)))
}

/// What the driver's refusal means: memory is short, or something else is wrong.
fn refusal(bytes: u64, error: DriverError, account: &Account) -> GpuAllocError {
    if !error.is_out_of_memory() {
        return DeviceAllocError::Driver(error).into();
    }
    let mut out = OutOfMemory::of(Cause::SubAllocator, bytes);
    let stats = account.stats();
    out.limit_bytes = stats.limit_bytes;
    out.reserved_bytes = stats.reserved_bytes;
    out.live_bytes = stats.live_bytes;
    let reason = AllocError::OutOfMemory(out);
    let driver = Some(error);
    DeviceAllocError::Memory { reason, driver }.into()
}

impl GpuBackend {
    pub(super) fn device(memory: DeviceAllocator, watch: Watch) -> Self {
        memory.watch(Box::new(watch));
        Self::Device(ManuallyDrop::new(memory))
    }

    /// The device's memory, and the host's behind it.
    ///
    /// # Errors
    /// If the driver refuses, or the device cannot use such memory of the host.
    pub(super) fn vmem(
        memory: &DeviceAllocator,
        config: VmemConfig,
        watch: Watch,
    ) -> Result<Self, DeviceAllocError> {
        memory.watch(Box::new(watch));
        let both = VmemAllocator::new(memory, config)?;
        Ok(Self::Vmem(ManuallyDrop::new(both), AtomicU64::new(0)))
    }

    pub(super) fn single(context: &Context, limit_bytes: u64, watch: Watch) -> Self {
        let source = Watched::new(DeviceMemory::new(context), watch);
        Self::Single(ManuallyDrop::new(source), Account::new(limit_bytes))
    }

    /// The driver does not say which regions it holds, so only blocks are known, and visitors see those.
    pub(super) fn driver(pool: DriverPool, limit_bytes: u64, watch: Watch) -> Self {
        Self::Driver(ManuallyDrop::new(pool), watch, Account::new(limit_bytes))
    }

    pub(super) fn tensor(memory: DeviceAllocator, config: PoolConfig, watch: Watch) -> Self {
        memory.watch(Box::new(watch));
        Self::Tensor(Tensor {
            memory: ManuallyDrop::new(memory),
            config: TensorPoolConfig::with_pool(config),
            pools: Mutex::default(),
            account: Account::new(u64::MAX),
        })
    }

    /// Blocks with guards, which have no memory of the host behind them.
    pub(super) fn guarded(memory: DeviceAllocator, config: CheckedConfig, watch: Watch) -> Self {
        memory.watch(Box::new(watch));
        Self::Guarded(Guarded::new(memory, config))
    }

    pub(super) fn context(&self) -> &Context {
        match self {
            Self::Device(memory) => memory.context(),
            Self::Vmem(vmem, _) => vmem.device().context(),
            Self::Managed(managed) => managed.source().context(),
            Self::Single(memory, _) => memory.source().context(),
            Self::Driver(pool, ..) => pool.context(),
            Self::Tensor(tensor) => tensor.memory.context(),
            Self::Guarded(guarded) => guarded.memory().context(),
        }
    }

    pub(super) fn device_allocator(&self) -> Option<&DeviceAllocator> {
        match self {
            Self::Device(memory) => Some(memory),
            Self::Vmem(vmem, _) => Some(vmem.device()),
            Self::Tensor(tensor) => Some(&tensor.memory),
            Self::Guarded(guarded) => Some(guarded.memory()),
            _ => None,
        }
    }

    pub(super) fn vmem_allocator(&self) -> Option<&VmemAllocator> {
        match self {
            Self::Vmem(vmem, _) => Some(vmem),
            _ => None,
        }
    }

    pub(super) fn tensor_pool(&self, stream: &Arc<CudaStream>) -> Option<Arc<DeviceTensorPool>> {
        match self {
            Self::Tensor(tensor) => tensor.pool_of(stream),
            _ => None,
        }
    }

    pub(super) const fn as_guarded(&self) -> Option<&Guarded> {
        match self {
            Self::Guarded(guarded) => Some(guarded),
            _ => None,
        }
    }

    /// Counts, bytes and the limit of a device with the host behind it are the device's; its peak is the joint one.
    pub(super) fn stats(&self) -> Stats {
        match self {
            Self::Device(memory) => memory.stats(),
            Self::Vmem(vmem, _) => {
                let stats = vmem.stats();
                Stats {
                    peak_live_bytes: stats.joint_peak_bytes.max(stats.device.peak_live_bytes),
                    ..stats.device
                }
            }
            Self::Managed(managed) => managed.stats(),
            Self::Single(_, account) | Self::Driver(_, _, account) => account.stats(),
            Self::Tensor(tensor) => tensor.memory.stats(),
            Self::Guarded(guarded) => guarded.memory().stats(),
        }
    }

    pub(super) fn live_blocks(&self) -> u64 {
        match self {
            Self::Device(memory) => blocks_of(memory),
            // Blocks of the host's side that are not ours have no count: one stands for all.
            Self::Vmem(vmem, host) => {
                let least = u64::from(vmem.stats().host.live_bytes > 0);
                blocks_of(vmem.device()) + host.load(Ordering::Relaxed).max(least)
            }
            Self::Managed(managed) => managed.live_blocks(),
            Self::Single(_, account) | Self::Driver(_, _, account) => account.blocks(),
            Self::Tensor(tensor) => tensor.account.blocks(),
            Self::Guarded(guarded) => blocks_of(guarded.memory()).saturating_sub(guarded.nobodys()),
        }
    }

    /// Bytes of blocks in use. Slabs of a plan are none; guards are, and so is what waits while any block is out.
    pub(super) fn live_bytes(&self) -> u64 {
        match self {
            Self::Tensor(tensor) => tensor.account.stats().live_bytes,
            Self::Vmem(vmem, _) => {
                let stats = vmem.stats();
                stats.device.live_bytes + stats.host.live_bytes
            }
            // What waits counts its guards only below.
            Self::Guarded(_) if self.live_blocks() == 0 => 0,
            _ => self.stats().live_bytes,
        }
    }

    /// More than 0 bytes.
    pub(super) fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
    ) -> Result<(Addr, GpuPlace), GpuAllocError> {
        match self {
            Self::Device(memory) => {
                let block = memory.alloc(stream, bytes)?;
                Ok((block.addr(), GpuPlace::Block(block)))
            }
            Self::Vmem(vmem, host) => {
                let block = vmem.alloc(stream, bytes).map_err(GpuAllocError::Vmem)?;
                if block.placement() == Placement::Host {
                    host.fetch_add(1, Ordering::Relaxed);
                }
                Ok((block.addr(), GpuPlace::Placed(block)))
            }
            Self::Managed(managed) => alloc_managed(managed, bytes),
            Self::Single(memory, account) => alloc_single(memory, account, bytes),
            Self::Driver(pool, watch, account) => {
                account.take(bytes).map_err(limit)?;
                let address = pool.alloc(stream, bytes).map_err(|error| {
                    account.refused(bytes);
                    refusal(bytes, error, account)
                })?;
                account.gave(bytes);
                let start = Addr::new(address);
                let too_large = AllocError::TooLarge {
                    requested_bytes: bytes,
                };
                let range = AddrRange::new(start, bytes);
                let range = range.ok_or(GpuAllocError::reason(too_large))?;
                watch.held(range);
                Ok((start, GpuPlace::Region(range)))
            }
            Self::Tensor(tensor) => tensor.alloc(stream, bytes),
            Self::Guarded(guarded) => guarded.alloc(stream, bytes),
        }
    }

    pub(super) fn free(&self, stream: &Arc<CudaStream>, held: GpuPlace, bytes: u64) -> Freed {
        match (self, held) {
            (Self::Device(memory), GpuPlace::Block(block)) => memory
                .free(stream, block)
                .map_err(|rejected| (GpuPlace::Block(rejected.block), rejected.error)),
            (Self::Vmem(vmem, host), GpuPlace::Placed(block)) => {
                let placement = block.placement();
                vmem.free(stream, block)
                    .map_err(|rejected| (GpuPlace::Placed(rejected.block), rejected.error))?;
                if placement == Placement::Host {
                    host.fetch_sub(1, Ordering::Relaxed);
                }
                Ok(())
            }
            (Self::Managed(managed), GpuPlace::Block(block)) => {
                // The host may use the block next, so its streams must be through.
                if let Err(error) = managed.source().context().wait_for(stream) {
                    return Err((GpuPlace::Block(block), DeviceFreeError::Driver(error)));
                }
                managed.free(block).map_err(|rejected| {
                    let error = DeviceFreeError::Block(rejected.error);
                    (GpuPlace::Block(rejected.block), error)
                })
            }
            (Self::Single(memory, account), GpuPlace::Region(range)) => {
                if memory.release(range).is_err() {
                    let error = memory.source().last_error();
                    let error = error.unwrap_or(DriverError::NotOurs {
                        address: range.start().get(),
                    });
                    return Err((GpuPlace::Region(range), DeviceFreeError::Driver(error)));
                }
                account.freed(bytes);
                Ok(())
            }
            (Self::Driver(pool, watch, account), GpuPlace::Region(range)) => {
                watch.leaving(range);
                if let Err(error) = pool.free(stream, range.start().get()) {
                    watch.held(range);
                    return Err((GpuPlace::Region(range), DeviceFreeError::Driver(error)));
                }
                account.freed(bytes);
                Ok(())
            }
            (Self::Tensor(tensor), GpuPlace::Tensor(place, block)) => {
                tensor.free(stream, place, block, bytes)
            }
            (Self::Guarded(guarded), GpuPlace::Checked(place, block)) => {
                guarded.free(stream, place, block)
            }
            (_, held) => unknown(held),
        }
    }
}

fn limit(out: OutOfMemory) -> GpuAllocError {
    GpuAllocError::reason(AllocError::OutOfMemory(out))
}

/// The driver aligns everything to this, and what it aligns less is asked of nobody.
pub(super) const ALIGN: Align = Granule::DEFAULT.align();

fn alloc_single(
    memory: &Watched<DeviceMemory>,
    account: &Account,
    bytes: u64,
) -> Result<(Addr, GpuPlace), GpuAllocError> {
    account.take(bytes).map_err(limit)?;
    let request = GrowRequest {
        bytes,
        align: ALIGN,
        at: None,
    };
    let Ok(range) = memory.grow(request) else {
        account.refused(bytes);
        let error = memory.source().last_error();
        let error = error.unwrap_or(DriverError::Size { bytes });
        return Err(refusal(bytes, error, account));
    };
    account.gave(bytes);
    Ok((range.start(), GpuPlace::Region(range)))
}

fn alloc_managed(
    managed: &BestFit<ManagedMemory>,
    bytes: u64,
) -> Result<(Addr, GpuPlace), GpuAllocError> {
    match managed.alloc(&Request::new(bytes)) {
        Ok(grant) => Ok((grant.block.addr(), GpuPlace::Block(grant.block))),
        Err(reason) => {
            let driver = match reason {
                AllocError::OutOfMemory(_) => managed.source().last_error(),
                _ => None,
            };
            Err(DeviceAllocError::Memory { reason, driver }.into())
        }
    }
}

/// Blocks of a device's allocator that were given and not freed.
fn blocks_of(memory: &DeviceAllocator) -> u64 {
    let streams = memory.streams();
    let sum = |count: fn(&crate::StreamStats) -> u64| streams.iter().map(count).sum::<u64>();
    sum(|stats| stats.allocations).saturating_sub(sum(|stats| stats.frees))
}

impl Tensor {
    /// The pool of a stream, made at its first request.
    fn pool(
        &self,
        stream: &Arc<CudaStream>,
    ) -> Result<(usize, Arc<DeviceTensorPool>), DeviceAllocError> {
        let mut pools = locked(&self.pools);
        let place = pools.iter().position(|pool| **pool.stream() == **stream);
        if let Some(place) = place
            && let Some(pool) = pools.get(place)
        {
            return Ok((place, pool.clone()));
        }
        let pool = Arc::new(DeviceTensorPool::new(&self.memory, stream, self.config)?);
        pools.push(pool.clone());
        Ok((pools.len() - 1, pool))
    }

    fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
    ) -> Result<(Addr, GpuPlace), GpuAllocError> {
        let (place, pool) = self.pool(stream)?;
        self.account.take(bytes).map_err(limit)?;
        let block = pool.alloc(bytes).map_err(|error| {
            self.account.refused(bytes);
            GpuAllocError::Tensor(error)
        })?;
        self.account.gave(bytes);
        Ok((block.addr(), GpuPlace::Tensor(place, block)))
    }

    fn free(
        &self,
        stream: &Arc<CudaStream>,
        place: usize,
        block: TensorBlock,
        bytes: u64,
    ) -> Freed {
        let pool = locked(&self.pools).get(place).cloned();
        let Some(pool) = pool else {
            return unknown(GpuPlace::Tensor(place, block));
        };
        if **pool.stream() != **stream {
            // The block is given again to work of its own stream.
            let ordered = self.memory.order_after(pool.stream(), stream);
            let ordered = ordered.or_else(|_| self.memory.context().wait_for(stream));
            if let Err(error) = ordered {
                return Err((
                    GpuPlace::Tensor(place, block),
                    DeviceFreeError::Driver(error),
                ));
            }
        }
        match pool.free(block) {
            Ok(()) => {
                self.account.freed(bytes);
                Ok(())
            }
            Err(rejected) => unknown(GpuPlace::Tensor(place, rejected.block)),
        }
    }

    /// The pool of a stream, if it allocated.
    fn pool_of(&self, stream: &Arc<CudaStream>) -> Option<Arc<DeviceTensorPool>> {
        let pools = locked(&self.pools);
        let pool = pools.iter().find(|pool| **pool.stream() == **stream);
        pool.cloned()
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        // M1. Managed memory looks itself.
        if self.live_blocks() > 0 {
            match self {
                Self::Tensor(tensor) => {
                    let pools = core::mem::take(&mut *locked(&tensor.pools));
                    pools.into_iter().for_each(core::mem::forget);
                }
                Self::Guarded(guarded) => guarded.leave(),
                _ => {}
            }
            return;
        }
        match self {
            Self::Managed(_) => {}
            Self::Device(memory) => {
                // SAFETY: dropped once, here, and not used again.
                unsafe { ManuallyDrop::drop(memory) };
            }
            Self::Vmem(vmem, _) => {
                // SAFETY: dropped once, here, and not used again.
                unsafe { ManuallyDrop::drop(vmem) };
            }
            Self::Single(memory, _) => {
                // SAFETY: dropped once, here, and not used again.
                unsafe { ManuallyDrop::drop(memory) };
            }
            Self::Driver(pool, ..) => {
                // SAFETY: dropped once, here, and not used again.
                unsafe { ManuallyDrop::drop(pool) };
            }
            Self::Tensor(tensor) => {
                // Pools give their slabs to the allocator.
                locked(&tensor.pools).clear();
                // SAFETY: dropped once, here, and not used again.
                unsafe { ManuallyDrop::drop(&mut tensor.memory) };
            }
            Self::Guarded(guarded) => {
                // SAFETY: dropped once, here, and not used again.
                unsafe { guarded.let_go() };
            }
        }
    }
}
