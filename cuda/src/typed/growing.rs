//! [`GrowingBuffer`]: a vector in device memory that is never moved.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr};

use super::reserved::ReservedBuffer;
use crate::stream::pool::HostWait;
use crate::{BufferView, BufferViewMut, DeviceAllocError, DeviceAllocator, Loan};

/// A growing buffer commits a sixteenth more than it must, so that a long growth makes few calls for each value.
const AHEAD_DIVISOR: usize = 16;

/// Up to `max_len` values of type `T` at addresses that never change: a vector that grows and shrinks without a copy.
///
/// It is a [`ReservedBuffer`] of which the first part is committed. So captured graphs, kernels' arguments and views in
/// other libraries stay valid while it grows; what lies behind the [length](Self::len) must not be accessed.
///
/// ```no_run
/// # let context = larder_cuda::Context::new(0)?;
/// # let memory = larder_cuda::DeviceAllocator::new(&context)?;
/// # let stream = context.cudarc().new_stream()?;
/// let mut tokens = memory.growing::<u32>(&stream, 1 << 30)?;
/// // SAFETY: the new values are written below, before they are read.
/// unsafe { tokens.grow_to(&stream, 3) }?;
/// stream.memcpy_htod(&[7, 8, 9], &mut tokens.as_view_mut())?;
/// tokens.shrink_to(&stream, 1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GrowingBuffer<T> {
    reserved: ReservedBuffer<T>,
    len: usize,
    /// Number of committed units: the first ones.
    units: usize,
}

impl DeviceAllocator {
    /// Makes an empty buffer that can grow to `max_len` values; see [`GrowingBuffer`]. Makes no driver call.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve).
    pub fn growing<T: DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        max_len: usize,
    ) -> Result<GrowingBuffer<T>, DeviceAllocError> {
        Ok(GrowingBuffer {
            reserved: self.reserve(stream, max_len)?,
            len: 0,
            units: 0,
        })
    }
}

impl<T> GrowingBuffer<T> {
    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the largest length that the addresses have room for.
    pub const fn max_len(&self) -> usize {
        self.reserved.max_len()
    }

    /// Returns the bytes of memory behind the values, growth ahead included.
    pub fn committed_bytes(&self) -> u64 {
        self.reserved.committed_bytes()
    }

    /// Returns the loan of what is committed beyond a guarantee; by default all of the buffer is guaranteed.
    pub const fn loan(&self) -> &Loan {
        self.reserved.loan()
    }

    /// Returns the allocator of the buffer's memory.
    pub const fn allocator(&self) -> &DeviceAllocator {
        self.reserved.allocator()
    }

    /// Returns a view of all values.
    pub fn as_view(&self) -> BufferView<'_, T> {
        // SAFETY: cut to the length, behind which nothing is committed; the cut is in bounds.
        unsafe { self.reserved.whole() }.slice(..self.len)
    }

    /// Returns a view of all values, for writing.
    pub fn as_view_mut(&mut self) -> BufferViewMut<'_, T> {
        let len = self.len;
        // SAFETY: cut to the length, as above.
        let whole = unsafe { self.reserved.whole_mut() };
        whole.split_at_mut(len).0
    }

    /// Sets whether the contents can be made again; see [`ReservedBuffer::set_remakable`].
    pub fn set_remakable(&mut self, remakable: bool) {
        self.reserved.set_remakable(remakable);
    }

    /// Grows the buffer to `len` values for work that is queued on `stream` from now on; a smaller length changes
    /// nothing. The new values are undefined. The addresses and the present values stay, and nothing is copied.
    ///
    /// O(new units), with the driver calls of a [commit](ReservedBuffer::commit). A sixteenth of the present memory
    /// is committed beyond the length, if that needs no wait.
    ///
    /// # Safety
    /// The new values are written before they are read as values of `T`.
    ///
    /// # Errors
    /// The errors of [`commit`](ReservedBuffer::commit). Nothing has changed then.
    pub unsafe fn grow_to(
        &mut self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<(), DeviceAllocError> {
        if len <= self.len {
            return Ok(());
        }
        let needed = self.reserved.units_of_first(len)?;
        if needed > self.units {
            self.reserved
                .commit_units(stream, self.units..needed, HostWait::MayBlock)?;
            let ahead = (needed + self.units / AHEAD_DIVISOR).min(self.reserved.unit_count());
            self.units = needed;
            // Memory that is short is better used elsewhere.
            if self
                .reserved
                .commit_units(stream, needed..ahead, HostWait::HasFallback)
                .is_ok()
            {
                self.units = ahead;
            }
        }
        self.len = len;
        Ok(())
    }

    /// Shrinks the buffer to `len` values in the order of `stream`; a larger length changes nothing. Memory behind the
    /// values is idle memory of the allocator from now on. O(units freed); no driver call unless other streams
    /// have used the buffer.
    ///
    /// # Errors
    /// The errors of [`decommit`](ReservedBuffer::decommit). Nothing has changed then.
    pub fn shrink_to(
        &mut self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<(), DeviceAllocError> {
        let needed = self.reserved.units_of_first(len.min(self.len))?;
        if needed < self.units {
            self.reserved.decommit_units(stream, needed..self.units)?;
            self.units = needed;
        }
        self.len = self.len.min(len);
        Ok(())
    }
}

impl<T> fmt::Debug for GrowingBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrowingBuffer")
            .field("len", &self.len)
            .field("reserved", &self.reserved)
            .finish_non_exhaustive()
    }
}
