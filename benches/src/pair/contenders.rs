//! Our pools, and the loop alone.

use std::ops::Range;

use larder_core::pages::{
    Backing, Handle, Mapping, PageCall, PageConfig, PageDriver, PageEntry, PagePool, PageTables,
};
use larder_core::{
    Addr, AddrRange, BestFit, Block, BlockAllocator, Chunk, RegionConfig, RegionPool, Request,
    Shared, SubAllocError,
};

use super::{PairContender, PairScript};

/// Start of our region, an arbitrary granule.
const REGION_START: u64 = 0x10000;

/// `larder-core`'s BFC over one region; blocks are freed by handle.
pub struct LarderRegion<'t> {
    inner: RegionPool<'t>,
    pool: Range<u64>,
}

impl<'t> LarderRegion<'t> {
    /// Creates a BFC for the script's pool, over `table`, whose length becomes the script's number of records.
    ///
    /// # Errors
    /// The error of `larder-core`, as text.
    pub fn try_new(script: &PairScript, table: &'t mut Vec<Chunk>) -> Result<Self, String> {
        table.clear();
        table.resize(script.records(), Chunk::VACANT);
        let mut inner =
            RegionPool::new(RegionConfig::fixed(), table).map_err(|error| error.to_string())?;
        let pool_bytes = script.pool_bytes();
        let range = AddrRange::new(Addr::new(REGION_START), pool_bytes).ok_or("no such range")?;
        inner
            .add_region(range)
            .map_err(|refused| format!("{refused:?}"))?;
        Ok(Self {
            inner,
            pool: REGION_START..REGION_START + pool_bytes,
        })
    }
}

impl PairContender for LarderRegion<'_> {
    type Block = Block;

    #[inline]
    fn alloc(&mut self, bytes: u32) -> Option<Block> {
        let grant = self.inner.alloc(&Request::new(u64::from(bytes))).ok()?;
        Some(grant.block)
    }

    #[inline]
    fn free(&mut self, block: Block) -> Option<()> {
        self.inner.free(block).ok()
    }

    fn address(&self, block: &Block) -> u64 {
        block.addr().get()
    }

    fn pool(&self) -> Range<u64> {
        self.pool.clone()
    }

    fn check_empty(&mut self) -> Result<(), String> {
        self.inner
            .check_invariants()
            .map_err(|violation| format!("{violation:?}"))?;
        let report = self.inner.report();
        let live_bytes = self.inner.stats().live_bytes;
        let whole = report.largest_free_bytes == self.pool.end - self.pool.start;
        if live_bytes == 0 && report.used_chunks == 0 && report.free_chunks == 1 && whole {
            return Ok(());
        }
        Err(format!("{live_bytes} live bytes, {report:?}"))
    }
}

/// Page size of [`LarderPages`] in bytes.
const PAGE_BYTES: u64 = 2 << 20;

/// A driver that grants every call.
struct Willing;

impl PageDriver for Willing {
    fn call(&self, _step: PageCall) -> Result<(), SubAllocError> {
        Ok(())
    }
}

/// `larder-core`'s BFC over pages that may move, but need not, since the whole pool is mapped before the first pair.
pub struct LarderPages<'t> {
    paged: Shared<PagePool<'t>, Willing>,
    pool: Range<u64>,
}

impl<'t> LarderPages<'t> {
    /// Creates a mapped pool for the script, over `table`. Its page tables live as long as the program.
    ///
    /// # Errors
    /// The error of `larder-core`, as text.
    pub fn try_new(script: &PairScript, table: &'t mut Vec<Chunk>) -> Result<Self, String> {
        table.clear();
        table.resize(script.records(), Chunk::VACANT);
        let pool_bytes = script.pool_bytes().next_multiple_of(PAGE_BYTES);
        let pages = usize::try_from(pool_bytes / PAGE_BYTES).map_err(|error| error.to_string())?;
        let range = AddrRange::new(Addr::new(PAGE_BYTES), pool_bytes).ok_or("no such range")?;
        let tables = PageTables {
            entries: vec![PageEntry::EMPTY; pages].leak(),
            handles: vec![Handle::VACANT; pages + 1].leak(),
            mappings: vec![Mapping::VACANT; pages + 1].leak(),
        };
        let config = PageConfig::new(range, Backing::Billed);
        let pool = PagePool::new(config, table, tables).map_err(|error| error.to_string())?;
        let paged = Shared::new(pool, Willing);
        let all = paged
            .alloc(&Request::new(pool_bytes))
            .map_err(|error| error.to_string())?;
        paged
            .free(all.block)
            .map_err(|rejected| rejected.error.to_string())?;
        Ok(Self {
            paged,
            pool: PAGE_BYTES..PAGE_BYTES + pool_bytes,
        })
    }
}

impl PairContender for LarderPages<'_> {
    type Block = Block;

    #[inline]
    fn alloc(&mut self, bytes: u32) -> Option<Block> {
        let request = Request::new(u64::from(bytes));
        Some(self.paged.get_mut().try_alloc_now(&request)?.block)
    }

    #[inline]
    fn free(&mut self, block: Block) -> Option<()> {
        self.paged.get_mut().free(block).ok()
    }

    fn address(&self, block: &Block) -> u64 {
        block.addr().get()
    }

    fn pool(&self) -> Range<u64> {
        self.pool.clone()
    }

    fn check_empty(&mut self) -> Result<(), String> {
        let pool = self.paged.get_mut();
        pool.check_invariants()
            .map_err(|violation| format!("{violation:?}"))?;
        let report = pool.report();
        let whole = report.largest_free_bytes == self.pool.end - self.pool.start;
        if report.used_chunks == 0 && report.free_chunks == 1 && whole {
            return Ok(());
        }
        Err(format!("{report:?}"))
    }
}

/// Not an allocator: measures the cost of the loop and of the table of live blocks.
///
/// Addresses only ascend and are never reused.
#[derive(Debug, Default)]
pub struct Bump {
    next_address: u64,
    live: u64,
}

/// A block of [`Bump`].
#[derive(Debug)]
pub struct BumpBlock {
    address: u64,
    pub(super) bytes: u32,
}

impl PairContender for Bump {
    type Block = BumpBlock;

    #[inline]
    fn alloc(&mut self, bytes: u32) -> Option<BumpBlock> {
        let address = self.next_address;
        self.next_address += u64::from(super::MAX_BYTES);
        self.live += 1;
        Some(BumpBlock { address, bytes })
    }

    #[inline]
    fn free(&mut self, _block: BumpBlock) -> Option<()> {
        self.live -= 1;
        Some(())
    }

    fn address(&self, block: &BumpBlock) -> u64 {
        block.address
    }

    fn pool(&self) -> Range<u64> {
        0..u64::MAX
    }

    fn check_empty(&mut self) -> Result<(), String> {
        match self.live {
            0 => Ok(()),
            live => Err(format!("{live} live blocks")),
        }
    }
}
