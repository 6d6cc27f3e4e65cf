//! Access to memory of this process, by its real addresses.
//!
//! # Invariant
//! * HOST1 the bytes of the range given to [`HostAccess::new`] can be read and written as that function
//!   demands, for as long as the value lives.

use core::ptr::NonNull;

use crate::access::{MemoryAccess, Pattern};
use crate::error::AccessError;
use crate::stream::{StreamId, StreamPoint};
use crate::units::{Addr, AddrRange};

/// Access to memory of this process, at its own addresses. It is shared freely, without a lock.
///
/// The errors it helps to find, use after free and writes past an end, are undefined behaviour in the program: a
/// guard's report is a hint, and the absence of reports proves nothing.
#[derive(Clone, Copy, Debug)]
pub struct HostAccess {
    /// The first byte; pointers are derived from it by an offset.
    first: NonNull<u8>,
    range: AddrRange,
}

// SAFETY: it is an address and a length; HOST1 makes the memory accessible from every thread.
unsafe impl Send for HostAccess {}
// SAFETY: it is an address and a length; HOST1 makes the memory accessible from every thread.
unsafe impl Sync for HostAccess {}

impl HostAccess {
    /// Creates access to `bytes` bytes from `first`. `None` if `bytes` is 0 or the range passes the end of the
    /// address space.
    ///
    /// # Safety
    /// While the value or a copy of it is used, from any thread:
    /// * the bytes that a call names can be read and written through a pointer derived from `first`, and those that
    ///   it reads have been written before;
    /// * nothing else reads the bytes a call writes, or writes the bytes it names, at the same time, and no reference
    ///   to them is alive.
    ///
    /// Decorators name only bytes of blocks that they hold: new blocks, freed blocks and guards.
    pub unsafe fn new(first: NonNull<u8>, bytes: u64) -> Option<Self> {
        let range = AddrRange::new(Addr::new(first.addr().get() as u64), bytes)?;
        Some(Self { first, range })
    }

    /// Returns a pointer to the `bytes` bytes at `addr`.
    fn place(&self, addr: Addr, bytes: u64) -> Result<*mut u8, AccessError> {
        let offset = addr.get().checked_sub(self.range.start().get());
        let offset = offset.filter(|offset| {
            let end = offset.checked_add(bytes);
            end.is_some_and(|end| end <= self.range.bytes())
        });
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let offset = offset.ok_or(AccessError::OutOfRange)?;
        Ok(self.first.as_ptr().wrapping_add(offset))
    }
}

impl MemoryAccess for HostAccess {
    fn read(&self, _: StreamId, addr: Addr, into: &mut [u8]) -> Result<(), AccessError> {
        let from = self.place(addr, into.len() as u64)?;
        // SAFETY: HOST1 lets a call read the bytes it names, and `place` found all of them inside the range; `into`
        // is the caller's own and no reference to the range's bytes is alive, so the two do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&self, _: StreamId, addr: Addr, from: &[u8]) -> Result<(), AccessError> {
        let to = self.place(addr, from.len() as u64)?;
        // SAFETY: HOST1 lets a call write the bytes it names, and `place` found all of them inside the range; `from`
        // is the caller's own and does not overlap it.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    fn fill(&self, _: StreamId, range: AddrRange, pattern: Pattern) -> Result<(), AccessError> {
        let to = self.place(range.start(), range.bytes())?;
        let bytes = usize::try_from(range.bytes()).map_err(|_| AccessError::OutOfRange)?;
        for i in 0..bytes {
            // SAFETY: HOST1 lets a call write the bytes it names, and `place` found all of them inside the range.
            unsafe { to.wrapping_add(i).write(pattern.at(i as u64)) };
        }
        Ok(())
    }

    /// Does nothing: the host's own work is done when it returns.
    fn wait(&self, _: StreamId, _: StreamPoint) -> Result<(), AccessError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_writes_and_fills_inside_the_range_and_nowhere_else() {
        let mut memory = [0u8; 32];
        let first = NonNull::from(&mut memory).cast::<u8>();
        let start = first.addr().get() as u64;
        // SAFETY: the array lives longer than the access and is not touched beside it.
        let access = unsafe { HostAccess::new(first, 32) }.unwrap();
        let at = |offset| Addr::new(start + offset);
        let range = AddrRange::new(at(3), 7).unwrap();
        access
            .fill(StreamId::MAIN, range, Pattern::of_u32(0x0403_0201))
            .unwrap();
        access.write(StreamId::MAIN, at(31), &[9]).unwrap();
        let mut read = [0; 32];
        access.read(StreamId::MAIN, at(0), &mut read).unwrap();
        assert_eq!(read[..12], [0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 0, 0]);
        assert_eq!(read[31], 9);
        let outside = Err(AccessError::OutOfRange);
        assert_eq!(access.write(StreamId::MAIN, at(31), &[9, 9]), outside);
        assert_eq!(
            access.read(StreamId::MAIN, Addr::new(start - 1), &mut read[..1]),
            outside
        );
        assert_eq!(
            access.fill(
                StreamId::MAIN,
                AddrRange::new(at(32), 1).unwrap(),
                Pattern::of_u8(1)
            ),
            outside
        );
        assert_eq!(
            access.fill(
                StreamId::MAIN,
                AddrRange::new(at(1), u64::MAX - start - 2).unwrap(),
                Pattern::of_u8(1)
            ),
            outside
        );
    }
}
