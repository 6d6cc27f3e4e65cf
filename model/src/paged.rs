//! Random operations on a paged allocator over a [`PageDevice`], which checks every plan byte by byte.
//!
//! Several plans are in progress at once, calls are refused, and limits change between two calls of a plan. Operations
//! are decoded from bytes, so that seeded tests and the fuzzer share them.

mod reserve;

use larder_core::pages::{
    Backing, Handle, Mapping, PageAttempt, PageConfig, PageDriver, PageEntry, PagePlan, PagePool,
    PageTables,
};
use larder_core::{
    Addr, AddrRange, Align, AllocError, BestFit, Block, BlockAllocator, Chunk, ChunkHandle,
    EventNumber, Grant, Progress, Request, Resize, ResizeError, Shared, StreamId, StreamPoint,
};

use crate::PageDevice;
use reserve::Reserved;

/// Bytes from which the policies, the tables and the device are decoded.
pub type PagedHead = [u8; 12];
/// Bytes of one operation.
pub type PagedOp = [u8; 5];

/// A broken rule, and the operation that broke it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PagedFault {
    /// Number of the operation, from 0.
    pub op: usize,
    /// The broken rule.
    pub what: String,
}

impl std::fmt::Display for PagedFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "operation {}: {}", self.op, self.what)
    }
}

const GRANULE: u64 = 256;
const STREAMS: usize = 3;
/// Maximum number of plans in progress at once.
const PLANS: usize = 3;

struct Live {
    block: Block,
    stream: StreamId,
    pins: u32,
}

/// A plan in progress, for an allocation or a commit (with an `attempt`), or for a release.
struct Open {
    plan: PagePlan,
    attempt: Option<PageAttempt>,
    is_commit: bool,
}

struct Run<'t, 'd> {
    paged: Shared<PagePool<'t>, &'d PageDevice>,
    device: &'d PageDevice,
    config: PageConfig,
    live: Vec<Live>,
    /// Pinned addresses whose blocks were freed.
    pinned: Vec<AddrRange>,
    open: Vec<Open>,
    reserved: Vec<Reserved>,
    /// The newest event of each stream, and its last completed event.
    streams: [(u64, u64); STREAMS],
    streams_used: usize,
    /// The limit that was last set, or the bytes held then if these were more.
    excused: u64,
}

/// Decodes the configuration, the bytes of the device, and the numbers of chunk, handle and mapping records.
#[must_use]
fn decode(head: PagedHead) -> (PageConfig, u64, [usize; 3]) {
    let page = GRANULE << (head[0] % 5);
    let capacity = page * (4 + u64::from(head[1] % 32));
    let places = capacity / page * u64::from(1 + head[2] % 6);
    let addresses = AddrRange::new(Addr::new(page * 1000), page * places);
    let backing = match head[3] % 4 {
        0 => Backing::Budget(capacity),
        1 => Backing::Budget(capacity / 2),
        2 => Backing::InPlace,
        _ => Backing::Billed,
    };
    let mut config = PageConfig::new(addresses.expect("not empty"), backing);
    config.page_bytes = page;
    if head[4].is_multiple_of(2) {
        config.limit_bytes = capacity * u64::from(head[5]) / 128;
    }
    config.floor_bytes = page * u64::from(head[6] % 4);
    // Every invariant is checked after every operation, so small tables allow more operations.
    let chunks = 2 + usize::from(head[7]);
    let handles = 2 + usize::from(head[8] % 48);
    let mappings = 2 + usize::from(head[9] % 192);
    (config, capacity, [chunks, handles, mappings])
}

/// Runs the operations and checks every invariant and every rule after each. Frees and releases everything at the end.
///
/// # Errors
/// The first rule broken.
///
/// # Panics
/// If a decoded configuration is refused.
pub fn run_paged(
    head: PagedHead,
    ops: impl IntoIterator<Item = PagedOp>,
) -> Result<(), PagedFault> {
    let (config, capacity, [chunks, handles, mappings]) = decode(head);
    let places = config.addresses.bytes() / config.page_bytes;
    let mut chunks = vec![Chunk::VACANT; chunks];
    let mut entries = vec![PageEntry::EMPTY; places as usize];
    let mut handles = vec![Handle::VACANT; handles];
    let mut mappings = vec![Mapping::VACANT; mappings];
    let tables = PageTables {
        entries: &mut entries,
        handles: &mut handles,
        mappings: &mut mappings,
    };
    let device = PageDevice::new(config.page_bytes, capacity);
    let mut run = Run {
        paged: Shared::new(
            PagePool::new(config, &mut chunks, tables).expect("a valid configuration"),
            &device,
        ),
        device: &device,
        config,
        live: Vec::new(),
        pinned: Vec::new(),
        open: Vec::new(),
        reserved: Vec::new(),
        streams: [(1, 0); STREAMS],
        streams_used: if head[10].is_multiple_of(2) {
            1
        } else {
            STREAMS
        },
        excused: 0,
    };
    let mut number = 0;
    for op in ops {
        run.step(op)
            .and_then(|()| run.check())
            .map_err(|what| PagedFault { op: number, what })?;
        number += 1;
    }
    run.end().map_err(|what| PagedFault { op: number, what })
}

impl Run<'_, '_> {
    fn step(&mut self, op: PagedOp) -> Result<(), String> {
        let [kind, a, b, c, d] = op;
        match kind % 44 {
            0..=9 => self.allocate(u16::from_le_bytes([a, b]), c, d),
            10..=16 => self.free(usize::from(a)),
            17..=21 => self.call(usize::from(a), b),
            22..=23 => self.complete(usize::from(a), u64::from(b % 4)),
            24..=26 => self.give_back(u64::from(a) * self.config.page_bytes / 8),
            27 => self.resize(usize::from(a), u16::from_le_bytes([b, c])),
            28 => self.pin(usize::from(a), b.is_multiple_of(2)),
            29 => self.limit(u64::from(a) * self.config.page_bytes / 4),
            30 => self.allocate_at_once(u16::from_le_bytes([a, b]), c, d),
            31..=33 => self.allocate_at(u16::from_le_bytes([a, b]), c, d),
            34 => self.back(a, b, c),
            36 => self.reserve(u64::from(a % 12)),
            37 => self.free_addresses(usize::from(a)),
            38..=40 => self.commit(usize::from(a), b, c, d),
            41..=43 => self.decommit(usize::from(a), usize::from(b)),
            _ => {
                self.device.refuse_in((a < 128).then_some(u64::from(a % 8)));
                Ok(())
            }
        }
    }

    fn request(&self, size: u16, stream: u8, align: u8) -> Request {
        // Small sizes are as likely as sizes of many pages.
        let max = self.config.page_bytes << (size % 6);
        let mut request = Request::new(1 + u64::from(size) * max / 65_536);
        request.stream = StreamId::new(stream % self.streams_used as u8);
        request.may_wait = false;
        if align.is_multiple_of(8) {
            request.align = Align::new(1 << (align / 8 % 16)).expect("a power of two");
        }
        request
    }

    fn allocate(&mut self, size: u16, stream: u8, align: u8) -> Result<(), String> {
        let attempt = PageAttempt::new(self.request(size, stream, align));
        self.advance(attempt, false)
    }

    /// Continues an allocation or a commit until it is done or needs a plan.
    fn advance(&mut self, mut attempt: PageAttempt, is_commit: bool) -> Result<(), String> {
        match self.paged.get_mut().advance(&mut attempt) {
            Progress::Ready(grant) => self.granted_either(grant, attempt.request(), is_commit),
            Progress::Failed(error) => self.failed(&error),
            Progress::Plan(plan) => {
                let attempt = Some(attempt);
                self.open.push(Open {
                    plan,
                    attempt,
                    is_commit,
                });
                if self.open.len() > PLANS {
                    return self.finish(0);
                }
                Ok(())
            }
        }
    }

    fn failed(&self, error: &AllocError) -> Result<(), String> {
        match error {
            AllocError::OutOfMemory(_) | AllocError::TableFull { .. } => Ok(()),
            AllocError::PagesFull { .. } | AllocError::TooLarge { .. } => Ok(()),
            AllocError::PlaceTaken => Ok(()),
            other => Err(format!("an allocation failed: {other}")),
        }
    }

    fn granted(&mut self, block: Block, request: &Request) -> Result<(), String> {
        self.device.begin_use(block.range(), request.stream);
        let fits = block.bytes() >= request.bytes && block.addr().is_aligned(request.align);
        let inside = self.config.addresses.contains(block.range());
        let mut reserved = self
            .reserved
            .iter()
            .map(|reserved| reserved.reservation.range());
        let fits = fits && inside && !reserved.any(|reserved| reserved.overlaps(block.range()));
        let text = format!("{block:?} for {request:?}");
        self.live.push(Live {
            block,
            stream: request.stream,
            pins: 0,
        });
        if fits { Ok(()) } else { Err(text) }
    }

    fn allocate_at_once(&mut self, size: u16, stream: u8, align: u8) -> Result<(), String> {
        let request = self.request(size, stream, align);
        match self.paged.alloc(&request) {
            Ok(grant) => self.granted(grant.block, &request),
            Err(error) => self.failed(&error),
        }
    }

    fn granted_either(
        &mut self,
        grant: Grant,
        request: &Request,
        is_commit: bool,
    ) -> Result<(), String> {
        if let Some(point) = grant.wait {
            // The host waits.
            let number = usize::from(point.stream.number());
            let (_, completed) = self.streams[number];
            self.complete(number, point.event.number().saturating_sub(completed))?;
        }
        if is_commit {
            return self.committed(grant.block, request);
        }
        self.granted(grant.block, request)
    }

    /// Allocates at an address in the range, which may or may not be a multiple of the granule.
    fn allocate_at(&mut self, size: u16, place: u8, near: u8) -> Result<(), String> {
        let request = self.request(size, 0, 1);
        let unit = self.config.page_bytes / 8 + u64::from(place.is_multiple_of(16));
        let start = self.config.addresses.start().get() + u64::from(place) * unit;
        let range = AddrRange::new(Addr::new(start), request.bytes).expect("far from the end");
        let chunk = ChunkHandle::new(u32::from(near));
        let stream =
            (!place.is_multiple_of(2)).then(|| StreamId::new(near % self.streams_used as u8));
        self.advance(PageAttempt::at(range, chunk, stream), false)
    }

    fn back(&mut self, first: u8, pages: u8, max: u8) -> Result<(), String> {
        let page = self.config.page_bytes;
        let start = self.config.addresses.start().get() + u64::from(first % 32) * page;
        let bytes = u64::from(pages % 32 + 1) * page;
        let range = AddrRange::new(Addr::new(start), bytes).expect("far from the end");
        let held = self.device.held_bytes();
        let max = u64::from(max) * page / 4;
        let stream = usize::from(first) % self.streams_used;
        let point = pages.is_multiple_of(2).then(|| StreamPoint {
            stream: StreamId::new(stream as u8),
            event: EventNumber::new(self.streams[stream].0),
        });
        let mapped = self.paged.back(range, range, max, point);
        if mapped && !self.paged.get_mut().is_mapped(range) {
            return Err(format!("{range:?} is not mapped"));
        }
        if self.device.held_bytes() > held.max(max) {
            return Err(format!("{range:?} mapped above {max}"));
        }
        Ok(())
    }

    fn free(&mut self, which: usize) -> Result<(), String> {
        if self.live.is_empty() {
            return Ok(());
        }
        let Live {
            block,
            stream,
            pins,
        } = self.live.swap_remove(which % self.live.len());
        self.pinned.extend((0..pins).map(|_| block.range()));
        let (newest, completed) = &mut self.streams[usize::from(stream.number())];
        *newest += (which % 2) as u64;
        let event = EventNumber::new(*newest);
        let point = StreamPoint { stream, event };
        let pending = (newest > completed).then_some(point);
        self.device.end_use(block.range(), pending);
        let freed = self.paged.free_at(block, Some(point));
        freed.map_err(|rejected| rejected.error.to_string())
    }

    /// Grows a block into the free memory behind it, or cuts off its end, which its stream may still use.
    fn resize(&mut self, which: usize, size: u16) -> Result<(), String> {
        // A pin covers a whole block, so a pinned block is not resized.
        let which = which % self.live.len().max(1);
        if self.live.get(which).is_none_or(|live| live.pins > 0) {
            return Ok(());
        }
        let Live { block, stream, .. } = self.live.swap_remove(which);
        let old = block.range();
        let event = EventNumber::new(self.streams[usize::from(stream.number())].0);
        let bytes = self.request(size, 0, 1).bytes;
        let to = Resize::to(bytes).on(stream).used_until(event);
        let (block, error) = match self.paged.get_mut().resize(block, to) {
            Ok(block) => (block, None),
            Err(rejected) => (rejected.value, Some(rejected.error)),
        };
        let range = block.range();
        self.device.end_use(old, None);
        let cut = old.end().get().saturating_sub(range.end().get());
        if let Some(end) = AddrRange::new(range.end(), cut) {
            let (_, completed) = self.streams[usize::from(stream.number())];
            let is_pending = event.number() > completed;
            self.device.begin_use(end, stream);
            let pending = is_pending.then_some(StreamPoint { stream, event });
            self.device.end_use(end, pending);
        }
        self.device.begin_use(range, stream);
        let moved = range.start() != old.start() || error.is_some() && range != old;
        self.live.push(Live {
            block,
            stream,
            pins: 0,
        });
        match error {
            Some(ResizeError::Unknown | ResizeError::ZeroSize) => {
                Err(format!("{old:?}: {error:?}"))
            }
            _ if moved => Err(format!("{old:?} became {range:?}")),
            _ => Ok(()),
        }
    }

    /// Makes one call of a plan in progress, or all remaining calls.
    fn call(&mut self, which: usize, how: u8) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let which = which % self.open.len();
        if how.is_multiple_of(4) {
            return self.finish(which);
        }
        let open = &mut self.open[which];
        match self.paged.get_mut().next_call(&mut open.plan) {
            Some(step) => {
                match self.device.call(step) {
                    Ok(()) => self.paged.get_mut().done(&mut open.plan),
                    Err(_) => self.paged.get_mut().refused(&mut open.plan),
                }
                Ok(())
            }
            None => self.finish(which),
        }
    }

    fn finish(&mut self, which: usize) -> Result<(), String> {
        let Open {
            mut plan,
            attempt,
            is_commit,
        } = self.open.remove(which);
        while let Some(step) = self.paged.get_mut().next_call(&mut plan) {
            match self.device.call(step) {
                Ok(()) => self.paged.get_mut().done(&mut plan),
                Err(_) => self.paged.get_mut().refused(&mut plan),
            }
        }
        let succeeded = plan.succeeded();
        let grant = self.paged.get_mut().finish(plan);
        match (grant, attempt) {
            (Some(grant), Some(attempt)) => {
                self.granted_either(grant, attempt.request(), is_commit)
            }
            (Some(grant), None) => Err(format!("{:?} for nobody", grant.block)),
            (None, Some(mut attempt)) => {
                if !succeeded {
                    attempt.plan_failed();
                }
                self.advance(attempt, is_commit)
            }
            (None, None) => Ok(()),
        }
    }

    fn complete(&mut self, stream: usize, by: u64) -> Result<(), String> {
        let number = stream % self.streams_used;
        let (newest, completed) = &mut self.streams[number];
        *completed = (*completed + by).min(*newest);
        let (stream, event) = (StreamId::new(number as u8), EventNumber::new(*completed));
        self.device.complete(StreamPoint { stream, event });
        self.paged.complete(stream, event);
        Ok(())
    }

    fn give_back(&mut self, bytes: u64) -> Result<(), String> {
        let plan = self.paged.get_mut().plan_release(bytes);
        self.keep(plan)
    }

    fn keep(&mut self, plan: Option<PagePlan>) -> Result<(), String> {
        let Some(plan) = plan else { return Ok(()) };
        self.open.push(Open {
            plan,
            attempt: None,
            is_commit: false,
        });
        if self.open.len() > PLANS {
            return self.finish(0);
        }
        Ok(())
    }

    fn pin(&mut self, which: usize, pin: bool) -> Result<(), String> {
        if !pin && let Some(range) = self.pinned.pop() {
            self.device.unpin(range);
            self.paged.get_mut().unpin(range);
        }
        if self.live.is_empty() {
            return Ok(());
        }
        let which = which % self.live.len();
        let live = &mut self.live[which];
        if pin {
            live.pins += 1;
            self.device.pin(live.block.range());
            return self
                .paged
                .get_mut()
                .pin(&live.block)
                .map_err(|error| error.to_string());
        }
        if live.pins > 0 {
            live.pins -= 1;
            self.device.unpin(live.block.range());
            self.paged.get_mut().unpin(live.block.range());
        }
        Ok(())
    }

    fn limit(&mut self, bytes: u64) -> Result<(), String> {
        self.excused = bytes + self.paged.get_mut().set_limit(bytes);
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        self.paged
            .with(|pool| pool.check_invariants())
            .map_err(|broken| broken.to_string())?;
        self.check_reserved()?;
        if let Some(violation) = self.device.violation() {
            return Err(violation);
        }
        let stats = self.paged.stats();
        let held = self.device.held_bytes();
        let max = stats.limit_bytes.max(self.excused);
        if held > max {
            return Err(format!("{held} bytes are held, {max} is the most"));
        }
        if self.open.is_empty() && held != stats.reserved_bytes + self.paged.get_mut().lost_bytes()
        {
            return Err(format!("{held} bytes are held: {stats:?}"));
        }
        Ok(())
    }

    /// Finishes every plan, frees everything, and releases as much memory as possible.
    fn end(&mut self) -> Result<(), String> {
        self.device.refuse_in(None);
        while !self.open.is_empty() {
            self.finish(0)?;
            self.check()?;
        }
        while !self.live.is_empty() {
            self.free(0)?;
        }
        for which in 0..self.reserved.len() {
            while !self.reserved[which].blocks.is_empty() {
                self.decommit(which, 0)?;
            }
        }
        while let Some(range) = self.pinned.pop() {
            self.device.unpin(range);
            self.paged.get_mut().unpin(range);
        }
        for stream in 0..STREAMS {
            let (newest, _) = self.streams[stream];
            let (stream, event) = (StreamId::new(stream as u8), EventNumber::new(newest));
            self.device.complete(StreamPoint { stream, event });
            self.paged.complete(stream, event);
        }
        self.check()?;
        while self.paged.release(u64::MAX) > 0 {
            self.check()?;
        }
        self.check()?;
        let left = self.paged.stats().reserved_bytes;
        // Cutting handles out of a free chunk needs vacant records.
        let roomy = self.paged.get_mut().report().vacant_records > 2
            && self.paged.page_stats().lost_mappings == 0;
        if self.config.floor_bytes == 0 && left > 0 && roomy {
            return Err(format!("{left} bytes do not go back"));
        }
        for which in (0..self.reserved.len()).rev() {
            self.free_addresses(which)?;
        }
        if !self.reserved.is_empty() && self.paged.page_stats().lost_mappings == 0 {
            return Err("decommitted addresses were not freed".into());
        }
        self.check()
    }
}
