//! The measurements of a replay, and the reasons for a missing outcome.

use std::io;

use serde::Serialize;
use thiserror::Error;

use super::contender::{CallsByName, DriverCalls, StepFigures};
use super::live_map::LiveBlock;
use super::tape::TapeAction;
use super::{RefusedRequests, ReplayHistory, SmallestDevice};

/// The result of one contender on one trace, which is most of a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// Number of blocks served: all blocks of the trace, if it completed.
    pub(crate) allocations: u64,
    /// Number of the program's streams.
    pub(crate) streams: u32,
    /// Maximum live bytes, as requested and unrounded.
    pub(crate) peak_live_bytes: u64,
    /// Maximum bytes that the contender held from its device.
    pub(crate) peak_reserved_bytes: u64,
    /// Numbers of allocations from the device and of releases to it.
    pub(crate) driver_allocations: u64,
    pub(crate) driver_frees: u64,
    /// Driver calls, if the contender's device maps pages.
    #[serde(rename = "driver_calls_by_kind")]
    pub(crate) driver_calls: Option<DriverCalls>,
    /// Driver calls in each pass, if they are known. If the replay did not complete, the last pass
    /// is the one in which it stopped.
    pub(crate) calls_by_pass: Option<Vec<u64>>,
    /// The driver, `real` or `stand-in`, if the contender runs on one.
    pub(crate) driver: Option<&'static str>,
    /// Calls of that driver, if they are known: in total, and in each pass.
    pub(crate) calls_by_name: Option<CallsByName>,
    pub(crate) calls_by_name_by_pass: Option<Vec<CallsByName>>,
    /// Maximum bytes held in each pass, sampled after each event. If a pass is the whole trace,
    /// samples begin once the blocks of the previous pass are freed.
    pub(crate) reserved_by_pass: Vec<u64>,
    /// How the blocks of steps were served, if the contender plans.
    pub(crate) steps: Option<StepFigures>,
    /// The plans that the contender learned, for another run.
    #[serde(skip)]
    pub(crate) plans: Option<Vec<u8>>,
    /// Mean wall time of one `alloc` or `free` in the fastest timed run; `None` if there was no
    /// operation.
    pub(crate) ns_per_operation: Option<f64>,
    /// Time of the longest `alloc`, `free` or end of a step. The time of each event is its minimum
    /// over the runs in which events are timed one by one.
    pub(crate) worst_ns: Option<u32>,
    /// Whether every block was served. If not, the replay stopped at the first refusal, and the
    /// other figures cover the part before it.
    pub(crate) completed: bool,
    /// Number of the refused event, counted from 1 without header lines, and of its pass if there
    /// are several.
    pub(crate) stopped_at_event: Option<u64>,
    pub(crate) stopped_in_pass: Option<u32>,
    /// The refused block.
    pub(crate) refused: Option<Refused>,
    /// Facts missing from the trace's file, and how they were replaced; see [`Trace::notes`].
    pub(crate) notes: Vec<String>,
    /// Maximum live bytes of the whole trace, as requested, even if the replay stopped before its
    /// end.
    #[serde(skip)]
    pub(crate) trace_live_bytes: u64,
    /// The smallest device that is large enough, if one was searched for and found.
    #[serde(skip)]
    pub(crate) smallest_device: Option<SmallestDevice>,
    /// How the requests are served that the program's own allocator refused, if it recorded any.
    pub(crate) refused_requests: Option<RefusedRequests>,
    /// The settings with which PyTorch ran, if they are not its defaults.
    #[serde(skip)]
    pub(crate) pytorch_settings: Option<String>,
    /// The maximum bytes that PyTorch held when the trace was recorded, if they are known.
    #[serde(skip)]
    pub(crate) recorded_held_bytes: Option<u64>,
    #[serde(skip)]
    pub(crate) history: Option<ReplayHistory>,
}

/// A block that was refused, and the bytes live and reserved at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Refused {
    pub(crate) bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) reserved_bytes: u64,
}

impl Refused {
    pub(super) fn new(act: TapeAction, live_bytes: u64, reserved_bytes: u64) -> Self {
        let bytes = match act {
            TapeAction::Alloc { bytes, .. } => bytes,
            TapeAction::Free { .. } | TapeAction::Step { .. } | TapeAction::StartOver => 0,
        };
        Self {
            bytes,
            live_bytes,
            reserved_bytes,
        }
    }
}

impl Outcome {
    /// Returns peak reserved over peak live; `None` if no bytes were live.
    pub(crate) fn reserved_over_live(&self) -> Option<f64> {
        let live = self.peak_live_bytes;
        (live > 0).then(|| self.peak_reserved_bytes as f64 / live as f64)
    }
}

/// The reason why a replay has no outcome.
#[derive(Debug, Error)]
pub(crate) enum ReplayError {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("{}", no_tape(.0))]
    NoTape(#[from] io::Error),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Returns a message about events that could not be written to a tape or read from it.
pub(crate) fn no_tape(error: &io::Error) -> String {
    let folder = std::env::temp_dir();
    format!(
        "cannot keep a trace's events in a file in {}: {error}; name a folder with room in TMPDIR",
        folder.display()
    )
}

/// A breach of a contender's contract, which is a bug in the contender, not in the trace. Events
/// and passes are counted from 1, and header lines are not counted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{allocator} broke its contract at event {event} of {trace}{}: {fault}", in_pass(*pass))]
pub(crate) struct Violation {
    pub(crate) allocator: &'static str,
    pub(crate) trace: String,
    pub(crate) event: u64,
    pub(crate) pass: u32,
    pub(crate) fault: ReplayFault,
}

/// Names the pass, unless it is the first.
fn in_pass(pass: u32) -> String {
    if pass > 1 {
        format!(", pass {pass}")
    } else {
        String::new()
    }
}

/// The way in which a contender broke its contract.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ReplayFault {
    /// The block shares bytes with a live one.
    #[error("{new} overlaps the live {old}")]
    Overlap { new: LiveBlock, old: LiveBlock },
    #[error(
        "block {id} at address {address} with {bytes} bytes passes the end of the address space"
    )]
    PastTheEnd { id: u32, address: u64, bytes: u64 },
    #[error("{reserved_bytes} bytes are said to be reserved while {live_bytes} are live")]
    ReservedBelowLive {
        reserved_bytes: u64,
        live_bytes: u64,
    },
    /// The contender broke a rule of its device, or a live byte has no memory or shares it.
    #[error("against the rules of its device: {0}")]
    BrokenRule(String),
}
