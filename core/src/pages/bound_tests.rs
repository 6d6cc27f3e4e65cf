//! Before the range grows, one allocation examines a bounded number of chunks, even if queued work keeps many apart.

use crate::best_fit::BestFit;
use crate::block::{BlockAllocator, Request};
use crate::engine::{Chunk, LOOKS_BEFORE_GROWTH as LOOKS};
use crate::pages::{
    Backing, Handle, Mapping, PageCall, PageConfig, PageDriver, PageEntry, PagePool, PageTables,
};
use crate::shared::Shared;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::sub_allocator::SubAllocError;
use crate::units::{Addr, AddrRange};

pub(super) struct Yes;

impl PageDriver for Yes {
    fn call(&self, _: PageCall) -> Result<(), SubAllocError> {
        Ok(())
    }
}

#[test]
fn before_growth_a_bounded_number_of_chunks_is_looked_at_and_in_the_end_all_are_joined() {
    const BLOCKS: usize = 4 * LOOKS as usize;
    let mut chunks = [Chunk::VACANT; 2 * BLOCKS];
    let (mut entries, mut handles) = ([PageEntry::EMPTY; 64], [Handle::VACANT; 65]);
    let mut mappings = [Mapping::VACANT; 256];
    let tables = PageTables {
        entries: &mut entries,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let addresses = AddrRange::new(Addr::new(1 << 32), 128 << 20).unwrap();
    let config = PageConfig::new(addresses, Backing::Billed);
    let pool = PagePool::new(config, &mut chunks, tables).unwrap();
    let mut shared = Shared::new(pool, Yes);
    let (streams, event) = ([0, 2].map(StreamId::new), EventNumber::new(1));
    let small = Request::new(2048);
    let blocks = [(); BLOCKS].map(|()| shared.alloc(&small).unwrap().block);
    for (block, stream) in blocks.into_iter().zip(streams.into_iter().cycle()) {
        let point = StreamPoint { stream, event };
        shared.free_after(block, point).unwrap();
    }
    let looks = |shared: &Shared<PagePool<'_>, Yes>, mib: u64| {
        let request = Request::new(mib << 20).on(StreamId::new(1));
        shared.with(|pool| pool.chunks.looks().set(0));
        let _block = shared.alloc(&request).unwrap();
        shared.with(|pool| pool.chunks.looks().get() as u32)
    };
    let records = |shared: &Shared<PagePool<'_>, Yes>| {
        shared.with(|pool| 2 * BLOCKS as u32 - pool.chunks.vacant_records())
    };
    assert!(looks(&shared, 3) < 4 * LOOKS, "all in use");
    for stream in streams {
        shared.complete(stream, event);
    }
    let apart = records(&shared);
    for _ in 0..5 {
        let seen = looks(&shared, 3);
        assert!(seen < 8 * LOOKS, "{seen} looks");
    }
    shared.get_mut().check_invariants().unwrap();
    let joined = records(&shared);
    assert!(apart as usize > BLOCKS && joined < 100);
    // Now that there are few chunks, one search clears the points of all.
    for first in [0, 1] {
        let blocks = [(); 40].map(|()| shared.alloc(&small).unwrap().block);
        let event = EventNumber::new(2 + first);
        for (block, stream) in blocks.into_iter().zip(streams.into_iter().cycle()) {
            let point = StreamPoint { stream, event };
            shared.free_after(block, point).unwrap();
        }
        assert!(records(&shared) > joined + 20);
        for stream in streams {
            shared.complete(stream, event);
        }
        looks(&shared, 24 + 2 * first);
        assert!(records(&shared) < joined + 20, "{first}");
    }
}
