//! Memory at given addresses: blocks at a place, and regions that the caller adds.

use larder_core::{AddrRange, Cause, Growth, MAX_REGIONS, RegionError, Request};

use super::{ModelBfc, ModelError, Place};

impl ModelBfc {
    /// Allocates the block at `range`. If a stream is given, memory that this stream still uses serves too, and pieces
    /// are joined for the block.
    ///
    /// # Errors
    /// Exactly the errors of the real allocator.
    pub fn alloc_at(&mut self, range: AddrRange, stream: Option<u8>) -> Result<u64, ModelError> {
        let request = Request::new(range.bytes());
        let need = self.round(&request)?;
        match stream {
            Some(stream) => self.meet(stream),
            None => self.sweep(),
        }
        if self.exceeds_limit(need) {
            return Err(self.out_of_memory(need, &request, Cause::Limit));
        }
        let start = range.start().get();
        if !start.is_multiple_of(self.config.granule_bytes) {
            return Err(ModelError::PlaceTaken);
        }
        let mut place = self.holding(start)?;
        match stream {
            Some(stream) if self.join_over(place, start + need, stream)? => {
                place = self.holding(start)?;
            }
            Some(_) => {}
            None if self.at(place).point().is_some() => return Err(ModelError::PlaceTaken),
            None => {}
        }
        let piece = self.at(place);
        let padding = start - piece.start;
        if !piece.is_free() || piece.bytes < padding + need {
            return Err(ModelError::PlaceTaken);
        }
        let rest = piece.bytes - padding - need;
        if self.records_left() < usize::from(rest > 0) + usize::from(padding > 0) {
            return Err(self.table_full());
        }
        Ok(self.carve(place, padding, need, range.bytes()))
    }

    /// Returns the piece that contains an address.
    fn holding(&self, addr: u64) -> Result<Place, ModelError> {
        let holds = |place: &Place| {
            let piece = self.at(*place);
            piece.start <= addr && addr < piece.start + piece.bytes
        };
        self.places().find(holds).ok_or(ModelError::PlaceTaken)
    }

    /// Joins the pieces from this one up to `end` if `stream` may use all of them. Returns whether there were several.
    fn join_over(&mut self, place: Place, end: u64, stream: u8) -> Result<bool, ModelError> {
        let (region, first) = place;
        let pieces = &self.regions[region].pieces[first..];
        let reaches = pieces.iter().position(|p| p.start + p.bytes >= end);
        let last = reaches.ok_or(ModelError::PlaceTaken)?;
        let may_use = pieces[..=last].iter().all(|piece| {
            let pending = self.pending(piece.point());
            piece.is_free() && pending.is_none_or(|(of, _)| of == stream)
        });
        if !may_use {
            return Err(ModelError::PlaceTaken);
        }
        for _ in 0..last {
            self.join_by_force(place);
        }
        if last > 0 {
            // A settled result may join its neighbours, as a freed piece does.
            let wilderness = self.wilderness_start();
            self.refresh_rank(place);
            self.join_with_neighbours(place, wilderness);
        }
        Ok(last > 0)
    }

    /// Adds a region.
    ///
    /// # Errors
    /// Exactly the errors of the real allocator.
    pub fn add_region(&mut self, range: AddrRange) -> Result<(), RegionError> {
        let (start, bytes) = (range.start().get(), range.bytes());
        let granule = self.config.granule_bytes;
        if !start.is_multiple_of(granule) || !range.end().get().is_multiple_of(granule) {
            return Err(RegionError::Misaligned);
        }
        if bytes > u64::from(u32::MAX) * granule {
            return Err(RegionError::TooLarge);
        }
        if self.regions().any(|held| held.overlaps(range)) {
            return Err(RegionError::Overlap);
        }
        if bytes > self.room(0) {
            return Err(RegionError::Limit);
        }
        if self.records_left() == 0 {
            return Err(RegionError::TableFull);
        }
        if self.regions.len() == MAX_REGIONS && self.in_front_of(start, bytes).is_none() {
            return Err(RegionError::RegionsFull);
        }
        self.add(range, false);
        Ok(())
    }

    /// Returns the region that memory at `start` would extend.
    pub(super) fn in_front_of(&self, start: u64, bytes: u64) -> Option<usize> {
        let most = u64::from(u32::MAX) * self.config.granule_bytes;
        let grows = matches!(self.config.growth, Growth::Range { .. });
        let mut regions = self.regions.iter();
        let ends = regions.position(|region| region.base + region.bytes() == start);
        ends.filter(|region| grows && self.regions[*region].bytes() + bytes <= most)
    }
}
