//! Host memory that the driver knows: pinned, registered and managed. Its address is the same for
//! the host and for every device, and the bytes lie there, not in the window. Write-combined memory
//! has further addresses in the window, one for each device, without separate memory.
//!
//! SPACE6 pinned and managed memory is a separate mapping of whole pages that belongs to its block.
//! Registered memory stays the program's.

use std::ptr;

use larder_cuda_abi::Code;

use super::window::{PAGE, PLAIN_ALIGN, map_anywhere, unmap};
use super::{BlockKind, MemoryBlock, POISON, Space};
use crate::driver::Session;

/// Returns the size of the mapping for this many bytes of pinned or managed memory (SPACE6).
fn mapped_bytes(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE)
}

impl Space {
    /// Allocates pinned or managed memory, which counts as `counted` bytes of the device's memory.
    pub(crate) fn alloc_host(
        &mut self,
        device: usize,
        context: usize,
        bytes: u64,
        (kind, counted): (BlockKind, u64),
    ) -> Result<u64, Code> {
        let length = mapped_bytes(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        let counted = counted
            .checked_next_multiple_of(PLAIN_ALIGN)
            .ok_or(Code::OUT_OF_MEMORY)?;
        let pinned = pinned_bytes(&kind, 0, bytes);
        self.pinned.take(pinned)?;
        let taken = self.usage.take(device, counted);
        let Some(at) = taken.is_ok().then(|| map_anywhere(length)).flatten() else {
            self.pinned.give(pinned);
            taken?;
            self.usage.give(device, counted);
            return Err(Code::OUT_OF_MEMORY);
        };
        if self.poison {
            // SAFETY: the memory was just mapped for this block (SPACE6).
            unsafe { self.window.host(at).write_bytes(POISON, bytes as usize) };
        }
        self.add_host(at, device, context, bytes, (kind, counted));
        Ok(at)
    }

    /// Gives write-combined memory an address for each device; other memory has one address for
    /// all.
    ///
    /// # Errors
    /// If no addresses are left; the memory is then freed.
    pub(crate) fn add_aliases(&mut self, of: u64, devices: usize) -> Result<(), Code> {
        let Some(block) = self.blocks.get(&of).cloned() else {
            return Ok(());
        };
        if block.kind != BlockKind::Combined {
            return Ok(());
        }
        let rounded = block.bytes.next_multiple_of(PLAIN_ALIGN);
        for device in 0..devices {
            let Some(at) = self.window.plain.take(rounded, PLAIN_ALIGN) else {
                self.free_host(of)?;
                return Err(Code::OUT_OF_MEMORY);
            };
            let alias = MemoryBlock {
                kind: BlockKind::CombinedAlias { of },
                device,
                ..block.clone()
            };
            self.blocks.insert(at, alias);
        }
        Ok(())
    }

    /// Returns the devices' addresses of write-combined memory.
    pub(super) fn aliases_of(&self, host: u64) -> impl Iterator<Item = (u64, &MemoryBlock)> {
        let is_alias =
            move |block: &MemoryBlock| block.kind == BlockKind::CombinedAlias { of: host };
        let all = self.blocks.iter().filter(move |(_, block)| is_alias(block));
        all.map(|(at, block)| (*at, block))
    }

    /// Registers a range of the program's memory.
    pub(crate) fn register(
        &mut self,
        at: u64,
        bytes: u64,
        device: usize,
        context: usize,
    ) -> Result<(), Code> {
        let end = at.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        if at == 0 || bytes == 0 || self.window.meets(at, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        if self.block_at(at).is_some() || self.blocks.range(at..end).next().is_some() {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !is_mapped(at, end) {
            return Err(Code::INVALID_VALUE);
        }
        self.pinned
            .take(pinned_bytes(&BlockKind::Registered, at, bytes))?;
        self.add_host(at, device, context, bytes, (BlockKind::Registered, 0));
        Ok(())
    }

    fn add_host(
        &mut self,
        at: u64,
        device: usize,
        context: usize,
        bytes: u64,
        (kind, counted): (BlockKind, u64),
    ) {
        let block = MemoryBlock {
            bytes,
            kind,
            device,
            context: Some(context),
            counted,
            memory: self.next_id(),
            id: self.next_id(),
        };
        self.blocks.insert(at, block);
    }

    /// Frees pinned or managed memory, or unregisters registered memory.
    pub(crate) fn free_host(&mut self, at: u64) -> Result<(), Code> {
        let block = self.blocks.remove(&at).ok_or(Code::INVALID_VALUE)?;
        self.shadows.remove(&block.memory);
        if block.kind == BlockKind::Combined {
            let aliases: Vec<u64> = self.aliases_of(at).map(|(alias, _)| alias).collect();
            for alias in aliases {
                self.blocks.remove(&alias);
                let rounded = block.bytes.next_multiple_of(PLAIN_ALIGN);
                self.window.plain.give(alias, rounded);
            }
        }
        self.usage.give(block.device, block.counted);
        self.pinned.give(pinned_bytes(&block.kind, at, block.bytes));
        unmap_host(at, &block);
        Ok(())
    }

    /// Releases the memory of all blocks on the host.
    pub(crate) fn close_host(&mut self) {
        for (at, block) in &self.blocks {
            unmap_host(*at, block);
        }
    }

    /// Returns the start of the managed block that holds a range, or an error.
    pub(crate) fn managed(&self, at: u64, bytes: u64) -> Result<u64, Code> {
        match self.block_at(at) {
            Some((start, block)) if block.kind == BlockKind::Managed && self.covers(at, bytes) => {
                Ok(start)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// Returns the bytes of the host's memory that a block pins: whole pages.
fn pinned_bytes(kind: &BlockKind, at: u64, bytes: u64) -> u64 {
    match kind {
        BlockKind::Pinned | BlockKind::Combined | BlockKind::Registered => {
            let end = at.saturating_add(bytes);
            let end = end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
            end - at / PAGE * PAGE
        }
        _ => 0,
    }
}

/// Unmaps a block's mapping, if it has one (SPACE6).
fn unmap_host(at: u64, block: &MemoryBlock) {
    let has_mapping =
        [BlockKind::Pinned, BlockKind::Combined, BlockKind::Managed].contains(&block.kind);
    if !has_mapping {
        return;
    }
    let bytes = mapped_bytes(block.bytes).unwrap_or(block.bytes);
    // SAFETY: by SPACE6 the mapping belongs to the block, which is gone.
    unsafe { unmap(at, bytes) };
}

/// Returns whether all of a range is mapped.
fn is_mapped(at: u64, end: u64) -> bool {
    let start = at / PAGE * PAGE;
    // The system rounds lengths up, and a length that overflows would count as zero.
    if end > u64::MAX - PAGE {
        return false;
    }
    let page: *mut libc::c_void = ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: the call neither moves nor touches memory, and only returns whether all pages exist.
    unsafe { libc::msync(page, (end - start) as usize, libc::MS_ASYNC) == 0 }
}

impl Session {
    /// Frees the block at `at` after all queued work, if it is of one of `kinds`.
    ///
    /// # Errors
    /// `refusal` if it is not.
    pub(crate) fn free_host_block(
        &mut self,
        at: u64,
        kinds: &[BlockKind],
        refusal: Code,
    ) -> Result<(), Code> {
        let known = |space: &Space| match space.blocks.get(&at) {
            Some(block) if kinds.contains(&block.kind) => Ok(()),
            _ => Err(refusal),
        };
        known(&self.space)?;
        for device in 0..self.devices.len() {
            self.sync_device(device);
        }
        // Another thread may have freed the block during the wait.
        known(&self.space)?;
        self.space.free_host(at)
    }
}
