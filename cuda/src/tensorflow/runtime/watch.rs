//! Reports of the regions held: calls of the program's visitors, and entries in the map of memory kinds.
//!
//! * WATCH1 a region is reported once as held, after it is allocated, and once as leaving, before it is
//!   freed; a refused request is not reported. A region whose free the driver refused is reported as held
//!   again.
//! * WATCH2 alloc visitors run in the order they were registered, free visitors in reverse.
//! * WATCH3 no visitor runs under a lock of the core or of this module.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use larder_core::{AddrRange, GrowRequest, SubAllocError, SubAllocator};

use super::kind::{MemoryKind, RegionMap};
use crate::driver::locked;
use crate::source::virtual_memory::RegionWatch;

/// One region, as a visitor sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionVisit {
    /// Its addresses.
    pub range: AddrRange,
    /// The NUMA node of host memory, or the ordinal of a device.
    pub index: u32,
}

/// Called for each region, for example to register it with a network card. It must not use the allocator
/// whose regions it sees.
pub type Visitor = Arc<dyn Fn(RegionVisit) + Send + Sync>;

/// Visitors of one kind of memory.
#[derive(Clone, Default)]
pub(super) struct Visitors {
    pub(super) alloc: Vec<Visitor>,
    pub(super) free: Vec<Visitor>,
}

impl Visitors {
    pub(super) fn is_empty(&self) -> bool {
        self.alloc.is_empty() && self.free.is_empty()
    }
}

/// Reports the regions of one sub-allocator.
pub(crate) struct RegionReporter {
    visitors: Visitors,
    index: u32,
    /// Map that records each region with `kind`.
    map: Arc<RegionMap>,
    kind: MemoryKind,
}

impl RegionReporter {
    pub(super) fn new(
        visitors: Visitors,
        index: u32,
        map: &Arc<RegionMap>,
        kind: MemoryKind,
    ) -> Self {
        Self {
            visitors,
            index,
            map: map.clone(),
            kind,
        }
    }
}

impl RegionWatch for RegionReporter {
    fn held(&self, range: AddrRange) {
        let index = self.index;
        if self.map.insert(range, self.kind) {
            for visitor in &self.visitors.alloc {
                visitor(RegionVisit { range, index });
            }
        }
    }

    fn leaving(&self, range: AddrRange) {
        let index = self.index;
        if self.map.has(range) {
            for visitor in self.visitors.free.iter().rev() {
                visitor(RegionVisit { range, index });
            }
            self.map.remove(range);
        }
    }
}

impl fmt::Debug for RegionReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionReporter")
            .field("index", &self.index)
            .field("kind", &self.kind)
            .field("alloc_visitors", &self.visitors.alloc.len())
            .field("free_visitors", &self.visitors.free.len())
            .finish_non_exhaustive()
    }
}

/// A sub-allocator of whole regions that reports each of them.
pub(super) struct WatchedSource<S> {
    source: S,
    watch: RegionReporter,
    /// Start and bytes of each region. Locked for a look-up or a change.
    regions: Mutex<BTreeMap<u64, u64>>,
}

impl<S: SubAllocator> WatchedSource<S> {
    pub(super) fn new(source: S, watch: RegionReporter) -> Self {
        Self {
            source,
            watch,
            regions: Mutex::default(),
        }
    }

    pub(super) const fn source(&self) -> &S {
        &self.source
    }
}

impl<S: SubAllocator> SubAllocator for WatchedSource<S> {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let range = self.source.grow(request)?;
        locked(&self.regions).insert(range.start().get(), range.bytes());
        self.watch.held(range);
        Ok(range)
    }

    /// Releases one whole region.
    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        let start = range.start().get();
        let mut regions = locked(&self.regions);
        if regions.get(&start) != Some(&range.bytes()) {
            return Err(SubAllocError);
        }
        regions.remove(&start);
        drop(regions);
        self.watch.leaving(range);
        self.source.release(range).inspect_err(|_| {
            locked(&self.regions).insert(start, range.bytes());
            self.watch.held(range);
        })
    }

    fn takes_ends(&self) -> bool {
        false
    }
}

impl<S> Drop for WatchedSource<S> {
    /// Reports all regions as leaving, since the sub-allocator is dropped next and frees them.
    fn drop(&mut self) {
        let regions = core::mem::take(&mut *locked(&self.regions));
        for (start, bytes) in regions {
            if let Some(range) = AddrRange::new(larder_core::Addr::new(start), bytes) {
                self.watch.leaving(range);
            }
        }
    }
}
