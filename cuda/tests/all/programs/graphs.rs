//! Captures: a player's own, over windows of the allocator, and foreign ones. What a capture holds happens when
//! its graph is launched, on the device and on the host.

use std::sync::Arc;

use cudarc::driver::{CudaStream, sys};
use larder_cuda::{CaptureWindow, Event, EventConfig};

use crate::common::graph::Graph;
use crate::programs::player::Player;
use crate::programs::things::Thing;
use crate::programs::words::{Missing, Outcome, Words};

/// What a part of a graph does to the host's copies.
type Effect = Box<dyn Fn() + Send + Sync>;

/// A capture under way.
pub(crate) struct Capture {
    pub(crate) stream: usize,
    effects: Vec<Effect>,
    /// Blocks from outside of it, by name and number.
    outer: Vec<(String, u64)>,
    /// Other streams are part of it: all are, for the program.
    forked: bool,
    /// Events inside, which the graph needs no more once it is made.
    events: Vec<Event>,
}

/// A graph that was captured.
pub(crate) struct Captured {
    graph: Graph,
    stream: usize,
    effects: Vec<Effect>,
    outer: Vec<(String, u64)>,
    /// The window, where the graph alone has it.
    _window: Option<CaptureWindow>,
}

/// A capture that does not use our allocators.
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

/// Ends a capture, which nothing may have spoilt.
fn end_capture(stream: &CudaStream) -> Outcome<Graph> {
    let graph = Graph::end_capture(stream);
    graph.map_err(|error| format!("a capture was spoilt: {error}").into())
}

impl Player {
    /// Does now, or when the graph is launched, what work on a stream does to the host's copies.
    pub(crate) fn effect(&mut self, stream: usize, effect: impl Fn() + Send + Sync + 'static) {
        match &mut self.capture {
            Some(open) if open.takes(stream) => open.effects.push(Box::new(effect)),
            _ => effect(),
        }
    }

    /// Notes a use in a capture, if the stream captures: those outside may be done much earlier.
    pub(crate) fn use_in_graph(&mut self, name: &str, stream: usize) -> Outcome<bool> {
        let takes = |open: &&mut Capture| open.takes(stream);
        let Some(open) = self.capture.as_mut().filter(takes) else {
            return match self.held(name)?.inner {
                true => Err(Missing("a block that is not a graph's").into()),
                false => Ok(false),
            };
        };
        let held = self.blocks.get(name).ok_or(Missing("the block"))?;
        match (held.inner, held.ready) {
            (true, _) => {}
            (false, false) => return Err(Missing("what it holds").into()),
            (false, true) => open.outer.push((name.to_owned(), held.id)),
        }
        Ok(true)
    }

    /// Puts all that a stream did in front of another one, which stands for it from then on.
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
        // No event can be recorded on it from here on.
        self.leave(stream)?;
        queue.begin_capture(mode(words)?)?;
        self.capture = Some(Capture {
            stream,
            effects: Vec::new(),
            outer: Vec::new(),
            forked: false,
            events: Vec::new(),
        });
        Ok(())
    }

    /// `fork STREAM FROM`: makes a stream part of the capture of another, or joins it again.
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

    /// `end GRAPH [WINDOW]`: ends the capture, and closes the window, which the graph then has.
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

    /// `launch GRAPH`: on the stream of its capture.
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

    /// `foreign [MODE]` begins a capture that has nothing to do with an allocator, or ends it: whole.
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

    /// Ends all captures, as a player that hands on its turn must.
    pub(crate) fn end_captures(&mut self) -> Outcome {
        if self.capture.is_some() {
            self.end_capture(&mut Words::new("left-graph left-window"))?;
            self.drop_thing(&mut Words::new("left-graph"))?;
        }
        self.end_foreign()
    }
}

impl Capture {
    /// Whether work of a stream becomes part of the graph.
    fn takes(&self, stream: usize) -> bool {
        self.stream == stream || self.forked
    }
}

impl Captured {
    /// Its stream, on which its runs are.
    pub(crate) const fn stream(&self) -> usize {
        self.stream
    }
}
