//! The lines of a text file, one at a time, numbered.
//!
//! Knows about bytes and lines, not about events.

use super::Defect;
use super::source::Source;

/// No line of a trace comes near this; a bound keeps a file that is not a trace
/// at all from being read into memory as one line.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Numbered lines.
pub(super) struct Lines<'source> {
    source: Source<'source>,
    number: u64,
    buffer: Vec<u8>,
}

impl<'source> Lines<'source> {
    pub(super) fn new(source: Source<'source>) -> Self {
        Self {
            source,
            number: 0,
            buffer: Vec::new(),
        }
    }

    /// Number of the line last asked for, counted from 1; never 0, so that it can
    /// stand in an error about a file without any line.
    pub(super) fn number(&self) -> u64 {
        self.number.max(1)
    }

    /// The next line without its newline, be it that of another system, or `None` at a clean end.
    pub(super) fn next(&mut self) -> Result<Option<&str>, Defect> {
        let Some(line) = self.next_bytes()? else {
            return Ok(None);
        };
        let Some(line) = line.strip_suffix(b"\n") else {
            return Err(unended_line(line));
        };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        std::str::from_utf8(line)
            .map(Some)
            .map_err(|_| Defect::NotUtf8)
    }

    /// The next line with the newline it ends in, if it ends in one. What is not UTF-8 is replaced.
    pub(super) fn next_lenient(&mut self) -> Result<Option<String>, Defect> {
        let Some(line) = self.next_bytes()? else {
            return Ok(None);
        };
        if line.len() > MAX_LINE_BYTES {
            return Err(unended_line(line));
        }
        Ok(Some(String::from_utf8_lossy(line).into_owned()))
    }

    /// The next line as it stands, one byte longer than the limit if it is too long.
    fn next_bytes(&mut self) -> Result<Option<&[u8]>, Defect> {
        self.buffer.clear();
        self.number += 1;
        self.source
            .read_line(MAX_LINE_BYTES as u64 + 1, &mut self.buffer)?;
        if self.buffer.is_empty() {
            self.number -= 1;
            return Ok(None);
        }
        Ok(Some(&self.buffer))
    }
}

/// What is wrong with a line that stopped without a newline.
fn unended_line(line: &[u8]) -> Defect {
    if line.len() > MAX_LINE_BYTES {
        return Defect::LineTooLong {
            limit_bytes: MAX_LINE_BYTES,
        };
    }
    match std::str::from_utf8(line) {
        // A character cut in two at the very end is a cut file, not a wrong encoding.
        Err(error) if error.error_len().is_some() => Defect::NotUtf8,
        _ => Defect::NoNewline,
    }
}
