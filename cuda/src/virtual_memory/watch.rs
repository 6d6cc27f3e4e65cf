//! Who is told of what a [`VirtualMemory`] maps.

use std::sync::OnceLock;

use larder_core::{Addr, AddrRange};

use super::VirtualMemory;
use crate::driver::locked;

/// Is told of memory that comes and goes. Called without a lock of the virtual memory.
pub(crate) trait RegionWatch: Send + Sync {
    /// These addresses can be used from now on.
    fn held(&self, range: AddrRange);

    /// These are about to go, as they were told to be held; or were never told, since they could not be used.
    fn leaving(&self, range: AddrRange);
}

/// Nobody, or one who was named before anything was mapped.
#[derive(Default)]
pub(super) struct Watcher(OnceLock<Box<dyn RegionWatch>>);

impl Watcher {
    fn held(&self, range: AddrRange) {
        if let Some(watch) = self.0.get() {
            watch.held(range);
        }
    }

    pub(super) fn leaving(&self, range: AddrRange) {
        if let Some(watch) = self.0.get() {
            watch.leaving(range);
        }
    }
}

impl VirtualMemory {
    /// The mappings in a range can be used: each is told by itself, as it goes. O(mappings in the range).
    pub(super) fn notify_held(&self, range: AddrRange) {
        if self.watcher.0.get().is_none() {
            return;
        }
        let (start, end) = (range.start().get(), range.end().get());
        let table = locked(&self.table);
        let mappings = table.mappings.range(start..end);
        let ranges: Vec<_> = mappings
            .filter_map(|(at, mapped)| AddrRange::new(Addr::new(*at), mapped.bytes))
            .collect();
        drop(table);
        for range in ranges {
            self.watcher.held(range);
        }
    }

    /// Tells `watch` of all that a paged allocator maps from now on. Named once, before anything is mapped; a
    /// second one is not told.
    pub(crate) fn watch(&self, watch: Box<dyn RegionWatch>) {
        let _ = self.watcher.0.set(watch);
    }
}
