//! Larder's own contenders: `larder-core`'s BFC over a simulated device.
//!
//! The algorithm and its policies are the real ones; only the device is simulated, which gives
//! consecutive addresses, as a reserved range of virtual addresses does.

use std::num::NonZeroU32;
use std::sync::Mutex;

use larder_core::{
    Addr, AddrRange, Bfc, BfcConfig, Chunk, ChunkHandle, FixedRange, GrowRequest, Growth, RawBlock,
    Request, SubAllocError, SubAllocator,
};

use crate::replay::{Contender, Slot};

/// Name of [`larder`].
pub const LARDER: &str = "larder";
/// Name of [`larder_ahead`].
pub const LARDER_AHEAD: &str = "larder-ahead";

/// Growth ahead of [`larder_ahead`]: a 64th of what is held.
const AHEAD_DIVISOR: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// Records lent to each allocator: 4 MiB of table, far more than any trace has chunks at once.
const RECORDS: usize = 1 << 17;

/// First address of the simulated device; not 0, so that a forgotten base would show.
const BASE: u64 = 1 << 32;

/// Bytes of a device without a limit.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// Larder's default as a contender: one range that grows by what is missing, in units of 2 MiB.
#[must_use]
pub fn larder(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let config = BfcConfig::new(device_bytes.unwrap_or(u64::MAX));
    Box::new(Core::new(LARDER, config))
}

/// Larder over one range that grows by at least a 64th of what is held.
#[must_use]
pub fn larder_ahead(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let mut config = BfcConfig::new(device_bytes.unwrap_or(u64::MAX));
    if let Growth::Range { ahead_divisor, .. } = &mut config.growth {
        *ahead_divisor = Some(AHEAD_DIVISOR);
    }
    Box::new(Core::new(LARDER_AHEAD, config))
}

/// A BFC of the core under any policies, as a contender.
pub struct Core {
    name: &'static str,
    /// Always there, except while it is dropped.
    bfc: Option<Bfc<'static>>,
    device: CountedRange,
}

impl Core {
    /// A fresh allocator with these policies on a device without a limit of its own.
    ///
    /// # Panics
    /// If the policies contradict each other.
    #[must_use]
    #[expect(clippy::expect_used, reason = "policies are constants of this program")]
    pub fn new(name: &'static str, config: BfcConfig) -> Self {
        let bfc = Bfc::new(config, take_table()).expect("the policies agree");
        Self {
            name,
            bfc: Some(bfc),
            device: CountedRange::new(),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(bfc) = self.bfc.take() {
            give_table(bfc.into_table());
        }
    }
}

impl Contender for Core {
    fn name(&self) -> &'static str {
        self.name
    }

    fn alloc(&mut self, bytes: u64) -> Option<Slot> {
        let bfc = self.bfc.as_mut()?;
        let grant = bfc.alloc_over(&self.device, &Request::new(bytes)).ok()?;
        let raw = grant.block.into_raw();
        Some(Slot {
            address: raw.addr.get(),
            handle: raw.handle.get(),
        })
    }

    fn free(&mut self, slot: Slot) {
        let handle = ChunkHandle::new(slot.handle);
        if let (Some(bfc), Some(handle)) = (self.bfc.as_mut(), handle) {
            let addr = Addr::new(slot.address);
            let freed = bfc
                .block_from_raw(RawBlock { addr, handle })
                .is_ok_and(|block| bfc.free(block).is_ok());
            assert!(freed, "the replay frees only live blocks");
        }
    }

    fn reserved_bytes(&self) -> u64 {
        self.bfc
            .as_ref()
            .map_or(0, |bfc| bfc.stats().reserved_bytes)
    }

    fn driver_allocations(&self) -> u64 {
        self.device.calls().0
    }

    fn driver_frees(&self) -> u64 {
        self.device.calls().1
    }
}

/// A range of device addresses that counts how often it was asked.
struct CountedRange {
    range: FixedRange,
    calls: Mutex<(u64, u64)>,
}

impl CountedRange {
    #[expect(clippy::expect_used, reason = "constants")]
    fn new() -> Self {
        let range = AddrRange::new(Addr::new(BASE), UNLIMITED_BYTES);
        Self {
            range: FixedRange::new(range.expect("ends below 2^64")),
            calls: Mutex::new((0, 0)),
        }
    }

    fn calls(&self) -> (u64, u64) {
        *self.calls.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    fn count(&self, grown: u64, released: u64) {
        let mut calls = self.calls.lock().unwrap_or_else(|lock| lock.into_inner());
        calls.0 += grown;
        calls.1 += released;
    }
}

impl SubAllocator for CountedRange {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let range = self.range.grow(request)?;
        self.count(1, 0);
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.range.release(range)?;
        self.count(0, 1);
        Ok(())
    }
}

/// Tables that no allocator uses at the moment.
static TABLES: Mutex<Vec<&'static mut [Chunk]>> = Mutex::new(Vec::new());

/// A table that no allocator uses, or a new one. Tables are leaked and reused: a contender owns what it is
/// built of, so its table must live as long as the program.
pub(crate) fn take_table() -> &'static mut [Chunk] {
    let spare = TABLES.lock().unwrap_or_else(|lock| lock.into_inner()).pop();
    spare.unwrap_or_else(|| vec![Chunk::VACANT; RECORDS].leak())
}

pub(crate) fn give_table(table: &'static mut [Chunk]) {
    let mut spare = TABLES.lock().unwrap_or_else(|lock| lock.into_inner());
    spare.push(table);
}
