//! Larder's contenders with moving pages: `larder-core`'s paged best fit over the model of a device
//! that maps pages.
//!
//! The device counts every driver call. If the contender is [judged](Contender::judge), the device
//! also learns which blocks are live, and reports a live byte that has no memory or shares it with
//! another one.

use std::time::Duration;

use larder_core::pages::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables};
use larder_core::steps::{Served, Steps};
use larder_core::{Addr, AddrRange, BestFit, BlockAllocator, Chunk, ChunkInfo, Granule, Shared};
use larder_model::PageDevice;

use crate::ours::backed;
use crate::planned;
use crate::replay::{Contender, ContenderBlock, DriverCalls, Spare, StepFigures};
use crate::snapshot::Span;
use crate::streams::StreamOrder;

/// Bytes of a page, which is the smallest unit that the device maps.
const PAGE_BYTES: u64 = 2 << 20;

/// First address. It is not 0, so that a forgotten base shows.
const BASE: u64 = 1 << 40;

/// Bytes of reserved addresses: 768 GiB, less than 2^32 granules of 256 bytes.
const ADDRESS_BYTES: u64 = 768 << 30;

/// Number of places lent to each allocator, one for each page of addresses.
const PLACES: usize = (ADDRESS_BYTES / PAGE_BYTES) as usize;

/// Number of handles, mappings and chunks lent to each allocator, far more than any trace needs.
const HANDLES: usize = 1 << 15;
const MAPPINGS: usize = 1 << 17;
const CHUNKS: usize = 1 << 17;

/// Builds Larder's default: pages move before more memory is requested.
pub(crate) fn larder(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(Paged::new(Backing::Billed, device_bytes))
}

/// Builds Larder with all of the device's memory as its budget: pages move once all of it is held.
pub(crate) fn larder_budget(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let backing = Backing::Budget(device_bytes.unwrap_or(u64::MAX));
    Box::new(Paged::new(backing, device_bytes))
}

/// Builds Larder with planned steps; pages move as in [`larder`].
pub(crate) fn planned(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let mut planned = Paged::new(Backing::Billed, device_bytes);
    planned.steps = Some(planned::steps());
    Box::new(planned)
}

/// A paged allocator of the core, as a contender.
struct Paged {
    /// `None` only while the value is dropped.
    pool: Option<Shared<PagePool<'static>, PageDevice>>,
    /// The planned steps, if steps are planned.
    steps: Option<Steps<'static>>,
    streams: StreamOrder,
    judged: bool,
}

impl Paged {
    /// Builds a new allocator on a device of `device_bytes`, or without a limit.
    #[expect(clippy::expect_used, reason = "policies are constants of this program")]
    fn new(backing: Backing, device_bytes: Option<u64>) -> Self {
        let capacity_bytes = device_bytes.unwrap_or(u64::MAX);
        let addresses = AddrRange::new(Addr::new(BASE), ADDRESS_BYTES);
        let addresses = addresses.expect("ends below 2^64");
        let mut config = PageConfig::new(addresses, backing);
        config.page_bytes = PAGE_BYTES;
        config.limit_bytes = capacity_bytes;
        let device = PageDevice::new(PAGE_BYTES, capacity_bytes);
        device.time_calls();
        let (chunks, tables) = TABLES.take(new_tables);
        let pool = PagePool::new(config, chunks, tables).expect("the policies agree");
        Self {
            pool: Some(Shared::new(pool, device)),
            steps: None,
            streams: StreamOrder::new(CHUNKS),
            judged: false,
        }
    }

    fn device(&self) -> Option<&PageDevice> {
        Some(self.pool.as_ref()?.source())
    }

    fn next_operation(&mut self) {
        if let (Some(done), Some(pool)) = (self.streams.next_operation(), &mut self.pool) {
            pool.get_mut().complete(done.stream, done.event);
            if self.judged {
                pool.source().complete(done);
            }
        }
    }

    /// Frees a block. Returns `None` if it is not live.
    fn try_free(&mut self, slot: ContenderBlock) -> Option<()> {
        self.next_operation();
        let point = self.streams.freed(slot);
        let shared = self.pool.as_mut()?;
        let pool = shared.get_mut();
        let block = pool.block_from_raw(slot.raw()?).ok()?;
        if self.judged {
            shared.source().end_use(block.range(), point);
        }
        let Some(steps) = &mut self.steps else {
            let pool = shared.get_mut();
            return match point {
                Some(point) => pool.free_after(block, point).ok(),
                None => pool.free(block).ok(),
            };
        };
        steps.free(&mut &*shared, block).ok()
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            TABLES.give(pool.into_parts().0.into_tables());
        }
        planned::give(self.steps.take());
    }
}

impl Contender for Paged {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        self.alloc_on(0, bytes)
    }

    fn alloc_on(&mut self, stream: u8, bytes: u64) -> Option<ContenderBlock> {
        // Planned steps use one stream.
        let stream = self.steps.as_ref().map_or(stream, |_| 0);
        self.next_operation();
        let pool = self.pool.as_mut()?;
        let request = StreamOrder::request(stream, bytes);
        let grant = match &mut self.steps {
            Some(steps) => match steps.alloc(&mut &*pool, &request).ok()? {
                Served::Here(grant) => grant,
                Served::Elsewhere(_) => return None,
            },
            None => match pool.get_mut().try_alloc_now(&request) {
                Some(grant) => grant,
                None => pool
                    .alloc(&request)
                    .or_else(|_| {
                        for done in self.streams.wait() {
                            pool.complete(done.stream, done.event);
                            if self.judged {
                                pool.source().complete(done);
                            }
                        }
                        pool.alloc(&request)
                    })
                    .ok()?,
            },
        };
        if self.judged {
            pool.source().begin_use(grant.block.range(), request.stream);
        }
        let slot = ContenderBlock::of(grant.block);
        self.streams.came(slot, stream);
        Some(slot)
    }

    fn free(&mut self, slot: ContenderBlock) {
        let freed = self.try_free(slot);
        assert!(freed.is_some(), "the replay frees only live blocks");
    }

    fn reserved_bytes(&self) -> u64 {
        self.device().map_or(0, PageDevice::held_bytes)
    }

    fn max_reserved_bytes(&self) -> Option<u64> {
        Some(self.device()?.peak_bytes())
    }

    fn driver_calls(&self) -> Option<DriverCalls> {
        let calls = self.device()?.calls();
        Some(DriverCalls {
            create: calls.create,
            map: calls.map,
            unmap: calls.unmap,
            release: calls.release,
            set_access: calls.set_access,
        })
    }

    fn driver_time(&self) -> Duration {
        self.device()
            .map_or(Duration::ZERO, PageDevice::time_in_calls)
    }

    fn end_step(&mut self) {
        if let Some(steps) = &mut self.steps {
            steps.begin(0);
        }
    }

    fn start_over(&mut self) {
        if let (Some(pool), Some(steps)) = (&self.pool, &mut self.steps) {
            pool.release(u64::MAX);
            steps.start_over();
        }
    }

    fn steps(&self) -> Option<StepFigures> {
        Some(self.steps.as_ref()?.stats().into())
    }

    fn held(&self) -> Option<Vec<Span>> {
        let mut held = Vec::new();
        let mut hold = |chunk: ChunkInfo| held.extend(backed(chunk.range, chunk.state));
        let pool = self.pool.as_ref()?;
        pool.with(|pool| pool.for_each_chunk(&mut hold));
        Some(held)
    }

    fn planned_bytes(&self) -> Option<u64> {
        self.steps.as_ref()?.planned_bytes(Granule::DEFAULT)
    }

    fn planner(&mut self) -> Option<&mut Steps<'static>> {
        self.steps.as_mut()
    }

    fn judge(&mut self) {
        self.judged = true;
    }

    fn broken_rule(&self) -> Option<String> {
        let pool = self.pool.as_ref()?;
        let (counted, device) = (pool.stats().reserved_bytes, pool.source());
        let held = device.held_bytes();
        device.violation().or_else(|| {
            (counted != held)
                .then(|| format!("{counted} bytes are counted as reserved, the device gave {held}"))
        })
    }
}

/// The tables lent to one allocator.
type Tables = (&'static mut [Chunk], PageTables<'static>);

static TABLES: Spare<Tables> = Spare::new();

fn new_tables() -> Tables {
    let tables = PageTables {
        entries: vec![PageEntry::EMPTY; PLACES].leak(),
        handles: vec![Handle::VACANT; HANDLES].leak(),
        mappings: vec![Mapping::VACANT; MAPPINGS].leak(),
    };
    (vec![Chunk::VACANT; CHUNKS].leak(), tables)
}

#[cfg(test)]
mod tests {
    use larder_core::pages::{PageCall, PageDriver};

    use super::*;

    /// Allocates the first block: one page of addresses, backed by one page of memory.
    fn first_block(judged: bool) -> (Paged, ContenderBlock, PageCall) {
        let mut paged = Paged::new(Backing::Billed, None);
        if judged {
            paged.judge();
        }
        let slot = paged.alloc(PAGE_BYTES).unwrap();
        let range = AddrRange::new(Addr::new(slot.address), PAGE_BYTES).unwrap();
        (paged, slot, PageCall::Unmap { handle: 1, range })
    }

    #[test]
    fn a_judged_device_knows_what_is_live_and_an_unjudged_one_does_not() {
        for judged in [true, false] {
            let (paged, _, unmap) = first_block(judged);
            assert_eq!(paged.broken_rule(), None);
            paged.device().unwrap().call(unmap).unwrap();
            assert_eq!(paged.broken_rule().is_some(), judged);
        }
    }

    #[test]
    fn a_judged_device_knows_what_was_freed() {
        let (mut paged, slot, unmap) = first_block(true);
        paged.free(slot);
        paged.device().unwrap().call(unmap).unwrap();
        assert_eq!(paged.broken_rule(), None);
    }

    #[test]
    fn bytes_that_are_counted_wrong_break_a_rule() {
        let (paged, _, _) = first_block(false);
        let bytes = PAGE_BYTES;
        let create = PageCall::Create { handle: 99, bytes };
        paged.device().unwrap().call(create).unwrap();
        let rule = paged.broken_rule().unwrap();
        assert!(rule.starts_with("2097152 bytes are counted"), "{rule}");
    }
}
