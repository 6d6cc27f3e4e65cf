//! Turns recordings of other programs, which identify blocks by address, into a trace, which
//! identifies them by id. Blocks that were live before the recording come first.
//!
//! A recording may begin in the middle of a program, so a free may have no allocation. The block of
//! such a free was live before the recording, and the free has its size, so the trace allocates it
//! first. No other event is invented.

use std::collections::HashMap;

use super::byte_count::ByteCount;
use super::parse::MAX_ID;
use super::{Defect, Event, Refusal, Trace};
use crate::MAX_BYTES;

/// A recording being read.
#[derive(Default)]
pub(super) struct OpenRecording {
    /// Sizes of the blocks, in the order in which they became known.
    sizes: Vec<u64>,
    /// Streams of the blocks, if they are known.
    streams: Vec<Option<u64>>,
    /// Events, with the numbers of their blocks.
    events: Vec<Happened>,
    /// Every address seen, with the block that is live there, if there is one.
    places: HashMap<u64, Option<u32>>,
    /// Addresses and numbers of the blocks that were live before the recording.
    before: Vec<(u64, u32)>,
    /// Refused requests; their events and live bytes are counted when the recording ends.
    refusals: Vec<Refusal>,
    pub(super) counts: RecordingCounts,
}

/// Counts of the gaps in a recording, and of events that a trace cannot have.
#[derive(Default)]
pub(super) struct RecordingCounts {
    /// Blocks that were live before the recording, and their bytes.
    pub(super) before: u64,
    pub(super) before_bytes: u64,
    /// Blocks whose free is missing, because another block was allocated at their address.
    pub(super) no_free: u64,
    /// Frees omitted because their allocation is missing although it was not before the recording.
    pub(super) no_alloc: u64,
    /// Frees with another size than the allocation.
    pub(super) other_size: u64,
    /// Allocations of zero bytes, omitted with their frees.
    pub(super) empty: u64,
}

#[derive(Clone, Copy)]
enum Happened {
    Alloc(u32),
    Free(u32),
}

impl OpenRecording {
    /// Records an allocation of `bytes` at an address, and its stream if it is known.
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

    /// Records the free of the block at an address.
    pub(super) fn free(&mut self, address: u64, bytes: u64) -> Result<(), Defect> {
        let place = self.places.get(&address).copied();
        let block = match place {
            Some(Some(block)) => {
                if self.sizes[block as usize] != bytes {
                    self.counts.other_size += 1;
                }
                block
            }
            // This frees an allocation of zero bytes.
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

    /// Records a refused request. Empty requests are left out.
    pub(super) fn refuse(&mut self, bytes: u64) {
        if bytes > 0 {
            self.refusals.push(Refusal {
                events_before: self.events.len() as u64,
                bytes: bytes.min(MAX_BYTES),
                live_bytes: 0,
                blocks_after: 0,
                device_bytes: None,
            });
        }
    }

    /// Returns a note on the refused requests, if there are any.
    pub(super) fn refusals_note(&self) -> Option<String> {
        let largest = self.refusals.iter().max_by_key(|refusal| refusal.bytes)?;
        let how = match largest.device_bytes {
            Some(_) => "tried apart from the replay",
            None => "give --device-bytes to learn whether they fit",
        };
        Some(format!(
            "{} refused, the largest of {}: {how}",
            counted(self.refusals.len() as u64, "allocation"),
            ByteCount(largest.bytes)
        ))
    }

    /// Returns the refused requests so far.
    pub(super) fn refusals(&mut self) -> &mut [Refusal] {
        &mut self.refusals
    }

    /// Records a block that is live at the end. If the recording has no allocation of the block, it
    /// was live from the start.
    pub(super) fn live_at_end(&mut self, address: u64, bytes: u64) -> Result<(), Defect> {
        if bytes > 0 && !matches!(self.places.get(&address), Some(Some(_))) {
            let block = self.live_before(address, bytes)?;
            self.places.insert(address, Some(block));
        }
        Ok(())
    }

    /// Returns the number of live blocks.
    pub(super) fn live(&self) -> usize {
        self.places.values().flatten().count()
    }

    /// Returns the maximum live bytes.
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

    /// Returns whether all sizes are multiples of `bytes`.
    pub(super) fn all_multiples_of(&self, bytes: u64) -> bool {
        self.sizes.iter().all(|size| size.is_multiple_of(bytes))
    }

    /// Returns whether no block has been seen.
    pub(super) fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Returns the trace with these notes and settings, and passes its events to `take`.
    pub(super) fn finish(
        mut self,
        name: String,
        notes: Vec<String>,
        settings: Option<String>,
        take: &mut dyn FnMut(Event),
    ) -> Result<Trace, Defect> {
        // Blocks that were live before the recording are in address order, since the order of their
        // allocations is unknown.
        self.before.sort_unstable();
        let first = self.before.iter().map(|(_, block)| Happened::Alloc(*block));
        let mut ids = vec![0; self.sizes.len()];
        let mut streams = Vec::with_capacity(self.sizes.len());
        let (mut allocations, mut live_bytes) = (0_u32, 0);
        let mut refusals = self.refusals.iter_mut().peekable();
        let before = self.before.len() as u64;
        for (number, happened) in (0..).zip(first.chain(self.events)) {
            while let Some(refusal) = refusals.next_if(|next| before + next.events_before == number)
            {
                (refusal.live_bytes, refusal.blocks_after) = (live_bytes, allocations);
            }
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
        for refusal in refusals {
            (refusal.live_bytes, refusal.blocks_after) = (live_bytes, allocations);
        }
        for refusal in &mut self.refusals {
            refusal.events_before += before;
            refusal.blocks_after = allocations - refusal.blocks_after;
        }
        Ok(Trace {
            name,
            header: Vec::new(),
            events: Vec::new(),
            allocations,
            between: Vec::new(),
            streams,
            notes,
            refusals: self.refusals,
            settings,
            held_bytes: None,
        })
    }

    fn live_before(&mut self, address: u64, bytes: u64) -> Result<u32, Defect> {
        let block = self.block(bytes, None)?;
        self.before.push((address, block));
        self.counts.before += 1;
        self.counts.before_bytes = self.counts.before_bytes.saturating_add(bytes);
        Ok(block)
    }

    /// Adds a block. Returns its number.
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

impl RecordingCounts {
    /// Adds notes on these counts, one sentence for each.
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

/// Formats a count with its noun, which is in the plural unless the count is 1.
pub(super) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
