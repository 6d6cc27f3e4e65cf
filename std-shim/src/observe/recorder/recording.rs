//! [`Recording`]: the life of one trace, from its header to its last line.
//!
//! Turns events into lines. It has no lock, because its only user holds one.

use core::ffi::CStr;

use super::complaint::{self, NoStart};
use super::line::Line;
use super::os::{self, OpenFile};
use super::output::{Lost, Output};
use super::target::{RecorderOrder, Target};
use crate::block_table::{BlockTable, NoMemory};
use crate::step::{StepMoment, StepThread};

/// A threshold that no block reaches: nothing is recorded.
pub(super) const NEVER: usize = usize::MAX;

/// The largest threshold of a recording: no block is that large, but steps are still recorded.
pub(super) const LARGEST: usize = NEVER - 1;

/// Ids and steps stay below this, as readers of the format require.
const END_OF_NUMBERS: u32 = u32::MAX;

/// The line after the mark at the end of a step, if an event occurs before the next step begins.
const BETWEEN: &[u8] = b"# between steps\n";

/// A line for one event: a letter, two numbers and two blanks.
type EventLine = Line<48>;

/// A line that is not an event. The longest has the program's name, cut to fit.
type Remark = Line<256>;

/// The reason why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    /// The program exited.
    Exit,
    /// The table of live blocks could not grow.
    NoMemory,
    /// No number is left for another block or step.
    NoNumbers,
    /// The lines could not be written to the file.
    Lost(Lost),
}

impl From<NoMemory> for EndReason {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

impl From<Lost> for EndReason {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// The origin of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkSource {
    /// A call of the program.
    Called,
    /// The start of a thread's step.
    Begins,
    /// The end of a thread's step.
    Ends,
}

/// The result of a realloc that succeeded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resized {
    /// The block's id before the realloc, if the block was recorded.
    pub(super) old: Option<u32>,
    /// Whether the block has moved, so that both places were live at once.
    pub(super) moved: bool,
    /// The block's address now.
    pub(super) addr: usize,
    /// The block's size now.
    pub(super) bytes: usize,
}

/// One trace, which has not begun, is being written, or has ended.
///
/// Invariants:
/// * REC1: `threshold` is 0 before the beginning, and `NEVER` if the output is not open.
/// * REC2: `ids` holds the blocks that have an `a` line and no `f` line, except while one is being
///   resized; no id occurs twice.
/// * REC3: `mark` is the origin of the last line, if that is an `s` line. Readers of the format
///   require another mark after the events that follow the last one.
/// * REC4: `stepping` is the thread whose steps are marked; it has begun a step.
pub(super) struct Recording {
    threshold: usize,
    next_id: u32,
    next_step: u32,
    mark: Option<MarkSource>,
    stepping: Option<StepThread>,
    ids: BlockTable<u32>,
    output: Output,
}

impl Recording {
    pub(super) const fn new() -> Self {
        Self {
            threshold: 0,
            next_id: 0,
            next_step: 0,
            mark: None,
            stepping: None,
            ids: BlockTable::new(),
            output: Output::new(),
        }
    }

    /// Returns the smallest size that is recorded: 0 before the beginning, [`NEVER`] when nothing
    /// is recorded.
    pub(super) fn threshold(&self) -> usize {
        self.threshold
    }

    /// Begins the recording of `order`, unless a recording was begun before. `watch` registers
    /// handlers for the program's exit and its forked children. An error goes to standard error,
    /// and nothing is recorded.
    pub(super) fn begin(&mut self, order: RecorderOrder, watch: impl FnOnce() -> bool) {
        if self.threshold != 0 {
            return;
        }
        self.threshold = NEVER;
        let target = match order.target() {
            Ok(Some(target)) => target,
            Ok(None) => return,
            Err(bad) => return complaint::of_start(NoStart::Order(bad), b""),
        };
        let from_bytes = usize::try_from(target.from_bytes).unwrap_or(NEVER);
        match self.open(&target, watch) {
            Ok(()) => self.threshold = from_bytes.min(LARGEST),
            Err(reason) => return complaint::of_start(reason, target.path.as_bytes()),
        }
        if let Err(end) = self.header(&target) {
            self.end(end);
        }
    }

    /// Records that a block was allocated.
    pub(super) fn alloc(&mut self, addr: usize, bytes: usize) {
        self.attempt(|this| this.add(addr, bytes));
    }

    /// Records that a block is about to be freed. Ignores an unknown block.
    pub(super) fn free(&mut self, addr: usize) {
        self.attempt(|this| match this.ids.remove(addr) {
            Some(id) => this.gone(id),
            None => Ok(()),
        });
    }

    /// Removes a block that is about to be resized: during the realloc, another block may get its
    /// address before its new place is known. [`resized`](Self::resized) or
    /// [`stayed`](Self::stayed) follows.
    pub(super) fn resizing(&mut self, addr: usize) -> Option<u32> {
        self.ids.remove(addr)
    }

    /// Puts back a block that was not resized after all.
    pub(super) fn stayed(&mut self, addr: usize, id: u32) {
        self.attempt(|this| this.remember(addr, id));
    }

    /// Records the result of resizing a block.
    pub(super) fn resized(&mut self, block: Resized) {
        self.attempt(|this| {
            if block.moved {
                this.add(block.addr, block.bytes)?;
            }
            if let Some(old) = block.old {
                this.gone(old)?;
            }
            if !block.moved {
                this.add(block.addr, block.bytes)?;
            }
            Ok(())
        });
    }

    /// Records that a step starts.
    pub(super) fn step(&mut self) {
        self.attempt(|this| this.mark_step(MarkSource::Called));
    }

    /// Records an event of a thread's steps, if this is the thread whose steps are marked.
    pub(super) fn heard(&mut self, thread: StepThread, moment: StepMoment) {
        self.attempt(|this| {
            if moment == StepMoment::Begins {
                this.stepping.get_or_insert(thread);
            }
            if this.stepping != Some(thread) {
                return Ok(());
            }
            match moment {
                StepMoment::Begins => this.mark_step(MarkSource::Begins),
                StepMoment::Ends => this.mark_step(MarkSource::Ends),
                StepMoment::ThreadEnds => {
                    this.stepping = None;
                    Ok(())
                }
            }
        });
    }

    /// Writes the buffered lines.
    pub(super) fn flush(&mut self) {
        self.attempt(|this| Ok(this.output.flush()?));
    }

    /// Ends the recording: closes the last step and writes the reason as a comment.
    pub(super) fn end(&mut self, why: EndReason) {
        if self.threshold == 0 || self.threshold == NEVER {
            return;
        }
        let farewell = match why {
            EndReason::Lost(lost) => Err(lost),
            _ => self.last_lines(why),
        };
        match farewell {
            Ok(()) => complaint::of_end(why),
            Err(lost) => complaint::of_end(EndReason::Lost(lost)),
        }
        self.threshold = NEVER;
        self.output.end();
        self.ids = BlockTable::new();
    }

    /// Runs `act`, whose error ends the recording.
    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> Result<(), EndReason>) {
        if self.threshold == NEVER {
            return;
        }
        if let Err(end) = act(self) {
            self.end(end);
        }
    }

    fn open(&mut self, target: &Target, watch: impl FnOnce() -> bool) -> Result<(), NoStart> {
        let mut path = target.path.clone();
        // A path from outside has no NUL inside; the system refuses an empty path.
        let path = CStr::from_bytes_with_nul(path.ended(0)).unwrap_or(c"");
        let file = OpenFile::open(path).map_err(NoStart::Open)?;
        let ready = match file.lock() {
            Err(reason) if reason.is_locked_elsewhere() => Err(NoStart::Busy),
            // Files that cannot be locked, such as pipes, can still be written.
            _ if !watch() => Err(NoStart::Unwatched),
            _ => file.identity().map_err(NoStart::Open),
        };
        match ready {
            Ok(identity) => {
                file.cut(0);
                self.output.begin(file, identity);
                Ok(())
            }
            Err(reason) => {
                file.close();
                Err(reason)
            }
        }
    }

    fn header(&mut self, target: &Target) -> Result<(), EndReason> {
        self.output
            .put(b"# alloc-trace v1: a <id> <bytes> | f <id> | s <step>\n")?;
        let mut name = Remark::new();
        os::with_program(|path| {
            let file = path.rsplit(|&byte| byte == b'/').next();
            name.text(b"# name: ").shown(file.unwrap_or(path));
        });
        if !name.as_bytes().is_empty() {
            self.output.put(name.ended(b'\n'))?;
        }
        let mut from = Remark::new();
        from.text(b"# from_bytes: ").number(target.from_bytes);
        self.output.put(from.ended(b'\n'))?;
        let version = concat!("# recorded: larder ", env!("CARGO_PKG_VERSION"), "\n");
        Ok(self.output.put(version.as_bytes())?)
    }

    /// Records a new block, unless it is too small.
    fn add(&mut self, addr: usize, bytes: usize) -> Result<(), EndReason> {
        if bytes < self.threshold {
            return Ok(());
        }
        if self.next_id == END_OF_NUMBERS {
            return Err(EndReason::NoNumbers);
        }
        let id = self.next_id;
        self.remember(addr, id)?;
        self.next_id += 1;
        let mut line = EventLine::new();
        line.text(b"a ").number(u64::from(id));
        line.text(b" ").number(bytes as u64);
        self.event(&mut line)
    }

    /// Enters a block's id. A previous block at its address was freed without being seen.
    fn remember(&mut self, addr: usize, id: u32) -> Result<(), EndReason> {
        match self.ids.insert(addr, id)? {
            Some(unseen) => self.gone(unseen),
            None => Ok(()),
        }
    }

    fn gone(&mut self, id: u32) -> Result<(), EndReason> {
        let mut line = EventLine::new();
        line.text(b"f ").number(u64::from(id));
        self.event(&mut line)
    }

    fn event(&mut self, line: &mut EventLine) -> Result<(), EndReason> {
        if self.mark == Some(MarkSource::Ends) {
            self.output.put(BETWEEN)?;
        }
        self.mark = None;
        Ok(self.output.put(line.ended(b'\n'))?)
    }

    /// Writes a mark. Adjacent marks of different origins become one, but each end of a step
    /// counts, even if the step has no events.
    fn mark_step(&mut self, mark: MarkSource) -> Result<(), EndReason> {
        let before = self.mark;
        if mark != MarkSource::Ends && before.is_some_and(|before| before != mark) {
            self.mark = Some(mark);
            return Ok(());
        }
        // One number is reserved for the line that closes the last step.
        if self.next_step == END_OF_NUMBERS - 1 {
            return Err(EndReason::NoNumbers);
        }
        self.step_line()?;
        self.mark = Some(mark);
        Ok(())
    }

    fn step_line(&mut self) -> Result<(), Lost> {
        let mut line = EventLine::new();
        line.text(b"s ").number(u64::from(self.next_step));
        self.output.put(line.ended(b'\n'))?;
        self.next_step += 1;
        Ok(())
    }

    fn last_lines(&mut self, why: EndReason) -> Result<(), Lost> {
        if self.mark.is_none() && self.next_step > 0 {
            self.step_line()?;
        }
        let mut line = Remark::new();
        line.text(b"# recording ended: ");
        line.text(complaint::reason(why));
        self.output.put(line.ended(b'\n'))?;
        self.output.flush()
    }
}

#[cfg(test)]
#[path = "recording_tests.rs"]
mod tests;
