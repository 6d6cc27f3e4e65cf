//! Plain device memory: `cuMemAlloc`.

use larder_cuda_abi::Code;

use super::window::PLAIN_ALIGN;
use super::{BlockKind, MemoryBlock, POISON, Space};
use crate::driver::{Session, SimDriver};

impl Space {
    /// Allocates memory of a device. It counts as its size rounded up to a multiple of 512 bytes,
    /// which is also its alignment.
    pub(crate) fn alloc_plain(
        &mut self,
        device: usize,
        context: Option<usize>,
        bytes: u64,
        kind: BlockKind,
    ) -> Result<u64, Code> {
        let rounded = bytes
            .checked_next_multiple_of(PLAIN_ALIGN)
            .ok_or(Code::OUT_OF_MEMORY)?;
        self.usage.take(device, rounded)?;
        let Some(at) = self.window.plain.take(rounded, PLAIN_ALIGN) else {
            self.usage.give(device, rounded);
            return Err(Code::OUT_OF_MEMORY);
        };
        let block = MemoryBlock {
            bytes,
            kind,
            device,
            context,
            counted: rounded,
            memory: self.next_id(),
            id: self.next_id(),
        };
        self.blocks.insert(at, block);
        if self.poison {
            // SAFETY: the memory belongs to the window and was just allocated to this block.
            unsafe { self.window.host(at).write_bytes(POISON, bytes as usize) };
        }
        Ok(at)
    }

    /// Frees plain device memory.
    pub(crate) fn free_plain(&mut self, at: u64) -> Result<(), Code> {
        let block = self.blocks.remove(&at).ok_or(Code::INVALID_VALUE)?;
        let rounded = block.bytes.next_multiple_of(PLAIN_ALIGN);
        self.shadows.remove(&block.memory);
        self.dying.remove(&at);
        self.window.discard(at, rounded);
        self.window.plain.give(at, rounded);
        self.usage.give(block.device, block.counted);
        Ok(())
    }
}

impl SimDriver {
    /// Frees the memory that ends with a context.
    pub(crate) fn free_memory_of(&mut self, context: usize) {
        let blocks: Vec<(u64, BlockKind)> = self
            .space
            .blocks
            .iter()
            .filter(|(_, block)| block.context == Some(context))
            .map(|(start, block)| (*start, block.kind.clone()))
            .collect();
        for (start, kind) in blocks {
            let _ = match kind {
                BlockKind::Device => self.space.free_plain(start),
                BlockKind::Pinned
                | BlockKind::Combined
                | BlockKind::Registered
                | BlockKind::Managed => self.space.free_host(start),
                // Modules free their blocks, and devices' addresses end with the memory they refer
                // to. Pools and physical memory outlive contexts.
                BlockKind::Mapped { .. }
                | BlockKind::Module
                | BlockKind::CombinedAlias { .. }
                | BlockKind::Pooled(_) => Ok(()),
            };
        }
    }
}

impl Session {
    /// Implements `cuMemFree`. Waits for the device first, or for all devices if the memory is
    /// managed.
    pub(crate) fn free_device(&mut self, at: u64) -> Result<(), Code> {
        if matches!(self.space.blocks.get(&at), Some(block) if block.kind == BlockKind::Managed) {
            return self.free_host_block(at, &[BlockKind::Managed], Code::INVALID_VALUE);
        }
        let known = |space: &Space| match space.blocks.get(&at) {
            Some(block) if block.kind == BlockKind::Device => Ok(block.device),
            _ => Err(Code::INVALID_VALUE),
        };
        let device = known(&self.space)?;
        self.sync_device(device);
        // Another thread may have freed the block during the wait.
        known(&self.space)?;
        self.space.free_plain(at)
    }
}
