//! Pages of reserved addresses, committed and decommitted in the order of streams.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::pages::{AddressReservation, PagePool};
use larder_core::{AddrRange, Block, FreeError, Rejected, StreamId, StreamPoint};

use super::{HostWait, StreamPool, WantedBy};
use crate::{DeviceAllocError, VirtualMemory};

impl StreamPool<VirtualMemory, PagePool<'static>> {
    /// Commits whole pages of a reservation for work that is queued on a stream from now on. The steps are those of an
    /// allocation for which no held memory fits (`when_short`); the host, if it may wait, also does so while queued
    /// work uses memory that was mapped at these addresses before, because it cannot be unmapped earlier.
    #[cold]
    pub(crate) fn commit(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        reservation: &AddressReservation,
        range: AddrRange,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        if self.streams.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        self.begin_short();
        let driver = self.memory.context().driver();
        let grant = driver.relaxed_once(|| {
            self.poll_events(host);
            self.search(stream_id, host, || {
                self.shared().commit(reservation, range, stream_id)
            })
        })?;
        let Some(point) = grant.wait else {
            return Ok(grant.block);
        };
        let ordered = self
            .streams
            .order(stream, stream_id, point, WantedBy::Memory);
        if ordered == Ok(true) {
            return Ok(grant.block);
        }
        // The pages are decommitted unchanged, still in use by the other stream.
        let bytes = grant.block.bytes();
        self.shared().with(|locked| {
            let undone = locked.decommit(reservation, grant.block, Some(point));
            debug_assert!(undone.is_ok(), "pages that were committed above");
            self.streams.account(stream_id).withdrawn(bytes);
        });
        ordered?;
        Err(DeviceAllocError::Capturing)
    }

    /// Decommits pages that work may use up to a point.
    pub(crate) fn decommit(
        &self,
        reservation: &AddressReservation,
        block: Block,
        point: StreamPoint,
    ) -> Result<(), Rejected<FreeError>> {
        self.shared().with(|locked| {
            let bytes = block.bytes();
            locked.decommit(reservation, block, Some(point))?;
            self.streams.account(point.stream).freed(bytes);
            Ok(())
        })
    }
}
