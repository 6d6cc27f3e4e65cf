//! [`ManagedMemory`]: regions that host and devices share, pages moving to whoever touches them.

use std::sync::{Arc, Mutex};

use larder_core::{AddrRange, GrowRequest, SubAllocError, SubAllocator};

use crate::driver::deferred_free::DeferredFree;
use crate::driver::locked;
use crate::limits::{Charge, OverBudget, TreeNode};
use crate::ranges::{RangeSource, Ranges};
use crate::{Context, DriverError};

/// Gives regions of managed memory, each one `cuMemAllocManaged`.
///
/// **Never more than the device holds.** The driver would give more managed memory than the device
/// has, and move pages to and fro while work runs; programs have been seen to hang in that. So a
/// region is refused if it is larger than what the device has free, or if all regions together
/// would be larger than what it had free when this was made. Memory that others take
/// later is not counted against regions that are held.
///
/// On devices without concurrent access ([`DeviceInfo`](crate::driver::DeviceInfo)) the host must
/// not touch a block while any work runs on the device.
///
/// A region goes back whole or not at all, and no two touch. Any thread may call it. What the
/// driver refuses to take back is kept and tried again, and [`drop`] gives everything back.
#[derive(Debug)]
pub struct ManagedMemory(Ranges<ManagedSource>);

impl ManagedMemory {
    /// Holds nothing yet.
    ///
    /// # Errors
    /// If the device has no managed memory, or the driver refuses.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        if !context.device_info()?.managed {
            return Err(DriverError::Unsupported {
                what: "managed memory",
                device: context.ordinal(),
            });
        }
        let (max_bytes, _) = context.try_current(|driver| driver.memory_info())?;
        Ok(Self(Ranges::new(ManagedSource {
            context: context.clone(),
            max_bytes,
            taken_bytes: Mutex::new(0),
            node: None,
        })))
    }

    /// What it holds is charged to a budget from now on. Nothing is held yet.
    pub(crate) fn charge_to(&mut self, node: Arc<TreeNode>) {
        self.0.source_mut().node = Some(node);
    }

    pub(crate) const fn ranges(&self) -> &Ranges<ManagedSource> {
        &self.0
    }

    /// Where its regions live.
    pub fn context(&self) -> &Context {
        self.0.source().context()
    }

    /// Most bytes that it holds.
    pub fn max_bytes(&self) -> u64 {
        self.0.source().max_bytes
    }

    /// Bytes held from the driver.
    pub fn held_bytes(&self) -> u64 {
        self.0.held_bytes()
    }

    /// The newest refusal, whose reason a [`SubAllocError`] does not carry.
    pub fn last_error(&self) -> Option<DriverError> {
        self.0.last_error()
    }
}

impl SubAllocator for ManagedMemory {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        self.0.grow(request).map_err(|_| SubAllocError)
    }

    /// Takes one whole region back.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.0.release(range).map_err(|_| SubAllocError)
    }

    fn takes_ends(&self) -> bool {
        false
    }
}

pub(crate) struct ManagedSource {
    context: Context,
    max_bytes: u64,
    /// Of all regions, those being made included.
    taken_bytes: Mutex<u64>,
    node: Option<Arc<TreeNode>>,
}

impl ManagedSource {
    fn take(&self, bytes: u64) -> Result<(), DriverError> {
        let mut taken = locked(&self.taken_bytes);
        let sum = taken.saturating_add(bytes);
        if sum > self.max_bytes {
            return Err(DriverError::Oversubscribed {
                bytes: sum,
                free_bytes: self.max_bytes,
            });
        }
        *taken = sum;
        Ok(())
    }
}

impl RangeSource for ManagedSource {
    fn context(&self) -> &Context {
        &self.context
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        self.take(bytes)?;
        let outcome = self.context.try_current(|driver| {
            let (free_bytes, _) = driver.memory_info()?;
            if bytes > free_bytes {
                return Err(DriverError::Oversubscribed { bytes, free_bytes });
            }
            driver.alloc_managed(bytes)
        });
        if outcome.is_err() {
            self.gone(bytes);
        }
        outcome
    }

    fn charge(&self, bytes: u64) -> Result<Option<Charge>, OverBudget> {
        let charged = self.node.as_ref().map(|node| node.charge(bytes));
        charged.transpose()
    }

    fn deferred_free(&self, address: u64) -> DeferredFree {
        DeferredFree::Device(address)
    }

    fn gone(&self, bytes: u64) {
        let mut taken = locked(&self.taken_bytes);
        *taken = taken.saturating_sub(bytes);
    }
}
