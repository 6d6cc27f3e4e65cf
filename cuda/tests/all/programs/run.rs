//! Runs a program on a device, and beside it on the host, one act after another.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{AllocError, Block};
use larder_cuda::driver::{Rule, StandIn};
use larder_cuda::{Context, DeviceAllocError, DeviceAllocator, DeviceStep, Event, EventConfig};

use crate::programs::buffer::Buffer;
use crate::programs::kernels::Kernels;
use crate::programs::order::{Clock, Order};
use crate::programs::program::{Act, FreeOn, Part, Program, SLOTS};
use crate::programs::transfers::Transfers;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// A block that the program holds.
pub(crate) struct Held {
    pub(crate) block: Block,
    /// Its contents, if all of it was written.
    pub(crate) bytes: Buffer,
    pub(crate) ready: bool,
    /// The operation that wrote it last; then all that use it since.
    pub(crate) wrote: Clock,
    pub(crate) used: Clock,
    /// The stream that used it last.
    pub(crate) last: usize,
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

    pub(crate) fn at(&self) -> u64 {
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
    pub(crate) context: Context,
    pub(crate) memory: DeviceAllocator,
    pub(crate) order: Order,
    pub(crate) kernels: Kernels,
    pub(crate) transfers: Transfers,
    pub(crate) slots: [Option<Held>; SLOTS],
    /// The stand-in, if the program is the only one that uses it.
    pub(crate) control: Option<&'static StandIn>,
    /// What the driver refuses while the allocator is asked the next time; and whether it ever did.
    refusal: Option<(&'static str, u64)>,
    pub(crate) refused: bool,
    /// A block was freed that several streams used: it may count as live for a while.
    deferred: bool,
}

/// Runs one program from its beginning to its end.
pub(crate) fn run(control: Option<&'static StandIn>, program: &Program) -> Outcome {
    let context = Context::new(0)?;
    let memory = DeviceAllocator::with_config(&context, program.config.clone())?;
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
            deferred: false,
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
            Act::Sleep { frees, refused } => self.sleep(frees, refused),
            Act::Refuse { function, skip } => {
                self.refusal = Some((function, skip));
                Ok(())
            }
            use_of_blocks => self.use_blocks(use_of_blocks),
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
        control
            .fail(Rule::of(function).after(skip))
            .expect("such a function");
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

    /// Checks that the allocator counts the program's blocks, if no other program uses it.
    pub(crate) fn check_live(&self) -> Outcome {
        let held = self.slots.iter().flatten();
        let bytes: u64 = held.map(|held| held.block.bytes()).sum();
        let live = self.memory.stats().live_bytes;
        let right = live == bytes || (self.deferred && live > bytes);
        if self.control.is_some() && !right {
            return Err(format!("{live} bytes are live, and the program holds {bytes}").into());
        }
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
        self.deferred |= users.len() > 1;
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

    /// Continues with another thread's block; frees it if there is no room.
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
