//! The work of each kind of operation.

use larder_cuda_abi::Code;

use super::{CopyEnd, OpId, Work};
use crate::driver::SimDriver;
use crate::space::{Access, Accessor};

impl SimDriver {
    /// Does the work of an operation.
    ///
    /// # Errors
    /// If the operation touches missing memory; its context has then failed.
    pub(crate) fn do_work(&mut self, op: OpId, work: Work) -> Result<(), Code> {
        match work {
            Work::Nothing | Work::Host(_) => Ok(()),
            Work::Copy { to, from, bytes } => self.do_copy(op, &to, &from, bytes),
            Work::Set { to, pattern, count } => self.do_set(op, to, &pattern, count),
            Work::Kernel(launch) => self.do_kernel(op, &launch),
            Work::PoolAlloc { at, bytes } => self.do_pool_alloc(op, at, bytes),
            Work::PoolFree { at, made } => self.do_pool_free(op, at, made),
            Work::PlainFree { at } => self.do_plain_free(op, at),
            Work::Record { event, record } => {
                let time = self.queue.time.reading();
                if let Ok(event) = self.events.get_mut(event)
                    && event.records == record
                    && let Some(newest) = &mut event.record
                {
                    newest.time = Some(time);
                }
                Ok(())
            }
        }
    }

    /// Describes an operation as a user of memory, for the checks.
    pub(crate) fn user(&self, op: OpId, what: &str) -> Result<Accessor, Code> {
        let entry = self.queue.ops.get(&op).ok_or(Code::UNKNOWN)?;
        Ok(Accessor {
            device: self.contexts.get(entry.context)?.device,
            clock: entry.clock.clone(),
            moment: entry.moment,
            what: format!("{what} in stream {:#x}", entry.stream),
            copies: true,
        })
    }

    /// Describes an operation as done by the device that owns the memory at an address.
    fn owner(&self, user: &Accessor, at: u64) -> Accessor {
        let block = self.space.block_at(at);
        Accessor {
            device: block.map_or(user.device, |(_, block)| block.device),
            ..user.clone()
        }
    }

    fn do_copy(&mut self, op: OpId, to: &CopyEnd, from: &CopyEnd, bytes: u64) -> Result<(), Code> {
        if bytes == 0 {
            return Ok(());
        }
        let user = self.user(op, "a copy")?;
        let source = match from {
            CopyEnd::Known(at) => self.touch(&user, *at, bytes, Access::Read)?.cast_const(),
            CopyEnd::Peer(at) => {
                let user = self.owner(&user, *at);
                self.touch(&user, *at, bytes, Access::Read)?.cast_const()
            }
            CopyEnd::Host(at) => *at as *const u8,
            CopyEnd::Staged(staged) => staged.as_ptr(),
        };
        let target = match to {
            CopyEnd::Known(at) => self.touch(&user, *at, bytes, Access::Write)?,
            CopyEnd::Peer(at) => {
                let user = self.owner(&user, *at);
                self.touch(&user, *at, bytes, Access::Write)?
            }
            CopyEnd::Host(at) => *at as *mut u8,
            CopyEnd::Staged(_) => return Err(Code::UNKNOWN),
        };
        // SAFETY: both ends are `bytes` long. `touch` has checked memory that the driver knows. By
        // FFI1 host memory is valid, because the call that queued this copy waits for it or the
        // graph's owner keeps it. Staged bytes belong to this copy. The ends may overlap.
        unsafe { std::ptr::copy(source, target, bytes as usize) };
        Ok(())
    }

    fn do_set(&mut self, op: OpId, to: u64, pattern: &[u8], count: u64) -> Result<(), Code> {
        let bytes = count * pattern.len() as u64;
        if bytes == 0 {
            return Ok(());
        }
        let user = self.user(op, "a fill")?;
        let target = self.touch(&user, to, bytes, Access::Write)?;
        // SAFETY: `touch` has checked that the target is that long. The driver is locked, so only a
        // race in the program could access the target now.
        let target = unsafe { std::slice::from_raw_parts_mut(target, bytes as usize) };
        if let [byte] = pattern {
            target.fill(*byte);
            return Ok(());
        }
        for piece in target.chunks_exact_mut(pattern.len()) {
            piece.copy_from_slice(pattern);
        }
        Ok(())
    }
}
