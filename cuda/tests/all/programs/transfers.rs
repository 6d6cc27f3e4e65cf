//! The host's side of copies: their sources, their destinations, and the expected bytes.

use std::sync::OnceLock;

use cudarc::driver::{CudaStream, result};
use larder_core::{Align, GrowRequest, SubAllocator};
use larder_cuda::{Context, PinnedMemory};
use larder_model::Random;

use crate::common::MIB;

/// Maximum number of bytes of one copy from or to pinned memory.
pub(crate) const WINDOW: u64 = 4096;

/// Pinned bytes that are copied to blocks: enough for a window from any offset below [`WINDOW`].
const SOURCE: usize = 2 * WINDOW as usize;

/// Pinned bytes that are copied from blocks.
const RESULTS: usize = 256 * WINDOW as usize;

/// Returns random bytes, enough for every block.
pub(crate) fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut random = Random::new(1);
        let words = (0..6 * MIB / 8).flat_map(|_| random.next_u64().to_le_bytes());
        words.collect()
    })
}

/// A queued read: where its bytes go, and what they must be.
struct Expected {
    from: usize,
    bytes: Vec<u8>,
    what: String,
}

pub(crate) struct Transfers {
    /// Owns the memory at `start`.
    _pinned: PinnedMemory,
    start: *mut u8,
    used: usize,
    expected: Vec<Expected>,
}

// SAFETY: the pinned memory belongs to this value alone.
unsafe impl Send for Transfers {}

impl Transfers {
    pub(crate) fn new(context: &Context) -> Self {
        let pinned = PinnedMemory::new(context);
        let wish = GrowRequest {
            bytes: (SOURCE + RESULTS) as u64,
            align: Align::new(256).unwrap(),
            at: None,
        };
        let range = pinned.grow(wish).expect("pinned memory");
        let start = range.start().get() as usize;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: the memory was just pinned with a larger size, and no work uses it yet.
        let source = unsafe { std::slice::from_raw_parts_mut(start, SOURCE) };
        source.copy_from_slice(&pattern()[..SOURCE]);
        Self {
            _pinned: pinned,
            start,
            used: 0,
            expected: Vec::new(),
        }
    }

    /// Returns pinned bytes to copy from, which are those of the pattern at the same offset.
    pub(crate) fn source(&self, from: usize, bytes: usize) -> &[u8] {
        assert!(from + bytes <= SOURCE);
        // SAFETY: the bytes are inside the pinned memory, and are not written any more.
        unsafe { std::slice::from_raw_parts(self.start.wrapping_add(from), bytes) }
    }

    /// Returns whether this many more bytes can be read before a [`check`](Self::check).
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.used + bytes <= RESULTS
    }

    pub(crate) fn read(
        &mut self,
        stream: &CudaStream,
        at: u64,
        bytes: &[u8],
        what: String,
    ) -> Result<(), result::DriverError> {
        assert!(self.has_room(bytes.len()));
        let place = self.start.wrapping_add(SOURCE + self.used);
        // SAFETY: the bytes are inside the pinned memory, and are used only once until all work is done.
        let place = unsafe { std::slice::from_raw_parts_mut(place, bytes.len()) };
        place.fill(!bytes.first().copied().unwrap_or(0));
        // SAFETY: the program holds the block; the pinned memory outlives the work.
        unsafe { result::memcpy_dtoh_async(place, at, stream.cu_stream()) }?;
        self.expected.push(Expected {
            from: self.used,
            bytes: bytes.to_vec(),
            what,
        });
        self.used += bytes.len();
        Ok(())
    }

    /// Compares everything that was read. The work must be done.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        self.used = 0;
        for expected in self.expected.drain(..) {
            let place = self.start.wrapping_add(SOURCE + expected.from);
            // SAFETY: the bytes are inside the pinned memory, and the work is done.
            let found = unsafe { std::slice::from_raw_parts(place, expected.bytes.len()) };
            compare(found, &expected.bytes, &expected.what)?;
        }
        Ok(())
    }
}

pub(crate) fn compare(found: &[u8], expected: &[u8], what: &str) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let mut pairs = found.iter().zip(expected);
    let at = pairs.position(|(found, expected)| found != expected);
    let at = at.unwrap_or(0);
    Err(format!(
        "{what}: byte {at} of {} is {:?} and must be {:?}",
        expected.len(),
        found.get(at),
        expected.get(at)
    ))
}
