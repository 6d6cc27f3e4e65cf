//! [`RegionWatch`]: callbacks for memory that a [`VirtualMemory`] maps and unmaps, or that a source of
//! regions allocates and frees.

use std::sync::OnceLock;

use larder_core::{Addr, AddrRange};

use super::VirtualMemory;
use crate::driver::locked;

/// Callbacks for memory that is mapped and unmapped. They are called without a lock of the virtual memory.
pub(crate) trait RegionWatch: Send + Sync {
    /// Called when these addresses can be used.
    fn held(&self, range: AddrRange);

    /// Called before these addresses are unmapped, in the pieces passed to `held`. Also called for pieces
    /// that were never passed to `held`, because they could not be used.
    fn leaving(&self, range: AddrRange);
}

/// The watcher, if one was set.
#[derive(Default)]
pub(crate) struct RegionWatcher(OnceLock<Box<dyn RegionWatch>>);

impl RegionWatcher {
    /// Sets the watcher once; a second watcher is never called.
    pub(crate) fn set(&self, watch: Box<dyn RegionWatch>) {
        let _ = self.0.set(watch);
    }

    pub(crate) fn held(&self, range: AddrRange) {
        if let Some(watch) = self.0.get() {
            watch.held(range);
        }
    }

    pub(crate) fn leaving(&self, range: AddrRange) {
        if let Some(watch) = self.0.get() {
            watch.leaving(range);
        }
    }
}

impl VirtualMemory {
    /// Calls the watcher for the mappings in a range, which can be used now. Each mapping is passed
    /// separately, as it will be unmapped. O(mappings in the range).
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

    /// Sets the watcher of memory that a paged allocator maps. It is set once, before anything is mapped; a
    /// second watcher is never called.
    pub(crate) fn watch(&self, watch: Box<dyn RegionWatch>) {
        self.watcher.set(watch);
    }
}
