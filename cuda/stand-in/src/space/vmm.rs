//! Reservations and mappings of the virtual memory calls.
//!
//! A mapping is a [`MemoryBlock`] inside a reservation. Its identity is that of the physical memory, so the search for
//! races treats two mappings of a handle as the same memory.
//!
//! SPACE5 a block of kind `Mapped` lies inside one reservation.

use std::collections::{BTreeMap, BTreeSet};

use larder_cuda_abi::Code;
use larder_cuda_abi::constants::MEM_ACCESS_NONE;

use super::file::MemoryFile;
use super::physical::{GRANULARITY, Physical};
use super::{BlockKind, MemoryBlock, Space};
use crate::config::StandInConfig;
use crate::driver::Session;

/// The state of the virtual memory calls.
#[derive(Debug)]
pub(crate) struct Vmm {
    /// Maximum bytes of all reservations together.
    pub(crate) address_limit: u64,
    /// Length of each reservation by its start.
    pub(crate) reservations: BTreeMap<u64, u64>,
    pub(crate) handles: BTreeMap<u64, Physical>,
    pub(crate) file: MemoryFile,
    /// Whether each further mapping of a handle shows separate memory.
    pub(crate) stale_aliases: bool,
    /// Offset of such separate memory in the file, by the mapping's address.
    aliases: BTreeMap<u64, u64>,
}

impl Vmm {
    pub(crate) fn new(config: &StandInConfig) -> Self {
        Self {
            address_limit: config.address_bytes,
            stale_aliases: config.stale_aliases,
            aliases: BTreeMap::new(),
            reservations: BTreeMap::new(),
            handles: BTreeMap::new(),
            file: MemoryFile::default(),
        }
    }

    /// Returns the start and length of the reservation that holds an address.
    pub(crate) fn reservation_at(&self, at: u64) -> Option<(u64, u64)> {
        let (start, bytes) = self.reservations.range(..=at).next_back()?;
        (at - start < *bytes).then_some((*start, *bytes))
    }
}

/// Returns the end of a range. Refuses a range that does not consist of whole granules.
fn end_of(at: u64, bytes: u64) -> Result<u64, Code> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !at.is_multiple_of(GRANULARITY) {
        return Err(Code::INVALID_VALUE);
    }
    at.checked_add(bytes).ok_or(Code::INVALID_VALUE)
}

impl Space {
    /// Reserves addresses: at `wish` if that is not 0 and free, otherwise elsewhere.
    pub(crate) fn reserve(&mut self, bytes: u64, align: u64, wish: u64) -> Result<u64, Code> {
        let whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY);
        if !whole || (align != 0 && !align.is_power_of_two()) {
            return Err(Code::INVALID_VALUE);
        }
        let reserved: u64 = self.vmm.reservations.values().sum();
        if bytes > self.vmm.address_limit.saturating_sub(reserved) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let align = align.max(GRANULARITY);
        let at =
            if wish != 0 && wish.is_multiple_of(align) && self.window.mapped.take_at(wish, bytes) {
                wish
            } else {
                // A freed reservation's addresses are reserved again at once: seen on an H200, driver 580.
                let mapped = &mut self.window.mapped;
                mapped
                    .take_lowest(bytes, align)
                    .ok_or(Code::OUT_OF_MEMORY)?
            };
        self.vmm.reservations.insert(at, bytes);
        Ok(at)
    }

    /// Frees the addresses of a whole reservation without mappings.
    pub(crate) fn unreserve(&mut self, at: u64, bytes: u64) -> Result<(), Code> {
        if self.vmm.reservations.get(&at) != Some(&bytes) {
            return Err(Code::INVALID_VALUE);
        }
        if self.blocks.range(at..at + bytes).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        self.vmm.reservations.remove(&at);
        self.window.mapped.give(at, bytes);
        Ok(())
    }

    /// Maps all of a handle's memory at free addresses of one reservation, without access for any
    /// device.
    pub(crate) fn map(&mut self, at: u64, bytes: u64, handle: u64) -> Result<(), Code> {
        let end = end_of(at, bytes)?;
        let (start, length) = self.vmm.reservation_at(at).ok_or(Code::INVALID_VALUE)?;
        let physical = self.physical(handle)?;
        let (device, memory, whole) = (physical.device, physical.memory, physical.bytes);
        let mappings = physical.mappings;
        if end > start + length || bytes != whole {
            return Err(Code::INVALID_VALUE);
        }
        if self.block_at(at).is_some() || self.blocks.range(at..end).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        let mut place = self.place_of(handle).ok_or(Code::UNKNOWN)?;
        if self.vmm.stale_aliases && mappings > 0 {
            place = self.alias(at, bytes).ok_or(Code::OUT_OF_MEMORY)?;
        }
        if !self.window.map_file(at, bytes, place) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let block = MemoryBlock {
            bytes,
            kind: BlockKind::Mapped {
                handle,
                access: BTreeMap::new(),
            },
            device,
            context: None,
            counted: 0,
            memory,
            id: self.next_id(),
        };
        self.blocks.insert(at, block);
        self.physical(handle)?.mappings += 1;
        Ok(())
    }

    /// Allocates separate memory for a mapping.
    fn alias(&mut self, at: u64, bytes: u64) -> Option<(i32, u64)> {
        let offset = self.vmm.file.take(bytes, false)?;
        self.vmm.aliases.insert(at, offset);
        Some((self.vmm.file.descriptor()?, offset))
    }

    /// Returns the mappings that make up a range.
    ///
    /// # Errors
    /// If some of it is not mapped, or it holds only a part of a mapping.
    fn mappings(&self, at: u64, bytes: u64) -> Result<Vec<u64>, Code> {
        let end = end_of(at, bytes)?;
        let mut starts = Vec::new();
        let mut next = at;
        while next < end {
            let block = self.blocks.get(&next).ok_or(Code::INVALID_VALUE)?;
            if !matches!(block.kind, BlockKind::Mapped { .. }) {
                return Err(Code::INVALID_VALUE);
            }
            starts.push(next);
            next += block.bytes;
        }
        if next != end {
            return Err(Code::INVALID_VALUE);
        }
        Ok(starts)
    }

    /// Sets the access of devices to whole mappings.
    fn give_access(&mut self, at: u64, bytes: u64, rights: &[(usize, u32)]) -> Result<(), Code> {
        for start in self.mappings(at, bytes)? {
            if let Some(block) = self.blocks.get_mut(&start)
                && let BlockKind::Mapped { access, .. } = &mut block.kind
            {
                access.extend(rights.iter().copied());
            }
        }
        Ok(())
    }

    /// Returns a device's access to the mapping at an address.
    pub(crate) fn access_at(&self, at: u64, device: usize) -> Result<u32, Code> {
        match self.block_at(at).map(|(_, block)| &block.kind) {
            Some(BlockKind::Mapped { access, .. }) => {
                Ok(access.get(&device).copied().unwrap_or(MEM_ACCESS_NONE))
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Returns the devices that may use these mappings or own their memory.
    fn devices_of(&self, starts: &[u64]) -> BTreeSet<usize> {
        let mut devices = BTreeSet::new();
        for block in starts.iter().filter_map(|start| self.blocks.get(start)) {
            devices.insert(block.device);
            if let BlockKind::Mapped { access, .. } = &block.kind {
                devices.extend(access.keys());
            }
        }
        devices
    }

    fn unmap_one(&mut self, start: u64) {
        let Some(block) = self.blocks.remove(&start) else {
            return;
        };
        self.window.unmap_file(start, block.bytes);
        if let Some(offset) = self.vmm.aliases.remove(&start) {
            self.vmm.file.give(offset, block.bytes);
        }
        if let BlockKind::Mapped { handle, .. } = block.kind {
            self.remove_mapping(handle);
        }
    }
}

impl Session {
    /// Implements `cuMemSetAccess`. If [mapping waits](crate::driver::SimDriver::mapping_waits), it first waits for the
    /// devices that may use the mappings or own the memory.
    pub(crate) fn set_access(
        &mut self,
        at: u64,
        bytes: u64,
        rights: &[(usize, u32)],
    ) -> Result<(), Code> {
        let starts = self.space.mappings(at, bytes)?;
        self.wait_for_users(&starts);
        self.space.give_access(at, bytes, rights)
    }

    /// Implements `cuMemUnmap`. Removes the mappings even if queued work uses them; that work then fails when it
    /// touches them. If [mapping waits](crate::driver::SimDriver::mapping_waits), it first waits for that work.
    pub(crate) fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), Code> {
        let starts = self.space.mappings(at, bytes)?;
        self.wait_for_users(&starts);
        // Another thread may have unmapped some of them during the wait.
        for start in self.space.mappings(at, bytes)? {
            self.space.unmap_one(start);
        }
        Ok(())
    }

    /// Implements `cuMemRelease`. As documented, it does not wait, unless [mapping
    /// waits](crate::driver::SimDriver::mapping_waits): then it waits for the device that owns the memory.
    pub(crate) fn release(&mut self, handle: u64) -> Result<(), Code> {
        let device = self.space.physical(handle)?.device;
        if self.mapping_waits {
            self.sync_device(device);
        }
        self.space.release(handle)
    }

    /// Waits for the devices that may use these mappings, if mapping waits.
    fn wait_for_users(&mut self, starts: &[u64]) {
        if !self.mapping_waits {
            return;
        }
        for device in self.space.devices_of(starts) {
            self.sync_device(device);
        }
    }
}
