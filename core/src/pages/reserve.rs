//! Reserved addresses: whole pages that belong to one owner, who decides which of them have memory.
//!
//! *Committing* pages places a block there, as at any given place: cached mappings are reused, idle pages move there,
//! or new ones are created. *Decommitting* frees the block; its pages are idle memory like any other, although their
//! addresses stay reserved.

use super::plan::PagePlan;
use super::{Link, PagePool};
use crate::block::{Block, Request};
use crate::engine::{Candidate, LOOKS, Need, Reservation, ReservedPlace};
use crate::error::{AllocError, Cause, FreeError, Rejected};
use crate::stream::{StreamId, StreamPoint};
use crate::units::AddrRange;

/// Whole pages of addresses of a [`PagePool`] that belong to its holder until
/// [`free_addresses`](PagePool::free_addresses); [`PageAttempt::commit`](super::PageAttempt::commit) puts memory behind
/// them.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "dropped addresses stay reserved"]
pub struct AddressReservation(pub(super) Reservation);

impl AddressReservation {
    /// Returns the addresses.
    pub const fn range(&self) -> AddrRange {
        self.0.range
    }
}

impl PagePool<'_> {
    /// Reserves addresses for at least `bytes` bytes, in whole pages, without memory. They count neither as live nor as
    /// held. O(pages), and at most 1,024 looks for addresses that were freed.
    ///
    /// # Errors
    /// If `bytes` is 0, there are too few addresses, or the table of chunks is full.
    pub fn reserve_addresses(&mut self, bytes: u64) -> Result<AddressReservation, AllocError> {
        let page_bytes = self.config.page_bytes;
        let whole = bytes.checked_next_multiple_of(page_bytes);
        let request = Request::new(whole.ok_or(AllocError::TooLarge {
            requested_bytes: bytes,
        })?);
        let need = self.chunks.need(&request)?;
        let Some(found) = self.find_addresses(need.size) else {
            return Err(self.out_of_memory(need, &request, Cause::Addresses));
        };
        let start = self.chunks.chunk(found.link).start + found.padding;
        let target = start..start + need.size;
        let cut = self.chunks.cut_target(found.link, target.clone(), target);
        let (link, _) = cut.ok_or_else(|| self.chunks.table_full())?;
        Ok(AddressReservation(self.chunks.reserve(link)))
    }

    /// Returns a place for this many granules from the start of a page on, which has no mapping, so that no queued work
    /// uses it: in a free chunk, or else at the end of the range, which grows. (A place with memory might divide a
    /// handle, which would then be idle in neither part.)
    fn find_addresses(&mut self, size: u32) -> Option<Candidate> {
        let mut looks = LOOKS;
        let listed = self.chunks.listed_from(size).take(LOOKS as usize);
        let found = listed
            .chain([self.chunks.wilderness()])
            .filter(|link| self.chunks.chunk(*link).is_hollow())
            .find_map(|link| self.find_unmapped(link, size, &mut looks));
        if found.is_some() {
            return found;
        }
        let (end, last) = (self.end(), self.chunks.newest_end());
        let mut page = end.div_ceil(self.page);
        if self.chunks.chunk(last).is_free() && self.is_usable(last, None) {
            let first = self.chunks.chunk(last).start.div_ceil(self.page);
            while page > first && !self.pages.at(page - 1).is_some() {
                page -= 1;
            }
        }
        let start = page.checked_mul(self.page)?;
        self.grow_range_to(start.checked_add(size)?)?;
        let link = self.chunks.newest_end();
        let padding = start.checked_sub(self.chunks.chunk(link).start)?;
        Some(Candidate {
            link,
            padding,
            wait: None,
        })
    }

    /// Returns the first place in a free chunk, from the start of a page on, without a mapping.
    fn find_unmapped(&self, link: Link, size: u32, looks: &mut u32) -> Option<Candidate> {
        let chunk = self.chunks.chunk(link);
        let (mut page, behind) = (chunk.start.div_ceil(self.page), chunk.end() / self.page);
        let pages = size / self.page;
        while behind.saturating_sub(page) >= pages && *looks > 0 {
            *looks -= 1;
            let next = self.pages.next_mapped(page, page + pages);
            if next == page + pages {
                return Some(Candidate {
                    link,
                    padding: page * self.page - chunk.start,
                    wait: None,
                });
            }
            page = self.pages.end(self.pages.at(next)).max(next + 1);
        }
        None
    }

    /// Frees the block of committed pages, whose addresses stay reserved; with a point, queued work may use the memory
    /// until then. O(1), amortised as a free is.
    ///
    /// # Errors
    /// Returns the block if it is not one of this reservation's, or for the reasons of
    /// [`free_after`](crate::BestFit::free_after); nothing has changed then.
    pub fn decommit(
        &mut self,
        reservation: &AddressReservation,
        block: Block,
        point: Option<StreamPoint>,
    ) -> Result<(), Rejected<FreeError>> {
        let bytes = block.bytes();
        self.chunks.free_reserved(&reservation.0, block, point)?;
        self.freed_bytes = self.freed_bytes.saturating_add(bytes);
        Ok(())
    }

    /// Frees reserved addresses, and the idle memory there, for all requests. O(blocks + decommitted pieces of the
    /// reservation), amortised as a free is.
    ///
    /// # Errors
    /// Returns the reservation if it is not one of this pool's, or if pages of it are committed; nothing has changed
    /// then.
    pub fn free_addresses(
        &mut self,
        reservation: AddressReservation,
    ) -> Result<(), AddressReservation> {
        self.chunks
            .free_addresses(&reservation.0)
            .ok_or(reservation)
    }

    /// Returns the reserved chunk that holds whole pages of a reservation. O(chunks of the reservation).
    pub(super) fn find_reserved(
        &mut self,
        reservation: &Reservation,
        pages: AddrRange,
        stream: StreamId,
    ) -> ReservedPlace {
        let base = reservation.range.start().get();
        let is_whole = |bytes: u64| bytes.is_multiple_of(self.config.page_bytes);
        let offset = pages.start().get().checked_sub(base);
        if !offset.is_some_and(is_whole) || !is_whole(pages.bytes()) {
            return ReservedPlace::NotReserved;
        }
        match self.chunks.granule().count_up(pages.bytes()) {
            Some(size) => self.chunks.find_reserved(reservation, pages, size, stream),
            None => ReservedPlace::NotReserved,
        }
    }

    /// Takes whole pages out of a reserved chunk for the plan.
    pub(super) fn take_reserved(
        &mut self,
        plan: &mut PagePlan,
        found: &Candidate,
        need: Need,
    ) -> Option<()> {
        let chunk = *self.chunks.chunk(found.link);
        let start = chunk.start + found.padding;
        let target = self
            .chunks
            .cut_reserved(found.link, start..start + need.size)?;
        (plan.target, plan.block) = (target, target);
        plan.behind = start + need.size;
        plan.point = chunk.point();
        plan.wait = found.wait;
        plan.reserved = true;
        Some(())
    }
}
