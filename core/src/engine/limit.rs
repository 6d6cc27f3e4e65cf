//! Compares the held bytes with the limit (BFC7).

use super::Chunks;
use super::report::Report;
use super::search::Need;
use crate::block::Request;
use crate::error::{AllocError, Cause, OutOfMemory};
use crate::units::round_down;

impl Chunks<'_> {
    /// Returns the limit.
    pub(crate) const fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Returns the bytes held.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.counters.reserved * self.granule.bytes()
    }

    /// Returns the bytes under way.
    pub(crate) const fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Returns the bytes held or under way.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.reserved_bytes().saturating_add(self.in_flight_bytes)
    }

    /// Returns the part of the held bytes that is being released.
    pub(crate) fn leaving_bytes(&self) -> u64 {
        self.counters.leaving * self.granule.bytes()
    }

    /// Returns the bytes, in whole granules, that could still be requested if `released_bytes` of the held bytes were
    /// released.
    pub(crate) fn available_bytes(&self, released_bytes: u64) -> u64 {
        let left = self.taken_bytes().saturating_sub(released_bytes);
        let available = self.limit_bytes.saturating_sub(left);
        round_down(available, self.granule.align())
    }

    /// Returns by how many bytes the bytes held or under way exceed the limit.
    pub(crate) fn excess_bytes(&self) -> u64 {
        self.taken_bytes().saturating_sub(self.limit_bytes)
    }

    /// Sets the limit. Returns by how many bytes it is exceeded.
    pub(crate) fn set_limit(&mut self, limit_bytes: u64) -> u64 {
        self.limit_bytes = limit_bytes;
        self.excused_bytes = self.taken_bytes();
        self.note_limit();
        self.excess_bytes()
    }

    /// Adds `bytes` to the bytes under way.
    pub(crate) fn depart(&mut self, bytes: u64) {
        self.in_flight_bytes += bytes;
    }

    /// Subtracts `bytes` from the bytes under way, because they have arrived or will not arrive.
    pub(crate) fn arrive(&mut self, bytes: u64) {
        self.in_flight_bytes -= bytes;
    }

    /// Adds `granules` to the granules held.
    pub(crate) fn hold(&mut self, granules: u64) {
        let counters = &mut self.counters;
        counters.reserved += granules;
        counters.peak_reserved = counters.peak_reserved.max(counters.reserved);
        self.note_limit();
    }

    /// Subtracts `granules` from the granules held.
    pub(crate) fn unhold(&mut self, granules: u64) {
        self.counters.reserved -= granules;
        self.note_limit();
    }

    fn note_limit(&mut self) {
        self.is_over_limit = self.reserved_bytes() > self.limit_bytes;
    }

    /// Returns whether the block would exceed a limit that was lowered below the held bytes.
    #[inline]
    pub(crate) fn exceeds_limit(&self, need: Need) -> bool {
        self.is_over_limit && {
            let live = self.counters.live + u64::from(need.size);
            live * self.granule.bytes() > self.limit_bytes
        }
    }

    /// Returns the error with the current figures. `growth` is the reason why growth did not help.
    pub(crate) fn out_of_memory(
        &self,
        need: Need,
        request: &Request,
        growth: Cause,
        report: &Report,
    ) -> AllocError {
        let rounded_bytes = self.granule.bytes_of(need.size);
        let cause = if self.exceeds_limit(need) {
            Cause::Limit
        } else if self.would_serve_settled(need) {
            Cause::Pending
        } else if report.free_bytes.saturating_sub(self.excess_bytes()) >= rounded_bytes {
            Cause::Fragmentation
        } else {
            growth
        };
        AllocError::OutOfMemory(OutOfMemory {
            cause,
            requested_bytes: request.bytes,
            rounded_bytes,
            limit_bytes: self.limit_bytes,
            reserved_bytes: self.taken_bytes(),
            live_bytes: report.live_bytes,
            free_bytes: report.free_bytes,
            largest_free_bytes: report.largest_free_bytes,
            pending_bytes: report.pending_bytes,
        })
    }
}
