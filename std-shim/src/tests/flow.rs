//! The flow of blocks between threads: back to their owner soon where they are of no use, and in
//! whole lists.

use larder_core::small::{Policy, SizeClass, ThreadCache};

use super::directed::Directed;
use super::faulty::Plan;
use super::verbs::ClaimOutcome;

const SIZE: usize = 264;
/// The threads: one that allocates and one that frees.
const PRODUCER: usize = 0;
const CONSUMER: usize = 1;

fn class() -> SizeClass {
    SizeClass::of(SIZE, 8).unwrap()
}

fn pipe() -> Directed {
    Directed::under(Plan::Willing)
}

fn bin_blocks() -> usize {
    class().bin_blocks(Policy::BALANCED.bin_bytes as usize)
}

#[test]
fn what_a_thread_only_frees_does_not_pile_up_there() {
    let mut pipe = pipe();
    let blocks = pipe.make_all(PRODUCER, SIZE, 4000);
    let bytes = pipe.stats().span_bytes;
    pipe.free(CONSUMER, blocks);
    // A full bin is 124 of these; no transfer cache has as many again.
    assert!(pipe.ready(CONSUMER, SIZE) <= bin_blocks());
    let blocks = pipe.make_all(PRODUCER, SIZE, 4000 - bin_blocks());
    assert_eq!(pipe.stats().span_bytes, bytes, "the blocks had come back");
    pipe.free(CONSUMER, blocks);
    pipe.end([]);
}

#[test]
fn blocks_of_another_thread_go_home_in_lists_as_long_as_a_bin() {
    let (mut pipe, bin) = (pipe(), bin_blocks());
    let mut lists = 0;
    for block in pipe.make_all(PRODUCER, SIZE, 64 * bin) {
        let before = pipe.ready(CONSUMER, SIZE);
        pipe.free(CONSUMER, [block]);
        lists += usize::from(pipe.ready(CONSUMER, SIZE) <= before);
    }
    // The first lists are short; each later one is twice as long.
    assert!(lists <= 64 + bin.ilog2() as usize, "{lists} lists");
    pipe.end([]);
}

#[test]
fn a_thread_that_ends_sends_home_what_it_freed_of_others() {
    let mut pipe = pipe();
    let blocks = pipe.make_all(PRODUCER, SIZE, 4000);
    pipe.free(CONSUMER, blocks);
    assert!(pipe.ready(CONSUMER, SIZE) > 0);
    // The next thread has the same heap.
    pipe.restart(CONSUMER);
    let block = pipe.make(CONSUMER, 1000);
    assert_eq!(pipe.ready(CONSUMER, SIZE), 0);
    pipe.end([block]);
}

#[test]
fn a_thread_that_begins_to_allocate_keeps_whole_bins_from_then_on() {
    let mut pipe = pipe();
    let blocks = pipe.make_all(PRODUCER, SIZE, 1000);
    pipe.free(CONSUMER, blocks);
    let own = pipe.make_all(CONSUMER, SIZE, 1000);
    let max = own.into_iter().map(|block| {
        pipe.free(CONSUMER, [block]);
        pipe.ready(CONSUMER, SIZE)
    });
    // After the first bin was emptied, too.
    assert_eq!(max.skip(500).max(), Some(bin_blocks()));
    pipe.end([]);
}

#[test]
fn what_others_freed_is_taken_as_a_whole_and_the_next_frees_find_room() {
    let mut pipe = pipe();
    // One span's blocks except a few, so that the span is kept, and some of the next span's.
    let mut gone = pipe.make_all(PRODUCER, SIZE, 248 + 62);
    let mut kept = gone.split_off(240);
    pipe.free(CONSUMER, gone);
    let process = pipe.process();
    pipe.threads[CONSUMER].flush(process);
    let ready = pipe.ready(PRODUCER, SIZE);
    let again = pipe.make_all(PRODUCER, SIZE, ready + 1);
    let whole = pipe.ready(PRODUCER, SIZE);
    assert!(whole > bin_blocks(), "only {whole} were taken");
    for block in kept.drain(..bin_blocks() / 4) {
        let cache = pipe.threads[PRODUCER].cache;
        // SAFETY: a block of this class, which this test gives up.
        let taken = unsafe { ThreadCache::push(cache, class(), block.start) };
        assert!(taken, "no room for a free right after a refill");
    }
    pipe.end(kept.into_iter().chain(again));
}

#[test]
fn a_thread_that_only_frees_keeps_a_bin_of_long_blocks_at_most() {
    for bytes in [1000, 2000, 8000] {
        let class = SizeClass::of(bytes, 8).unwrap();
        let mut pipe = pipe();
        for block in pipe.make_all(PRODUCER, bytes, 100) {
            pipe.free(CONSUMER, [block]);
            let kept = pipe.ready(CONSUMER, bytes) * class.block_bytes();
            assert!(kept <= 32 << 10, "{kept} of {bytes}");
        }
        pipe.end([]);
    }
}

/// Allocates a span's blocks. Also returns the maximum bytes that a refill left cached.
fn cut_span(pipe: &mut Directed) -> (Vec<ClaimOutcome>, usize) {
    let count = (64 << 10) / class().block_bytes();
    let mut most = 0;
    let blocks = (0..count).map(|_| {
        let block = pipe.make(PRODUCER, SIZE);
        most = most.max(1 + pipe.ready(PRODUCER, SIZE));
        block
    });
    (blocks.collect(), most * class().block_bytes())
}

#[test]
fn the_first_span_of_a_class_gives_written_memory_back_and_later_ones_use_it() {
    let mut pipe = pipe();
    let written = pipe.make(PRODUCER, 256 << 10);
    pipe.free(PRODUCER, [written]);
    let (first, most) = cut_span(&mut pipe);
    assert_eq!(pipe.purged(), 64 << 10);
    assert!(most <= 4 << 10, "a page at a time, not {most}");
    let (second, most) = cut_span(&mut pipe);
    assert_eq!(pipe.purged(), 64 << 10);
    assert!(most > 8 << 10, "several pages at a time, not {most}");
    pipe.free(CONSUMER, first.into_iter().chain(second));
    pipe.end([]);
}
