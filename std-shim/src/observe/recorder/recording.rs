//! [`Recording`]: the life of one trace, from its header to the line that says how it ended.
//!
//! Knows events and their lines, not who allocates. No lock: its one user holds one.

use core::ffi::CStr;

use super::complaint::{self, NoStart};
use super::line::Line;
use super::os::{self, File};
use super::output::{Lost, Output};
use super::target::{Order, Target};
use crate::block_table::{BlockTable, NoMemory};
use crate::step::{Moment, StepThread};

/// A threshold no block reaches: nothing is recorded.
pub(super) const NEVER: usize = usize::MAX;

/// The largest threshold of a recording; no block is so large, but steps always count.
pub(super) const LARGEST: usize = NEVER - 1;

/// Ids and steps stay below this, as readers of the format ask.
const END_OF_NUMBERS: u32 = u32::MAX;

/// Behind the mark where a step ends, if something comes before the next begins.
const BETWEEN: &[u8] = b"# between steps\n";

/// A line for one event: a letter, two numbers and two blanks.
type EventLine = Line<48>;

/// A line beside the events: the longest is the program's name, cut to fit.
type Remark = Line<256>;

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The program exits.
    Exit,
    /// The table of live blocks could not grow.
    NoMemory,
    /// No number is left for another block or step.
    NoNumbers,
    /// The lines cannot reach the file.
    Lost(Lost),
}

impl From<NoMemory> for End {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

impl From<Lost> for End {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

/// Where a mark comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// The program calls for one.
    Called,
    /// A step of a thread begins.
    Begins,
    /// It ends.
    Ends,
}

/// What became of a block in a realloc that succeeded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resized {
    /// The block's id before, if it was recorded.
    pub(super) old: Option<u32>,
    /// Whether it lies elsewhere now, so that both places were live for a moment.
    pub(super) moved: bool,
    /// Where it lies now.
    pub(super) addr: usize,
    /// Its size now.
    pub(super) bytes: usize,
}

/// One trace: not yet begun, being written, or ended.
///
/// Invariants:
/// * REC1: `threshold` is 0 before the beginning, and `NEVER` if the output is not open.
/// * REC2: `ids` holds the blocks that have an `a` line and no `f` line, except while one is being
///   resized; no id stands twice.
/// * REC3: `mark` is the one that the last line is, if that is an `s` line. Readers want what stands
///   behind the last one closed by another.
/// * REC4: `stepping` is the thread whose steps are marked; it has begun one.
pub(super) struct Recording {
    threshold: usize,
    next_id: u32,
    next_step: u32,
    mark: Option<Mark>,
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

    /// The smallest size that is recorded: 0 before the beginning, [`NEVER`] when nothing is.
    pub(super) fn threshold(&self) -> usize {
        self.threshold
    }

    /// Begins what `order` asks for, unless that was done before. `watch` sees to it that the
    /// program's exit and its forked children are noticed. What goes wrong is said on standard
    /// error, and nothing is recorded.
    pub(super) fn begin(&mut self, order: Order, watch: impl FnOnce() -> bool) {
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

    /// Records that a block is about to be freed; one unknown is passed over.
    pub(super) fn free(&mut self, addr: usize) {
        self.attempt(|this| match this.ids.remove(addr) {
            Some(id) => this.gone(id),
            None => Ok(()),
        });
    }

    /// Forgets a block that is about to be resized: in the realloc its address may become
    /// another's before its new place is known. [`resized`](Self::resized) or
    /// [`stayed`](Self::stayed) follows.
    pub(super) fn resizing(&mut self, addr: usize) -> Option<u32> {
        self.ids.remove(addr)
    }

    /// Remembers a block that was not resized after all.
    pub(super) fn stayed(&mut self, addr: usize, id: u32) {
        self.attempt(|this| this.remember(addr, id));
    }

    /// Records what became of a block that was resized.
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
        self.attempt(|this| this.mark_step(Mark::Called));
    }

    /// Records what is heard of a thread's steps, if it is the one whose steps are marked.
    pub(super) fn heard(&mut self, thread: StepThread, moment: Moment) {
        self.attempt(|this| {
            if moment == Moment::Begins {
                this.stepping.get_or_insert(thread);
            }
            if this.stepping != Some(thread) {
                return Ok(());
            }
            match moment {
                Moment::Begins => this.mark_step(Mark::Begins),
                Moment::Ends => this.mark_step(Mark::Ends),
                Moment::ThreadEnds => {
                    this.stepping = None;
                    Ok(())
                }
            }
        });
    }

    /// Writes what waits.
    pub(super) fn flush(&mut self) {
        self.attempt(|this| Ok(this.output.flush()?));
    }

    /// Ends the recording: the last step is closed and a remark says why there is no more.
    pub(super) fn end(&mut self, why: End) {
        if self.threshold == 0 || self.threshold == NEVER {
            return;
        }
        let farewell = match why {
            End::Lost(lost) => Err(lost),
            _ => self.last_lines(why),
        };
        match farewell {
            Ok(()) => complaint::of_end(why),
            Err(lost) => complaint::of_end(End::Lost(lost)),
        }
        self.threshold = NEVER;
        self.output.end();
        self.ids = BlockTable::new();
    }

    /// Does something that may be the end.
    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> Result<(), End>) {
        if self.threshold == NEVER {
            return;
        }
        if let Err(end) = act(self) {
            self.end(end);
        }
    }

    fn open(&mut self, target: &Target, watch: impl FnOnce() -> bool) -> Result<(), NoStart> {
        let mut path = target.path.clone();
        // A path from outside has no NUL inside; an empty one is refused by the system.
        let path = CStr::from_bytes_with_nul(path.ended(0)).unwrap_or(c"");
        let file = File::open(path).map_err(NoStart::Open)?;
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

    fn header(&mut self, target: &Target) -> Result<(), End> {
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

    /// A new block of a size that may be too small to be recorded.
    fn add(&mut self, addr: usize, bytes: usize) -> Result<(), End> {
        if bytes < self.threshold {
            return Ok(());
        }
        if self.next_id == END_OF_NUMBERS {
            return Err(End::NoNumbers);
        }
        let id = self.next_id;
        self.remember(addr, id)?;
        self.next_id += 1;
        let mut line = EventLine::new();
        line.text(b"a ").number(u64::from(id));
        line.text(b" ").number(bytes as u64);
        self.event(&mut line)
    }

    /// Notes a block's id. Whatever was noted there has gone without our seeing it.
    fn remember(&mut self, addr: usize, id: u32) -> Result<(), End> {
        match self.ids.insert(addr, id)? {
            Some(unseen) => self.gone(unseen),
            None => Ok(()),
        }
    }

    fn gone(&mut self, id: u32) -> Result<(), End> {
        let mut line = EventLine::new();
        line.text(b"f ").number(u64::from(id));
        self.event(&mut line)
    }

    fn event(&mut self, line: &mut EventLine) -> Result<(), End> {
        if self.mark == Some(Mark::Ends) {
            self.output.put(BETWEEN)?;
        }
        self.mark = None;
        Ok(self.output.put(line.ended(b'\n'))?)
    }

    /// Where nothing stands between two marks of different origin they are one, but each end counts,
    /// also of a step without events.
    fn mark_step(&mut self, mark: Mark) -> Result<(), End> {
        let before = self.mark;
        if mark != Mark::Ends && before.is_some_and(|before| before != mark) {
            self.mark = Some(mark);
            return Ok(());
        }
        // One number is kept for the line that closes the last step.
        if self.next_step == END_OF_NUMBERS - 1 {
            return Err(End::NoNumbers);
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

    fn last_lines(&mut self, why: End) -> Result<(), Lost> {
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
