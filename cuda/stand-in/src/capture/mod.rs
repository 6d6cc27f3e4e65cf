//! Capture: work that is submitted to a stream during its capture becomes a node of a graph and
//! does not run.
//!
//! A stream joins a capture by waiting for an event that was recorded in it, and all streams leave
//! the capture when it ends. A call that is not allowed during a capture invalidates it: the
//! capture stays active as *invalid* until the program ends it, which then returns no graph.
//!
//! `refuse` checks for these calls. Memory of pools is not captured (`CUDA_ERROR_NOT_SUPPORTED`),
//! nor are external events. Destroying the stream in which a capture began ends the capture, with a
//! finding.

mod refuse;

use std::collections::{BTreeMap, BTreeSet};

use larder_cuda_abi::Code;
use larder_cuda_abi::constants::{
    CAPTURE_MODE_RELAXED, CAPTURE_STATUS_ACTIVE, CAPTURE_STATUS_INVALIDATED, CAPTURE_STATUS_NONE,
};

use crate::driver::SimDriver;
use crate::graph::Graph;
use crate::queue::{OpId, Work};
use crate::thread;
pub(crate) use refuse::CaptureRules;

/// Operation number of captured work, which counts as done.
const CAPTURED: OpId = 0;

/// Number of a capture, never reused.
pub(crate) type CaptureId = u64;

/// All captures that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    active: BTreeMap<CaptureId, Capture>,
    last: CaptureId,
}

/// One capture.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) graph: usize,
    mode: u32,
    /// The thread that began the capture.
    thread: usize,
    /// The stream in which the capture began.
    origin: usize,
    invalid: bool,
    /// The capture's streams, each with the nodes that its next node depends on.
    streams: BTreeMap<usize, Vec<usize>>,
    /// Handles of the nodes that a stream's next node depends on, as last reported to the program.
    pub(crate) reported: Vec<usize>,
}

/// The nodes that an event recorded in a capture stands for.
#[derive(Clone, Debug)]
pub(crate) struct CapturedRecord {
    capture: CaptureId,
    after: Vec<usize>,
}

impl Capture {
    fn check(&self) -> Result<(), Code> {
        if self.invalid {
            return Err(Code::STREAM_CAPTURE_INVALIDATED);
        }
        Ok(())
    }

    fn status(&self) -> u32 {
        if self.invalid {
            return CAPTURE_STATUS_INVALIDATED;
        }
        CAPTURE_STATUS_ACTIVE
    }

    /// Makes the stream's next node depend on these nodes too.
    fn join(&mut self, stream: usize, after: &[usize]) {
        let known = self.streams.entry(stream).or_default();
        known.extend(after);
        known.sort_unstable();
        known.dedup();
    }
}

impl Captures {
    /// Returns the capture that a stream is part of.
    fn of(&self, stream: usize) -> Option<CaptureId> {
        let mut active = self.active.iter();
        let found = active.find(|(_, capture)| capture.streams.contains_key(&stream));
        found.map(|(id, _)| *id)
    }

    fn invalidate(&mut self, id: CaptureId) {
        if let Some(capture) = self.active.get_mut(&id) {
            capture.invalid = true;
        }
    }

    fn get_mut(&mut self, id: CaptureId) -> Result<&mut Capture, Code> {
        self.active
            .get_mut(&id)
            .ok_or(Code::STREAM_CAPTURE_INVALIDATED)
    }
}

impl SimDriver {
    /// Returns whether a stream is being captured.
    pub(crate) fn is_capturing(&self, stream: usize) -> bool {
        self.captures.of(stream).is_some()
    }

    /// Returns the capture of a stream, with its number.
    fn capture(&mut self, stream: usize) -> Option<(CaptureId, &mut Capture)> {
        let id = self.captures.of(stream)?;
        Some((id, self.captures.active.get_mut(&id)?))
    }

    /// Returns the capture of a stream, with its number, for a program that queries it. Sets
    /// `reported` to the handles of the nodes that the stream's next node depends on.
    pub(crate) fn report_capture(&mut self, stream: usize) -> Result<(CaptureId, &Capture), Code> {
        let id = self.captures.of(stream).ok_or(Code::UNKNOWN)?;
        let capture = self.captures.get_mut(id)?;
        let graph = self.graphs.get(capture.graph)?;
        let after = capture.streams.get(&stream).into_iter().flatten();
        capture.reported = after
            .filter_map(|index| Some(graph.nodes.get(*index)?.handle))
            .collect();
        Ok((id, capture))
    }

    /// Returns the code of a stream's capture state.
    pub(crate) fn capture_status(&mut self, stream: usize) -> Result<u32, Code> {
        if let Some((_, capture)) = self.capture(stream) {
            return Ok(capture.status());
        }
        if self.implicit_captures(stream)?.is_empty() {
            return Ok(CAPTURE_STATUS_NONE);
        }
        Err(Code::STREAM_CAPTURE_IMPLICIT)
    }

    /// Begins a capture in a stream.
    pub(crate) fn begin_capture(&mut self, stream: usize, mode: u32) -> Result<(), Code> {
        if mode > CAPTURE_MODE_RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        if self.streams.get(stream)?.is_legacy {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.is_capturing(stream) {
            return Err(Code::ILLEGAL_STATE);
        }
        let graph = self.handles.next();
        self.graphs.insert(graph, Graph::captured());
        self.captures.last += 1;
        let capture = Capture {
            graph,
            mode,
            thread: thread::number(),
            origin: stream,
            invalid: false,
            streams: BTreeMap::from([(stream, Vec::new())]),
            reported: Vec::new(),
        };
        self.captures.active.insert(self.captures.last, capture);
        Ok(())
    }

    /// Ends the capture that began in a stream. Returns its graph.
    pub(crate) fn end_capture(&mut self, stream: usize) -> Result<usize, Code> {
        let Some((id, capture)) = self.capture(stream) else {
            return Err(Code::ILLEGAL_STATE);
        };
        if capture.origin != stream {
            capture.invalid = true;
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != CAPTURE_MODE_RELAXED && capture.thread != thread::number() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let capture = self.captures.active.remove(&id).ok_or(Code::UNKNOWN)?;
        let whole = capture.check().and_then(|()| self.check_joined(&capture));
        if let Err(code) = whole {
            let _ = self.graphs.remove(capture.graph);
            return Err(code);
        }
        self.graphs.get_mut(capture.graph)?.capturing = false;
        Ok(capture.graph)
    }

    /// Checks that every captured node comes before the end of the stream in which the capture
    /// began.
    fn check_joined(&self, capture: &Capture) -> Result<(), Code> {
        let graph = self.graphs.get(capture.graph)?;
        let ends = capture.streams.get(&capture.origin);
        let mut open: Vec<usize> = ends.cloned().unwrap_or_default();
        let mut joined = BTreeSet::new();
        while let Some(node) = open.pop() {
            if joined.insert(node)
                && let Some(node) = graph.nodes.get(node)
            {
                open.extend(&node.after);
            }
        }
        if joined.len() < graph.nodes.len() {
            return Err(Code::STREAM_CAPTURE_UNJOINED);
        }
        Ok(())
    }

    /// Captures the work if its stream is being captured. Otherwise returns the work, to be queued.
    pub(crate) fn divert(&mut self, stream: usize, work: Work) -> Result<Result<OpId, Work>, Code> {
        let Some(id) = self.captures.of(stream) else {
            self.spoil_implicit(stream)?;
            return Ok(Err(work));
        };
        let capture = self.captures.get_mut(id)?;
        capture.check()?;
        if matches!(
            work,
            Work::PoolAlloc { .. } | Work::PoolFree { .. } | Work::PlainFree { .. }
        ) {
            return Err(Code::NOT_SUPPORTED);
        }
        let context = self.streams.get(stream)?.context;
        let after = capture.streams.remove(&stream).unwrap_or_default();
        let handle = self.handles.next();
        let graph = self.graphs.get_mut(capture.graph)?;
        let node = graph.add(handle, context, work, after);
        capture.streams.insert(stream, vec![node]);
        Ok(Ok(CAPTURED))
    }

    /// Captures a launch of a graph by adding its nodes to the captured graph.
    pub(crate) fn capture_launch(&mut self, stream: usize, exec: usize) -> Result<(), Code> {
        let nodes = self.execs.get(exec)?.nodes.clone();
        let id = self.captures.of(stream).ok_or(Code::UNKNOWN)?;
        let capture = self.captures.get_mut(id)?;
        capture.check()?;
        let graph = self.graphs.get_mut(capture.graph)?;
        let before = capture.streams.get(&stream).cloned().unwrap_or_default();
        let first = graph.nodes.len();
        for node in &nodes {
            let after = match node.after.is_empty() {
                true => before.clone(),
                false => node.after.iter().map(|index| first + index).collect(),
            };
            let handle = self.handles.next();
            graph.add(handle, node.context, node.work.clone(), after);
        }
        if !nodes.is_empty() {
            let ends = crate::graph::ends(&nodes);
            let ends = ends.into_iter().map(|index| first + index).collect();
            capture.streams.insert(stream, ends);
        }
        Ok(())
    }

    /// Returns the nodes that a record in this stream stands for, if the stream is being captured.
    pub(crate) fn captured_record(
        &mut self,
        stream: usize,
    ) -> Result<Option<CapturedRecord>, Code> {
        let Some((id, capture)) = self.capture(stream) else {
            return Ok(None);
        };
        capture.check()?;
        let after = capture.streams.get(&stream).cloned().unwrap_or_default();
        Ok(Some(CapturedRecord { capture: id, after }))
    }

    /// Handles a wait for an event if the stream or the event is part of a capture. Returns whether
    /// either is. `recorded` says whether the event has ever been recorded.
    pub(crate) fn capture_wait(
        &mut self,
        stream: usize,
        event: Option<CapturedRecord>,
        recorded: bool,
    ) -> Result<bool, Code> {
        if let Some((_, capture)) = self.capture(stream) {
            capture.check()?;
        }
        let known = |id: &CaptureId| self.captures.active.contains_key(id);
        let event_lives = event.as_ref().is_some_and(|event| known(&event.capture));
        match (self.captures.of(stream), event) {
            (None, None) => Ok(false),
            (Some(_), None) if !recorded => Ok(true),
            (Some(id), Some(event)) if event.capture == id => {
                self.captures.get_mut(id)?.join(stream, &event.after);
                Ok(true)
            }
            (Some(id), Some(event)) if event_lives => {
                self.captures.invalidate(id);
                self.captures.invalidate(event.capture);
                Err(Code::STREAM_CAPTURE_MERGE)
            }
            (Some(id), _) => {
                self.captures.invalidate(id);
                Err(Code::STREAM_CAPTURE_ISOLATION)
            }
            (None, Some(_)) if !event_lives => Err(Code::CAPTURED_EVENT),
            (None, Some(event)) => {
                if self.streams.get(stream)?.is_legacy {
                    self.captures.invalidate(event.capture);
                    return Err(Code::STREAM_CAPTURE_IMPLICIT);
                }
                let capture = self.captures.get_mut(event.capture)?;
                capture.check()?;
                capture.join(stream, &event.after);
                Ok(true)
            }
        }
    }

    /// Ends the capture that began in a stream, because the stream is destroyed.
    pub(crate) fn end_captures_from(&mut self, stream: usize) {
        let Some(id) = self.captures.of(stream) else {
            return;
        };
        let origin = |capture: &Capture| capture.origin == stream;
        if self.captures.active.get(&id).is_some_and(origin)
            && let Some(capture) = self.captures.active.remove(&id)
        {
            let _ = self.graphs.remove(capture.graph);
            self.findings.add(format!(
                "stream {stream:#x} is destroyed while a capture that began in it goes on"
            ));
        }
    }
}
