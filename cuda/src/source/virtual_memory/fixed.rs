//! [`FixedMapping`]: one handle at addresses of its own, for callers that register an address range with the
//! driver or a network card.
//!
//! FIXED1 the addresses are reserved for this mapping alone, and the whole of one handle is mapped there,
//! until no work of the context uses the mapping any more.

use std::sync::PoisonError;

use larder_core::{Addr, AddrRange, Align, round_up};
use larder_cuda_abi::MemoryHandle;

use super::VirtualMemory;
use crate::driver::locked;
use crate::driver::refused_free::RefusedFree;
use crate::limits::Charge;
use crate::{Context, DriverError};

/// The addresses, memory and mapping of a fixed block; freed when dropped.
#[derive(Debug)]
pub(crate) struct FixedMapping {
    context: Context,
    range: AddrRange,
    memory: Option<(MemoryHandle, Option<Charge>)>,
    mapped: bool,
}

impl VirtualMemory {
    /// Makes memory of at least `bytes` bytes, in whole pages: one handle at addresses of its own. It is
    /// charged like the memory of other handles. Costs four driver calls with their contexts, each in the
    /// relaxed capture mode, which a caller may enter once for all of them.
    ///
    /// # Errors
    /// [`DriverError::Asleep`], [`DriverError::Budget`], [`DriverError::Size`], and if the driver refuses.
    /// The call then leaves nothing behind.
    pub(crate) fn make_fixed(&self, bytes: u64) -> Result<FixedMapping, DriverError> {
        // A thread that falls asleep takes this lock exclusively, and then checks for fixed blocks.
        let asleep = self.asleep.read().unwrap_or_else(PoisonError::into_inner);
        if *asleep {
            return Err(DriverError::Asleep);
        }
        let refused = DriverError::Size { bytes };
        let page = Align::new(self.page_bytes).ok_or(refused)?;
        let bytes = round_up(bytes, page).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(refused)?;
        let charge = self.charge(bytes)?;
        let context = &self.context;
        let start = context.try_current(|driver| driver.reserve(bytes, self.page_bytes))?;
        let Some(range) = AddrRange::new(Addr::new(start), bytes) else {
            context.give_back(RefusedFree::Reserved(start, bytes));
            return Err(refused);
        };
        let mut fixed = FixedMapping {
            context: context.clone(),
            range,
            memory: None,
            mapped: false,
        };
        let memory = self.create(bytes)?;
        fixed.memory = Some((memory, charge));
        context.try_current(|driver| {
            // SAFETY: FIXED1: the addresses are ours, and the handle was just made with this size.
            unsafe { driver.map(start, bytes, memory) }
        })?;
        fixed.mapped = true;
        context.try_current(|driver| {
            // SAFETY: FIXED1: the addresses are ours, and mapped.
            unsafe { driver.set_access(start, bytes, &self.devices) }
        })?;
        locked(&self.table).fixed.insert(start, bytes);
        drop(asleep);
        self.watcher.held(range);
        Ok(fixed)
    }

    /// Forgets a fixed mapping, which is about to be dropped.
    pub(crate) fn fixed_leaves(&self, range: AddrRange) {
        self.watcher.leaving(range);
        locked(&self.table).fixed.remove(&range.start().get());
    }
}

impl FixedMapping {
    pub(crate) const fn range(&self) -> AddrRange {
        self.range
    }
}

impl Drop for FixedMapping {
    fn drop(&mut self) {
        let (start, bytes) = (self.range.start().get(), self.range.bytes());
        if self.mapped {
            self.context.give_back(RefusedFree::Mapping(start, bytes));
        }
        if let Some((memory, charge)) = self.memory.take() {
            let thing = RefusedFree::Memory(memory);
            self.context.give_back_charged(thing, charge);
        }
        self.context.give_back(RefusedFree::Reserved(start, bytes));
    }
}
