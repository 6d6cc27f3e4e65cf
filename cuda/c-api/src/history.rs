//! The newest allocations and frees of the caller, for PyTorch's `_record_memory_history`.
//!
//! Recording is off until the program starts it. While it is off, an allocation or a free costs one load more.
//! The entries are in a ring whose memory is reserved when recording starts, so that recording an entry neither
//! allocates nor calls the system, except for the time.
//!
//! The ring has a spin lock, which is held while one entry is written or a thousand are copied.

use std::ffi::{c_char, c_int};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use larder_core::sync::{AtomicU32, Locked, Ordering};

use crate::device::{DeviceState, Handle};
use crate::outcome::{Refusal, guard, status};
use crate::report::write_text;

/// Maximum number of entries: 40 MiB, and about 120 MB as JSON. PyTorch's default is no maximum.
const MAX_ENTRIES: u64 = 1 << 20;

/// Number of entries that are copied under the lock, for which frees wait: some 10 µs.
const COPIED_AT_ONCE: usize = 1024;

/// An event of PyTorch's histories.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    /// A refusal. The address is the number of bytes that could still be reserved.
    OutOfMemory,
}

#[derive(Clone, Copy)]
struct Entry {
    action: Action,
    device: c_int,
    address: u64,
    bytes: u64,
    stream: Handle,
    time_us: u64,
}

/// The newest entries. Entry N since the start is at N modulo `max_entries`.
struct Ring {
    /// Has space for `max_entries`.
    entries: Vec<Entry>,
    max_entries: usize,
    /// Number of entries since the start.
    written: usize,
}

impl Ring {
    fn push(&mut self, entry: Entry) {
        if self.entries.len() < self.max_entries {
            self.entries.push(entry);
        } else if let Some(oldest) = (self.written.checked_rem(self.max_entries))
            .and_then(|place| self.entries.get_mut(place))
        {
            *oldest = entry;
        }
        self.written += 1;
    }

    /// Copies entries from number `first` on, or from the oldest one if that is newer, into space that is reserved.
    /// Returns the number of the entry after them.
    fn copy_into(&self, first: usize, copy: &mut Vec<Entry>) -> usize {
        let first = first.max(self.written - self.entries.len());
        let end = self.written.min(first + COPIED_AT_ONCE);
        let places = (first..end).filter_map(|number| number.checked_rem(self.max_entries));
        copy.extend(places.filter_map(|place| self.entries.get(place)));
        end
    }
}

static RING: Locked<Ring> = Locked::new(Ring {
    entries: Vec::new(),
    max_entries: 0,
    written: 0,
});

/// 1 while entries are recorded.
static IS_ON: AtomicU32 = AtomicU32::new(0);

/// Returns whether entries are recorded.
pub(crate) fn is_on() -> bool {
    // Relaxed: the lock publishes the ring; an entry of the moment of a change may be recorded or not.
    IS_ON.load(Ordering::Relaxed) != 0
}

/// Records an entry.
pub(crate) fn record(device: c_int, action: Action, address: u64, bytes: u64, stream: Handle) {
    // A clock before 1970 reads as 1970.
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let entry = Entry {
        action,
        device,
        address,
        bytes,
        stream,
        time_us: time.unwrap_or_default().as_micros() as u64,
    };
    RING.with(|ring| ring.push(entry));
}

impl DeviceState {
    /// Records a refusal, if it was for lack of memory.
    pub(crate) fn record_refusal(&self, refused: &Refusal, bytes: u64, stream: Handle) {
        if is_on() && matches!(refused, Refusal::OutOfMemory { .. }) {
            let total = self
                .context()
                .device_info()
                .map_or(0, |info| info.total_bytes);
            let stats = self.memory.stats();
            let most = self.limit_bytes().min(total);
            let free = most.saturating_sub(stats.reserved_bytes);
            record(self.ordinal, Action::OutOfMemory, free, bytes, stream);
        }
    }

    /// Records the free of a block that is about to be freed. Returns the block's granted bytes; `None` if nothing
    /// is recorded, because recording is off or there is no such block.
    pub(crate) fn record_free(&self, address: u64, stream: Handle) -> Option<u64> {
        let bytes = is_on().then(|| self.memory.bytes_at(address))??;
        for action in [Action::FreeRequested, Action::FreeCompleted] {
            record(self.ordinal, action, address, bytes, stream);
        }
        Some(bytes)
    }
}

/// Starts recording in an empty ring, or ends it.
fn start(entries: u64) -> Result<(), Refusal> {
    let max_entries = entries.min(MAX_ENTRIES) as usize;
    let mut entries = Vec::new();
    entries
        .try_reserve_exact(max_entries)
        .map_err(|_| Refusal::History(max_entries))?;
    let mut ring = Ring {
        entries,
        max_entries,
        written: 0,
    };
    // The former ring is dropped without the lock.
    RING.with(|current| std::mem::swap(current, &mut ring));
    IS_ON.store(u32::from(max_entries > 0), Ordering::Relaxed);
    Ok(())
}

/// Returns the entries of a device as JSON, oldest first.
fn history(device: c_int) -> String {
    let end = RING.with(|ring| ring.written);
    let (mut next, mut entries) = (0, Vec::new());
    while next < end {
        // Restarted meanwhile: the rest is gone.
        if RING.with(|ring| ring.written) < end {
            break;
        }
        entries.reserve(COPIED_AT_ONCE);
        next = RING.with(|ring| ring.copy_into(next, &mut entries));
    }
    let mut text = "[".to_owned();
    let mut separator = "";
    for entry in entries.iter().filter(|entry| entry.device == device) {
        let (action, address) = match entry.action {
            Action::Alloc => ("alloc", "addr"),
            Action::FreeRequested => ("free_requested", "addr"),
            Action::FreeCompleted => ("free_completed", "addr"),
            Action::OutOfMemory => ("oom", "device_free"),
        };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{separator}{{\"action\": \"{action}\", \"{address}\": {}, \"size\": {}, \"stream\": {}, \"time_us\": {}}}",
            entry.address, entry.bytes, entry.stream, entry.time_us
        );
        separator = ", ";
    }
    text.push(']');
    text
}

/// Starts or ends the recording of the newest allocations and frees.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
extern "C" fn larder_cuda_record_history(entries: u64) -> c_int {
    status(|| start(entries))
}

/// Writes a device's recorded allocations and frees as JSON.
///
/// # Safety
/// `into` is null or has space for `room` bytes.
// SAFETY: no other function has this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn larder_cuda_history_json(
    ordinal: c_int,
    into: *mut c_char,
    room: usize,
) -> usize {
    let text = guard(|| Ok(history(ordinal))).unwrap_or_default();
    // SAFETY: the caller makes the promise of `write_text`, as the header demands.
    unsafe { write_text(&text, into, room) }
}
