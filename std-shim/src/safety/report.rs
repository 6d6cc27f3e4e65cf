//! Reports of misuse, and of blocks that are not freed: a text in its own memory, written without a
//! lock of the heap. Its first line has the misuse and the address; a checking heap adds more
//! lines.

use core::fmt::{self, Write};

use super::Misuse;
use super::blocks::Facts;
use super::hardened::with;
use super::history::{Here, Leak};
use crate::block_table::MappedValues;
use crate::config::OnMisuse;
use crate::os::stack::{CodeLocation, place_of};
use crate::os::{abort, say};
use crate::process::PROCESS;
use crate::text::Text;

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
            "  block {block:p}: {bytes} bytes, {granted} granted, aligned to {}, {}",
            known.align(),
            known.state.words(),
        )?;
        let at = self.byte.unwrap_or(self.address);
        let offset = at.addr().wrapping_sub(block.addr()) as isize;
        let what = match self.byte {
            Some(_) => "first byte written",
            None => "address",
        };
        match usize::try_from(offset) {
            Err(_) => writeln!(text, "  {what} {at:p}: {} before its start", -offset),
            Ok(offset) if offset >= bytes => {
                writeln!(text, "  {what} {at:p}: {} past its end", offset - bytes)
            }
            Ok(offset) => writeln!(text, "  {what} {at:p}: {offset} from its start"),
        }
    }
}

fn write_stack(word: &str, here: &Here, text: &mut Text) -> fmt::Result {
    writeln!(text, "  {word} by thread {}:", here.thread())?;
    write_frames(here, text)
}

/// Writes a line for each frame, beginning with the allocator's caller: its file and offset, as
/// `addr2line` takes them, and the function's name if it is known.
fn write_frames(here: &Here, text: &mut Text) -> fmt::Result {
    let count = here.frames().count();
    if count == 0 {
        return text.write_str("    no stack\n");
    }
    let inner = here
        .frames()
        .take_while(|&frame| is_allocator(frame))
        .count();
    for frame in here.frames().skip(inner % count) {
        // The call instruction ends at the return address.
        let call = frame - 1;
        write!(text, "    {call:#x}")?;
        let place = place_of(call);
        if let Some(CodeLocation { file, offset, .. }) = place {
            write!(text, " {}+{offset:#x}", file.to_str().unwrap_or("?"))?;
        }
        if !write_names(frame, text)?
            && let Some(function) = place.and_then(|place| place.function)
        {
            write!(text, " {}", function.to_str().unwrap_or("?"))?;
        }
        text.write_str("\n")?;
    }
    Ok(())
}

/// Maximum number of characters of a name; generic functions can have long ones.
#[cfg(feature = "heap-profile")]
const MAX_NAME: usize = 100;

/// Runs `f`, which allocates to look up names, unless a lookup is under way.
#[cfg(feature = "heap-profile")]
fn looked_up<R: Default>(f: impl FnOnce() -> R) -> R {
    // SAFETY: called from the verbs, which do not use the thread's part here.
    if unsafe { crate::thread::with_local(|local| local.set_walking(true)) } {
        return R::default();
    }
    let found = f();
    // SAFETY: called from the verbs, which do not use the thread's part here.
    unsafe { crate::thread::with_local(|local| local.set_walking(false)) };
    found
}

/// Writes names from the debug information, if it can be read. Returns whether there were any.
#[cfg(feature = "heap-profile")]
fn write_names(frame: usize, text: &mut Text) -> Result<bool, fmt::Error> {
    let names = looked_up(|| crate::observe::profile::names_of(frame));
    let mut written = Ok(false);
    for name in names {
        written = written.and_then(|_| write!(text, " {name:.MAX_NAME$}").map(|()| true));
    }
    written
}

/// Returns whether a frame belongs to a function of the allocator. Without tail calls, there are
/// such frames between the verb and the heap.
#[cfg(feature = "heap-profile")]
fn is_allocator(frame: usize) -> bool {
    looked_up(|| crate::observe::profile::is_in_allocator(frame))
}

/// Returns whether a frame belongs to the library that replaces malloc, which has no functions of
/// the program.
#[cfg(not(feature = "heap-profile"))]
fn is_allocator(frame: usize) -> bool {
    let Some(CodeLocation { file, .. }) = place_of(frame - 1) else {
        return false;
    };
    let name = file.to_bytes().rsplit(|&byte| byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"liblarder.so"))
}

#[cfg(not(feature = "heap-profile"))]
#[expect(clippy::unnecessary_wraps, reason = "as the other")]
fn write_names(_frame: usize, _text: &mut Text) -> Result<bool, fmt::Error> {
    Ok(false)
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
        writeln!(text, "larder: not freed at the end, by {places} places:")?;
        let leaks = core::iter::from_fn(|| with(|blocks| blocks.take_most()));
        for Leak {
            blocks,
            bytes,
            allocated,
        } in leaks.take(MAX_LEAKS)
        {
            writeln!(text, "  {bytes} bytes in {blocks} blocks:")?;
            write_frames(&allocated, text)?;
        }
        Ok(())
    });
}
