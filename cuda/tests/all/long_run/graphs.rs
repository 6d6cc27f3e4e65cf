//! Captures: a player's own, over windows of the allocator, and foreign ones.

use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use larder_core::Block;
use larder_cuda::{CaptureWindow, DeviceAllocError};

use super::player::{Outcome, Player, is_short};
use crate::common::MIB;
use crate::common::graph::Graph;
use larder_model::Random;

/// Graphs that a player keeps.
const GRAPHS: usize = 3;

/// Ends a capture, which nothing may have spoilt.
fn end_capture(stream: &CudaStream) -> Outcome<Graph> {
    let graph = Graph::end_capture(stream);
    graph.map_err(|error| format!("a capture was spoilt: {error}").into())
}

/// A capture under way.
pub(super) struct Capture {
    pub(super) stream: usize,
    window: CaptureWindow,
    blocks: Vec<(Block, u64)>,
}

/// A captured graph, and its memory.
pub(super) struct Captured {
    pub(super) stream: usize,
    graph: Graph,
    window: CaptureWindow,
    /// Blocks of the window that were not freed inside.
    blocks: Vec<Block>,
}

/// A foreign capture, which does not use the allocator.
pub(super) struct Foreign {
    stream: Arc<CudaStream>,
    scratch: u64,
}

fn mode(random: &mut Random) -> sys::CUstreamCaptureMode {
    *random.pick(&[
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ])
}

impl Player {
    /// Begins a capture, or continues the open one.
    pub(super) fn capture(&mut self) -> Outcome {
        match self.capture.take() {
            None => self.begin_capture(),
            Some(open) if self.random.index(4) == 0 => self.end_capture(open),
            Some(mut open) => {
                let done = self.inside(&mut open);
                self.capture = Some(open);
                done
            }
        }
    }

    fn begin_capture(&mut self) -> Outcome {
        if self.captured.len() >= GRAPHS {
            return self.drop_captured(0);
        }
        let stream = self.stream();
        self.end_step_of(stream);
        let bytes = *self.random.pick(&[4096, 300 << 10, 2 * MIB]);
        let window = self.world.memory.prime(&self.order.streams[stream], bytes);
        let window = match window {
            Ok(window) => window,
            Err(error) if is_short(&error) => return Ok(()),
            Err(error) => return Err(format!("prime: {error}").into()),
        };
        // No event can be recorded on it from here on: what it did is put in front of another stream.
        self.leave(stream)?;
        let mode = mode(&mut self.random);
        self.order.streams[stream].begin_capture(mode)?;
        self.capture = Some(Capture {
            stream,
            window,
            blocks: Vec::new(),
        });
        Ok(())
    }

    /// Something on the stream that captures.
    fn inside(&mut self, open: &mut Capture) -> Outcome {
        let stream = self.order.streams[open.stream].clone();
        let memory = &self.world.memory;
        if open.blocks.len() >= 4 || (!open.blocks.is_empty() && self.random.index(3) == 0) {
            let index = self.random.index(open.blocks.len());
            let (block, value) = open.blocks.swap_remove(index);
            let (at, bytes) = (block.addr().get(), block.bytes());
            self.world.stamps.check(&stream, at, bytes, value)?;
            return Ok(memory.free(&stream, block)?);
        }
        let bytes = *self.random.pick(&[100, 4000, 70_000, 500_000]);
        match memory.alloc(&stream, bytes) {
            Ok(block) => {
                let value = self.next_value();
                let (at, bytes) = (block.addr().get(), block.bytes());
                self.world.stamps.stamp(&stream, at, bytes, value)?;
                open.blocks.push((block, value));
                Ok(())
            }
            Err(DeviceAllocError::Window { .. }) => Ok(()),
            Err(error) => Err(format!("inside a capture: {error}").into()),
        }
    }

    fn end_capture(&mut self, open: Capture) -> Outcome {
        let stream = self.order.streams[open.stream].clone();
        let mut blocks = Vec::new();
        for (block, value) in open.blocks {
            let (at, bytes) = (block.addr().get(), block.bytes());
            self.world.stamps.check(&stream, at, bytes, value)?;
            match self.random.index(2) == 0 {
                true => blocks.push(block),
                false => self.world.memory.free(&stream, block)?,
            }
        }
        let graph = end_capture(&stream)?;
        open.window.close();
        self.captured.push(Captured {
            stream: open.stream,
            graph,
            window: open.window,
            blocks,
        });
        self.launch_captured()
    }

    /// Ends the captures, as a player that hands on its turn must.
    pub(super) fn end_captures(&mut self) -> Outcome {
        if let Some(open) = self.capture.take() {
            self.end_capture(open)?;
        }
        self.end_foreign()
    }

    /// Launches a graph that was captured, if there is one.
    pub(super) fn launch_captured(&mut self) -> Outcome {
        if self.captured.is_empty() {
            return Ok(());
        }
        let index = self.random.index(self.captured.len());
        let stream = self.captured[index].stream;
        if self.is_capturing(stream) {
            return Ok(());
        }
        let queue = self.order.streams[stream].clone();
        Ok(self.captured[index].graph.launch(&queue)?)
    }

    /// Drops a graph; its launches are ordered before later work on its stream.
    pub(super) fn drop_captured(&mut self, index: usize) -> Outcome {
        if index >= self.captured.len() || self.is_capturing(self.captured[index].stream) {
            return Ok(());
        }
        let gone = self.captured.swap_remove(index);
        let stream = &self.order.streams[gone.stream];
        for block in gone.blocks {
            self.world.memory.free(stream, block)?;
        }
        drop(gone.window);
        drop(gone.graph);
        Ok(())
    }

    /// Begins or ends a capture that has nothing to do with the allocator.
    pub(super) fn foreign(&mut self) -> Outcome {
        if self.foreign.is_some() {
            return self.end_foreign();
        }
        let stream = self.world.context.cudarc().new_stream()?;
        let mode = mode(&mut self.random);
        stream.begin_capture(mode)?;
        let scratch = self.scratch;
        self.foreign = Some(Foreign { stream, scratch });
        Ok(())
    }

    fn end_foreign(&mut self) -> Outcome {
        let Some(open) = self.foreign.take() else {
            return Ok(());
        };
        let stream = open.stream.cu_stream();
        // SAFETY: so many bytes are there as long as the world; the stream captures.
        unsafe { result::memset_d8_async(open.scratch, 1, 4096, stream) }?;
        end_capture(&open.stream).map(drop)
    }
}
