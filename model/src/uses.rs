//! An oracle that knows no policy: it records the memory that queued work may still use, and checks each grant against
//! it.

use std::collections::BTreeMap;

use larder_core::{AddrRange, Block, Grant, Request, Resize};

/// One use: the memory as `start..end`, the stream and its event.
type Use = (u64, u64, u8, u64);

/// The last use of memory that was freed with a point, and the completed event of each stream.
#[derive(Default)]
pub(crate) struct Uses {
    uses: Vec<Use>,
    completed: BTreeMap<u8, u64>,
}

impl Uses {
    pub(crate) fn completed(&mut self, stream: u8, event: u64) {
        let completed = self.completed.entry(stream).or_default();
        *completed = event.max(*completed);
    }

    /// Records a free. A free without a point asserts that nothing uses the memory.
    pub(crate) fn freed(&mut self, range: AddrRange, point: Option<(u8, u64)>) {
        if let Some((stream, event)) = point {
            let (start, end) = (range.start().get(), range.end().get());
            self.uses.push((start, end, stream, event));
        }
    }

    /// Checks a grant: every use of its memory must be completed, on the request's own stream, or waited for.
    pub(crate) fn granted(&mut self, grant: &Grant, request: &Request) -> Result<(), String> {
        if grant.wait.is_some() && !request.may_wait {
            return Err(format!("{request:?} waits: {:?}", grant.wait));
        }
        if !grant.block.addr().is_aligned(request.align) {
            return Err(format!("{request:?} is not aligned: {:?}", grant.block));
        }
        self.taken_by(grant.block.range(), |stream, event| {
            let is_own = stream == request.stream.number();
            is_own && request.freed_by.is_none_or(|by| event <= by.number())
                || grant.wait.is_some_and(|wait| {
                    wait.stream.number() == stream && event <= wait.event.number()
                })
        })
    }

    /// Checks memory that is granted without a wait, for one stream or for any.
    pub(crate) fn taken(&mut self, range: AddrRange, on: Option<u8>) -> Result<(), String> {
        self.taken_by(range, |stream, _| on == Some(stream))
    }

    /// Checks the memory into which a block grew, and records the use of an end that was cut off.
    pub(crate) fn resized(&mut self, old: &Block, new: &Block, to: &Resize) -> Result<(), String> {
        let between = |low: &Block, high: &Block| {
            AddrRange::new(low.range().end(), high.bytes() - low.bytes())
        };
        let stream = to.stream.number();
        if old.bytes() < new.bytes() {
            between(old, new).map_or(Ok(()), |range| self.taken(range, Some(stream)))
        } else {
            let point = to.used_until.map(|event| (stream, event.number()));
            if let Some(range) = between(new, old) {
                self.freed(range, point);
            }
            Ok(())
        }
    }

    /// Forgets the uses of granted memory. Each must be completed or allowed.
    fn taken_by(
        &mut self,
        range: AddrRange,
        is_allowed: impl Fn(u8, u64) -> bool,
    ) -> Result<(), String> {
        let (start, end) = (range.start().get(), range.end().get());
        let mut left = Vec::new();
        for used in self.uses.drain(..) {
            let (from, to, stream, event) = used;
            if to <= start || end <= from {
                left.push(used);
                continue;
            }
            let completed = self.completed.get(&stream).copied().unwrap_or(0);
            if event > completed && !is_allowed(stream, event) {
                return Err(format!("{range:?} is in use on {stream} until {event}"));
            }
            let parts = [(from, start), (end, to)].into_iter();
            let parts = parts.filter(|(from, to)| from < to);
            left.extend(parts.map(|(from, to)| (from, to, stream, event)));
        }
        self.uses = left;
        Ok(())
    }
}
