//! Tracking: its clock, its counters, and calls by other threads in the middle of its own.

use std::cell::{Cell, RefCell};

use super::ground::{Best, Untracked, alloc, best_fit};
use larder_core::decorate::{TrackRecord, TrackStats, Tracked};
use larder_core::{
    AllocError, Block, BlockAllocator, EventNumber, FreeError, Grant, Placement, Rejected, Request,
    Spin, Stats, StreamId, StreamPoint,
};
use larder_model::Random;
use larder_model::antman::Vmem;

const BYTES: u64 = 1 << 20;

fn record(bytes: i64, tick: u64, sequence: u64) -> TrackRecord {
    TrackRecord {
        bytes,
        tick,
        sequence,
    }
}

#[test]
fn records_have_the_clocks_tick_and_a_number_each() {
    let clock = Cell::new(100);
    let ticks = || {
        clock.set(clock.get() + 7);
        clock.get()
    };
    let allocator: Tracked<_, _, Spin> =
        Tracked::with_ticks(best_fit(BYTES, 4, 16), ticks, 8, None).unwrap();
    let (one, two) = (alloc(&allocator, 4), alloc(&allocator, 8));
    allocator.free(one).unwrap();
    allocator.free(two).unwrap();
    let mut records = [TrackRecord::default(); 3];
    assert_eq!(
        allocator.copy_records(&mut records),
        3,
        "as many as were asked for"
    );
    assert_eq!(
        records,
        [record(4, 107, 1), record(8, 114, 2), record(-4, 121, 3)]
    );
    let mut drained = Vec::new();
    allocator.drain_records(|record| drained.push(record));
    assert_eq!(drained.len(), 4);
    assert_eq!(drained[3], record(-8, 128, 4));
    allocator.drain_records(|record| panic!("{record:?} was taken out"));
    let block = alloc(&allocator, 4);
    allocator.free(block).unwrap();
    drained.clear();
    allocator
        .take_records(|record| drained.push(record))
        .unwrap();
    assert_eq!(drained, [record(4, 135, 5), record(-4, 142, 6)]);
}

fn run_beside_a_list<A: BlockAllocator>(allocator: &Tracked<A>, seed: u64) {
    let mut random = Random::new(seed);
    let mut blocks: Vec<Block> = Vec::new();
    let mut expected = TrackStats::default();
    for step in 0..500 {
        if random.below(2) == 0 && blocks.len() < 64 {
            let block = alloc(allocator, 1 + random.below(4000));
            expected.total_bytes += block.bytes();
            expected.live_bytes += block.bytes();
            expected.high_water_bytes = expected.high_water_bytes.max(expected.live_bytes);
            blocks.push(block);
        } else if !blocks.is_empty() {
            let at = random.index(blocks.len());
            let block = blocks.swap_remove(at);
            expected.live_bytes -= block.bytes();
            allocator.free(block).unwrap();
        }
        expected.live_blocks = blocks.len() as u64;
        let stats = allocator.track_stats();
        expected.dropped_records = stats.dropped_records;
        assert_eq!(stats, expected, "seed {seed}, step {step}");
    }
}

#[test]
fn numbers_follow_a_plain_list_of_live_blocks() {
    for seed in 0..10 {
        let inner = best_fit(BYTES, 256, 256);
        run_beside_a_list(&Tracked::new(&inner, 16).unwrap(), seed);
        let inner = best_fit(BYTES, 256, 256);
        run_beside_a_list(&Tracked::local(Untracked(&inner), 16, 64).unwrap(), seed);
    }
}

#[test]
fn a_host_side_with_a_table_of_sizes_takes_its_blocks_back() {
    let (device, host) = (best_fit(256, 256, 4), best_fit(256, 256, 4));
    let vmem = Vmem::new(
        Tracked::local(Untracked(&device), 8, 4).unwrap(),
        Tracked::local(Untracked(&host), 8, 4).unwrap(),
    );
    let first = vmem.alloc_placed(&Request::new(256)).unwrap();
    let second = vmem.alloc_placed(&Request::new(256)).unwrap();
    let sides = (first.placement, second.placement);
    assert_eq!(sides, (Placement::Device, Placement::Host));
    assert_eq!(vmem.placement(&second.grant.block), Some(Placement::Host));
    vmem.free(second.grant.block).unwrap();
    vmem.free(first.grant.block).unwrap();
    assert_eq!(vmem.vmem_stats().joint_live_bytes, 0);
    assert_eq!(host.stats().live_bytes + device.stats().live_bytes, 0);
}

#[test]
fn sides_that_do_not_know_their_blocks_get_them_back_all_the_same() {
    let (device, host) = (best_fit(256, 256, 4), best_fit(256, 256, 4));
    let vmem = Vmem::new(Untracked(&device), Untracked(&host));
    for _ in 0..3 {
        let [first, second] = [(); 2].map(|()| alloc(&vmem, 256));
        assert_eq!(vmem.placement(&second), None);
        let far = StreamPoint {
            stream: StreamId::MAIN,
            event: EventNumber::new(3 * EventNumber::WINDOW),
        };
        let rejected = vmem.free_after(second, far).unwrap_err();
        assert_eq!(vmem.vmem_stats().joint_live_bytes, 512);
        vmem.free(rejected.value).unwrap();
        vmem.free(first).unwrap();
        let stats = vmem.vmem_stats();
        assert_eq!((stats.joint_live_bytes, stats.joint_peak_bytes), (0, 512));
        assert_eq!((stats.device.live_bytes, stats.host.live_bytes), (0, 0));
    }
    let foreign = best_fit(256, 256, 4);
    let rejected = vmem.free(alloc(&foreign, 256)).unwrap_err();
    assert_eq!(rejected.error, FreeError::Unknown);
    assert_eq!(vmem.vmem_stats().joint_live_bytes, 0);
}

/// An allocator that runs `then` in the middle of a call, as another thread could.
struct Meanwhile {
    inner: Best,
    /// Runs once: before an allocation, after a free, or before a free behind a stream point.
    then: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Meanwhile {
    fn new(bytes: u64) -> &'static Self {
        let inner = best_fit(bytes, 256, 4);
        let then = RefCell::default();
        leaked(Self { inner, then })
    }

    fn next(&self, then: impl FnOnce() + 'static) {
        *self.then.borrow_mut() = Some(Box::new(then));
    }

    fn run(&self) {
        let then = self.then.borrow_mut().take();
        then.into_iter().for_each(|then| then());
    }
}

fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

impl BlockAllocator for Meanwhile {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        self.run();
        self.inner.alloc(request)
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        if point.is_some() {
            self.run();
        }
        self.inner.free_at(block, point)?;
        if point.is_none() {
            self.run();
        }
        Ok(())
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.inner.requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.inner.allocation_id(block)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

#[test]
fn memory_given_again_while_its_free_returns_is_not_counted_twice() {
    let below = Meanwhile::new(256);
    let allocator = leaked(Tracked::new(below, 8).unwrap());
    let second = leaked(RefCell::new(None));
    let block = alloc(&allocator, 256);
    below.next(move || *second.borrow_mut() = Some(alloc(&allocator, 256)));
    allocator.free(block).unwrap();
    let stats = allocator.track_stats();
    assert_eq!((stats.high_water_bytes, stats.live_bytes), (256, 256));
    assert_eq!((stats.total_bytes, stats.live_blocks), (512, 1));
    allocator.free(second.take().unwrap()).unwrap();
    assert_eq!(allocator.track_stats().live_bytes, 0);
}

#[test]
fn a_refused_free_of_a_foreign_block_leaves_the_counts_alone() {
    let (below, other) = (Meanwhile::new(BYTES), best_fit(BYTES, 256, 4));
    let allocator = leaked(Tracked::new(below, 8).unwrap());
    let (block, foreign) = (alloc(&allocator, 256), alloc(&other, 1024));
    let before = allocator.track_stats();
    below.next(move || assert_eq!(allocator.track_stats(), before, "nor meanwhile"));
    let point = StreamPoint {
        stream: StreamId::MAIN,
        event: EventNumber::new(1),
    };
    let rejected = allocator.free_after(foreign, point).unwrap_err();
    assert_eq!(allocator.track_stats(), before);
    other.free(rejected.value).unwrap();
    allocator.free(block).unwrap();
}

fn done_after_the_last_block<A: BlockAllocator>(below: &Meanwhile, allocator: &'static Tracked<A>) {
    below.next(|| {
        allocator.take_records(drop).unwrap();
        assert!(!allocator.is_done(), "an allocation is under way");
    });
    let block = alloc(&allocator, 100);
    assert!(!allocator.is_done());
    assert_eq!(allocator.alloc(&Request::new(1)), Err(AllocError::Closed));
    allocator.free(block).unwrap();
    assert!(allocator.is_done());
}

#[test]
fn nobody_is_done_while_a_block_is_still_to_be_given() {
    let below = Meanwhile::new(BYTES);
    done_after_the_last_block(below, leaked(Tracked::new(below, 8).unwrap()));
    let below = Meanwhile::new(BYTES);
    let local = Tracked::local(Untracked(below), 8, 4).unwrap();
    done_after_the_last_block(below, leaked(local));
}
