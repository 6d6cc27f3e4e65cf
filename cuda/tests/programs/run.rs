//! Runs a program on a device, and beside it on the host, one act after another.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result};
use larder_core::{AllocError, Block};
use larder_cuda::driver::{Rule, StandIn};
use larder_cuda::{Context, DeviceAllocError, DeviceAllocator, DeviceStep, Event, EventConfig};
use larder_cuda_abi::Code;

use crate::buffer::Buffer;
use crate::kernels::{Kernel, Kernels, Launch};
use crate::order::{Clock, Order};
use crate::program::{Act, FreeOn, Part, Program, SLOTS};
use crate::transfers::{Transfers, WINDOW, compare, pattern};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A block that the program holds.
pub(crate) struct Held {
    pub(crate) block: Block,
    /// What it holds, if all of it was written.
    pub(crate) bytes: Buffer,
    pub(crate) ready: bool,
    /// The operation that wrote it last; then all that use it since.
    wrote: Clock,
    used: Clock,
    /// The stream that used it last.
    last: usize,
}

impl Held {
    /// A new block, for work of a stream from this operation on.
    pub(crate) fn new(block: Block, stream: usize, at: Clock) -> Self {
        Self {
            block,
            bytes: Buffer::new(),
            ready: false,
            wrote: at,
            used: at,
            last: stream,
        }
    }

    fn at(&self) -> u64 {
        self.block.addr().get()
    }
}

/// A block on its way to another thread.
pub(crate) struct Parcel {
    block: Block,
    bytes: Buffer,
    ready: bool,
    /// Stands for all that used it.
    event: Event,
}

/// A program that runs.
pub(crate) struct Runner {
    context: Context,
    memory: DeviceAllocator,
    pub(crate) order: Order,
    kernels: Kernels,
    transfers: Transfers,
    slots: [Option<Held>; SLOTS],
    /// The stand-in, if the program is the only one that uses it.
    control: Option<&'static StandIn>,
    /// What the driver refuses while the allocator is asked the next time; and whether it ever did.
    refusal: Option<(&'static str, u64)>,
    refused: bool,
    /// A block was freed that several streams used: it may count as live for a while.
    parked: bool,
}

/// Runs one program from its beginning to its end.
pub(crate) fn run(control: Option<&'static StandIn>, program: &Program) -> Outcome {
    let context = Context::new(0)?;
    let memory = DeviceAllocator::with_config(&context, program.config)?;
    let mut streams = streams(&context, program.streams)?;
    if program.default_stream {
        streams[0] = context.cudarc().default_stream();
    }
    let mut runner = Runner::new(&context, &memory, streams)?;
    runner.control = control;
    drop(memory);
    for step in 0..program.steps.max(1) {
        let _step = runner.begin_step(program.steps > 0)?;
        for act in &program.acts {
            runner
                .act(*act)
                .map_err(|error| format!("step {step}, {act:?}: {error}"))?;
        }
    }
    runner.end(program.drop_early)
}

/// New streams of the context.
pub(crate) fn streams(context: &Context, count: usize) -> Outcome<Vec<Arc<CudaStream>>> {
    let streams = (0..count).map(|_| context.cudarc().new_stream());
    Ok(streams.collect::<Result<_, _>>()?)
}

impl Runner {
    pub(crate) fn new(
        context: &Context,
        memory: &DeviceAllocator,
        streams: Vec<Arc<CudaStream>>,
    ) -> Outcome<Self> {
        // Once: each call of the driver lets queued work go on.
        context.cudarc().bind_to_thread()?;
        Ok(Self {
            context: context.clone(),
            memory: memory.clone(),
            order: Order::new(context, streams),
            kernels: Kernels::load(context)?,
            transfers: Transfers::new(context),
            slots: [const { None }; SLOTS],
            control: None,
            refusal: None,
            refused: false,
            parked: false,
        })
    }

    /// A step of the last stream, if the program has steps.
    fn begin_step(&self, wanted: bool) -> Outcome<Option<DeviceStep>> {
        let stream = self.order.streams.last().filter(|_| wanted);
        let step = stream.map(|stream| self.memory.step(stream));
        Ok(step.transpose()?)
    }

    pub(crate) fn act(&mut self, act: Act) -> Outcome {
        match act {
            Act::Alloc {
                slot,
                bytes,
                stream,
            } => self.alloc(slot, bytes, stream),
            Act::Free { slot, part, on } => self.free(slot, part, on),
            Act::FreeUsedOn {
                slot,
                streams,
                turn,
            } => self.free_used_on(slot, streams, turn),
            Act::Memset {
                slot,
                stream,
                part,
                value,
            } => self.memset(slot, stream, part, value),
            Act::Upload {
                slot,
                stream,
                part,
                from,
            } => self.upload(slot, stream, part, from),
            Act::UploadPageable { slot, stream, from } => self.upload_pageable(slot, stream, from),
            Act::Read { slot, stream, part } => self.read(slot, stream, part),
            Act::ReadPageable { slot, stream } => self.read_pageable(slot, stream),
            Act::Copy { to, from, stream } => self.copy(to, from, stream),
            Act::FillWords {
                slot,
                stream,
                part,
                value,
            } => self.launch(Kernel::Fill, [slot; 3], stream, part, value),
            Act::AddWords {
                to,
                left,
                right,
                stream,
                part,
            } => self.launch(Kernel::Add, [to, left, right], stream, part, 0),
            Act::ScaleWords {
                to,
                from,
                stream,
                part,
                factor,
            } => self.launch(Kernel::Scale, [to, from, from], stream, part, factor),
            Act::TwistWords {
                slot,
                stream,
                part,
                key,
            } => self.launch(Kernel::Twist, [slot; 3], stream, part, key),
            Act::Record { stream } => Ok(self.order.record(stream).map(|_| ())?),
            Act::Wait { stream, back } => Ok(self.order.wait(stream, back)?),
            Act::OrderAfter { stream, after } => self.order_after(stream, after),
            Act::SyncStream { stream } => Ok(self.order.sync_stream(stream)?),
            Act::SyncEvent { back } => Ok(self.order.sync_event(back)?),
            Act::Release { bytes } => {
                self.with_refusals(|memory, _| memory.release(bytes));
                Ok(())
            }
            Act::EndStep => {
                self.memory.end_step();
                Ok(())
            }
            Act::Refuse { function, skip } => {
                self.refusal = Some((function, skip));
                Ok(())
            }
        }
    }

    /// Asks the allocator while the driver refuses what it should; whether it was to refuse a call.
    fn with_refusals<R>(
        &mut self,
        ask: impl FnOnce(&DeviceAllocator, &[Arc<CudaStream>]) -> R,
    ) -> (R, bool) {
        let Some((control, (function, skip))) = self.control.zip(self.refusal.take()) else {
            return (ask(&self.memory, &self.order.streams), false);
        };
        self.refused = true;
        let rule = Rule {
            function: Some(function),
            skip,
            times: 1,
            code: Code::UNKNOWN,
        };
        control.fail(rule).expect("such a function");
        let answer = ask(&self.memory, &self.order.streams);
        control.clear_failures();
        (answer, true)
    }

    fn alloc(&mut self, slot: usize, bytes: u64, stream: usize) -> Outcome {
        if self.slots[slot].is_some() {
            return Ok(());
        }
        let (outcome, refusing) =
            self.with_refusals(|memory, streams| memory.alloc(&streams[stream], bytes));
        match outcome {
            Ok(block) => {
                if block.bytes() < bytes {
                    return Err("a block that is too small".into());
                }
                let at = self.order.step(stream);
                self.slots[slot] = Some(Held::new(block, stream, at));
            }
            Err(DeviceAllocError::Memory {
                reason: AllocError::OutOfMemory(_),
                ..
            }) => {
                let empty = self.slots.iter().all(Option::is_none);
                if self.control.is_some() && empty && !self.refused {
                    return Err("an empty allocator is full".into());
                }
            }
            Err(DeviceAllocError::Driver(_)) if refusing => {}
            Err(error) => return Err(error.into()),
        }
        self.check_live()
    }

    /// The allocator counts what the program holds, if nobody else uses it.
    fn check_live(&self) -> Outcome {
        let held = self.slots.iter().flatten();
        let bytes: u64 = held.map(|held| held.block.bytes()).sum();
        let live = self.memory.stats().live_bytes;
        let right = live == bytes || (self.parked && live > bytes);
        if self.control.is_some() && !right {
            return Err(format!("{live} bytes are live, and the program holds {bytes}").into());
        }
        Ok(())
    }

    /// Orders a stream behind what a use of a block must wait for, and counts the use.
    fn use_block(&mut self, slot: usize, stream: usize, writes: bool) -> Outcome {
        let Some(held) = &mut self.slots[slot] else {
            return Ok(());
        };
        let needs = if writes { held.used } else { held.wrote };
        self.order.after(stream, &needs)?;
        let at = self.order.step(stream);
        if writes {
            (held.wrote, held.used) = (at, at);
        } else {
            held.used.join(&at);
        }
        held.last = stream;
        Ok(())
    }

    fn free(&mut self, slot: usize, part: Part, on: FreeOn) -> Outcome {
        let Some(held) = &self.slots[slot] else {
            return Ok(());
        };
        let (stream, last) = match on {
            FreeOn::Last => (held.last, held.last),
            FreeOn::Stream(stream) => (stream, held.last),
        };
        self.read(slot, last, part)?;
        let Some(held) = self.slots[slot].take() else {
            return Ok(());
        };
        self.order.after(stream, &held.used)?;
        self.memory.free(&self.order.streams[stream], held.block)?;
        self.check_live()
    }

    fn free_used_on(&mut self, slot: usize, streams: usize, turn: usize) -> Outcome {
        for stream in 0..self.order.streams.len() {
            if streams >> stream & 1 == 1 {
                // More than one, so that some are still queued when the block is given again.
                for part in Part::ALL {
                    self.read(slot, stream, part)?;
                }
            }
        }
        let Some(held) = self.slots[slot].take() else {
            return Ok(());
        };
        let mut users = held.used.streams();
        let first = turn % users.len();
        users.rotate_left(first);
        self.parked |= users.len() > 1;
        let streams = users.iter().map(|user| self.order.streams[*user].clone());
        let streams: Vec<_> = streams.collect();
        self.memory.free_used_on(&streams, held.block)?;
        self.check_live()
    }

    fn order_after(&mut self, stream: usize, after: usize) -> Outcome {
        let (outcome, refusing) = self
            .with_refusals(|memory, streams| memory.order_after(&streams[stream], &streams[after]));
        match outcome {
            Ok(()) => self.order.ordered(stream, after),
            Err(DeviceAllocError::Driver(_)) if refusing => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn memset(&mut self, slot: usize, stream: usize, part: Part, value: u8) -> Outcome {
        self.use_block(slot, stream, true)?;
        let Some(held) = &mut self.slots[slot] else {
            return Ok(());
        };
        let all = held.block.bytes();
        let (at, bytes) = if held.ready {
            part.of(all, WINDOW)
        } else {
            held.bytes.resize(all as usize, 0);
            (0, all)
        };
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: the program holds the block, and orders its uses.
        unsafe { result::memset_d8_async(held.at() + at, value, bytes as usize, queue) }?;
        held.bytes[at as usize..][..bytes as usize].fill(value);
        held.ready = true;
        Ok(())
    }

    fn upload(&mut self, slot: usize, stream: usize, part: Part, from: usize) -> Outcome {
        if !self.has(slot) {
            return Ok(());
        }
        self.use_block(slot, stream, true)?;
        let Some(held) = &mut self.slots[slot] else {
            return Ok(());
        };
        let (at, bytes) = part.of(held.block.bytes(), WINDOW);
        let source = self.transfers.source(from, bytes as usize);
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: as for `memset`; the source is pinned, and stays as it is.
        unsafe { result::memcpy_htod_async(held.at() + at, source, queue) }?;
        held.bytes[at as usize..][..bytes as usize].copy_from_slice(source);
        Ok(())
    }

    fn upload_pageable(&mut self, slot: usize, stream: usize, from: usize) -> Outcome {
        self.use_block(slot, stream, true)?;
        let Some(held) = &mut self.slots[slot] else {
            return Ok(());
        };
        let source = &pattern()[from..from + held.block.bytes() as usize];
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: as for `memset`; the source is never written.
        unsafe { result::memcpy_htod_async(held.at(), source, queue) }?;
        held.bytes.clear();
        held.bytes.extend_from_slice(source);
        held.ready = true;
        Ok(())
    }

    /// Whether a block is there and holds something.
    fn has(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|held| held.ready)
    }

    fn read(&mut self, slot: usize, stream: usize, part: Part) -> Outcome {
        if !self.has(slot) {
            return Ok(());
        }
        if !self.transfers.has_room(WINDOW as usize) {
            self.finish_reads()?;
        }
        self.use_block(slot, stream, false)?;
        let Some(held) = &self.slots[slot] else {
            return Ok(());
        };
        let (at, bytes) = part.of(held.block.bytes(), WINDOW);
        let expected = &held.bytes[at as usize..][..bytes as usize];
        let what = format!("{part:?} of slot {slot} on stream {stream}");
        let queue = &self.order.streams[stream];
        self.transfers.read(queue, held.at() + at, expected, what)?;
        Ok(())
    }

    /// Waits for all work, and compares what was read.
    fn finish_reads(&mut self) -> Outcome {
        for stream in 0..self.order.streams.len() {
            self.order.sync_stream(stream)?;
        }
        Ok(self.transfers.check()?)
    }

    fn read_pageable(&mut self, slot: usize, stream: usize) -> Outcome {
        if !self.has(slot) {
            return Ok(());
        }
        self.use_block(slot, stream, false)?;
        let Some(held) = &self.slots[slot] else {
            return Ok(());
        };
        let mut found = Buffer::new();
        found.resize(held.bytes.len(), 0);
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: as for `memset`; the buffer outlives the copy, which is done before the host goes
        // on with it.
        unsafe { result::memcpy_dtoh_async(found.as_mut_slice(), held.at(), queue) }?;
        // A driver may still be on its way.
        self.order.sync_stream(stream)?;
        let held = self.slots[slot].as_ref().expect("it is held");
        let what = format!("all of slot {slot} on stream {stream}");
        Ok(compare(&found, &held.bytes, &what)?)
    }

    fn copy(&mut self, to: usize, from: usize, stream: usize) -> Outcome {
        let (Some(target), Some(source)) = (&self.slots[to], &self.slots[from]) else {
            return Ok(());
        };
        let bytes = target.block.bytes().min(source.block.bytes());
        let whole = bytes == target.block.bytes();
        if to == from || !source.ready || !(target.ready || whole) {
            return Ok(());
        }
        self.use_block(from, stream, false)?;
        self.use_block(to, stream, true)?;
        let Ok([Some(target), Some(source)]) = self.slots.get_disjoint_mut([to, from]) else {
            return Ok(());
        };
        let queue = self.order.streams[stream].cu_stream();
        // SAFETY: as for `memset`, of both.
        unsafe { result::memcpy_dtod_async(target.at(), source.at(), bytes as usize, queue) }?;
        if !target.ready {
            target.bytes.resize(bytes as usize, 0);
            target.ready = true;
        }
        target.bytes[..bytes as usize].copy_from_slice(&source.bytes[..bytes as usize]);
        Ok(())
    }

    /// A kernel on the same part of up to three blocks, the first of which it writes.
    fn launch(
        &mut self,
        kernel: Kernel,
        slots: [usize; 3],
        stream: usize,
        part: Part,
        value: u32,
    ) -> Outcome {
        if !slots.iter().all(|slot| self.has(*slot)) {
            return Ok(());
        }
        let bytes_of = |slot: usize| {
            self.slots[slot]
                .as_ref()
                .map_or(0, |held| held.block.bytes())
        };
        let most = slots.map(bytes_of).into_iter().min().unwrap_or(0);
        for slot in slots {
            self.use_block(slot, stream, false)?;
        }
        self.use_block(slots[0], stream, true)?;
        let mut sources = [Vec::new(), Vec::new(), Vec::new()];
        let mut places = [0; 3];
        for ((slot, source), place) in slots.into_iter().zip(&mut sources).zip(&mut places) {
            let held = self.slots[slot].as_ref().expect("it is held");
            let (at, bytes) = part.of(held.block.bytes(), WINDOW.min(most));
            *place = held.at() + at;
            *source = held.bytes[at as usize..][..bytes as usize].to_vec();
        }
        let [mut out, mut left, right] = sources;
        if kernel == Kernel::Twist {
            left.clone_from(&out);
        }
        let launch = Launch {
            out: places[0],
            left: places[1],
            right: places[2],
            words: (out.len() / 4) as u32,
            value,
        };
        let queue = &self.order.streams[stream];
        self.kernels.launch(queue, kernel, launch)?;
        kernel.on_host(&left, &right, &mut out, value);
        let held = self.slots[slots[0]].as_mut().expect("it is held");
        let at = (launch.out - held.at()) as usize;
        held.bytes[at..][..out.len()].copy_from_slice(&out);
        Ok(())
    }

    /// Parts with a block.
    pub(crate) fn send(&mut self, slot: usize) -> Outcome<Option<Parcel>> {
        let Some(held) = self.slots[slot].take() else {
            return Ok(None);
        };
        self.order.after(held.last, &held.used)?;
        let event = Event::new(&self.context, EventConfig::default())?;
        event.record(&self.order.streams[held.last])?;
        Ok(Some(Parcel {
            block: held.block,
            bytes: held.bytes,
            ready: held.ready,
            event,
        }))
    }

    /// Goes on with another thread's block; frees it if there is no room.
    pub(crate) fn receive(&mut self, parcel: Parcel, stream: usize) -> Outcome {
        let queue = &self.order.streams[stream];
        parcel.event.wait_on(queue)?;
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            return Ok(self.memory.free(queue, parcel.block)?);
        };
        let at = self.order.step(stream);
        let mut held = Held::new(parcel.block, stream, at);
        (held.bytes, held.ready) = (parcel.bytes, parcel.ready);
        self.slots[slot] = Some(held);
        Ok(())
    }

    /// Reads what is left, frees it, and gives everything back.
    pub(crate) fn end(mut self, drop_early: bool) -> Outcome {
        for slot in 0..SLOTS {
            let Some(held) = &self.slots[slot] else {
                continue;
            };
            let last = held.last;
            for part in [Part::Head, Part::Middle] {
                self.read(slot, last, part)?;
            }
            self.free(slot, Part::Tail, FreeOn::Last)?;
        }
        if !drop_early {
            self.finish_reads()?;
        }
        let Self {
            context,
            memory,
            order,
            kernels,
            mut transfers,
            ..
        } = self;
        drop(memory);
        context.synchronize()?;
        transfers.check()?;
        drop((order, kernels, transfers));
        Ok(())
    }
}
