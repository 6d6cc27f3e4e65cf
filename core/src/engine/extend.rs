//! Adds memory to the engine: a region, or an extension of a region. The pools decide how much arrives, and where.

use super::Chunks;
use super::chunk::{Chunk, Link, State};
use super::region::RegionId;
use crate::error::RegionError;
use crate::units::{Addr, AddrRange};

impl Chunks<'_> {
    /// Adds a region of one free chunk.
    pub(crate) fn add_region(&mut self, base: u64, granules: u32) -> Result<(), RegionError> {
        let link = self.insert_region(base, granules)?;
        self.list(link);
        self.hold(u64::from(granules));
        Ok(())
    }

    /// Adds a free chunk at the end of a region. It joins the free chunk there, if no stream still uses that chunk, or
    /// if the growth counted on that chunk (`with_end`). Otherwise the two stay apart, so that the fresh memory, which
    /// can serve every stream, does not have to wait for one.
    pub(crate) fn extend_region(
        &mut self,
        id: RegionId,
        granules: u32,
        with_end: bool,
    ) -> Result<(), RegionError> {
        let end = self.regions.get(id).last;
        let link = self.append(id, granules).ok_or(RegionError::TableFull)?;
        if self.pending(end).is_none() {
            self.join_and_list(link);
        } else {
            self.list(link);
            if with_end {
                self.force_join_behind(end);
            } else {
                self.apart = true;
            }
        }
        self.hold(u64::from(granules));
        Ok(())
    }

    /// Adds free addresses without memory at the end of the newest region. If there is no region, adds one at `base`.
    /// Returns `None` if a table is full.
    pub(crate) fn add_addresses(&mut self, base: u64, granules: u32) -> Option<()> {
        let link = match self.newest_region {
            Some(id) => self.append(id, granules)?,
            None => self.insert_region(base, granules).ok()?,
        };
        self.table.at_mut(link).set_hollow(true);
        self.join_and_list(link);
        Some(())
    }

    /// Returns the region that ends where `range` starts, if it can become `granules` granules longer.
    pub(crate) fn region_to_extend(&self, range: AddrRange, granules: u32) -> Option<RegionId> {
        let before = range.start().get().checked_sub(1)?;
        let id = self.regions.find(before, self.granule)?;
        let region = self.regions.get(id);
        let last = self.table.at(region.last);
        let countable = region.granules.checked_add(granules).is_some();
        (countable && last.state() != State::Leaving).then_some(id)
    }

    /// Returns the address at which the next growth will start: the end of the newest region plus the bytes of growths
    /// in progress.
    pub(crate) fn next_address(&self) -> Option<Addr> {
        let newest = self.regions.get(self.newest_region?).range(self.granule)?;
        newest.end().checked_add(self.in_flight_bytes)
    }

    /// Adds a region of one free chunk, which is in no list. The region becomes the newest.
    fn insert_region(&mut self, base: u64, granules: u32) -> Result<Link, RegionError> {
        // The region's ID is known only once the region is in its table, so the chunk is written twice.
        let link = self.table.insert(Chunk::VACANT);
        let link = link.ok_or(RegionError::TableFull)?;
        let Some(id) = self.regions.insert(base, granules, link) else {
            self.table.remove(link);
            return Err(RegionError::RegionsFull);
        };
        let chunk = self.table.at_mut(link);
        *chunk = Chunk::new(0, granules, id);
        chunk.set_free();
        self.set_newest(id);
        Ok(link)
    }

    /// Adds a free chunk, which is in no list, at the end of a region. The region becomes the newest.
    fn append(&mut self, id: RegionId, granules: u32) -> Option<Link> {
        let region = *self.regions.get(id);
        let mut chunk = Chunk::new(region.granules, granules, id);
        chunk.set_free();
        chunk.prev = region.last;
        let link = self.table.insert(chunk)?;
        self.set_newest(id);
        self.table.at_mut(chunk.prev).next = link;
        let region = self.regions.get_mut(id);
        region.granules = chunk.end();
        region.last = link;
        Some(link)
    }

    /// Makes a region the newest. The previous wilderness goes to the bins. The region's last chunk must be in no list.
    fn set_newest(&mut self, id: RegionId) {
        self.newest_region = Some(id);
        let old = core::mem::take(&mut self.wilderness);
        if old.is_some() {
            self.bins.insert(&mut self.table, old);
        }
    }
}
