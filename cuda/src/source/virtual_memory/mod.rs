//! [`VirtualMemory`]: one range of addresses, and physical memory that is mapped there.
//!
//! It is used in one of two ways: as a [`PageDriver`](larder_core::pages::PageDriver) (`drive`), where a
//! [`Shared`](larder_core::Shared) decides where memory is mapped and may move it; or as a
//! [`SubAllocator`](larder_core::SubAllocator) (`grow`), with one range that grows at its end. `export` has
//! the exports to other processes.
//!
//! # Invariants
//! * VIRT1 the addresses are reserved from the driver, and only this type maps memory there.
//! * VIRT2 a mapping is in the table from before the driver is asked to make it until after it has been
//!   undone, so no place is used twice; its memory exists at least as long.
//! * VIRT3 memory in the table exists; frees that the driver refused are among the context's refused frees.
//! * VIRT4 an exported mapping is not undone, so its memory is neither moved away nor freed. Pins keep the
//!   planner (`PagePool`) from trying; a call that tries anyway is refused.
//!
//! While the memory of handles sleeps (`evict`), VIRT2 and VIRT3 hold for entries marked as present.

mod drive;
mod evict;
#[cfg(unix)]
mod export;
mod fixed;
mod grow;
mod watch;

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};

use larder_core::{Addr, AddrRange, Align, round_up};
use larder_cuda_abi::MemoryHandle;

use crate::driver::refused_free::RefusedFree;
use crate::driver::{MemoryUse, PAGES_SINCE, locked};
use crate::limits::{Charge, OverBudget, TreeNode};
use crate::{Context, DriverError};

pub(crate) use evict::Stopped;
pub(crate) use fixed::FixedMapping;
pub(crate) use watch::{RegionWatch, RegionWatcher};

/// Configuration of a [`VirtualMemory`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VirtualConfig {
    /// Bytes of addresses to reserve, rounded up to whole pages. Addresses cost only an entry in the driver's
    /// tables: reserve two to four times the memory that may be held.
    pub address_bytes: u64,
    /// The smallest unit of mapping, a multiple of the device's page; 0 for the device's page itself, which
    /// is 2 MiB on most devices.
    pub page_bytes: u64,
    /// Other devices, by ordinal, that read and write the memory; each must be able to reach it.
    pub peers: Vec<i32>,
    /// Whether the memory may be exported to other processes, which the device must support. Network cards
    /// may then reach the memory, too, if the device supports that (GPUDirect RDMA).
    pub shareable: bool,
}

impl VirtualConfig {
    /// Makes a configuration with the device's own pages and no peers, not shareable.
    pub const fn new(address_bytes: u64) -> Self {
        Self {
            address_bytes,
            page_bytes: 0,
            peers: Vec::new(),
            shareable: false,
        }
    }
}

/// Reserved addresses of a device, and the memory that is mapped there.
///
/// One piece of memory may be mapped at several addresses. Work sees writes through another address only if
/// it begins after the writing work has ended, so one kernel must not use two of the addresses.
///
/// Any thread may call this, with any context current. A mapping may be undone only if no queued work uses
/// its addresses; the driver may wait for the device. A refusal is returned as an error and changes nothing,
/// except that a refused free of unmapped memory is retried later ([`Context::refused_frees`]). Dropping this
/// frees everything, so no block may be in use then, not even by queued work.
///
/// ```no_run
/// use larder_core::pages::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool};
/// use larder_core::pages::PageTables;
/// use larder_core::{BlockAllocator, Chunk, Request, Shared};
/// use larder_cuda::{Context, VirtualMemory};
///
/// let context = Context::new(0)?;
/// let memory = VirtualMemory::new(&context, 8 << 30)?;
/// let mut config = PageConfig::new(memory.addresses(), Backing::Billed);
/// config.page_bytes = memory.page_bytes();
/// let pages = (memory.addresses().bytes() / memory.page_bytes()) as usize;
/// let mut chunks = vec![Chunk::VACANT; 1024];
/// let (mut entries, mut handles) = (vec![PageEntry::EMPTY; pages], vec![Handle::VACANT; 1024]);
/// let mut mappings = vec![Mapping::VACANT; 4096];
/// let tables = PageTables { entries: &mut entries, handles: &mut handles, mappings: &mut mappings };
/// let paged = PagePool::new(config, &mut chunks, tables)?;
/// let pool = Shared::new(paged, memory);
/// let block = pool.alloc(&Request::new(3 << 20))?.block;
/// pool.free(block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct VirtualMemory {
    context: Context,
    addresses: AddrRange,
    page_bytes: u64,
    /// Devices that read and write the memory, starting with its own.
    devices: Vec<i32>,
    /// The uses that the memory is created for.
    memory_use: MemoryUse,
    table: Mutex<MappingTable>,
    /// Held by the one thread that grows or releases ranges of `grow`.
    growing: Mutex<()>,
    /// Whether the memory of handles sleeps. Calls of a paged allocator hold the lock shared, so that no call
    /// is under way while memory falls asleep or wakes.
    asleep: RwLock<bool>,
    /// Node to which the memory of handles is charged. Memory of ranges is not charged.
    node: Option<Arc<TreeNode>>,
    /// Watcher of memory that is mapped and unmapped.
    watcher: RegionWatcher,
}

/// A piece of physical memory.
#[derive(Debug)]
struct PhysicalMemory {
    /// The driver's handle; `None` while the memory sleeps.
    memory: Option<MemoryHandle>,
    bytes: u64,
    charge: Option<Charge>,
}

/// The owner of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MappingOwner {
    /// The paged allocator's handle with this number.
    Handle(u32),
    /// A range made by `grow`, with its memory, which has no other owner.
    Range(MemoryHandle),
    /// A released range, with its memory, whose mapping the driver still refuses to undo.
    Leaving(MemoryHandle),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapped {
    bytes: u64,
    owner: MappingOwner,
    /// Number of exports of its memory (VIRT4).
    exports: u32,
    /// Whether the driver has the mapping. It does not while the memory sleeps.
    present: bool,
}

/// Counts of calls that changed mappings, by kind. Refused calls do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct VirtualCalls {
    /// Pieces of memory created.
    pub create: u64,
    /// Mappings made.
    pub map: u64,
    /// Mappings undone.
    pub unmap: u64,
    /// Pieces of memory released by a paged allocator. Deferred releases do not count.
    pub release: u64,
    /// Ranges made accessible.
    pub set_access: u64,
}

impl VirtualCalls {
    /// Returns the sum of all kinds.
    pub const fn total(&self) -> u64 {
        self.create + self.map + self.unmap + self.release + self.set_access
    }
}

#[derive(Default)]
struct MappingTable {
    /// Memory of a paged allocator, by handle number.
    handles: BTreeMap<u32, PhysicalMemory>,
    /// Mappings by start.
    mappings: BTreeMap<u64, Mapped>,
    /// Number of mappings owned by `Leaving`.
    leaving: usize,
    /// Bytes of each fixed mapping by start. Fixed mappings lie outside `addresses`.
    fixed: BTreeMap<u64, u64>,
    calls: VirtualCalls,
    last_error: Option<DriverError>,
    /// A budget's refusal, if a budget refused the newest request for memory.
    over_budget: Option<OverBudget>,
}

impl MappingTable {
    /// Returns whether anything is mapped in the range.
    fn is_used(&self, range: AddrRange) -> bool {
        let below = self.mappings.range(..range.end().get()).next_back();
        below.is_some_and(|(start, mapped)| start + mapped.bytes > range.start().get())
    }
}

impl VirtualMemory {
    /// Reserves addresses on the context's device, with the device's own pages. Costs three driver calls.
    ///
    /// # Errors
    /// If the driver's version is below 10.2, the device cannot map memory, or the driver refuses.
    pub fn new(context: &Context, address_bytes: u64) -> Result<Self, DriverError> {
        Self::with_config(context, &VirtualConfig::new(address_bytes))
    }

    /// Reserves addresses on the context's device with a configuration.
    ///
    /// # Errors
    /// If the driver's version is below 10.2, the device cannot map memory, or the driver refuses;
    /// [`DriverError::Size`] if the pages are not multiples of the device's, [`DriverError::Unsupported`] if
    /// a peer cannot reach the memory, or the memory cannot be shareable.
    pub fn with_config(context: &Context, config: &VirtualConfig) -> Result<Self, DriverError> {
        let ordinal = context.ordinal();
        // A driver that is too old fails in the calls below.
        let version = context.driver().version();
        if version >= PAGES_SINCE && !context.device_info()?.virtual_memory {
            return Err(DriverError::Unsupported {
                what: "virtual memory",
                device: ordinal,
            });
        }
        let memory_use = memory_use_of(context, config.shareable)?;
        let least = context.try_current(|driver| driver.page_bytes(ordinal, memory_use, false))?;
        let devices = devices_of(context, &config.peers)?;
        let page_bytes = match config.page_bytes {
            0 => least,
            bytes => bytes,
        };
        let bad_page = DriverError::Size { bytes: page_bytes };
        let align = Align::new(page_bytes).ok_or(bad_page)?;
        if least == 0 || !page_bytes.is_multiple_of(least) {
            return Err(bad_page);
        }
        let bad_range = DriverError::Size {
            bytes: config.address_bytes,
        };
        let bytes = round_up(config.address_bytes, align).ok_or(bad_range)?;
        let start = context.try_current(|driver| driver.reserve(bytes, page_bytes))?;
        let Some(addresses) = AddrRange::new(Addr::new(start), bytes) else {
            context.give_back(RefusedFree::Reserved(start, bytes));
            return Err(bad_range);
        };
        Ok(Self {
            context: context.clone(),
            addresses,
            page_bytes,
            devices,
            memory_use,
            table: Mutex::default(),
            growing: Mutex::default(),
            asleep: RwLock::default(),
            node: None,
            watcher: RegionWatcher::default(),
        })
    }

    /// Charges the memory of handles to a budget. No such memory may be held yet.
    pub(crate) fn charge_to(&mut self, node: Arc<TreeNode>) {
        self.node = Some(node);
    }

    /// Charges `bytes`, before the driver is asked for them (CHARGE1).
    fn charge(&self, bytes: u64) -> Result<Option<Charge>, DriverError> {
        let Some(node) = &self.node else {
            return Ok(None);
        };
        let mut charged = node.charge(bytes);
        if charged.is_err() && self.context.refused_frees() > 0 {
            self.context.settle_at_once();
            charged = node.charge(bytes);
        }
        locked(&self.table).over_budget = charged.as_ref().err().copied();
        charged.map(Some).map_err(|_| DriverError::Budget)
    }

    /// Returns the context of the memory.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the reserved addresses, which are whole pages.
    pub const fn addresses(&self) -> AddrRange {
        self.addresses
    }

    /// Returns the smallest unit of mapping; the places and sizes of mappings are multiples of it.
    pub const fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Returns the bytes of physical memory held. O(handles + mappings).
    pub fn held_bytes(&self) -> u64 {
        let table = locked(&self.table);
        let held = |held: &&PhysicalMemory| held.memory.is_some();
        let handles = table.handles.values().filter(held);
        let handles: u64 = handles.map(|held| held.bytes).sum();
        let grown = table.mappings.values().map(|mapped| match mapped.owner {
            MappingOwner::Handle(_) => 0,
            MappingOwner::Range(_) | MappingOwner::Leaving(_) => mapped.bytes,
        });
        handles + grown.sum::<u64>()
    }

    /// Returns the number of mappings.
    pub fn mappings(&self) -> usize {
        locked(&self.table).mappings.len()
    }

    /// Returns the counts of driver calls, by kind.
    pub fn calls(&self) -> VirtualCalls {
        locked(&self.table).calls
    }

    /// Returns the newest refusal, with the reason, which a [`SubAllocError`](larder_core::SubAllocError)
    /// does not have.
    pub fn last_error(&self) -> Option<DriverError> {
        locked(&self.table).last_error
    }

    /// Creates memory. If the device has too little, retries refused frees and then the creation.
    fn create(&self, bytes: u64) -> Result<MemoryHandle, DriverError> {
        let ordinal = self.context.ordinal();
        let create = || {
            self.context
                .try_current(|driver| driver.create_memory(ordinal, self.memory_use, bytes))
        };
        let created = match create() {
            Err(error) if error.is_out_of_memory() && self.context.refused_frees() > 0 => {
                self.context.settle_at_once();
                create()
            }
            other => other,
        };
        locked(&self.table).calls.create += u64::from(created.is_ok());
        created
    }

    /// Enters a mapping into the table and makes it.
    fn map(
        &self,
        range: AddrRange,
        memory: MemoryHandle,
        owner: MappingOwner,
    ) -> Result<(), DriverError> {
        self.enter(range, owner)?;
        let outcome = self.map_entered(range.start().get(), range.bytes(), memory);
        if outcome.is_err() {
            locked(&self.table).mappings.remove(&range.start().get());
        }
        outcome
    }

    /// Makes a mapping that is in the table.
    fn map_entered(&self, start: u64, bytes: u64, memory: MemoryHandle) -> Result<(), DriverError> {
        self.context.try_current(|driver| {
            // SAFETY: VIRT1: the addresses are ours; the place is in the table, so no other mapping uses it
            // (VIRT2); the memory exists (VIRT3).
            unsafe { driver.map(start, bytes, memory) }
        })?;
        locked(&self.table).calls.map += 1;
        Ok(())
    }

    fn enter(&self, range: AddrRange, owner: MappingOwner) -> Result<(), DriverError> {
        let address = range.start().get();
        let bytes = range.bytes();
        let mut table = locked(&self.table);
        if !self.addresses.contains(range) || table.is_used(range) {
            return Err(DriverError::NotOurs { address });
        }
        let mapped = Mapped {
            bytes,
            owner,
            exports: 0,
            present: true,
        };
        table.mappings.insert(address, mapped);
        Ok(())
    }

    /// Undoes a mapping that is in the table and not exported, and removes it.
    fn unmap(&self, start: u64, bytes: u64) -> Result<(), DriverError> {
        let exported = |mapped: &Mapped| mapped.exports > 0;
        if locked(&self.table)
            .mappings
            .get(&start)
            .is_some_and(exported)
        {
            return Err(DriverError::Exported { address: start });
        }
        self.context
            .try_give_back(RefusedFree::Mapping(start, bytes))?;
        let mut table = locked(&self.table);
        table.mappings.remove(&start);
        table.calls.unmap += 1;
        Ok(())
    }

    fn set_access(&self, range: AddrRange) -> Result<(), DriverError> {
        let (start, bytes) = (range.start().get(), range.bytes());
        if !self.addresses.contains(range) {
            return Err(DriverError::NotOurs { address: start });
        }
        self.context.try_current(|driver| {
            // SAFETY: VIRT1: the addresses are ours; the driver refuses addresses without a mapping.
            unsafe { driver.set_access(start, bytes, &self.devices) }
        })?;
        locked(&self.table).calls.set_access += 1;
        Ok(())
    }

    fn remember<T>(&self, outcome: Result<T, DriverError>) -> Result<T, DriverError> {
        if let Err(error) = outcome {
            locked(&self.table).last_error = Some(error);
        }
        outcome
    }
}

/// Returns the uses to create memory for. Shareable memory is also created for network cards, if the device
/// supports that.
fn memory_use_of(context: &Context, shareable: bool) -> Result<MemoryUse, DriverError> {
    if !shareable {
        return Ok(MemoryUse::default());
    }
    let can = context.driver().memory_uses(context.device())?;
    if !can.shareable {
        return Err(DriverError::Unsupported {
            what: "memory that is exported as a file descriptor",
            device: context.ordinal(),
        });
    }
    Ok(can)
}

/// Returns the context's device and its peers, each once.
fn devices_of(context: &Context, peers: &[i32]) -> Result<Vec<i32>, DriverError> {
    let driver = context.driver();
    let mut devices = vec![context.ordinal()];
    for peer in peers {
        if devices.contains(peer) {
            continue;
        }
        if !driver.can_access_peer(driver.device(*peer)?, context.device())? {
            return Err(DriverError::Unsupported {
                what: "access to its peer's memory",
                device: *peer,
            });
        }
        devices.push(*peer);
    }
    Ok(devices)
}

impl Drop for VirtualMemory {
    fn drop(&mut self) {
        let table = core::mem::take(&mut *locked(&self.table));
        let present = |(_, mapped): &(u64, Mapped)| mapped.present;
        for (start, mapped) in table.mappings.into_iter().filter(present) {
            if let Some(range) = AddrRange::new(Addr::new(start), mapped.bytes) {
                self.watcher.leaving(range);
            }
            self.context
                .give_back(RefusedFree::Mapping(start, mapped.bytes));
            if let MappingOwner::Range(memory) | MappingOwner::Leaving(memory) = mapped.owner {
                self.context.give_back(RefusedFree::Memory(memory));
            }
        }
        for held in table.handles.into_values() {
            if let Some(memory) = held.memory {
                self.context
                    .give_back_charged(RefusedFree::Memory(memory), held.charge);
            }
        }
        let (start, bytes) = (self.addresses.start().get(), self.addresses.bytes());
        self.context.give_back(RefusedFree::Reserved(start, bytes));
    }
}

impl fmt::Debug for VirtualMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualMemory")
            .field("context", &self.context)
            .field("addresses", &self.addresses)
            .field("page_bytes", &self.page_bytes)
            .field("held_bytes", &self.held_bytes())
            .field("mappings", &self.mappings())
            .finish_non_exhaustive()
    }
}
