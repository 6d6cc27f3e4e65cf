//! Programs, as lists of acts.

use core::fmt;

use larder_cuda::DeviceConfig;

/// Blocks that a program may hold at once.
pub(crate) const SLOTS: usize = 8;

/// Most streams of a program.
pub(crate) const STREAMS: usize = 4;

/// Part of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Head,
    Middle,
    Tail,
}

impl Part {
    pub(crate) const ALL: [Self; 3] = [Self::Head, Self::Middle, Self::Tail];

    /// Where it begins in a block of so many bytes, and how long it is: `max` at most.
    pub(crate) fn of(self, bytes: u64, max: u64) -> (u64, u64) {
        let length = bytes.min(max);
        let from = match self {
            Self::Head => 0,
            // Blocks are multiples of this.
            Self::Middle => (bytes - length) / 2 / 256 * 256,
            Self::Tail => bytes - length,
        };
        (from, length)
    }
}

/// Where a block is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FreeOn {
    /// The stream that used it last.
    Last,
    /// A stream, after the program has ordered it behind all uses.
    Stream(usize),
}

/// The part of a sleep in which a call is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum While {
    FallingAsleep,
    Waking,
}

/// What a program does. Blocks and streams are named by number; an act whose block is not there, or
/// has nothing to be read, is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Alloc {
        slot: usize,
        bytes: u64,
        stream: usize,
    },
    /// Reads a part, and frees.
    Free {
        slot: usize,
        part: Part,
        on: FreeOn,
    },
    /// Reads on several streams (bits), which nobody orders, and frees behind the work of all that use
    /// the block; the `turn`-th of these is named first.
    FreeUsedOn {
        slot: usize,
        streams: usize,
        turn: usize,
    },
    /// Fills a part; all of a block that was not written yet.
    Memset {
        slot: usize,
        stream: usize,
        part: Part,
        value: u8,
    },
    /// Copies a part from pinned memory of the host.
    Upload {
        slot: usize,
        stream: usize,
        part: Part,
        from: usize,
    },
    /// Copies the whole block from pageable memory of the host.
    UploadPageable {
        slot: usize,
        stream: usize,
        from: usize,
    },
    /// Copies a part to pinned memory.
    Read {
        slot: usize,
        stream: usize,
        part: Part,
    },
    /// Copies the whole block to pageable memory.
    ReadPageable {
        slot: usize,
        stream: usize,
    },
    /// Copies as much as both have.
    Copy {
        to: usize,
        from: usize,
        stream: usize,
    },
    /// Kernels, on a part.
    FillWords {
        slot: usize,
        stream: usize,
        part: Part,
        value: u32,
    },
    AddWords {
        to: usize,
        left: usize,
        right: usize,
        stream: usize,
        part: Part,
    },
    ScaleWords {
        to: usize,
        from: usize,
        stream: usize,
        part: Part,
        factor: u32,
    },
    /// In place.
    TwistWords {
        slot: usize,
        stream: usize,
        part: Part,
        key: u32,
    },
    /// Records an event.
    Record {
        stream: usize,
    },
    /// Waits on the device for the `back`-th last event.
    Wait {
        stream: usize,
        back: usize,
    },
    /// Lets the allocator order one stream behind another.
    OrderAfter {
        stream: usize,
        after: usize,
    },
    /// The host waits.
    SyncStream {
        stream: usize,
    },
    SyncEvent {
        back: usize,
    },
    Release {
        bytes: u64,
    },
    EndStep,
    /// Sleeps, frees blocks meanwhile (bits), and wakes; with so many calls made before one is refused.
    Sleep {
        frees: usize,
        refused: Option<(While, u64)>,
    },
    /// The driver refuses a call of the next act that asks the allocator. Only on the stand-in.
    Refuse {
        function: &'static str,
        skip: u64,
    },
}

/// A program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) config: DeviceConfig,
    pub(crate) streams: usize,
    /// The first stream is the legacy default one.
    pub(crate) default_stream: bool,
    /// The allocator is dropped while work is queued.
    pub(crate) drop_early: bool,
    /// The acts are done so often, each time as a step of the last stream; 0 for once and no step.
    pub(crate) steps: usize,
    pub(crate) acts: Vec<Act>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "program {} on {} streams (default {}, dropped early {}, steps {}), {:?}",
            self.seed, self.streams, self.default_stream, self.drop_early, self.steps, self.config
        )?;
        self.acts
            .iter()
            .try_for_each(|act| writeln!(f, "  {act:?}"))
    }
}
