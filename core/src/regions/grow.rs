//! Growing: how much to request from the sub-allocator, and adding the range that it grants.
//!
//! No lock is held during the request, so the requested bytes count against the limit from the moment a [`GrowTicket`]
//! is issued until it is committed or aborted (BFC7). A limit that is lowered meanwhile takes effect: the commit is
//! then refused and the range is released.

use super::RegionPool;
use super::config::Growth;
use crate::block::{AllocatorId, Request};
use crate::engine::{MAX_REGIONS, Need, RegionId};
use crate::error::{Cause, RegionError, Rejected};
use crate::sub_allocator::GrowRequest;
use crate::units::{Addr, AddrRange, Align};

/// Permission to request memory from the sub-allocator. The bytes already count against the limit.
///
/// It ends with [`RegionPool::commit`], [`RegionPool::abort`] or [`RegionPool::retry_smaller`]; a ticket that is
/// dropped keeps its share of the limit forever.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the ticket's bytes count against the limit until it is committed or aborted"]
pub struct GrowTicket {
    bytes: u64,
    least_bytes: u64,
    align: Align,
    at: Option<Addr>,
    /// Whether the request relies on the free end of the newest region.
    with_end: bool,
    /// The allocator that issued it.
    owner: AllocatorId,
}

/// Number of regions up to which growth is not scattered. If there are more, the sub-allocator does not extend one
/// range. Each growth is then at least a share of the held bytes, so that memory runs out before the region table does
/// (the remaining regions multiply the held bytes by more than 10^12).
const SCATTERED_REGIONS: usize = 8;
/// The divisor of scattered growth: an eighth of the held bytes.
const SCATTERED_DIVISOR: u64 = 8;

/// The reason why no ticket can be issued.
pub(super) enum GrowthBar {
    /// The chunk table has no record for another region.
    Table,
    /// The request, rounded up to the growth unit, is larger than any region can be.
    TooLarge,
    /// Memory is short, or growth is not allowed.
    Memory(Cause),
}

impl GrowTicket {
    /// Returns the request to the sub-allocator.
    pub const fn request(&self) -> GrowRequest {
        GrowRequest {
            bytes: self.bytes,
            align: self.align,
            at: self.at,
        }
    }

    /// Returns the bytes to request.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the minimum number of bytes that would serve the request for which the ticket was issued.
    pub const fn least_bytes(&self) -> u64 {
        self.least_bytes
    }
}

impl RegionPool<'_> {
    /// Decides how much memory to request for an allocation, or returns the reason why no request would serve it.
    ///
    /// With `with_end`, the growth may rely on the free end of the newest region. An allocation tries that only once.
    /// If it did not help, because the range was not adjacent or another thread was faster, the whole size is
    /// requested.
    pub(super) fn plan_growth(
        &mut self,
        need: Need,
        request: &Request,
        with_end: bool,
    ) -> Result<GrowTicket, GrowthBar> {
        if self.chunks.vacant_records() <= self.tickets {
            return Err(GrowthBar::Table);
        }
        if self.chunks.region_count() == MAX_REGIONS {
            return Err(GrowthBar::Memory(Cause::Regions));
        }
        if let Growth::Fixed = self.config.growth {
            return Err(GrowthBar::Memory(Cause::Fixed));
        }
        let end_bytes = if with_end {
            self.usable_end_bytes(need, request)
        } else {
            0
        };
        let least_bytes = self
            .least_growth(need, end_bytes)
            .ok_or(GrowthBar::TooLarge)?;
        if least_bytes > self.chunks.available_bytes(0) {
            return Err(GrowthBar::Memory(Cause::Limit));
        }
        let bytes = self.growth_above(least_bytes);
        Ok(GrowTicket {
            with_end: end_bytes > 0,
            ..self.issue(bytes, least_bytes)
        })
    }

    /// Issues a ticket, whose bytes count from then on.
    pub(super) fn issue(&mut self, bytes: u64, least_bytes: u64) -> GrowTicket {
        let at = match self.config.growth {
            Growth::Range { .. } => self.chunks.next_address(),
            Growth::Fixed => None,
        };
        self.chunks.depart(bytes);
        self.tickets += 1;
        GrowTicket {
            bytes,
            least_bytes,
            align: self.chunks.granule().align(),
            at,
            with_end: false,
            owner: self.chunks.id(),
        }
    }

    /// Returns the minimum growth that serves a request for which `end_bytes` are already free at the end, or `None` if
    /// no region can be that large.
    pub(super) fn least_growth(&self, need: Need, end_bytes: u64) -> Option<u64> {
        let whole = self.chunks.granule().bytes_of(need.size) + self.aligning_bytes(need);
        let missing = whole.saturating_sub(end_bytes).max(1);
        let least = match self.config.growth {
            // A unit need not be a power of two.
            Growth::Range { unit_bytes, .. } => {
                missing.div_ceil(unit_bytes).checked_mul(unit_bytes)?
            }
            Growth::Fixed => missing,
        };
        (least <= self.chunks.granule().bytes_of(u32::MAX)).then_some(least)
    }

    /// Returns the bytes to request when at least `least_bytes` are needed and available.
    pub(super) fn growth_above(&self, least_bytes: u64) -> u64 {
        let region_max = self.chunks.granule().bytes_of(u32::MAX);
        let max = self.chunks.available_bytes(0).min(region_max);
        match self.config.growth {
            // Grow ahead by a share of the held bytes, in units.
            Growth::Range {
                unit_bytes,
                ahead_divisor,
            } => {
                let ahead =
                    ahead_divisor.map_or(0, |d| self.chunks.reserved_bytes() / u64::from(d.get()));
                let ahead = if self.chunks.region_count() > SCATTERED_REGIONS {
                    ahead.max(self.chunks.reserved_bytes() / SCATTERED_DIVISOR)
                } else {
                    ahead
                };
                let wanted = ahead.div_ceil(unit_bytes).saturating_mul(unit_bytes);
                let max = max / unit_bytes * unit_bytes;
                wanted.max(least_bytes).min(max)
            }
            Growth::Fixed => least_bytes,
        }
    }

    /// Returns the maximum padding before a block in memory whose address is not known yet.
    fn aligning_bytes(&self, need: Need) -> u64 {
        self.chunks.granule().bytes_of(need.align - 1)
    }

    /// Returns the bytes of the free chunk at the end of the growing range, if the request could use it together with
    /// memory added after it.
    pub(super) fn usable_end_bytes(&self, need: Need, request: &Request) -> u64 {
        let end = self.chunks.newest_end();
        let usable = match self.chunks.pending(end) {
            None => true,
            Some(point) if point.stream == request.stream => request.freed_by.is_none(),
            Some(_) => request.may_wait,
        };
        if self.config.growth == Growth::Fixed || !self.chunks.chunk(end).is_free() || !usable {
            return 0;
        }
        // The padding is known here, whereas the growth includes the maximum padding.
        let padding = self.chunks.padding(end, need);
        let usable_bytes = self.chunks.bytes_of(end) + self.aligning_bytes(need);
        usable_bytes - self.chunks.granule().bytes_of(padding)
    }

    /// Stops counting the ticket's bytes, if this pool issued the ticket. Returns whether it did.
    fn retire(&mut self, ticket: &GrowTicket) -> bool {
        let is_ours = ticket.owner == self.chunks.id()
            && self.tickets > 0
            && self.chunks.in_flight_bytes() >= ticket.bytes;
        if is_ours {
            self.chunks.arrive(ticket.bytes);
            self.tickets -= 1;
        }
        is_ours
    }

    /// Holds `range`, which the sub-allocator granted for the ticket. O(regions).
    ///
    /// # Errors
    /// Returns the range, to be released, if it breaks the sub-allocator's promises (too small, misaligned,
    /// overlapping), if the limit was lowered and holding the range would exceed it, or if the ticket is from another
    /// allocator. The ticket is used up in any case.
    pub fn commit(
        &mut self,
        ticket: GrowTicket,
        range: AddrRange,
    ) -> Result<(), Rejected<RegionError, AddrRange>> {
        if !self.retire(&ticket) {
            return Err(Rejected::new(range, RegionError::ForeignTicket));
        }
        if range.bytes() < ticket.least_bytes {
            return Err(Rejected::new(range, RegionError::TooSmall));
        }
        self.chunks.note_given_again(range);
        self.try_add(range, ticket.with_end)
            .map_err(|error| Rejected::new(range, error))
    }

    /// Ends a ticket that the sub-allocator refused: its bytes no longer count against the limit. A ticket of another
    /// allocator changes nothing.
    pub fn abort(&mut self, ticket: GrowTicket) {
        self.retire(&ticket);
    }

    /// Ends a ticket that the sub-allocator refused. Returns a smaller one to try, or `None` if a smaller one would be
    /// of no use.
    pub fn retry_smaller(&mut self, ticket: GrowTicket) -> Option<GrowTicket> {
        if !self.retire(&ticket) {
            return None;
        }
        let bytes = ticket.least_bytes;
        if bytes == ticket.bytes {
            return None;
        }
        self.chunks.depart(bytes);
        self.tickets += 1;
        Some(GrowTicket { bytes, ..ticket })
    }

    /// Adds a range of the caller. Under [`Growth::Range`] it enlarges the region that ends where the range begins, if
    /// there is one. O(regions).
    ///
    /// # Errors
    /// Returns the range if it is misaligned or too large, overlaps a held one or exceeds the limit, or if a table is
    /// full.
    pub fn add_region(&mut self, range: AddrRange) -> Result<(), Rejected<RegionError, AddrRange>> {
        self.try_add(range, false)
            .map_err(|error| Rejected::new(range, error))
    }

    fn try_add(&mut self, range: AddrRange, with_end: bool) -> Result<(), RegionError> {
        let granule = self.chunks.granule();
        let align = granule.align();
        if !range.start().is_aligned(align) || !range.end().is_aligned(align) {
            return Err(RegionError::Misaligned);
        }
        let granules = granule.count_up(range.bytes());
        let granules = granules.ok_or(RegionError::TooLarge)?;
        if self.chunks.overlaps(range) {
            return Err(RegionError::Overlap);
        }
        if range.bytes() > self.chunks.available_bytes(0) {
            return Err(RegionError::Limit);
        }
        match self.region_to_extend(range, granules) {
            Some(id) => self.chunks.extend_region(id, granules, with_end),
            None => self.chunks.add_region(range.start().get(), granules),
        }
    }

    /// Returns the region that ends where `range` begins, if `range` may extend it.
    pub(super) fn region_to_extend(&self, range: AddrRange, granules: u32) -> Option<RegionId> {
        match self.config.growth {
            Growth::Range { .. } => self.chunks.region_to_extend(range, granules),
            Growth::Fixed => None,
        }
    }
}
