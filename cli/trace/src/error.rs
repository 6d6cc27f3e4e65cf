//! The defects of trace files, and their error messages.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::MAX_BYTES;

/// An error about a trace file that was refused, with the line and the defect.
///
/// Displays as `FILE:LINE: what is wrong; what to do`, or without the line if the defect is not at
/// one.
#[derive(Debug, Error)]
#[error("{}:{} {defect}", file.display(), line.map(|line| format!("{line}:")).unwrap_or_default())]
pub struct TraceError {
    file: PathBuf,
    line: Option<u64>,
    defect: Defect,
}

impl TraceError {
    /// Creates an error about a defect of the file as a whole.
    #[must_use]
    pub fn of_file(file: &Path, defect: Defect) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            defect,
        }
    }

    /// Creates an error about a defect at a line, counted from 1.
    #[must_use]
    pub fn at_line(file: &Path, line: u64, defect: Defect) -> Self {
        Self {
            file: file.to_owned(),
            line: Some(line),
            defect,
        }
    }

    /// Returns the file that was refused.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns the line, counted from 1; `None` for a defect of the file as a whole.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        self.line
    }

    /// Returns the defect.
    #[must_use]
    pub fn defect(&self) -> &Defect {
        &self.defect
    }

    /// Returns the defect, without the file and line.
    #[must_use]
    pub fn into_defect(self) -> Defect {
        self.defect
    }
}

impl Defect {
    /// Returns whether the only defect is that the end of the file is missing.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        match self {
            Self::NoNewline | Self::ZstdCut | Self::StreamCut | Self::NoClosingStep => true,
            Self::HeaderMismatch {
                promised, found, ..
            } => found < promised,
            _ => false,
        }
    }
}

/// A defect of a trace file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Defect {
    /// No file has this path.
    #[error("no such file; check the path")]
    NoSuchFile,
    /// The operating system refused to open or read the file.
    #[error("cannot be read ({0}); check that it is a complete file and that you may read it")]
    Unreadable(io::Error),
    /// The file has no bytes.
    #[error(
        "the file is empty; copy it again, or record again and let the program exit normally or flush the recorder"
    )]
    EmptyFile,
    /// The file has only header lines.
    #[error("the file has header lines but no event; record or copy the trace again")]
    NoEvents,
    /// A header with more lines than the limit.
    #[error(
        "the header has more than {limit} lines; check that this is a trace, or delete the lines that no reader needs"
    )]
    LongHeader {
        /// The limit.
        limit: usize,
    },
    /// The zstd stream stops in the middle.
    #[error("the zstd stream is cut short; copy the file again")]
    ZstdCut,
    /// Another compressed stream, which the caller decompresses, stops in the middle.
    #[error("the packed stream is cut short; copy the file again")]
    StreamCut,
    /// The zstd stream is damaged.
    #[error("the zstd stream is damaged ({0}); copy the file again")]
    ZstdDamaged(io::Error),
    /// Content that is much larger than the compressed file.
    #[error("{}", crate::unpacked::TooLarge)]
    ContentTooLarge,
    /// The file has bytes that are not UTF-8.
    #[error(
        "not UTF-8 text; a trace is plain text or a PyTorch snapshot, and may be compressed with zstd, gzip or xz"
    )]
    NotUtf8,
    /// A file of another kind.
    #[error("it is {what}; {advice}")]
    OtherKind {
        /// The kind of the file.
        what: &'static str,
        /// Advice on getting a trace.
        advice: &'static str,
    },
    /// A line longer than the limit.
    #[error(
        "the line is longer than {limit_bytes} bytes; no line of a trace is that long, so check that this is one"
    )]
    LineTooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// The last line lacks its newline, so part of it may be missing.
    #[error(
        "the last line has no newline, so the file is cut short; copy it again, or end the line if it is complete"
    )]
    NoNewline,
    /// A blank that does not separate two fields.
    #[error("the line {place}; write one blank between two fields and none elsewhere")]
    StrayBlank {
        /// The place of the blank, for example `begins with a blank`.
        place: &'static str,
    },
    /// A header that names another format version.
    #[error("the header says `{found}`; this program reads alloc-trace v1")]
    UnknownVersion {
        /// The version in the header.
        found: String,
    },
    /// A line whose first field is unknown.
    #[error(
        "unknown event `{found}`; a line starts with `a` (alloc), `f` (free), `s` (step) or `#` (header)"
    )]
    UnknownEvent {
        /// The first field of the line.
        found: String,
    },
    /// Too few fields.
    #[error("the {field} is missing; write `{form}`")]
    MissingField {
        /// The missing field.
        field: &'static str,
        /// The shape of such a line.
        form: &'static str,
    },
    /// Too many fields.
    #[error("`{found}` is one field too many; write `{form}`")]
    ExtraField {
        /// The first excess field.
        found: String,
        /// The shape of such a line.
        form: &'static str,
    },
    /// A field that is not a number.
    #[error("the {field} `{found}` is not a number; write decimal digits only")]
    NotANumber {
        /// The field's name.
        field: &'static str,
        /// The field's text.
        found: String,
    },
    /// A number above its limit.
    #[error("the {field} {found} is too big; the largest is {max}")]
    NumberTooBig {
        /// The field's name.
        field: &'static str,
        /// The field's text.
        found: String,
        /// The limit.
        max: u64,
    },
    /// A block of zero bytes.
    #[error(
        "block {id} has zero bytes; a trace has no empty blocks, so leave its alloc and free out and renumber"
    )]
    ZeroBytes {
        /// The block.
        id: u32,
    },
    /// An alloc whose id is not the next one.
    #[error(
        "block {found} is allocated but the next id is {expected}; ids count up from 0 and are never reused, so a line is missing or out of order"
    )]
    IdOutOfOrder {
        /// The id in the line.
        found: u32,
        /// The expected id.
        expected: u32,
    },
    /// A free of a block that was never allocated.
    #[error(
        "block {id} is freed but was never allocated ({allocated} blocks so far); a line is missing or out of order"
    )]
    UnknownId {
        /// The id in the line.
        id: u32,
        /// Number of blocks allocated so far.
        allocated: u32,
    },
    /// A second free of the same block.
    #[error("block {id} is freed a second time; delete this line or the first free")]
    DoubleFree {
        /// The block.
        id: u32,
    },
    /// A step whose number is not the next one.
    #[error(
        "step {found} starts but the next step is {expected}; steps count up from 0, so a line is missing or out of order"
    )]
    StepOutOfOrder {
        /// The number in the line.
        found: u32,
        /// The expected number.
        expected: u32,
    },
    /// More live bytes than [`MAX_BYTES`].
    #[error("more than {MAX_BYTES} bytes are live at once; check the sizes up to here")]
    TooMuchLive,
    /// Events after the last step line, in a file that has steps.
    #[error(
        "the last step is not closed by an `s` line, so the file is cut short; copy it again, or add the line if the trace is complete"
    )]
    NoClosingStep,
    /// A pickle that stops before its last instruction.
    #[error("the pickle is cut short; write or copy it again")]
    PickleCut,
    /// A pickle that looks up or calls Python code.
    #[error(
        "the pickle looks up or calls Python code at byte {at}, which is refused: a memory snapshot is plain data, so check where the file is from"
    )]
    PickleCalls {
        /// The byte of the instruction, from 0.
        at: usize,
    },
    /// A pickle that breaks the rules of its instructions.
    #[error("the pickle is damaged at byte {at}: {what}; write or copy it again")]
    PickleDamaged {
        /// The byte of the instruction, from 0.
        at: usize,
        /// The defect there.
        what: &'static str,
    },
    /// A pickle with more bytes or values than the limits allow.
    #[error(
        "the pickle is larger than any snapshot that is read; record fewer entries (`max_entries`)"
    )]
    PickleTooLarge,
    /// A pickle of something other than a snapshot.
    #[error(
        "the pickle is no memory snapshot of PyTorch: it {what}; write it with torch.cuda.memory._dump_snapshot"
    )]
    NoSnapshot {
        /// The missing part.
        what: &'static str,
    },
    /// An entry of a history in which a field is missing or has another kind of value.
    #[error(
        "`device_traces[{device}][{entry}]` has no `{field}` that can be read; write the snapshot again"
    )]
    EntryLacks {
        /// The device.
        device: u64,
        /// The entry, from 0.
        entry: u64,
        /// The field.
        field: &'static str,
    },
    /// A recording of another program that has no block.
    #[error("nothing is allocated in it; {advice}")]
    NothingAllocated {
        /// Advice on recording one.
        advice: &'static str,
    },
    /// A snapshot of several devices, although a single trace is needed.
    #[error(
        "it has the traces of {count} devices, and a single one is needed here; record one device"
    )]
    SeveralTraces {
        /// Number of devices with a trace.
        count: usize,
    },
    /// A first line that begins like an RMM log's and continues differently.
    #[error("the columns are `{found}`; an RMM log has {columns}", columns = crate::rmm::HEADER)]
    UnknownColumns {
        /// The line.
        found: String,
    },
    /// A row with the wrong number of fields.
    #[error("the row has {found} fields and not the 6 of {columns}; delete or complete it", columns = crate::rmm::HEADER)]
    RowFields {
        /// Number of fields.
        found: usize,
    },
    /// A row with an unknown action.
    #[error(
        "unknown action `{found}`; a row of an RMM log is an `allocate`, an `allocate failure` or a `free`"
    )]
    UnknownAction {
        /// The action's text.
        found: String,
    },
    /// A number of events other than that in the header.
    #[error(
        "the header promises {promised} {what} but the file has {found}, so it is cut short or edited; copy it again, or correct the header"
    )]
    HeaderMismatch {
        /// The events counted: `allocs` or `frees`.
        what: &'static str,
        /// The header's number.
        promised: u64,
        /// The number found.
        found: u64,
    },
}
