//! Pages move while several streams work: in any order that events allow, every block keeps its bytes, and
//! no two accesses conflict. Only the stand-in can choose the order.

use crate::common;

use std::collections::VecDeque;
use std::sync::Arc;

use common::{MIB, alone, assert_clean, ran_in_child, regions_of};
use cudarc::driver::{CudaStream, result};
use larder_core::pages::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables};
use larder_core::{
    Align, BestFit, Block, BlockAllocator, Chunk, EventNumber, GrowRequest, RegionPool, Request,
    Shared, StreamId, StreamPoint, SubAllocator,
};
use larder_cuda::driver::{Rule, StandIn};
use larder_cuda::{Context, Event, EventConfig, PinnedMemory, VirtualMemory};
use larder_cuda_abi::Code;
use larder_model::Random;

/// Seeds of each kind of program.
const SEEDS: u64 = 500;

/// Streams of a program.
const STREAMS: usize = 3;

/// Things that a program does.
const ACTS: usize = 80;

/// The bytes of each page that are written and read.
const WRITTEN: u64 = 64;

/// An allocator of a program.
trait AnyPool: BlockAllocator {
    fn complete(&self, stream_id: StreamId, number: EventNumber);

    /// Releases idle memory.
    fn relieve(&self, bytes: u64);
}

impl AnyPool for Shared<PagePool<'_>, &VirtualMemory> {
    fn complete(&self, stream_id: StreamId, number: EventNumber) {
        Shared::complete(self, stream_id, number);
    }

    fn relieve(&self, bytes: u64) {
        self.release(bytes);
    }
}

impl AnyPool for Shared<RegionPool<'_>, &VirtualMemory> {
    fn complete(&self, stream_id: StreamId, number: EventNumber) {
        Shared::complete(self, stream_id, number);
    }

    fn relieve(&self, _bytes: u64) {
        self.trim();
    }
}

/// How a program may behave.
#[derive(Clone, Copy)]
struct Manner {
    backing: Backing,
    /// Frees as if no work used the block any more. A mistake.
    forgets: bool,
    /// The driver refuses some calls.
    refused: bool,
}

/// A stream, its number, and its events that are not completed.
struct Queue {
    stream: Arc<CudaStream>,
    stream_id: StreamId,
    number: u64,
    events: VecDeque<(u64, Event)>,
}

impl Queue {
    fn new(context: &Context, index: usize) -> Self {
        Self {
            stream: context.cudarc().new_stream().unwrap(),
            stream_id: StreamId::new(1 + index as u8),
            number: 0,
            events: VecDeque::new(),
        }
    }
}

struct Held {
    block: Block,
    queue: usize,
    value: u8,
}

struct Program<'a> {
    context: &'a Context,
    pool: &'a dyn AnyPool,
    queues: Vec<Queue>,
    held: Vec<Held>,
    /// Where what is read goes, what it must be, and how much is used.
    results: *const u8,
    room: usize,
    expected: Vec<u8>,
    page: u64,
    manner: Manner,
    random: Random,
}

impl Program<'_> {
    fn act(&mut self) {
        match self.random.below(8) {
            0..=3 => self.alloc(),
            4 | 5 => self.free(),
            6 => self.complete(),
            _ => match self.random.below(2) {
                0 => self.pool.relieve(self.page),
                _ => self.settle_all(),
            },
        }
    }

    fn alloc(&mut self) {
        let queue = self.random.index(STREAMS);
        let bytes = match self.random.below(4) {
            0 => self.page / 2,
            1 => self.page,
            2 => 2 * self.page + 4096,
            _ => (1 + self.random.below(5)) * self.page,
        };
        let mut request = Request::new(bytes).on(self.queues[queue].stream_id);
        if self.random.below(2) == 0 {
            request = request.without_wait();
        }
        let grant = match self.pool.alloc(&request) {
            Ok(grant) => grant,
            Err(_) => return,
        };
        if let Some(point) = grant.wait {
            let other = usize::from(point.stream.number()) - 1;
            let events = &self.queues[other].events;
            let event = events.iter().find(|(at, _)| *at >= point.event.number());
            if let Some((_, event)) = event {
                event.wait_on(&self.queues[queue].stream).unwrap();
            }
        }
        let value = 1 + self.random.below(250) as u8;
        let block = grant.block;
        let stream = &self.queues[queue].stream;
        for at in places(&block, self.page) {
            self.context.cudarc().bind_to_thread().unwrap();
            // SAFETY: the block is ours, and the stream has waited for those before us.
            unsafe { result::memset_d8_async(at, value, WRITTEN as usize, stream.cu_stream()) }
                .unwrap();
        }
        self.held.push(Held {
            block,
            queue,
            value,
        });
    }

    /// Reads all of a block in its stream's order, and frees it from there on.
    fn free(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let index = self.random.index(self.held.len());
        let held = self.held.swap_remove(index);
        self.read(&held);
        let queue = &mut self.queues[held.queue];
        if self.manner.forgets {
            self.pool.free(held.block).unwrap();
            return;
        }
        queue.number += 1;
        let event = Event::new(self.context, EventConfig::default()).unwrap();
        event.record(&queue.stream).unwrap();
        queue.events.push_back((queue.number, event));
        let point = StreamPoint {
            stream: queue.stream_id,
            event: EventNumber::new(queue.number),
        };
        self.pool.free_after(held.block, point).unwrap();
    }

    fn read(&mut self, held: &Held) {
        let stream = &self.queues[held.queue].stream;
        for at in places(&held.block, self.page) {
            let from = self.expected.len();
            if from + WRITTEN as usize > self.room {
                return;
            }
            self.expected.resize(from + WRITTEN as usize, held.value);
            self.context.cudarc().bind_to_thread().unwrap();
            let place = self.results.cast_mut().wrapping_add(from);
            // SAFETY: inside the pinned memory, which is read only when all work is done.
            let place = unsafe { std::slice::from_raw_parts_mut(place, WRITTEN as usize) };
            // SAFETY: the place outlives the work.
            unsafe { result::memcpy_dtoh_async(place, at, stream.cu_stream()) }.unwrap();
        }
    }

    /// Reports the completed events to the allocator.
    fn complete(&mut self) {
        for queue in &mut self.queues {
            while let Some((number, event)) = queue.events.front() {
                if !event.query().unwrap() {
                    break;
                }
                self.pool
                    .complete(queue.stream_id, EventNumber::new(*number));
                queue.events.pop_front();
            }
        }
    }

    fn settle_all(&mut self) {
        if self.random.below(4) == 0 {
            self.context.synchronize().unwrap();
            self.complete();
        }
    }
}

/// The start of each page's part of a block.
fn places(block: &Block, page: u64) -> impl Iterator<Item = u64> + use<> {
    let (start, bytes) = (block.addr().get(), block.bytes());
    (0..bytes.div_ceil(page)).map(move |index| start + index * page)
}

/// One program: how many bytes were wrong.
fn play(control: &StandIn, seed: u64, manner: Manner, pool: &dyn AnyPool, page: u64) -> usize {
    let context = Context::new(0).unwrap();
    let pinned = PinnedMemory::new(&context);
    let room = GrowRequest {
        bytes: MIB,
        align: Align::new(256).unwrap(),
        at: None,
    };
    let results = pinned.grow(room).unwrap();
    let results = std::ptr::with_exposed_provenance::<u8>(results.start().get() as usize);
    let mut program = Program {
        context: &context,
        pool,
        queues: (0..STREAMS)
            .map(|index| Queue::new(&context, index))
            .collect(),
        held: Vec::new(),
        results,
        room: MIB as usize,
        expected: Vec::new(),
        page,
        manner,
        random: Random::new(seed),
    };
    for _ in 0..ACTS {
        if manner.refused {
            refuse_one(control, &mut program.random);
        }
        program.act();
        control.clear_failures();
    }
    while !program.held.is_empty() {
        program.free();
    }
    context.synchronize().unwrap();
    program.complete();
    // SAFETY: all work is done, and so many bytes were read.
    let found = unsafe { std::slice::from_raw_parts(results, program.expected.len()) };
    let pairs = program.expected.iter().zip(found);
    pairs.filter(|(expected, found)| expected != found).count()
}

/// A program over pages that move: how many bytes were wrong, and how many mappings were left behind
/// by pages that moved.
fn run(control: &StandIn, seed: u64, manner: Manner) -> (usize, u64) {
    control.schedule_deferred(seed);
    let context = Context::new(0).unwrap();
    let memory = VirtualMemory::new(&context, 256 * MIB).unwrap();
    let page = memory.page_bytes();
    let mut config = PageConfig::new(memory.addresses(), manner.backing);
    config.page_bytes = page;
    config.limit_bytes = 14 * page;
    let mut chunks = vec![Chunk::VACANT; 512];
    let pages = (memory.addresses().bytes() / page) as usize;
    let (mut entries, mut handles) = (vec![PageEntry::EMPTY; pages], vec![Handle::VACANT; 256]);
    let mut mappings = vec![Mapping::VACANT; 1024];
    let tables = PageTables {
        entries: &mut entries,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let paged = PagePool::new(config, &mut chunks, tables).unwrap();
    let pool = Shared::new(paged, &memory);
    let wrong = play(control, seed, manner, &pool, page);
    pool.with(|paged| paged.check_invariants().unwrap());
    let moved = u64::from(pool.page_stats().cached_mappings);
    pool.adjust(0);
    if !manner.refused {
        assert_eq!(memory.held_bytes(), 0, "seed {seed}: all went back");
    }
    control.schedule_eagerly();
    (wrong, moved)
}

/// A program over a range that grows and shrinks: how many bytes were wrong, and how many pages came
/// and went.
fn run_growing(control: &StandIn, seed: u64, manner: Manner) -> (usize, u64) {
    control.schedule_deferred(seed);
    let context = Context::new(0).unwrap();
    let memory = VirtualMemory::new(&context, 256 * MIB).unwrap();
    let page = memory.page_bytes();
    let mut chunks = vec![Chunk::VACANT; 512];
    let bfc = RegionPool::new(regions_of(page, 14 * page), &mut chunks).unwrap();
    let pool = Shared::new(bfc, &memory);
    let wrong = play(control, seed, manner, &pool, page);
    pool.with(|bfc| bfc.check_invariants().unwrap());
    pool.trim();
    if !manner.refused {
        assert_eq!(memory.held_bytes(), 0, "seed {seed}: all went back");
    }
    control.schedule_eagerly();
    (wrong, control.calls(Some("cuMemUnmap")))
}

/// One of the calls that move pages is refused soon.
fn refuse_one(control: &StandIn, random: &mut Random) {
    let names = [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
    ];
    control
        .fail(
            Rule::of(names[random.index(names.len())])
                .after(random.below(4))
                .times(1 + random.below(3))
                .with(Code::OUT_OF_MEMORY),
        )
        .unwrap();
}

/// Every seed gives right bytes without a finding.
fn sweep(manner: Manner, run: fn(&StandIn, u64, Manner) -> (usize, u64)) {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    let mut moved = 0;
    for seed in 0..common::rounds(SEEDS) {
        let (wrong, bytes) = run(control, seed, manner);
        moved += bytes;
        assert_eq!(wrong, 0, "seed {seed}: wrong bytes");
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        assert_clean(control);
        // The stand-in remembers every stream there was.
        control.reset(2, common::DEVICE_BYTES);
    }
    assert!(moved > 0, "pages moved");
}

#[test]
fn moved_pages_keep_their_bytes_in_any_order_of_streams() {
    let manner = Manner {
        backing: Backing::Billed,
        forgets: false,
        refused: false,
    };
    sweep(manner, run);
}

#[test]
fn moved_pages_keep_their_bytes_under_a_budget() {
    let manner = Manner {
        backing: Backing::Budget(12 * 2 * MIB),
        forgets: false,
        refused: false,
    };
    sweep(manner, run);
}

#[test]
fn moved_pages_keep_their_bytes_although_the_driver_refuses() {
    let manner = Manner {
        backing: Backing::Billed,
        forgets: false,
        refused: true,
    };
    sweep(manner, run);
}

#[test]
fn a_range_shrinks_only_where_no_stream_works() {
    for refused in [false, true] {
        let manner = Manner {
            backing: Backing::InPlace,
            forgets: false,
            refused,
        };
        sweep(manner, run_growing);
    }
}

/// The twin that must be found out, or the tests above show nothing.
#[test]
fn a_free_that_forgets_queued_work_is_found_out() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let manner = Manner {
        backing: Backing::Billed,
        forgets: true,
        refused: false,
    };
    let mut wrong_bytes = 0;
    let mut found = 0;
    // Work whose memory went would fail here, and never show wrong bytes.
    let waited = control.mapping_waits(true);
    for seed in 0..40 {
        wrong_bytes += run(control, seed, manner).0;
        found += control.findings().len();
        control.clear_findings();
    }
    control.mapping_waits(waited);
    assert!(wrong_bytes > 0, "some order shows it in the bytes");
    assert!(found > 0, "it is found in the order too");
}
