//! The choice of the memory to release.

use larder_core::{AddrRange, Growth, PoolStats};

use super::{ModelBfc, Piece, Region};

impl ModelBfc {
    /// Forgets which regions the sub-allocator refused to release, so that they are offered again.
    pub(crate) fn forget_refusals(&mut self) {
        for region in &mut self.regions {
            region.refused = false;
        }
    }

    /// Releases a wholly free region, or marks it as refused by the sub-allocator.
    pub(super) fn give_back(&mut self, region: usize) {
        let whole = self.regions[region].pieces[0];
        let start = larder_core::Addr::new(whole.start);
        let range = AddrRange::new(start, whole.bytes).expect("a region");
        let was_wilderness = self.wilderness() == Some((region, 0));
        if !self.release(range) {
            self.regions[region].refused = true;
            if !was_wilderness {
                self.refresh_rank((region, 0));
            }
            return;
        }
        if self.newest == Some(self.regions[region].base) {
            self.newest = None;
        }
        self.regions.remove(region);
    }

    /// Offers one range to the sub-allocator when `wanted` bytes are to be released. Returns whether there was one.
    pub(crate) fn release_one(&mut self, wanted: u64) -> bool {
        self.sweep();
        // The region that grows is cut at its end instead, once there are no others.
        let cuttable = match self.config.growth {
            Growth::Range { .. } => self.newest.and_then(|base| self.region_at(base)),
            Growth::Fixed => None,
        };
        let mut free = self.free_regions();
        free.retain(|region| Some(*region) != cuttable);
        let bytes = |region: &usize| self.regions[*region].bytes();
        let enough = free.iter().filter(|region| bytes(region) >= wanted);
        let least = enough.min_by_key(|region| bytes(region)).copied();
        // Among regions of equal size, the first in address order.
        let chosen = least.or_else(|| {
            free.iter()
                .rev()
                .max_by_key(|region| bytes(region))
                .copied()
        });
        match chosen {
            Some(region) => {
                self.give_back(region);
                true
            }
            None => self.cut_free_end(wanted),
        }
    }

    /// Releases whole units from the free end of the newest region.
    fn cut_free_end(&mut self, wanted: u64) -> bool {
        let Growth::Range { unit_bytes, .. } = self.config.growth else {
            return false;
        };
        let Some(region) = self.newest.and_then(|base| self.region_at(base)) else {
            return false;
        };
        let last = self.regions[region].pieces.len() - 1;
        let end = self.at((region, last));
        if self.regions[region].refused || !end.is_free() || end.point().is_some() {
            return false;
        }
        let bytes = (end.bytes / unit_bytes).min(wanted.div_ceil(unit_bytes)) * unit_bytes;
        if last == 0 && (wanted >= end.bytes || bytes == end.bytes) {
            self.give_back(region);
            return true;
        }
        if bytes == 0 || bytes < end.bytes && self.records_left() == 0 {
            return false;
        }
        let start = larder_core::Addr::new(end.start + end.bytes - bytes);
        let range = AddrRange::new(start, bytes).expect("not empty");
        let in_list = self.wilderness() != Some((region, last));
        if !self.release(range) {
            self.regions[region].refused = true;
            if in_list {
                self.refresh_rank((region, last));
            }
            return true;
        }
        if bytes == end.bytes {
            self.regions[region].pieces.pop();
        } else {
            self.regions[region].pieces[last].bytes -= bytes;
            if in_list {
                self.refresh_rank((region, last));
            }
        }
        true
    }

    /// Returns the reserved and the stable bytes.
    pub(crate) fn pool_stats(&mut self) -> PoolStats {
        self.sweep();
        let is_free = |piece: &Piece| piece.is_free() && piece.point().is_none();
        let free_bytes = |region: &Region| match region.pieces.as_slice() {
            [whole] if is_free(whole) => whole.bytes,
            [.., end] if is_free(end) && self.newest == Some(region.base) => {
                match self.config.growth {
                    Growth::Range { unit_bytes, .. } => end.bytes / unit_bytes * unit_bytes,
                    Growth::Fixed => 0,
                }
            }
            _ => 0,
        };
        let free: u64 = self.regions.iter().map(free_bytes).sum();
        PoolStats {
            pool_bytes: self.reserved(),
            stable_bytes: self.reserved() - free,
        }
    }
}
