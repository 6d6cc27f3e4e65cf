//! Captures: a player's own, over windows of the allocator, and foreign ones. Captured work is done when its graph is
//! launched, on the device and on the host's copies.

use std::sync::Arc;

use cudarc::driver::{CudaStream, sys};
use larder_cuda::{CaptureWindow, Event, EventConfig};

use crate::common::graph::Graph;
use crate::programs::player::Player;
use crate::programs::things::Thing;
use crate::programs::words::{Missing, Outcome, Words};

/// The effect of a part of a graph on the host's copies.
type Effect = Box<dyn Fn() + Send + Sync>;

/// A capture in progress.
pub(crate) struct Capture {
    pub(crate) stream: usize,
    /// The number of the newest block from before the capture.
    newest_before: u64,
    effects: Vec<Effect>,
    /// Names and numbers of used blocks from outside the capture.
    outer: Vec<(String, u64)>,
    /// Whether other streams take part in the capture. If so, the program treats all streams as part of it.
    forked: bool,
    /// Events recorded in the capture, which the finished graph does not need.
    events: Vec<Event>,
}

pub(crate) struct Captured {
    graph: Graph,
    stream: usize,
    effects: Vec<Effect>,
    outer: Vec<(String, u64)>,
    /// The window, if the graph owns it.
    _window: Option<CaptureWindow>,
}

/// A capture that uses none of our allocators.
pub(crate) struct Foreign {
    stream: Arc<CudaStream>,
}

fn mode(words: &mut Words<'_>) -> Outcome<sys::CUstreamCaptureMode> {
    match words.maybe() {
        Some("global") => Ok(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL),
        Some("thread") => Ok(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
        None | Some("relaxed") => Ok(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED),
        Some(other) => Err(format!("no mode of captures: {other}").into()),
    }
}

/// Ends a capture, and checks that nothing has spoilt it.
fn end_capture(stream: &CudaStream) -> Outcome<Graph> {
    let graph = Graph::end_capture(stream);
    graph.map_err(|error| format!("a capture was spoilt: {error}").into())
}

impl Player {
    /// Applies the effect of work on a stream to the host's copies: now, or at each launch of the graph if the stream
    /// is being captured.
    pub(crate) fn effect(&mut self, stream: usize, effect: impl Fn() + Send + Sync + 'static) {
        match &mut self.capture {
            Some(open) if open.takes(stream) => open.effects.push(Box::new(effect)),
            _ => effect(),
        }
    }

    /// Returns whether a use of a block becomes part of a graph. If so, a block from outside the capture is noted,
    /// because each launch uses it.
    pub(crate) fn use_in_graph(&mut self, name: &str, stream: usize) -> Outcome<bool> {
        let takes = |open: &&mut Capture| open.takes(stream);
        let Some(open) = self.capture.as_mut().filter(takes) else {
            return match self.held(name)?.inner {
                true => Err(Missing("a block that is not a graph's").into()),
                false => Ok(false),
            };
        };
        let held = self.blocks.get(name).ok_or(Missing("the block"))?;
        // A block of an earlier capture has no contents before a launch of that graph, which nothing orders before
        // another stream.
        let is_older = held.id <= open.newest_before;
        let is_empty = || held.contents.with(|contents| contents.is_empty());
        match (held.inner, held.ready) {
            (true, _) if is_older && (held.last != open.stream || is_empty()) => {
                return Err(Missing("what it holds").into());
            }
            (true, _) => {}
            (false, false) => return Err(Missing("what it holds").into()),
            (false, true) => open.outer.push((name.to_owned(), held.id)),
        }
        Ok(true)
    }

    /// Orders another stream after a stream's uses of blocks, which count as uses on the other stream from then on.
    pub(crate) fn leave(&mut self, stream: usize) -> Outcome {
        let count = self.order.streams.len();
        let others = (1..count).map(|step| (stream + step) % count);
        let Some(other) = others.into_iter().find(|other| !self.captures(*other)) else {
            return Ok(self.order.sync_stream(stream)?);
        };
        for held in self.blocks.values_mut() {
            if held.used.streams().contains(&stream) {
                self.order.after(other, &held.used)?;
                let at = self.order.step(other);
                (held.wrote, held.used, held.last) = (at, at, other);
            }
        }
        self.leave_buffers(other)
    }

    /// `prime WINDOW STREAM BYTES`
    pub(crate) fn prime(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let (stream, queue) = self.stream_of(words)?;
        let bytes = words.number()?;
        let device = self.device()?;
        if self.is_drawn && self.captures(stream) {
            return Err(Missing("a stream that does not capture").into());
        }
        let window = self.short(|_| device.prime(&queue, bytes))?;
        self.put(name, Thing::Window(window))
    }

    /// `capture STREAM [MODE]`: begins a capture.
    pub(crate) fn begin_capture(&mut self, words: &mut Words<'_>) -> Outcome {
        let (stream, queue) = self.stream_of(words)?;
        if self.capture.is_some() {
            return Err(Missing("an end of the capture before").into());
        }
        // During the capture, no other stream can wait for this one.
        self.leave(stream)?;
        queue.begin_capture(mode(words)?)?;
        self.capture = Some(Capture {
            stream,
            newest_before: self.next_id,
            effects: Vec::new(),
            outer: Vec::new(),
            forked: false,
            events: Vec::new(),
        });
        Ok(())
    }

    /// `fork STREAM FROM`: makes STREAM wait for FROM in a capture. This adds STREAM to the capture, or joins FROM.
    pub(crate) fn fork(&mut self, words: &mut Words<'_>) -> Outcome {
        let ((_, to), (_, from)) = (self.stream_of(words)?, self.stream_of(words)?);
        let event = Event::new(&self.world.context, EventConfig::default())?;
        event.record(&from)?;
        event.wait_on(&to)?;
        let open = self.capture.as_mut().ok_or(Missing("a capture"))?;
        open.forked = true;
        open.events.push(event);
        Ok(())
    }

    /// `end GRAPH [WINDOW]`: ends the capture, and closes the window, which the graph then owns.
    pub(crate) fn end_capture(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let open = self.capture.as_ref().ok_or(Missing("a capture"))?;
        let queue = self.order.streams[open.stream].clone();
        let graph = end_capture(&queue)?;
        let open = self.capture.take().ok_or(Missing("a capture"))?;
        let window = match words.maybe().map(|name| self.things.remove(name)) {
            Some(Some(Thing::Window(window))) => {
                window.close();
                Some(window)
            }
            _ => None,
        };
        let (stream, effects, outer) = (open.stream, open.effects, open.outer);
        let captured = Captured {
            graph,
            stream,
            effects,
            outer,
            _window: window,
        };
        self.put(name, Thing::Graph(captured))
    }

    /// `launch GRAPH`: launches a graph on the stream on which it was captured.
    pub(crate) fn launch_graph(&mut self, words: &mut Words<'_>) -> Outcome {
        let name = words.next()?;
        let Some(Thing::Graph(captured)) = self.things.get(name) else {
            return Err(Missing("the graph").into());
        };
        let stream = captured.stream;
        let is_there =
            |(name, id): &(String, u64)| self.held(name).is_ok_and(|held| held.id == *id);
        if self.is_asleep() || self.captures(stream) || !captured.outer.iter().all(is_there) {
            return Err(Missing("what the graph uses").into());
        }
        let outer = captured.outer.clone();
        for (name, _) in outer {
            self.use_block(&name, stream, true)?;
        }
        let Some(Thing::Graph(captured)) = self.things.get(name) else {
            return Err(Missing("the graph").into());
        };
        captured.graph.launch(&self.order.streams[stream])?;
        captured.effects.iter().for_each(|effect| effect());
        Ok(())
    }

    /// `foreign [MODE]`: begins a capture that uses no allocator, or ends it and checks that nothing has spoilt it.
    pub(crate) fn foreign(&mut self, words: &mut Words<'_>) -> Outcome {
        if self.foreign.is_some() {
            return self.end_foreign();
        }
        let stream = self.world.context.cudarc().new_stream()?;
        stream.begin_capture(mode(words)?)?;
        self.foreign = Some(Foreign { stream });
        Ok(())
    }

    fn end_foreign(&mut self) -> Outcome {
        let Some(Foreign { stream }) = self.foreign.take() else {
            return Ok(());
        };
        let event = Event::new(&self.world.context, EventConfig::default())?;
        event.record(&stream)?;
        end_capture(&stream).map(drop)
    }

    pub(crate) fn end_captures(&mut self) -> Outcome {
        if self.capture.is_some() {
            self.end_capture(&mut Words::new("left-graph left-window"))?;
            self.drop_thing(&mut Words::new("left-graph"))?;
        }
        self.end_foreign()
    }
}

impl Capture {
    /// Returns whether work on a stream becomes part of the graph.
    fn takes(&self, stream: usize) -> bool {
        self.stream == stream || self.forked
    }
}

impl Captured {
    pub(crate) const fn stream(&self) -> usize {
        self.stream
    }
}
