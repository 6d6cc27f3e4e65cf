//! Events on tape: written once, as few bytes each, and read repeatedly.
//!
//! * A short tape is in memory; a longer one is in a temporary file. The file is open but has no
//!   name, so the system removes it when the process ends for any reason.
//! * A block is identified by its *place*, a number below the maximum number of live blocks. So the
//!   reader of a tape needs only a table of places, which does not grow with the trace.
//! * A reader holds one batch of events.
//!
//! An event is encoded as a byte with its kind and the lengths of its numbers, followed by one or
//! two numbers: its block's place (for a step, the step's number), and the bytes of an allocation.
//! If event numbers or block ids are skipped, a *leap* precedes the event.

use std::io::{self, Read, Seek, Write};

use larder_trace::{Event, IdMap};
use tempfile::SpooledTempFile;

/// Maximum length in bytes of a tape that is kept in memory.
const IN_MEMORY: usize = 4 << 20;

/// Number of events read together, few enough to stay in the L1 cache until they are played.
const BATCH: usize = 1 << 10;

/// The kind of an event is the two lowest bits of its first byte. The other bits are the lengths of
/// its two numbers minus one, in three bits each.
const ALLOC: u8 = 0;
const FREE: u8 = 1;
const STEP: u8 = 2;
/// The number with which a step event means [`TapeAction::StartOver`].
const START_OVER: u64 = 1 << 32;
/// The lowest of those bits of an allocation's place that hold its stream. Stream 0 adds no bytes.
const STREAM_BIT: u32 = 56;
/// A leap: the next event's number minus the last event's, and its block's id minus the id due
/// next.
const LEAP: u8 = 3;

/// Maximum length of a number in bytes.
const NUMBER_BYTES: usize = 8;

/// An event as it is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Played {
    /// The event's number in the trace, counted from 1.
    pub(super) number: u64,
    pub(super) act: TapeAction,
}

/// The action of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TapeAction {
    Alloc {
        id: u32,
        place: usize,
        bytes: u64,
        /// The stream; 0 in recorded traces.
        stream: u8,
    },
    Free {
        place: usize,
    },
    Step {
        number: u32,
    },
    /// The whole trace begins again, as if the program started anew.
    StartOver,
}

/// Events that can be read repeatedly from the first one.
pub(crate) struct Tape {
    file: SpooledTempFile,
    /// The next batch to write.
    batch: Vec<u8>,
    last: Last,
    events: u64,
}

/// The number of the last event and the id of the next block. The next event is encoded relative to
/// them.
#[derive(Default)]
struct Last {
    number: u64,
    next_id: u64,
}

impl Tape {
    pub(super) fn new() -> Self {
        Self {
            file: SpooledTempFile::new(IN_MEMORY),
            batch: Vec::new(),
            last: Last::default(),
            events: 0,
        }
    }

    /// Appends an event. Neither event numbers nor block ids may decrease.
    pub(super) fn write(&mut self, event: Played) -> io::Result<()> {
        let Played { number, act } = event;
        let id = match act {
            TapeAction::Alloc { id, .. } => u64::from(id),
            _ => self.last.next_id,
        };
        let (numbers, ids) = (number - self.last.number, id - self.last.next_id);
        if (numbers, ids) != (1, 0) {
            push(&mut self.batch, LEAP, numbers, Some(ids));
        }
        let batch = &mut self.batch;
        match act {
            TapeAction::Alloc {
                place,
                bytes,
                stream,
                ..
            } => {
                let place = place as u64 | u64::from(stream) << STREAM_BIT;
                push(batch, ALLOC, place, Some(bytes));
            }
            TapeAction::Free { place } => push(batch, FREE, place as u64, None),
            TapeAction::Step { number } => push(batch, STEP, number.into(), None),
            TapeAction::StartOver => push(batch, STEP, START_OVER, None),
        }
        self.last.number = number;
        self.last.next_id = id + u64::from(matches!(act, TapeAction::Alloc { .. }));
        self.events += 1;
        if self.events.is_multiple_of(BATCH as u64) {
            self.write_batch()?;
        }
        Ok(())
    }

    /// Returns the number of events so far.
    pub(crate) const fn events(&self) -> u64 {
        self.events
    }

    /// Starts to read all events from the first one, in batches.
    pub(super) fn batches(&mut self) -> io::Result<Batches<'_>> {
        if !self.batch.is_empty() {
            self.write_batch()?;
        }
        self.file.rewind()?;
        Ok(Batches {
            left: self.events,
            last: Last::default(),
            bytes: Vec::new(),
            batch: Vec::with_capacity(BATCH),
            file: &mut self.file,
        })
    }

    /// Writes a batch, preceded by its length.
    fn write_batch(&mut self) -> io::Result<()> {
        self.file
            .write_all(&(self.batch.len() as u64).to_le_bytes())?;
        self.file.write_all(&self.batch)?;
        self.batch.clear();
        Ok(())
    }
}

/// A tape being read.
pub(super) struct Batches<'t> {
    file: &'t mut SpooledTempFile,
    left: u64,
    last: Last,
    bytes: Vec<u8>,
    batch: Vec<Played>,
}

impl Batches<'_> {
    /// Returns the next events, or an empty slice after the last one.
    pub(super) fn next(&mut self) -> io::Result<&[Played]> {
        self.batch.clear();
        if self.left > 0 {
            let mut length = [0; 8];
            self.file.read_exact(&mut length)?;
            let length = u64::from_le_bytes(length) as usize;
            // A number is read as 8 bytes and masked, so more bytes must follow the last one.
            self.bytes.resize(length + NUMBER_BYTES, 0);
            self.file.read_exact(&mut self.bytes[..length])?;
            let mut bytes = self.bytes.as_slice();
            while bytes.len() > NUMBER_BYTES {
                let event = self.last.event(&mut bytes);
                self.batch.push(event.ok_or(io::ErrorKind::InvalidData)?);
            }
            self.left = self.left.saturating_sub(self.batch.len() as u64);
        }
        Ok(&self.batch)
    }
}

impl Last {
    fn event(&mut self, bytes: &mut &[u8]) -> Option<Played> {
        let mut head = pull(bytes, 1)? as u8;
        if head & 3 == LEAP {
            // The code for the event itself, below, adds one.
            self.number += pull(bytes, first_length(head))?;
            self.number -= 1;
            self.next_id += pull(bytes, second_length(head))?;
            head = pull(bytes, 1)? as u8;
        }
        let first = pull(bytes, first_length(head))?;
        self.number += 1;
        let act = match head & 3 {
            ALLOC => {
                let id = self.next_id as u32;
                self.next_id += 1;
                TapeAction::Alloc {
                    id,
                    place: (first & ((1 << STREAM_BIT) - 1)) as usize,
                    bytes: pull(bytes, second_length(head))?,
                    stream: (first >> STREAM_BIT) as u8,
                }
            }
            FREE => TapeAction::Free {
                place: first as usize,
            },
            _ => match u32::try_from(first) {
                Ok(number) => TapeAction::Step { number },
                Err(_) => TapeAction::StartOver,
            },
        };
        Some(Played {
            number: self.number,
            act,
        })
    }
}

const fn first_length(head: u8) -> usize {
    (head >> 2 & 7) as usize + 1
}

const fn second_length(head: u8) -> usize {
    (head >> 5) as usize + 1
}

fn push(batch: &mut Vec<u8>, kind: u8, first: u64, second: Option<u64>) {
    // The length in bytes, less one.
    let length = |number: u64| (number | 1).ilog2() as usize / 8;
    let lengths = [length(first), length(second.unwrap_or(0))];
    batch.push(kind | (lengths[0] << 2 | lengths[1] << 5) as u8);
    batch.extend_from_slice(&first.to_le_bytes()[..=lengths[0]]);
    if let Some(second) = second {
        batch.extend_from_slice(&second.to_le_bytes()[..=lengths[1]]);
    }
}

/// Reads a number of `length` bytes, from 1 to 8. At least 8 bytes must follow.
fn pull(bytes: &mut &[u8], length: usize) -> Option<u64> {
    let number = u64::from_le_bytes(*bytes.first_chunk()?);
    *bytes = bytes.get(length..)?;
    Some(number & u64::MAX >> (u64::BITS as usize - 8 * length))
}

/// Writes a trace to a tape.
pub(crate) struct TapeWriter {
    tape: Tape,
    /// Place and size of each live block, by id.
    live: IdMap<(usize, u64)>,
    live_bytes: u64,
    peak_live_bytes: u64,
    streams: u32,
    /// Places that have no live block now.
    vacant: Vec<usize>,
    has_steps: bool,
    /// The first write that failed; later events are dropped.
    failed: Option<io::Error>,
}

impl TapeWriter {
    pub(crate) fn new() -> Self {
        Self {
            tape: Tape::new(),
            live: IdMap::default(),
            live_bytes: 0,
            peak_live_bytes: 0,
            streams: 1,
            vacant: Vec::new(),
            has_steps: false,
            failed: None,
        }
    }

    /// Writes the next event of a well-formed trace, an allocation with its stream.
    pub(crate) fn write(&mut self, event: Event, stream: u8) {
        if self.failed.is_some() {
            return;
        }
        let act = match event {
            Event::Alloc { id, bytes } => {
                let unused = self.live.len();
                let place = self.vacant.pop().unwrap_or(unused);
                self.live.insert(id, (place, bytes));
                self.streams = self.streams.max(u32::from(stream) + 1);
                self.live_bytes += bytes;
                self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
                TapeAction::Alloc {
                    id,
                    place,
                    bytes,
                    stream,
                }
            }
            Event::Free { id } => {
                let (place, bytes) = self.live.remove(&id).unwrap_or_default();
                self.live_bytes -= bytes;
                self.vacant.push(place);
                TapeAction::Free { place }
            }
            Event::Step { number } => {
                self.has_steps = true;
                TapeAction::Step { number }
            }
        };
        let number = self.tape.events + 1;
        self.failed = self.tape.write(Played { number, act }).err();
    }

    pub(crate) fn finish(self) -> io::Result<RecordedTape> {
        let places = self.live.len() + self.vacant.len();
        let kept = self.live.into_iter().map(|(id, (place, _))| (id, place));
        let mut kept: Vec<(u32, usize)> = kept.collect();
        kept.sort_unstable();
        match self.failed {
            Some(error) => Err(error),
            None => Ok(RecordedTape {
                tape: self.tape,
                places,
                peak_live_bytes: self.peak_live_bytes,
                streams: self.streams,
                kept,
                has_steps: self.has_steps,
            }),
        }
    }
}

/// A trace on tape.
pub(crate) struct RecordedTape {
    pub(crate) tape: Tape,
    /// Maximum number of live blocks.
    pub(super) places: usize,
    /// Maximum live bytes.
    pub(crate) peak_live_bytes: u64,
    pub(super) streams: u32,
    /// The blocks that are live at the end, in id order.
    pub(super) kept: Vec<(u32, usize)>,
    /// Whether the trace marks any step.
    pub(crate) has_steps: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all events of a tape.
    fn read(tape: &mut Tape) -> Vec<Played> {
        let mut read = Vec::new();
        let mut batches = tape.batches().unwrap();
        loop {
            match batches.next().unwrap() {
                [] => return read,
                batch => read.extend_from_slice(batch),
            }
        }
    }

    #[test]
    fn what_was_written_is_read_as_often_as_wanted_from_memory_and_from_a_file() {
        let mut tape = Tape::new();
        let mut written = Vec::new();
        for round in 0..300_000_u32 {
            let leap = round % 5 / 4;
            let id = 3 * round;
            let last = written.last().map_or(0, |last: &Played| last.number);
            let acts = [
                TapeAction::Alloc {
                    id,
                    place: id as usize % 9000,
                    bytes: 1 << (round % 61),
                    stream: 0,
                },
                TapeAction::Step { number: round },
                TapeAction::StartOver,
                TapeAction::Alloc {
                    id: id + 1,
                    place: 0,
                    bytes: u64::from(round) + 1,
                    stream: (round % 256) as u8,
                },
                TapeAction::Free {
                    place: (1 << 33) + 7,
                },
            ];
            for (at, act) in (1..).zip(acts) {
                let number = last + at * u64::from(1 + leap);
                written.push(Played { number, act });
            }
            if round == 10 {
                written.iter().for_each(|event| tape.write(*event).unwrap());
                assert_eq!(read(&mut tape), written);
                tape = Tape::new();
            }
        }
        written.iter().for_each(|event| tape.write(*event).unwrap());
        assert!(tape.file.is_rolled());
        for _ in 0..2 {
            assert!(read(&mut tape) == written);
        }
    }

    #[test]
    fn places_are_as_many_as_blocks_live_at_once() {
        let mut writer = TapeWriter::new();
        for id in 0..1000 {
            writer.write(Event::Alloc { id, bytes: 1 }, 0);
            if id >= 3 {
                writer.write(Event::Free { id: id - 3 }, 0);
            }
        }
        let mut written = writer.finish().unwrap();
        assert_eq!(written.places, 4);
        let ids: Vec<u32> = written.kept.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [997, 998, 999]);
        let mut live = [None; 4];
        for event in read(&mut written.tape) {
            match event.act {
                TapeAction::Alloc { id, place, .. } => assert_eq!(live[place].replace(id), None),
                TapeAction::Free { place } => assert!(live[place].take().is_some()),
                TapeAction::Step { .. } | TapeAction::StartOver => {}
            }
        }
    }
}
