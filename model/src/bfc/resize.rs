//! Resizing a block in place.

use larder_core::{Growth, MAX_REGIONS, Resize, ResizeError};

use super::{ModelBfc, Piece, Place, State};

impl ModelBfc {
    /// Resizes the block at `addr` within the memory held. Returns the granted size.
    ///
    /// # Errors
    /// Exactly the errors of the real allocator.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn resize(&mut self, addr: u64, to: &Resize) -> Result<u64, ResizeError> {
        let place = self.block_at(addr);
        let need = self.round_resize(to)?;
        let stream = to.stream.number();
        let point = to.used_until.map(|event| (stream, event.number()));
        if point.is_some_and(|(_, event)| event > self.window_end(stream)) {
            return Err(ResizeError::EventTooFar);
        }
        let had = self.at(place).bytes;
        if need > had {
            self.take_behind(place, need, stream)?;
        } else if need < had {
            self.cut_end(place, need, self.pending(point))?;
        }
        if let State::Used { requested, .. } = &mut self.regions[place.0].pieces[place.1].state {
            *requested = to.bytes;
        }
        Ok(self.at(place).bytes)
    }

    /// Resizes the block at `addr`. If only memory behind its region is missing, the region grows first.
    ///
    /// # Errors
    /// Exactly the errors of the real allocator.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn resize_over(&mut self, addr: u64, to: &Resize) -> Result<u64, ResizeError> {
        let done = self.resize(addr, to);
        if done != Err(ResizeError::NoRoom) {
            return done;
        }
        self.grow_behind(addr, to)?;
        self.resize(addr, to)
    }

    fn block_at(&self, addr: u64) -> Place {
        self.places()
            .find(|place| self.at(*place).start == addr)
            .expect("the runner resizes live blocks only")
    }

    /// Returns the new size in bytes, rounded up to whole granules.
    fn round_resize(&self, to: &Resize) -> Result<u64, ResizeError> {
        if to.bytes == 0 {
            return Err(ResizeError::ZeroSize);
        }
        let granule = u128::from(self.config.granule_bytes);
        let bytes = u128::from(to.bytes).next_multiple_of(granule);
        let fits = bytes <= u128::from(u32::MAX) * granule;
        let bytes = u64::try_from(bytes).ok().filter(|_| fits);
        bytes.ok_or(ResizeError::TooLarge)
    }

    /// Returns the free pieces directly behind a block that `stream` may use.
    fn usable_behind(&self, (region, piece): Place, stream: u8) -> &[Piece] {
        let behind = &self.regions[region].pieces[piece + 1..];
        let usable = |piece: &&Piece| {
            let pending = self.pending(piece.point());
            piece.is_free() && pending.is_none_or(|(of, _)| of == stream)
        };
        &behind[..behind.iter().take_while(usable).count()]
    }

    fn take_behind(&mut self, place: Place, need: u64, stream: u8) -> Result<(), ResizeError> {
        let block = self.at(place);
        let missing = need - block.bytes;
        if self.exceeds_limit(missing) {
            return Err(ResizeError::Limit);
        }
        let wilderness = self.wilderness();
        let usable = self.usable_behind(place, stream);
        let sum = |count: usize| -> u64 { usable[..count].iter().map(|piece| piece.bytes).sum() };
        let count = (1..=usable.len())
            .find(|count| sum(*count) >= missing)
            .ok_or(ResizeError::NoRoom)?;
        let last = usable[count - 1];
        let rest = sum(count) - missing;
        let mut left = Vec::new();
        if rest > 0 {
            let was_wilderness = wilderness == Some((place.0, place.1 + count));
            let keeps = !was_wilderness && self.class(rest) == self.class(last.bytes);
            let rank = if keeps { last.rank() } else { self.next_rank() };
            let point = last.point();
            left.push(Piece {
                start: block.start + need,
                bytes: rest,
                state: State::Free { point, rank },
            });
        }
        let pieces = &mut self.regions[place.0].pieces;
        pieces.splice(place.1 + 1..=place.1 + count, left);
        pieces[place.1].bytes = need;
        self.largest = self.largest.max(need);
        self.peak_live = self.peak_live.max(self.live());
        Ok(())
    }

    fn cut_end(
        &mut self,
        (region, piece): Place,
        need: u64,
        point: Option<(u8, u64)>,
    ) -> Result<(), ResizeError> {
        if self.records_left() == 0 {
            return Err(ResizeError::TableFull);
        }
        if let Some((stream, _)) = point {
            self.meet(stream);
        }
        let wilderness = self.wilderness_start();
        let rank = self.next_rank();
        let block = self.at((region, piece));
        let end = Piece {
            start: block.start + need,
            bytes: block.bytes - need,
            state: State::Free { point, rank },
        };
        let pieces = &mut self.regions[region].pieces;
        pieces[piece].bytes = need;
        pieces.insert(piece + 1, end);
        self.join_with_neighbours((region, piece + 1), wilderness);
        Ok(())
    }

    /// Makes one request to the sub-allocator for the memory that is missing behind the block's region.
    fn grow_behind(&mut self, addr: u64, to: &Resize) -> Result<(), ResizeError> {
        let place = self.block_at(addr);
        let need = self.round_resize(to)?;
        let Growth::Range { unit_bytes, .. } = self.config.growth else {
            return Err(ResizeError::NoRoom);
        };
        let region = &self.regions[place.0];
        let usable = self.usable_behind(place, to.stream.number());
        if self.newest != Some(region.base) || place.1 + 1 + usable.len() < region.pieces.len() {
            return Err(ResizeError::NoRoom);
        }
        if self.records_left() == 0 {
            return Err(ResizeError::TableFull);
        }
        let end = region.base + region.bytes();
        let least = (addr + need - end).next_multiple_of(unit_bytes);
        let max = u64::from(u32::MAX) * self.config.granule_bytes - region.bytes();
        if least > max {
            return Err(ResizeError::NoRoom);
        }
        let room = self.room(0);
        if least > room {
            return Err(ResizeError::Limit);
        }
        let mut plan = self.plan(least, room);
        if plan.bytes > max {
            plan.bytes = least;
        }
        let Some(range) = self.ask(plan) else {
            return Ok(());
        };
        let useless = range.start().get() != end && self.release(range);
        if !useless && self.regions.len() < MAX_REGIONS {
            self.add(range, false);
        }
        Ok(())
    }
}
