//! The work of queued allocations and frees.

use larder_cuda_abi::Code;

use crate::clock::{Moment, VectorClock};
use crate::driver::SimDriver;
use crate::queue::OpId;
use crate::space::{Access, BlockKind, POISON};

impl SimDriver {
    /// Runs an allocation.
    pub(crate) fn do_pool_alloc(&mut self, op: OpId, at: u64, bytes: u64) -> Result<(), Code> {
        let user = self.user(op, "an allocation")?;
        let memory = self.space.next_id();
        let poison = self.space.poison;
        let Some(block) = self.space.blocks.get_mut(&at) else {
            // A free that is not ordered after this allocation ran before it, which is a finding,
            // and the pool has since released the block.
            return Ok(());
        };
        let old = std::mem::replace(&mut block.memory, memory);
        if let BlockKind::Pooled(pooled) = &mut block.kind {
            pooled.live = Some(bytes);
        }
        self.space.shadows.remove(&old);
        if poison {
            let host = self.space.window.host(at);
            // SAFETY: the memory belongs to the block, which has room for `bytes` bytes.
            unsafe { host.write_bytes(POISON, bytes as usize) };
        }
        self.note_all(&user.clock, user.moment, &user.what, at);
        Ok(())
    }

    /// Runs a free.
    pub(crate) fn do_pool_free(&mut self, op: OpId, at: u64, made: OpId) -> Result<(), Code> {
        let user = self.user(op, "a free")?;
        if !self.queue.done(made) {
            let what = &user.what;
            self.findings.add(format!(
                "race: {what} of the memory at {at:#x} runs before its allocation, and nothing \
                 orders the two"
            ));
        }
        self.note_all(&user.clock, user.moment, &user.what, at);
        self.end_pooled(at);
        Ok(())
    }

    /// Runs a free of plain memory.
    pub(crate) fn do_plain_free(&mut self, op: OpId, at: u64) -> Result<(), Code> {
        let user = self.user(op, "a free")?;
        self.note_all(&user.clock, user.moment, &user.what, at);
        self.space.free_plain(at).map_err(|_| Code::ILLEGAL_ADDRESS)
    }

    /// Ends the life of a block.
    pub(super) fn end_pooled(&mut self, at: u64) {
        if let Some(block) = self.space.blocks.get_mut(&at)
            && let BlockKind::Pooled(pooled) = &mut block.kind
        {
            pooled.live = None;
        }
    }

    /// Records an allocation or a free as a write of the whole block.
    pub(super) fn note_all(&mut self, clock: &VectorClock, moment: Moment, what: &str, at: u64) {
        let Some(block) = self.space.blocks.get(&at) else {
            return;
        };
        let room = match &block.kind {
            BlockKind::Pooled(pooled) => pooled.room,
            _ => block.bytes,
        };
        let shadow = self.space.shadows.entry(block.memory).or_default();
        let race = shadow.note(0, room, Access::Write, clock, moment, what);
        if let Some(other) = race {
            self.findings.add(format!(
                "race: {what} of the memory at {at:#x}, unordered with {other}"
            ));
        }
    }
}
