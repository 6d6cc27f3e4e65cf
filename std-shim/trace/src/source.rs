//! The bytes of a trace file, plain or compressed with zstd, and which format they are in.
//!
//! Both are told by the first bytes, never by the name.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use super::Defect;
use super::rmm::HEADER;

/// First bytes of a zstd frame.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];

/// First byte of a pickle in protocol 2 and later.
const PICKLE_MAGIC: u8 = 0x80;

/// What wrote a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A recorder: lines of format v1.
    V1,
    /// PyTorch: a pickled memory snapshot.
    Snapshot,
    /// RMM's logging adaptor: CSV.
    RmmLog,
}

/// An open file.
pub(super) struct Source<'source> {
    bytes: Box<dyn BufRead + 'source>,
    compressed: bool,
}

impl<'source> Source<'source> {
    /// Looks at the first bytes and decides whether to decompress, and how to read.
    pub(super) fn open(source: impl Read + 'source) -> Result<(Self, Format), Defect> {
        let (magic, whole) = peek(source, ZSTD_MAGIC.len()).map_err(Defect::Unreadable)?;
        let compressed = magic == ZSTD_MAGIC;
        let content: Box<dyn Read + 'source> = if compressed {
            Box::new(zstd::stream::read::Decoder::new(whole).map_err(Defect::ZstdDamaged)?)
        } else {
            Box::new(whole)
        };
        let (head, content) =
            peek(content, HEADER.len()).map_err(|error| defect(compressed, error))?;
        let format = match head.first() {
            Some(&PICKLE_MAGIC) => Format::Snapshot,
            _ if head == HEADER.as_bytes() => Format::RmmLog,
            _ => Format::V1,
        };
        let bytes = Box::new(BufReader::new(content));
        Ok((Self { bytes, compressed }, format))
    }

    /// Appends bytes up to a newline, included, but no more than the limit.
    pub(super) fn read_line(&mut self, limit: u64, line: &mut Vec<u8>) -> Result<(), Defect> {
        let read = self.bytes.by_ref().take(limit).read_until(b'\n', line);
        read.map(drop)
            .map_err(|error| defect(self.compressed, error))
    }

    /// All that is left, but no more than the limit.
    pub(super) fn read_all(self, limit: u64) -> Result<Vec<u8>, Defect> {
        let mut all = Vec::new();
        let read = self.bytes.take(limit).read_to_end(&mut all);
        read.map_err(|error| defect(self.compressed, error))?;
        Ok(all)
    }
}

/// The first bytes, fewer if there are no more, and a source that has them still.
fn peek<R: Read>(mut source: R, count: usize) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::with_capacity(count);
    source.by_ref().take(count as u64).read_to_end(&mut head)?;
    let whole = Cursor::new(head.clone()).chain(source);
    Ok((head, whole))
}

fn defect(compressed: bool, error: io::Error) -> Defect {
    match (compressed, error.kind()) {
        (true, io::ErrorKind::UnexpectedEof) => Defect::ZstdCut,
        (true, _) => Defect::ZstdDamaged(error),
        (false, io::ErrorKind::UnexpectedEof) => Defect::StreamCut,
        (false, _) => Defect::Unreadable(error),
    }
}
