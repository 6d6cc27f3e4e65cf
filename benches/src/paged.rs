//! Larder's contenders whose physical pages move: `larder-core`'s paged best fit over the model of
//! a device that maps pages.
//!
//! The device counts every driver call. When [judged](Contender::judge) it also learns which blocks
//! are live, and says when a live byte has no memory behind it or shares it with another. The
//! simulated device's own work is inside the times: a few table writes for each page mapped.

use std::sync::Mutex;

use larder_core::paged::{Backing, Handle, Mapping, PageTables, PagedBfc, PagedConfig, Place};
use larder_core::{Addr, AddrRange, Block, Chunk, ChunkHandle, RawBlock, Request, StreamId};
use larder_model::PageDevice;

use crate::replay::{Contender, DriverCalls, Slot};

/// Name of [`larder_billed`].
pub const LARDER_BILLED: &str = "larder-billed";
/// Name of [`larder_budget`].
pub const LARDER_BUDGET: &str = "larder-budget";

/// What the device maps at least.
const PAGE_BYTES: u64 = 2 << 20;

/// First address; not 0, so that a forgotten base would show.
const BASE: u64 = 1 << 40;

/// Reserved addresses: 768 GiB, as many as granules of 256 bytes counted in 32 bits allow, with
/// room to spare.
const ADDRESS_BYTES: u64 = 768 << 30;

/// Places lent to each allocator: one a page of addresses.
const PLACES: usize = (ADDRESS_BYTES / PAGE_BYTES) as usize;

/// Handles, mappings and chunks lent to each allocator: far more than any trace needs at once.
const HANDLES: usize = 1 << 15;
const MAPPINGS: usize = 1 << 17;
const CHUNKS: usize = 1 << 17;

/// Pages move before more memory is asked for.
#[must_use]
pub fn larder_billed(device_bytes: Option<u64>) -> Box<dyn Contender> {
    Box::new(Paged::new(LARDER_BILLED, Backing::Billed, device_bytes))
}

/// The device's memory is ours anyway: pages move from three quarters of it on.
#[must_use]
pub fn larder_budget(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let backing = Backing::Budget(device_bytes.unwrap_or(u64::MAX));
    Box::new(Paged::new(LARDER_BUDGET, backing, device_bytes))
}

/// A paged allocator of the core, as a contender.
pub struct Paged {
    name: &'static str,
    /// Always there, except while it is dropped.
    paged: Option<PagedBfc<'static>>,
    device: PageDevice,
    judged: bool,
}

impl Paged {
    /// A fresh allocator on a device of so many bytes, or without limit.
    #[expect(clippy::expect_used, reason = "policies are constants of this program")]
    fn new(name: &'static str, backing: Backing, device_bytes: Option<u64>) -> Self {
        let capacity_bytes = device_bytes.unwrap_or(u64::MAX);
        let addresses = AddrRange::new(Addr::new(BASE), ADDRESS_BYTES);
        let addresses = addresses.expect("ends below 2^64");
        let mut config = PagedConfig::new(addresses, backing);
        config.page_bytes = PAGE_BYTES;
        config.bfc.limit_bytes = capacity_bytes;
        let (chunks, tables) = take_tables();
        let paged = PagedBfc::with_tables(config, chunks, tables).expect("the policies agree");
        Self {
            name,
            paged: Some(paged),
            device: PageDevice::new(PAGE_BYTES, capacity_bytes),
            judged: false,
        }
    }
}

impl Paged {
    /// The contender that [`larder_billed`] makes, under another name.
    #[must_use]
    pub fn billed(name: &'static str, device_bytes: Option<u64>) -> Self {
        Self::new(name, Backing::Billed, device_bytes)
    }

    /// The allocator and its device; `None` only while it is dropped.
    pub fn parts(&mut self) -> Option<(&mut PagedBfc<'static>, &PageDevice)> {
        Some((self.paged.as_mut()?, &self.device))
    }

    /// A block in the replay's form; the device learns of it.
    pub fn hand_out(&mut self, block: Block) -> Slot {
        if self.judged {
            self.device.begin_use(block.range(), StreamId::MAIN);
        }
        let raw = block.into_raw();
        Slot {
            address: raw.addr.get(),
            handle: raw.handle.get(),
        }
    }

    /// The block again, about to be freed.
    pub fn take_back(&mut self, slot: Slot) -> Option<Block> {
        let handle = ChunkHandle::new(slot.handle)?;
        let addr = Addr::new(slot.address);
        let block = self
            .paged
            .as_ref()?
            .block_from_raw(RawBlock { addr, handle });
        let block = block.ok()?;
        if self.judged {
            self.device.end_use(block.range(), None);
        }
        Some(block)
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        if let Some(paged) = self.paged.take() {
            give_tables(paged.into_tables());
        }
    }
}

impl Contender for Paged {
    fn name(&self) -> &'static str {
        self.name
    }

    fn alloc(&mut self, bytes: u64) -> Option<Slot> {
        let paged = self.paged.as_mut()?;
        let grant = paged.alloc_over(&self.device, &Request::new(bytes)).ok()?;
        Some(self.hand_out(grant.block))
    }

    fn free(&mut self, slot: Slot) {
        let block = self.take_back(slot);
        let freed = block.is_some_and(|block| {
            let paged = self.paged.as_mut();
            paged.is_some_and(|paged| paged.free(block).is_ok())
        });
        assert!(freed, "the replay frees only live blocks");
    }

    fn reserved_bytes(&self) -> u64 {
        self.device.held_bytes()
    }

    fn max_reserved_bytes(&self) -> Option<u64> {
        Some(self.device.peak_bytes())
    }

    fn driver_allocations(&self) -> u64 {
        self.device.calls().create
    }

    fn driver_frees(&self) -> u64 {
        self.device.calls().release
    }

    fn driver_calls(&self) -> Option<DriverCalls> {
        let calls = self.device.calls();
        Some(DriverCalls {
            create: calls.create,
            map: calls.map,
            unmap: calls.unmap,
            release: calls.release,
            set_access: calls.set_access,
        })
    }

    fn end_step(&mut self) {
        if let Some(paged) = self.paged.as_mut() {
            paged.end_step();
        }
    }

    fn judge(&mut self) {
        self.judged = true;
    }

    fn broken_rule(&self) -> Option<String> {
        let counted = self.paged.as_ref()?.stats().reserved_bytes;
        let held = self.device.held_bytes();
        self.device.violation().or_else(|| {
            (counted != held)
                .then(|| format!("{counted} bytes are counted as reserved, the device gave {held}"))
        })
    }
}

/// What is lent to one allocator.
type Tables = (&'static mut [Chunk], PageTables<'static>);

/// Tables that no allocator uses at the moment.
static TABLES: Mutex<Vec<Tables>> = Mutex::new(Vec::new());

/// Tables that no allocator uses, or new ones, which are leaked and reused; see [`ours`](crate::ours).
fn take_tables() -> Tables {
    let spare = TABLES.lock().unwrap_or_else(|lock| lock.into_inner()).pop();
    spare.unwrap_or_else(|| {
        let tables = PageTables {
            places: vec![Place::EMPTY; PLACES].leak(),
            handles: vec![Handle::VACANT; HANDLES].leak(),
            mappings: vec![Mapping::VACANT; MAPPINGS].leak(),
        };
        (vec![Chunk::VACANT; CHUNKS].leak(), tables)
    })
}

fn give_tables(tables: Tables) {
    let mut spare = TABLES.lock().unwrap_or_else(|lock| lock.into_inner());
    spare.push(tables);
}

#[cfg(test)]
mod tests {
    use larder_core::paged::{PageDriver, PageStep};

    use super::*;

    /// The first block is one page, and so is the memory behind it.
    fn first_block(judged: bool) -> (Paged, Slot, PageStep) {
        let mut paged = Paged::new(LARDER_BILLED, Backing::Billed, None);
        if judged {
            paged.judge();
        }
        let slot = paged.alloc(PAGE_BYTES).unwrap();
        let range = AddrRange::new(Addr::new(slot.address), PAGE_BYTES).unwrap();
        (paged, slot, PageStep::Unmap { handle: 1, range })
    }

    #[test]
    fn a_judged_device_knows_what_is_live_and_an_unjudged_one_does_not() {
        for judged in [true, false] {
            let (paged, _, unmap) = first_block(judged);
            assert_eq!(paged.broken_rule(), None);
            paged.device.call(unmap).unwrap();
            assert_eq!(paged.broken_rule().is_some(), judged);
        }
    }

    #[test]
    fn a_judged_device_knows_what_was_freed() {
        let (mut paged, slot, unmap) = first_block(true);
        paged.free(slot);
        paged.device.call(unmap).unwrap();
        assert_eq!(paged.broken_rule(), None);
    }

    #[test]
    fn bytes_that_are_counted_wrong_break_a_rule() {
        let (paged, _, _) = first_block(false);
        let bytes = PAGE_BYTES;
        let create = PageStep::Create { handle: 99, bytes };
        paged.device.call(create).unwrap();
        let rule = paged.broken_rule().unwrap();
        assert!(rule.starts_with("2097152 bytes are counted"), "{rule}");
    }
}
