//! What one allocation looks at before the range grows, however many chunks queued work keeps apart.

use crate::bfc::Chunk;
use crate::bfc::paged::{
    Backing, Handle, Mapping, PageCall, PageDriver, PageTables, PagedBfc, PagedConfig, Place,
};
use crate::bfc::search::LOOKS_BEFORE_GROWTH as LOOKS;
use crate::block::Request;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::sub_allocator::SubAllocError;
use crate::units::{Addr, AddrRange};

struct Yes;

impl PageDriver for Yes {
    fn call(&self, _: PageCall) -> Result<(), SubAllocError> {
        Ok(())
    }
}

#[test]
fn before_growth_a_bounded_number_of_chunks_is_looked_at_and_in_the_end_all_are_joined() {
    const BLOCKS: usize = 4 * LOOKS as usize;
    let mut chunks = [Chunk::VACANT; 2 * BLOCKS];
    let (mut places, mut handles) = ([Place::EMPTY; 64], [Handle::VACANT; 65]);
    let mut mappings = [Mapping::VACANT; 256];
    let tables = PageTables {
        places: &mut places,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let addresses = AddrRange::new(Addr::new(1 << 32), 128 << 20).unwrap();
    let config = PagedConfig::new(addresses, Backing::Billed);
    let mut paged = PagedBfc::with_tables(config, &mut chunks, tables).unwrap();
    let (streams, event) = ([0, 2].map(StreamId::new), EventNumber::new(1));
    let small = Request::new(2048);
    let blocks = [(); BLOCKS].map(|()| paged.alloc_over(&Yes, &small).unwrap().block);
    for (block, stream) in blocks.into_iter().zip(streams.into_iter().cycle()) {
        paged
            .free_after(block, StreamPoint { stream, event })
            .unwrap();
    }
    let looks = |paged: &mut PagedBfc<'_>, mib: u64| {
        let request = Request::new(mib << 20).on(StreamId::new(1));
        paged.streams.looks.set(0);
        let _block = paged.alloc_over(&Yes, &request).unwrap();
        paged.streams.looks.get() as u32
    };
    assert!(looks(&mut paged, 3) < 4 * LOOKS, "all in use");
    for stream in streams {
        paged.complete(stream, event);
    }
    let apart = paged.table.in_use();
    for _ in 0..5 {
        let seen = looks(&mut paged, 3);
        assert!(seen < 8 * LOOKS, "{seen} looks");
    }
    paged.check_invariants().unwrap();
    let joined = paged.table.in_use();
    assert!(apart as usize > BLOCKS && joined < 100);
    // With as few chunks as that one search clears them all, however many there were.
    for first in [0, 1] {
        let blocks = [(); 40].map(|()| paged.alloc_over(&Yes, &small).unwrap().block);
        let event = EventNumber::new(2 + first);
        for (block, stream) in blocks.into_iter().zip(streams.into_iter().cycle()) {
            paged
                .free_after(block, StreamPoint { stream, event })
                .unwrap();
        }
        assert!(paged.table.in_use() > joined + 20);
        for stream in streams {
            paged.complete(stream, event);
        }
        looks(&mut paged, 24 + 2 * first);
        assert!(paged.table.in_use() < joined + 20, "{first}");
    }
}
