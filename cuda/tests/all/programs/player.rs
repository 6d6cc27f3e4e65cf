//! [`Player`]: plays the acts of a program on a device and, one after another, on the host's copies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaStream, sys};
use larder_core::Block;
use larder_cuda::driver::{Rule, StandIn};
use larder_cuda::{
    CaptureStatus, Context, DeviceAllocError, DeviceAllocator, Event, StreamAllocator,
};

use crate::programs::buffer::Bytes;
use crate::programs::graphs::{Capture, Foreign};
use crate::programs::kernels::{Kernel, Kernels};
use crate::programs::memories::{Budgets, Memory, Seen};
use crate::programs::order::{Clock, Order, STREAMS};
use crate::programs::things::Thing;
use crate::programs::transfers::Transfers;
use crate::programs::words::{Missing, Outcome, Part, Words, stream};

pub(crate) struct Held {
    pub(crate) block: Block,
    /// The number of the block, which is unique in the program, unlike its name.
    pub(crate) id: u64,
    /// The name of its allocator.
    pub(crate) memory: String,
    pub(crate) contents: Bytes,
    /// Whether the whole block has been written.
    pub(crate) ready: bool,
    /// Whether it was allocated in a capture.
    pub(crate) inner: bool,
    pub(crate) remakable: bool,
    /// The last write; `used` has this write and all uses since.
    pub(crate) wrote: Clock,
    pub(crate) used: Clock,
    /// The stream that used it last.
    pub(crate) last: usize,
}

impl Held {
    pub(crate) fn at(&self) -> u64 {
        self.block.addr().get()
    }
}

/// A block on its way to another player, and an event after all its uses.
pub(crate) struct Parcel {
    pub(crate) held: Held,
    pub(crate) event: Event,
}

/// The state that all players of a program share.
pub(crate) struct World {
    pub(crate) context: Context,
    /// The stand-in's control, if no other program uses it.
    pub(crate) control: Option<&'static StandIn>,
    /// Blocks that no player has received yet.
    pub(crate) mail: Mutex<Vec<Parcel>>,
    /// Number of players. Only a single player knows what an allocator's counters must be.
    pub(crate) players: usize,
    /// Kept so that cudarc never makes a first stream: before that it waits for the context, which spoils captures.
    _stream: Arc<CudaStream>,
}

impl World {
    pub(crate) fn new(control: Option<&'static StandIn>, players: usize) -> Outcome<Arc<Self>> {
        let context = Context::new(0)?;
        Ok(Arc::new(Self {
            _stream: context.cudarc().new_stream()?,
            context,
            control,
            mail: Mutex::default(),
            players,
        }))
    }
}

/// One thread's streams, blocks and other things.
pub(crate) struct Player {
    pub(crate) world: Arc<World>,
    pub(crate) memories: BTreeMap<String, Memory>,
    pub(crate) budgets: Budgets,
    pub(crate) seen: Seen,
    /// The name of the current allocator.
    pub(crate) current: String,
    pub(crate) order: Order,
    /// Whether each stream belongs to another library, so that cudarc only wraps it.
    pub(crate) borrowed: [bool; STREAMS],
    pub(crate) left: Vec<Arc<CudaStream>>,
    pub(crate) kernels: Kernels,
    pub(crate) transfers: Transfers,
    pub(crate) blocks: BTreeMap<String, Held>,
    pub(crate) things: BTreeMap<String, Thing>,
    pub(crate) capture: Option<Capture>,
    pub(crate) foreign: Option<Foreign>,
    pub(crate) asleep: BTreeSet<String>,
    /// Whether the program is drawn. It then skips impossible acts, and may run out of memory, unlike a script.
    pub(crate) is_drawn: bool,
    /// The call that the driver refuses in the next act that calls an allocator: its function (or `any`), and the
    /// number of calls before it. `refused` is whether there has been one.
    pub(crate) refusal: Option<(String, u64)>,
    pub(crate) refused: bool,
    /// Whether a block was freed that several streams used, and that may still count as live.
    pub(crate) deferred: bool,
    pub(crate) numbers: BTreeMap<String, u64>,
    /// The numbers of `ever` acts, and whether each has been above 0, which it must be in at least one order.
    pub(crate) ever: BTreeMap<String, bool>,
    pub(crate) next_id: u64,
}

pub(crate) fn streams(context: &Context, count: usize) -> Outcome<Vec<Arc<CudaStream>>> {
    let streams = (0..count).map(|_| context.cudarc().new_stream());
    Ok(streams.collect::<Result<_, _>>()?)
}

impl Player {
    pub(crate) fn new(world: &Arc<World>, streams: Vec<Arc<CudaStream>>) -> Outcome<Self> {
        // Bound only once, because every driver call lets queued work go on.
        world.context.cudarc().bind_to_thread()?;
        Ok(Self {
            world: world.clone(),
            memories: BTreeMap::new(),
            budgets: Budgets::new(),
            seen: Seen::default(),
            current: String::new(),
            order: Order::new(&world.context, streams),
            borrowed: [false; STREAMS],
            left: Vec::new(),
            kernels: Kernels::load(&world.context)?,
            transfers: Transfers::new(&world.context),
            blocks: BTreeMap::new(),
            things: BTreeMap::new(),
            capture: None,
            foreign: None,
            asleep: BTreeSet::new(),
            is_drawn: false,
            refusal: None,
            refused: false,
            deferred: false,
            numbers: BTreeMap::new(),
            ever: BTreeMap::new(),
            next_id: 0,
        })
    }

    /// Plays an act. With ` ! WORDS` after it, it must be refused with an error that contains the words; with `maybe`
    /// before it, it may be refused.
    pub(crate) fn act(&mut self, line: &str) -> Outcome {
        if let Some(act) = line.strip_prefix("maybe ") {
            let _ = self.act(act);
            return Ok(());
        }
        let (act, refusal) = match line.split_once(" ! ") {
            Some((act, refusal)) => (act, Some(refusal)),
            None => (line, None),
        };
        match (self.play(&mut Words::new(act)), refusal) {
            (Ok(()), Some(words)) => Err(format!("{act}: not refused for {words}").into()),
            (Err(error), Some(words)) if said(&*error).contains(words) => Ok(()),
            (Err(error), None) if self.is_drawn && error.is::<Missing>() => Ok(()),
            (outcome, _) => outcome.map_err(|error| format!("{act}: {error}").into()),
        }
    }

    fn play(&mut self, words: &mut Words<'_>) -> Outcome {
        match words.next()? {
            "alloc" => self.alloc(words),
            "free" => self.free(words, true),
            "free-unread" => self.free(words, false),
            "raw" => self.raw(words),
            "set" => self.set(words),
            "busy" => self.busy(words),
            "upload" => self.upload(words),
            "upload-all" => self.upload_all(words),
            "read" => self.read(words),
            "read-all" => self.read_all(words),
            "check" => self.check_all(),
            "copy" => self.copy(words),
            "fill" => self.launch(Kernel::Fill, words),
            "add" => self.launch(Kernel::Add, words),
            "scale" => self.launch(Kernel::Scale, words),
            "twist" => self.launch(Kernel::Twist, words),
            "record" => {
                let stream = words.stream()?;
                self.uncaptured(stream)?;
                Ok(self.order.record(stream).map(drop)?)
            }
            "wait" => {
                let stream = words.stream()?;
                self.uncaptured(stream)?;
                Ok(self.order.wait(stream, words.number()? as usize)?)
            }
            "order" => self.order_after(words),
            "sync" => self.sync(words),
            "sync-event" => Ok(self.order.sync_event(words.number()? as usize)?),
            "send" => self.send(words.next()?),
            "receive" => self.receive(words),
            "refuse" => self.refuse(words),
            verb => self.play_other(verb, words),
        }
    }

    pub(crate) fn queue(&self, stream: usize) -> sys::CUstream {
        self.order.streams[stream].cu_stream()
    }

    /// Takes a stream, which must exist. It may be in a capture, which only some acts allow.
    pub(crate) fn stream_of(&self, words: &mut Words<'_>) -> Outcome<(usize, Arc<CudaStream>)> {
        let stream = words.stream()?;
        let queue = self.order.streams.get(stream);
        Ok((stream, queue.ok_or(Missing("the stream"))?.clone()))
    }

    pub(crate) fn held(&self, name: &str) -> Outcome<&Held> {
        Ok(self.blocks.get(name).ok_or(Missing("the block"))?)
    }

    pub(crate) fn held_mut(&mut self, name: &str) -> Outcome<&mut Held> {
        Ok(self.blocks.get_mut(name).ok_or(Missing("the block"))?)
    }

    pub(crate) fn written(&self, name: &str) -> Outcome<&Held> {
        let held = self.held(name)?;
        match held.ready {
            true => Ok(held),
            false => Err(Missing("what it holds").into()),
        }
    }

    pub(crate) fn memory(&self) -> Outcome<&Memory> {
        let memory = self.memories.get(&self.current);
        Ok(memory.ok_or(Missing("an allocator"))?)
    }

    pub(crate) fn device(&self) -> Outcome<DeviceAllocator> {
        let device = self.memory()?.device.clone();
        Ok(device.ok_or(Missing("a device's allocator"))?)
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.contains(&self.current)
    }

    pub(crate) fn sleeps(&self, block: &str) -> bool {
        let held = self.blocks.get(block);
        held.is_some_and(|held| self.asleep.contains(&held.memory))
    }

    pub(crate) fn owner(&self, held: &Held) -> Outcome<Arc<dyn StreamAllocator>> {
        let memory = self.memories.get(&held.memory);
        Ok(memory.ok_or(Missing("its allocator"))?.front.clone())
    }

    /// `refuse FUNCTION SKIP`: in the next act that calls an allocator, the driver refuses one call of the function,
    /// after SKIP others. `any` stands for every function.
    fn refuse(&mut self, words: &mut Words<'_>) -> Outcome {
        self.refusal = Some((words.next()?.to_owned(), words.number_or(0)?));
        Ok(())
    }

    /// Calls `ask` while the driver refuses the call that `refuse` has named. Also returns whether there was one.
    pub(crate) fn with_refusals<R>(&mut self, ask: impl FnOnce(&mut Self) -> R) -> (R, bool) {
        let Some((control, (function, skip))) = self.world.control.zip(self.refusal.take()) else {
            return (ask(self), false);
        };
        self.refused = true;
        let rule = match &*function {
            "any" => Rule::any(),
            function => Rule::of(function),
        };
        control.fail(rule.after(skip)).expect("such a function");
        let answer = ask(self);
        control.clear_failures();
        (answer, true)
    }

    /// `sync [STREAM]`: makes the host wait for a stream. Without one, waits for all work and compares what was read.
    fn sync(&mut self, words: &mut Words<'_>) -> Outcome {
        match words.maybe() {
            Some(word) => {
                let stream = stream(word)?;
                self.uncaptured(stream)?;
                Ok(self.order.sync_stream(stream)?)
            }
            None => {
                self.wait_for_all()?;
                self.finish_reads()
            }
        }
    }

    /// Waits for all work of the context. A drawn program does not wait during captures, because that would spoil
    /// them.
    pub(crate) fn wait_for_all(&self) -> Outcome {
        let captures = self.capture.is_some() || self.foreign.is_some() || self.world.players > 1;
        match self.is_drawn && captures {
            true => Err(Missing("an end of captures").into()),
            false => Ok(self.world.context.synchronize()?),
        }
    }

    /// `check`: compares the whole contents of each block that has been written, and the buffers.
    pub(crate) fn check_all(&mut self) -> Outcome {
        let names: Vec<String> = self.blocks.keys().cloned().collect();
        for name in names {
            let held = &self.blocks[&name];
            let last = held.last;
            if held.ready && !held.inner && !self.sleeps(&name) && !self.captures(last) {
                self.compare_whole(&name, last)?;
            }
        }
        self.check_buffers()
    }

    /// Returns whether this player is capturing the stream.
    pub(crate) fn captures(&self, stream: usize) -> bool {
        let open = self.capture.as_ref();
        open.is_some_and(|open| open.stream == stream)
    }

    /// Returns an error if this player is capturing the stream, for acts that cannot be part of a capture.
    pub(crate) fn uncaptured(&self, stream: usize) -> Outcome {
        match self.captures(stream) {
            true => Err(Missing("a stream that does not capture").into()),
            false => Ok(()),
        }
    }

    /// Returns whether the driver reports that the stream is being captured and that nothing has spoilt the capture.
    pub(crate) fn is_capturing(&self, stream: usize) -> Outcome<bool> {
        let status = self
            .world
            .context
            .capture_status(&self.order.streams[stream])?;
        Ok(status == CaptureStatus::Active)
    }

    /// Wakes all allocators and ends captures, then reads and frees all blocks and drops all things.
    pub(crate) fn let_go(&mut self) -> Outcome {
        self.refusal = None;
        for name in self.asleep.clone() {
            self.raise_limits()?;
            self.current = name;
            self.wake_up()?;
        }
        self.end_captures()?;
        let names: Vec<String> = self.blocks.keys().cloned().collect();
        for name in names {
            let last = self.blocks[&name].last;
            for part in [Part::Head, Part::Middle] {
                let read = self.read_part(&name, last, part);
                read.or_else(|error| match error.is::<Missing>() {
                    true => Ok(()),
                    false => Err(error),
                })?;
            }
            self.free(&mut Words::new(&name), true)?;
        }
        let names: Vec<String> = self.things.keys().cloned().collect();
        names
            .iter()
            .try_for_each(|name| self.drop_thing(&mut Words::new(name)))?;
        Ok(())
    }

    /// Ends the player. With `early`, its allocators are dropped while work is queued.
    pub(crate) fn end(mut self, early: bool) -> Outcome {
        self.let_go()?;
        if !early {
            self.finish_reads()?;
        }
        self.end_streams()?;
        self.memories.clear();
        self.world.context.synchronize()?;
        Ok(self.transfers.check()?)
    }
}

/// Returns the text of an error, with the name of its kind first.
fn said(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    use DeviceAllocError::{Asleep, Both, Budget, Capturing, Driver, Memory, Planned, Window};
    let kind = match error.downcast_ref() {
        Some(Memory { .. }) => "Memory",
        Some(Budget(_)) => "Budget",
        Some(Window { .. }) => "Window",
        Some(Both { .. }) => "Both",
        Some(Planned { .. }) => "Planned",
        Some(Capturing) => "Capturing",
        Some(Asleep) => "Asleep",
        Some(Driver(_)) => "Driver",
        _ => "",
    };
    format!("{kind} {error:?} {error}")
}

/// Returns whether an error is a lack of memory, which a drawn program expects.
pub(crate) fn is_short(error: &DeviceAllocError) -> bool {
    use DeviceAllocError::{Budget, Memory, Recalled};
    matches!(error, Memory { .. } | Budget(_) | Recalled { .. })
}
