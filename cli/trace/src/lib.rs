//! Reads recorded allocation traces: those that `larder::Recorder` writes, PyTorch's memory
//! snapshots, and the logs of RMM's logging adaptor. The format is detected by the first bytes.
//!
//! ```
//! use larder_trace::{Event, read};
//!
//! let trace = read("a.trace".as_ref(), &b"# alloc-trace v1\na 0 4096\nf 0\n"[..])?;
//! assert_eq!(trace.events()[0], Event::Alloc { id: 0, bytes: 4096 });
//! # Ok::<(), larder_trace::TraceError>(())
//! ```
//!
//! Every [`Trace`] is well formed:
//! * ids count up from 0 and are never reused, so an id is an index;
//! * every free names a block that is live at that time;
//! * steps count up from 0, and if there is any step mark, the last event is one;
//! * events between two steps also follow a step mark, whose number identifies them;
//! * no block has zero bytes, and live bytes never exceed
//!   [`MAX_BYTES`].
//!
//! Recordings in other formats are adapted to these rules, as [`Trace::notes`] describes.
//!
//! There are no locks, since a trace does not change after it has been read.

#[allow(dead_code, unreachable_pub, reason = "the file is the core's")]
mod byte_count;
mod error;
mod ids;
mod lines;
mod parse;
mod pickle;
mod recording;
mod rmm;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
mod unpacked;

use std::path::Path;

pub use error::{Defect, TraceError};
pub use ids::{IdHasher, IdMap};
pub use parse::{for_each_event, read, read_to_last_line};
pub use rmm::HEADER as RMM_HEADER;
pub use unpacked::{Packed, Unpacked};

/// Maximum byte count in a trace, 2^60. The sum of two such counts fits `u64`, even rounded up to a
/// power of two.
pub const MAX_BYTES: u64 = 1 << 60;

/// An event in the recorded program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A block was allocated.
    Alloc {
        /// The block's id: the number of blocks allocated before it.
        id: u32,
        /// The block's size in bytes, unrounded, at least 1.
        bytes: u64,
    },
    /// A live block was freed.
    Free {
        /// The block's id.
        id: u32,
    },
    /// A step mark: a step starts here, or a part [between](Trace::is_between_steps) two steps. The
    /// last mark closes the last step.
    Step {
        /// The step's number, counting up from 0.
        number: u32,
    },
}

/// A request that the recorded program's own allocator refused. It is not among the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Number of the trace's events before the request.
    pub events_before: u64,
    /// The size of the request in bytes.
    pub bytes: u64,
    /// Bytes that were live at that time.
    pub live_bytes: u64,
    /// Number of blocks allocated later.
    pub blocks_after: u32,
    /// Bytes that the allocator held or could have allocated from the device, if they are known.
    pub device_bytes: Option<u64>,
}

/// A well-formed trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    name: String,
    header: Vec<(String, String)>,
    events: Vec<Event>,
    allocations: u32,
    /// Numbers of the step marks that start parts between steps.
    between: Vec<u32>,
    /// Stream of each block, by id; empty if no block has one.
    streams: Vec<Option<u64>>,
    notes: Vec<String>,
    refusals: Vec<Refusal>,
    settings: Option<String>,
    held_bytes: Option<u64>,
}

impl Trace {
    /// Loads the trace in `path`, which may be compressed with zstd (detected by the first bytes,
    /// not by the name). Reads the file once, and needs 16 bytes of memory for each event.
    ///
    /// # Errors
    /// Returns the first defect found, with its line; or an error if the file is a snapshot of several
    /// devices. Never panics.
    pub fn load(path: &Path) -> Result<Self, TraceError> {
        parse::only(path, parse::load_all(path)?)
    }

    /// Loads all traces in `path`, at least one. A snapshot has one for each device with blocks,
    /// and any other file has one.
    ///
    /// # Errors
    /// Returns the first defect found, with its line. Never panics.
    pub fn load_all(path: &Path) -> Result<Vec<Self>, TraceError> {
        parse::load_all(path)
    }

    /// Returns the name of a trace that is loaded from `path`.
    #[must_use]
    pub fn name_of(path: &Path) -> String {
        parse::name_of(path)
    }

    /// Returns the file's name without its `.trace`, `.trace.zst` or other ending. If the file has
    /// several devices, the device's number is added, as in `train.dev1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the `# key: value` lines before the first event, in file order.
    #[must_use]
    pub fn header(&self) -> &[(String, String)] {
        &self.header
    }

    /// Returns the events in program order; empty if [`for_each_event`] passed them on.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns whether the part that starts at the step mark with this number is not a step of the
    /// program but lies between two steps, or after the last one. The remark `# between steps`
    /// follows such a mark.
    #[must_use]
    pub fn is_between_steps(&self, number: u32) -> bool {
        self.between.binary_search(&number).is_ok()
    }

    /// Returns the stream on which a block was allocated, if PyTorch or RMM recorded it.
    #[must_use]
    pub fn stream(&self, id: u32) -> Option<u64> {
        self.streams.get(id as usize).copied().flatten()
    }

    /// Returns the facts that a replay of this trace cannot show because its file lacks them, and
    /// the facts that were omitted or assumed, one sentence for each. Empty for complete traces
    /// from this project's recorders.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the requests that the program's own allocator refused, in program order, if PyTorch or
    /// RMM recorded them.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// Returns the settings with which PyTorch ran, in the syntax of its variable
    /// `PYTORCH_ALLOC_CONF`; `None` for its defaults and for other programs.
    #[must_use]
    pub fn pytorch_settings(&self) -> Option<&str> {
        self.settings.as_deref()
    }

    /// Returns the maximum bytes that the program's own allocator held from the device, as far back as
    /// the recording goes, if a PyTorch snapshot shows it.
    #[must_use]
    pub fn held_bytes(&self) -> Option<u64> {
        self.held_bytes
    }

    /// Returns the number of blocks allocated. Every id is below it.
    #[must_use]
    pub fn allocations(&self) -> u32 {
        self.allocations
    }
}
