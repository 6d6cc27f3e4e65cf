//! The lines of a trace file: plain text or zstd, one at a time, numbered.
//!
//! Knows about bytes and lines, not about events.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use super::Defect;

/// First bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// No line of a trace comes near this; a bound keeps a file that is not a trace
/// at all from being read into memory as one line.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Numbered lines of a source that may be compressed.
pub(super) struct Lines<'source> {
    source: Box<dyn BufRead + 'source>,
    compressed: bool,
    number: u64,
    buffer: Vec<u8>,
}

impl<'source> Lines<'source> {
    /// Looks at the first bytes and decides whether to decompress.
    pub(super) fn try_new(mut source: impl Read + 'source) -> Result<Self, Defect> {
        let mut magic = Vec::with_capacity(ZSTD_MAGIC.len());
        source
            .by_ref()
            .take(ZSTD_MAGIC.len() as u64)
            .read_to_end(&mut magic)
            .map_err(Defect::Unreadable)?;
        let compressed = magic == ZSTD_MAGIC;
        let whole = Cursor::new(magic).chain(source);
        let source: Box<dyn BufRead + 'source> = if compressed {
            let decoder = zstd::stream::read::Decoder::new(whole).map_err(Defect::ZstdDamaged)?;
            Box::new(BufReader::new(decoder))
        } else {
            Box::new(BufReader::new(whole))
        };
        Ok(Self {
            source,
            compressed,
            number: 0,
            buffer: Vec::new(),
        })
    }

    /// Number of the line last asked for, counted from 1; never 0, so that it can
    /// stand in an error about a file without any line.
    pub(super) fn number(&self) -> u64 {
        self.number.max(1)
    }

    /// The next line without its newline, or `None` at a clean end.
    pub(super) fn next(&mut self) -> Result<Option<&str>, Defect> {
        self.buffer.clear();
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = self
            .source
            .by_ref()
            .take(limit)
            .read_until(b'\n', &mut self.buffer);
        if let Err(error) = read {
            self.number += 1;
            return Err(self.read_defect(error));
        }
        if self.buffer.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let Some(line) = self.buffer.strip_suffix(b"\n") else {
            return Err(unended_line(&self.buffer));
        };
        if line.ends_with(b"\r") {
            return Err(Defect::CarriageReturn);
        }
        std::str::from_utf8(line)
            .map(Some)
            .map_err(|_| Defect::NotUtf8)
    }

    fn read_defect(&self, error: io::Error) -> Defect {
        match (self.compressed, error.kind()) {
            (true, io::ErrorKind::UnexpectedEof) => Defect::ZstdCut,
            (true, _) => Defect::ZstdDamaged(error),
            (false, _) => Defect::Unreadable(error),
        }
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
