//! Reports at the end of the process, if configured: blocks that are not freed, and the heap's
//! statistics.

use core::fmt::{self, Write};

use crate::os::peak::peak_resident_bytes;
use crate::os::say;
use crate::process::PROCESS;
use crate::safety::report::say_leaks;
use crate::stats::Stats;
use crate::text::Text;
use crate::thread::with_local;

/// Runs after the `atexit` functions and the destructors of the program's file.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = at_end;

extern "C" fn at_end() {
    if PROCESS.tuning.says_leaks() {
        say_leaks();
    }
    if PROCESS.tuning.config().stats {
        say_stats();
    }
}

/// Length of the buffer: bytes per line, multiplied by lines. A number longer than its column
/// uses spare room of the other lines.
const TEXT_BYTES: usize = 80 * 16;

/// Prints the statistics of the heap. Not inlined, so that the caller touches no stack pages for
/// its buffer.
#[cold]
#[inline(never)]
fn say_stats() {
    // SAFETY: the process ends, and its thread is not inside the heap.
    let stats = unsafe { with_local(|local| Stats::count(&PROCESS, local)) };
    let mut bytes = [0; TEXT_BYTES];
    let mut text = Text::new(&mut bytes);
    // The buffer is large enough.
    write_stats(&stats, &mut text).ok();
    say(text.written());
}

fn write_stats(stats: &Stats, text: &mut Text) -> fmt::Result {
    // SAFETY: reads a number of the process.
    let process = unsafe { libc::getpid() };
    writeln!(text, "larder: the heap of process {process} at its end:")?;
    write!(text, "{stats}")?;
    match peak_resident_bytes() {
        Some(peak) => writeln!(
            text,
            "  {:<16}{peak:>15}  peak of the process in memory",
            "peak_bytes"
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_said_with_its_meaning() {
        let stats = crate::Larder::new().stats();
        let mut bytes = [0; TEXT_BYTES];
        let mut text = Text::new(&mut bytes);
        assert_eq!(write_stats(&stats, &mut text), Ok(()));
        let said = str::from_utf8(text.written()).unwrap();
        assert_eq!(
            said.lines().count(),
            1 + stats.fields().count() + 1,
            "{said}"
        );
    }
}
