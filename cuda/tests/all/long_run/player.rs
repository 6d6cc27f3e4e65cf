//! [`Player`]: one thread's streams, blocks and buffers, and its operations. It orders its own uses of a
//! block by events, as a program must; the rest is up to the allocator.

use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaStream, result};
use larder_core::Block;
use larder_cuda::{
    Budget, Context, DeviceAllocError, DeviceAllocator, DeviceStep, Event, EventConfig,
    PinnedAllocator,
};

use super::buffers::Buffers;
use super::graphs::{Capture, Captured, Foreign};
use super::stamps::Stamps;
use crate::common::MIB;
use crate::programs::order::{Clock, Order};
use larder_model::Random;

pub(super) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Streams of a player; the order of `programs` has room for four.
pub(super) const STREAMS: usize = 3;

/// Blocks that a player holds at most.
const BLOCKS: usize = 10;

/// Few sizes, so that memory is used again: of arenas, of the core, of a page and of several.
const SMALL: [u64; 6] = [1, 700, 4096, 48 << 10, 64 << 10, 300 << 10];
const LARGE: [u64; 4] = [MIB, 2 * MIB, 3 * MIB, 5 * MIB + 512];

/// Whether memory was refused because there is none, or a limit says so.
pub(super) fn is_short(error: &DeviceAllocError) -> bool {
    use DeviceAllocError::{Budget, Memory};
    matches!(error, Memory { .. } | Budget(_))
}

/// The state that all players share.
pub(super) struct World {
    pub(super) context: Context,
    pub(super) memory: DeviceAllocator,
    pub(super) pinned: PinnedAllocator,
    /// A budget over both.
    pub(super) tenant: Budget,
    pub(super) stamps: Stamps,
    /// cudarc waits for the context before it makes a stream while it has none, which spoils captures.
    pub(super) _stream: Arc<CudaStream>,
    /// Blocks on their way from one player to another.
    pub(super) parcels: Mutex<Vec<Parcel>>,
}

/// A block and an event that stands for all that used it.
pub(super) struct Parcel {
    block: Block,
    value: Option<u64>,
    event: Event,
}

/// A block that a player holds.
pub(super) struct Held {
    pub(super) block: Block,
    /// Its stamp.
    pub(super) value: Option<u64>,
    pub(super) remakable: bool,
    wrote: Clock,
    used: Clock,
    last: usize,
}

pub(super) struct Player {
    pub(super) number: u64,
    pub(super) world: Arc<World>,
    pub(super) random: Random,
    pub(super) order: Order,
    pub(super) held: Vec<Held>,
    /// Which streams are another library's, as cudarc wraps them.
    borrowed: [bool; STREAMS],
    /// Streams that something still held when they were to be forgotten.
    left: Vec<Arc<CudaStream>>,
    step: Option<(usize, DeviceStep)>,
    pub(super) capture: Option<Capture>,
    pub(super) captured: Vec<Captured>,
    pub(super) foreign: Option<Foreign>,
    pub(super) buffers: Buffers,
    /// Memory that no allocator of ours knows.
    pub(super) scratch: u64,
    values: u64,
}

impl Player {
    pub(super) fn new(world: &Arc<World>, number: u64, seed: u64) -> Outcome<Self> {
        world.context.cudarc().bind_to_thread()?;
        // SAFETY: freed by `end`.
        let scratch = unsafe { result::malloc_sync(4096) }?;
        let streams = crate::programs::run::streams(&world.context, STREAMS);
        let streams = streams.map_err(|error| error.to_string())?;
        for stream in &streams {
            world.memory.add_stream(stream)?;
        }
        Ok(Self {
            number,
            world: world.clone(),
            random: Random::new(seed * 100 + number),
            order: Order::new(&world.context, streams),
            held: Vec::new(),
            borrowed: [false; STREAMS],
            left: Vec::new(),
            step: None,
            capture: None,
            captured: Vec::new(),
            foreign: None,
            buffers: Buffers::default(),
            scratch,
            values: 0,
        })
    }

    /// One operation.
    pub(super) fn act(&mut self) -> Outcome {
        let act = self.random.index(80);
        self.do_act(act)
            .map_err(|error| format!("player {}, act {act}: {error}", self.number).into())
    }

    fn do_act(&mut self, act: usize) -> Outcome {
        match act {
            0..=16 => self.alloc(),
            17..=26 => self.stamp(),
            27..=35 => self.check(),
            36..=46 => self.free(),
            47..=50 => self.free_used_on(),
            51..=53 => self.order_streams(),
            54 => self.send(),
            55 | 56 => self.receive(),
            57..=63 => self.use_buffers(),
            64 | 65 => self.step(),
            66..=70 => self.capture(),
            71 => self.foreign(),
            72 => self.launch_captured(),
            73 => self.drop_captured(0),
            74..=76 => self.replace_stream(),
            77 => self.limits(),
            78 => self.remake(),
            _ => self.rarely(),
        }
    }

    pub(super) fn next_value(&mut self) -> u64 {
        self.values += 1;
        self.number << 56 | self.values
    }

    pub(super) fn is_capturing(&self, stream: usize) -> bool {
        let open = self.capture.as_ref();
        open.is_some_and(|open| open.stream == stream)
    }

    /// A stream that does not capture.
    pub(super) fn stream(&mut self) -> usize {
        let stream = self.random.index(STREAMS);
        match self.is_capturing(stream) {
            true => (stream + 1) % STREAMS,
            false => stream,
        }
    }

    fn alloc(&mut self) -> Outcome {
        if self.held.len() >= BLOCKS {
            return self.free();
        }
        let bytes = match self.random.index(5) {
            0 => *self.random.pick(&LARGE),
            _ => *self.random.pick(&SMALL),
        };
        let stream = self.stream();
        let block = match self.world.memory.alloc(&self.order.streams[stream], bytes) {
            Ok(block) if block.bytes() < bytes => return Err("a block that is too small".into()),
            Ok(block) => block,
            Err(error) if is_short(&error) => return Ok(()),
            Err(error) => return Err(format!("{bytes} bytes on stream {stream}: {error}").into()),
        };
        let at = self.order.step(stream);
        self.held.push(Held {
            block,
            value: None,
            remakable: false,
            wrote: at,
            used: at,
            last: stream,
        });
        // Mostly it is written at once, while those before may still use its memory.
        match self.random.index(8) == 0 {
            true => Ok(()),
            false => self.stamp_on(self.held.len() - 1, stream),
        }
    }

    /// A use of a block on a stream is queued next.
    fn use_block(&mut self, index: usize, stream: usize, writes: bool) -> Outcome {
        let held = &mut self.held[index];
        let (wrote, used) = (&mut held.wrote, &mut held.used);
        self.order.use_block(stream, writes, wrote, used)?;
        held.last = stream;
        Ok(())
    }

    fn stamp_on(&mut self, index: usize, stream: usize) -> Outcome {
        self.use_block(index, stream, true)?;
        let value = self.next_value();
        let held = &mut self.held[index];
        held.value = Some(value);
        let (at, bytes) = (held.block.addr().get(), held.block.bytes());
        let stream = &self.order.streams[stream];
        Ok(self.world.stamps.stamp(stream, at, bytes, value)?)
    }

    fn check_on(&mut self, index: usize, stream: usize) -> Outcome {
        let Some(value) = self.held[index].value else {
            return Ok(());
        };
        self.use_block(index, stream, false)?;
        let block = &self.held[index].block;
        let stream = &self.order.streams[stream];
        let stamps = &self.world.stamps;
        Ok(stamps.check(stream, block.addr().get(), block.bytes(), value)?)
    }

    fn any_block(&mut self) -> Option<usize> {
        (!self.held.is_empty()).then(|| self.random.index(self.held.len()))
    }

    fn stamp(&mut self) -> Outcome {
        let stream = self.stream();
        self.any_block()
            .map_or(Ok(()), |index| self.stamp_on(index, stream))
    }

    fn check(&mut self) -> Outcome {
        let stream = self.stream();
        self.any_block()
            .map_or(Ok(()), |index| self.check_on(index, stream))
    }

    /// Checks all blocks.
    pub(super) fn check_all(&mut self) -> Outcome {
        (0..self.held.len()).try_for_each(|index| {
            let stream = self.stream();
            self.check_on(index, stream)
        })
    }

    pub(super) fn free(&mut self) -> Outcome {
        let Some(index) = self.any_block() else {
            return Ok(());
        };
        let held = self.held.swap_remove(index);
        let stream = match self.random.index(2) == 0 || self.is_capturing(held.last) {
            true => self.stream(),
            false => held.last,
        };
        self.order.after(stream, &held.used)?;
        let queue = &self.order.streams[stream];
        if self.random.index(16) == 0 {
            // By way of a number, as bindings do.
            let raw = held.block.into_raw();
            let block = self.world.memory.block_from_raw(raw)?;
            return Ok(self.world.memory.free(queue, block)?);
        }
        Ok(self.world.memory.free(queue, held.block)?)
    }

    /// Looks at a block on several streams, which nobody orders, and frees it behind all of them.
    fn free_used_on(&mut self) -> Outcome {
        let Some(index) = self.any_block() else {
            return Ok(());
        };
        for stream in 0..STREAMS {
            if !self.is_capturing(stream) && self.random.index(2) == 0 {
                self.check_on(index, stream)?;
            }
        }
        let held = self.held.swap_remove(index);
        let mut users = held.used.streams();
        let first = self.random.index(users.len());
        users.rotate_left(first);
        let streams = users.iter().map(|user| self.order.streams[*user].clone());
        let streams: Vec<_> = streams.collect();
        Ok(self.world.memory.free_used_on(&streams, held.block)?)
    }

    fn order_streams(&mut self) -> Outcome {
        let (stream, other) = (self.stream(), self.stream());
        match self.random.index(8) {
            0 | 1 => self.order.record(stream).map(drop)?,
            2 | 3 => self.order.wait(stream, self.random.index(4))?,
            4 => self.order.sync_stream(stream)?,
            5 => self.order.sync_event(self.random.index(4))?,
            _ => {
                let streams = &self.order.streams;
                let (queue, after) = (&streams[stream], &streams[other]);
                self.world.memory.order_after(queue, after)?;
                self.order.ordered(stream, other);
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Outcome {
        let Some(index) = self.any_block() else {
            return Ok(());
        };
        let held = self.held.swap_remove(index);
        let stream = match self.is_capturing(held.last) {
            true => self.stream(),
            false => held.last,
        };
        self.world.memory.set_remakable(&held.block, false)?;
        self.order.after(stream, &held.used)?;
        let event = Event::new(&self.world.context, EventConfig::default())?;
        event.record(&self.order.streams[stream])?;
        self.world.parcels.lock().unwrap().push(Parcel {
            block: held.block,
            value: held.value,
            event,
        });
        Ok(())
    }

    pub(super) fn receive(&mut self) -> Outcome {
        let Some(parcel) = self.world.parcels.lock().unwrap().pop() else {
            return Ok(());
        };
        let stream = self.stream();
        let queue = &self.order.streams[stream];
        parcel.event.wait_on(queue)?;
        if self.held.len() >= BLOCKS {
            return Ok(self.world.memory.free(queue, parcel.block)?);
        }
        let at = self.order.step(stream);
        self.held.push(Held {
            block: parcel.block,
            value: parcel.value,
            remakable: false,
            wrote: at,
            used: at,
            last: stream,
        });
        Ok(())
    }

    /// Begins or ends a step.
    fn step(&mut self) -> Outcome {
        let stream = self.stream();
        self.step = match self.step.take() {
            Some(_) => None,
            None => {
                let step = self.world.memory.step(&self.order.streams[stream])?;
                Some((stream, step))
            }
        };
        Ok(())
    }

    pub(super) fn end_step_of(&mut self, stream: usize) {
        self.step.take_if(|(of, _)| *of == stream);
    }

    /// Puts all that a stream did in front of another one, which stands for it from then on.
    pub(super) fn leave(&mut self, stream: usize) -> Outcome {
        let mut other = (stream + 1) % STREAMS;
        if self.is_capturing(other) {
            other = (stream + 2) % STREAMS;
        }
        for held in &mut self.held {
            if held.used.streams().contains(&stream) {
                self.order.after(other, &held.used)?;
                let at = self.order.step(other);
                (held.wrote, held.used, held.last) = (at, at, other);
            }
        }
        self.buffers.leave(&self.order.streams[other])
    }

    /// Replaces a stream by a new one.
    fn replace_stream(&mut self) -> Outcome {
        let stream = self.stream();
        self.end_step_of(stream);
        while let Some(index) = self.captured.iter().position(|one| one.stream == stream) {
            self.drop_captured(index)?;
        }
        self.leave(stream)?;
        let context = self.world.context.cudarc();
        let mut new = context.new_stream()?;
        let borrow = self.random.index(3) == 0;
        if borrow {
            let kind = result::stream::StreamKind::NonBlocking;
            let raw = result::stream::create(kind)?;
            // SAFETY: destroyed once it is forgotten.
            new = unsafe { context.wrap_borrowed_stream(raw) };
        }
        if self.random.index(2) == 0 {
            self.world.memory.add_stream(&new)?;
        }
        let old = self.order.replace(stream, new);
        if core::mem::replace(&mut self.borrowed[stream], borrow) {
            self.forget(old)?;
        }
        self.forget_left()
    }

    /// Forgets a borrowed stream and destroys it, now or once nothing holds it.
    fn forget(&mut self, stream: Arc<CudaStream>) -> Outcome {
        let raw = stream.cu_stream();
        match self.world.memory.forget_stream(stream) {
            Ok(()) => {
                // SAFETY: made by `replace_stream`, and nobody has it any more.
                unsafe { result::stream::destroy(raw) }?;
            }
            Err(DeviceAllocError::StreamHeld) => {
                // SAFETY: it is there still.
                let again = unsafe { self.world.context.cudarc().wrap_borrowed_stream(raw) };
                self.left.push(again);
            }
            Err(error) => return Err(format!("forget: {error}").into()),
        }
        Ok(())
    }

    fn forget_left(&mut self) -> Outcome {
        let left = core::mem::take(&mut self.left);
        left.into_iter().try_for_each(|stream| self.forget(stream))
    }

    fn limits(&mut self) -> Outcome {
        let device = *self.random.pick(&[4, 16, 32, 64, u64::MAX >> 20]) * MIB;
        let pinned = *self.random.pick(&[0, 2, 32, u64::MAX >> 20]) * MIB;
        let both = *self.random.pick(&[6, 24, 80, u64::MAX >> 20]) * MIB;
        match self.random.index(3) {
            0 => drop(self.world.memory.set_limit(device)),
            1 => drop(self.world.pinned.set_limit(pinned)),
            _ => drop(self.world.tenant.set(both)),
        }
        Ok(())
    }

    /// Says of a block that it can be made again, or no more.
    fn remake(&mut self) -> Outcome {
        if let Some(index) = self.any_block() {
            let held = &mut self.held[index];
            held.remakable = !held.remakable;
            self.world
                .memory
                .set_remakable(&held.block, held.remakable)?;
        }
        Ok(())
    }

    fn rarely(&mut self) -> Outcome {
        let memory = &self.world.memory;
        match self.random.index(5) {
            0 => drop(memory.release(*self.random.pick(&[1, 2 * MIB, u64::MAX]))),
            1 => memory.end_step(),
            2 => drop(self.world.pinned.release()),
            3 => drop(memory.snapshot()),
            _ => drop(self.world.context.settle()),
        }
        Ok(())
    }

    /// Releases everything but its streams.
    pub(super) fn let_go(&mut self) -> Outcome {
        self.end_captures()?;
        self.check_all()?;
        while !self.held.is_empty() {
            self.free()?;
        }
        self.step = None;
        while !self.captured.is_empty() {
            self.drop_captured(0)?;
        }
        self.buffers.check_all()?;
        self.buffers = Buffers::default();
        // Dropped pinned buffers hold the streams that use them until they are seen to have passed.
        self.world.context.synchronize()?;
        let _ = self.world.pinned.release();
        self.forget_left()?;
        match self.left.is_empty() {
            true => Ok(()),
            false => Err("a stream is held although nobody has anything of it".into()),
        }
    }

    /// The end of the player.
    pub(super) fn end(mut self) -> Outcome {
        self.let_go()?;
        let streams = core::mem::take(&mut self.order.streams);
        for (stream, borrowed) in streams.into_iter().zip(self.borrowed) {
            if borrowed {
                self.forget(stream)?;
            }
        }
        // SAFETY: allocated by `new`; only graphs that never ran would use it.
        unsafe { result::free_sync(self.scratch) }?;
        Ok(())
    }
}
