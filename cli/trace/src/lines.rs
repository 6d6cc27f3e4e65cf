//! The lines of a text file, one at a time, numbered.
//!
//! This module handles bytes and lines, not events.

use super::Defect;
use super::source::Source;

/// Maximum bytes of a line, many times the length of any line of a trace. Because of the limit, a
/// file that is not a trace is not read into memory as one line.
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

    /// Returns the number of the last line read, counted from 1. It is never 0, so an error about a
    /// file without lines names line 1.
    pub(super) fn number(&self) -> u64 {
        self.number.max(1)
    }

    /// Returns the next line without its newline (`\n` or `\r\n`), or `None` if the file ends after
    /// a newline.
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

    /// Returns the next line with its newline, if it has one. Bytes that are not UTF-8 are replaced
    /// by U+FFFD.
    pub(super) fn next_lenient(&mut self) -> Result<Option<String>, Defect> {
        let Some(line) = self.next_bytes()? else {
            return Ok(None);
        };
        if line.len() > MAX_LINE_BYTES {
            return Err(unended_line(line));
        }
        Ok(Some(String::from_utf8_lossy(line).into_owned()))
    }

    /// Returns the bytes of the next line, at most one more than the limit.
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

/// Returns the defect of a line that ends without a newline.
fn unended_line(line: &[u8]) -> Defect {
    if line.len() > MAX_LINE_BYTES {
        return Defect::LineTooLong {
            limit_bytes: MAX_LINE_BYTES,
        };
    }
    match std::str::from_utf8(line) {
        // An incomplete character at the very end means that the file is cut, not that its encoding
        // is wrong.
        Err(error) if error.error_len().is_some() => Defect::NotUtf8,
        _ => Defect::NoNewline,
    }
}
