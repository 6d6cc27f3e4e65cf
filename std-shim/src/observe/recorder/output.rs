//! [`Output`]: the trace's file and the lines on their way to it.
//!
//! A write holds whole lines only, so that a program that is killed leaves whole lines.

use super::os::{self, Errno, File, Identity};

/// Lines wait here until so much has come together.
const BUFFER_BYTES: usize = 64 * 1024;

/// Why nothing more can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The system refused a write.
    Refused(Errno),
    /// The program closed the file, whose number may stand for another by now.
    Closed,
    /// This is a forked child, and the file is its parent's.
    Parents,
}

/// A file opened for a trace.
#[derive(Clone, Copy, Debug)]
struct Opened {
    file: File,
    identity: Identity,
    process: libc::pid_t,
    /// Bytes written so far, whole lines.
    bytes: u64,
}

/// The trace's file, if there is one, and lines not yet written to it.
///
/// Invariant LINES1: `buffer[..used]` are whole lines.
///
/// Without a file it is all zeros, so that the buffer takes no room in a program's own file.
pub(super) struct Output {
    opened: Option<Opened>,
    used: usize,
    buffer: [u8; BUFFER_BYTES],
}

impl Output {
    pub(super) const fn new() -> Self {
        Self {
            opened: None,
            used: 0,
            buffer: [0; BUFFER_BYTES],
        }
    }

    /// Writes to `file` from now on, which is `identity`.
    pub(super) fn begin(&mut self, file: File, identity: Identity) {
        self.used = 0;
        self.opened = Some(Opened {
            file,
            identity,
            process: os::process(),
            bytes: 0,
        });
    }

    /// Takes one line with its newline; writes what waits if there is no room for it.
    pub(super) fn put(&mut self, line: &[u8]) -> Result<(), Lost> {
        if self.buffer.len() - self.used < line.len() {
            self.flush()?;
        }
        let room = self.buffer.get_mut(self.used..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(line) {
            *to = *from;
        }
        self.used += line.len().min(room.len());
        Ok(())
    }

    /// Writes what waits. After an error nothing waits any more, and what the file got of the
    /// lines that could not all be written is cut back to whole ones.
    pub(super) fn flush(&mut self) -> Result<(), Lost> {
        let lines = self.buffer.get(..self.used).unwrap_or_default();
        self.used = 0;
        let Some(opened) = self.opened.as_mut().filter(|_| !lines.is_empty()) else {
            return Ok(());
        };
        if opened.process != os::process() {
            return Err(Lost::Parents);
        }
        if opened.file.identity() != Ok(opened.identity) {
            return Err(Lost::Closed);
        }
        if let Err((written, reason)) = opened.file.write(lines) {
            let written = lines.get(..written).unwrap_or_default();
            let newline = written.iter().rposition(|&byte| byte == b'\n');
            let whole = newline.map_or(0, |newline| newline + 1);
            opened.file.cut(opened.bytes + whole as u64);
            return Err(Lost::Refused(reason));
        }
        opened.bytes += lines.len() as u64;
        Ok(())
    }

    /// Gives the file up, closing it if it is still ours. What waits is dropped.
    pub(super) fn end(&mut self) {
        self.used = 0;
        let Some(opened) = self.opened.take() else {
            return;
        };
        let ours = opened.process == os::process();
        if ours && opened.file.identity() == Ok(opened.identity) {
            opened.file.close();
        }
    }
}
