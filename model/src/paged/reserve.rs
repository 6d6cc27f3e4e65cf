//! Reserved addresses: they are reserved, committed, decommitted and freed.

use larder_core::pages::{AddressReservation, PageAttempt};
use larder_core::{
    Addr, AddrRange, AllocError, BestFit, Block, ChunkInfo, ChunkState, EventNumber, Request,
    StreamId, StreamPoint,
};

use super::Run;

/// Reserved addresses, and the blocks of the committed ones.
pub(super) struct Reserved {
    pub(super) reservation: AddressReservation,
    pub(super) blocks: Vec<(Block, StreamId)>,
}

impl Run<'_, '_> {
    pub(super) fn reserve(&mut self, pages: u64) -> Result<(), String> {
        let held = self.device.held_bytes();
        let bytes = pages * self.config.page_bytes - u64::from(pages > 0);
        match self.paged.get_mut().reserve_addresses(bytes) {
            Ok(reservation) => {
                let range = reservation.range();
                let taken = self.live.iter().map(|live| live.block.range());
                let others = self.reserved.iter().map(|other| other.reservation.range());
                let overlaps = taken.chain(others).any(|other| other.overlaps(range));
                self.reserved.push(Reserved {
                    reservation,
                    blocks: Vec::new(),
                });
                let is_whole = range.bytes() == pages * self.config.page_bytes;
                if overlaps || !is_whole || self.device.held_bytes() != held {
                    return Err(format!("{range:?} is reserved for {pages} pages"));
                }
                Ok(())
            }
            Err(AllocError::ZeroSize) if pages == 0 => Ok(()),
            Err(error) => self.failed(&error),
        }
    }

    pub(super) fn commit(
        &mut self,
        which: usize,
        first: u8,
        pages: u8,
        stream: u8,
    ) -> Result<(), String> {
        if self.reserved.is_empty() {
            return Ok(());
        }
        let reserved = &self.reserved[which % self.reserved.len()];
        let range = reserved.reservation.range();
        let page = self.config.page_bytes;
        let first = u64::from(first) % (range.bytes() / page);
        let pages = 1 + u64::from(pages) % (range.bytes() / page - first);
        let start = Addr::new(range.start().get() + first * page);
        let place = AddrRange::new(start, pages * page).expect("inside");
        let stream = StreamId::new(stream % self.streams_used as u8);
        self.advance(
            PageAttempt::commit(&reserved.reservation, place, stream),
            true,
        )
    }

    /// Notes the block of committed pages.
    pub(super) fn committed(&mut self, block: Block, request: &Request) -> Result<(), String> {
        let range = block.range();
        self.device.begin_use(range, request.stream);
        let mut reserved = self.reserved.iter_mut();
        let owner = reserved.find(|reserved| reserved.reservation.range().contains(range));
        let owner = owner.ok_or_else(|| format!("{range:?} is not reserved"))?;
        owner.blocks.push((block, request.stream));
        if range.bytes() == request.bytes {
            Ok(())
        } else {
            Err(format!("{range:?} for {request:?}"))
        }
    }

    pub(super) fn decommit(&mut self, which: usize, block: usize) -> Result<(), String> {
        let count = self.reserved.len().max(1);
        let Some(reserved) = self.reserved.get_mut(which % count) else {
            return Ok(());
        };
        if reserved.blocks.is_empty() {
            return Ok(());
        }
        let (committed, stream) = reserved.blocks.swap_remove(block % reserved.blocks.len());
        let (newest, completed) = &mut self.streams[usize::from(stream.number())];
        *newest += (block % 2) as u64;
        let event = EventNumber::new(*newest);
        let point = StreamPoint { stream, event };
        let pending = (newest > completed).then_some(point);
        self.device.end_use(committed.range(), pending);
        let pool = self.paged.get_mut();
        let freed = pool.decommit(&reserved.reservation, committed, Some(point));
        freed.map_err(|rejected| rejected.error.to_string())
    }

    /// Frees reserved addresses, unless some of them are committed or being committed.
    pub(super) fn free_addresses(&mut self, which: usize) -> Result<(), String> {
        if self.reserved.is_empty() {
            return Ok(());
        }
        let which = which % self.reserved.len();
        let Reserved {
            reservation,
            blocks,
        } = self.reserved.swap_remove(which);
        match self.paged.get_mut().free_addresses(reservation) {
            Ok(()) if blocks.is_empty() => Ok(()),
            Ok(()) => Err("committed addresses were freed".into()),
            Err(reservation) => {
                self.reserved.push(Reserved {
                    reservation,
                    blocks,
                });
                Ok(())
            }
        }
    }

    /// Checks that each reserved chunk is of one reservation.
    pub(super) fn check_reserved(&mut self) -> Result<(), String> {
        let (reserved, mut stray) = (&self.reserved, None);
        let mut check = |chunk: ChunkInfo| {
            let owns = |reserved: &Reserved| reserved.reservation.range().contains(chunk.range);
            let is_reserved = matches!(chunk.state, ChunkState::Reserved { .. });
            if is_reserved && !reserved.iter().any(owns) {
                stray = Some(chunk.range);
            }
            stray.is_none()
        };
        let start = self.config.addresses.start();
        let pool = self.paged.get_mut();
        pool.chunks_from(start, None, &mut check);
        stray.map_or(Ok(()), |range| {
            Err(format!("{range:?} is not of one reservation"))
        })
    }
}
