//! A suite that tests the promises of [`BlockAllocator`], for any allocator and through the trait alone.
//!
//! It runs on the algorithms, each decorator, stacks of decorators, and a device's allocators on real memory. It frees
//! everything, so it can run again on the same allocator.

use larder_core::{
    Addr, AddrRange, Align, AllocError, BestFit, Block, BlockAllocator, Chunk, EventNumber,
    FreeError, MemoryAccess, Pattern, RegionConfig, RegionPool, Rejected, Request, StreamId,
    StreamPoint,
};

use crate::Random;

/// The suite's expectations of an allocator, in addition to the trait's promises.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// Maximum number of live bytes, at least 256 KiB. The allocator must have this much memory, plus room for rounding
    /// and for decorators.
    pub capacity_bytes: u64,
    /// Maximum number of live blocks, at least 8.
    pub blocks: usize,
    /// The largest alignment to request, in bytes.
    pub max_align: u64,
    /// Whether a request of zero bytes gets a block rather than an error.
    pub zero_size: bool,
    /// Whether a free lowers the live bytes at once.
    pub frees_at_once: bool,
    /// Whether blocks may be freed after stream points. If not, such a free is refused with [`FreeError::NoStreams`].
    pub streams: bool,
    /// Whether a free refuses a point more than [`EventNumber::WINDOW`] ahead.
    pub refuses_far_events: bool,
    /// The stream of the suite's blocks.
    pub stream: StreamId,
    /// The last event of that stream that may be named. The suite may use all earlier events too.
    pub event: EventNumber,
}

impl Expect {
    /// Returns the strictest expectations: a megabyte, 24 blocks, alignments up to 64 KiB, and event 1 of the main
    /// stream.
    pub const fn strict() -> Self {
        Self {
            capacity_bytes: 1 << 20,
            blocks: 24,
            max_align: 64 << 10,
            zero_size: false,
            frees_at_once: true,
            streams: true,
            refuses_far_events: true,
            stream: StreamId::MAIN,
            event: EventNumber::new(1),
        }
    }
}

/// Tests all promises of the trait, in turn. Accesses memory through `access`.
///
/// # Panics
/// If a promise is broken; the message names it.
pub fn run(allocator: &impl BlockAllocator, access: &impl MemoryAccess, expect: Expect) {
    let suite = Suite {
        allocator,
        access,
        expect,
    };
    suite.sizes_are_told();
    suite.alignment_is_kept();
    suite.absurd_sizes_are_refused();
    suite.zero_size_is_as_expected();
    suite.foreign_blocks_come_back();
    if expect.streams {
        suite.points_are_taken();
    } else {
        suite.points_are_refused();
    }
    suite.counters_follow();
    for seed in 0..3 {
        suite.contents_stay(seed);
    }
}

struct Suite<'a, A, M> {
    allocator: &'a A,
    access: &'a M,
    expect: Expect,
}

impl<A: BlockAllocator, M: MemoryAccess> Suite<'_, A, M> {
    fn request(&self, bytes: u64) -> Request {
        Request::new(bytes).on(self.expect.stream)
    }

    fn alloc(&self, request: &Request) -> Block {
        let grant = self.allocator.alloc(request);
        let grant = grant.unwrap_or_else(|error| panic!("{request:?} is refused: {error}"));
        if let Some(point) = grant.wait {
            assert!(request.may_wait, "{request:?} would have to wait");
            let waited = self.access.wait(request.stream, point);
            waited.unwrap_or_else(|error| panic!("cannot wait for {point:?}: {error}"));
        }
        let block = grant.block;
        assert!(block.bytes() >= request.bytes, "{block:?} for {request:?}");
        let aligned = block.addr().is_aligned(request.align);
        assert!(aligned, "{block:?} for {request:?}");
        block
    }

    fn free(&self, block: Block) {
        let freed = self.allocator.free(block);
        freed.unwrap_or_else(|rejected| panic!("{rejected}"));
    }

    /// Returns a size of which the capacity holds several blocks.
    fn max_bytes(&self) -> u64 {
        self.expect.capacity_bytes / 16
    }

    fn sizes_are_told(&self) {
        let mut last = 0;
        for bytes in [
            1,
            2,
            3,
            7,
            8,
            255,
            256,
            257,
            1000,
            4096,
            4097,
            self.max_bytes(),
        ] {
            let block = self.alloc(&self.request(bytes));
            let told = self.allocator.requested_bytes(&block);
            let id = self.allocator.allocation_id(&block);
            if self.allocator.tracks_sizes() {
                assert_eq!(told, Some(bytes), "{block:?}");
                let id = id.expect("an allocator that tracks sizes numbers its blocks");
                assert!(id > last, "number {id} behind {last}");
                last = id;
            } else {
                assert_eq!((told, id), (None, None));
            }
            self.free(block);
        }
    }

    fn alignment_is_kept(&self) {
        for log in 0..=self.expect.max_align.ilog2() {
            let align = Align::new(1 << log).expect("a power of two");
            // The first block moves the next address off the alignment.
            let before = self.alloc(&self.request(1));
            for bytes in [1, 300] {
                let block = self.alloc(&self.request(bytes).aligned(align));
                self.free(block);
            }
            self.free(before);
        }
    }

    fn absurd_sizes_are_refused(&self) {
        let before = self.allocator.stats();
        for bytes in [
            u64::MAX,
            u64::MAX - 1,
            u64::MAX - 31,
            u64::MAX - 32,
            u64::MAX / 2,
        ] {
            let max = Align::new(1 << 63).expect("a power of two");
            for align in [Align::ONE, max] {
                let request = self.request(bytes).aligned(align);
                let outcome = self.allocator.alloc(&request);
                assert!(outcome.is_err(), "{request:?} gave {outcome:?}");
            }
        }
        let after = self.allocator.stats();
        assert_eq!(after.allocations, before.allocations);
        if self.expect.frees_at_once {
            assert_eq!(after.live_bytes, before.live_bytes);
        }
    }

    fn zero_size_is_as_expected(&self) {
        let outcome = self.allocator.alloc(&self.request(0));
        if self.expect.zero_size {
            let block = outcome.expect("zero bytes are given").block;
            assert_eq!(self.allocator.requested_bytes(&block), Some(0));
            self.free(block);
        } else {
            assert_eq!(outcome, Err(AllocError::ZeroSize));
        }
    }

    /// Frees a block of another allocator that has the same address as one of this allocator's blocks.
    fn foreign_blocks_come_back(&self) {
        let first = self.alloc(&self.request(300));
        let mut table = [Chunk::VACANT; 8];
        let config = RegionConfig {
            granule_bytes: 1,
            ..RegionConfig::fixed()
        };
        let mut other = RegionPool::new(config, &mut table).expect("a table for a few chunks");
        let range = AddrRange::new(first.addr(), 300).expect("a block is a range");
        other.add_region(range).expect("the first region");
        let foreign = other.alloc(&Request::new(300)).expect("it is free").block;
        assert_eq!(foreign.addr(), first.addr());
        assert_eq!(self.allocator.requested_bytes(&foreign), None);
        assert_eq!(self.allocator.allocation_id(&foreign), None);
        let before = self.allocator.stats();
        let Rejected {
            value: block,
            error,
        } = self
            .allocator
            .free(foreign)
            .expect_err("the block is another allocator's");
        assert_eq!((block.addr(), error), (first.addr(), FreeError::Unknown));
        let point = StreamPoint {
            stream: self.expect.stream,
            event: self.expect.event,
        };
        let rejected = self.allocator.free_after(block, point);
        let rejected = rejected.expect_err("the block is another allocator's");
        assert_eq!(
            self.allocator.stats(),
            before,
            "a refused free changes nothing"
        );
        other.free(rejected.value).expect("whose it is takes it");
        self.free(first);
    }

    /// An allocator without streams would allocate the memory again while work still uses it.
    fn points_are_refused(&self) {
        let stream = self.expect.stream;
        let event = self.expect.event;
        let block = self.alloc(&self.request(100));
        let before = self.allocator.stats();
        let rejected = self
            .allocator
            .free_after(block, StreamPoint { stream, event });
        let Rejected {
            value: block,
            error,
        } = rejected.expect_err("there are no streams");
        assert_eq!(error, FreeError::NoStreams);
        let after = self.allocator.stats();
        assert_eq!(after, before, "a refused free changes nothing");
        self.free(block);
    }

    fn points_are_taken(&self) {
        let stream = self.expect.stream;
        let event = self.expect.event;
        for bytes in [100, 5000] {
            let block = self.alloc(&self.request(bytes));
            let freed = self
                .allocator
                .free_after(block, StreamPoint { stream, event });
            freed.unwrap_or_else(|rejected| panic!("{rejected}"));
            // Work on one stream is ordered, so the new block needs no wait.
            let block = self.alloc(&self.request(bytes).without_wait());
            self.free(block);
        }
        if self.expect.refuses_far_events {
            let event = EventNumber::new(event.number() + 3 * EventNumber::WINDOW);
            let block = self.alloc(&self.request(100));
            let id = self.allocator.allocation_id(&block);
            let rejected = self
                .allocator
                .free_after(block, StreamPoint { stream, event });
            let Rejected {
                value: block,
                error,
            } = rejected.expect_err("the event is too far ahead");
            assert_eq!(error, FreeError::EventTooFar);
            assert_eq!(
                self.allocator.allocation_id(&block),
                id,
                "it is live as before"
            );
            self.free(block);
        }
    }

    fn counters_follow(&self) {
        let before = self.allocator.stats();
        let blocks: Vec<Block> = (1..=8)
            .map(|i| self.alloc(&self.request(100 * i)))
            .collect();
        let full = self.allocator.stats();
        assert_eq!(full.allocations, before.allocations + 8);
        if self.expect.frees_at_once {
            let granted: u64 = blocks.iter().map(Block::bytes).sum();
            assert!(full.live_bytes >= before.live_bytes + granted);
        }
        assert!(full.live_bytes <= full.peak_live_bytes);
        assert!(full.requested_bytes <= full.live_bytes);
        for block in blocks {
            self.free(block);
        }
        let after = self.allocator.stats();
        assert_eq!(
            after.allocations, full.allocations,
            "frees are no allocations"
        );
        if self.expect.frees_at_once {
            assert_eq!(after.live_bytes, before.live_bytes);
            assert_eq!(after.requested_bytes, before.requested_bytes);
        }
    }

    /// Fills random blocks up to the last granted byte, each with a value of its own. No block may overlap another, or
    /// a decorator's data.
    fn contents_stay(&self, seed: u64) {
        let mut random = Random::new(seed);
        let mut blocks: Vec<(Block, u64, Pattern)> = Vec::new();
        let mut live = 0;
        for step in 0..400u64 {
            let alloc = blocks.len() < 2 || random.below(5) > 1;
            let max = 1 << (1 + random.below(14));
            let bytes = 1 + random.below(max);
            if alloc
                && blocks.len() < self.expect.blocks
                && live + bytes <= self.expect.capacity_bytes / 4
            {
                let max = u64::from(self.expect.max_align.ilog2().min(11));
                let align = 1 << random.below(max + 1);
                let align = Align::new(align).expect("a power of two");
                let block = self.alloc(&self.request(bytes).aligned(align));
                for (other, ..) in &blocks {
                    let apart = !other.range().overlaps(block.range());
                    assert!(apart, "seed {seed}, step {step}: {other:?} and {block:?}");
                }
                let pattern = Pattern::of_u32(random.next_u64() as u32);
                let filled = self.access.fill(self.expect.stream, block.range(), pattern);
                filled.unwrap_or_else(|error| panic!("{block:?} is no memory: {error}"));
                live += bytes;
                blocks.push((block, bytes, pattern));
            } else if !blocks.is_empty() {
                let at = random.index(blocks.len());
                let (block, bytes, pattern) = blocks.swap_remove(at);
                self.holds(&block, pattern, seed, step);
                if random.below(3) == 0 && self.expect.streams {
                    let point = StreamPoint {
                        stream: self.expect.stream,
                        event: self.expect.event,
                    };
                    let freed = self.allocator.free_after(block, point);
                    freed.unwrap_or_else(|rejected| panic!("{rejected}"));
                } else {
                    self.free(block);
                }
                live -= bytes;
            }
        }
        for (block, _, pattern) in blocks {
            self.holds(&block, pattern, seed, 400);
            self.free(block);
        }
    }

    fn holds(&self, block: &Block, pattern: Pattern, seed: u64, step: u64) {
        let mut bytes = vec![0; block.bytes() as usize];
        let read = self
            .access
            .read(self.expect.stream, block.addr(), &mut bytes);
        read.unwrap_or_else(|error| panic!("{block:?} is no memory: {error}"));
        for (byte, offset) in bytes.iter().zip(0..) {
            let addr = Addr::new(block.addr().get() + offset);
            assert_eq!(
                *byte,
                pattern.at(offset),
                "seed {seed}, step {step}: {addr} of {block:?} has changed"
            );
        }
    }
}
