//! A simulated device that maps pages and enforces the rules that the driver documents. It checks every plan.
//!
//! It counts the calls, refuses memory beyond its capacity, refuses calls on request, and records which bytes are
//! behind each address. It keeps the first broken rule as a [`violation`](PageDevice::violation):
//!
//! * a call that the driver would not allow: mapping over a mapping, releasing a mapped handle, setting access where
//!   nothing is mapped;
//! * unmapping a page of a live block, or a page that queued work still uses;
//! * a live byte that has no memory or no access, or that shares its memory with another live byte;
//! * memory granted to one stream while another stream's queued work uses it;
//! * mapping pinned memory at another address.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use larder_core::pages::{PageCall, PageDriver};
use larder_core::{AddrRange, StreamId, StreamPoint, SubAllocError};

/// The driver calls made, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCalls {
    /// Handles created.
    pub create: u64,
    /// Mappings made.
    pub map: u64,
    /// Mappings removed.
    pub unmap: u64,
    /// Handles released.
    pub release: u64,
    /// Ranges made accessible.
    pub set_access: u64,
}

impl PageCalls {
    /// Returns the total number of calls.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.create + self.map + self.unmap + self.release + self.set_access
    }
}

/// A page of addresses with a mapping.
#[derive(Clone, Copy, Debug)]
struct Page {
    handle: u32,
    /// The index of the page within the handle.
    index: u64,
    access: bool,
    /// Number of live blocks that overlap it.
    live: u32,
    /// Number of pins of these blocks.
    pins: u32,
}

/// A range of bytes in a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bytes {
    handle: u32,
    start: u64,
    end: u64,
}

/// Work that still uses memory.
#[derive(Clone, Copy, Debug)]
struct Queued {
    memory: Bytes,
    /// The address at which `memory` begins.
    address: u64,
    point: StreamPoint,
}

#[derive(Debug)]
struct Handle {
    bytes: u64,
    /// Number of address pages that map it.
    mapped: u64,
}

#[derive(Debug, Default)]
struct State {
    handles: HashMap<u32, Handle>,
    pages: HashMap<u64, Page>,
    /// The address pages of live blocks, by handle and by page within the handle.
    used: HashMap<(u32, u64), u64>,
    queued: Vec<Queued>,
    held_bytes: u64,
    peak_bytes: u64,
    calls: PageCalls,
    /// The calls made, if they are kept.
    made: Option<Vec<PageCall>>,
    refuse_in: Option<u64>,
    /// Whether anything was ever pinned.
    pins: bool,
    /// The time spent in calls, if it is measured.
    time: Option<Duration>,
    violation: Option<String>,
}

/// A simulated device with a range of reserved addresses.
#[derive(Debug)]
pub struct PageDevice {
    page_bytes: u64,
    capacity_bytes: u64,
    state: Mutex<State>,
}

impl PageDevice {
    /// Creates a device that has `capacity_bytes` of memory and maps pages of `page_bytes`.
    #[must_use]
    pub fn new(page_bytes: u64, capacity_bytes: u64) -> Self {
        Self {
            page_bytes,
            capacity_bytes,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    /// Returns the calls made so far, except refused ones.
    #[must_use]
    pub fn calls(&self) -> PageCalls {
        self.state().calls
    }

    /// Keeps the calls made from now on until they are [taken](Self::take_calls).
    pub fn keep_calls(&self) {
        self.state().made = Some(Vec::new());
    }

    /// Takes the calls kept so far, which exclude refused ones.
    #[must_use]
    pub fn take_calls(&self) -> Vec<PageCall> {
        let mut state = self.state();
        state.made.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the bytes of all handles.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.state().held_bytes
    }

    /// Returns the peak of the bytes held.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.state().peak_bytes
    }

    /// Returns the first rule that was broken.
    #[must_use]
    pub fn violation(&self) -> Option<String> {
        self.state().violation.clone()
    }

    /// Measures the time of each call from now on.
    pub fn time_calls(&self) {
        self.state().time = Some(Duration::ZERO);
    }

    /// Returns the time spent in calls, or zero if it is not [measured](Self::time_calls).
    #[must_use]
    pub fn time_in_calls(&self) -> Duration {
        self.state().time.unwrap_or_default()
    }

    /// Refuses one call, after letting `calls` calls pass; with `None`, refuses none.
    pub fn refuse_in(&self, calls: Option<u64>) {
        self.state().refuse_in = calls;
    }

    /// Marks a block as live and used on `stream`.
    pub fn begin_use(&self, range: AddrRange, stream: StreamId) {
        self.state().begin_use(self.page_bytes, range, stream);
    }

    /// Marks a block as freed. If there is a point, queued work uses its memory up to that point.
    pub fn end_use(&self, range: AddrRange, point: Option<StreamPoint>) {
        self.state().end_use(self.page_bytes, range, point);
    }

    /// Pins the memory behind a range, which must stay there and be mapped nowhere else.
    pub fn pin(&self, range: AddrRange) {
        self.change_pins(range, |pins| pins + 1);
    }

    /// Undoes one [`pin`](Self::pin).
    pub fn unpin(&self, range: AddrRange) {
        self.change_pins(range, |pins| pins - 1);
    }

    fn change_pins(&self, range: AddrRange, change: impl Fn(u32) -> u32) {
        let mut state = self.state();
        state.pins = true;
        for page in pages(self.page_bytes, range) {
            if let Some(entry) = state.pages.get_mut(&page) {
                entry.pins = change(entry.pins);
            }
        }
    }

    /// Marks the work of the point's stream as done up to the point's event.
    pub fn complete(&self, point: StreamPoint) {
        let gone =
            |work: &Queued| work.point.stream == point.stream && work.point.event <= point.event;
        self.state().queued.retain(|work| !gone(work));
    }
}

impl PageDriver for PageDevice {
    fn call(&self, step: PageCall) -> Result<(), SubAllocError> {
        let mut state = self.state();
        let began = state.time.is_some().then(Instant::now);
        let outcome = self.make(&mut state, step);
        if let (Some(time), Some(began)) = (&mut state.time, began) {
            *time += began.elapsed();
        }
        outcome
    }
}

impl PageDevice {
    fn make(&self, state: &mut State, step: PageCall) -> Result<(), SubAllocError> {
        if let Some(left) = state.refuse_in {
            state.refuse_in = left.checked_sub(1);
            if left == 0 {
                return Err(SubAllocError);
            }
        }
        match step {
            PageCall::Create { handle, bytes } => {
                if state.held_bytes + bytes > self.capacity_bytes {
                    return Err(SubAllocError);
                }
                let new = Handle { bytes, mapped: 0 };
                let known = state.handles.insert(handle, new).is_some();
                state.rule(!known && bytes.is_multiple_of(self.page_bytes), step);
                state.held_bytes += bytes;
                state.peak_bytes = state.peak_bytes.max(state.held_bytes);
                state.calls.create += 1;
            }
            PageCall::Map { handle, range } => {
                let pinned = |page: &Page| page.handle == handle && page.pins > 0;
                let pinned = state.pins && state.pages.values().any(pinned);
                let entry = state.handles.get_mut(&handle);
                let whole = entry.is_some_and(|entry| {
                    entry.mapped += pages(self.page_bytes, range).count() as u64;
                    entry.bytes == range.bytes()
                });
                state.rule(whole && !pinned, step);
                for (index, page) in pages(self.page_bytes, range).enumerate() {
                    let new = Page {
                        handle,
                        index: index as u64,
                        access: false,
                        live: 0,
                        pins: 0,
                    };
                    let taken = state.pages.insert(page, new).is_some();
                    state.rule(!taken, step);
                }
                state.calls.map += 1;
            }
            PageCall::SetAccess { range } => {
                for page in pages(self.page_bytes, range) {
                    let mapped = state.pages.get_mut(&page);
                    let new =
                        mapped.is_some_and(|page| !core::mem::replace(&mut page.access, true));
                    state.rule(new, step);
                }
                state.calls.set_access += 1;
            }
            PageCall::Unmap { handle, range } => {
                let kept = state.unmap(self.page_bytes, handle, range);
                state.rule(kept, step);
                state.calls.unmap += 1;
            }
            PageCall::Release { handle, bytes } => {
                let gone = state.handles.remove(&handle);
                let kept = gone.is_some_and(|gone| gone.bytes == bytes && gone.mapped == 0);
                state.rule(kept, step);
                state.held_bytes -= bytes;
                state.calls.release += 1;
            }
        }
        if let Some(made) = &mut state.made {
            made.push(step);
        }
        Ok(())
    }
}

fn pages(page_bytes: u64, range: AddrRange) -> impl Iterator<Item = u64> {
    range.start().get() / page_bytes..range.end().get().div_ceil(page_bytes)
}

impl State {
    fn rule(&mut self, kept: bool, what: impl core::fmt::Debug) {
        if !kept && self.violation.is_none() {
            self.violation = Some(format!("{what:?}"));
        }
    }

    /// Unmaps a range. Returns whether it was a mapping of the whole handle, in order, and unused.
    fn unmap(&mut self, page_bytes: u64, handle: u32, range: AddrRange) -> bool {
        let entry = self.handles.get(&handle);
        let mut kept = entry.is_some_and(|entry| entry.bytes == range.bytes());
        for (index, page) in pages(page_bytes, range).enumerate() {
            let old = self.pages.remove(&page);
            let entry = old.and_then(|old| self.handles.get_mut(&old.handle));
            if let Some(entry) = entry {
                entry.mapped = entry.mapped.saturating_sub(1);
            }
            kept &= old.is_some_and(|old| {
                (old.handle, old.index, old.live, old.pins) == (handle, index as u64, 0, 0)
            });
            let first = page * page_bytes;
            kept &= !self.queued.iter().any(|work| {
                work.address < first + page_bytes
                    && work.address + (work.memory.end - work.memory.start) > first
            });
        }
        kept
    }

    fn begin_use(&mut self, page_bytes: u64, range: AddrRange, stream: StreamId) {
        for page in pages(page_bytes, range) {
            let Some(entry) = self.pages.get_mut(&page) else {
                self.rule(
                    false,
                    format_args!("no memory behind page {page} of live {range:?}"),
                );
                continue;
            };
            entry.live += 1;
            let entry = *entry;
            self.rule(
                entry.access,
                format_args!("no access to page {page} of {range:?}"),
            );
            let through = *self.used.entry((entry.handle, entry.index)).or_insert(page);
            self.rule(
                through == page,
                format_args!("pages {page} and {through} are live and have the same memory"),
            );
        }
        if self.queued.is_empty() {
            return;
        }
        for (memory, _) in self.memory_of(page_bytes, range) {
            let other = self.queued.iter().find(|work| {
                work.point.stream != stream
                    && work.memory.handle == memory.handle
                    && work.memory.start < memory.end
                    && memory.start < work.memory.end
            });
            let other = other.copied();
            self.rule(
                other.is_none(),
                format_args!("{stream:?} is given memory of {other:?}"),
            );
        }
    }

    fn end_use(&mut self, page_bytes: u64, range: AddrRange, point: Option<StreamPoint>) {
        if let Some(point) = point {
            for (memory, address) in self.memory_of(page_bytes, range) {
                self.queued.push(Queued {
                    memory,
                    address,
                    point,
                });
            }
        }
        for page in pages(page_bytes, range) {
            if let Some(entry) = self.pages.get_mut(&page) {
                entry.live -= 1;
                if entry.live == 0 {
                    self.used.remove(&(entry.handle, entry.index));
                }
            }
        }
    }

    /// Returns the memory behind a range, page by page, with its addresses.
    fn memory_of(&self, page_bytes: u64, range: AddrRange) -> Vec<(Bytes, u64)> {
        let mut result = Vec::new();
        for page in pages(page_bytes, range) {
            let Some(entry) = self.pages.get(&page) else {
                continue;
            };
            let first = page * page_bytes;
            let start = range.start().get().max(first);
            let end = range.end().get().min(first + page_bytes);
            let base = entry.index * page_bytes;
            let memory = Bytes {
                handle: entry.handle,
                start: base + (start - first),
                end: base + (end - first),
            };
            result.push((memory, start));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use larder_core::Addr;

    use super::*;

    /// Creates a device with one mapped page.
    fn mapped() -> (PageDevice, AddrRange) {
        let device = PageDevice::new(4096, 1 << 20);
        let range = AddrRange::new(Addr::new(1 << 20), 4096).unwrap();
        let bytes = 4096;
        device.call(PageCall::Create { handle: 7, bytes }).unwrap();
        device.call(PageCall::Map { handle: 7, range }).unwrap();
        (device, range)
    }

    #[test]
    fn a_handle_is_released_once_nothing_is_mapped_to_it() {
        let release = PageCall::Release {
            handle: 7,
            bytes: 4096,
        };
        let (device, range) = mapped();
        device.call(PageCall::Unmap { handle: 7, range }).unwrap();
        device.call(release).unwrap();
        assert_eq!(device.violation(), None);
        let (device, _) = mapped();
        device.call(release).unwrap();
        assert!(device.violation().is_some());
    }

    #[test]
    fn pinned_memory_is_mapped_nowhere_else() {
        for pinned in [false, true] {
            let (device, range) = mapped();
            if pinned {
                device.pin(range);
            }
            let range = AddrRange::new(Addr::new(2 << 20), 4096).unwrap();
            device.call(PageCall::Map { handle: 7, range }).unwrap();
            assert_eq!(device.violation().is_some(), pinned);
        }
    }

    #[test]
    fn calls_take_time_once_it_is_asked_for() {
        let (device, range) = mapped();
        assert_eq!(device.time_in_calls(), Duration::ZERO);
        device.time_calls();
        for _ in 0..1000 {
            device.call(PageCall::SetAccess { range }).unwrap();
        }
        assert!(device.time_in_calls() > Duration::ZERO);
    }
}
