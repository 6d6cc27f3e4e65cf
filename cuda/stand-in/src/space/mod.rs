//! Addresses, the memory at each, and the host memory that holds its bytes.
//!
//! `window`: the addresses of device memory and the host memory for them · `holes`: free addresses
//! · `usage`: how much of each device's memory is in use · `access_check`: checks the accesses of
//! queued work · `access_history`: the last accesses of each byte, to find races · `device`: plain
//! device memory · `host`: pinned, registered and managed memory · `file`, `physical` and `vmm`:
//! the virtual memory calls · `shared`: memory counted together with other processes.
//!
//! SPACE1 no two blocks overlap.
//!
//! SPACE2 a block's memory is counted against its device exactly once, from its creation to its
//! end.

mod access_check;
mod access_history;
mod device;
mod file;
mod holes;
mod host;
mod physical;
mod shared;
mod usage;
mod vmm;
mod window;

use std::collections::{BTreeMap, HashMap};

use larder_cuda_abi::Code;

pub(crate) use access_check::{Access, Accessor};
pub(crate) use physical::{GRANULARITY, PhysicalRequest};

use crate::config::StandInConfig;
use crate::pool::Pooled;
use crate::queue::OpId;
use access_history::Shadow;
use usage::{MemoryUsage, PinnedUsage};
use vmm::Vmm;
use window::HandoutRanges;

/// Identity of physical memory. Races concern the memory, whose addresses may change.
pub(crate) type MemoryId = u64;

/// The kind of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BlockKind {
    /// Memory from `cuMemAlloc`.
    Device,
    /// A mapping from `cuMemMap`, with its handle and the access of each device.
    Mapped {
        handle: u64,
        access: BTreeMap<usize, u32>,
    },
    /// Memory from `cuMemHostAlloc`.
    Pinned,
    /// Write-combined memory from `cuMemHostAlloc`, for which kernels have other addresses.
    Combined,
    /// A device's address of write-combined memory, which lies at `of`.
    CombinedAlias { of: u64 },
    /// The program's own host memory, from `cuMemHostRegister`.
    Registered,
    /// Memory from `cuMemAllocManaged`.
    Managed,
    /// A variable of a module.
    Module,
    /// A block of a pool.
    Pooled(Pooled),
}

/// A range of the address space with memory.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBlock {
    pub(crate) bytes: u64,
    pub(crate) kind: BlockKind,
    /// The device that owns the memory, or for which the memory was made.
    pub(crate) device: usize,
    /// The context that created the block and with which the block ends; `None` for memory without
    /// a context.
    pub(crate) context: Option<usize>,
    /// Bytes of the device's memory that the block counts as: 0 for a mapping, whose handle counts
    /// instead (SPACE2).
    counted: u64,
    /// Identity of the block's memory.
    pub(crate) memory: MemoryId,
    /// Unique number of the allocation in the process.
    pub(crate) id: u64,
}

impl MemoryBlock {
    /// Returns the bytes of the address space that the block occupies.
    fn extent(&self) -> u64 {
        match &self.kind {
            BlockKind::Pooled(pooled) => pooled.room,
            _ => self.bytes,
        }
    }

    /// Returns whether the program has freed the block and a pool keeps it.
    pub(crate) fn is_freed(&self) -> bool {
        matches!(&self.kind, BlockKind::Pooled(pooled) if pooled.freed)
    }

    /// Returns the bytes that work may use now.
    fn live_bytes(&self) -> u64 {
        match &self.kind {
            BlockKind::Pooled(pooled) => pooled.live.unwrap_or(0),
            _ => self.bytes,
        }
    }
}

/// The address space that the driver knows.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) window: HandoutRanges,
    /// All blocks, by start (SPACE1).
    pub(crate) blocks: BTreeMap<u64, MemoryBlock>,
    pub(crate) usage: MemoryUsage,
    pub(crate) pinned: PinnedUsage,
    pub(crate) shadows: HashMap<MemoryId, Shadow>,
    pub(crate) vmm: Vmm,
    /// Plain memory with a queued free, by address. The free may have been dropped with its
    /// context.
    pub(crate) dying: HashMap<u64, OpId>,
    /// Whether new memory is filled with [`POISON`].
    pub(crate) poison: bool,
    last_id: u64,
}

/// Byte that fills new memory, if enabled.
pub(crate) const POISON: u8 = 0xa5;

impl Space {
    pub(crate) fn new(config: &StandInConfig) -> Self {
        Self {
            window: HandoutRanges::new(),
            blocks: BTreeMap::new(),
            usage: MemoryUsage::new(config),
            pinned: PinnedUsage::new(config.pinned_bytes),
            shadows: HashMap::new(),
            vmm: Vmm::new(config),
            dying: HashMap::new(),
            poison: false,
            last_id: 0,
        }
    }

    /// Continues after the numbers of `other`, so that no number is used twice.
    pub(crate) fn continue_from(&mut self, other: &Self) {
        self.last_id = other.last_id;
    }

    /// Returns a new number for memory or an allocation.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Returns the block that holds an address, with its start.
    pub(crate) fn block_at(&self, at: u64) -> Option<(u64, &MemoryBlock)> {
        let (start, block) = self.blocks.range(..=at).next_back()?;
        (at - start < block.extent()).then_some((*start, block))
    }

    /// Returns the block that holds an address, as the program sees it. A block counts as freed
    /// from the call of the free, even if the free is still queued.
    pub(crate) fn owned_at(&self, at: u64) -> Option<(u64, &MemoryBlock)> {
        self.block_at(at).filter(|(_, block)| !block.is_freed())
    }

    /// Returns whether one allocation, or adjacent mappings, hold every byte of a range.
    pub(crate) fn covers(&self, at: u64, bytes: u64) -> bool {
        let Some(end) = at.checked_add(bytes) else {
            return false;
        };
        let mut next = at;
        while next < end {
            let Some((start, block)) = self.block_at(next) else {
                return false;
            };
            if start + block.bytes <= next {
                return false;
            }
            next = start + block.bytes;
            if next < end && !matches!(block.kind, BlockKind::Mapped { .. }) {
                return false;
            }
        }
        true
    }

    /// Returns the host address of the byte at an address.
    pub(crate) fn host(&self, at: u64) -> *mut u8 {
        match self.block_at(at) {
            Some((start, block)) => match block.kind {
                BlockKind::CombinedAlias { of } => self.window.host(of + (at - start)),
                _ => self.window.host(at),
            },
            None => self.window.host(at),
        }
    }

    /// Returns a device's address for host memory that the driver knows.
    pub(crate) fn device_address(&self, at: u64, device: usize) -> Option<u64> {
        let (start, block) = self.block_at(at)?;
        if block.kind != BlockKind::Combined {
            return Some(at);
        }
        let alias = self
            .aliases_of(start)
            .find(|(_, alias)| alias.device == device);
        alias.map(|(alias, _)| alias + (at - start))
    }

    /// Returns whether an address is memory of a device, which the host cannot access.
    pub(crate) fn is_device(&self, at: u64) -> bool {
        self.window.contains(at)
    }

    /// Refuses a range that neither one allocation nor adjacent mappings hold.
    pub(crate) fn check_range(&self, at: u64, bytes: u64) -> Result<(), Code> {
        if bytes == 0 || self.covers(at, bytes) {
            return Ok(());
        }
        Err(Code::INVALID_VALUE)
    }

    /// Releases everything to the system.
    pub(crate) fn close(&mut self) {
        self.usage.close();
        self.close_host();
        self.window.close();
    }
}
