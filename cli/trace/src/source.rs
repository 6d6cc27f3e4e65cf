//! The bytes of a trace file, plain or compressed with zstd, and their format.
//!
//! Compression and format are detected by the first bytes, never by the name.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use super::Defect;
use super::rmm::HEADER;
use super::unpacked::{TooLarge, Unpacked};

/// First bytes of a zstd frame.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];

/// First bytes of pickles: in protocol 2 and later, in protocol 0, and of a list and of a
/// dictionary in protocol 1. No line of a trace begins with them.
const PICKLE_STARTS: &[u8] = b"\x80(]}";

/// The byte order mark, which some programs write in front of text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Number of first bytes that determine the kind of a file: those of a log's header, with quotes
/// around each column.
const HEAD_BYTES: usize = BYTE_ORDER_MARK.len() + HEADER.len() + 12;

/// Advice on getting a file that can be read.
const RECORD: &str =
    "record a trace in format v1, or write a snapshot with torch.cuda.memory._dump_snapshot";

/// Kinds of files that users pass by mistake: first bytes, name and advice.
const OTHER_KINDS: [(&[u8], &str, &str); 4] = [
    (
        b"PK\x03\x04",
        "a zip archive, as torch.save writes",
        "unpack the trace if there is one in it, or write a snapshot with torch.cuda.memory._dump_snapshot",
    ),
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer and not the file that it stands for",
        "fetch that with `git lfs pull`",
    ),
    (b"{", "JSON", RECORD),
    (b"[", "JSON", RECORD),
];

/// The format of a file, by its writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A recorder, in lines of format v1.
    V1,
    /// PyTorch, as a pickled memory snapshot.
    Snapshot,
    /// RMM's logging adaptor, as CSV.
    RmmLog,
}

/// An open file.
pub(super) struct Source<'source> {
    bytes: Box<dyn BufRead + 'source>,
    compressed: bool,
}

impl<'source> Source<'source> {
    /// Opens a file. Its first bytes say if it is compressed, and its format.
    pub(super) fn open(source: impl Read + 'source) -> Result<(Self, Format), Defect> {
        let (magic, whole) = peek(source, ZSTD_MAGIC.len()).map_err(Defect::Unreadable)?;
        let compressed = magic == ZSTD_MAGIC;
        let content: Box<dyn Read + 'source> = if compressed {
            let unpacked = Unpacked::open(whole, zstd::stream::read::Decoder::new);
            Box::new(unpacked.map_err(Defect::ZstdDamaged)?)
        } else {
            Box::new(whole)
        };
        let (head, mut content) =
            peek(content, HEAD_BYTES).map_err(|error| defect(compressed, error))?;
        let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
        let mark_bytes = (head.len() - text.len()) as u64;
        io::copy(&mut content.by_ref().take(mark_bytes), &mut io::sink())
            .map_err(|error| defect(compressed, error))?;
        let format = format_of(text)?;
        let bytes = Box::new(BufReader::new(content));
        Ok((Self { bytes, compressed }, format))
    }

    /// Appends bytes up to and including a newline, at most `limit`.
    pub(super) fn read_line(&mut self, limit: u64, line: &mut Vec<u8>) -> Result<(), Defect> {
        let read = self.bytes.by_ref().take(limit).read_until(b'\n', line);
        read.map(drop)
            .map_err(|error| defect(self.compressed, error))
    }

    /// Reads the rest, at most `limit` bytes.
    pub(super) fn read_all(self, limit: u64) -> Result<Vec<u8>, Defect> {
        let mut all = Vec::new();
        let read = self.bytes.take(limit).read_to_end(&mut all);
        read.map_err(|error| defect(self.compressed, error))?;
        Ok(all)
    }
}

/// Returns the format of a file with these first bytes.
fn format_of(head: &[u8]) -> Result<Format, Defect> {
    let begun = head.trim_ascii_start();
    let mut others = OTHER_KINDS.iter();
    if let Some((_, what, advice)) = others.find(|(start, ..)| begun.starts_with(start)) {
        return Err(Defect::OtherKind { what, advice });
    }
    let unquoted = head.iter().filter(|byte| **byte != b'"');
    Ok(match head.first() {
        Some(first) if PICKLE_STARTS.contains(first) => Format::Snapshot,
        _ if unquoted.take(HEADER.len()).eq(HEADER.as_bytes()) => Format::RmmLog,
        _ => Format::V1,
    })
}

/// Returns the first `count` bytes, or fewer if there are no more, and a source that still has
/// them.
fn peek<R: Read>(mut source: R, count: usize) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::with_capacity(count);
    source.by_ref().take(count as u64).read_to_end(&mut head)?;
    let whole = Cursor::new(head.clone()).chain(source);
    Ok((head, whole))
}

fn defect(compressed: bool, error: io::Error) -> Defect {
    if error.get_ref().is_some_and(|error| error.is::<TooLarge>()) {
        return Defect::ContentTooLarge;
    }
    match (compressed, error.kind()) {
        (true, io::ErrorKind::UnexpectedEof) => Defect::ZstdCut,
        (true, _) => Defect::ZstdDamaged(error),
        (false, io::ErrorKind::UnexpectedEof) => Defect::StreamCut,
        (false, _) => Defect::Unreadable(error),
    }
}
