//! Growing: how much to request from the sub-allocator, and adding the range that it grants.
//!
//! No lock is held during the request, so the requested bytes count against the limit from the moment a
//! [`GrowTicket`] is issued until it is committed or aborted (BFC7). A limit lowered in between holds: the commit is
//! then refused and the range goes back.

use super::RegionPool;
use super::config::Growth;
use crate::block::Request;
use crate::engine::Need;
use crate::engine::RegionId;
use crate::engine::{Chunk, Link};
use crate::error::{Cause, RegionError, Rejected};
use crate::sub_allocator::GrowRequest;
use crate::units::{Addr, AddrRange, Align, round_down};

/// Permission to request memory from the sub-allocator; its bytes count against the limit already.
///
/// Returned by [`RegionPool::commit`], [`RegionPool::abort`] or [`RegionPool::retry_smaller`]; a dropped ticket keeps
/// its share of the limit for good.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the ticket's bytes count against the limit until it is committed or aborted"]
pub struct GrowTicket {
    bytes: u64,
    least_bytes: u64,
    align: Align,
    at: Option<Addr>,
    /// Whether the request counts on the free end of the newest region.
    with_end: bool,
    /// The allocator that issued it.
    owner: u32,
}

/// The sub-allocator does not extend one range if there are more regions than this: growth then is by a share of the
/// held bytes, so that the region table does not fill before the memory does (the remaining regions multiply the held
/// bytes by more than 10^12).
const SCATTERED_REGIONS: usize = 8;
/// The divisor of scattered growth: an eighth of the held bytes.
const SCATTERED_DIVISOR: u64 = 8;

/// Why no ticket can be issued.
pub(super) enum GrowthBar {
    /// The chunk table has no record for another region.
    Table,
    /// No region can be as large as the growth unit makes it.
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

    /// Returns the least bytes that would serve the request behind the ticket.
    pub const fn least_bytes(&self) -> u64 {
        self.least_bytes
    }
}

impl RegionPool<'_> {
    /// Returns the bytes that may still be requested, in whole granules.
    pub(super) fn available_bytes(&self) -> u64 {
        self.available_without(0)
    }

    /// Returns the bytes that could still be requested if `released_bytes` of the held ones were released.
    pub(super) fn available_without(&self, released_bytes: u64) -> u64 {
        let taken = self
            .chunks
            .reserved_bytes()
            .saturating_add(self.chunks.in_flight_bytes);
        let left = taken.saturating_sub(released_bytes);
        round_down(
            self.chunks.limit_bytes.saturating_sub(left),
            self.chunks.granule.align(),
        )
    }

    /// Decides how much to request so that the request can be served, or why it cannot be.
    ///
    /// With `with_end` the growth may count on the free end of the newest region. A request does so once; if that did
    /// not serve, because the range was not adjacent or another thread was faster, it asks for its whole size.
    pub(super) fn plan_growth(
        &mut self,
        need: Need,
        request: &Request,
        with_end: bool,
    ) -> Result<GrowTicket, GrowthBar> {
        if self.chunks.table.available() <= self.tickets {
            return Err(GrowthBar::Table);
        }
        if self.chunks.regions.is_full() {
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
        if least_bytes > self.available_bytes() {
            return Err(GrowthBar::Memory(Cause::Limit));
        }
        let bytes = self.growth_above(least_bytes);
        Ok(GrowTicket {
            with_end: end_bytes > 0,
            ..self.issue(bytes, least_bytes)
        })
    }

    /// Issues a ticket whose bytes count from now on.
    pub(super) fn issue(&mut self, bytes: u64, least_bytes: u64) -> GrowTicket {
        let at = self.growth_address();
        self.chunks.in_flight_bytes += bytes;
        self.tickets += 1;
        GrowTicket {
            bytes,
            least_bytes,
            align: self.chunks.granule.align(),
            at,
            with_end: false,
            owner: self.chunks.table.owner(),
        }
    }

    /// Returns the least growth that serves a request of which `end_bytes` exist already, or `None` if no region can
    /// be that large.
    pub(super) fn least_growth(&self, need: Need, end_bytes: u64) -> Option<u64> {
        let whole = self.chunks.granule.bytes_of(need.size) + self.aligning_bytes(need);
        let missing = whole.saturating_sub(end_bytes).max(1);
        let least = match self.config.growth {
            // A unit need not be a power of two.
            Growth::Range { unit_bytes, .. } => {
                missing.div_ceil(unit_bytes).checked_mul(unit_bytes)?
            }
            Growth::Fixed => missing,
        };
        (least <= self.chunks.granule.bytes_of(u32::MAX)).then_some(least)
    }

    /// Returns the bytes to request when at least `least_bytes` are needed and available.
    pub(super) fn growth_above(&self, least_bytes: u64) -> u64 {
        let max = self
            .available_bytes()
            .min(self.chunks.granule.bytes_of(u32::MAX));
        match self.config.growth {
            // Ahead by a share of the held bytes, in units.
            Growth::Range {
                unit_bytes,
                ahead_divisor,
            } => {
                let ahead =
                    ahead_divisor.map_or(0, |d| self.chunks.reserved_bytes() / u64::from(d.get()));
                let ahead = if self.chunks.regions.len() > SCATTERED_REGIONS {
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

    /// Returns the worst padding in front of a block in memory whose address is not known yet.
    fn aligning_bytes(&self, need: Need) -> u64 {
        self.chunks.granule.bytes_of(need.align - 1)
    }

    /// Returns the bytes of the free chunk at the end of the growing range, if the request could use it together with
    /// memory added behind it.
    pub(super) fn usable_end_bytes(&self, need: Need, request: &Request) -> u64 {
        let (Growth::Range { .. }, Some(newest)) = (self.config.growth, self.chunks.newest_region)
        else {
            return 0;
        };
        let last = Link(self.chunks.regions.get(newest).last());
        let chunk = self.chunks.table.at(last);
        let usable = match self.chunks.streams.pending(chunk.point()) {
            None => true,
            Some(point) if point.stream == request.stream => request.freed_by.is_none(),
            Some(_) => request.may_wait,
        };
        if !chunk.is_free() || !usable {
            return 0;
        }
        // The padding is known here; the need of the request counts the worst.
        self.chunks.granule.bytes_of(chunk.size) + self.aligning_bytes(need)
            - self
                .chunks
                .granule
                .bytes_of(self.chunks.padding(last, need))
    }

    /// Returns the address behind the newest region and the growth in flight to it.
    fn growth_address(&self) -> Option<Addr> {
        let Growth::Range { .. } = self.config.growth else {
            return None;
        };
        let region = self.chunks.regions.get(self.chunks.newest_region?);
        let before_this = self.chunks.in_flight_bytes;
        region
            .range(self.chunks.granule)?
            .end()
            .checked_add(before_this)
    }

    /// Stops counting the ticket's bytes, if the ticket is this pool's. Returns whether it is.
    fn retire(&mut self, ticket: &GrowTicket) -> bool {
        let bytes = self.chunks.in_flight_bytes.checked_sub(ticket.bytes);
        let count = self.tickets.checked_sub(1);
        let (Some(bytes), Some(count), true) =
            (bytes, count, ticket.owner == self.chunks.table.owner())
        else {
            return false;
        };
        self.chunks.in_flight_bytes = bytes;
        self.tickets = count;
        true
    }

    /// Holds `range`, which the sub-allocator granted for the ticket. O(regions).
    ///
    /// # Errors
    /// Returns the range, to be released, if it breaks the sub-allocator's promises (too small, misaligned,
    /// overlapping), if holding it would pass a limit lowered since, or if the ticket is another allocator's. The
    /// ticket is used up either way.
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
        self.note_given_again(range);
        self.try_add(range, ticket.with_end)
            .map_err(|error| Rejected::new(range, error))
    }

    /// Ends a ticket that the sub-allocator refused: its bytes no longer count against the limit. A ticket of another
    /// allocator changes nothing.
    pub fn abort(&mut self, ticket: GrowTicket) {
        self.retire(&ticket);
    }

    /// Ends a ticket that the sub-allocator refused and returns a smaller one to try, or `None` if that is of no use.
    pub fn retry_smaller(&mut self, ticket: GrowTicket) -> Option<GrowTicket> {
        if !self.retire(&ticket) {
            return None;
        }
        let bytes = ticket.least_bytes;
        if bytes == ticket.bytes {
            return None;
        }
        self.chunks.in_flight_bytes += bytes;
        self.tickets += 1;
        Some(GrowTicket { bytes, ..ticket })
    }

    /// Adds a range of the caller's; it enlarges the region right in front of it if the growth policy is one range.
    /// O(regions).
    ///
    /// # Errors
    /// Returns the range if it is misaligned, overlaps, is too large, passes the limit, or a table is full.
    pub fn add_region(&mut self, range: AddrRange) -> Result<(), Rejected<RegionError, AddrRange>> {
        self.try_add(range, false)
            .map_err(|error| Rejected::new(range, error))
    }

    fn try_add(&mut self, range: AddrRange, with_end: bool) -> Result<(), RegionError> {
        let align = self.chunks.granule.align();
        if !range.start().is_aligned(align) || !range.end().is_aligned(align) {
            return Err(RegionError::Misaligned);
        }
        let granules = self
            .chunks
            .granule
            .count_up(range.bytes())
            .ok_or(RegionError::TooLarge)?;
        if self.chunks.regions.overlaps(range, self.chunks.granule) {
            return Err(RegionError::Overlap);
        }
        let taken = self
            .chunks
            .reserved_bytes()
            .saturating_add(self.chunks.in_flight_bytes);
        if range.bytes() > self.chunks.limit_bytes.saturating_sub(taken) {
            return Err(RegionError::Limit);
        }
        match self.region_to_enlarge(range, granules) {
            Some(id) => self.enlarge(id, granules, with_end)?,
            None => self.insert_region(range.start().get(), granules)?,
        }
        self.chunks.hold(u64::from(granules));
        Ok(())
    }

    /// Returns the region right in front of `range`, if `range` may enlarge it.
    pub(super) fn region_to_enlarge(&self, range: AddrRange, granules: u32) -> Option<RegionId> {
        let Growth::Range { .. } = self.config.growth else {
            return None;
        };
        let before = range.start().get().checked_sub(1)?;
        let id = self.chunks.regions.find(before, self.chunks.granule)?;
        let region = self.chunks.regions.get(id);
        let last = self.chunks.table.at(Link(region.last()));
        let countable = region.granules().checked_add(granules).is_some();
        (countable && last.state() != crate::engine::State::Leaving).then_some(id)
    }

    /// Adds a free chunk at the end of a region. It joins the free chunk there, unless a stream still uses that and
    /// the growth did not count on it: fresh memory serves every stream.
    fn enlarge(&mut self, id: RegionId, granules: u32, with_end: bool) -> Result<(), RegionError> {
        let region = *self.chunks.regions.get(id);
        let mut chunk = Chunk::new(region.granules(), granules, id);
        chunk.set_free();
        chunk.prev = Link(region.last());
        let link = self
            .chunks
            .table
            .insert(chunk)
            .ok_or(RegionError::TableFull)?;
        self.chunks.set_newest(id);
        // The wilderness is no longer at the end; joining makes it the wilderness again.
        if self.chunks.wilderness.is_some() {
            let old = core::mem::take(&mut self.chunks.wilderness);
            self.chunks.bins.insert(&mut self.chunks.table, old);
        }
        self.chunks.table.at_mut(chunk.prev).next = link;
        let region = self.chunks.regions.get_mut(id);
        region.set_granules(chunk.end());
        region.set_last(link.0);
        if self
            .chunks
            .streams
            .pending(self.chunks.table.at(chunk.prev).point())
            .is_none()
        {
            self.chunks.join_and_list(link);
        } else if with_end {
            self.chunks.list(link);
            self.chunks.force_join_behind(chunk.prev);
        } else {
            self.chunks.apart = true;
            self.chunks.list(link);
        }
        Ok(())
    }

    fn insert_region(&mut self, base: u64, granules: u32) -> Result<(), RegionError> {
        // The region's id is known only once it is in the table, so the chunk is written twice.
        let link = self
            .chunks
            .table
            .insert(Chunk::VACANT)
            .ok_or(RegionError::TableFull)?;
        let Some(id) = self.chunks.regions.insert(base, granules, link.0) else {
            self.chunks.table.remove(link);
            return Err(RegionError::RegionsFull);
        };
        let mut chunk = Chunk::new(0, granules, id);
        chunk.set_free();
        *self.chunks.table.at_mut(link) = chunk;
        self.chunks.set_newest(id);
        self.chunks.list(link);
        Ok(())
    }
}
