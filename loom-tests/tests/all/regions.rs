//! Region pools over a source that counts the bytes held, for the models of growth and resizing.

use larder_core::sync::Spin;
use larder_core::{
    Addr, AddrRange, BestFit, Block, BlockAllocator, Chunk, FixedRange, GrowRequest, Growth,
    RegionConfig, RegionPool, Request, Shared, SubAllocError, SubAllocator,
};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};

pub(crate) const UNIT: u64 = 0x1000;

/// The ranges that a [`Watched`] source grants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gives {
    /// Ranges with an unused unit between any two, so that no range joins another. No range is granted again.
    Apart,
    /// One range. Released memory is not granted again.
    Once,
    /// One range. A released end is granted again.
    Again,
}

/// A sub-allocator that counts the bytes held and asserts that they never exceed `max`.
pub(crate) struct Watched {
    range: FixedRange,
    held: AtomicU64,
    max: u64,
    gives: Gives,
    released: Mutex<Vec<AddrRange>>,
}

impl Watched {
    fn new(max: u64, gives: Gives) -> Self {
        Self {
            range: FixedRange::new(AddrRange::new(Addr::new(UNIT), 64 * UNIT).unwrap()),
            held: AtomicU64::new(0),
            max,
            gives,
            released: Mutex::new(Vec::new()),
        }
    }

    /// Returns whether part of `range` was released.
    pub(crate) fn has_released(&self, range: AddrRange) -> bool {
        let released = self.released.lock().unwrap();
        released.iter().any(|gone| gone.overlaps(range))
    }
}

impl SubAllocator for Watched {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let held = self.held.fetch_add(request.bytes, Ordering::SeqCst) + request.bytes;
        assert!(held <= self.max, "more is held than the limit allows");
        if self.gives == Gives::Apart {
            let bytes = UNIT;
            self.range.grow(GrowRequest { bytes, ..request })?;
        }
        self.range.grow(request)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        if self.gives == Gives::Again {
            self.range.release(range)?;
        } else {
            self.released.lock().unwrap().push(range);
        }
        self.held.fetch_sub(range.bytes(), Ordering::SeqCst);
        Ok(())
    }
}

pub(crate) type Allocator = Shared<RegionPool<'static>, Watched, Spin>;

/// Creates a pool that grows by units, up to `limit_bytes`.
pub(crate) fn pool(limit_bytes: u64) -> RegionPool<'static> {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: UNIT,
            ahead_divisor: None,
        },
        ..RegionConfig::new(limit_bytes)
    };
    RegionPool::new(config, vec![Chunk::VACANT; 16].leak()).unwrap()
}

/// Creates an allocator over a source of which at most `max` bytes may be held.
pub(crate) fn allocator(limit_bytes: u64, max: u64, gives: Gives) -> Arc<Allocator> {
    Arc::new(Shared::new(pool(limit_bytes), Watched::new(max, gives)))
}

pub(crate) fn alloc(allocator: &Allocator, bytes: u64) -> Option<Block> {
    let grant = allocator.alloc(&Request::new(bytes));
    grant.ok().map(|grant| grant.block)
}

pub(crate) fn check(allocator: &Allocator) {
    assert_eq!(allocator.with(|bfc| bfc.check_invariants()), Ok(()));
    let held = allocator.source().held.load(Ordering::SeqCst);
    assert_eq!(allocator.stats().reserved_bytes, held);
}
