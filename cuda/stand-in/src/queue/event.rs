//! Events and their records.

use std::time::Duration;

use larder_cuda_abi::Code;
use larder_cuda_abi::constants::EVENT_DISABLE_TIMING;

use super::{OpId, Work};
use crate::capture::CapturedRecord;
use crate::clock::VectorClock;
use crate::driver::SimDriver;

/// One event.
#[derive(Debug)]
pub(crate) struct SimEvent {
    pub(crate) context: usize,
    pub(crate) flags: u32,
    /// Number of records so far.
    pub(crate) records: u64,
    /// The newest record.
    pub(crate) record: Option<Record>,
    /// The newest record, if it was captured.
    pub(crate) captured: Option<CapturedRecord>,
}

/// The state of a stream when an event was recorded.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) op: OpId,
    pub(crate) clock: VectorClock,
    /// The time at which the record ran.
    pub(crate) time: Option<Duration>,
}

impl SimEvent {
    pub(crate) fn new(context: usize, flags: u32) -> Self {
        Self {
            context,
            flags,
            records: 0,
            record: None,
            captured: None,
        }
    }

    fn times(&self) -> bool {
        self.flags & EVENT_DISABLE_TIMING == 0
    }
}

impl SimDriver {
    /// Records an event, which then stands for all work in the stream so far.
    pub(crate) fn record(&mut self, event: usize, stream: usize) -> Result<(), Code> {
        let context = self.streams.get(stream)?.context;
        let known = self.events.get(event)?;
        if known.context != context {
            return Err(Code::INVALID_HANDLE);
        }
        if let Some(captured) = self.captured_record(stream)? {
            self.events.get_mut(event)?.captured = Some(captured);
            return Ok(());
        }
        let record = self.events.get(event)?.records + 1;
        let op = self.submit(stream, Work::Record { event, record })?;
        let clock = self.streams.get(stream)?.clock.clone();
        let known = self.events.get_mut(event)?;
        known.records = record;
        known.captured = None;
        known.record = Some(Record {
            op,
            clock,
            time: None,
        });
        Ok(())
    }

    /// Makes later work of the stream wait for the event's current record.
    pub(crate) fn wait_event(&mut self, stream: usize, event: usize) -> Result<(), Code> {
        let known = self.events.get(event)?;
        let (captured, record) = (known.captured.clone(), known.record.clone());
        if self.capture_wait(stream, captured, record.is_some())? {
            return Ok(());
        }
        let Some(record) = record else {
            return Ok(());
        };
        self.submit_behind(stream, Some((record.op, record.clock)))
            .map(drop)
    }

    /// Returns an error if the newest record is not done. Otherwise joins its clock to the host's.
    pub(crate) fn query_event(&mut self, event: usize) -> Result<(), Code> {
        self.check_event(event)?;
        let event = self.events.get(event)?;
        self.alive(event.context)?;
        let Some(record) = &event.record else {
            return Ok(());
        };
        if !self.queue.done(record.op) {
            return Err(Code::NOT_READY);
        }
        self.host.join(&record.clock);
        Ok(())
    }

    /// Returns the milliseconds between two records.
    pub(crate) fn elapsed(&self, start: usize, end: usize) -> Result<f32, Code> {
        let (start, end) = (self.events.get(start)?, self.events.get(end)?);
        if start.captured.is_some() || end.captured.is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        let (Some(from), Some(to)) = (&start.record, &end.record) else {
            return Err(Code::INVALID_HANDLE);
        };
        if !start.times() || !end.times() {
            return Err(Code::INVALID_HANDLE);
        }
        if !self.queue.done(from.op) || !self.queue.done(to.op) {
            return Err(Code::NOT_READY);
        }
        let (Some(from), Some(to)) = (from.time, to.time) else {
            return Err(Code::NOT_READY);
        };
        let forth = to.saturating_sub(from).as_secs_f64();
        let back = from.saturating_sub(to).as_secs_f64();
        Ok(((forth - back) * 1e3) as f32)
    }
}
