//! [`Output`]: the trace's file and the lines buffered for it.
//!
//! Each write has only whole lines, so that a killed program leaves only whole lines.

use super::os::{self, Errno, Identity, OpenFile};

/// Length in bytes of the buffer for lines.
const BUFFER_BYTES: usize = 64 * 1024;

/// The reason why nothing more can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The system refused a write.
    Refused(Errno),
    /// The program closed the file; the descriptor may now belong to another file.
    Closed,
    /// The process is a forked child, and the file is its parent's.
    Parents,
}

/// A file opened for a trace.
#[derive(Clone, Copy, Debug)]
struct Opened {
    file: OpenFile,
    identity: Identity,
    process: libc::pid_t,
    /// Bytes written so far: whole lines.
    bytes: u64,
}

/// The trace's file, if there is one, and lines not yet written to it.
///
/// Invariant LINES1: `buffer[..used]` are whole lines.
///
/// Without a file, the value is all zeros, so that the buffer takes no room in the program's own
/// file.
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

    /// Starts writing to `file`, whose identity is `identity`.
    pub(super) fn begin(&mut self, file: OpenFile, identity: Identity) {
        self.used = 0;
        self.opened = Some(Opened {
            file,
            identity,
            process: os::process(),
            bytes: 0,
        });
    }

    /// Buffers one line with its newline. Writes the buffer first if the line does not fit.
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

    /// Writes the buffered lines. After an error the buffer is empty, and a partly written line is
    /// removed from the file.
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

    /// Forgets the file, and closes it if it is still ours. Discards buffered lines.
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
