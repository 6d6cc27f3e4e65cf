//! Reports of misuse, and of blocks that are not freed: a text in its own memory, written without a
//! lock of the heap. Its first line has the misuse and the address; a checking heap adds more
//! lines.

use core::fmt::{self, Write};

use super::Misuse;
use super::blocks::Facts;
use super::frames::write_frames;
use super::hardened::with;
use super::history::{Caller, Here};
use crate::block_table::MappedValues;
use crate::config::OnMisuse;
use crate::os::stack::LoadedFiles;
use crate::os::{abort, say};
use crate::process::PROCESS;
use crate::text::{Plural, Text};

/// Maximum length of a report in bytes.
const REPORT_BYTES: usize = 64 << 10;
/// Maximum length in bytes of a report that gets no memory of its own and has only the first line.
const SHORT_BYTES: usize = 128;
/// Maximum number of stacks in one report of blocks that are not freed.
const MAX_LEAKS: usize = 32;

/// A misuse, with the facts for its report.
pub(super) struct FoundMisuse<'a> {
    pub(super) misuse: Misuse,
    pub(super) address: *mut u8,
    /// The first byte that was written, for misuse by a write.
    pub(super) byte: Option<*mut u8>,
    pub(super) facts: Option<Facts>,
    pub(super) here: Option<&'a Here>,
}

/// Reports a misuse. Returns if the program may go on.
#[cold]
#[inline(never)]
pub(super) fn report(found: &FoundMisuse) {
    say_found(found);
    if PROCESS.tuning.on_misuse() == OnMisuse::Abort {
        abort();
    }
}

/// Reports a misuse in one line, and ends the process.
#[cold]
pub(super) fn end_with(misuse: Misuse, address: *mut u8) -> ! {
    let found = FoundMisuse {
        misuse,
        address,
        byte: None,
        facts: None,
        here: None,
    };
    tell(OnMisuse::Abort, |text| found.write(text));
    abort()
}

/// Prints a report, or passes it to the program's function.
pub(super) fn say_found(found: &FoundMisuse) {
    tell(PROCESS.tuning.on_misuse(), |text| found.write(text));
}

/// Writes a text and prints it, or passes it to the program's function.
fn tell(act: OnMisuse, write: impl FnOnce(&mut Text) -> fmt::Result) {
    let mut short = [0; SHORT_BYTES];
    let mut long = MappedValues::map(REPORT_BYTES);
    let bytes = match &mut long {
        Some(long) => long.values(),
        None => &mut short,
    };
    let mut text = Text::new(bytes);
    // Text that does not fit into the buffer is left out.
    write(&mut text).ok();
    let text = text.written();
    match act {
        OnMisuse::Call(hook) => call(&(hook, str::from_utf8(text).unwrap_or_default())),
        OnMisuse::Abort | OnMisuse::Report => say(text),
    }
}

/// Calls a hook. A panic of the hook ends the process here: an allocator must not unwind.
extern "C" fn call((hook, report): &(fn(&str), &str)) {
    hook(report);
}

impl FoundMisuse<'_> {
    fn write(&self, text: &mut Text) -> fmt::Result {
        writeln!(text, "{}: {:p}", self.misuse.words(), self.address)?;
        let Some(here) = self.here else {
            return Ok(());
        };
        if let Some(facts) = &self.facts {
            self.write_block(facts, text)?;
        }
        write_stack("found", here, text)?;
        let history = self.facts.iter().flat_map(|facts| &facts.history);
        for (word, then) in ["allocated", "freed"].into_iter().zip(history) {
            if let Some(then) = then {
                write_stack(word, then, text)?;
            }
        }
        Ok(())
    }

    fn write_block(&self, facts: &Facts, text: &mut Text) -> fmt::Result {
        let &Facts { block, known, .. } = facts;
        let (bytes, granted) = (known.bytes, known.granted_bytes());
        writeln!(
            text,
            "  block {block:p}: {}, {granted} granted, aligned to {}, {}",
            Plural(bytes, "byte"),
            known.align(),
            known.state.words(),
        )?;
        let at = self.byte.unwrap_or(self.address);
        let offset = at.addr().wrapping_sub(block.addr()) as isize;
        let what = match self.byte {
            Some(_) => "first byte written",
            None => "address",
        };
        write!(text, "  {what} {at:p}: index {offset}")?;
        // Distances are from the first and the last byte, so that none is 0.
        match usize::try_from(offset) {
            Err(_) => {
                let before = Plural(offset.unsigned_abs(), "byte");
                writeln!(text, ", {before} before its first byte")
            }
            Ok(offset) if offset >= bytes => {
                let past = Plural(offset - bytes + 1, "byte");
                writeln!(text, ", {past} past its last byte")
            }
            Ok(_) => writeln!(text),
        }
    }
}

fn write_stack(word: &str, here: &Here, text: &mut Text) -> fmt::Result {
    writeln!(text, "  {word} by thread {}:", here.thread())?;
    write_frames(here, text)
}

/// Reports the blocks that are not freed, by the stack that allocated them. Never inlined; see
/// `exit_report`.
#[cold]
#[inline(never)]
pub(crate) fn say_leaks() {
    let places = with(|blocks| blocks.count_by_place());
    if places == 0 {
        return;
    }
    tell(PROCESS.tuning.on_misuse(), |text| {
        let places = Plural(places, "place");
        writeln!(text, "larder: not freed at the end, by {places}:")?;
        // Found without the lock of the blocks, under which no other lock is taken.
        let files = LoadedFiles::find();
        let leaks = core::iter::from_fn(|| with(|blocks| blocks.take_next(&files)));
        for leak in leaks.take(MAX_LEAKS) {
            let (bytes, blocks) = (Plural(leak.bytes, "byte"), Plural(leak.blocks, "block"));
            let by = match leak.caller {
                Caller::Program | Caller::Unknown => "",
                Caller::LibraryOfProgram | Caller::Library => ", allocated by a library",
            };
            writeln!(text, "  {bytes} in {blocks}{by}:")?;
            write_frames(&leak.allocated, text)?;
        }
        Ok(())
    });
}
