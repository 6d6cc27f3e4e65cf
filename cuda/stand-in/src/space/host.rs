//! Host memory that the driver knows: pinned, registered and managed. Its address is the same for
//! the host and for every device, and the bytes lie there, not behind the window.
//!
//! SPACE6 pinned and managed memory is a mapping of its own, of whole pages, that belongs to its block.
//! Registered memory stays the program's.

use std::ptr;

use larder_cuda_abi::Code;

use super::window::{PAGE, PLAIN_ALIGN, map_anywhere, unmap};
use super::{Block, Kind, POISON, Space};
use crate::driver::Session;

/// Bytes of the mapping behind pinned or managed memory (SPACE6).
fn mapped_bytes(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE)
}

impl Space {
    /// Makes pinned or managed memory. Managed memory counts against its device, all of it and at
    /// once.
    pub(crate) fn alloc_host(
        &mut self,
        device: usize,
        context: usize,
        bytes: u64,
        kind: Kind,
    ) -> Result<u64, Code> {
        let length = mapped_bytes(bytes).ok_or(Code::OUT_OF_MEMORY)?;
        let counted = counted_bytes(&kind, bytes);
        self.usage.take(device, counted)?;
        let Some(at) = map_anywhere(length) else {
            self.usage.give(device, counted);
            return Err(Code::OUT_OF_MEMORY);
        };
        if self.poison {
            // SAFETY: memory that was just mapped for this block (SPACE6).
            unsafe { self.window.host(at).write_bytes(POISON, bytes as usize) };
        }
        self.add_host(at, device, context, bytes, kind);
        Ok(at)
    }

    /// Makes a range of the program's memory known.
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
        self.add_host(at, device, context, bytes, Kind::Registered);
        Ok(())
    }

    fn add_host(&mut self, at: u64, device: usize, context: usize, bytes: u64, kind: Kind) {
        let block = Block {
            bytes,
            kind,
            device,
            context: Some(context),
            memory: self.next_id(),
            id: self.next_id(),
        };
        self.blocks.insert(at, block);
    }

    /// Takes pinned, registered or managed memory back.
    pub(crate) fn free_host(&mut self, at: u64) -> Result<(), Code> {
        let block = self.blocks.remove(&at).ok_or(Code::INVALID_VALUE)?;
        self.shadows.remove(&block.memory);
        let counted = counted_bytes(&block.kind, block.bytes);
        self.usage.give(block.device, counted);
        unmap_host(at, &block);
        Ok(())
    }

    /// Gives the memory of all blocks on the host back to the system.
    pub(crate) fn close_host(&mut self) {
        for (at, block) in &self.blocks {
            unmap_host(*at, block);
        }
    }

    /// Refuses a range that no managed block holds, and answers that block's start.
    pub(crate) fn managed(&self, at: u64, bytes: u64) -> Result<u64, Code> {
        match self.block_at(at) {
            Some((start, block)) if block.kind == Kind::Managed && self.covers(at, bytes) => {
                Ok(start)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

/// The bytes of a device's memory that a block counts for.
fn counted_bytes(kind: &Kind, bytes: u64) -> u64 {
    match kind {
        Kind::Managed => bytes.next_multiple_of(PLAIN_ALIGN),
        _ => 0,
    }
}

/// Takes a block's own mapping away, if it has one (SPACE6).
fn unmap_host(at: u64, block: &Block) {
    if !matches!(block.kind, Kind::Pinned | Kind::Managed) {
        return;
    }
    let bytes = mapped_bytes(block.bytes).unwrap_or(block.bytes);
    // SAFETY: by SPACE6 a mapping of our own, whose block is gone.
    unsafe { unmap(at, bytes) };
}

/// Whether the program has memory in all of a range.
fn is_mapped(at: u64, end: u64) -> bool {
    let start = at / PAGE * PAGE;
    // The system rounds lengths up, and takes one that this carries over the top for none.
    if end > u64::MAX - PAGE {
        return false;
    }
    let page: *mut libc::c_void = ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: it moves nothing and touches nothing: it answers whether all pages exist.
    unsafe { libc::msync(page, (end - start) as usize, libc::MS_ASYNC) == 0 }
}

impl Session {
    /// Takes the block at `at` back after all queued work, if it is of this kind.
    ///
    /// # Errors
    /// With `refusal` if it is not.
    pub(crate) fn free_host_block(
        &mut self,
        at: u64,
        kind: &Kind,
        refusal: Code,
    ) -> Result<(), Code> {
        let known = |space: &Space| match space.blocks.get(&at) {
            Some(block) if block.kind == *kind => Ok(()),
            _ => Err(refusal),
        };
        known(&self.space)?;
        for device in 0..self.devices.len() {
            self.sync_device(device);
        }
        // Another thread may have freed it meanwhile.
        known(&self.space)?;
        self.space.free_host(at)
    }
}
