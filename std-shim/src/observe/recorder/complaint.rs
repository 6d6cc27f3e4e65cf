//! Messages of the recorder on standard error: one line each, written without allocating.

use super::line::Line;
use super::os::{Errno, OpenFile};
use super::output::Lost;
use super::recording::EndReason;
use super::target::BadOrder;

/// One line of text; a path that does not fit is cut.
type Words = Line<1024>;

/// The reason why a requested recording did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoStart {
    /// The request is invalid.
    Order(BadOrder),
    /// The file cannot be opened.
    Open(Errno),
    /// Another process records to the file.
    Busy,
    /// The system takes no handlers for the program's exit and forks.
    Unwatched,
}

/// Reports why nothing is recorded.
pub(super) fn of_start(reason: NoStart, path: &[u8]) {
    let mut words = Words::new();
    words.text(b"larder: not recording: ").shown(path);
    match reason {
        NoStart::Order(BadOrder::From) => words.text(
            b"LARDER_RECORD_FROM is not a byte count; write plain bytes or a suffix, such as 65536 or 64KiB",
        ),
        NoStart::Order(BadOrder::Path) => words.text(b"the path of the trace is too long"),
        NoStart::Open(errno) => {
            words.text(b" cannot be opened for writing");
            with_number(&mut words, errno);
            words.text(b"; check its folder and whether you may write there")
        }
        NoStart::Busy => words.text(
            b" is being written by another process; put %p into the name for one file a process",
        ),
        NoStart::Unwatched => words.text(b" would stay incomplete: the system takes no exit handler"),
    };
    say(&mut words);
}

/// Reports why a recording ended, unless it ended normally or belongs to the parent process.
pub(super) fn of_end(why: EndReason) {
    let mut words = Words::new();
    words.text(b"larder: recording ended: ").text(reason(why));
    match why {
        EndReason::Exit | EndReason::Lost(Lost::Parents) => return,
        EndReason::Lost(Lost::Refused(errno)) => with_number(&mut words, errno),
        EndReason::NoMemory | EndReason::NoNumbers | EndReason::Lost(Lost::Closed) => {}
    }
    words.text(b"; the program goes on");
    say(&mut words);
}

/// Returns the reason for a recording's end in words, which the trace's last line has, too.
pub(super) fn reason(why: EndReason) -> &'static [u8] {
    match why {
        EndReason::Exit => b"the program exits",
        EndReason::NoMemory => b"no memory for the table of live blocks",
        EndReason::NoNumbers => b"the format has no more numbers",
        EndReason::Lost(Lost::Refused(_)) => b"the trace cannot be written",
        EndReason::Lost(Lost::Closed) => b"the program closed the trace's file",
        EndReason::Lost(Lost::Parents) => b"a forked child is not recorded",
    }
}

fn with_number(words: &mut Words, Errno(number): Errno) {
    words.text(b" (os error ");
    words.number(u64::from(number.unsigned_abs())).text(b")");
}

/// Writes a message. A failure of standard error cannot be reported.
fn say(words: &mut Words) {
    let _ = OpenFile::STDERR.write(words.ended(b'\n'));
}
