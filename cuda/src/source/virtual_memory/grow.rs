//! Ranges that grow at the requested place, right after the held memory, so that a best-fit allocator has one
//! range instead of many regions.
//!
//! A range consists of pieces of one page each; any run of whole pieces can be released. A piece that the
//! driver refused to unmap keeps its place until it is unmapped, which is retried with every growth and every
//! release.

use larder_core::{Addr, AddrRange, Align, GrowRequest, SubAllocError, SubAllocator, round_up};

use super::{MappingOwner, VirtualMemory};
use crate::DriverError;
use crate::driver::locked;
use crate::driver::refused_free::RefusedFree;

impl SubAllocator for VirtualMemory {
    /// Grows by whole pages, at the requested place if it is free. Costs two driver calls for each page, so
    /// larger [pages](super::VirtualConfig::page_bytes) save calls, and one for the range.
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let _alone = locked(&self.growing);
        self.take_leaving();
        let outcome = self.grow_range(request);
        self.remember(outcome).map_err(|_| SubAllocError)
    }

    /// Releases any run of whole pages. Costs two driver calls for each page.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let _alone = locked(&self.growing);
        self.take_leaving();
        let outcome = self.release_range(range);
        self.remember(outcome).map_err(|_| SubAllocError)
    }
}

impl VirtualMemory {
    fn grow_range(&self, request: GrowRequest) -> Result<AddrRange, DriverError> {
        let refused = DriverError::Size {
            bytes: request.bytes,
        };
        let page = Align::new(self.page_bytes).ok_or(refused)?;
        let bytes = round_up(request.bytes, page).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(refused)?;
        let range = self
            .wished_place(request, bytes)
            .or_else(|| self.first_place(bytes, request.align.max(page)))
            .ok_or(DriverError::Addresses { bytes })?;
        let outcome = self.back(range);
        if outcome.is_err() {
            self.take_back(range);
        }
        outcome.map(|()| range)
    }

    /// Returns the requested place, if there is one and it is free.
    fn wished_place(&self, request: GrowRequest, bytes: u64) -> Option<AddrRange> {
        let at = request.at?;
        let page = Align::new(self.page_bytes)?;
        let range = AddrRange::new(at, bytes)?;
        let fits = at.is_aligned(page)
            && at.is_aligned(request.align)
            && self.addresses.contains(range)
            && !locked(&self.table).is_used(range);
        fits.then_some(range)
    }

    /// Returns the lowest free place. O(mappings).
    fn first_place(&self, bytes: u64, align: Align) -> Option<AddrRange> {
        let table = locked(&self.table);
        let mut from = self.addresses.start().get();
        let ends = self.addresses.end().get();
        let used = table
            .mappings
            .iter()
            .map(|(at, mapped)| (*at, at + mapped.bytes));
        for (start, end) in used.chain([(ends, ends)]) {
            let place = AddrRange::new(Addr::new(round_up(from, align)?), bytes)?;
            if place.end().get() <= start {
                return Some(place);
            }
            from = end;
        }
        None
    }

    /// Maps new memory at every page of a free range.
    fn back(&self, range: AddrRange) -> Result<(), DriverError> {
        let mut at = range.start();
        while at < range.end() {
            let refused = DriverError::Size {
                bytes: self.page_bytes,
            };
            let piece = AddrRange::new(at, self.page_bytes).ok_or(refused)?;
            let memory = self.create(self.page_bytes)?;
            if let Err(error) = self.map(piece, memory, MappingOwner::Range(memory)) {
                self.context.give_back(RefusedFree::Memory(memory));
                return Err(error);
            }
            at = piece.end();
        }
        self.set_access(range)
    }

    /// Frees every piece in the range, or defers its free.
    fn take_back(&self, range: AddrRange) {
        let (start, end) = (range.start().get(), range.end().get());
        let mut table = locked(&self.table);
        let mut leaving = 0;
        for (_, mapped) in table.mappings.range_mut(start..end) {
            if let MappingOwner::Range(memory) = mapped.owner {
                mapped.owner = MappingOwner::Leaving(memory);
                leaving += 1;
            }
        }
        table.leaving += leaving;
        drop(table);
        self.take_leaving();
    }

    /// Frees the leaving pieces that the driver now unmaps. O(mappings) if there are any.
    fn take_leaving(&self) {
        let table = locked(&self.table);
        if table.leaving == 0 {
            return;
        }
        let leaving: Vec<_> = table
            .mappings
            .iter()
            .filter_map(|(start, mapped)| match mapped.owner {
                MappingOwner::Leaving(memory) => Some((*start, mapped.bytes, memory)),
                MappingOwner::Handle(_) | MappingOwner::Range(_) => None,
            })
            .collect();
        drop(table);
        for (start, bytes, memory) in leaving {
            if self.unmap(start, bytes).is_ok() {
                locked(&self.table).leaving -= 1;
                self.context.give_back(RefusedFree::Memory(memory));
            }
        }
    }

    fn release_range(&self, range: AddrRange) -> Result<(), DriverError> {
        let pieces = self.pieces_of(range)?;
        for (index, (start, bytes, memory)) in pieces.into_iter().enumerate() {
            match self.unmap(start, bytes) {
                Ok(()) => self.context.give_back(RefusedFree::Memory(memory)),
                // Nothing has changed yet, so the whole range stays with the caller.
                Err(error) if index == 0 => return Err(error),
                // Part of the range is already free, so the rest is freed later.
                Err(_) => {
                    self.take_back(range);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the whole pieces that a range consists of: start, bytes, memory.
    fn pieces_of(
        &self,
        range: AddrRange,
    ) -> Result<Vec<(u64, u64, larder_cuda_abi::MemoryHandle)>, DriverError> {
        let table = locked(&self.table);
        let mut pieces = Vec::new();
        let mut at = range.start().get();
        while at < range.end().get() {
            match table
                .mappings
                .get(&at)
                .map(|mapped| (mapped.bytes, mapped.owner))
            {
                Some((bytes, MappingOwner::Range(memory))) if at + bytes <= range.end().get() => {
                    pieces.push((at, bytes, memory));
                    at += bytes;
                }
                _ => return Err(DriverError::NotOurs { address: at }),
            }
        }
        Ok(pieces)
    }
}
