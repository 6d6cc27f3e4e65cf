//! [`ReservedBuffer`]: values at addresses that never change, with memory behind the committed parts only.
//!
//! RESBUF1 a unit has a block exactly if it has uses. A unit is whole pages, so no other buffer's memory lies in it.
//!
//! RESBUF2 a unit is decommitted in the order of a stream that comes after all uses of the buffer so far.

use core::fmt;
use core::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr};
use larder_core::pages::AddressReservation;
use larder_core::{Addr, AddrRange, AllocError, Block};

use super::buffer::{bytes_of, check_align};
use crate::device::Shortage;
use crate::stream::pool::HostWait;
use crate::{BufferView, BufferViewMut, DeviceAllocError, DeviceAllocator, DeviceBuffer, Loan};
#[cfg(unix)]
use crate::{ExportError, ExportedBlock};

/// Maximum number of units of a buffer: the bound on the driver calls and on the bookkeeping of one commit.
const MAX_UNITS: u64 = 1024;

/// Addresses for up to `max_len` values of type `T`, of which only the *committed* parts have memory.
///
/// The addresses never change: captured graphs, views in other libraries and kernel arguments stay valid while the
/// buffer grows and shrinks, and nothing is copied. Memory is committed in *units* of whole pages: 1/1,024 of the
/// buffer, at least a page. A decommitted unit is idle memory of the allocator at once, for its blocks, its steps and
/// other buffers; a commit takes their idle memory when memory is short, or when that saves driver calls. Committed
/// memory counts against limits and budgets, as the memory of blocks does. Reserved addresses do not.
///
/// ```no_run
/// # let context = larder_cuda::Context::new(0)?;
/// # let memory = larder_cuda::DeviceAllocator::new(&context)?;
/// # let stream = context.cudarc().new_stream()?;
/// let mut cache = memory.reserve::<f32>(&stream, 8 << 30)?;
/// // SAFETY: the values are written below, before they are read.
/// unsafe { cache.commit(&stream, 0..1 << 20) }?;
/// stream.memset_zeros(&mut cache.get_mut(0..1 << 20).unwrap())?;
/// cache.decommit(&stream, 0..1 << 20)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Streams
/// Uses of views are ordered like those of a [`DeviceBuffer`]. Committed memory is ready for work queued on the
/// stream of the commit. A decommit comes after all uses of the buffer so far: its stream waits for the other streams,
/// on the device. Launches of graphs are not tracked: the program orders them, and must not launch a graph that uses
/// decommitted parts.
///
/// # Asleep
/// While the allocator [sleeps](DeviceAllocator::sleep), commits are refused, and decommits are accepted. Committed
/// units are copied to the host unless the buffer is [remakable](Self::set_remakable); all addresses stay.
pub struct ReservedBuffer<T> {
    /// A buffer over all of the addresses, without a block.
    buffer: DeviceBuffer<T>,
    /// Taken out in `drop`; `None` for no bytes.
    reservation: Option<AddressReservation>,
    unit_bytes: u64,
    units: Vec<Unit>,
    loan: Loan,
    is_remakable: bool,
}

/// Some pages of a reservation.
#[derive(Default)]
struct Unit {
    /// Number of commits that have not been undone.
    uses: u32,
    block: Option<Block>,
}

impl DeviceAllocator {
    /// Reserves addresses for `max_len` values, without memory; see [`ReservedBuffer`]. Makes no driver call. Dropping
    /// the buffer decommits all of it in the order of `stream`, after all uses.
    ///
    /// # Errors
    /// If the allocator has too few [addresses](crate::DeviceConfig::address_bytes), and with [`AllocError::TooLarge`]
    /// inside if the size overflows. [`DriverError::Unsupported`](crate::DriverError::Unsupported) inside if memory
    /// comes in [regions](crate::DeviceBacking::Regions).
    pub fn reserve<T: DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        max_len: usize,
    ) -> Result<ReservedBuffer<T>, DeviceAllocError> {
        check_align::<T>();
        let page_bytes = self.page_bytes()?;
        let bytes = bytes_of::<T>(max_len)?;
        let reservation = match bytes {
            0 => None,
            bytes => Some(self.reserve_addresses(bytes)?),
        };
        let range = reservation.as_ref().map(AddressReservation::range);
        let whole_bytes = range.map_or(0, AddrRange::bytes);
        let pages = whole_bytes / page_bytes;
        let unit_bytes = pages.div_ceil(MAX_UNITS).max(1) * page_bytes;
        let address = range.map_or(0, |range| range.start().get());
        // SAFETY: RESBUF1: the addresses are reserved until the buffer is dropped, views are given of committed parts
        // only, and the committer has promised to write the values before they are read.
        let buffer = unsafe { DeviceBuffer::of_parts(self, stream, address, max_len, None) };
        let buffer = match buffer {
            Ok(buffer) => buffer,
            Err(error) => {
                reservation
                    .into_iter()
                    .for_each(|range| self.free_addresses(range));
                return Err(error);
            }
        };
        let units = whole_bytes.div_ceil(unit_bytes);
        Ok(ReservedBuffer {
            buffer,
            reservation,
            unit_bytes,
            units: (0..units).map(|_| Unit::default()).collect(),
            loan: self.new_loan(whole_bytes, unit_bytes),
            is_remakable: false,
        })
    }
}

impl<T> ReservedBuffer<T> {
    /// Returns the number of values that the addresses have room for.
    pub const fn max_len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the address of the first value, which never changes; 0 for a buffer of no bytes. Work to which it is
    /// passed accesses committed values only, and the program orders it: it is not noted as a use.
    pub fn address(&self) -> u64 {
        let reservation = self.reservation.as_ref();
        reservation.map_or(0, |own| own.range().start().get())
    }

    /// Returns the stream in whose order the memory is decommitted when the buffer is dropped.
    pub const fn stream(&self) -> &Arc<CudaStream> {
        self.buffer.stream()
    }

    /// Returns the allocator of the buffer's memory.
    pub const fn allocator(&self) -> &DeviceAllocator {
        self.buffer.allocator()
    }

    /// Returns the size of a unit in bytes: commits and decommits are rounded to units.
    pub const fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Returns the bytes of the committed units. O(units).
    pub fn committed_bytes(&self) -> u64 {
        let blocks = self.units.iter().filter_map(|unit| unit.block.as_ref());
        blocks.map(Block::bytes).sum()
    }

    /// Returns the loan of what is committed beyond a guarantee; by default all of it is guaranteed.
    pub const fn loan(&self) -> &Loan {
        &self.loan
    }

    /// Returns whether all values of a range are committed; `false` if it is out of bounds. O(units of the range).
    pub fn is_committed(&self, range: Range<usize>) -> bool {
        let units = self.units_of(&range);
        units.is_some_and(|units| self.units[units].iter().all(|unit| unit.uses > 0))
    }

    /// Returns a view of committed values; `None` if some value of the range is not committed.
    pub fn get(&self, range: Range<usize>) -> Option<BufferView<'_, T>> {
        match self.is_committed(range.clone()) {
            true => self.buffer.try_slice(range),
            false => None,
        }
    }

    /// Returns a view of committed values, for writing; `None` if some value of the range is not committed.
    pub fn get_mut(&mut self, range: Range<usize>) -> Option<BufferViewMut<'_, T>> {
        match self.is_committed(range.clone()) {
            true => self.buffer.try_slice_mut(range),
            false => None,
        }
    }

    /// Returns a view of all values, committed or not, for kernels that take the first address and use committed
    /// parts only.
    ///
    /// # Safety
    /// Work to which the view is passed accesses committed values only.
    pub unsafe fn whole(&self) -> BufferView<'_, T> {
        self.buffer.as_view()
    }

    /// Returns a view of all values, committed or not, for writing.
    ///
    /// # Safety
    /// Work to which the view is passed accesses committed values only.
    pub unsafe fn whole_mut(&mut self) -> BufferViewMut<'_, T> {
        self.buffer.as_view_mut()
    }

    /// Sets whether the contents can be made again: whether [sleep](DeviceAllocator::sleep) need not copy them, and
    /// leaves them undefined.
    pub fn set_remakable(&mut self, remakable: bool) {
        self.is_remakable = remakable;
        let blocks = self.units.iter().filter_map(|unit| unit.block.as_ref());
        for block in blocks {
            mark(self.buffer.allocator(), block, remakable);
        }
    }

    /// Commits a range of values for work that is queued on `stream` from now on: puts memory behind all units that it
    /// touches. The contents of new units are undefined. Each commit of a unit is counted, so that neighbours can
    /// share it: it keeps its memory until every commit has been [undone](Self::decommit).
    ///
    /// O(units of the range), and one driver call, which [checks for a capture](crate::DeviceConfig::check_captures).
    /// For each unit without memory: no further call if its memory of before is still idle; one
    /// to map and one to set access if idle memory of the allocator moves there; one more if it is created. The host
    /// waits only if memory is short, as in [`alloc`](DeviceAllocator::alloc), or if queued work still uses the memory
    /// that was mapped there before.
    ///
    /// # Safety
    /// The values are written before they are read as values of `T`.
    ///
    /// # Errors
    /// The errors of [`alloc`](DeviceAllocator::alloc), with [`AllocError::TooLarge`] inside if the range is out of
    /// bounds. Nothing has changed then.
    pub unsafe fn commit(
        &mut self,
        stream: &Arc<CudaStream>,
        range: Range<usize>,
    ) -> Result<(), DeviceAllocError> {
        let units = self.units_of(&range);
        let units = units.ok_or_else(|| out_of_bounds::<T>(range.end))?;
        self.commit_units(stream, units, HostWait::MayBlock)
    }

    /// Undoes a commit of a range of values, in the order of `stream`: units that no other commit holds are idle memory
    /// of the allocator from now on, which other streams use once the work that is queued so far is done. O(units of
    /// the range); no driver call unless other streams have used the buffer.
    ///
    /// # Errors
    /// [`DeviceAllocError::NotCommitted`] if the range is out of bounds or not wholly committed,
    /// [`DeviceAllocError::Capturing`] if the stream is being captured, and if the stream cannot be added to the
    /// allocator or the driver refuses. Nothing has changed then.
    pub fn decommit(
        &mut self,
        stream: &Arc<CudaStream>,
        range: Range<usize>,
    ) -> Result<(), DeviceAllocError> {
        let units = self.units_of(&range);
        self.decommit_units(stream, units.ok_or(DeviceAllocError::NotCommitted)?)
    }

    /// Exports committed values to other processes: one [`ExportedBlock`] for each unit that the range touches, in the
    /// order of their addresses. The memory of an exported unit stays in place while the export exists, even if the
    /// unit is decommitted. Costs as much as an [export](DeviceAllocator::export) of a block for each unit.
    ///
    /// # Errors
    /// [`ExportError::Unknown`] if a part of the range is not committed; otherwise those of
    /// [`export`](DeviceAllocator::export). Nothing is exported then.
    #[cfg(unix)]
    pub fn export(&self, range: Range<usize>) -> Result<Vec<ExportedBlock>, ExportError> {
        let units = self.units_of(&range).ok_or(ExportError::Unknown)?;
        let export = |unit: &Unit| {
            let block = unit.block.as_ref().ok_or(ExportError::Unknown)?;
            self.allocator().export(block)
        };
        self.units[units].iter().map(export).collect()
    }

    /// Commits units, or changes nothing.
    pub(super) fn commit_units(
        &mut self,
        stream: &Arc<CudaStream>,
        units: Range<usize>,
        host: HostWait,
    ) -> Result<(), DeviceAllocError> {
        self.allocator().refuse_capture(stream)?;
        let is_new = |unit: &Unit| unit.uses == 0;
        let among = self.units.get(units.clone()).unwrap_or_default();
        let mut new_units = among.iter().filter(|unit| is_new(unit)).count() as u64;
        for index in units.clone() {
            if self.units.get(index).is_some_and(is_new) {
                new_units -= 1;
            }
            let more_bytes = new_units * self.unit_bytes;
            if let Err(error) = self.commit_unit(stream, index, more_bytes, host) {
                self.release_units(stream, units.start..index);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Undoes a commit of units, or changes nothing.
    pub(super) fn decommit_units(
        &mut self,
        stream: &Arc<CudaStream>,
        units: Range<usize>,
    ) -> Result<(), DeviceAllocError> {
        let are_committed = |units: &[Unit]| units.iter().all(|unit| unit.uses > 0);
        if !self.units.get(units.clone()).is_some_and(are_committed) {
            return Err(DeviceAllocError::NotCommitted);
        }
        if self.allocator().captures(stream) {
            return Err(DeviceAllocError::Capturing);
        }
        self.allocator().known_streams().id(stream)?;
        // RESBUF2. Asleep, no work is left that uses the buffer, and none may be queued.
        match self.order(stream) {
            Ok(()) | Err(DeviceAllocError::Asleep) => {}
            Err(error) => return Err(error),
        }
        self.release_units(stream, units);
        Ok(())
    }

    /// Makes a stream wait for all uses of the buffer so far.
    pub(super) fn order(&self, stream: &Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        self.buffer.order_stream(stream)
    }

    /// Returns the number of units.
    pub(super) const fn unit_count(&self) -> usize {
        self.units.len()
    }

    /// Returns the number of units that the first `len` values touch.
    pub(super) fn units_of_first(&self, len: usize) -> Result<usize, DeviceAllocError> {
        let units = self.units_of(&(0..len));
        units.map_or_else(|| Err(out_of_bounds::<T>(len)), |units| Ok(units.end))
    }

    /// Returns the units that a range of values touches; `None` if it is out of bounds.
    pub(super) fn units_of(&self, range: &Range<usize>) -> Option<Range<usize>> {
        if range.end > self.max_len() {
            return None;
        }
        let bytes = |len: usize| len as u64 * size_of::<T>() as u64;
        let (start, end) = (bytes(range.start), bytes(range.end));
        if start >= end {
            return Some(0..0);
        }
        let first = start / self.unit_bytes;
        Some(first as usize..end.div_ceil(self.unit_bytes) as usize)
    }

    /// Counts a use of a unit, and puts memory behind it if it was the first use. The caller needs `more_bytes` next.
    fn commit_unit(
        &mut self,
        stream: &Arc<CudaStream>,
        index: usize,
        more_bytes: u64,
        host: HostWait,
    ) -> Result<(), DeviceAllocError> {
        let memory = self.buffer.allocator();
        let is_new = self.units.get(index).is_some_and(|unit| unit.uses == 0);
        if is_new && let Some(reservation) = &self.reservation {
            let whole = reservation.range();
            let offset = index as u64 * self.unit_bytes;
            let bytes = self.unit_bytes.min(whole.bytes() - offset);
            let range = AddrRange::new(Addr::new(whole.start().get() + offset), bytes);
            let Some(range) = range else { return Ok(()) };
            let stream_id = memory.known_streams().id(stream)?;
            let counted = self.loan.commit(range.bytes())?;
            let short = Shortage {
                host,
                more_bytes: more_bytes.min(self.loan.unused_bytes()),
                claimant: (!counted.is_lent).then(|| self.loan.claimant()),
            };
            let block = memory.commit_pages(stream, stream_id, reservation, range, short)?;
            counted.keep();
            if self.is_remakable {
                mark(memory, &block, true);
            }
            self.units[index].block = Some(block);
            self.buffer.is_ready_on(stream_id);
        }
        if let Some(unit) = self.units.get_mut(index) {
            unit.uses = unit.uses.saturating_add(1);
        }
        Ok(())
    }

    /// Undoes one use of each of these units in the order of a stream that comes after their uses.
    pub(super) fn release_units(&mut self, stream: &Arc<CudaStream>, units: Range<usize>) {
        let memory = self.buffer.allocator();
        let (Ok(stream_id), Some(reservation)) =
            (memory.known_streams().id(stream), &self.reservation)
        else {
            // Every unit was committed on this stream, or ordered before it: it has a number.
            return;
        };
        for unit in self.units.get_mut(units).into_iter().flatten() {
            unit.uses = unit.uses.saturating_sub(1);
            if unit.uses == 0
                && let Some(block) = unit.block.take()
            {
                let bytes = block.bytes();
                memory.decommit_pages(stream_id, reservation, block);
                self.loan.decommit(bytes);
            }
        }
    }
}

/// Returns the error of a length beyond that of the addresses.
fn out_of_bounds<T>(len: usize) -> DeviceAllocError {
    let requested_bytes = len.saturating_mul(size_of::<T>()) as u64;
    DeviceAllocError::Memory {
        reason: AllocError::TooLarge { requested_bytes },
        driver: None,
    }
}

/// Sets whether a committed block is remakable.
fn mark(memory: &DeviceAllocator, block: &Block, remakable: bool) {
    let marked = memory.set_remakable(block, remakable);
    debug_assert!(marked.is_ok(), "a block of this allocator");
}

impl<T> Drop for ReservedBuffer<T> {
    fn drop(&mut self) {
        let memory = self.buffer.allocator().clone();
        if self.units.iter().any(|unit| unit.uses > 0) {
            let stream = self.buffer.stream().clone();
            if self.buffer.order_own_stream().is_err() && memory.synchronize().is_err() {
                // It is unknown when the last use ends, so the memory is leaked until the allocator is dropped.
                return;
            }
            for unit in &mut self.units {
                unit.uses = unit.uses.min(1);
            }
            self.release_units(&stream, 0..self.units.len());
        }
        if let Some(reservation) = self.reservation.take() {
            memory.free_addresses(reservation);
        }
    }
}

impl<T> fmt::Debug for ReservedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedBuffer")
            .field("max_len", &self.max_len())
            .field("committed_bytes", &self.committed_bytes())
            .finish_non_exhaustive()
    }
}
