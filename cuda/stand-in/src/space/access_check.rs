//! Checks accesses of queued work: whether the memory exists, whether the device may use it, and
//! whether this access is ordered against earlier ones.

use larder_cuda_abi::Code;
use larder_cuda_abi::constants::{MEM_ACCESS_NONE, MEM_ACCESS_READ, MEM_ACCESS_READ_WRITE};

use super::{BlockKind, MemoryBlock};
use crate::clock::{Moment, VectorClock};
use crate::driver::SimDriver;

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The operation that accesses memory.
#[derive(Clone, Debug)]
pub(crate) struct Accessor {
    pub(crate) device: usize,
    pub(crate) clock: VectorClock,
    pub(crate) moment: Moment,
    /// Description of the operation, for findings.
    pub(crate) what: String,
    /// Whether the access is a copy, whose bytes the driver itself moves between devices.
    pub(crate) copies: bool,
}

impl SimDriver {
    /// Returns the host address of a range that queued work uses.
    ///
    /// # Errors
    /// If the device may not access the whole range, or some of it does not exist: an illegal
    /// address, also recorded as a finding.
    pub(crate) fn touch(
        &mut self,
        user: &Accessor,
        at: u64,
        bytes: u64,
        access: Access,
    ) -> Result<*mut u8, Code> {
        let end = at.checked_add(bytes).ok_or(Code::ILLEGAL_ADDRESS)?;
        let mut next = at;
        while next < end {
            let found = self
                .space
                .block_at(next)
                .map(|(start, block)| (start, block.clone()));
            let Some((start, block)) = found else {
                return Err(self.illegal(user, at, bytes, next, "where there is no memory"));
            };
            if let Err(why) = self.allowed(user, &block, access) {
                return Err(self.illegal(user, at, bytes, next, why));
            }
            if next - start >= block.live_bytes() {
                let why = "which is not allocated for the work that runs now";
                return Err(self.illegal(user, at, bytes, next, why));
            }
            let to = end.min(start + block.live_bytes());
            let shadow = self.space.shadows.entry(block.memory).or_default();
            let race = shadow.note(
                next - start,
                to - next,
                access,
                &user.clock,
                user.moment,
                &user.what,
            );
            if let Some(other) = race {
                let what = &user.what;
                let act = if access == Access::Write {
                    "writes"
                } else {
                    "reads"
                };
                self.findings.add(format!(
                    "race: {what} {act} memory at {next:#x}, unordered with {other}"
                ));
            }
            if to < end && !matches!(block.kind, BlockKind::Mapped { .. }) {
                return Err(self.illegal(user, at, bytes, to, "beyond the end of its allocation"));
            }
            next = to;
        }
        Ok(self.space.host(at))
    }

    /// Returns a device's access to a block, one of the `MEM_ACCESS_…` constants.
    pub(crate) fn rights(&self, block: &MemoryBlock, device: usize) -> u32 {
        let given = match &block.kind {
            BlockKind::Mapped { access, .. } => access.get(&device).copied(),
            BlockKind::Pinned | BlockKind::Registered | BlockKind::Managed => {
                Some(MEM_ACCESS_READ_WRITE)
            }
            // Copies may use write-combined memory, although kernels may not.
            BlockKind::Combined => None,
            _ if block.device == device => Some(MEM_ACCESS_READ_WRITE),
            BlockKind::Pooled(pooled) => {
                let pool = self.pools.table.get(pooled.pool).ok();
                pool.and_then(|pool| pool.access.get(&device).copied())
            }
            BlockKind::Device | BlockKind::Module | BlockKind::CombinedAlias { .. } => None,
        };
        given.unwrap_or(MEM_ACCESS_NONE)
    }

    /// Returns an error if the device may not access the block in this way.
    fn allowed(
        &self,
        user: &Accessor,
        block: &MemoryBlock,
        access: Access,
    ) -> Result<(), &'static str> {
        let mapped = matches!(block.kind, BlockKind::Mapped { .. });
        match (self.rights(block, user.device), access) {
            _ if user.copies && !mapped => Ok(()),
            (MEM_ACCESS_READ_WRITE, _) | (MEM_ACCESS_READ, Access::Read) => Ok(()),
            (MEM_ACCESS_READ, Access::Write) => Err("memory that the device may only read"),
            _ => Err("memory that the device has no access to"),
        }
    }

    fn illegal(&mut self, user: &Accessor, at: u64, bytes: u64, bad: u64, why: &str) -> Code {
        let what = &user.what;
        self.findings.add(format!(
            "illegal address: {what} uses {bytes} bytes at {at:#x}, at {bad:#x} {why}"
        ));
        Code::ILLEGAL_ADDRESS
    }
}
