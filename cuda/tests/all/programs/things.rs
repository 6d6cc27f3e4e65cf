//! The things other than blocks that a program holds by name, including typed buffers, which order their own uses.

use cudarc::driver::{CudaStream, result};
use larder_cuda::{
    CaptureWindow, DeviceAllocError, DeviceBuffer, DeviceStep, ExportedBlock, FixedBlock,
    ImportedBlock, LimitWatch, PinnedBuffer,
};
use std::sync::Arc;

use crate::common;
use crate::programs::graphs::Captured;
use crate::programs::player::{Player, is_short};
use crate::programs::reserved::Reserved;
use crate::programs::words::{Missing, Outcome, Words, number};

/// Number of values in a buffer.
const LEN: usize = 3000;

/// Something that is dropped by its name.
pub(crate) enum Thing {
    Window(CaptureWindow),
    Graph(Captured),
    Step {
        stream: usize,
        _held: DeviceStep,
    },
    Fixed(FixedBlock),
    Export(ExportedBlock),
    Import(ImportedBlock),
    /// A buffer, and the value that all its elements have.
    Buffer(DeviceBuffer<u64>, u64),
    Pinned(PinnedBuffer<u64>, u64),
    Reserved(Reserved),
    Watch {
        _held: LimitWatch,
    },
}

impl Player {
    pub(crate) fn play_with_things(&mut self, verb: &str, words: &mut Words<'_>) -> Outcome {
        match verb {
            "prime" => self.prime(words),
            "close" => self.close(words),
            "capture" => self.begin_capture(words),
            "fork" => self.fork(words),
            "end" => self.end_capture(words),
            "launch" => self.launch_graph(words),
            "foreign" => self.foreign(words),
            "step" => self.step(words),
            "start-over" => {
                let (_, queue) = self.stream_of(words)?;
                self.device()?.start_over(&queue);
                Ok(())
            }
            "fixed" => self.fixed(words),
            "export" => self.export(words),
            "import" => self.import(words),
            "same" => self.same(words),
            "drop" => self.drop_thing(words),
            "drop-if-there" => self.drop_if_there(words),
            "set-import" => self.set_import(words),
            "buffer" => self.buffer(words),
            "pinned" => self.pinned(words),
            "reserve" => self.reserve(words),
            "commit" => self.commit(words),
            "decommit" => self.decommit(words),
            "lend" => self.lend(words),
            "put" => self.put_buffer(words),
            "value" => self.value(words),
            "peek" => self.peek(words),
            "replace" => self.replace_stream(words),
            verb => self.expect(verb, words),
        }
    }

    pub(crate) fn put(&mut self, name: &str, thing: Thing) -> Outcome {
        self.things.insert(name.to_owned(), thing);
        Ok(())
    }

    /// Runs a call that allocates. A drawn program skips the act if memory is short or asleep, or if the driver was
    /// told to refuse.
    pub(crate) fn short<R>(
        &mut self,
        ask: impl FnOnce(&mut Self) -> Result<R, DeviceAllocError>,
    ) -> Outcome<R> {
        let (answer, refusing) = self.with_refusals(ask);
        let asleep = self.is_asleep();
        let is_window = |thing: &Thing| matches!(thing, Thing::Window(_));
        let has_window = self.things.values().any(is_window);
        // All free memory may have been used last by a stream that another player captures.
        let meets_captures = self.world.players > 1;
        answer.map_err(|error| {
            let is_expected = is_short(&error)
                || (has_window && matches!(error, DeviceAllocError::Window { .. }))
                || (meets_captures && error == DeviceAllocError::Capturing)
                || (asleep && error == DeviceAllocError::Asleep)
                || (refusing && matches!(error, DeviceAllocError::Driver(_)));
            match self.is_drawn && is_expected {
                true => Missing("memory").into(),
                false => error.into(),
            }
        })
    }

    /// `drop NAME`
    pub(crate) fn drop_thing(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        if let Some(Thing::Graph(captured)) = self.things.get(name)
            && self.captures(captured.stream())
        {
            return Err(Missing("an end of the capture").into());
        }
        // Dropping an import or a fixed block waits for all work.
        if let Some(Thing::Import(_) | Thing::Fixed(_)) = self.things.get(name) {
            self.wait_for_all()?;
        }
        let gone = self.things.remove(name);
        drop(gone.ok_or(Missing("the thing"))?);
        // A buffer that several streams used still counts as live until those streams have passed their last use of it.
        self.deferred = true;
        Ok(())
    }

    /// `drop-if-there NAME`
    pub(crate) fn drop_if_there(&mut self, words: &mut Words<'_>) -> Outcome {
        match self.things.contains_key(words.clone().next()?) {
            true => self.drop_thing(words),
            false => Ok(()),
        }
    }

    /// `close WINDOW`
    pub(crate) fn close(&mut self, words: &mut Words<'_>) -> Outcome {
        match self.things.get(words.next()?) {
            Some(Thing::Window(window)) => window.close(),
            _ => return Err(Missing("the window").into()),
        }
        Ok(())
    }

    /// `step NAME STREAM`: begins a step of the stream; it lasts until NAME is dropped.
    pub(crate) fn step(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let (stream, queue) = self.stream_of(words)?;
        let step = self.device()?.step(&queue)?;
        self.put(
            name,
            Thing::Step {
                stream,
                _held: step,
            },
        )
    }

    /// `fixed NAME BYTES`
    pub(crate) fn fixed(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, bytes) = (words.next()?, words.number()?);
        let device = self.device()?;
        let fixed = self.short(|_| device.alloc_fixed(bytes))?;
        self.put(name, Thing::Fixed(fixed))
    }

    /// `export NAME BLOCK [OFFSET BYTES]`
    pub(crate) fn export(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, block) = (words.next()?, words.next()?);
        if self.is_drawn && self.is_asleep() {
            return Err(Missing("memory that is awake").into());
        }
        let device = self.device()?;
        let block = &self.held(block)?.block;
        let exported = match words.maybe() {
            Some(offset) => device.export_part(block, number(offset)?, words.number()?)?,
            None => device.export(block)?,
        };
        self.put(name, Thing::Export(exported))
    }

    /// `import NAME EXPORT`
    pub(crate) fn import(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let Some(Thing::Export(exported)) = self.things.get(words.next()?) else {
            return Err(Missing("the export").into());
        };
        let context = &self.world.context;
        let imported = ImportedBlock::new(context, exported.layout(), exported.descriptors())?;
        self.put(name, Thing::Import(imported))
    }

    /// `set-import IMPORT STREAM VALUE BLOCK`: fills the imported memory, which is that of BLOCK.
    pub(crate) fn set_import(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let (stream, queue) = self.stream_of(words)?;
        let (value, block) = (words.number()? as u8, words.next()?);
        self.use_block(block, stream, true)?;
        let Some(Thing::Import(imported)) = self.things.get(name) else {
            return Err(Missing("the import").into());
        };
        common::fill(
            &queue,
            imported.range().start().get(),
            imported.bytes(),
            value,
        );
        self.held(block)?
            .contents
            .with(|contents| contents.fill(value));
        Ok(())
    }

    /// `same IMPORT EXPORT`: both sides are the same memory. If the memory holds no block, the importer first writes to
    /// it, as another process might; no block may change.
    pub(crate) fn same(&mut self, words: &mut Words<'_>) -> Outcome {
        let (one, two) = (words.next()?, words.next()?);
        self.wait_for_all()?;
        let (import, export) = (self.things.get(one), self.things.get(two));
        let (Some(Thing::Import(imported)), Some(Thing::Export(exported))) = (import, export)
        else {
            return Err(Missing("both sides").into());
        };
        let stream = &*self.order.streams[0];
        let (ours, theirs) = (exported.range(), imported.range());
        let is_there = |block: &larder_core::Block| block.range().overlaps(ours);
        if !self.blocks.values().any(|held| is_there(&held.block)) {
            common::fill(stream, theirs.start().get(), theirs.bytes(), 0xee);
        }
        let [here, there] = [ours, theirs].map(|range| {
            let (at, bytes) = (range.start().get(), range.bytes());
            [at, at + bytes - 64].map(|at| common::read(stream, at, 64))
        });
        match here == there {
            true => Ok(()),
            false => Err(format!("{ours:?} and {theirs:?} differ").into()),
        }
    }

    /// Ends the steps of a stream, before the stream is dropped.
    pub(crate) fn end_steps_of(&mut self, stream: usize) {
        self.things
            .retain(|_, thing| !matches!(thing, Thing::Step { stream: of, .. } if *of == stream));
    }

    /// `buffer NAME STREAM`: a typed buffer of zeros. `pinned NAME VALUE`: a pinned one, filled with a value.
    pub(crate) fn buffer(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let queue = self.buffers_stream(words)?;
        let device = self.device()?;
        let buffer = self.short(|_| device.zeros(&queue, LEN))?;
        self.put(name, Thing::Buffer(buffer, 0))
    }

    pub(crate) fn pinned(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, value) = (words.next()?, words.number()?);
        let pinned = self
            .memory()?
            .pinned
            .clone()
            .ok_or(Missing("pinned memory"))?;
        let buffer = self.short(|_| pinned.copy_of(&[value; LEN]))?;
        self.put(name, Thing::Pinned(buffer, value))
    }

    /// `put TO FROM STREAM`: copies between two buffers, of either kind.
    pub(crate) fn put_buffer(&mut self, words: &mut Words<'_>) -> Outcome {
        let (to, from) = (words.next()?, words.next()?);
        let queue = self.buffers_stream(words)?;
        if self.is_asleep() || to == from {
            return Err(Missing("two buffers that are awake").into());
        }
        let mut target = self.things.remove(to).ok_or(Missing("the buffer"))?;
        let outcome = match (&mut target, self.things.get_mut(from)) {
            (Thing::Buffer(to, value), Some(Thing::Buffer(from, new))) => {
                *value = *new;
                queue.memcpy_dtod(&*from, to).map_err(Into::into)
            }
            (Thing::Buffer(to, value), Some(Thing::Pinned(from, new))) => {
                *value = *new;
                from.copy_to(&queue, to).map_err(Into::into)
            }
            (Thing::Pinned(to, value), Some(Thing::Buffer(from, new))) => {
                *value = *new;
                to.copy_from(&queue, &*from).map_err(Into::into)
            }
            _ => Err(Missing("two buffers").into()),
        };
        self.things.insert(to.to_owned(), target);
        outcome
    }

    /// `peek PINNED`: the host checks the buffer's contents.
    pub(crate) fn peek(&self, words: &mut Words<'_>) -> Outcome {
        match self.things.get(words.next()?) {
            Some(Thing::Pinned(buffer, value)) => is_all(buffer.as_slice()?, *value),
            _ => Err(Missing("the pinned buffer").into()),
        }
    }

    /// `value PINNED VALUE`: the host checks the buffer's contents, and fills it with a new value.
    pub(crate) fn value(&mut self, words: &mut Words<'_>) -> Outcome {
        let (name, new) = (words.next()?, words.number()?);
        let Some(Thing::Pinned(buffer, value)) = self.things.get_mut(name) else {
            return Err(Missing("the pinned buffer").into());
        };
        is_all(buffer.as_slice()?, *value)?;
        buffer.as_mut_slice()?.fill(new);
        *value = new;
        Ok(())
    }

    pub(crate) fn check_buffers(&mut self) -> Outcome {
        for thing in self.things.values() {
            match thing {
                Thing::Pinned(buffer, value) => is_all(buffer.as_slice()?, *value)?,
                Thing::Buffer(buffer, value)
                    if self.asleep.is_empty() && self.capture.is_none() =>
                {
                    is_all(&buffer.to_vec()?, *value)?;
                }
                Thing::Reserved(reserved) if self.asleep.is_empty() && self.capture.is_none() => {
                    reserved.check(&self.order.streams[0])?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes a stream wait for all uses of each buffer, and later uses wait for the stream.
    pub(crate) fn leave_buffers(&mut self, stream: usize) -> Outcome {
        let queue = self.order.streams[stream].clone();
        let is_awake = self.asleep.is_empty();
        for thing in self.things.values_mut() {
            if let Thing::Buffer(buffer, value) = thing
                && is_awake
            {
                buffer.allocator().add_stream(&queue)?;
                queue.memset_zeros(buffer)?;
                *value = 0;
            }
            if let Thing::Reserved(reserved) = thing
                && is_awake
            {
                reserved.leave(&queue)?;
            }
        }
        Ok(())
    }

    /// Returns a stream that the allocator knows. If the stream of some work is not known, cudarc waits on the host,
    /// which spoils captures.
    pub(crate) fn buffers_stream(&self, words: &mut Words<'_>) -> Outcome<Arc<CudaStream>> {
        let (stream, queue) = self.stream_of(words)?;
        self.uncaptured(stream)?;
        self.device()?.add_stream(&queue)?;
        Ok(queue)
    }

    /// `replace STREAM [borrowed]`: replaces a stream with a new one and drops the old; with `borrowed`, the new stream
    /// belongs to another library.
    pub(crate) fn replace_stream(&mut self, words: &mut Words<'_>) -> Outcome {
        let stream = words.stream()?;
        let of_it =
            |thing: &Thing| matches!(thing, Thing::Graph(graph) if graph.stream() == stream);
        self.deferred = true;
        if self.captures(stream) || self.things.values().any(of_it) {
            return Err(Missing("a stream that nothing holds").into());
        }
        self.end_steps_of(stream);
        self.leave(stream)?;
        let context = self.world.context.cudarc();
        let borrow = words.maybe() == Some("borrowed");
        let new = match borrow {
            false => context.new_stream()?,
            true => {
                let raw = result::stream::create(result::stream::StreamKind::NonBlocking)?;
                // SAFETY: the stream is destroyed only once it is forgotten.
                unsafe { context.wrap_borrowed_stream(raw) }
            }
        };
        let old = self.order.replace(stream, new);
        if core::mem::replace(&mut self.borrowed[stream], borrow) {
            self.forget(old)?;
        }
        self.forget_left()
    }

    /// Forgets a borrowed stream and destroys it, now or once nothing holds it.
    fn forget(&mut self, stream: Arc<CudaStream>) -> Outcome {
        let raw = stream.cu_stream();
        let mut forgotten = Ok(());
        for memory in self
            .memories
            .values()
            .filter_map(|memory| memory.device.as_ref())
        {
            // SAFETY: the stream still exists, and this value is dropped before the stream is destroyed.
            let value = unsafe { self.world.context.cudarc().wrap_borrowed_stream(raw) };
            forgotten = forgotten.and(memory.forget_stream(value));
        }
        drop(stream);
        match forgotten {
            // SAFETY: the stream was made by `replace_stream`, and nothing uses it any more.
            Ok(()) => Ok(unsafe { result::stream::destroy(raw) }?),
            Err(DeviceAllocError::StreamHeld | DeviceAllocError::Capturing) => {
                // SAFETY: the stream still exists.
                let again = unsafe { self.world.context.cudarc().wrap_borrowed_stream(raw) };
                self.left.push(again);
                Ok(())
            }
            Err(error) => Err(format!("forget: {error}").into()),
        }
    }

    pub(crate) fn forget_left(&mut self) -> Outcome {
        let left = core::mem::take(&mut self.left);
        left.into_iter().try_for_each(|stream| self.forget(stream))
    }

    /// Drops all streams; those that belong to another library are destroyed.
    pub(crate) fn end_streams(&mut self) -> Outcome {
        if self.borrowed.contains(&true) || !self.left.is_empty() {
            // Pinned buffers that were dropped keep the streams that used them alive until their work is known to be
            // done.
            self.order
                .streams
                .iter()
                .try_for_each(|stream| self.world.context.wait_for(stream))?;
            for memory in self.memories.values() {
                memory.pinned.iter().for_each(|pinned| _ = pinned.release());
            }
        }
        let streams = core::mem::take(&mut self.order.streams);
        for (stream, borrowed) in streams.into_iter().zip(self.borrowed) {
            if borrowed {
                self.forget(stream)?;
            }
        }
        self.forget_left()?;
        match self.left.is_empty() {
            true => Ok(()),
            false => Err("a stream is held although nobody has anything of it".into()),
        }
    }
}

fn is_all(found: &[u64], value: u64) -> Outcome {
    match found.iter().find(|found| **found != value) {
        Some(odd) => Err(format!("a buffer holds {odd:#x}, and not {value:#x}").into()),
        None => Ok(()),
    }
}
