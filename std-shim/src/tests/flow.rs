//! The flow of blocks between threads: back to their owner soon where they are of no use, and in
//! whole lists.

use std::alloc::Layout;

use larder_core::small::{Policy, SizeClass, ThreadCache};

use super::drive::World;
use super::faulty::Plan;
use super::verbs::Verbs;
use crate::stats::Stats;
use crate::thread::local::Local;

const LAYOUT: Layout = Layout::new::<[u8; 264]>();

fn class() -> SizeClass {
    SizeClass::of(LAYOUT.size(), LAYOUT.align()).unwrap()
}

/// One thread that allocates and one that frees, in a world of their own.
struct Pipe {
    world: World,
    producer: Local,
    consumer: Local,
}

impl Pipe {
    fn new() -> Self {
        Self {
            world: World::new(Plan::Willing, 1, 1),
            producer: Local::new(),
            consumer: Local::new(),
        }
    }

    fn verbs(&self) -> Verbs {
        self.world.verbs()
    }

    fn produce(&mut self, count: usize) -> Vec<*mut u8> {
        let verbs = self.verbs();
        let mut alloc = || verbs.alloc(&mut self.producer, LAYOUT, false);
        let blocks: Vec<*mut u8> = (0..count).map(|_| alloc()).collect();
        assert!(blocks.iter().all(|block| !block.is_null()));
        blocks
    }

    fn consume(&mut self, blocks: &[*mut u8]) {
        for block in blocks {
            self.verbs().free(&mut self.consumer, *block, LAYOUT);
        }
    }

    /// Returns the bytes in spans.
    fn span_bytes(&self) -> u64 {
        Stats::count(self.verbs().process, &self.producer).span_bytes
    }

    fn end(mut self) {
        let process = self.verbs().process;
        self.world.assert_sound();
        self.producer.end(process);
        self.consumer.end(process);
        self.world.end();
    }
}

fn bin_blocks() -> usize {
    class().bin_blocks(Policy::BALANCED.bin_bytes as usize)
}

#[test]
fn what_a_thread_only_frees_does_not_pile_up_there() {
    let mut pipe = Pipe::new();
    let blocks = pipe.produce(4000);
    let bytes = pipe.span_bytes();
    pipe.consume(&blocks);
    // A full bin is 124 of these; no transfer cache has as many again.
    assert!(pipe.consumer.ready_blocks(class()) <= bin_blocks());
    let blocks = pipe.produce(4000 - bin_blocks());
    assert_eq!(pipe.span_bytes(), bytes, "the blocks had come back");
    pipe.consume(&blocks);
    pipe.end();
}

#[test]
fn blocks_of_another_thread_go_home_in_lists_as_long_as_a_bin() {
    let mut pipe = Pipe::new();
    let (verbs, bin) = (pipe.verbs(), bin_blocks());
    let blocks = pipe.produce(64 * bin);
    let mut lists = 0;
    for block in blocks {
        let before = pipe.consumer.ready_blocks(class());
        verbs.free(&mut pipe.consumer, block, LAYOUT);
        lists += usize::from(pipe.consumer.ready_blocks(class()) <= before);
    }
    // The first lists are short; each later one is twice as long.
    assert!(lists <= 64 + bin.ilog2() as usize, "{lists} lists");
    pipe.end();
}

#[test]
fn a_thread_that_ends_sends_home_what_it_freed_of_others() {
    let mut pipe = Pipe::new();
    let blocks = pipe.produce(4000);
    pipe.consume(&blocks);
    assert!(pipe.consumer.ready_blocks(class()) > 0);
    let verbs = pipe.verbs();
    pipe.consumer.end(verbs.process);
    // The next thread has the same heap.
    pipe.consumer = Local::new();
    let other = Layout::new::<[u8; 1000]>();
    let block = verbs.alloc(&mut pipe.consumer, other, false);
    assert_eq!(pipe.consumer.ready_blocks(class()), 0);
    verbs.free(&mut pipe.consumer, block, other);
    pipe.end();
}

#[test]
fn a_thread_that_begins_to_allocate_keeps_whole_bins_from_then_on() {
    let mut pipe = Pipe::new();
    let blocks = pipe.produce(1000);
    pipe.consume(&blocks);
    let verbs = pipe.verbs();
    let mut own = || verbs.alloc(&mut pipe.consumer, LAYOUT, false);
    let own: Vec<_> = (0..1000).map(|_| own()).collect();
    let max = own.iter().map(|block| {
        verbs.free(&mut pipe.consumer, *block, LAYOUT);
        pipe.consumer.ready_blocks(class())
    });
    // After the first bin was emptied, too.
    assert_eq!(max.skip(500).max(), Some(bin_blocks()));
    pipe.end();
}

#[test]
fn what_others_freed_is_taken_as_a_whole_and_the_next_frees_find_room() {
    let mut pipe = Pipe::new();
    // One span's blocks except a few, so that the span is kept, and some of the next span's.
    let blocks = pipe.produce(248 + 62);
    let (gone, kept) = blocks.split_at(240);
    pipe.consume(gone);
    let process = pipe.verbs().process;
    pipe.consumer.flush(process);
    let ready = pipe.producer.ready_blocks(class());
    let again = pipe.produce(ready + 1);
    let whole = pipe.producer.ready_blocks(class());
    assert!(whole > bin_blocks(), "only {whole} were taken");
    let (first, rest) = kept.split_at(bin_blocks() / 4);
    for block in first {
        // SAFETY: a block of this class, which this test gives up.
        let taken = unsafe { ThreadCache::push(pipe.producer.cache, class(), *block) };
        assert!(taken, "no room for a free right after a refill");
    }
    for block in rest.iter().chain(&again) {
        pipe.verbs().free(&mut pipe.producer, *block, LAYOUT);
    }
    pipe.end();
}

#[test]
fn a_thread_that_only_frees_keeps_a_bin_of_long_blocks_at_most() {
    for bytes in [1000, 2000, 8000] {
        let layout = Layout::from_size_align(bytes, 8).unwrap();
        let class = SizeClass::of(bytes, 8).unwrap();
        let mut pipe = Pipe::new();
        let verbs = pipe.verbs();
        let mut alloc = || verbs.alloc(&mut pipe.producer, layout, false);
        let blocks: Vec<_> = (0..100).map(|_| alloc()).collect();
        for block in blocks {
            verbs.free(&mut pipe.consumer, block, layout);
            let kept = pipe.consumer.ready_blocks(class) * class.block_bytes();
            assert!(kept <= 32 << 10, "{kept} of {bytes}");
        }
        pipe.end();
    }
}

/// Allocates a span's blocks. Also returns the maximum bytes that a refill left cached.
fn cut_span(pipe: &mut Pipe) -> (Vec<*mut u8>, usize) {
    let verbs = pipe.verbs();
    let count = (64 << 10) / class().block_bytes();
    let mut most = 0;
    let blocks = (0..count)
        .map(|_| {
            let block = verbs.alloc(&mut pipe.producer, LAYOUT, false);
            most = most.max(1 + pipe.producer.ready_blocks(class()));
            block
        })
        .collect();
    (blocks, most * class().block_bytes())
}

#[test]
fn the_first_span_of_a_class_gives_written_memory_back_and_later_ones_use_it() {
    let mut pipe = Pipe::new();
    let process = pipe.verbs().process;
    let written = process.alloc_large(256 << 10, 16).unwrap();
    // SAFETY: given just now, that long.
    unsafe { written.write_bytes(1, 256 << 10) };
    assert!(process.free_large(written.as_ptr(), 256 << 10));
    let purged = || process.purger.purged_bytes();
    let (first, most) = cut_span(&mut pipe);
    assert_eq!(purged(), 64 << 10);
    assert!(most <= 4 << 10, "a page at a time, not {most}");
    let (second, most) = cut_span(&mut pipe);
    assert_eq!(purged(), 64 << 10);
    assert!(most > 8 << 10, "several pages at a time, not {most}");
    pipe.consume(&first);
    pipe.consume(&second);
    pipe.end();
}
