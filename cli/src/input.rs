//! Files that commands read: plain, or compressed with gzip, xz or zstd, which the first bytes
//! show. `-` is standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use larder_trace::{Defect, Trace, TraceError, Unpacked, for_each_event, read_to_last_line};
use lzma_rust2::XzReader;

use crate::interrupt;
use crate::replay::{RecordedTape, TapeWriter};

/// First bytes of gzip, xz and zstd files.
const GZIP: &[u8] = &[0x1F, 0x8B];
const XZ: &[u8] = &[0xFD, b'7', b'z', b'X', b'Z', 0];
const ZSTD: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];

/// Maximum memory in KiB of the decoder of xz files: enough for the dictionary of `xz -9`, 64 MiB.
const XZ_KIB: u32 = 65 << 10;

/// Time between two looks at whether the user asked a command to end that waits for input.
const LOOK: Duration = Duration::from_millis(50);

/// Bytes read together from a pipe.
const CHUNK_BYTES: usize = 64 << 10;

/// Returns the name by which messages and results call a file.
pub(crate) fn name(path: &Path) -> &Path {
    if is_standard_input(path) {
        Path::new("stdin")
    } else {
        path
    }
}

/// Returns whether a path stands for standard input.
pub(crate) fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens a file, and decompresses gzip and xz.
pub(crate) fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let mut file = BufReader::new(open_as_is(path)?);
    let head = file.fill_buf()?;
    let content: Box<dyn Read> = if head.starts_with(GZIP) {
        Box::new(Unpacked::open(file, |packed| {
            Ok(MultiGzDecoder::new(packed))
        })?)
    } else if head.starts_with(XZ) {
        Box::new(Unpacked::open(file, |packed| {
            Ok(XzReader::new_mem_limit(
                BufReader::new(packed),
                true,
                XZ_KIB,
            ))
        })?)
    } else {
        return Ok(Box::new(file));
    };
    let mut content = BufReader::new(content);
    let head = content.fill_buf().map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => io::Error::other(
            "its dictionary has more than the 64 MiB of `xz -9`: decompress it with `xz -d` first",
        ),
        _ => error,
    })?;
    // The limits of both decoders would multiply.
    if head.starts_with(ZSTD) {
        return Err(io::Error::other(
            "it is compressed twice: decompress it once first",
        ));
    }
    Ok(Box::new(content))
}

/// Opens a file or standard input.
fn open_as_is(path: &Path) -> io::Result<Box<dyn Read>> {
    if is_standard_input(path) {
        return Ok(Box::new(Pipe::open(|| Ok(io::stdin()))));
    }
    let metadata = path.metadata()?;
    if metadata.is_file() || metadata.is_dir() {
        return Ok(Box::new(File::open(path)?));
    }
    let path = path.to_owned();
    Ok(Box::new(Pipe::open(|| File::open(path))))
}

/// Input that may have to be waited for. A thread opens and reads it, so that Ctrl-C ends the wait.
struct Pipe {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Cursor<Vec<u8>>,
}

impl Pipe {
    fn open<R: Read>(open: impl FnOnce() -> io::Result<R> + Send + 'static) -> Self {
        let (sender, chunks) = sync_channel(1);
        thread::spawn(move || {
            if let Err(error) = open().and_then(|input| send_all(input, &sender)) {
                let _ = sender.send(Err(error));
            }
        });
        Self {
            chunks,
            chunk: Cursor::default(),
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.chunk.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            if interrupt::asked() {
                return Err(io::Error::other("interrupted"));
            }
            match self.chunks.recv_timeout(LOOK) {
                Ok(chunk) => self.chunk = Cursor::new(chunk?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            }
        }
    }
}

/// Sends all bytes of an input, until no reader is left.
fn send_all(mut input: impl Read, sender: &SyncSender<io::Result<Vec<u8>>>) -> io::Result<()> {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        match input.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => chunk.truncate(read),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if sender.send(Ok(chunk)).is_err() {
            return Ok(());
        }
    }
}

/// Reads all traces of a file, at least one. If the file is cut short, returns the part before the
/// cut, and the defect.
pub(crate) fn traces(path: &Path) -> Result<(Vec<Trace>, Option<TraceError>), TraceError> {
    read_to_last_line(name(path), open_trace(path)?)
}

/// Reads all traces of a file, with their events on tape. Writing a tape may fail even if its trace
/// is complete.
pub(crate) fn tapes(path: &Path) -> Result<(Tapes, Option<TraceError>), TraceError> {
    let mut writers: Vec<TapeWriter> = Vec::new();
    let (traces, cut) = for_each_event(name(path), open_trace(path)?, &mut |trace, event| {
        if writers.len() <= trace {
            writers.resize_with(trace + 1, TapeWriter::new);
        }
        writers[trace].write(event, 0);
    })?;
    let written = writers.into_iter().map(TapeWriter::finish);
    Ok((traces.into_iter().zip(written).collect(), cut))
}

/// Traces without their events, and the tapes of the events.
pub(crate) type Tapes = Vec<(Trace, io::Result<RecordedTape>)>;

fn open_trace(path: &Path) -> Result<Box<dyn Read>, TraceError> {
    open(path).map_err(|error| {
        let defect = match error.kind() {
            io::ErrorKind::NotFound => Defect::NoSuchFile,
            io::ErrorKind::UnexpectedEof => Defect::StreamCut,
            _ => Defect::Unreadable(error),
        };
        TraceError::of_file(path, defect)
    })
}
