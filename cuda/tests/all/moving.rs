//! Pages move while several streams work. In any order that events allow, every block keeps its bytes and no two
//! accesses conflict. Drawn programs run over the core's pools on virtual memory, without the allocator that programs
//! use. Only the stand-in can choose the order.

use crate::common;

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use common::{MIB, alone, assert_clean, ran_in_child, regions_of};
use cudarc::driver::CudaStream;
use larder_core::pages::{Backing, Handle, Mapping, PageConfig, PageEntry, PagePool, PageTables};
use larder_core::{
    BestFit, Block, BlockAllocator, Chunk, EventNumber, RegionPool, Rejected, Request, Shared,
    Source, Stats, StreamId, StreamPoint,
};
use larder_cuda::driver::StandIn;
use larder_cuda::{
    BlockInfo, Context, DeviceAllocError, DeviceFreeError, Event, EventConfig, Live,
    StreamAllocator, VirtualMemory,
};

use crate::programs::draw::{Draw, Knobs};
use crate::programs::kernels;
use crate::programs::memories::Memory;
use crate::programs::player::{Player, World, streams};
use crate::programs::words::Outcome;

const SEEDS: u64 = 500;

const ACTS: usize = 80;
const STREAMS: usize = 3;

const PAGES: u64 = 14;

type Pool<P> = Shared<P, VirtualMemory>;

/// A stream's events that are not complete, and the number of the newest event.
#[derive(Default)]
struct Queue {
    stream: usize,
    newest: u64,
    events: VecDeque<(u64, Event)>,
}

/// A pool of the core whose caller records the events, so that memory is reused in the order of streams.
struct InOrder<P: BestFit> {
    context: Context,
    pool: Pool<P>,
    relieve: fn(&Pool<P>),
    /// Frees blocks as if no work used them any more, which is a mistake.
    forgets: bool,
    queues: Mutex<(u64, Vec<Queue>)>,
}

impl<P: BestFit> InOrder<P>
where
    VirtualMemory: Source<P>,
{
    /// Regularly reports completed events, and less often releases idle memory.
    fn look_after(&self, calls: u64, queues: &mut [Queue]) {
        if calls.is_multiple_of(3) {
            for (index, queue) in queues.iter_mut().enumerate() {
                while let Some((number, event)) = queue.events.front()
                    && event.query() == Ok(true)
                {
                    self.pool.complete(id(index), EventNumber::new(*number));
                    queue.events.pop_front();
                }
            }
        }
        if calls.is_multiple_of(11) {
            (self.relieve)(&self.pool);
        }
    }
}

fn id(index: usize) -> StreamId {
    StreamId::new(1 + index as u8)
}

/// Returns the index of a stream's queue, which is added if the stream is new.
fn index_of(queues: &mut Vec<Queue>, stream: &CudaStream) -> usize {
    let handle = stream.cu_stream().addr();
    let known = queues.iter().position(|queue| queue.stream == handle);
    known.unwrap_or_else(|| {
        queues.push(Queue {
            stream: handle,
            ..Queue::default()
        });
        queues.len() - 1
    })
}

impl<P: BestFit + Send> StreamAllocator for InOrder<P>
where
    VirtualMemory: Source<P>,
{
    fn context(&self) -> &Context {
        &self.context
    }

    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let (calls, queues) = &mut *self.queues.lock().unwrap();
        *calls += 1;
        self.look_after(*calls, queues);
        let mut request = request.on(id(index_of(queues, stream)));
        if calls.is_multiple_of(2) {
            request = request.without_wait();
        }
        let grant = self.pool.alloc(&request);
        let grant = grant.map_err(|reason| DeviceAllocError::Memory {
            reason,
            driver: None,
        })?;
        if let Some(point) = grant.wait {
            let events = &queues[usize::from(point.stream.number()) - 1].events;
            let behind = |(number, _): &&(u64, Event)| *number >= point.event.number();
            if let Some((_, event)) = events.iter().find(behind) {
                event.wait_on(stream).unwrap();
            }
        }
        Ok(grant.block)
    }

    fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let (_, queues) = &mut *self.queues.lock().unwrap();
        let index = index_of(queues, stream);
        let queue = &mut queues[index];
        if self.forgets {
            self.pool.free(block).unwrap();
            return Ok(());
        }
        queue.newest += 1;
        let event = Event::new(&self.context, EventConfig::default()).unwrap();
        event.record(stream).unwrap();
        queue.events.push_back((queue.newest, event));
        let point = StreamPoint {
            stream: id(index),
            event: EventNumber::new(queue.newest),
        };
        self.pool.free_after(block, point).unwrap();
        Ok(())
    }

    fn info(&self, _: &Block) -> Option<BlockInfo> {
        None
    }

    fn stats(&self) -> Stats {
        self.pool.stats()
    }

    fn live(&self) -> Live {
        Live::default()
    }
}

impl<P: BestFit> fmt::Debug for InOrder<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InOrder")
    }
}

/// Plays one program over a pool, which has no blocks afterwards.
fn play<P: BestFit + Send + 'static>(
    control: &'static StandIn,
    seed: u64,
    refusals: bool,
    memory: InOrder<P>,
) -> Outcome<Arc<InOrder<P>>>
where
    VirtualMemory: Source<P>,
{
    control.schedule_deferred(seed);
    let world = World::new(Some(control), 1)?;
    let mut player = Player::new(&world, streams(&world.context, STREAMS)?)?;
    let memory = Arc::new(memory);
    player.add_memory("m", Memory::of_front(memory.clone()));
    player.is_drawn = true;
    let knobs = Knobs {
        refusals,
        plain: true,
        ..Knobs::default()
    };
    let mut draw = Draw::new(seed, STREAMS, knobs);
    (0..ACTS).try_for_each(|_| player.act(&draw.act()))?;
    player.end(false)?;
    control.schedule_eagerly();
    for (index, queue) in memory.queues.lock().unwrap().1.iter_mut().enumerate() {
        memory
            .pool
            .complete(id(index), EventNumber::new(queue.newest));
        queue.events.clear();
    }
    Ok(memory)
}

#[derive(Clone, Copy)]
struct Manner {
    backing: Backing,
    forgets: bool,
    refused: bool,
}

/// Runs a program over pages that move. Returns how many mappings the moved pages left behind.
fn run(control: &'static StandIn, seed: u64, manner: Manner) -> Outcome<u64> {
    let context = Context::new(0)?;
    let memory = VirtualMemory::new(&context, 256 * MIB)?;
    let page = memory.page_bytes();
    let mut config = PageConfig::new(memory.addresses(), manner.backing);
    config.page_bytes = page;
    config.limit_bytes = PAGES * page;
    let pages = (memory.addresses().bytes() / page) as usize;
    let tables = PageTables {
        entries: vec![PageEntry::EMPTY; pages].leak(),
        handles: vec![Handle::VACANT; 256].leak(),
        mappings: vec![Mapping::VACANT; 1024].leak(),
    };
    let paged = PagePool::new(config, vec![Chunk::VACANT; 512].leak(), tables)?;
    let memory = InOrder {
        context,
        pool: Shared::new(paged, memory),
        relieve: |pool| _ = pool.release(2 * MIB),
        forgets: manner.forgets,
        queues: Mutex::default(),
    };
    let memory = play(control, seed, manner.refused, memory)?;
    memory.pool.with(|paged| paged.check_invariants().unwrap());
    let moved = u64::from(memory.pool.page_stats().cached_mappings);
    memory.pool.adjust(0);
    if !manner.refused {
        assert_eq!(memory.pool.source().held_bytes(), 0, "all went back");
    }
    Ok(moved)
}

/// Runs a program over a range that grows and shrinks. Returns the number of unmapping calls.
fn run_growing(control: &'static StandIn, seed: u64, manner: Manner) -> Outcome<u64> {
    let context = Context::new(0)?;
    let memory = VirtualMemory::new(&context, 256 * MIB)?;
    let page = memory.page_bytes();
    let bfc = RegionPool::new(
        regions_of(page, PAGES * page),
        vec![Chunk::VACANT; 512].leak(),
    )?;
    let memory = InOrder {
        context,
        pool: Shared::new(bfc, memory),
        relieve: |pool| _ = pool.trim(),
        forgets: manner.forgets,
        queues: Mutex::default(),
    };
    let memory = play(control, seed, manner.refused, memory)?;
    memory.pool.with(|bfc| bfc.check_invariants().unwrap());
    memory.pool.trim();
    if !manner.refused {
        assert_eq!(memory.pool.source().held_bytes(), 0, "all went back");
    }
    Ok(control.calls(Some("cuMemUnmap")))
}

/// Runs programs of all seeds. Every block must keep its bytes, and the stand-in must report nothing.
fn sweep(backing: Backing, refused: bool, run: fn(&'static StandIn, u64, Manner) -> Outcome<u64>) {
    if ran_in_child() {
        return;
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    kernels::register(control);
    let manner = Manner {
        backing,
        forgets: false,
        refused,
    };
    let mut moved = 0;
    for seed in 0..common::rounds(SEEDS) {
        moved += run(control, seed, manner).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
        assert_clean(control);
        // Otherwise the stand-in would remember the streams of every program.
        control.reset(2, common::DEVICE_BYTES);
    }
    assert!(moved > 0, "pages moved");
}

#[test]
fn moved_pages_keep_their_bytes_in_any_order_of_streams() {
    sweep(Backing::Billed, false, run);
}

#[test]
fn moved_pages_keep_their_bytes_under_a_budget() {
    sweep(Backing::Budget(12 * 2 * MIB), false, run);
}

#[test]
fn moved_pages_keep_their_bytes_although_the_driver_refuses() {
    sweep(Backing::Billed, true, run);
}

#[test]
fn a_range_shrinks_only_where_no_stream_works() {
    for refused in [false, true] {
        sweep(Backing::InPlace, refused, run_growing);
    }
}

/// A faulty allocator must be detected; otherwise the tests above would prove nothing.
#[test]
fn a_free_that_forgets_queued_work_is_found_out() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    kernels::register(control);
    let manner = Manner {
        backing: Backing::Billed,
        forgets: true,
        refused: false,
    };
    let (mut wrong_bytes, mut found) = (0, 0);
    // Work on unmapped memory would fail, and so never show wrong bytes.
    let waited = control.mapping_waits(true);
    for seed in 0..40 {
        wrong_bytes += u64::from(run(control, seed, manner).is_err());
        found += control.findings().len();
        control.schedule_eagerly();
        control.reset(2, common::DEVICE_BYTES);
        control.clear_findings();
    }
    control.mapping_waits(waited);
    assert!(wrong_bytes > 0, "some order shows it in the bytes");
    assert!(found > 0, "it is found in the order too");
}
