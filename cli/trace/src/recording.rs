//! What others recorded by address, turned into a trace: blocks by id, those first that were live before.
//!
//! A recording may begin in the middle of a program, so that a free may have no allocation. Its block was
//! live before, and its size is known by the free: it is allocated first. Nothing else is made up.

use std::collections::HashMap;

use super::parse::MAX_ID;
use super::{Defect, Event, Trace};
use crate::MAX_BYTES;

/// A recording under way.
#[derive(Default)]
pub(super) struct Recording {
    /// Sizes in the order in which blocks became known.
    sizes: Vec<u64>,
    /// Their streams, as far as they are known.
    streams: Vec<Option<u64>>,
    /// What happened, by those numbers.
    events: Vec<Happened>,
    /// Each address that was seen: the block that is live there, if one is.
    places: HashMap<u64, Option<u32>>,
    /// Address and number of the blocks that were live before.
    before: Vec<(u64, u32)>,
    pub(super) counts: Counts,
}

/// What a recording leaves open, or has that a trace cannot have.
#[derive(Default)]
pub(super) struct Counts {
    /// Blocks that were live before, and their bytes.
    pub(super) before: u64,
    pub(super) before_bytes: u64,
    /// Blocks whose free is missing: another block came at their address.
    pub(super) no_free: u64,
    /// Frees left out: the allocation is missing, and was not before the recording.
    pub(super) no_alloc: u64,
    /// Frees that name another size than the allocation.
    pub(super) other_size: u64,
    /// Allocations of nothing, and their frees, which are left out.
    pub(super) empty: u64,
}

#[derive(Clone, Copy)]
enum Happened {
    Alloc(u32),
    Free(u32),
}

impl Recording {
    /// A block of so many bytes at an address, on a stream if it is known.
    pub(super) fn alloc(
        &mut self,
        address: u64,
        bytes: u64,
        stream: Option<u64>,
    ) -> Result<(), Defect> {
        if bytes == 0 {
            self.counts.empty += 1;
            return Ok(());
        }
        let block = self.block(bytes, stream)?;
        if let Some(old) = self.places.insert(address, Some(block)).flatten() {
            self.counts.no_free += 1;
            self.events.push(Happened::Free(old));
        }
        self.events.push(Happened::Alloc(block));
        Ok(())
    }

    /// The block at an address ends.
    pub(super) fn free(&mut self, address: u64, bytes: u64) -> Result<(), Defect> {
        let place = self.places.get(&address).copied();
        let block = match place {
            Some(Some(block)) => {
                if self.sizes[block as usize] != bytes {
                    self.counts.other_size += 1;
                }
                block
            }
            // The free of an allocation of nothing.
            _ if bytes == 0 => return Ok(()),
            Some(None) => {
                self.counts.no_alloc += 1;
                return Ok(());
            }
            None => self.live_before(address, bytes)?,
        };
        self.places.insert(address, None);
        self.events.push(Happened::Free(block));
        Ok(())
    }

    /// A block that is live at the end. If the recording does not have it, it was live before and all along.
    pub(super) fn live_at_end(&mut self, address: u64, bytes: u64) -> Result<(), Defect> {
        if bytes > 0 && !matches!(self.places.get(&address), Some(Some(_))) {
            let block = self.live_before(address, bytes)?;
            self.places.insert(address, Some(block));
        }
        Ok(())
    }

    /// Blocks that are live now.
    pub(super) fn live(&self) -> usize {
        self.places.values().flatten().count()
    }

    /// The most bytes that were live at once.
    pub(super) fn most_live_bytes(&self) -> u64 {
        let mut live = self.counts.before_bytes;
        let mut most = live;
        for happened in &self.events {
            match happened {
                Happened::Alloc(block) => live = live.saturating_add(self.sizes[*block as usize]),
                Happened::Free(block) => live = live.saturating_sub(self.sizes[*block as usize]),
            }
            most = most.max(live);
        }
        most
    }

    /// Whether all sizes are multiples of a number.
    pub(super) fn all_multiples_of(&self, bytes: u64) -> bool {
        self.sizes.iter().all(|size| size.is_multiple_of(bytes))
    }

    /// Whether no block was seen.
    pub(super) fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// The trace, with what should be known of it; its events go to `take`.
    pub(super) fn finish(
        mut self,
        name: String,
        notes: Vec<String>,
        take: &mut dyn FnMut(Event),
    ) -> Result<Trace, Defect> {
        // Those live before stand in the order of their addresses; when they came is not known.
        self.before.sort_unstable();
        let first = self.before.iter().map(|(_, block)| Happened::Alloc(*block));
        let mut ids = vec![0; self.sizes.len()];
        let mut streams = Vec::with_capacity(self.sizes.len());
        let (mut allocations, mut live_bytes) = (0, 0);
        for happened in first.chain(self.events) {
            match happened {
                Happened::Alloc(block) => {
                    let bytes = self.sizes[block as usize];
                    live_bytes += bytes;
                    if live_bytes > MAX_BYTES {
                        return Err(Defect::TooMuchLive);
                    }
                    ids[block as usize] = allocations;
                    streams.push(self.streams[block as usize]);
                    take(Event::Alloc {
                        id: allocations,
                        bytes,
                    });
                    allocations += 1;
                }
                Happened::Free(block) => {
                    live_bytes -= self.sizes[block as usize];
                    let id = ids[block as usize];
                    take(Event::Free { id });
                }
            }
        }
        Ok(Trace {
            name,
            header: Vec::new(),
            events: Vec::new(),
            allocations,
            between: Vec::new(),
            streams,
            notes,
        })
    }

    fn live_before(&mut self, address: u64, bytes: u64) -> Result<u32, Defect> {
        let block = self.block(bytes, None)?;
        self.before.push((address, block));
        self.counts.before += 1;
        self.counts.before_bytes = self.counts.before_bytes.saturating_add(bytes);
        Ok(block)
    }

    /// The number of a new block.
    fn block(&mut self, bytes: u64, stream: Option<u64>) -> Result<u32, Defect> {
        let too_big = |field, found: u64, max| Defect::NumberTooBig {
            field,
            found: found.to_string(),
            max,
        };
        if bytes > MAX_BYTES {
            return Err(too_big("number of bytes", bytes, MAX_BYTES));
        }
        let number = self.sizes.len() as u64;
        self.sizes.push(bytes);
        self.streams.push(stream);
        u32::try_from(number)
            .ok()
            .filter(|number| u64::from(*number) <= MAX_ID)
            .ok_or_else(|| too_big("number of blocks", number, MAX_ID))
    }
}

impl Counts {
    /// What any recording's reader should know of these, a sentence each.
    pub(super) fn notes(&self, notes: &mut Vec<String>) {
        let mut note = |count: u64, what: &str, text: &str| {
            if count > 0 {
                notes.push(format!("{} {text}", counted(count, what)));
            }
        };
        note(
            self.no_free,
            "block",
            "without a free, where another block came at the address: ended there",
        );
        note(
            self.no_alloc,
            "free",
            "without an allocation, though the recording had begun: left out",
        );
        note(
            self.other_size,
            "free",
            "of another size than the allocation, whose size counts",
        );
        note(self.empty, "allocation", "of zero bytes left out");
    }
}

/// So many of what there may be several of.
pub(super) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
