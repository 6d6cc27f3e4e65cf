//! Reserved addresses of a device's allocator; [`ReservedBuffer`](crate::ReservedBuffer) is their typed form.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::pages::{AddressReservation, PagePool};
use larder_core::{AddrRange, Block, StreamId};

use super::device_pool::PagedStreamPool;
use super::{DeviceAllocError, DeviceAllocator, Shortage};
use crate::{DriverError, Loan};

impl DeviceAllocator {
    /// Reserves addresses for at least `bytes` bytes, in whole pages. Makes no driver call.
    ///
    /// # Errors
    /// If there are too few addresses; [`DriverError::Unsupported`] if memory comes in regions.
    pub(crate) fn reserve_addresses(
        &self,
        bytes: u64,
    ) -> Result<AddressReservation, DeviceAllocError> {
        let pages = self.reserved_pages()?;
        let reserved = pages
            .shared()
            .with(|locked| locked.reserve_addresses(bytes));
        reserved.map_err(|reason| DeviceAllocError::Memory {
            reason,
            driver: None,
        })
    }

    /// Returns the size of a page in bytes.
    pub(crate) fn page_bytes(&self) -> Result<u64, DeviceAllocError> {
        let shared = self.reserved_pages()?.shared();
        Ok(shared.with(|locked| locked.config().page_bytes))
    }

    fn reserved_pages(&self) -> Result<&PagedStreamPool, DeviceAllocError> {
        let unsupported = DriverError::Unsupported {
            what: "virtual memory, which reserved addresses need",
            device: self.context().ordinal(),
        };
        Ok(self.0.pool.pages().ok_or(unsupported)?)
    }

    /// Makes a loan of up to `max_bytes` bytes of this allocator's memory, in units of `unit_bytes`.
    pub(crate) fn new_loan(&self, max_bytes: u64, unit_bytes: u64) -> Loan {
        let device = self.context().device();
        Loan::new(self.0.pool.node(), device, max_bytes, unit_bytes)
    }

    /// Commits whole pages of a reservation for work that is queued on a stream from now on.
    pub(crate) fn commit_pages(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        reservation: &AddressReservation,
        range: AddrRange,
        short: Shortage,
    ) -> Result<Block, DeviceAllocError> {
        if self.refuses(stream_id) {
            return Err(DeviceAllocError::Asleep);
        }
        let pages = self.reserved_pages()?;
        let commit = || pages.commit(stream, stream_id, reservation, range, short.host);
        let committed = self.0.with_room(short, commit);
        self.0.pool.node().shared().notify();
        committed
    }

    /// Decommits pages in the order of a stream, after all work queued there so far.
    pub(crate) fn decommit_pages(
        &self,
        stream_id: StreamId,
        reservation: &AddressReservation,
        block: Block,
    ) {
        let Some(pages) = self.0.pool.pages() else {
            return;
        };
        let bytes = block.bytes();
        let point = pages.streams.point(stream_id);
        let freed = pages.decommit(reservation, block, point);
        debug_assert!(freed.is_ok(), "pages of this reservation");
        self.0.came_back_on(stream_id, bytes);
    }

    /// Frees reserved addresses whose pages are all decommitted.
    pub(crate) fn free_addresses(&self, reservation: AddressReservation) {
        if let Some(pages) = self.0.pool.pages() {
            let shared = pages.shared();
            let freed = shared.with(|locked: &mut PagePool<'_>| locked.free_addresses(reservation));
            drop(freed);
        }
    }
}
