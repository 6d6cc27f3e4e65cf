//! [`PinnedMemory`]: regions of the host's memory that devices copy from and to at full speed.

use std::sync::Arc;

use larder_core::{AddrRange, GrowRequest, SubAllocError, SubAllocator};
use larder_cuda_abi::constants::{
    HOST_ALLOC_DEVICEMAP, HOST_ALLOC_PORTABLE, HOST_ALLOC_WRITECOMBINED,
};

use crate::driver::deferred_free::DeferredFree;
use crate::limits::{Charge, OverBudget, TreeNode};
use crate::ranges::{RangeSource, Ranges};
use crate::{Context, DriverError};

/// How pinned memory is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PinnedConfig {
    /// Faster for a device to read over some buses, and very slow for the host to read. Off: memory
    /// for results must not be so.
    pub write_combined: bool,
}

impl PinnedConfig {
    /// Pinned for every context, and mapped.
    const fn flags(self) -> u32 {
        let combined = if self.write_combined {
            HOST_ALLOC_WRITECOMBINED
        } else {
            0
        };
        HOST_ALLOC_PORTABLE | HOST_ALLOC_DEVICEMAP | combined
    }
}

/// Gives regions of pinned host memory, each one `cuMemHostAlloc`.
///
/// An address is good for the host and for every device (with unified addressing, which all 64-bit
/// systems have). Pinning locks every page and costs about a second for 3 GiB, so regions are kept;
/// pinned memory is taken from all other programs.
///
/// A region goes back whole or not at all, and no two touch. Any thread may call it. What the
/// driver refuses to take back is kept and tried again, and [`drop`] gives everything back.
#[derive(Debug)]
pub struct PinnedMemory(Ranges<PinnedSource>);

impl PinnedMemory {
    /// Holds nothing yet; not write-combined. No driver call.
    pub fn new(context: &Context) -> Self {
        Self::with_config(context, PinnedConfig::default())
    }

    /// Holds nothing yet; its regions will be made as the configuration says. No driver call.
    pub fn with_config(context: &Context, config: PinnedConfig) -> Self {
        Self::charged_to(context, config, None)
    }

    /// Holds nothing yet; what it will hold is charged to a budget.
    pub(crate) fn charged_to(
        context: &Context,
        config: PinnedConfig,
        node: Option<Arc<TreeNode>>,
    ) -> Self {
        Self(Ranges::new(PinnedSource {
            context: context.clone(),
            flags: config.flags(),
            node,
        }))
    }

    pub(crate) const fn ranges(&self) -> &Ranges<PinnedSource> {
        &self.0
    }

    /// Where its regions live.
    pub fn context(&self) -> &Context {
        self.0.source().context()
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

impl SubAllocator for PinnedMemory {
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

pub(crate) struct PinnedSource {
    context: Context,
    flags: u32,
    node: Option<Arc<TreeNode>>,
}

impl RangeSource for PinnedSource {
    fn context(&self) -> &Context {
        &self.context
    }

    fn alloc(&self, bytes: u64) -> Result<u64, DriverError> {
        let address = self
            .context
            .try_current(|driver| driver.alloc_host(bytes, self.flags))?;
        // Whoever uses the memory makes a pointer of the number.
        Ok(address.expose_provenance() as u64)
    }

    fn charge(&self, bytes: u64) -> Result<Option<Charge>, OverBudget> {
        let charged = self.node.as_ref().map(|node| node.charge(bytes));
        charged.transpose()
    }

    fn deferred_free(&self, address: u64) -> DeferredFree {
        DeferredFree::Host(address)
    }
}
